//! From disk to values: roots, what is found under them, and what became of it. Knows no catalog and no wire.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::{Agent, PackageFile, Skill, Source};

mod agent_file;
mod beneath;
mod cloud;
pub mod codes;
mod discover;
mod entry;
mod findings;
mod frontmatter;
#[cfg(test)]
mod fuzz;
mod glance;
mod host;
mod json;
mod look;
mod manifest;
mod memory;
pub(crate) mod mirror;
mod near;
mod node;
mod package;
mod parallel;
mod playbook;
mod root;
mod schema;
mod skill;
mod specification;
mod stamp;
mod text;
pub mod tool;
mod tree;
mod walk;
mod yaml;

pub(crate) use cloud::MAX_MANIFEST_BYTES;
pub use discover::{scan_agents, scan_skills, scan_skills_with};
pub(crate) use findings::shortened;
pub use host::Host;
pub use look::Look;
pub use package::open;
pub use playbook::body;
pub use root::{Layout, Tier, TierError, roots, split_dirs, split_roots};

/// A directory under which skills, or agents, are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// As it was configured.
    pub path: PathBuf,
    /// What is looked for under it.
    pub kind: RootKind,
    /// Whether it can be looked at, as far as the configuration says.
    pub state: RootState,
}

/// What is looked for under a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// Skills, of the kind that belongs to the source: subprocess skills under external roots, else playbooks.
    Skills(Source),
    /// Agent files.
    Agents,
}

/// What became of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootState {
    /// It was looked at.
    Registered,
    /// It is not there.
    Missing,
    /// Its path is relative: skipped.
    NotAbsolute,
    /// The tier is too low for it: skipped.
    NotEntitled,
    /// It could not be read, or did not answer in time.
    Unreadable,
}

/// A package as it was read: its files, and where they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Package {
    /// The canonical directory of the manifest.
    pub directory: Arc<Path>,
    /// In byte order of their paths in the package.
    pub files: Vec<SourceFile>,
}

/// One file of a package, and where it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceFile {
    /// As the package holds it.
    pub file: PackageFile,
    /// The package's canonical directory.
    pub directory: Arc<Path>,
    /// Its canonical path, where that is another than its own in the directory.
    pub elsewhere: Option<Box<Path>>,
}

impl SourceFile {
    /// Its canonical path.
    #[must_use]
    pub fn origin(&self) -> PathBuf {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.to_path_buf(),
            None => self.directory.join(self.file.path.as_str()),
        }
    }
}

/// A skill that was found and is whole.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundSkill {
    /// The value; its digest is the package's.
    pub skill: Skill,
    /// Its files.
    pub package: Package,
    /// Whom a playbook is published for; `None` where its file says something that is no tier.
    pub tier: Option<Tier>,
}

/// A file that could be a skill or an agent, and what is wrong or doubtful about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate<T> {
    /// Of the file (or, where there is none to name, of the directory).
    pub path: Arc<Path>,
    /// As far as it is known; else empty.
    pub name: Arc<str>,
    /// What it is, unless an error keeps it out.
    pub value: Option<Arc<T>>,
    /// In order of their lines.
    pub diagnostics: Vec<Diagnostic>,
    /// Which half of reading it failed; `None` where it did not.
    pub failed: Option<Stage>,
}

impl<T> Candidate<T> {
    /// With what was found about it; the value is kept only where nothing failed.
    fn new(path: impl Into<Arc<Path>>, name: String, value: Option<Arc<T>>, findings: findings::Findings) -> Self {
        let failed = findings.failed();
        let value = value.filter(|_| failed.is_none());
        // What is no name may be as long as its file.
        let name = findings::shortened(name, skillyard::name::MAX_CHARS).into();
        Self { path: path.into(), name, value, diagnostics: findings.into_diagnostics(), failed }
    }
}

/// Which half of reading a candidate failed: the loader's log lines tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// JSON, YAML and types.
    Parse,
    /// Values and files.
    Build,
}

/// All that was found under one root.
///
/// It also remembers what it was made from: given to the next scan of the same root, what did not change is not read
/// again.
#[derive(Clone, Debug)]
pub struct Scan<T> {
    /// The root, with the state that looking at it gave.
    pub root: Root,
    /// In sorted order of their paths.
    pub candidates: Vec<Candidate<T>>,
    memory: memory::Memory,
    trees: walk::Trees,
    /// What the root's path led to.
    canonical: Option<Arc<Path>>,
}

/// A scan of skills.
pub type SkillScan = Scan<FoundSkill>;
/// A scan of agent files.
pub type AgentScan = Scan<Agent>;

impl<T> Scan<T> {
    /// One that remembers nothing; `candidates` in sorted order of their paths.
    #[must_use]
    pub fn new(root: Root, candidates: Vec<Candidate<T>>) -> Self {
        Self { root, candidates, memory: memory::Memory::new(), trees: walk::Trees::new(), canonical: None }
    }

    /// What was found when the root could be read, after a look that could not: with its state and what it says.
    #[must_use]
    pub fn kept(mut self, failed: Self) -> Self {
        self.candidates.extend(failed.candidates);
        self.candidates.sort_by(|a, b| a.path.cmp(&b.path));
        Self::new(failed.root, self.candidates)
    }

    /// When the youngest file of all that was found last changed.
    #[must_use]
    pub fn youngest(&self) -> Option<SystemTime> {
        self.memory.iter().flatten().filter_map(|remembered| remembered.youngest()).max()
    }

    /// Whether a file was less than 500 ms old when it was read, so that it may be in the middle of being written: scan
    /// once more 500 ms later.
    #[must_use]
    pub fn needs_second_look(&self) -> bool {
        self.memory.iter().flatten().any(|remembered| remembered.unsettled())
    }

    /// What is known of the candidates of these paths, which are most often those that there were, in the same order.
    fn known<'a>(&self, paths: impl Iterator<Item = &'a Path>) -> Vec<Known<'_, T>> {
        if self.memory.len() != self.candidates.len() {
            return paths.map(|_| None).collect();
        }
        let mut next = 0;
        let mut known = |path: &Path| {
            let is_next = self.candidates.get(next).is_some_and(|candidate| *candidate.path == *path);
            let place = match is_next {
                true => next,
                false => self.candidates.binary_search_by(|candidate| (*candidate.path).cmp(path)).ok()?,
            };
            next = place + 1;
            Some((&self.candidates[place], self.memory[place].as_ref()?))
        };
        paths.map(&mut known).collect()
    }
}

/// A candidate of before, and what is remembered of it.
type Known<'a, T> = Option<(&'a Candidate<T>, &'a Arc<memory::Remembered>)>;

/// What was found, not what is remembered of it.
impl<T: PartialEq> PartialEq for Scan<T> {
    fn eq(&self, other: &Self) -> bool {
        self.root == other.root && self.candidates == other.candidates
    }
}

/// One thing that is wrong or doubtful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// An error keeps the candidate out of the catalog; a warning does not.
    pub severity: Severity,
    /// Stable and documented: `E_NAME_INVALID`, `W_NAME_NOT_DIRECTORY`, …
    pub code: &'static str,
    /// What is wrong and what to write instead.
    pub message: String,
    /// Counted from 1; 0 where the whole file is meant.
    pub line: u32,
    /// Counted from 1 in characters; 0 where the whole line is meant.
    pub column: u32,
}

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The candidate is registered all the same.
    Warning,
    /// The candidate is not registered.
    Error,
}
