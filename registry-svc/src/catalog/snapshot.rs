//! A catalog: skills and agents by name, packages by digest, and the report of the load that made it. It never changes;
//! a reader takes the current one and keeps it for the whole call.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skillyard::{Agent, Digest, SkillName, View};

use super::fingerprint;
use super::report::Report;
use crate::source::FoundSkill;

/// All that is known at one moment.
#[derive(Clone, Debug)]
pub struct Catalog {
    version: Digest,
    skills: BTreeMap<SkillName, Entry>,
    agents: BTreeMap<String, Arc<Agent>>,
    packages: HashMap<Digest, Arc<FoundSkill>>,
    report: Report,
}

/// A skill of a catalog.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The skill and its files.
    pub(super) found: Arc<FoundSkill>,
    /// Of its manifest, as it was found.
    pub(super) path: PathBuf,
    /// Of all that a caller could see of it but its modification time.
    pub(super) fingerprint: Digest,
}

/// No agent has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown agent {0:?}")]
pub struct UnknownAgent(pub String);

/// How the skills of two catalogs differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Skills that are new.
    pub added: u32,
    /// Skills that differ.
    pub changed: u32,
    /// Skills that are gone.
    pub removed: u32,
}

impl Catalog {
    pub(super) fn new(
        skills: BTreeMap<SkillName, Entry>,
        agents: BTreeMap<String, Arc<Agent>>,
        report: Report,
    ) -> Self {
        let fingerprints: Vec<_> = skills.values().map(|entry| &entry.fingerprint).collect();
        let version = fingerprint::of_catalog(fingerprints.into_iter(), agents.values().map(AsRef::as_ref));
        let mut packages = HashMap::with_capacity(skills.len());
        for entry in skills.values() {
            packages.entry(entry.found.skill.digest).or_insert_with(|| Arc::clone(&entry.found));
        }
        Self { version, skills, agents, packages, report }
    }

    /// A hash of all it holds, without modification times: replicas over the same files agree.
    #[must_use]
    pub fn version(&self) -> &Digest {
        &self.version
    }

    /// What became of every candidate.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What an agent sees. An empty name means the default agent, and without one there is no filter.
    ///
    /// # Errors
    /// There is no such agent. A default agent that is not there is as unknown as any other.
    pub fn view(&self, agent: &str, default_agent: Option<&str>) -> Result<View<'_>, UnknownAgent> {
        let name = match (agent, default_agent) {
            ("", None) => return Ok(View::unfiltered()),
            ("", Some(default)) => default,
            (name, _) => name,
        };
        self.agents.get(name).map(|agent| View::of(agent)).ok_or_else(|| UnknownAgent(name.to_owned()))
    }

    /// A skill, if there is one for this view.
    #[must_use]
    pub fn skill(&self, view: View<'_>, name: &str) -> Option<&Arc<FoundSkill>> {
        let found = &self.skills.get(name)?.found;
        view.sees(&found.skill.name, found.skill.source).then_some(found)
    }

    /// Where the manifest of a skill was found, whoever may see it.
    #[must_use]
    pub fn manifest_path(&self, name: &SkillName) -> Option<&Path> {
        self.skills.get(name).map(|entry| entry.path.as_path())
    }

    /// The skills of a view in byte order of their names, those after `after` only.
    pub fn skills<'a>(&'a self, view: View<'a>, after: Option<&str>) -> impl Iterator<Item = &'a FoundSkill> {
        self.skills
            .range::<str, _>((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
            .map(|(_, entry)| entry.found.as_ref())
            .filter(move |found| view.sees(&found.skill.name, found.skill.source))
    }

    /// An agent by its name.
    #[must_use]
    pub fn agent(&self, name: &str) -> Option<&Agent> {
        self.agents.get(name).map(AsRef::as_ref)
    }

    /// The agents in byte order of their names, those after `after` only.
    pub fn agents<'a>(&'a self, after: Option<&str>) -> impl Iterator<Item = &'a Agent> {
        self.agents
            .range::<str, _>((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
            .map(|(_, agent)| agent.as_ref())
    }

    /// A skill with this package; where several have it, one of them.
    #[must_use]
    pub fn package(&self, digest: &Digest) -> Option<&Arc<FoundSkill>> {
        self.packages.get(digest)
    }

    /// How the skills differ from those of the catalog before.
    #[must_use]
    pub fn difference(&self, before: Option<&Self>) -> Difference {
        let mut difference = Difference::default();
        for (name, entry) in &self.skills {
            match before.and_then(|before| before.skills.get(name)) {
                None => difference.added += 1,
                Some(old) if old.fingerprint != entry.fingerprint => difference.changed += 1,
                Some(_) => {}
            }
        }
        if let Some(before) = before {
            let gone = before.skills.keys().filter(|name| !self.skills.contains_key(*name)).count();
            difference.removed = u32::try_from(gone).unwrap_or(u32::MAX);
        }
        difference
    }

    /// The fingerprint of this very value, where it was made before.
    pub(super) fn fingerprint_of(&self, found: &Arc<FoundSkill>) -> Option<Digest> {
        let entry = self.skills.get(&found.skill.name)?;
        Arc::ptr_eq(&entry.found, found).then_some(entry.fingerprint)
    }
}
