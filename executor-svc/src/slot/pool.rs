//! The executor's side of the slots: idle ones are kept, new ones started when none is idle, bad ones ended and never
//! used again. Knows no run: what a job is, how long it may take and what becomes of its output is the caller's.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::net::{Shutdown, shutdown};
use tokio::runtime::Handle;

use super::handle::Slot;
use super::limits::Limits;
use super::reaper::{Reaper, Ward};
use super::worker::Worker;

/// How a pool starts its slots.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// What is started as `PROGRAM slot`; absolute. By default the program that runs.
    pub program: PathBuf,
    /// Whether slots take the kernel's signal scope, where it has one. Without it trees are ended by walking /proc.
    pub signal_scope: bool,
    /// What one run may use.
    pub limits: Limits,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { program: PathBuf::from("/proc/self/exe"), signal_scope: true, limits: Limits::default() }
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
    /// child from now on. Starts a first slot, to see that it works and what it is confined by, and keeps it; blocks
    /// until then, a few milliseconds as a rule. To be called in a tokio runtime, as everything here.
    ///
    /// # Errors
    /// The thread cannot be started, or the slot cannot, or does not answer in 10 s.
    pub fn with(options: PoolOptions) -> io::Result<Self> {
        let reaper = Reaper::get()?;
        let pool = reaper.new_pool();
        let mut shared = Shared { options, reaper, pool, signal_scope: false, state: Mutex::default() };
        let worker = shared.start_worker().map_err(io::Error::other)?;
        shared.signal_scope = shared.await_ready(&worker)?;
        shared.state().idle.push(worker);
        Ok(Self(Arc::new(shared)))
    }

    /// An idle slot, or a fresh one, which costs a posix_spawn.
    ///
    /// # Errors
    /// [`SlotError::Spawn`] and [`SlotError::ShutDown`].
    pub fn take(&self) -> Result<Slot, SlotError> {
        let worker = loop {
            let idle = {
                let mut state = self.0.state();
                if state.closed {
                    return Err(SlotError::ShutDown);
                }
                state.idle.pop()
            };
            match idle {
                Some(worker) if self.0.reaper.is_alive(worker.ward) => break worker,
                Some(_) => {}
                None => break self.0.start_worker()?,
            }
        };
        self.0.engage(&worker);
        Ok(Slot::new(self.clone(), worker))
    }

    /// What slots are confined by, as the first one found it: `signals` where no signal leaves a slot's tree.
    pub fn isolation(&self) -> Vec<String> {
        if self.0.signal_scope { vec!["signals".into()] } else { Vec::new() }
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

/// How long a pool waits for its first slot.
const READY_WITHIN: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

#[derive(Debug)]
pub(super) struct Shared {
    options: PoolOptions,
    reaper: Arc<Reaper>,
    /// This pool's number with the reaper.
    pool: u64,
    signal_scope: bool,
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
    pub(super) fn start_worker(&self) -> Result<Worker, SlotError> {
        Worker::spawn(&self.reaper, self.pool, &self.options)
            .map_err(|source| SlotError::Spawn { program: self.options.program.clone(), source })
    }

    /// Waits for a fresh slot's first word, and returns whether its signals are scoped.
    fn await_ready(&self, worker: &Worker) -> io::Result<bool> {
        worker.await_ready(READY_WITHIN).ok_or_else(|| {
            self.reaper.kill(worker.ward);
            let program = self.options.program.display();
            io::Error::other(format!("`{program} slot` did not become a slot; see its words above"))
        })
    }

    pub(super) fn engage(&self, worker: &Worker) {
        self.state().taken.insert(worker.ward, Arc::downgrade(&worker.socket));
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
