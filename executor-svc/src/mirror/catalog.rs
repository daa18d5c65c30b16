//! The catalog as an executor holds it: immutable, with every schema compiled. Building one never fails; a skill that
//! cannot be used is left out and named.

use std::collections::{BTreeMap, HashMap, HashSet};
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

    /// Turns a state into a catalog. What is compiled in the one before is used again.
    pub(super) fn build(state: State, previous: Option<&Self>) -> Self {
        let State { version, skills, agents, mut refused, .. } = state;
        let mut compiled: HashMap<String, Arc<Schema>> = HashMap::new();
        for known in previous.iter().flat_map(|catalog| catalog.skills.values()) {
            if let (Kind::Subprocess(subprocess), Some(schema)) = (&known.skill.kind, &known.schema) {
                compiled.entry(subprocess.schema_json.clone()).or_insert_with(|| Arc::clone(schema));
            }
        }
        let mut usable = BTreeMap::new();
        for skill in skills {
            let schema = match &skill.kind {
                Kind::Playbook(_) => None,
                Kind::Subprocess(subprocess) => match compiled.get(&subprocess.schema_json) {
                    Some(schema) => Some(Arc::clone(schema)),
                    None => match Schema::compile(&subprocess.schema_json).map(Arc::new) {
                        Ok(schema) => {
                            compiled.insert(subprocess.schema_json.clone(), Arc::clone(&schema));
                            Some(schema)
                        }
                        Err(cause) => {
                            refused.insert(skill.name.to_string(), format!("its schema cannot be used: {cause}"));
                            continue;
                        }
                    },
                },
            };
            usable.insert(skill.name.clone(), Arc::new(MirroredSkill { skill, schema }));
        }
        let agents = agents.into_iter().map(|agent| (agent.name.clone(), agent)).collect();
        Self { version, agents, skills: usable, refused }
    }

    /// What must be here to run its skills. Playbooks are not run.
    pub(super) fn packages(&self) -> HashSet<Digest> {
        self.subprocesses().map(|skill| skill.digest).collect()
    }

    pub(super) fn subprocesses(&self) -> impl Iterator<Item = &Skill> {
        self.skills.values().map(|known| &known.skill).filter(|skill| matches!(skill.kind, Kind::Subprocess(_)))
    }
}
