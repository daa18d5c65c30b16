//! Looks at one root, on a thread that may block: one at a time, and never waited for longer than a deadline. A root
//! that does not answer keeps what was known of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::load::Scanned;
use super::watch::{Unnotified, Watch};
use crate::source::{self, Root, RootKind, RootState};
use skillyard::Source;

/// A root that has not answered in this time is unreadable for now.
pub(super) const ROOT_TIMEOUT: Duration = Duration::from_secs(10);

/// Looks at a root, given what is known of it.
type LookAt = Arc<dyn Fn(&Root, Option<&Scanned>) -> Scanned + Send + Sync>;

/// One root, and what is known of it.
pub(super) struct Scanner {
    root: Root,
    hint: Arc<Notify>,
    look: LookAt,
    /// What the last look that could read the root found.
    latest: Option<Arc<Scanned>>,
    /// Lent to the thread that looks.
    watch: Option<Watch>,
    /// Why changes may be seen at the next rescan only, at the last look.
    unnotified: Option<Unnotified>,
    running: Option<JoinHandle<Look>>,
    /// The look that runs was waited for in vain, and is not waited for again.
    overdue: bool,
}

/// What a thread brings back.
#[derive(Debug)]
struct Look {
    scanned: Scanned,
    watch: Watch,
}

/// What is known of a root after a look.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) scanned: Arc<Scanned>,
    pub(super) look_again: bool,
}

impl Scanner {
    pub(super) fn new(how: source::Look, root: Root, hint: Arc<Notify>) -> Self {
        Self::with(root, hint, Arc::new(move |root, latest| look(&how, root, latest)))
    }

    fn with(root: Root, hint: Arc<Notify>, look: LookAt) -> Self {
        Self { root, hint, look, latest: None, watch: None, unnotified: None, running: None, overdue: false }
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
        let (root, latest) = (self.root.clone(), self.latest.clone());
        let (hint, look) = (Arc::clone(&self.hint), Arc::clone(&self.look));
        let mut watch = self.watch.take().unwrap_or_else(|| {
            Watch::new(root.path.clone(), root.kind == RootKind::Skills(Source::Cloud), Arc::clone(&hint))
        });
        self.running = Some(tokio::task::spawn_blocking(move || {
            // First the watch: what changes during the look is notified.
            watch.renew();
            let began = Instant::now();
            let scanned = look(&root, latest.as_deref());
            if latest.is_none() && began.elapsed() > ROOT_TIMEOUT {
                // Nobody waits for it any more, and nothing else is known of this root.
                hint.notify_one();
            }
            Look { scanned, watch }
        }));
    }

    /// What the look that was started found, or what was known before where it takes too long.
    pub(super) async fn wait(&mut self, deadline: Instant) -> Known {
        let Some(running) = &mut self.running else {
            return self.known(self.empty(self.root.state));
        };
        let deadline = if self.overdue { Instant::now() } else { deadline };
        let Ok(look) = timeout_at(deadline, running).await else {
            self.overdue = true;
            return self.known(self.empty(RootState::Unreadable));
        };
        self.finish(look)
    }

    /// Why changes of this root may be seen at the next rescan only.
    pub(super) fn unnotified(&self) -> Option<&Unnotified> {
        self.unnotified.as_ref()
    }

    fn finish(&mut self, look: Result<Look, tokio::task::JoinError>) -> Known {
        (self.running, self.overdue) = (None, false);
        let Look { scanned, watch } = match look {
            Ok(look) => look,
            Err(error) => {
                tracing::error!(%error, "looking at {} failed", self.root.path.display());
                return self.known(self.empty(RootState::Unreadable));
            }
        };
        self.unnotified = watch.lack().cloned();
        self.watch = Some(watch);
        if scanned.root().state == RootState::Unreadable {
            return self.known(scanned);
        }
        let look_again = scanned.needs_second_look();
        let scanned = Arc::new(scanned);
        self.latest = Some(Arc::clone(&scanned));
        Known { scanned, look_again }
    }

    /// What was found last, after a look that found nothing out.
    fn known(&self, failed: Scanned) -> Known {
        let scanned = match &self.latest {
            Some(latest) => Scanned::clone(latest).kept(failed),
            None => failed,
        };
        Known { scanned: Arc::new(scanned), look_again: false }
    }

    fn empty(&self, state: RootState) -> Scanned {
        Scanned::empty(Root { state, ..self.root.clone() })
    }
}

fn look(how: &source::Look, root: &Root, latest: Option<&Scanned>) -> Scanned {
    match (root.kind, latest) {
        (RootKind::Skills(_), Some(Scanned::Skills(latest))) => {
            Scanned::Skills(source::scan_skills_with(how, root, Some(latest)))
        }
        (RootKind::Skills(_), _) => Scanned::Skills(source::scan_skills_with(how, root, None)),
        (RootKind::Agents, Some(Scanned::Agents(latest))) => Scanned::Agents(source::scan_agents(root, Some(latest))),
        (RootKind::Agents, _) => Scanned::Agents(source::scan_agents(root, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Scan;
    use std::sync::Mutex;
    use std::sync::mpsc;

    /// A root that answers when it is told to, with an agent's file of this name.
    fn root_that_waits() -> (Scanner, mpsc::Sender<Option<&'static str>>, Arc<Mutex<u32>>) {
        let root = Root { path: "/nowhere/agents".into(), kind: RootKind::Agents, state: RootState::Registered };
        let (tell, told) = mpsc::channel::<Option<&str>>();
        let (told, looks) = (Mutex::new(told), Arc::new(Mutex::new(0)));
        let counted = Arc::clone(&looks);
        let look = move |root: &Root, _: Option<&Scanned>| {
            *counted.lock().unwrap() += 1;
            let Some(name) = told.lock().unwrap().recv().unwrap() else { panic!("told to") };
            let candidate = source::Candidate {
                path: root.path.join(name).into(),
                name: name.into(),
                value: None,
                diagnostics: Vec::new(),
                failed: None,
            };
            Scanned::Agents(Scan::new(root.clone(), vec![candidate]))
        };
        (Scanner::with(root, Arc::default(), Arc::new(look)), tell, looks)
    }

    async fn look(scanner: &mut Scanner, patience: Duration) -> (RootState, Vec<String>) {
        scanner.start().await;
        let known = scanner.wait(Instant::now() + patience).await;
        let Scanned::Agents(scan) = known.scanned.as_ref() else { panic!("{known:?}") };
        (scan.root.state, scan.candidates.iter().map(|candidate| candidate.name.to_string()).collect())
    }

    async fn until_finished(scanner: &Scanner) {
        while !scanner.running.as_ref().unwrap().is_finished() {
            tokio::task::yield_now().await;
        }
    }

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_root_that_hangs_is_unreadable_until_it_answers() {
        let (mut scanner, tell, looks) = root_that_waits();
        assert_eq!(look(&mut scanner, SHORT).await, (RootState::Unreadable, vec![]));
        assert_eq!(look(&mut scanner, LONG).await, (RootState::Unreadable, vec![]), "it is waited for only once");
        assert_eq!(*looks.lock().unwrap(), 1, "one thread, not one more for every try");
        // What comes late is of before the question: it is looked at once more.
        tell.send(Some("late")).unwrap();
        until_finished(&scanner).await;
        tell.send(Some("now")).unwrap();
        assert_eq!(look(&mut scanner, LONG).await, (RootState::Registered, vec!["now".to_owned()]));
        assert_eq!(look(&mut scanner, SHORT).await, (RootState::Unreadable, vec!["now".to_owned()]), "it is kept");
        tell.send(Some("then")).unwrap();
        tell.send(Some("at last")).unwrap();
        until_finished(&scanner).await;
        assert_eq!(look(&mut scanner, LONG).await, (RootState::Registered, vec!["at last".to_owned()]));
    }

    #[tokio::test]
    async fn a_look_that_panics_harms_nothing_else() {
        let (mut scanner, tell, _) = root_that_waits();
        tell.send(None).unwrap();
        assert_eq!(look(&mut scanner, LONG).await, (RootState::Unreadable, vec![]));
    }

    #[tokio::test]
    async fn a_root_that_the_configuration_keeps_out_is_not_looked_at() {
        let (mut scanner, _tell, looks) = root_that_waits();
        scanner.root.state = RootState::NotEntitled;
        assert_eq!(look(&mut scanner, SHORT).await, (RootState::NotEntitled, vec![]));
        assert_eq!(*looks.lock().unwrap(), 0);
    }
}
