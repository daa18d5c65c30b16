//! The executor's side of the slots: idle ones are kept, new ones started when none is idle, bad ones ended and never
//! used again. Knows no run: what a job is, how long it may take and what becomes of its output is the caller's.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::test_kill_process;
use tokio::runtime::Handle;

use super::announced::Announced;
use super::handle::Slot;
use super::limits::Limits;
use super::reaper::{Reaper, Ward};
use super::scratch::SlotScratch;
use super::settings::{Settings, SlotFiles};
use super::way::Way;
use super::worker::{Nature, Worker};
use crate::isolation::{Files, Flavour, Isolation};

/// How a pool starts its slots.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// What is started as `PROGRAM slot`; absolute. By default the program that runs.
    pub program: PathBuf,
    /// Slots that exist at once: an idle one of another flavour makes room. More exist when more are taken.
    pub slots: usize,
    /// Whether slots take the kernel's signal scope, where it has one. Without it trees are ended by walking /proc.
    pub signal_scope: bool,
    /// What slots are confined by.
    pub isolation: Isolation,
    /// What one run may use.
    pub limits: Limits,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            slots: usize::MAX,
            signal_scope: true,
            isolation: Isolation::default(),
            limits: Limits::default(),
        }
    }
}

/// Why a slot could not be had, or could not take a job.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// The slot process could not be started.
    #[error("slot process {} cannot be started: {source}", program.display())]
    Spawn {
        /// What was started.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A fresh slot did not report that it is confined as was announced.
    #[error("a fresh {0} slot did not become one as confined as GetStatus says; the log has its words")]
    Unfit(Flavour),
    /// Two fresh slots in turn ended, or were silent, before they were any.
    #[error(
        "fresh {0} slots end before they are ready, two in turn: the log has their words; look for a limit on processes or \
         memory, and for what kills them"
    )]
    Gone(Flavour),
    /// There is no directory for the slot.
    #[error("no scratch directory can be made for a slot: {0}")]
    Scratch(io::Error),
    /// The job does not fit a message.
    #[error(
        "the job takes {size} bytes, {environment} of them its environment, and a slot takes at most {limit}: \
         list fewer or shorter variables in env_allow"
    )]
    JobTooLarge {
        /// Bytes that the job takes.
        size: usize,
        /// Bytes of these that its environment takes.
        environment: usize,
        /// The most that it may take, in bytes.
        limit: usize,
    },
    /// The slot has a job, or was lost.
    #[error("the slot's last job is not over")]
    Busy,
    /// Two slots in turn did not take the job.
    #[error("slots do not take jobs: {0}; look for a limit on processes or memory")]
    Unresponsive(io::Error),
    /// The pool was shut down.
    #[error("the slots are shut down")]
    ShutDown,
}

/// The slots of an executor. Clones share them; the last one to go ends them.
#[derive(Clone, Debug)]
pub struct Pool(pub(super) Arc<Shared>);

impl Pool {
    /// A pool of `program`'s slots. See [`Pool::with`].
    ///
    /// # Errors
    /// Those of [`Pool::with`].
    pub fn new(program: PathBuf) -> io::Result<Self> {
        Self::with(PoolOptions { program, ..PoolOptions::default() })
    }

    /// Makes this process a subreaper whose children are all waited for by one thread: nothing else in it may wait for a
    /// child from now on. Starts a slot of each flavour, to see that it works and what it is confined by, and keeps the
    /// first; blocks until then, some milliseconds as a rule. To be called in a tokio runtime, as everything here.
    ///
    /// # Errors
    /// The thread cannot be started, or a slot cannot, or does not answer in 10 s, or is less confined than required.
    pub fn with(options: PoolOptions) -> io::Result<Self> {
        let reaper = Reaper::get()?;
        let pool = reaper.new_pool();
        if let Some(files) = &options.isolation.files {
            let scratch = files.state.join(SCRATCH);
            fs::create_dir_all(&scratch)?;
            // Whoever skills run as goes through it to the directory of their slot, and lists nothing.
            fs::set_permissions(&scratch, Permissions::from_mode(0o711))?;
        }
        let way = Mutex::new(Way::to(
            &closed(&options.isolation),
            options.isolation.files.as_ref().map(|files| files.state.join(STORE)),
        ));
        let (announced, state) = (Announced::default(), Mutex::default());
        let modes = options.isolation.files.as_ref().map(modes).unwrap_or_default();
        let mut shared =
            Shared { options, reaper, pool, announced, way, modes, last_scratch: AtomicU64::new(0), state };
        let safe = shared.probe(Flavour::Safe)?;
        let others = [Flavour::Writing, Flavour::SelfConfined].into_iter();
        let any_self_confined = !shared.options.isolation.self_confined.is_empty();
        for flavour in others.filter(|flavour| *flavour == Flavour::Writing || any_self_confined) {
            let worker = shared.probe(flavour)?;
            shared.dismiss(worker);
        }
        shared.announced.check(&shared.options.isolation)?;
        shared.keep(safe);
        Ok(Self(Arc::new(shared)))
    }

    /// An idle slot of this flavour, or a fresh one, which costs the start of a process.
    ///
    /// # Errors
    /// [`SlotError::Spawn`], [`SlotError::Scratch`], [`SlotError::Unfit`], [`SlotError::Gone`] and
    /// [`SlotError::ShutDown`].
    pub async fn take(&self, flavour: Flavour) -> Result<Slot, SlotError> {
        let worker = match self.0.idle(flavour)? {
            Some(worker) => worker,
            None => self.0.fresh(flavour).await?,
        };
        Ok(Slot::new(self.clone(), worker))
    }

    /// The flavour of a skill's slots. `writes` for mutating and dangerous ones.
    #[must_use]
    pub fn flavour(&self, skill: &str, writes: bool) -> Flavour {
        self.0.options.isolation.flavour(skill, writes)
    }

    /// What slots are confined by, as the first ones found it; for people, and with the levels by their names.
    #[must_use]
    pub fn isolation(&self) -> Vec<String> {
        self.0.announced.told(&self.0.options.isolation)
    }

    /// What one run may use.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.0.options.limits
    }

    /// Directories in which no skill can make anything new, where files are confined: they lead to what is closed.
    #[must_use]
    pub fn way(&self) -> Vec<PathBuf> {
        let way = self.0.way.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.announced.common().files { way.directories().map(Path::to_owned).collect() } else { Vec::new() }
    }

    /// Slots that exist and are idle, and slots that are taken.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.0.state();
        (state.idle.len(), state.taken.len())
    }

    /// Ends all slots with whatever they run, and returns at once. What is running sees `Lost`.
    pub fn shutdown(&self) {
        self.0.close();
    }

    /// After [`Pool::shutdown`]: waits, blocking, until all slots have ended with their trees, and returns whether they
    /// have.
    pub fn ended(&self, limit: Duration) -> bool {
        self.0.reaper.ended(self.0.pool, limit)
    }
}

/// How long a slot that is dismissed has to end its tree and itself.
const DISMISSED_FOR: Duration = Duration::from_millis(500);

/// How long a fresh slot has to say that it is one.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// In the state directory: packages, and the directories of the slots.
const STORE: &str = "store";
const SCRATCH: &str = "scratch";

#[derive(Debug)]
pub(super) struct Shared {
    options: PoolOptions,
    reaper: Arc<Reaper>,
    /// This pool's number with the reaper.
    pool: u64,
    announced: Announced,
    way: Mutex<Way>,
    /// What slots must get at, with the rights that it had at the start: a writing skill of the same user may have taken
    /// them away.
    modes: Vec<(PathBuf, Permissions)>,
    /// Slots have their directories one after the other: what the dead one before left behind is in its own.
    last_scratch: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// The last one used is the next one used: it is warm.
    idle: Vec<Worker>,
    taken: HashMap<Ward, Weak<OwnedFd>>,
}

impl Shared {
    /// The first slot of a flavour. What it is confined by, all others of it must be.
    fn probe(&mut self, flavour: Flavour) -> io::Result<Worker> {
        let nature = self.nature(flavour).map_err(io::Error::other)?;
        let worker = self.start_worker(nature).map_err(io::Error::other)?;
        let in_force = worker.await_ready(READY_WITHIN).ok_or_else(|| {
            self.reaper.kill(worker.ward);
            let program = self.options.program.display();
            io::Error::other(format!("`{program} slot` did not become a slot ({flavour}); see its words above"))
        })?;
        if test_kill_process(worker.ward.pid) == Err(Errno::PERM) {
            let why = "this process may not signal its slots: to have them run as another user, it needs CAP_KILL";
            return Err(io::Error::other(why));
        }
        self.announced.set(flavour, in_force);
        Ok(worker)
    }

    /// An idle slot of this flavour that has not ended, and was granted what there is now.
    fn idle(&self, flavour: Flavour) -> Result<Option<Worker>, SlotError> {
        let edition = self.way.lock().unwrap_or_else(PoisonError::into_inner).edition(flavour);
        loop {
            let worker = {
                let mut state = self.state();
                if state.closed {
                    return Err(SlotError::ShutDown);
                }
                let Some(at) = state.idle.iter().rposition(|worker| worker.nature.flavour == flavour) else {
                    return Ok(None);
                };
                let worker = state.idle.remove(at);
                state.taken.insert(worker.ward, Arc::downgrade(&worker.socket));
                worker
            };
            if worker.nature.edition == edition && self.reaper.is_alive(worker.ward) {
                return Ok(Some(worker));
            }
            self.dismiss(worker);
        }
    }

    /// A new slot. One that ends before its first word is replaced once: it may have been killed from outside.
    async fn fresh(&self, flavour: Flavour) -> Result<Worker, SlotError> {
        for _ in 0..2 {
            self.make_room();
            self.modes.iter().for_each(|(path, mode)| restore(path, mode));
            let worker = self.start_worker(self.nature(flavour)?)?;
            let in_force = worker.ready(READY_WITHIN).await;
            if self.state().closed {
                self.dismiss(worker);
                return Err(SlotError::ShutDown);
            }
            if in_force == Some(self.announced.of(flavour)) {
                return Ok(worker);
            }
            self.reaper.kill(worker.ward);
            self.dismiss(worker);
            if in_force.is_some() {
                return Err(SlotError::Unfit(flavour));
            }
        }
        Err(SlotError::Gone(flavour))
    }

    /// Ends the idle slot that was used least lately, if there are as many as there may be.
    fn make_room(&self) {
        let worker = {
            let mut state = self.state();
            let full = state.idle.len() + state.taken.len() >= self.options.slots;
            (full && !state.idle.is_empty()).then(|| state.idle.remove(0))
        };
        if let Some(worker) = worker {
            self.end(worker);
        }
    }

    /// What the next slot of a flavour is to be, with a directory of its own.
    fn nature(&self, flavour: Flavour) -> Result<Nature, SlotError> {
        let isolation = &self.options.isolation;
        let make = |files: &Files| {
            loop {
                let number = self.last_scratch.fetch_add(1, Ordering::Relaxed) + 1;
                let path = files.state.join(SCRATCH).join(number.to_string());
                match SlotScratch::make(path, isolation.run_as) {
                    // Of an executor that was killed.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => return made.map(Arc::new),
                }
            }
        };
        let scratch = isolation.files.as_ref().map(make).transpose().map_err(SlotError::Scratch)?;
        let edition = self.way.lock().unwrap_or_else(PoisonError::into_inner).edition(flavour);
        Ok(Nature { flavour, edition, scratch })
    }

    /// Starts a slot, which counts as taken from now on.
    pub(super) fn start_worker(&self, nature: Nature) -> Result<Worker, SlotError> {
        let PoolOptions { program, signal_scope, isolation, .. } = &self.options;
        let open = isolation.files.as_ref().zip(nature.scratch.as_ref());
        let files = open.map(|(files, scratch)| SlotFiles {
            closed: closed(isolation),
            readable: files.state.join(STORE),
            scratch: scratch.path().to_owned(),
            writable: files.writable.clone(),
        });
        let mut settings = Settings::new(isolation, nature.flavour, *signal_scope, files);
        settings.at_least = self.announced.of(nature.flavour);
        settings.limits = self.options.limits;
        let worker = Worker::spawn(&self.reaper, self.pool, program, &settings, nature)
            .map_err(|source| SlotError::Spawn { program: program.clone(), source })?;
        self.state().taken.insert(worker.ward, Arc::downgrade(&worker.socket));
        Ok(worker)
    }

    pub(super) fn keep(&self, worker: Worker) {
        let mut state = self.state();
        state.taken.remove(&worker.ward);
        if state.closed {
            drop(state);
            self.end(worker);
        } else {
            state.idle.push(worker);
        }
    }

    pub(super) fn dismiss(&self, worker: Worker) {
        self.state().taken.remove(&worker.ward);
        self.end(worker);
    }

    /// A slot whose socket closes ends its tree by one atomic call, and itself; one that does not is killed, and what it
    /// ran with it.
    fn end(&self, worker: Worker) {
        let ward = worker.ward;
        drop(worker);
        if let Ok(runtime) = Handle::try_current() {
            let reaper = Arc::clone(&self.reaper);
            runtime.spawn(async move {
                tokio::time::sleep(DISMISSED_FOR).await;
                reaper.kill(ward);
            });
        }
    }

    fn close(&self) {
        let (idle, taken) = {
            let mut state = self.state();
            state.closed = true;
            (std::mem::take(&mut state.idle), std::mem::take(&mut state.taken))
        };
        drop(idle);
        for socket in taken.into_values().filter_map(|socket| socket.upgrade()) {
            let _ = shutdown(&socket, Shutdown::Both);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

/// The directories of the state that slots go through, and their rights now.
fn modes(files: &Files) -> Vec<(PathBuf, Permissions)> {
    let paths = [files.state.clone(), files.state.join(STORE), files.state.join(SCRATCH)];
    let with_mode = |path: PathBuf| fs::metadata(&path).map(|found| (path, found.permissions())).ok();
    paths.into_iter().filter_map(with_mode).collect()
}

fn restore(path: &Path, mode: &Permissions) {
    if fs::metadata(path).is_ok_and(|found| found.permissions() != *mode) {
        match fs::set_permissions(path, mode.clone()) {
            Ok(()) => {
                tracing::warn!(path = %path.display(), "somebody changed the rights of a directory of the state: they are as before")
            }
            Err(error) => {
                tracing::error!(%error, path = %path.display(), "the rights of a directory of the state were changed, and cannot be changed back")
            }
        }
    }
}

/// What no skill may open. Links are followed anew for each slot: keys are rotated by turning them.
fn closed(isolation: &Isolation) -> Vec<PathBuf> {
    let Some(files) = &isolation.files else { return Vec::new() };
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    std::iter::once(&files.state).chain(&files.secrets).map(real).collect()
}
