//! Opens what lies under a directory, and nothing else. A link on the way, whoever swaps it in and when, is refused and
//! not followed: it takes one call of the system, and where that has no such call, one for each part of the path.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat};
use rustix::io::Errno;

use super::stamp::Stamp;

/// A directory. Paths below it are relative, without `..` and without links.
#[derive(Debug)]
pub(crate) struct Beneath(OwnedFd);

impl Beneath {
    /// The directory of this path, links on the way to it followed.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self(openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// A directory, to be listed.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    /// A regular file, and what it was when it was opened. A FIFO does not block, a device is not touched.
    pub(crate) fn file(&self, path: &Path) -> io::Result<(File, Stamp)> {
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let stat = fstat(&file)?;
        if !is_file(&stat) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok((File::from(file), Stamp::of_stat(&stat)))
    }

    /// What lies at a path; a link itself, not what it leads to. `None` where it is not a regular file.
    ///
    /// The way there is not held against swapped links: what is read later is opened as above, and what is not read is
    /// as it was, or its stamp is another.
    pub(crate) fn look(&self, path: &Path) -> io::Result<Option<Stamp>> {
        let stat = self.stat(path)?;
        Ok(is_file(&stat).then(|| Stamp::of_stat(&stat)))
    }

    /// The same, of whatever kind it is.
    pub(crate) fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        Ok(Stamp::of_stat(&self.stat(path)?))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        Ok(statat(&self.0, or_dot(path), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn open(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&self.0, or_dot(path), flags, Mode::empty(), resolve) {
            // An old kernel, or a filter of calls that knows this one not.
            Err(Errno::NOSYS | Errno::PERM) => self.open_part_by_part(path, flags),
            opened => opened,
        }
    }

    fn open_part_by_part(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut at: Option<OwnedFd> = None;
        let mut parts = path.components().map(|part| part.as_os_str()).peekable();
        if parts.peek().is_none() {
            return openat(&self.0, OsStr::new("."), flags, Mode::empty());
        }
        while let Some(part) = parts.next() {
            let from = at.as_ref().map_or(self.0.as_fd(), AsFd::as_fd);
            let last = parts.peek().is_none();
            let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = openat(from, part, if last { flags } else { way }, Mode::empty())?;
            if last {
                return Ok(opened);
            }
            at = Some(opened);
        }
        Err(Errno::NOENT)
    }
}

/// Reads on until a buffer is full or the file ends, which it does where as much was read as there is `left` of it: what is
/// written meanwhile gives the file another stamp.
pub(crate) fn fill(file: &mut File, buffer: &mut [u8], left: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if filled as u64 == left {
            break;
        }
    }
    Ok(filled)
}

fn is_file(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file()
}

fn or_dot(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_is_opened_through_a_link() {
        let world = tempfile::tempdir().unwrap();
        let (root, outside) = (world.path().join("root"), world.path().join("outside"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(outside.join("b")).unwrap();
        for file in [root.join("a/b/file"), outside.join("b/file")] {
            fs::write(file, "x").unwrap();
        }
        symlink(&outside, root.join("out")).unwrap();
        symlink("a", root.join("in")).unwrap();
        symlink("file", root.join("a/b/link")).unwrap();
        let beneath = Beneath::of(&root).unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for (path, opens) in [
            ("a/b/file", true),
            ("out/b/file", false),
            ("in/b/file", false),
            ("a/b/link", false),
            ("a/none", false),
            ("none/file", false),
        ] {
            let path = Path::new(path);
            assert_eq!(beneath.file(path).is_ok(), opens, "{path:?}");
            assert_eq!(beneath.open_part_by_part(path, flags).is_ok(), opens, "{path:?}");
        }
        assert!(beneath.file(Path::new("../outside/b/file")).is_err());
        assert!(beneath.file(Path::new("a/b")).is_err(), "it is a directory");
        for directory in ["", "a", "a/b"] {
            assert!(beneath.directory(Path::new(directory)).is_ok(), "{directory:?}");
            assert!(beneath.open_part_by_part(Path::new(directory), flags | OFlags::DIRECTORY).is_ok());
        }
        assert!(beneath.directory(Path::new("in")).is_err());
    }

    #[test]
    fn a_fifo_does_not_block() {
        let world = tempfile::tempdir().unwrap();
        rustix::fs::mkfifoat(CWD, world.path().join("fifo"), Mode::RWXU).unwrap();
        let beneath = Beneath::of(world.path()).unwrap();
        assert_eq!(beneath.file(Path::new("fifo")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(beneath.look(Path::new("fifo")).unwrap(), None);
    }
}
