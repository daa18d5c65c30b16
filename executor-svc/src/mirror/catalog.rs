//! The catalog as an executor holds it: immutable, with every schema compiled. Building one never fails; a skill that
//! cannot be used is left out and named.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use skillyard::schema::Schema;
use skillyard::skill::Kind;
use skillyard::{Agent, Digest, Skill, SkillName};

use crate::registry::State;

/// One version of the registry's catalog. Readers take it once a call and keep it.
#[derive(Debug)]
pub struct MirroredCatalog {
    /// The registry's name for this state.
    pub version: String,
    /// By name.
    pub agents: BTreeMap<String, Agent>,
    /// By name.
    pub skills: BTreeMap<SkillName, Arc<MirroredSkill>>,
    /// Skills that were left out, by name, with the cause.
    pub refused: BTreeMap<String, String>,
}

/// A skill that an executor can be asked for.
#[derive(Debug)]
pub struct MirroredSkill {
    /// The skill.
    pub skill: Skill,
    /// Its compiled schema; `None` for a playbook alone, which has no arguments.
    pub schema: Option<Arc<Schema>>,
}

impl MirroredCatalog {
    /// The skill of this name, whoever asks: what an agent may see is for [`skillyard::View`] to say.
    #[must_use]
    pub fn skill(&self, name: &str) -> Option<&Arc<MirroredSkill>> {
        self.skills.get(name)
    }

    /// Turns a state into a catalog. What is compiled in the one before is used again; where that is known to differ in
    /// the skills of these names alone, all others are the same.
    pub(super) fn build(state: &State, previous: Option<&Self>, touched: Option<&BTreeSet<String>>) -> Self {
        let mut compiled: HashMap<&str, Arc<Schema>> = HashMap::new();
        for known in previous.iter().flat_map(|catalog| catalog.skills.values()) {
            if let (Kind::Subprocess(subprocess), Some(schema)) = (&known.skill.kind, &known.schema) {
                compiled.entry(&subprocess.schema_json).or_insert_with(|| Arc::clone(schema));
            }
        }
        let (mut skills, mut refused, names): (_, _, Vec<&str>) = match (previous, touched) {
            (Some(previous), Some(touched)) => {
                (previous.skills.clone(), previous.refused.clone(), touched.iter().map(String::as_str).collect())
            }
            _ => (BTreeMap::new(), BTreeMap::new(), state.names().collect()),
        };
        for name in names {
            skills.remove(name);
            refused.remove(&shown(name));
            match state.skill(name).map(|skill| skill.and_then(|skill| usable(skill, &compiled))) {
                Some(Ok(skill)) => drop(skills.insert(skill.skill.name.clone(), Arc::new(skill))),
                Some(Err(cause)) => drop(refused.insert(shown(name), cause)),
                None => {}
            }
        }
        refused.extend(state.doubts().map(|(name, cause)| (shown(name), cause)));
        let agents = state.agents().map(|agent| (agent.name.clone(), agent)).collect();
        Self { version: state.version().to_owned(), agents, skills, refused }
    }

    /// What must be here to run its skills. Playbooks are not run.
    pub(super) fn packages(&self) -> HashSet<Digest> {
        self.subprocesses().map(|skill| skill.digest).collect()
    }

    pub(super) fn subprocesses(&self) -> impl Iterator<Item = &Skill> {
        self.skills.values().map(|known| &known.skill).filter(|skill| matches!(skill.kind, Kind::Subprocess(_)))
    }
}

/// A skill with its schema compiled, or why it cannot be used.
fn usable(skill: Skill, compiled: &HashMap<&str, Arc<Schema>>) -> Result<MirroredSkill, String> {
    let schema = match &skill.kind {
        Kind::Playbook(_) => None,
        Kind::Subprocess(subprocess) => Some(match compiled.get(&*subprocess.schema_json) {
            Some(schema) => Arc::clone(schema),
            None => Schema::compile(&subprocess.schema_json)
                .map(Arc::new)
                .map_err(|cause| format!("its schema cannot be used: {cause}"))?,
        }),
    };
    Ok(MirroredSkill { skill, schema })
}

/// A name in a report: what is none may be of any length.
fn shown(name: &str) -> String {
    name.chars().take(skillyard::name::MAX_CHARS).collect()
}
