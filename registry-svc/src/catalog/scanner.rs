//! Looks at one root, on a thread that may block: one at a time, and never waited for longer than a deadline. A root
//! that does not answer keeps what was known of it.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::load::Scanned;
use super::reload::ROOT_TIMEOUT;
use super::watch::Watch;
use crate::source::{self, Root, RootKind, RootState};
use skillyard::Source;

/// One root, and what is known of it.
#[derive(Debug)]
pub(super) struct Scanner {
    root: Root,
    hint: Arc<Notify>,
    /// What the last look that could read the root found.
    latest: Option<Arc<Scanned>>,
    /// Lent to the thread that looks.
    watch: Option<Watch>,
    running: Option<JoinHandle<Look>>,
}

/// What a thread brings back.
#[derive(Debug)]
struct Look {
    scanned: Scanned,
    watch: Watch,
    /// A file was so young that it may have changed unseen.
    young: bool,
}

/// What is known of a root after a look.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) scanned: Arc<Scanned>,
    pub(super) look_again: bool,
}

impl Scanner {
    pub(super) fn new(root: Root, hint: Arc<Notify>) -> Self {
        Self { root, hint, latest: None, watch: None, running: None }
    }

    /// Starts to look, unless the configuration keeps the root out or an earlier look still hangs.
    pub(super) async fn start(&mut self) {
        if self.root.state != RootState::Registered {
            return;
        }
        match &mut self.running {
            Some(running) if !running.is_finished() => return,
            Some(running) => {
                let late = running.await;
                self.finish(late);
            }
            None => {}
        }
        let (root, latest, hint) = (self.root.clone(), self.latest.clone(), Arc::clone(&self.hint));
        let mut watch = self.watch.take().unwrap_or_else(|| {
            Watch::new(root.path.clone(), root.kind == RootKind::Skills(Source::Cloud), Arc::clone(&hint))
        });
        self.running = Some(tokio::task::spawn_blocking(move || {
            // First the watch: what changes during the look is notified.
            watch.renew();
            let began = Instant::now();
            let (scanned, young) = look(&root, latest.as_deref());
            if latest.is_none() && began.elapsed() > ROOT_TIMEOUT {
                // Nobody waits for it any more, and nothing else is known of this root.
                hint.notify_one();
            }
            Look { scanned, watch, young }
        }));
    }

    /// What the look that was started found, or what was known before where it takes too long.
    pub(super) async fn wait(&mut self, deadline: Instant) -> Known {
        let Some(running) = &mut self.running else {
            return Known { scanned: self.known(self.root.state), look_again: false };
        };
        let Ok(look) = timeout_at(deadline, running).await else {
            return Known { scanned: self.known(RootState::Unreadable), look_again: false };
        };
        self.finish(look)
    }

    fn finish(&mut self, look: Result<Look, tokio::task::JoinError>) -> Known {
        self.running = None;
        let Look { scanned, watch, young } = match look {
            Ok(look) => look,
            Err(error) => {
                tracing::error!(%error, "looking at {} failed", self.root.path.display());
                return Known { scanned: self.known(RootState::Unreadable), look_again: false };
            }
        };
        self.watch = Some(watch);
        if scanned.root().state == RootState::Unreadable {
            return Known { scanned: self.known(RootState::Unreadable), look_again: false };
        }
        let scanned = Arc::new(scanned);
        self.latest = Some(Arc::clone(&scanned));
        Known { scanned, look_again: young }
    }

    /// What was found last, under a root that is now in this state.
    fn known(&self, state: RootState) -> Arc<Scanned> {
        let root = Root { state, ..self.root.clone() };
        Arc::new(match &self.latest {
            Some(latest) => Scanned::clone(latest).with_root(root),
            None => Scanned::empty(root),
        })
    }
}

fn look(root: &Root, latest: Option<&Scanned>) -> (Scanned, bool) {
    let began = SystemTime::now();
    match root.kind {
        RootKind::Skills(_) => {
            let before = latest.and_then(|latest| match latest {
                Scanned::Skills(scan) => Some(scan),
                Scanned::Agents(_) => None,
            });
            let scan = source::scan_skills(root, before);
            let young = scan.needs_second_look(began);
            (Scanned::Skills(scan), young)
        }
        RootKind::Agents => {
            let before = latest.and_then(|latest| match latest {
                Scanned::Agents(scan) => Some(scan),
                Scanned::Skills(_) => None,
            });
            (Scanned::Agents(source::scan_agents(root, before)), false)
        }
    }
}
