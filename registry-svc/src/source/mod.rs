//! From disk to values: roots, what is found under them, and what became of it. Knows no catalog and no wire.

mod stub;
pub use stub::*;

use std::path::PathBuf;
use std::sync::Arc;

use skillyard::{Agent, PackageFile, Skill, Source};

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
    pub directory: PathBuf,
    /// In byte order of their paths in the package.
    pub files: Vec<SourceFile>,
}

/// One file of a package, and where it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceFile {
    /// As the package holds it.
    pub file: PackageFile,
    /// Its canonical path.
    pub origin: PathBuf,
}

/// A skill that was found and is whole.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundSkill {
    /// The value; its digest is the package's.
    pub skill: Skill,
    /// Its files.
    pub package: Package,
}

/// A file that could be a skill or an agent, and what is wrong or doubtful about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate<T> {
    /// Of the file (or, where there is none to name, of the directory).
    pub path: PathBuf,
    /// As far as it is known; else empty.
    pub name: String,
    /// What it is, unless an error keeps it out.
    pub value: Option<Arc<T>>,
    /// In order of their lines.
    pub diagnostics: Vec<Diagnostic>,
    /// Which half of reading it failed; `None` where it did not.
    pub failed: Option<Stage>,
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
#[derive(Clone, Debug, PartialEq)]
pub struct Scan<T> {
    /// The root, with the state that looking at it gave.
    pub root: Root,
    /// In sorted order of their paths.
    pub candidates: Vec<Candidate<T>>,
}

/// A scan of skills.
pub type SkillScan = Scan<FoundSkill>;
/// A scan of agent files.
pub type AgentScan = Scan<Agent>;

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
