//! Directories on the disk: what they look like from outside, and how files are written so that they last.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use skillyard::digest::Hasher;
use walkdir::WalkDir;

/// What a directory looks like, without reading its files. A rename changes nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Print {
    /// Of names, sizes, modes and modification times: whether anybody touched it.
    pub(super) shape: String,
    /// Of the inodes too: which one it is, of two that were written within one tick of the clock.
    pub(super) mark: String,
}

/// `None` where there is no such directory, or a link in its place.
pub(super) fn print(directory: &Path) -> Option<Print> {
    if !fs::symlink_metadata(directory).is_ok_and(|metadata| metadata.is_dir()) {
        return None;
    }
    let (mut shape, mut mark) = (Hasher::default(), Hasher::default());
    for entry in WalkDir::new(directory).min_depth(1).sort_by_file_name() {
        let entry = entry.ok()?;
        let metadata = entry.metadata().ok()?;
        let name = entry.path().strip_prefix(directory).ok()?.as_os_str().as_encoded_bytes();
        let mut numbers = vec![name.len() as u64, metadata.mode().into()];
        if !metadata.is_dir() {
            numbers.extend([metadata.size(), metadata.mtime().cast_unsigned(), metadata.mtime_nsec().cast_unsigned()]);
        }
        mark.update(&metadata.ino().to_be_bytes());
        for hasher in [&mut shape, &mut mark] {
            numbers.iter().for_each(|number| hasher.update(&number.to_be_bytes()));
            hasher.update(name);
        }
    }
    Some(Print { shape: shape.finish().to_string(), mark: mark.finish().to_string() })
}

/// Writes a new file.
pub(super) fn create(path: &Path, content: &[u8], executable: bool) -> io::Result<()> {
    let mode = if executable { 0o777 } else { 0o666 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(content)
}

/// Writes a file that is there whole or as before, also after a power failure; `beside` is on the same file system.
pub(super) fn replace(path: &Path, beside: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(beside, path)?;
    sync(path.parent().unwrap_or(path))
}

/// A directory's entries are on the disk.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Everything that was written to this file system is on the disk: for thousands of files that is much less work than one
/// by one.
pub(super) fn sync_all(directory: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(directory)?)?)
}

/// Renames to where nothing is.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot tell: a directory replaces nothing but an empty directory.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if fs::symlink_metadata(to).is_err() => {
            fs::rename(from, to)
        }
        other => Ok(other?),
    }
}

/// Puts each in the place of the other, at once where the file system can; else by way of `aside`.
pub(super) fn exchange(one: &Path, other: &Path, aside: &Path) -> io::Result<()> {
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            fs::rename(other, aside)?;
            fs::rename(one, other)?;
            fs::rename(aside, one)
        }
        result => Ok(result?),
    }
}

/// Removes what may be there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_print_sees_every_touch_and_no_rename() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        create(&a.join("x"), b"1", false).unwrap();
        let first = print(&a).unwrap();
        rename(&a, &b).unwrap();
        assert_eq!((print(&a), print(&b)), (None, Some(first.clone())));
        fs::set_permissions(b.join("x"), fs::Permissions::from_mode(0o700)).unwrap();
        let second = print(&b).unwrap();
        assert_ne!(second, first);
        fs::create_dir(b.join("d")).unwrap();
        assert_ne!(print(&b).unwrap(), second);
        std::os::unix::fs::symlink(&b, &a).unwrap();
        assert_eq!(print(&a), None, "a link is no directory of ours");
    }

    #[test]
    fn nothing_is_replaced_by_accident() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for (name, content) in [("a", "1"), ("b", "2")] {
            fs::create_dir(path(name)).unwrap();
            create(&path(name).join("x"), content.as_bytes(), false).unwrap();
        }
        assert!(rename(&path("a"), &path("b")).is_err());
        exchange(&path("a"), &path("b"), &path("aside")).unwrap();
        assert_eq!(fs::read_to_string(path("b").join("x")).unwrap(), "1");
        assert_eq!(fs::read_to_string(path("a").join("x")).unwrap(), "2");
        assert!(create(&path("a").join("x"), b"", false).is_err());
    }
}
