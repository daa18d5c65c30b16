//! Finds the manifests under a root, and tells what lies there that looks like a skill and is none. Reads no file.

use std::collections::{HashSet, VecDeque};
use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use super::findings::Findings;
use super::{Candidate, FoundSkill, Stage, codes};

/// The manifest of subprocess skills.
pub(crate) const SKILL_JSON: &str = "skill.json";
/// The manifest of playbooks.
pub(crate) const SKILL_MD: &str = "SKILL.md";

/// Deepest directory that is entered.
const MAX_DEPTH: usize = 64;
/// Most entries that are looked at under one root.
const MAX_ENTRIES: usize = 1_000_000;

/// What lies under a root.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Manifests, by the paths that lead to them from the root.
    pub(crate) manifests: Vec<PathBuf>,
    /// What is no skill, and why.
    pub(crate) others: Vec<Candidate<FoundSkill>>,
}

impl Walk {
    fn warn(&mut self, path: &Path, code: &'static str, message: impl Into<String>) {
        let mut findings = Findings::default();
        findings.warn(code, (0, 0), message);
        self.others.push(Candidate::new(path.to_owned(), String::new(), None, findings));
    }

    fn fault(&mut self, path: &Path, code: &'static str, stage: Stage, message: impl Into<String>) {
        let mut findings = Findings::default();
        match stage {
            Stage::Parse => findings.parse(code, (0, 0), message),
            Stage::Build => findings.build(code, (0, 0), message),
        }
        self.others.push(Candidate::new(path.to_owned(), String::new(), None, findings));
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        self.fault(path, codes::E_UNREADABLE, Stage::Parse, format!("{} cannot be read: {error}", path.display()));
    }

    fn escapes(&mut self, path: &Path, target: &Path, root: &Path) {
        let message = format!(
            "the link leads to {}, out of the root {}: put the skill itself there, or add a root",
            target.display(),
            root.display()
        );
        self.fault(path, codes::E_ESCAPES_ROOT, Stage::Build, message);
    }

    fn nearly(&mut self, path: &Path, wanted: &str) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.fault(
            path,
            codes::E_MANIFEST_NAME,
            Stage::Parse,
            format!("the file is called {name}: rename it to {wanted}"),
        );
    }

    /// A directory that is not entered, if it directly holds a manifest.
    fn not_entered(&mut self, directory: &Path, manifests: &[&str]) {
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        // What Kubernetes keeps beside the links of a mounted volume; the links are followed.
        if name.starts_with("..") {
            return;
        }
        for manifest in manifests {
            let path = directory.join(manifest);
            if std::fs::symlink_metadata(&path).is_ok_and(|metadata| !metadata.is_dir()) {
                let message = format!("{name} is not entered: hidden directories and node_modules never are");
                self.warn(&path, codes::W_NOT_ENTERED, message);
            }
        }
    }
}

fn skipped(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".") || name == "node_modules"
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Every `skill.json` below a directory of an external root, or below all of it, at any depth. `canonical` is the root's
/// canonical path.
///
/// Links are followed last, so that a real directory is known by its own path, and each one once.
pub(crate) fn subprocess(top: &Path, root: &Path, canonical: &Path) -> Walk {
    let mut deep = Deep { left: MAX_ENTRIES, ..Deep::default() };
    deep.descend(top, 0);
    while let Some((link, depth)) = deep.links.pop_front() {
        deep.follow(&link, depth, root, canonical);
    }
    for (path, error) in std::mem::take(&mut deep.closed) {
        if !deep.packaged(&path, root) {
            deep.walk.unreadable(&path, &error);
        }
    }
    for path in std::mem::take(&mut deep.playbooks) {
        if !deep.packaged(&path, root) {
            let message = "playbooks are looked for under playbook roots only: move it there";
            deep.walk.warn(&path, codes::W_KIND_NOT_HERE, message);
        }
    }
    deep.walk
}

#[derive(Default)]
struct Deep {
    walk: Walk,
    visited: HashSet<(u64, u64)>,
    /// Directories with a manifest.
    packages: HashSet<PathBuf>,
    /// Manifests of the other kind.
    playbooks: Vec<PathBuf>,
    /// Linked directories and what may be such, with their depths, in the order they were found in.
    links: VecDeque<(PathBuf, usize)>,
    /// What could not be read.
    closed: Vec<(PathBuf, io::Error)>,
    left: usize,
}

impl Deep {
    fn descend(&mut self, top: &Path, depth: usize) {
        let mut entries = WalkDir::new(top).sort_by_file_name().into_iter();
        while let Some(entry) = entries.next() {
            if self.left == 0 {
                let message = format!("more than {MAX_ENTRIES} entries: the rest was not looked at");
                return self.walk.fault(top, codes::E_WALK_TOO_LARGE, Stage::Build, message);
            }
            self.left -= 1;
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let path = error.path().unwrap_or(top).to_owned();
                    let error = error.into_io_error().unwrap_or_else(|| io::Error::other("a loop of links"));
                    // It went between the listing and the look.
                    if error.kind() != io::ErrorKind::NotFound {
                        self.closed.push((path, error));
                    }
                    continue;
                }
            };
            let (path, name) = (entry.path(), entry.file_name());
            // The top itself is entered whatever it is called, and through a link.
            let at_top = entry.depth() == 0;
            if at_top || entry.file_type().is_dir() {
                if !at_top && skipped(name) {
                    self.walk.not_entered(path, &[SKILL_JSON]);
                    entries.skip_current_dir();
                } else if depth + entry.depth() > MAX_DEPTH {
                    let message =
                        format!("directories are nested more than {MAX_DEPTH} deep: this one was not entered");
                    self.walk.fault(path, codes::E_WALK_TOO_DEEP, Stage::Build, message);
                    entries.skip_current_dir();
                } else if std::fs::metadata(path).is_ok_and(|metadata| !self.visited.insert(identity(&metadata))) {
                    entries.skip_current_dir();
                }
            } else if name == SKILL_JSON {
                self.packages.extend(path.parent().map(Path::to_owned));
                self.walk.manifests.push(path.to_owned());
            } else if name.eq_ignore_ascii_case(SKILL_JSON) {
                self.walk.nearly(path, SKILL_JSON);
            } else if name == SKILL_MD {
                self.playbooks.push(path.to_owned());
            } else if entry.path_is_symlink() {
                self.links.push_back((path.to_owned(), depth + entry.depth()));
            }
        }
    }

    /// Whether it lies in a skill's directory: what a package leaves out or cannot read, the package reports.
    fn packaged(&self, path: &Path, root: &Path) -> bool {
        path.ancestors().skip(1).take_while(|dir| dir.starts_with(root)).any(|dir| self.packages.contains(dir))
    }

    fn follow(&mut self, link: &Path, depth: usize, root: &Path, canonical: &Path) {
        let metadata = match std::fs::metadata(link) {
            Ok(metadata) => metadata,
            Err(_) if self.packaged(link, root) => return,
            Err(error) => {
                let message = format!("the link leads nowhere ({error}): remove or mend it");
                return self.walk.warn(link, codes::W_LINK_BROKEN, message);
            }
        };
        if !metadata.is_dir() {
            return;
        }
        if skipped(link.file_name().unwrap_or_default()) {
            return self.walk.not_entered(link, &[SKILL_JSON]);
        }
        let Ok(target) = std::fs::canonicalize(link) else { return };
        if !target.starts_with(canonical) {
            if !self.packaged(link, root) {
                let (target, root) = (target.display(), root.display());
                let message = format!("the link leads to {target}, out of the root {root}, and is not followed");
                self.walk.warn(link, codes::W_LINK_OUT_OF_ROOT, message);
            }
        } else if !self.visited.contains(&identity(&metadata)) {
            self.descend(link, depth);
        }
    }
}

/// Every `SKILL.md` exactly one level below a playbook root. `canonical` is the root's canonical path.
pub(crate) fn playbooks(root: &Path, canonical: &Path) -> Walk {
    let mut walk = Walk::default();
    let (mut real, mut links) = (Vec::new(), Vec::new());
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) => {
            walk.unreadable(root, &error);
            return walk;
        }
    };
    for (count, entry) in entries.enumerate() {
        if count >= MAX_ENTRIES {
            let message = format!("more than {MAX_ENTRIES} entries: the rest was not looked at");
            walk.fault(root, codes::E_WALK_TOO_LARGE, Stage::Build, message);
            break;
        }
        let kind = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
        match kind {
            Ok((path, kind)) if kind.is_dir() => real.push(path),
            Ok((path, kind)) if kind.is_symlink() => links.push(path),
            Ok((path, _)) if path.file_name().is_some_and(|name| name.eq_ignore_ascii_case(SKILL_MD)) => {
                let message = "a SKILL.md directly in the root is no skill: put it into a directory of its own";
                walk.warn(&path, codes::W_LEVEL, message);
            }
            Ok(_) => {}
            Err(error) => walk.unreadable(root, &error),
        }
    }
    real.sort();
    links.sort();
    let mut visited = HashSet::new();
    for directory in real {
        if std::fs::metadata(&directory).is_ok_and(|metadata| visited.insert(identity(&metadata))) {
            one(&mut walk, &directory);
        }
    }
    for link in links {
        let name = link.file_name().unwrap_or_default();
        match std::fs::metadata(&link) {
            Ok(metadata) if metadata.is_dir() && skipped(name) => one(&mut walk, &link),
            Ok(metadata) if metadata.is_dir() => match std::fs::canonicalize(&link) {
                Ok(target) if !target.starts_with(canonical) => walk.escapes(&link, &target, root),
                Ok(_) if visited.insert(identity(&metadata)) => one(&mut walk, &link),
                _ => {}
            },
            Ok(_) => {}
            Err(_) if skipped(name) => {}
            Err(error) => {
                walk.warn(&link, codes::W_LINK_BROKEN, format!("the link leads nowhere ({error}): remove or mend it"));
            }
        }
    }
    walk
}

/// One directory under a playbook root, where not all of the root is meant.
pub(crate) fn playbook(directory: &Path) -> Walk {
    let mut walk = Walk::default();
    one(&mut walk, directory);
    walk
}

fn one(walk: &mut Walk, directory: &Path) {
    if skipped(directory.file_name().unwrap_or_default()) {
        return walk.not_entered(directory, &[SKILL_MD, SKILL_JSON]);
    }
    let names = std::fs::read_dir(directory)
        .and_then(|entries| entries.take(MAX_ENTRIES).collect::<io::Result<Vec<DirEntry>>>());
    let entries = match names {
        Ok(entries) => entries,
        Err(error) => return walk.unreadable(directory, &error),
    };
    if entries.iter().any(|entry| entry.file_name() == SKILL_MD) {
        return walk.manifests.push(directory.join(SKILL_MD));
    }
    let mut nearly: Vec<_> =
        entries.iter().filter(|entry| entry.file_name().eq_ignore_ascii_case(SKILL_MD)).map(DirEntry::path).collect();
    nearly.sort();
    if let Some(path) = nearly.first() {
        return walk.nearly(path, SKILL_MD);
    }
    if entries.iter().any(|entry| entry.file_name() == SKILL_JSON) {
        let message = "subprocess skills are looked for under external roots only: move it there";
        return walk.warn(&directory.join(SKILL_JSON), codes::W_KIND_NOT_HERE, message);
    }
    let mut deeper: Vec<_> = entries
        .iter()
        .filter(|entry| !skipped(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| nearly_playbook(&entry.path()))
        .collect();
    deeper.sort();
    for path in deeper {
        walk.warn(
            &path,
            codes::W_LEVEL,
            "a root is looked at one level deep: move the directory directly under the root",
        );
    }
}

/// The file of a directory that is a playbook's manifest, or is nearly called so.
fn nearly_playbook(directory: &Path) -> Option<PathBuf> {
    let names = std::fs::read_dir(directory).ok()?.take(MAX_ENTRIES).filter_map(|entry| Some(entry.ok()?.file_name()));
    let names = names.filter(|name| name.eq_ignore_ascii_case(SKILL_MD));
    names.min().map(|name| directory.join(name)).filter(|path| path.is_file())
}
