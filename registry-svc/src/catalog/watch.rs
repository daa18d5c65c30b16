//! File notifications of one root, as a hint that looking again may be worth it. Nothing depends on one coming: what
//! is not notified is seen at the next rescan. Where the system's limits do not allow to watch everything, it says so, and
//! tries again.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{Config, ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// Between two attempts to watch what could not be watched: each goes through all directories of the root.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Where the kernel says what its limits are.
const LIMITS: &str = "/proc/sys/fs/inotify";

/// Why changes under a root may be seen at the next rescan only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unnotified {
    /// Every directory is a watch.
    #[error(
        "this user may watch no more directories: raise fs.inotify.max_user_watches{}, and what is missing is watched then",
        now("max_user_watches")
    )]
    Watches,
    /// Every root is an instance.
    #[error(
        "this user may have no more inotify instances, or this process no more open files: raise \
         fs.inotify.max_user_instances{}, or the limit of open files",
        now("max_user_instances")
    )]
    Instances,
    /// What the system said.
    #[error("{0}")]
    Other(String),
}

/// Watches one root and the way to it.
#[derive(Debug)]
pub(super) struct Watch {
    root: PathBuf,
    /// Whether files beside the root matter too, as the list of an admin server's mirror does.
    siblings: bool,
    hint: Arc<Notify>,
    /// What is watched, by device and inode: a directory that was replaced must be watched anew.
    watched: Vec<Target>,
    watcher: Option<RecommendedWatcher>,
    /// Why not all of it is watched, and when that was last tried.
    lack: Option<(Unnotified, Instant)>,
    /// A directory that came later could not be watched.
    full: Arc<AtomicBool>,
}

#[derive(Debug, PartialEq, Eq)]
struct Target {
    path: PathBuf,
    device: u64,
    inode: u64,
    recursive: bool,
}

impl Watch {
    pub(super) fn new(root: PathBuf, siblings: bool, hint: Arc<Notify>) -> Self {
        Self { root, siblings, hint, watched: Vec::new(), watcher: None, lack: None, full: Arc::default() }
    }

    /// Why changes may be seen at the next rescan only.
    pub(super) fn lack(&self) -> Option<&Unnotified> {
        self.lack.as_ref().map(|(why, _)| why)
    }

    /// Watches the root as it is now, and the directory in which it lies or would come to lie. Blocks.
    pub(super) fn renew(&mut self) {
        let targets: Vec<_> =
            [target(&self.root, true), self.root.ancestors().skip(1).find_map(|dir| target(dir, false))]
                .into_iter()
                .flatten()
                .collect();
        if targets != self.watched {
            // What was watched before is gone, or another.
            (self.watcher, self.lack) = (None, None);
        } else if self.full.swap(false, Ordering::Relaxed) {
            self.lack = Some((Unnotified::Watches, Instant::now()));
            return;
        } else if self.lack.as_ref().is_none_or(|(_, tried)| tried.elapsed() < AGAIN_AFTER) {
            return;
        }
        self.lack = self.watch(&targets).err().map(|error| (why(error), Instant::now()));
        self.watched = targets;
    }

    /// Watches these, or as much of them as can be. What is watched already is not watched twice.
    fn watch(&mut self, targets: &[Target]) -> notify::Result<()> {
        let mut watcher = match self.watcher.take() {
            Some(watcher) => watcher,
            None => self.watcher()?,
        };
        // The way to the root first: it is little, and says when the root is another.
        // What was watched before an error, as with too many directories, stays watched.
        let mut watched = Ok(());
        for target in targets.iter().rev() {
            let mode = if target.recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            watched = watched.and(watcher.watch(&target.path, mode));
        }
        self.watcher = Some(watcher);
        watched
    }

    fn watcher(&self) -> notify::Result<RecommendedWatcher> {
        let (hint, full, siblings) = (Arc::clone(&self.hint), Arc::clone(&self.full), self.siblings);
        let (root, real) = (self.root.clone(), fs::canonicalize(&self.root).unwrap_or_else(|_| self.root.clone()));
        let matters = move |path: &Path| {
            path.starts_with(&real) || root.starts_with(path) || (siblings && path.parent() == root.parent())
        };
        let on_event = move |event: notify::Result<Event>| match event {
            Ok(event) if is_change(&event) && (event.need_rescan() || event.paths.iter().any(|path| matters(path))) => {
                hint.notify_one();
            }
            Ok(_) => {}
            Err(error) => {
                if matches!(error.kind, ErrorKind::MaxFilesWatch) {
                    full.store(true, Ordering::Relaxed);
                    hint.notify_one();
                }
                tracing::debug!(%error, "a file notification was lost");
            }
        };
        // A link may lead out of the root, to anywhere: the loader does not follow it, and neither does this.
        RecommendedWatcher::new(on_event, Config::default().with_follow_symlinks(false))
    }
}

/// A directory to watch, where there is one.
fn target(path: &Path, recursive: bool) -> Option<Target> {
    // The root under its real path, because a link is not followed; the way to it as it is written, to see a link change.
    let path = if recursive { fs::canonicalize(path).ok()? } else { path.to_owned() };
    let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_dir)?;
    Some(Target { path, device: metadata.dev(), inode: metadata.ino(), recursive })
}

/// A look at the files makes events itself: they are read, and that changes nothing.
fn is_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

fn why(error: notify::Error) -> Unnotified {
    match error.kind {
        ErrorKind::MaxFilesWatch => Unnotified::Watches,
        ErrorKind::Io(error) if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            Unnotified::Instances
        }
        _ => Unnotified::Other(error.to_string()),
    }
}

/// The value of a limit, where it can be read.
fn now(limit: &str) -> String {
    let value = fs::read_to_string(Path::new(LIMITS).join(limit)).unwrap_or_default();
    if value.trim().is_empty() { String::new() } else { format!(" ({} now)", value.trim()) }
}
