//! Removes what skills left in a directory, however it is made: deep, huge, closed to its owner, full of links. No link is
//! followed and no mount entered; two directories are open at a time, and nothing is recursive. Blocks for as long as it
//! takes.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, chmod, fchmod, openat, openat2, renameat, unlinkat,
};
use rustix::io::Errno;

/// A directory that no skill writes any more may change under the hands of one that is not yet dead: so often it is
/// looked at again.
const PASSES: usize = 4;

/// Removes every entry of a directory, not the directory itself, and returns the first error for what is left.
///
/// # Errors
/// The directory cannot be opened or read, or something in it cannot be removed.
pub(super) fn remove_all_in(directory: &Path) -> io::Result<()> {
    let top = openat(CWD, directory, READ, Mode::empty())?;
    let mut failed = None;
    for (name, kind) in entries(&top)? {
        if let Err(error) = remove(&top, &name, kind) {
            failed.get_or_insert(error);
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

const READ: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// One entry of `top`. Directories in it become entries of `top` before they are emptied, so that no path grows long.
fn remove(top: &OwnedFd, name: &CStr, kind: FileType) -> Result<(), Errno> {
    let mut waiting = vec![(name.to_owned(), kind)];
    let mut failed = None;
    while let Some((name, kind)) = waiting.pop() {
        let removed = if kind == FileType::Directory {
            empty(top, &name, &mut waiting).and_then(|()| unlinkat(top, &name, AtFlags::REMOVEDIR))
        } else {
            unlinkat(top, &name, AtFlags::empty())
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Unlinks what is in a directory of `top`; directories are moved up into `top`, and wait there.
fn empty(top: &OwnedFd, name: &CStr, waiting: &mut Vec<(CString, FileType)>) -> Result<(), Errno> {
    let directory = open(top, name)?;
    for _ in 0..PASSES {
        let mut found = false;
        for (name, kind) in entries(&directory)? {
            found = true;
            if kind != FileType::Directory {
                unlinkat(&directory, &name, AtFlags::empty())?;
            } else if unlinkat(&directory, &name, AtFlags::REMOVEDIR).is_err() {
                let aside = unique();
                match renameat(&directory, &name, top, &aside) {
                    // Moving a directory writes its `..`.
                    Err(Errno::ACCESS) => {
                        unlock(&directory, &name)?;
                        renameat(&directory, &name, top, &aside)?;
                    }
                    moved => moved?,
                }
                waiting.push((aside, FileType::Directory));
            }
        }
        if !found {
            return Ok(());
        }
    }
    Ok(())
}

/// Opens a directory that its owner may have closed to itself.
fn open(at: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let directory = match enter(at, name, READ) {
        Err(Errno::ACCESS) => {
            unlock(at, name)?;
            enter(at, name, READ)?
        }
        opened => opened?,
    };
    // For root, whose it is makes no difference.
    let _ = fchmod(&directory, Mode::RWXU);
    Ok(directory)
}

/// Gives the owner of a directory its rights back, by a descriptor that can be had without any.
fn unlock(at: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let path = enter(at, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
    chmod(format!("/proc/self/fd/{}", path.as_raw_fd()), Mode::RWXU)
}

/// Not through a link, and not into what is mounted there.
fn enter(at: &OwnedFd, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(at, name, flags, Mode::empty(), within)
}

fn entries(directory: impl AsFd) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

/// A name that nothing else has.
fn unique() -> CString {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let name = format!(".moved-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed));
    CString::new(name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn is_empty(path: &Path) -> bool {
        fs::read_dir(path).unwrap().next().is_none()
    }

    #[test]
    fn whatever_was_left_is_gone_and_nothing_else() {
        let (top, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("kept"), "x").unwrap();
        let run = top.path().join("run");
        fs::create_dir_all(run.join("a/b/c")).unwrap();
        fs::create_dir(run.join("a/b/empty")).unwrap();
        for name in ["file", "a/file", "a/b/c/.hidden", "a/ name\n"] {
            fs::write(run.join(name), "x").unwrap();
        }
        symlink(outside.path(), run.join("link")).unwrap();
        symlink(outside.path(), run.join("a/b/link")).unwrap();
        symlink("nowhere", run.join("a/broken")).unwrap();
        rustix::fs::mknodat(CWD, run.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(run.join("socket")).unwrap();
        fs::write(top.path().join("beside"), "x").unwrap();
        for (path, mode) in [("a/b/c", 0o000), ("a/b", 0o555), ("a", 0o000), ("", 0o000)] {
            fs::set_permissions(run.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        remove_all_in(top.path()).unwrap();
        assert!(is_empty(top.path()));
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn deeper_than_any_path_and_any_stack() {
        let top = tempfile::tempdir().unwrap();
        let mut at = openat(CWD, top.path(), READ, Mode::empty()).unwrap();
        for _ in 0..20_000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", READ, Mode::empty()).unwrap();
        }
        remove_all_in(top.path()).unwrap();
        assert!(is_empty(top.path()));
    }
}
