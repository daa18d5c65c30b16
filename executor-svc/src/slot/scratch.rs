//! The scratch directory of one slot: made before the slot starts, which may write it, and removed with the last who
//! knows of it, if it is empty. What is in it is the runs' matter; whether nothing can be is known here, so that a run that
//! leaves nothing behind costs one look at the directory's own times.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Mode, Uid, chown, mkdir, stat};

use crate::isolation::RunAs;

/// A directory of a slot. No other slot may read it or write it, where files are confined.
#[derive(Debug)]
pub struct SlotScratch {
    path: PathBuf,
    owner: Option<RunAs>,
    empty: Mutex<Option<Empty>>,
}

/// When it was found empty.
#[derive(Clone, Copy, Debug)]
struct Empty {
    /// Its last change by then.
    changed: Changed,
    since: Instant,
    /// Every change from now on has a later time.
    settled: bool,
}

/// The time of a directory's last change: no skill can set it.
type Changed = (i64, u64);

/// The clock of files stands still for as long at the most: a tick is 10 ms where it is longest.
const TICK: Duration = Duration::from_millis(50);

impl SlotScratch {
    pub(crate) fn make(path: PathBuf, owner: Option<RunAs>) -> io::Result<Self> {
        mkdir(&path, Mode::RWXU)?;
        let made = Self { path, owner, empty: Mutex::default() };
        made.give(&made.path)?;
        Ok(made)
    }

    /// Absolute; of mode 0700.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Empties it by `clear`, which returns whether it was empty, unless nothing has been in it since that found it so.
    ///
    /// # Errors
    /// Those of `clear`.
    pub fn emptied<E>(&self, clear: impl FnOnce(&Path) -> Result<bool, E>) -> Result<(), E> {
        let mut known = self.empty.lock().unwrap_or_else(PoisonError::into_inner);
        // Before it is listed: what is made in it meanwhile changes it again.
        let changed = changed(&self.path);
        if known.is_some_and(|empty| empty.settled && Some(empty.changed) == changed) {
            return Ok(());
        }
        let before = known.take();
        if clear(&self.path)? {
            *known = changed.map(|changed| match before.filter(|before| before.changed == changed) {
                Some(before) => Empty { settled: before.since.elapsed() >= TICK, ..before },
                None => Empty { changed, since: Instant::now(), settled: false },
            });
        }
        Ok(())
    }

    /// Gives something that the executor has made in it to the user that skills run as. Not through links: only what is
    /// not yet in a skill's reach.
    ///
    /// # Errors
    /// The owner cannot be changed.
    pub fn give(&self, path: &Path) -> io::Result<()> {
        let Some(RunAs { uid, gid }) = self.owner else { return Ok(()) };
        Ok(chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
    }
}

fn changed(path: &Path) -> Option<Changed> {
    let stat = stat(path).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "these have other types on other architectures")]
    Some((stat.st_ctime as i64, stat.st_ctime_nsec as u64))
}

impl Drop for SlotScratch {
    fn drop(&mut self) {
        // One that is not empty is swept when the executor starts again.
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn an_empty_one_is_listed_until_its_times_tell() {
        let directory = tempfile::tempdir().unwrap();
        let scratch = SlotScratch::make(directory.path().join("1"), None).unwrap();
        let listed = || {
            let mut listed = false;
            let Ok(()) = scratch.emptied(|path| {
                listed = true;
                let entries: Vec<_> = std::fs::read_dir(path).unwrap().map(Result::unwrap).collect();
                entries.iter().for_each(|entry| std::fs::remove_file(entry.path()).unwrap());
                Ok::<_, Infallible>(entries.is_empty())
            });
            listed
        };
        for round in 0..3 {
            // However soon after, what is made is found.
            std::fs::write(scratch.path().join("left"), "x").unwrap();
            assert!(listed(), "{round}");
            assert!(!scratch.path().join("left").exists(), "{round}");
            assert!(listed(), "{round}: it is found empty");
            let began = Instant::now();
            while listed() {
                assert!(began.elapsed() < Duration::from_secs(30), "{round}: its times tell");
            }
        }
    }
}
