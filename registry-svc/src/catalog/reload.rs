//! The one task that looks at the roots: at first, on demand, at every interval, when files are notified to have changed,
//! and once more where a file was very young. It makes the next catalog beside the current one and swaps them.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::load::{self, Scanned};
use super::log;
use super::scanner::{ROOT_TIMEOUT, Scanner};
use super::snapshot::{Catalog, Difference};
use super::watch::Unnotified;
use crate::source::{Host, Look, Root};

/// Notifications come in bursts: after the last of one, but never later than `LONGEST_BURST` after the first.
const BURST_END: Duration = Duration::from_millis(100);
const LONGEST_BURST: Duration = Duration::from_secs(1);
/// A file younger than that may change within the resolution of its times.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// Callers of `Reload` that wait at once; others wait for a place.
const REQUESTS: usize = 64;

/// The current catalog, and the way to ask for the next.
#[derive(Clone, Debug)]
pub struct Catalogs {
    current: watch::Receiver<Option<Arc<Catalog>>>,
    requests: mpsc::Sender<oneshot::Sender<Reloaded>>,
    hint: Arc<Notify>,
    unnotified: watch::Receiver<UnnotifiedRoots>,
}

/// Why changes may be seen at the next rescan only, root by root in their order.
type UnnotifiedRoots = Arc<[Option<Unnotified>]>;

/// What a reload made.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// The catalog after it.
    pub catalog: Arc<Catalog>,
    /// How its skills differ from those before.
    pub difference: Difference,
}

/// Why there is no catalog to answer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The roots are looked at for the first time.
    #[error("the skills are being loaded: try again in a moment")]
    NotLoaded,
    /// Nothing is looked at any more.
    #[error("the registry is stopping: try another one, or try again when it is back")]
    Stopping,
}

/// Catalogs of these roots, and the task that makes them, which runs until it is dropped.
pub fn start(roots: Vec<Root>, rescan: Duration) -> (Catalogs, impl Future<Output = ()> + Send) {
    start_with(Look::default(), roots, rescan)
}

/// The same, on a host against which what playbooks require is held.
pub fn start_on(host: Host, roots: Vec<Root>, rescan: Duration) -> (Catalogs, impl Future<Output = ()> + Send) {
    start_with(Look { host: Some(host), ..Look::default() }, roots, rescan)
}

fn start_with(look: Look, roots: Vec<Root>, rescan: Duration) -> (Catalogs, impl Future<Output = ()> + Send) {
    let (publish, current) = watch::channel(None);
    let (sender, requests) = mpsc::channel(REQUESTS);
    let hint = Arc::new(Notify::new());
    let scanners = roots.into_iter().map(|root| Scanner::new(look.clone(), root, Arc::clone(&hint))).collect();
    let (say, unnotified) = watch::channel(UnnotifiedRoots::default());
    let loader = Loader { scanners, publish, requests, hint: Arc::clone(&hint), rescan, unnotified: say };
    (Catalogs { current, requests: sender, hint, unnotified }, loader.run())
}

impl Catalogs {
    /// The current catalog.
    ///
    /// # Errors
    /// There is none yet.
    pub fn current(&self) -> Result<Arc<Catalog>, Unavailable> {
        self.current.borrow().clone().ok_or(Unavailable::NotLoaded)
    }

    /// The current catalog and those to come; it ends when the registry stops.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Catalog>>> {
        self.current.clone()
    }

    /// Looks at the roots, beginning now or later, and answers with the catalog of what was found.
    ///
    /// # Errors
    /// The registry is stopping.
    pub async fn reload(&self) -> Result<Reloaded, Unavailable> {
        let (sender, answer) = oneshot::channel();
        self.requests.send(sender).await.map_err(|_| Unavailable::Stopping)?;
        answer.await.map_err(|_| Unavailable::Stopping)
    }

    /// Why changes under the roots may be seen at the next rescan only: a root a place, in their order, as at the last look.
    #[must_use]
    pub fn unnotified(&self) -> Arc<[Option<Unnotified>]> {
        self.unnotified.borrow().clone()
    }

    /// Says that files may have changed.
    pub fn hint(&self) {
        self.hint.notify_one();
    }
}

struct Loader {
    scanners: Vec<Scanner>,
    publish: watch::Sender<Option<Arc<Catalog>>>,
    requests: mpsc::Receiver<oneshot::Sender<Reloaded>>,
    hint: Arc<Notify>,
    rescan: Duration,
    unnotified: watch::Sender<UnnotifiedRoots>,
}

impl Loader {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        let mut second_look = false;
        loop {
            let Looked { reloaded, is_new, look_again } = self.look().await;
            for caller in waiting.drain(..) {
                // A caller that has gone needs no answer.
                let _: Result<(), Reloaded> = oneshot::Sender::send(caller, reloaded.clone());
            }
            // It is answered from already; what a search needs is ready before the next look. Until that nobody but
            // readers holds the catalog.
            on_a_thread(move || reloaded.catalog.prepare()).await;
            // One more look settles what was young; another is due only where it found something new.
            let settle = look_again && (!second_look || is_new);
            let rescan_at = Instant::now() + self.rescan;
            let settle_at = settle.then(|| Instant::now() + SECOND_LOOK);
            second_look = match self.wait(rescan_at, settle_at, &mut waiting).await {
                Some(why) => {
                    tracing::debug!(?why, "looking at the roots");
                    why == Why::SecondLook
                }
                // Nobody is left who could ask for a catalog.
                None => return,
            };
        }
    }

    /// Waits for a reason to look again.
    async fn wait(
        &mut self,
        rescan_at: Instant,
        settle_at: Option<Instant>,
        waiting: &mut Vec<oneshot::Sender<Reloaded>>,
    ) -> Option<Why> {
        let mut burst: Option<(Instant, Instant)> = None;
        loop {
            let times = [
                Some((rescan_at, Why::Rescan)),
                settle_at.map(|at| (at, Why::SecondLook)),
                burst.map(|(_, end)| (end, Why::Notified)),
            ];
            let (due, why) = times.into_iter().flatten().min_by_key(|(at, _)| *at)?;
            tokio::select! {
                request = self.requests.recv() => {
                    waiting.push(request?);
                    while let Ok(more) = self.requests.try_recv() {
                        waiting.push(more);
                    }
                    return Some(Why::Asked);
                }
                () = sleep_until(due) => return Some(why),
                () = self.hint.notified() => {
                    let now = Instant::now();
                    let (first, _) = burst.unwrap_or((now, now));
                    burst = Some((first, (now + BURST_END).min(first + LONGEST_BURST)));
                }
            }
        }
    }

    /// Looks at every root and publishes what was found.
    async fn look(&mut self) -> Looked {
        let loaded_at = SystemTime::now();
        let deadline = Instant::now() + ROOT_TIMEOUT;
        for scanner in &mut self.scanners {
            scanner.start().await;
        }
        let mut scans = Vec::with_capacity(self.scanners.len());
        let mut look_again = false;
        for scanner in &mut self.scanners {
            let known = scanner.wait(deadline).await;
            look_again |= known.look_again;
            scans.push(known.scanned);
        }
        self.say_unnotified();
        let before = self.publish.borrow().clone();
        let (catalog, difference, is_new) = on_a_thread(move || make(&scans, loaded_at, before.as_deref())).await;
        self.publish.send_replace(Some(Arc::clone(&catalog)));
        Looked { reloaded: Reloaded { catalog, difference }, is_new, look_again }
    }
}

impl Loader {
    /// Passes on what is not notified, and says so once, however many roots it is, and once when it is over.
    fn say_unnotified(&self) {
        let now: UnnotifiedRoots = self.scanners.iter().map(|scanner| scanner.unnotified().cloned()).collect();
        let before = self.unnotified.send_replace(Arc::clone(&now));
        let causes = |roots: &UnnotifiedRoots| roots.iter().flatten().cloned().collect::<BTreeSet<_>>();
        let (now, before) = (causes(&now), causes(&before));
        for cause in now.difference(&before) {
            let rescan = humantime::format_duration(self.rescan);
            tracing::warn!(
                "not every change of a file is notified, and is then seen at the next rescan, every {rescan}: {cause}"
            );
        }
        if now.is_empty() && !before.is_empty() {
            tracing::info!("every change of a file is notified again");
        }
    }
}

/// Makes a catalog of what was found, says so, and how its skills differ from before, and whether it is another version.
fn make(scans: &[Arc<Scanned>], loaded_at: SystemTime, before: Option<&Catalog>) -> (Arc<Catalog>, Difference, bool) {
    let catalog = Arc::new(load::load(scans, loaded_at, before));
    log::log(before.map(Catalog::report), catalog.report());
    let is_new = before.map(Catalog::version) != Some(catalog.version());
    if is_new {
        let (registered, skipped) = catalog.report().counts();
        tracing::info!(version = %catalog.version(), registered, skipped, "the catalog is that of the files");
    }
    let difference = catalog.difference(before);
    (catalog, difference, is_new)
}

/// With many skills it takes longer than the runtime's threads may be held.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// What a look came to.
struct Looked {
    reloaded: Reloaded,
    /// It is another version than before.
    is_new: bool,
    /// A file was so young that one more look is due.
    look_again: bool,
}

/// Why the roots are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Asked,
    Notified,
    Rescan,
    SecondLook,
}
