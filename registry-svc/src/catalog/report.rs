//! The load report: what became of every root and of every candidate, registered or not.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::Digest;

use crate::source::{Diagnostic, Root, Stage};

/// What a look at the roots found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// When the look began.
    pub loaded_at: SystemTime,
    /// Every root, in order of precedence.
    pub roots: Vec<RootReport>,
    /// Every candidate, in order of its key.
    pub candidates: Vec<Reported>,
}

/// What became of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootReport {
    /// The root, and its state.
    pub root: Root,
    /// Candidates under it that are in the catalog.
    pub registered: u32,
    /// Candidates under it that are not.
    pub skipped: u32,
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Which candidate it is.
    pub key: Key,
    /// As far as it is known; else empty.
    pub name: Arc<str>,
    /// What it would be.
    pub subject: Subject,
    /// What became of it.
    pub fate: Fate,
    /// Of reading it, and of putting it beside the others.
    pub diagnostics: Vec<Diagnostic>,
}

/// Names a candidate from one look to the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The place of its root among the roots.
    pub root: usize,
    /// Its file.
    pub path: Arc<Path>,
    /// Its place among the candidates of that path.
    pub ordinal: usize,
}

/// What a candidate would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A subprocess skill.
    Subprocess,
    /// A playbook skill.
    Playbook,
    /// An agent.
    Agent,
}

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is in the catalog; a skill with this digest.
    Registered(Option<Digest>),
    /// Another one has its name.
    NameTaken,
    /// It could not be read.
    Failed(Stage),
    /// It was seen, and not looked at.
    PassedOver,
}

impl Report {
    /// How many candidates are in the catalog, and how many are not.
    #[must_use]
    pub fn counts(&self) -> (u32, u32) {
        self.roots
            .iter()
            .fold((0, 0), |(registered, skipped), root| (registered + root.registered, skipped + root.skipped))
    }
}

impl Reported {
    /// Whether it is in the catalog.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        matches!(self.fate, Fate::Registered(_))
    }

    /// Whether somebody should look at it: it is not in the catalog, or something is doubtful.
    #[must_use]
    pub fn is_problem(&self) -> bool {
        !self.is_registered() || !self.diagnostics.is_empty()
    }

    /// All errors, or else all warnings, as one line.
    #[must_use]
    pub fn complaint(&self) -> String {
        self.complaints(|diagnostic| diagnostic.message.clone())
    }

    /// The same, each with its place in the file.
    #[must_use]
    pub fn complaint_with_place(&self) -> String {
        self.complaints(with_place)
    }

    fn complaints(&self, text: impl Fn(&Diagnostic) -> String) -> String {
        let worst = self.diagnostics.iter().map(|diagnostic| diagnostic.severity).max();
        let texts: Vec<_> = self.diagnostics.iter().filter(|d| Some(d.severity) == worst).map(text).collect();
        texts.join("; ")
    }
}

/// What and where. A message that names its line already is left as it is.
fn with_place(diagnostic: &Diagnostic) -> String {
    let Diagnostic { message, line, column, .. } = diagnostic;
    match (line, column) {
        (0, _) => message.clone(),
        _ if message.contains(&format!("line {line}")) => message.clone(),
        (_, 0) => format!("line {line}: {message}"),
        _ => format!("line {line} column {column}: {message}"),
    }
}
