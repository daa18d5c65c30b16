//! The files of a package: which they are, what they weigh, and their digests. Follows no link out of the directory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skillyard::digest::Hasher;
use skillyard::package::{MAX_BYTES, MAX_FILES};
use skillyard::{Digest, PackageFile, PackagePath};

use super::SourceFile;
use super::beneath::{Beneath, fill};
use super::codes;
use super::findings::Findings;
use super::stamp::Stamp;
use super::text::open_regular;
use super::tree::{Below, Dir, Kind};

/// Most entries of a package's directory, files or not.
pub(crate) const MAX_ENTRIES: usize = 16 * MAX_FILES;
const READ_AT_ONCE: usize = 64 << 10;

/// What of a directory is in its package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// Hidden files too.
    Subprocess,
    /// Hidden files are left out.
    Playbook,
}

/// A file of a package, not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) path: PackagePath,
    /// Its canonical path, where that is another than its own in the directory.
    pub(crate) elsewhere: Option<Box<Path>>,
    pub(crate) stamp: Stamp,
}

impl Item {
    /// Its path below the root, with that of its directory.
    pub(crate) fn real(&self, root: &Path, directory: &Path) -> PathBuf {
        match &self.elsewhere {
            // What is not below the root is not opened.
            Some(elsewhere) => elsewhere.strip_prefix(root).unwrap_or(elsewhere).to_owned(),
            None => directory.join(self.path.as_str()),
        }
    }

    /// Whether this is its canonical path.
    pub(crate) fn is_at(&self, directory: &Path, origin: &Path) -> bool {
        match &self.elsewhere {
            Some(elsewhere) => **elsewhere == *origin,
            None => origin.strip_prefix(directory).is_ok_and(|path| path == Path::new(self.path.as_str())),
        }
    }
}

/// A directory of which a package is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The canonical root.
    pub(crate) root: &'a Path,
    pub(crate) beneath: &'a Beneath,
    /// Below the root.
    pub(crate) real: &'a Path,
    /// The canonical directory: both together.
    pub(crate) directory: &'a Arc<Path>,
}

impl Place<'_> {
    /// Opens an item, as long as it is a regular file.
    fn open(&self, item: &Item) -> io::Result<(File, Stamp)> {
        self.beneath.file(&item.real(self.root, self.real))
    }
}

/// Opens a file of a package for reading, as long as it is a regular file.
///
/// # Errors
/// Of the system; `InvalidInput` where it is no regular file any more.
pub fn open(file: &SourceFile) -> io::Result<File> {
    open_regular(&file.origin())
}

/// The files of a directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// In byte order of their paths in the package.
    pub(crate) items: Vec<Item>,
    /// Directories that were listed for this alone, from the root, and what they were then.
    pub(crate) own: Vec<(PathBuf, Stamp)>,
    /// Whether the same directories and the same files say that all is as it was: no link leads elsewhere, nothing was
    /// closed, nothing was left out that may be another next time.
    pub(crate) is_plain: bool,
}

/// The files below a canonical directory.
pub(crate) fn list(place: &Place<'_>, dir: &Arc<Dir>, rules: Rules, findings: &mut Findings) -> Listing {
    let mut lister = Lister {
        place,
        rules,
        findings,
        listing: Listing { is_plain: true, ..Listing::default() },
        venvs: BTreeSet::new(),
    };
    lister.walk(dir);
    let Lister { mut listing, venvs, .. } = lister;
    weigh(&listing.items, findings);
    for venv in venvs {
        let message = format!(
            "the virtual environment {} depends on links that are left out: vendor what it holds with \
             `pip install --target` instead",
            venv.display()
        );
        findings.warn(codes::W_VENV_LINKS, (0, 0), message);
    }
    sort(&mut listing.items);
    listing
}

struct Lister<'a> {
    place: &'a Place<'a>,
    rules: Rules,
    findings: &'a mut Findings,
    listing: Listing,
    venvs: BTreeSet<PathBuf>,
}

/// A directory that is being gone through, and how far.
struct Open {
    dir: Arc<Dir>,
    next: (usize, usize),
}

impl Lister<'_> {
    /// Goes through directories in order of their names. Directories may lie deeper in one another than a stack has room.
    fn walk(&mut self, dir: &Arc<Dir>) {
        let mut relative = PathBuf::new();
        let mut open = vec![Open { dir: Arc::clone(dir), next: (0, 0) }];
        let mut entries = 0;
        while let Some(Open { dir, next }) = open.last_mut() {
            let dir = Arc::clone(dir);
            let mut deeper = None;
            for (name, kind, behind) in dir.entries_from(*next) {
                *next = behind;
                entries += 1;
                if self.listing.items.len() > MAX_FILES {
                    return;
                }
                if entries > MAX_ENTRIES {
                    let message =
                        format!("the package has more than {MAX_ENTRIES} entries: leave out what a run does not need");
                    return self.findings.build(codes::E_PACKAGE_TOO_MANY_FILES, (0, 0), message);
                }
                if left_out(&name.to_string_lossy(), self.rules) {
                    continue;
                }
                relative.push(name);
                match kind {
                    Kind::Directory(below) => deeper = self.below(&relative, below, MAX_ENTRIES - entries),
                    Kind::File => self.file(&relative),
                    Kind::Link => self.link(&relative),
                    Kind::Other => self.not_regular(&relative),
                }
                if deeper.is_some() {
                    break;
                }
                relative.pop();
            }
            match deeper {
                Some(dir) => open.push(Open { dir, next: (0, 0) }),
                None => {
                    open.pop();
                    relative.pop();
                }
            }
        }
    }

    fn below(&mut self, relative: &Path, below: &Below, most: usize) -> Option<Arc<Dir>> {
        if let Below::Listed(dir) = below
            && !dir.is_cut
        {
            return Some(Arc::clone(dir));
        }
        let real = self.place.real.join(relative);
        // One more than may be, so that there being more is seen.
        match Dir::read_one(self.place.beneath, &real, most + 1) {
            Ok(dir) => {
                self.listing.is_plain &= !dir.is_cut;
                self.listing.own.push((real, dir.stamp));
                Some(dir)
            }
            Err(error) => {
                self.listing.is_plain = false;
                let place = self.place.directory.join(relative);
                self.findings.build(
                    codes::E_UNREADABLE,
                    (0, 0),
                    format!("{} cannot be read: {error}", place.display()),
                );
                None
            }
        }
    }

    fn file(&mut self, relative: &Path) {
        match self.place.beneath.look(&self.place.real.join(relative)) {
            Ok(Some(stamp)) => self.item(relative, None, stamp),
            Ok(None) => {
                self.listing.is_plain = false;
                self.not_regular(relative);
            }
            Err(error) => self.closed(relative, &error),
        }
    }

    fn link(&mut self, relative: &Path) {
        self.listing.is_plain = false;
        match look(&self.place.directory.join(relative), self.place.directory) {
            Ok(Look::Inside(origin, metadata)) => self.item(relative, Some(origin.into()), Stamp::of(&metadata)),
            Ok(Look::NotRegular) => self.not_regular(relative),
            Ok(Look::LeftOut(why)) => {
                let shown = relative.display();
                let message =
                    format!("{shown} is a link {why} and is left out of the package: put there what it should lead to");
                self.findings.warn(codes::W_LINK_LEFT_OUT, (0, 0), message);
                self.venvs.extend(venv(relative));
            }
            Err(error) => self.closed(relative, &error),
        }
    }

    fn item(&mut self, relative: &Path, elsewhere: Option<Box<Path>>, stamp: Stamp) {
        let path = match relative.to_str().map(str::parse::<PackagePath>) {
            Some(Ok(path)) => path,
            Some(Err(error)) => {
                let shown = relative.display();
                return self.findings.build(codes::E_PATH_INVALID, (0, 0), format!("{shown}: {error}"));
            }
            None => {
                let message = format!("the name {relative:?} is not UTF-8: rename the file");
                return self.findings.build(codes::E_PATH_INVALID, (0, 0), message);
            }
        };
        self.listing.items.push(Item { path, elsewhere, stamp });
    }

    fn not_regular(&mut self, relative: &Path) {
        let message = format!("{} is not a regular file and is left out of the package", relative.display());
        self.findings.warn(codes::W_NOT_REGULAR, (0, 0), message);
    }

    fn closed(&mut self, relative: &Path, error: &io::Error) {
        self.listing.is_plain = false;
        // It went between the listing and the look.
        if error.kind() != io::ErrorKind::NotFound {
            let message = format!("{} cannot be looked at: {error}", relative.display());
            self.findings.build(codes::E_UNREADABLE, (0, 0), message);
        }
    }
}

/// Adds a file from elsewhere.
pub(crate) fn add(items: &mut Vec<Item>, item: Item, findings: &mut Findings) {
    items.push(item);
    sort(items);
    weigh(items, findings);
}

fn sort(items: &mut [Item]) {
    items.sort_by(|a, b| a.path.as_str().as_bytes().cmp(b.path.as_str().as_bytes()));
}

fn weigh(items: &[Item], findings: &mut Findings) {
    if items.len() > MAX_FILES {
        let message = format!("the package has more than {MAX_FILES} files: leave out what a run does not need");
        findings.build(codes::E_PACKAGE_TOO_MANY_FILES, (0, 0), message);
    }
    let bytes = items.iter().fold(0_u64, |sum, item| sum.saturating_add(item.stamp.size));
    if bytes > MAX_BYTES {
        let message = format!(
            "the package has {bytes} bytes, of which {MAX_BYTES} (64 MiB) are allowed: leave out what a run does not need"
        );
        findings.build(codes::E_PACKAGE_TOO_LARGE, (0, 0), message);
    }
}

/// Reads the files for their digests; those that are known are not read.
pub(crate) fn hash(
    place: &Place<'_>,
    items: &[Item],
    known: impl Fn(&Item) -> Option<Digest>,
    findings: &mut Findings,
) -> Vec<SourceFile> {
    let mut files = Vec::with_capacity(items.len());
    for item in items {
        let read = match known(item) {
            Some(digest) => Ok((digest, item.stamp.size)),
            None => place.open(item).and_then(digest),
        };
        match read {
            Ok((sha256, size)) => {
                let file = PackageFile { path: item.path.clone(), size, executable: item.stamp.executable(), sha256 };
                files.push(SourceFile {
                    file,
                    directory: Arc::clone(place.directory),
                    elsewhere: item.elsewhere.clone(),
                });
            }
            Err(error) => {
                let message = format!("{} cannot be read: {error}", item.path);
                findings.build(codes::E_UNREADABLE, (0, 0), message);
            }
        }
    }
    files
}

/// What a link is to a package.
enum Look {
    Inside(PathBuf, std::fs::Metadata),
    NotRegular,
    LeftOut(&'static str),
}

fn look(link: &Path, directory: &Path) -> io::Result<Look> {
    let Ok(origin) = std::fs::canonicalize(link) else { return Ok(Look::LeftOut("to nowhere")) };
    let metadata = std::fs::metadata(&origin)?;
    Ok(if metadata.is_dir() {
        Look::LeftOut("to a directory")
    } else if !origin.starts_with(directory) {
        Look::LeftOut("out of the package")
    } else if !metadata.is_file() {
        Look::NotRegular
    } else {
        Look::Inside(origin, metadata)
    })
}

/// `.git`, and what Kubernetes keeps beside the links of a mounted volume (`..data`): the links are stored as files.
fn left_out(name: &str, rules: Rules) -> bool {
    name == ".git" || name.starts_with("..") || (rules == Rules::Playbook && name.starts_with('.'))
}

/// The virtual environment that a path lies in.
fn venv(path: &Path) -> Option<PathBuf> {
    path.ancestors().skip(1).find(|dir| dir.ends_with(".venv") || dir.ends_with("venv")).map(Path::to_owned)
}

thread_local! {
    /// What is read at once goes here: most files are small, and a new place for each would take longer than they do.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_AT_ONCE]);
}

/// In pieces: a package may be larger than what one wants in memory.
fn digest((mut file, stamp): (File, Stamp)) -> io::Result<(Digest, u64)> {
    BUFFER.with_borrow_mut(|buffer| {
        let mut hasher = Hasher::default();
        let mut size = 0;
        loop {
            let read = fill(&mut file, buffer, stamp.size.saturating_sub(size))?;
            hasher.update(&buffer[..read]);
            size += read as u64;
            if read < buffer.len() {
                return Ok((hasher.finish(), size));
            }
            if size > MAX_BYTES {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it grows while it is read"));
            }
        }
    })
}
