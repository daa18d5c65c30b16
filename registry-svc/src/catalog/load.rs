//! From what was found under the roots to one catalog: precedence, names that are taken, and the report. It reads no
//! file and cannot fail: what is not good enough is in the report.

use std::collections::btree_map::Entry as AgentSlot;
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::skill::Kind;
use skillyard::{Agent, SkillName, Source};

use super::fingerprint;
use super::report::{Fate, Key, Report, Reported, RootReport, Subject};
use super::snapshot::{Catalog, Entry};
use crate::source::{AgentScan, Candidate, Diagnostic, FoundSkill, Root, RootKind, Scan, Severity, SkillScan, codes};

/// Most skills that do not exist of which an agent's diagnostics tell.
const MOST_UNKNOWN: usize = 100;

/// What was found under a root of either kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Scanned {
    /// Of a root of skills.
    Skills(SkillScan),
    /// Of the directory of agents.
    Agents(AgentScan),
}

impl Scanned {
    /// Nothing, under this root.
    #[must_use]
    pub fn empty(root: Root) -> Self {
        match root.kind {
            RootKind::Skills(_) => Self::Skills(Scan::new(root, Vec::new())),
            RootKind::Agents => Self::Agents(Scan::new(root, Vec::new())),
        }
    }

    /// The root, with the state that looking at it gave.
    #[must_use]
    pub fn root(&self) -> &Root {
        match self {
            Self::Skills(scan) => &scan.root,
            Self::Agents(scan) => &scan.root,
        }
    }

    /// How many candidates there are.
    fn size(&self) -> usize {
        match self {
            Self::Skills(scan) => scan.candidates.len(),
            Self::Agents(scan) => scan.candidates.len(),
        }
    }

    /// Whether a file was so young that it may have changed unseen.
    #[must_use]
    pub fn needs_second_look(&self) -> bool {
        match self {
            Self::Skills(scan) => scan.needs_second_look(),
            Self::Agents(scan) => scan.needs_second_look(),
        }
    }

    /// What was found when the root could be read, after a look that could not: with its state and what it says.
    #[must_use]
    pub fn kept(self, failed: Self) -> Self {
        match (self, failed) {
            (Self::Skills(kept), Self::Skills(failed)) => Self::Skills(kept.kept(failed)),
            (Self::Agents(kept), Self::Agents(failed)) => Self::Agents(kept.kept(failed)),
            (_, other) => other,
        }
    }
}

/// Makes a catalog of what was found, roots in order of precedence. Of the catalog before only what is expensive to
/// make again is taken.
#[must_use]
pub fn load(scans: &[Arc<Scanned>], loaded_at: SystemTime, before: Option<&Catalog>) -> Catalog {
    let candidates = scans.iter().map(|scan| scan.size()).sum();
    let mut loader = Loader {
        skills: Vec::with_capacity(candidates),
        names: HashMap::with_capacity(candidates),
        agents: BTreeMap::new(),
        candidates: Vec::with_capacity(candidates),
    };
    // Agents last: they are checked against the skills that there are.
    for (root, scan) in scans.iter().enumerate() {
        if let Scanned::Skills(scan) = scan.as_ref() {
            loader.add_skills(root, scan);
        }
    }
    for (root, scan) in scans.iter().enumerate() {
        if let Scanned::Agents(scan) = scan.as_ref() {
            loader.add_agents(root, scan);
        }
    }
    let Loader { skills, agents, mut candidates, .. } = loader;
    let skills = entries(&skills, before);
    // Those of a root are in their order already.
    candidates.sort_by_key(|candidate| candidate.key.root);
    let mut roots: Vec<_> =
        scans.iter().map(|scan| RootReport { root: scan.root().clone(), registered: 0, skipped: 0 }).collect();
    for candidate in &candidates {
        let root = &mut roots[candidate.key.root];
        *(if candidate.is_registered() { &mut root.registered } else { &mut root.skipped }) += 1;
    }
    let agent =
        |(name, candidate): (&str, &Candidate<Agent>)| Some((name.to_owned(), Arc::clone(candidate.value.as_ref()?)));
    let agents = agents.into_iter().filter_map(agent).collect();
    Catalog::new(skills, agents, Report { loaded_at, roots, candidates }, before)
}

struct Loader<'a> {
    /// Registered, and where in the list each name is.
    skills: Vec<&'a Candidate<FoundSkill>>,
    names: HashMap<&'a str, usize>,
    agents: BTreeMap<&'a str, &'a Candidate<Agent>>,
    candidates: Vec<Reported>,
}

impl<'a> Loader<'a> {
    fn add_skills(&mut self, root: usize, scan: &'a SkillScan) {
        let mut keys = Keys::new(root);
        for candidate in &scan.candidates {
            let mut diagnostics = candidate.diagnostics.clone();
            let fate = match &candidate.value {
                None => failed(candidate),
                Some(found) => match self.names.entry(found.skill.name.as_str()) {
                    Slot::Occupied(taken) => {
                        let by = self.skills[*taken.get()];
                        diagnostics.push(name_taken("skill", &candidate.name, &by.path));
                        Fate::NameTaken
                    }
                    Slot::Vacant(free) => {
                        free.insert(self.skills.len());
                        self.skills.push(candidate);
                        Fate::Registered(Some(found.skill.digest))
                    }
                },
            };
            self.candidates.push(Reported {
                key: keys.next(&candidate.path),
                name: Arc::clone(&candidate.name),
                subject: subject(scan.root.kind, candidate.value.as_deref()),
                fate,
                diagnostics,
            });
        }
    }

    fn add_agents(&mut self, root: usize, scan: &'a AgentScan) {
        let mut keys = Keys::new(root);
        for candidate in &scan.candidates {
            let mut diagnostics = candidate.diagnostics.clone();
            let fate = match &candidate.value {
                None => failed(candidate),
                Some(agent) => {
                    diagnostics.extend(unknown_skills(agent, &self.names).take(MOST_UNKNOWN));
                    match self.agents.entry(&agent.name) {
                        AgentSlot::Occupied(taken) => {
                            diagnostics.push(name_taken("agent", &candidate.name, &taken.get().path));
                            Fate::NameTaken
                        }
                        AgentSlot::Vacant(free) => {
                            free.insert(candidate);
                            Fate::Registered(None)
                        }
                    }
                }
            };
            let (key, name) = (keys.next(&candidate.path), Arc::clone(&candidate.name));
            self.candidates.push(Reported { key, name, subject: Subject::Agent, fate, diagnostics });
        }
    }
}

/// The registered skills in byte order of their names, with what was made of the very same ones before.
fn entries(skills: &[&Candidate<FoundSkill>], before: Option<&Catalog>) -> Vec<Entry> {
    let found = skills.iter().filter_map(|candidate| Some((*candidate, candidate.value.as_ref()?)));
    // Most names differ in their first bytes, which are compared without a look at the skill.
    let mut ordered: Vec<_> =
        found.map(|(candidate, found)| (beginning(&found.skill.name), candidate, found)).collect();
    ordered.sort_unstable_by(|(a, _, one), (b, _, other)| {
        a.cmp(b).then_with(|| one.skill.name.as_str().cmp(other.skill.name.as_str()))
    });
    let mut known = before.map(Catalog::known).into_iter().flatten().peekable();
    let made = ordered.into_iter().map(|(_, candidate, found)| {
        let name = found.skill.name.as_str();
        // Both are in order of their names.
        while known.peek().is_some_and(|known| !Arc::ptr_eq(&known.found, found) && known.name() < name) {
            known.next();
        }
        let path = Arc::clone(&candidate.path);
        match known.next_if(|known| Arc::ptr_eq(&known.found, found)) {
            Some(Entry { fingerprint, memo, .. }) => {
                Entry { found: Arc::clone(found), path, fingerprint: *fingerprint, memo: Arc::clone(memo) }
            }
            None => {
                let fingerprint = fingerprint::of_skill(&found.skill);
                Entry { found: Arc::clone(found), path, fingerprint, memo: Arc::default() }
            }
        }
    });
    made.collect()
}

fn beginning(name: &SkillName) -> u128 {
    let mut bytes = [0; 16];
    let name = name.as_str().as_bytes();
    let most = name.len().min(bytes.len());
    bytes[..most].copy_from_slice(&name[..most]);
    u128::from_be_bytes(bytes)
}

/// Numbers the candidates of one path, which come one after the other.
struct Keys {
    root: usize,
    last: Option<(Arc<Path>, usize)>,
}

impl Keys {
    fn new(root: usize) -> Self {
        Self { root, last: None }
    }

    fn next(&mut self, path: &Arc<Path>) -> Key {
        let ordinal = match &self.last {
            Some((last, ordinal)) if last == path => ordinal + 1,
            _ => 0,
        };
        self.last = Some((Arc::clone(path), ordinal));
        Key { root: self.root, path: Arc::clone(path), ordinal }
    }
}

fn failed<T>(candidate: &Candidate<T>) -> Fate {
    candidate.failed.map_or(Fate::PassedOver, Fate::Failed)
}

fn subject(kind: RootKind, found: Option<&FoundSkill>) -> Subject {
    match (found.map(|found| &found.skill.kind), kind) {
        (Some(Kind::Subprocess(_)), _) | (None, RootKind::Skills(Source::External)) => Subject::Subprocess,
        (Some(Kind::Playbook(_)), _) | (None, RootKind::Skills(_)) => Subject::Playbook,
        (None, RootKind::Agents) => Subject::Agent,
    }
}

fn name_taken(what: &str, name: &str, by: &Path) -> Diagnostic {
    let by = by.display();
    let message = format!("the {what} {name:?} is registered from {by} already: rename one of the two, or remove one");
    Diagnostic { severity: Severity::Error, code: codes::E_NAME_TAKEN, message, line: 0, column: 0 }
}

/// Because a missing list means every skill, a name that is misspelt matters.
fn unknown_skills<'a, V>(agent: &'a Agent, skills: &'a HashMap<&str, V>) -> impl Iterator<Item = Diagnostic> + 'a {
    let lists = [("skills", &agent.skills), ("disallowed_skills", &agent.disallowed_skills)];
    lists.into_iter().flat_map(move |(list, names)| {
        names.iter().filter(move |name| *name != "*" && !skills.contains_key(name.as_str())).map(move |name| {
            Diagnostic {
                severity: Severity::Warning,
                code: codes::W_UNKNOWN_SKILL,
                message: format!("{list} names {name:?}, and there is no such skill: correct the name, or remove it"),
                line: 0,
                column: 0,
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixture::{agent, agents, root, skill, skills};
    use crate::source::Stage;
    use skillyard::{Digest, View};
    use std::time::Duration;

    fn at(path: &str, name: &str, skills: &[&str]) -> Candidate<Agent> {
        Candidate { path: Path::new(path).into(), ..agent(name, skills) }
    }

    fn load(scans: &[Arc<Scanned>]) -> Catalog {
        super::load(scans, SystemTime::UNIX_EPOCH, None)
    }

    fn registered(catalog: &Catalog) -> Vec<&Path> {
        let candidates = &catalog.report().candidates;
        candidates.iter().filter(|c| c.is_registered()).map(|c| &*c.key.path).collect()
    }

    #[test]
    fn the_first_of_a_name_wins() {
        let catalog = load(&[
            skills("/e1", Source::External, &[("b", "x", "1"), ("c", "x", "2")]),
            skills("/e0", Source::External, &[("a", "x", "3"), ("b", "y", "4")]),
            skills("/o", Source::Override, &[("y", "y", "5"), ("z", "z", "6")]),
            skills("/c", Source::Cloud, &[("z", "z", "7")]),
            agents(vec![at("/agents/a.md", "a", &[]), at("/agents/b.md", "a", &["x"])]),
        ]);
        assert_eq!(
            registered(&catalog),
            ["/e1/b/skill.json", "/e0/b/skill.json", "/o/z/SKILL.md", "/agents/a.md"].map(Path::new)
        );
        let loser = &catalog.report().candidates[1];
        assert_eq!((loser.key.path.to_str(), loser.fate), (Some("/e1/c/skill.json"), Fate::NameTaken));
        assert_eq!(loser.diagnostics[0].code, codes::E_NAME_TAKEN);
        assert!(loser.diagnostics[0].message.contains("/e1/b/skill.json"), "{loser:?}");
        let counts: Vec<_> = catalog.report().roots.iter().map(|root| (root.registered, root.skipped)).collect();
        assert_eq!(counts, [(1, 1), (1, 1), (1, 1), (0, 1), (1, 1)]);
        assert!(catalog.agent("a").unwrap().skills.is_empty());
        assert_eq!(catalog.package(&Digest::of(b"6")).unwrap().skill.name.as_str(), "z");
        assert!(catalog.package(&Digest::of(b"7")).is_none(), "what is not registered cannot be fetched");
    }

    #[test]
    fn agents_are_checked_against_the_skills() {
        let catalog = load(&[
            agents(vec![at("/agents/a.md", "a", &["*", "x", "misspelt"])]),
            skills("/e", Source::External, &[("x", "x", "1")]),
        ]);
        let codes: Vec<_> = catalog.report().candidates[0].diagnostics.iter().map(|d| (d.code, &d.message)).collect();
        assert_eq!(codes.len(), 1);
        assert!(codes[0].0 == codes::W_UNKNOWN_SKILL && codes[0].1.contains("misspelt"), "{codes:?}");
        assert!(catalog.report().candidates[0].is_registered());
    }

    #[test]
    fn a_version_is_of_what_is_there_not_of_where_or_when() {
        let base = load(&[skills("/e", Source::External, &[("x", "x", "1")]), agents(vec![at("/a/a.md", "a", &[])])]);
        let scans = [
            skills("/elsewhere", Source::External, &[("x", "x", "1")]),
            skills("/empty", Source::Override, &[]),
            agents(vec![at("/b/b.md", "a", &[])]),
        ];
        let mut touched = scans.clone();
        if let Scanned::Skills(scan) = Arc::make_mut(&mut touched[0]) {
            let found = Arc::make_mut(scan.candidates[0].value.as_mut().unwrap());
            found.skill.modified_at += Duration::from_secs(1);
        }
        let later = super::load(&touched, SystemTime::now(), Some(&load(&scans)));
        assert_eq!(later.version(), base.version());
        assert_eq!(later.difference(Some(&base)), super::super::snapshot::Difference::default());

        let others = [
            load(&[skills("/e", Source::External, &[("x", "x", "2")]), agents(vec![at("/a/a.md", "a", &[])])]),
            load(&[skills("/e", Source::External, &[("y", "x", "1")]), agents(vec![at("/a/a.md", "a", &[])])]),
            load(&[skills("/e", Source::External, &[("x", "y", "1")]), agents(vec![at("/a/a.md", "a", &[])])]),
            load(&[skills("/e", Source::Override, &[("x", "x", "1")]), agents(vec![at("/a/a.md", "a", &[])])]),
            load(&[skills("/e", Source::External, &[("x", "x", "1")]), agents(vec![at("/a/a.md", "b", &[])])]),
            load(&[skills("/e", Source::External, &[("x", "x", "1")]), agents(vec![at("/a/a.md", "a", &["x"])])]),
            load(&[skills("/e", Source::External, &[("x", "x", "1")]), agents(vec![])]),
            load(&[]),
        ];
        for (i, other) in others.iter().enumerate() {
            assert_ne!(other.version(), base.version(), "{i}");
        }
    }

    #[test]
    fn how_catalogs_differ() {
        let before = load(&[skills("/e", Source::External, &[("a", "a", "1"), ("b", "b", "1"), ("c", "c", "1")])]);
        let scans =
            [skills("/e", Source::External, &[("b", "b", "2"), ("c", "c", "1"), ("d", "d", "1"), ("e", "e", "1")])];
        let after = super::load(&scans, SystemTime::now(), Some(&before));
        let difference = after.difference(Some(&before));
        assert_eq!((difference.added, difference.changed, difference.removed), (2, 1, 1));
        let first = before.difference(None);
        assert_eq!((first.added, first.changed, first.removed), (3, 0, 0));
    }

    #[test]
    fn views() {
        let catalog = load(&[
            skills("/e", Source::External, &[("x", "x", "1"), ("y", "y", "2")]),
            skills("/w", Source::Project, &[("z", "z", "3")]),
            agents(vec![at("/agents/none.md", "none", &[])]),
        ]);
        let seen = |agent, default| -> Vec<_> {
            let view = catalog.view(agent, default).unwrap();
            catalog.skills(view, None).map(|found| found.skill.name.as_str()).collect()
        };
        assert_eq!(seen("", None), ["x", "y", "z"]);
        assert_eq!(seen("none", None), ["z"], "the workspace's are seen whatever the lists say");
        assert_eq!(seen("", Some("none")), ["z"]);
        for (agent, default) in [("who", None), ("", Some("who")), ("who", Some("none"))] {
            assert_eq!(catalog.view(agent, default).unwrap_err().0, "who");
        }
        let view = catalog.view("none", None).unwrap();
        assert!(catalog.skill(view, "x").is_none());
        assert_eq!(catalog.skills(View::unfiltered(), Some("x")).count(), 2);
    }

    #[test]
    fn a_candidate_that_failed_is_reported_and_nothing_else() {
        let mut broken = skill("/e", "b", "b", Source::External, "1");
        (broken.value, broken.failed) = (None, Some(Stage::Build));
        let mut hidden = skill("/e", ".git", "h", Source::External, "1");
        hidden.value = None;
        let scan = Scan::new(root("/e", RootKind::Skills(Source::External)), vec![hidden, broken]);
        let catalog = load(&[Arc::new(Scanned::Skills(scan))]);
        let fates: Vec<_> = catalog.report().candidates.iter().map(|c| (c.fate, c.is_problem())).collect();
        assert_eq!(fates, [(Fate::PassedOver, true), (Fate::Failed(Stage::Build), true)]);
        assert_eq!(catalog.report().counts(), (0, 2));
    }
}
