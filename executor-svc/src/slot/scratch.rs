//! The scratch directory of one slot: made before the slot starts, which may write it, and removed with the last who
//! knows of it, if it is empty. What is in it is the runs' matter.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Uid, chown, mkdir};

use crate::isolation::RunAs;

/// A directory of a slot. No other slot may read it or write it, where files are confined.
#[derive(Debug)]
pub struct SlotScratch {
    path: PathBuf,
    owner: Option<RunAs>,
}

impl SlotScratch {
    pub(super) fn make(path: PathBuf, owner: Option<RunAs>) -> io::Result<Self> {
        mkdir(&path, Mode::RWXU)?;
        let made = Self { path, owner };
        made.give(&made.path)?;
        Ok(made)
    }

    /// Absolute; of mode 0700.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
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

impl Drop for SlotScratch {
    fn drop(&mut self) {
        // One that is not empty is swept when the executor starts again.
        let _ = std::fs::remove_dir(&self.path);
    }
}
