//! Finds the manifests under a root, and tells what lies there that looks like a skill and is none. Reads no file.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::beneath::Beneath;
use super::findings::Findings;
use super::tree::{Below, Bounds, Dir, Kind};
use super::{Candidate, FoundSkill, Stage, codes};

/// The manifest of subprocess skills.
pub(crate) const SKILL_JSON: &str = "skill.json";
/// The manifest of playbooks.
pub(crate) const SKILL_MD: &str = "SKILL.md";

/// Deepest directory that is entered.
const MAX_DEPTH: usize = 64;
/// Most entries that are looked at under one root.
const MAX_ENTRIES: usize = 1_000_000;

/// The directories that were listed, by the paths at which their listing began: the root's, and those of links.
pub(crate) type Trees = HashMap<PathBuf, Arc<Dir>>;

/// A root that can be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground<'a> {
    /// Its path as it was configured.
    pub(crate) root: &'a Path,
    pub(crate) canonical: &'a Path,
    /// The canonical directory.
    pub(crate) beneath: &'a Beneath,
    /// What was listed before.
    pub(crate) before: Option<&'a Trees>,
}

impl Ground<'_> {
    /// Where a directory really lies below the root; `None` where a link may lead out of it.
    fn within(&self, path: &Path) -> Option<PathBuf> {
        if path == self.root {
            return Some(PathBuf::new());
        }
        let target = std::fs::canonicalize(path).ok()?;
        target.strip_prefix(self.canonical).ok().map(Path::to_owned)
    }

    fn read(&self, path: &Path, real: Option<&Path>, bounds: &Bounds<'_>) -> io::Result<Arc<Dir>> {
        let before = self.before.and_then(|before| before.get(path));
        match real {
            Some(real) => Dir::read(self.beneath, real, before, bounds),
            // It is looked at all the same: each manifest in it is refused, and says where it lies.
            None => Dir::read(&Beneath::of(path)?, Path::new(""), before, bounds),
        }
    }
}

/// A manifest that was found.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// The path that leads to it from the root.
    pub(crate) path: PathBuf,
    /// Its directory.
    pub(crate) dir: Arc<Dir>,
    /// Where that really lies below the root, where no link is on the way and the manifest is none itself.
    pub(crate) real: Option<PathBuf>,
}

/// What lies under a root.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    pub(crate) manifests: Vec<Manifest>,
    /// What is no skill, and why.
    pub(crate) others: Vec<Candidate<FoundSkill>>,
    pub(crate) trees: Trees,
}

impl Walk {
    fn manifest(&mut self, directory: &Path, name: &OsStr, real: Option<&Path>, dir: &Arc<Dir>) {
        let is_file = name.to_str().is_some_and(|name| dir.has_file(name));
        let real = real.filter(|_| is_file).map(Path::to_owned);
        self.manifests.push(Manifest { path: directory.join(name), dir: Arc::clone(dir), real });
    }

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

/// The same error once more.
fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

fn skipped(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".") || name == "node_modules"
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Every `skill.json` below a directory of an external root, or below all of it, at any depth.
///
/// Links are followed last, so that a real directory is known by its own path, and each one once.
pub(crate) fn subprocess(top: &Path, ground: &Ground<'_>) -> Walk {
    let left = AtomicUsize::new(MAX_ENTRIES);
    let mut deep = Deep {
        ground,
        left: &left,
        walk: Walk::default(),
        visited: HashSet::new(),
        packages: Packages::default(),
        playbooks: Vec::new(),
        links: VecDeque::new(),
        closed: Vec::new(),
    };
    deep.descend(top, ground.within(top), 0);
    while let Some((link, depth)) = deep.links.pop_front() {
        deep.follow(&link, depth);
    }
    for (path, error) in std::mem::take(&mut deep.closed) {
        if !deep.is_packaged(&path) {
            deep.walk.unreadable(&path, &error);
        }
    }
    for path in std::mem::take(&mut deep.playbooks) {
        if !deep.is_packaged(&path) {
            let message = "playbooks are looked for under playbook roots only: move it there";
            deep.walk.warn(&path, codes::W_KIND_NOT_HERE, message);
        }
    }
    deep.walk
}

struct Deep<'a> {
    ground: &'a Ground<'a>,
    left: &'a AtomicUsize,
    walk: Walk,
    visited: HashSet<(u64, u64)>,
    packages: Packages,
    /// Manifests of the other kind.
    playbooks: Vec<PathBuf>,
    /// Linked directories and what may be such, with their depths, in the order they were found in.
    links: VecDeque<(PathBuf, usize)>,
    /// What could not be read.
    closed: Vec<(PathBuf, io::Error)>,
}

/// Directories with a manifest, as far as anybody asked.
#[derive(Default)]
struct Packages {
    known: HashSet<PathBuf>,
    counted: usize,
}

impl Deep<'_> {
    /// `real`: where the directory really lies below the root, where that is known.
    fn descend(&mut self, top: &Path, real: Option<PathBuf>, depth: usize) {
        let Ok(levels) = usize::try_from(MAX_DEPTH.cast_signed() - depth.cast_signed()) else {
            return self.too_deep(top);
        };
        let read = self.ground.read(top, real.as_deref(), &Bounds { levels, left: self.left, skipped });
        match read {
            Ok(dir) => {
                self.enter(&dir, top, real.as_deref(), depth);
                self.walk.trees.insert(top.to_owned(), dir);
            }
            Err(error) => self.close(top, error),
        }
    }

    fn enter(&mut self, dir: &Arc<Dir>, path: &Path, real: Option<&Path>, depth: usize) {
        if !self.visited.insert(dir.stamp.identity()) {
            return;
        }
        if dir.is_cut {
            let message = format!("more than {MAX_ENTRIES} entries: the rest was not looked at");
            self.walk.fault(path, codes::E_WALK_TOO_LARGE, Stage::Build, message);
        }
        for (name, kind) in dir.entries() {
            match kind {
                Kind::Directory(_) if skipped(name) => self.walk.not_entered(&path.join(name), &[SKILL_JSON]),
                Kind::Directory(Below::Listed(below)) => {
                    self.enter(below, &path.join(name), real.map(|real| real.join(name)).as_deref(), depth + 1);
                }
                Kind::Directory(Below::Closed(error)) => self.close(&path.join(name), copy(error)),
                Kind::Directory(Below::NotEntered) => self.too_deep(&path.join(name)),
                _ if name == SKILL_JSON => self.walk.manifest(path, name, real, dir),
                _ if name.eq_ignore_ascii_case(SKILL_JSON) => self.walk.nearly(&path.join(name), SKILL_JSON),
                _ if name == SKILL_MD => self.playbooks.push(path.join(name)),
                Kind::Link => self.links.push_back((path.join(name), depth + 1)),
                Kind::File | Kind::Other => {}
            }
        }
    }

    fn close(&mut self, path: &Path, error: io::Error) {
        // It went between the listing and the look.
        if error.kind() != io::ErrorKind::NotFound {
            self.closed.push((path.to_owned(), error));
        }
    }

    fn too_deep(&mut self, path: &Path) {
        let message = format!("directories are nested more than {MAX_DEPTH} deep: this one was not entered");
        self.walk.fault(path, codes::E_WALK_TOO_DEEP, Stage::Build, message);
    }

    /// Whether it lies in a skill's directory: what a package leaves out or cannot read, the package reports.
    fn is_packaged(&mut self, path: &Path) -> bool {
        let Packages { known, counted } = &mut self.packages;
        let directory = |manifest: &Manifest| manifest.path.parent().map(Path::to_owned);
        known.extend(self.walk.manifests[*counted..].iter().filter_map(directory));
        *counted = self.walk.manifests.len();
        path.ancestors().skip(1).take_while(|dir| dir.starts_with(self.ground.root)).any(|dir| known.contains(dir))
    }

    fn follow(&mut self, link: &Path, depth: usize) {
        let (root, canonical) = (self.ground.root, self.ground.canonical);
        let metadata = match std::fs::metadata(link) {
            Ok(metadata) => metadata,
            Err(_) if self.is_packaged(link) => return,
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
        match target.strip_prefix(canonical) {
            Err(_) if self.is_packaged(link) => {}
            Err(_) => {
                let (target, root) = (target.display(), root.display());
                let message = format!("the link leads to {target}, out of the root {root}, and is not followed");
                self.walk.warn(link, codes::W_LINK_OUT_OF_ROOT, message);
            }
            Ok(_) if self.visited.contains(&identity(&metadata)) => {}
            Ok(real) => self.descend(link, Some(real.to_owned()), depth),
        }
    }
}

/// Every `SKILL.md` exactly one level below a playbook root.
pub(crate) fn playbooks(ground: &Ground<'_>) -> Walk {
    let root = ground.root;
    let mut walk = Walk::default();
    let left = AtomicUsize::new(MAX_ENTRIES);
    let bounds = |levels| Bounds { levels, left: &left, skipped };
    let all = match ground.read(root, Some(Path::new("")), &bounds(1)) {
        Ok(all) => all,
        Err(error) => {
            walk.unreadable(root, &error);
            return walk;
        }
    };
    if all.is_cut {
        let message = format!("more than {MAX_ENTRIES} entries: the rest was not looked at");
        walk.fault(root, codes::E_WALK_TOO_LARGE, Stage::Build, message);
    }
    let mut visited = HashSet::new();
    let mut links = Vec::new();
    for (name, kind) in all.entries() {
        match kind {
            Kind::Directory(below) => {
                let path = root.join(name);
                match below {
                    Below::Listed(dir) if !visited.insert(dir.stamp.identity()) => {}
                    Below::Listed(dir) => one(&mut walk, &path, Ok(dir), Some(Path::new(name))),
                    Below::Closed(error) => one(&mut walk, &path, Err(copy(error)), None),
                    Below::NotEntered => walk.not_entered(&path, &[SKILL_MD, SKILL_JSON]),
                }
            }
            Kind::Link => links.push(root.join(name)),
            Kind::File | Kind::Other if name.eq_ignore_ascii_case(SKILL_MD) => {
                let message = "a SKILL.md directly in the root is no skill: put it into a directory of its own";
                walk.warn(&root.join(name), codes::W_LEVEL, message);
            }
            Kind::File | Kind::Other => {}
        }
    }
    for link in links {
        let name = link.file_name().unwrap_or_default();
        match std::fs::metadata(&link) {
            Ok(metadata) if metadata.is_dir() && skipped(name) => walk.not_entered(&link, &[SKILL_MD, SKILL_JSON]),
            Ok(metadata) if metadata.is_dir() => match std::fs::canonicalize(&link) {
                Ok(target) if !target.starts_with(ground.canonical) => walk.escapes(&link, &target, root),
                Ok(target) if visited.insert(identity(&metadata)) => {
                    let real = target.strip_prefix(ground.canonical).unwrap_or(&target);
                    let dir = ground.read(&link, Some(real), &bounds(0));
                    one(&mut walk, &link, dir.as_ref().map_err(copy), Some(real));
                    walk.trees.extend(dir.ok().map(|dir| (link, dir)));
                }
                _ => {}
            },
            Ok(_) => {}
            Err(_) if skipped(name) => {}
            Err(error) => {
                walk.warn(&link, codes::W_LINK_BROKEN, format!("the link leads nowhere ({error}): remove or mend it"));
            }
        }
    }
    walk.trees.insert(root.to_owned(), all);
    walk
}

/// One directory under a playbook root, where not all of the root is meant.
pub(crate) fn playbook(directory: &Path, ground: &Ground<'_>) -> Walk {
    let mut walk = Walk::default();
    if skipped(directory.file_name().unwrap_or_default()) {
        walk.not_entered(directory, &[SKILL_MD, SKILL_JSON]);
        return walk;
    }
    let real = ground.within(directory);
    let bounds = Bounds { levels: 0, left: &AtomicUsize::new(MAX_ENTRIES), skipped };
    let dir = ground.read(directory, real.as_deref(), &bounds);
    one(&mut walk, directory, dir.as_ref().map_err(copy), real.as_deref());
    walk
}

fn one(walk: &mut Walk, directory: &Path, dir: io::Result<&Arc<Dir>>, real: Option<&Path>) {
    let dir = match dir {
        Ok(dir) => dir,
        Err(error) => return walk.unreadable(directory, &error),
    };
    let names = || dir.entries().map(|(name, _)| name);
    if let Some(name) = names().find(|name| *name == SKILL_MD) {
        return walk.manifest(directory, name, real, dir);
    }
    if let Some(name) = names().find(|name| name.eq_ignore_ascii_case(SKILL_MD)) {
        return walk.nearly(&directory.join(name), SKILL_MD);
    }
    if names().any(|name| name == SKILL_JSON) {
        let message = "subprocess skills are looked for under external roots only: move it there";
        return walk.warn(&directory.join(SKILL_JSON), codes::W_KIND_NOT_HERE, message);
    }
    let mut deeper: Vec<_> = dir
        .entries()
        .filter(|(name, kind)| matches!(kind, Kind::Directory(_)) && !skipped(name))
        .filter_map(|(name, _)| nearly_playbook(&directory.join(name)))
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
