//! Scratch directories: what TMPDIR names to a run that is allowed it. Each run has a new one, and it is out of reach at the
//! moment of the run's end, by one rename; a thread of its own removes what was put out of reach. What a killed executor
//! left is put there at the next start. A run that is not allowed TMPDIR has none.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use tracing::{debug, warn};

use super::remove::remove_all_in;
use crate::slot::SlotScratch;

/// The variable.
pub const TMPDIR: &str = "TMPDIR";
/// In the state directory: those in use, each slot's in a directory of its own where files are confined.
const SCRATCH: &str = "scratch";
/// In the state directory: those that are being removed. Not below the other: no slot is granted it.
const DISCARDED: &str = "discarded";

/// The scratch directories of an executor. Clones are the same.
#[derive(Clone, Debug)]
pub struct Scratch {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    discarded: PathBuf,
    last: AtomicU64,
    /// Wakes the thread; `None` once it is to end.
    remover: Mutex<Option<mpsc::Sender<()>>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

/// One run's directory, removed when it is dropped.
#[derive(Debug)]
pub struct RunScratch {
    path: PathBuf,
    inner: Arc<Inner>,
}

impl Scratch {
    /// In a state directory that is locked by this process: what is there is nobody's any more.
    ///
    /// # Errors
    /// The directories cannot be made, or the thread cannot be started.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        // A run is told where its directory is.
        let state_dir = state_dir.canonicalize()?;
        let (directory, discarded) = (state_dir.join(SCRATCH), state_dir.join(DISCARDED));
        for (path, mode) in [(&directory, 0o711), (&discarded, 0o700)] {
            fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        let (wake, woken) = mpsc::channel();
        let (ends, ended) = mpsc::channel();
        let removed = discarded.clone();
        thread::Builder::new().name("scratch".into()).stack_size(256 * 1024).spawn(move || {
            let _until_the_end = ends;
            remover(&removed, &woken);
        })?;
        let (remover, ended) = (Mutex::new(Some(wake)), Mutex::new(ended));
        let inner = Arc::new(Inner { directory, discarded, last: AtomicU64::new(0), remover, ended });
        let left = inner.discard_all_in(&inner.directory)?;
        if left > 0 {
            debug!(left, "scratch directories that were left are removed");
        }
        inner.wake();
        Ok(Self { inner })
    }

    /// A new directory for a run, of mode 0700: in `place`, or where `None` is closed to no skill, beside all others.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(&self, place: Option<&Path>) -> io::Result<RunScratch> {
        let path = place.unwrap_or(&self.inner.directory).join(self.inner.unique("run"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(RunScratch { path, inner: Arc::clone(&self.inner) })
    }

    /// Puts out of reach what a run has left in the place of its slot beside its own directory, so that the slot's next
    /// run does not find it.
    pub fn clear(&self, place: &SlotScratch) {
        let cleared = place.emptied(|path| {
            let discarded = self.inner.discard_all_in(path)?;
            if discarded > 0 {
                self.inner.wake();
            }
            Ok::<_, io::Error>(discarded == 0)
        });
        if let Err(error) = cleared {
            warn!(%error, path = %place.path().display(), "a slot's scratch directory cannot be cleared");
        }
    }

    /// Waits, blocking, until everything that was put out of reach is removed, for so long at most. What is left then is
    /// removed at the next start.
    pub fn finish(&self, limit: Duration) {
        drop(self.inner.remover.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = self.inner.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            warn!(?limit, "scratch directories are not all removed; the rest is removed at the next start");
        }
    }
}

impl RunScratch {
    /// Absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunScratch {
    fn drop(&mut self) {
        match self.inner.discard(&self.path) {
            Ok(()) => self.inner.wake(),
            // The skill removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!(%error, path = %self.path.display(), "a scratch directory cannot be removed"),
        }
    }
}

impl Inner {
    fn discard(&self, path: &Path) -> io::Result<()> {
        fs::rename(path, self.discarded.join(self.unique("left")))
    }

    fn discard_all_in(&self, directory: &Path) -> io::Result<usize> {
        let mut count = 0;
        for entry in fs::read_dir(directory)? {
            self.discard(&entry?.path())?;
            count += 1;
        }
        Ok(count)
    }

    /// Told from those of an earlier process by its id.
    fn unique(&self, what: &str) -> String {
        let own = std::process::id();
        format!("{what}-{own}-{}", self.last.fetch_add(1, Ordering::Relaxed))
    }

    fn wake(&self) {
        if let Some(remover) = &*self.remover.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = remover.send(());
        }
    }
}

/// Removes what is there each time it is woken, until nobody can wake it any more.
fn remover(discarded: &Path, woken: &mpsc::Receiver<()>) {
    let mut known = HashSet::new();
    while woken.recv().is_ok() {
        // One look is enough for all who have called by now.
        while woken.try_recv().is_ok() {}
        if let Err(error) = remove_all_in(discarded) {
            // Told once for each that stays, and tried again each time.
            let left: HashSet<OsString> =
                fs::read_dir(discarded).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
            if !left.is_subset(&known) {
                warn!(%error, path = %discarded.display(), left = left.len(), "scratch directories cannot be removed whole");
            }
            known = left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(path: &Path) -> usize {
        fs::read_dir(path).unwrap().count()
    }

    #[test]
    fn a_run_has_its_own_and_leaves_nothing() {
        let state = tempfile::tempdir().unwrap();
        let scratch = Scratch::open(state.path()).unwrap();
        let slot = SlotScratch::make(state.path().join(SCRATCH).join("1"), None).unwrap();
        let place = slot.path();
        let (first, second) = (scratch.make(None).unwrap(), scratch.make(Some(place)).unwrap());
        assert_ne!(first.path(), second.path());
        assert!(second.path().starts_with(place.canonicalize().unwrap()));
        for path in [first.path(), second.path()] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o700);
            fs::create_dir_all(path.join("a/b")).unwrap();
        }
        fs::write(place.join("beside"), "x").unwrap();
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists(), "it is out of reach at once");
        drop(second);
        scratch.clear(&slot);
        assert_eq!(entries(place), 0);
        // One that the skill removed itself.
        let third = scratch.make(None).unwrap();
        fs::remove_dir(third.path()).unwrap();
        drop(third);
        scratch.finish(Duration::from_secs(30));
        assert_eq!(entries(&state.path().join(DISCARDED)), 0);
    }

    #[test]
    fn what_a_killed_executor_left_is_swept() {
        let state = tempfile::tempdir().unwrap();
        for path in ["scratch/1/run-1-0/deep", "scratch/run-1-1", "discarded/left-1-0/deep"] {
            fs::create_dir_all(state.path().join(path)).unwrap();
            fs::write(state.path().join(path).join("file"), "x").unwrap();
        }
        let scratch = Scratch::open(state.path()).unwrap();
        assert_eq!(entries(&state.path().join(SCRATCH)), 0, "it is out of reach before anything is started");
        scratch.finish(Duration::from_secs(30));
        assert_eq!(entries(&state.path().join(DISCARDED)), 0);
    }
}
