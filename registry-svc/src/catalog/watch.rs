//! File notifications of one root, as a hint that looking again may be worth it. Nothing depends on one coming: what
//! is not notified is seen at the next rescan.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Config, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

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
        Self { root, siblings, hint, watched: Vec::new(), watcher: None }
    }

    /// Watches the root as it is now, and the directory in which it lies or would come to lie. Blocks.
    pub(super) fn renew(&mut self) {
        let targets: Vec<_> =
            [target(&self.root, true), self.root.ancestors().skip(1).find_map(|dir| target(dir, false))]
                .into_iter()
                .flatten()
                .collect();
        if targets == self.watched {
            return;
        }
        self.watcher = match self.start(&targets) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                let root = self.root.display();
                tracing::warn!(%error, "changes under {root} are not notified, and are seen at the next rescan");
                None
            }
        };
        self.watched = targets;
    }

    fn start(&self, targets: &[Target]) -> notify::Result<RecommendedWatcher> {
        let (hint, siblings) = (Arc::clone(&self.hint), self.siblings);
        let (root, real) = (self.root.clone(), fs::canonicalize(&self.root).unwrap_or_else(|_| self.root.clone()));
        let matters = move |path: &Path| {
            path.starts_with(&real) || root.starts_with(path) || (siblings && path.parent() == root.parent())
        };
        let on_event = move |event: notify::Result<Event>| match event {
            Ok(event) if is_change(&event) && (event.need_rescan() || event.paths.iter().any(|path| matters(path))) => {
                hint.notify_one();
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a file notification was lost"),
        };
        // A link may lead out of the root, to anywhere: the loader does not follow it, and neither does this.
        let mut watcher = RecommendedWatcher::new(on_event, Config::default().with_follow_symlinks(false))?;
        for target in targets {
            let mode = if target.recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            watcher.watch(&target.path, mode)?;
        }
        Ok(watcher)
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
