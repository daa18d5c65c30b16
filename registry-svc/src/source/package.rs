//! The files of a package: which they are, what they weigh, and their digests. Follows no link out of the directory.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use skillyard::digest::Hasher;
use skillyard::package::{MAX_BYTES, MAX_FILES};
use skillyard::{Digest, PackageFile, PackagePath};
use walkdir::WalkDir;

use super::SourceFile;
use super::codes;
use super::findings::Findings;
use super::stamp::Stamp;
use super::text::open_regular;

/// Most entries of a package's directory, files or not.
const MAX_ENTRIES: usize = 16 * MAX_FILES;
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
    /// Its canonical path.
    pub(crate) origin: PathBuf,
    pub(crate) stamp: Stamp,
}

/// The digests of files that need not be read again.
pub(crate) type Digests = HashMap<PathBuf, (Stamp, Digest)>;

/// Opens a file of a package for reading, as long as it is a regular file.
///
/// # Errors
/// Of the system; `InvalidInput` where it is no regular file any more.
pub fn open(file: &SourceFile) -> io::Result<File> {
    open_regular(&file.origin)
}

/// The files below a canonical directory, in byte order of their paths in the package.
pub(crate) fn list(directory: &Path, rules: Rules, findings: &mut Findings) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut venvs = BTreeSet::new();
    let mut walk = WalkDir::new(directory).min_depth(1).sort_by_file_name().into_iter();
    let mut entries = 0;
    while let Some(entry) = walk.next() {
        entries += 1;
        if items.len() > MAX_FILES || entries > MAX_ENTRIES {
            let message = format!("the package has more than {MAX_FILES} files: leave out what a run does not need");
            findings.build(codes::E_PACKAGE_TOO_MANY_FILES, (0, 0), message);
            break;
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let place = error.path().unwrap_or(directory).display().to_string();
                let reason = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
                findings.build(codes::E_UNREADABLE, (0, 0), format!("{place} cannot be read: {reason}"));
                continue;
            }
        };
        if left_out(&entry.file_name().to_string_lossy(), rules) {
            if entry.file_type().is_dir() {
                walk.skip_current_dir();
            }
            continue;
        }
        if entry.file_type().is_dir() {
            continue;
        }
        let relative = entry.path().strip_prefix(directory).unwrap_or(entry.path());
        let shown = relative.display();
        let (origin, metadata) = match look(entry.path(), entry.file_type().is_symlink(), directory) {
            Ok(Look::Inside(origin, metadata)) => (origin, metadata),
            Ok(Look::NotRegular) => {
                let message = format!("{shown} is not a regular file and is left out of the package");
                findings.warn(codes::W_NOT_REGULAR, (0, 0), message);
                continue;
            }
            Ok(Look::LeftOut(why)) => {
                let message = format!("{shown} is a link {why} and is left out of the package: put the files there");
                findings.warn(codes::W_LINK_LEFT_OUT, (0, 0), message);
                venvs.extend(venv(relative));
                continue;
            }
            // It went between the listing and the look.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                findings.build(codes::E_UNREADABLE, (0, 0), format!("{shown} cannot be looked at: {error}"));
                continue;
            }
        };
        let path = match relative.to_str().map(str::parse::<PackagePath>) {
            Some(Ok(path)) => path,
            Some(Err(error)) => {
                findings.build(codes::E_PATH_INVALID, (0, 0), format!("{shown}: {error}"));
                continue;
            }
            None => {
                let message = format!("the name {relative:?} is not UTF-8: rename the file");
                findings.build(codes::E_PATH_INVALID, (0, 0), message);
                continue;
            }
        };
        items.push(Item { path, origin, stamp: Stamp::of(&metadata) });
    }
    weigh(&items, findings);
    for venv in venvs {
        let message = format!(
            "the virtual environment {} depends on links that are left out: vendor what it holds with \
             `pip install --target` instead",
            venv.display()
        );
        findings.warn(codes::W_VENV_LINKS, (0, 0), message);
    }
    sort(&mut items);
    items
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
    let bytes = items.iter().fold(0_u64, |sum, item| sum.saturating_add(item.stamp.size));
    if bytes > MAX_BYTES {
        let message = format!(
            "the package has {bytes} bytes, of which {MAX_BYTES} (64 MiB) are allowed: leave out what a run does not need"
        );
        findings.build(codes::E_PACKAGE_TOO_LARGE, (0, 0), message);
    }
}

/// Reads the files for their digests; those that are known are not read.
pub(crate) fn hash(items: &[Item], known: &Digests, findings: &mut Findings) -> Vec<SourceFile> {
    let mut files = Vec::with_capacity(items.len());
    for item in items {
        let read = match known.get(&item.origin) {
            Some((stamp, digest)) if *stamp == item.stamp => Ok((*digest, item.stamp.size)),
            _ => digest(&item.origin),
        };
        match read {
            Ok((sha256, size)) => {
                let file = PackageFile { path: item.path.clone(), size, executable: item.stamp.executable(), sha256 };
                files.push(SourceFile { file, origin: item.origin.clone() });
            }
            Err(error) => {
                let message = format!("{} cannot be read: {error}", item.path);
                findings.build(codes::E_UNREADABLE, (0, 0), message);
            }
        }
    }
    files
}

/// What a file or link is to a package.
enum Look {
    Inside(PathBuf, std::fs::Metadata),
    NotRegular,
    LeftOut(&'static str),
}

fn look(path: &Path, link: bool, directory: &Path) -> io::Result<Look> {
    if !link {
        let metadata = std::fs::symlink_metadata(path)?;
        return Ok(if metadata.is_file() { Look::Inside(path.to_owned(), metadata) } else { Look::NotRegular });
    }
    let Ok(origin) = std::fs::canonicalize(path) else { return Ok(Look::LeftOut("to nowhere")) };
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

/// In pieces: a package may be larger than what one wants in memory.
fn digest(path: &Path) -> io::Result<(Digest, u64)> {
    let mut file = open_regular(path)?;
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; READ_AT_ONCE];
    let mut size = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finish(), size)),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                size += read as u64;
                if size > MAX_BYTES {
                    return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it grows while it is read"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
