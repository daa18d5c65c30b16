//! A path on the command line: what it means to look at, and how what lies below it is shown. Reads no file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What a path means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// As it was given: the directory of the skill, or the root.
    given: PathBuf,
    /// The same, absolute.
    directory: PathBuf,
    parent: PathBuf,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A directory. Where it directly holds a manifest, or what is nearly called so, it is a skill of that kind too.
    Directory { program: bool, book: bool },
    /// This very `skill.json`.
    Program,
    /// This very `SKILL.md`.
    Book,
}

/// A path that means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetError {
    pub(super) path: PathBuf,
    pub(super) what: String,
}

const PROGRAM: &str = "skill.json";
const BOOK: &str = "SKILL.md";

impl Target {
    /// What a path means.
    pub(super) fn of(path: &Path) -> Result<Self, TargetError> {
        let error = |what: String| TargetError { path: path.to_owned(), what };
        let io = |error: std::io::Error| TargetError {
            path: path.to_owned(),
            what: format!("it cannot be looked at: {error}"),
        };
        let metadata = std::fs::metadata(path).map_err(io)?;
        let absolute = absolute(path).map_err(io)?;
        if metadata.is_dir() {
            let holds = |name: &str| names(&absolute).any(|held| held.eq_ignore_ascii_case(name));
            let kind = Kind::Directory { program: holds(PROGRAM), book: holds(BOOK) };
            return Ok(Self::new(path.to_owned(), absolute, kind));
        }
        let kind = match path.file_name() {
            Some(name) if name.eq_ignore_ascii_case(PROGRAM) => Kind::Program,
            Some(name) if name.eq_ignore_ascii_case(BOOK) => Kind::Book,
            _ => return Err(error("it is neither a directory nor a SKILL.md or skill.json".to_owned())),
        };
        let above = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Self::new(above(path), above(&absolute), kind))
    }

    fn new(given: PathBuf, directory: PathBuf, kind: Kind) -> Self {
        let parent = directory.parent().unwrap_or(&directory).to_owned();
        Self { given, directory, parent, kind }
    }

    /// The root, or the directory of the one skill.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Of one skill: its root.
    pub(super) fn parent(&self) -> &Path {
        &self.parent
    }

    /// Whether subprocess skills are looked for, and then whether the directory is the whole of a root.
    pub(super) fn programs(&self) -> Option<bool> {
        match self.kind {
            Kind::Directory { program, .. } => Some(!program),
            Kind::Program => Some(false),
            Kind::Book => None,
        }
    }

    /// The looks that are taken for playbooks: each whether the directory is the whole of a root.
    pub(super) fn books(&self) -> Vec<bool> {
        match self.kind {
            Kind::Directory { book: true, .. } => vec![false, true],
            Kind::Directory { book: false, .. } => vec![true],
            Kind::Program => Vec::new(),
            Kind::Book => vec![false],
        }
    }

    /// Whether what lies there was asked for.
    pub(super) fn means(&self, path: &Path) -> bool {
        match self.kind {
            Kind::Directory { .. } => true,
            Kind::Program | Kind::Book => path == self.directory || path.parent() == Some(&self.directory),
        }
    }

    /// A path as the one that was given leads to it.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.directory) {
            Ok(rest) if rest.as_os_str().is_empty() => self.given.clone(),
            Ok(rest) => self.given.join(rest),
            Err(_) => path.to_owned(),
        }
    }
}

/// Absolute, and ending with a name where there is one: a directory's name is the skill's.
fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    match path.components().next_back() {
        Some(std::path::Component::Normal(_)) => {
            std::path::absolute(path).map(|absolute| absolute.components().collect())
        }
        _ => std::fs::canonicalize(path),
    }
}

/// What lies directly in a directory; nothing where it cannot be read.
fn names(directory: &Path) -> impl Iterator<Item = Box<OsStr>> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.file_name().into_boxed_os_str()))
}
