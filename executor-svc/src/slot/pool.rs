//! The executor's side of the slots: idle ones are kept, new ones started when none is idle, bad ones ended and never
//! used again. Knows no run: what a job is, how long it may take and what becomes of its output is the caller's.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recv, send, sendmsg, shutdown, socketpair, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::protocol::{self, MAX_MESSAGE, MAX_SHORT, NO_JOB, Order, Report};
use super::reaper::{Reaper, Ward};
use super::{Job, SlotEvent, Stdio, spawn};

/// How a pool starts its slots.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// What is started as `PROGRAM slot`; absolute. By default the program that runs.
    pub program: PathBuf,
    /// Whether slots take the kernel's signal scope, where it has one. Without it trees are ended by walking /proc.
    pub signal_scope: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { program: PathBuf::from("/proc/self/exe"), signal_scope: true }
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
pub struct Pool(Arc<Shared>);

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
        Ok(Slot { pool: self.clone(), worker: Some(worker), phase: Phase::Idle })
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

/// A slot that is taken. Dropped, it is kept for the next one if its job is over; if not, it ends with what it runs.
#[derive(Debug)]
pub struct Slot {
    pool: Pool,
    /// `None` only once lost for good: while a replacement could not be started.
    worker: Option<Worker>,
    phase: Phase,
}

/// Where a slot's job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none, or it is over with all its descendants.
    Idle,
    Running,
    Lost,
}

impl Slot {
    /// Has the slot start `job`. The pipes' ends are the skill's alone afterwards, or closed. A slot that ended since it
    /// was taken is replaced.
    ///
    /// # Errors
    /// All of [`SlotError`]. Nothing was started then, and the slot can take another job, unless it was
    /// [`SlotError::Busy`].
    pub fn start(&mut self, job: &Job<'_>, stdio: Stdio) -> Result<(), SlotError> {
        if self.phase != Phase::Idle {
            return Err(SlotError::Busy);
        }
        let size = protocol::start_size(job);
        let too_large =
            || SlotError::JobTooLarge { size, environment: protocol::environment_size(job), limit: MAX_MESSAGE };
        if size > MAX_MESSAGE {
            return Err(too_large());
        }
        let mut failure = Errno::PIPE;
        for _ in 0..2 {
            let worker = match &mut self.worker {
                Some(worker) => worker,
                vacant => {
                    let fresh = self.pool.0.start_worker()?;
                    self.pool.0.engage(&fresh);
                    vacant.insert(fresh)
                }
            };
            match worker.start(job, size, &stdio) {
                Ok(()) => {
                    self.phase = Phase::Running;
                    return Ok(());
                }
                Err(Errno::MSGSIZE) => return Err(too_large()),
                // The message did not arrive, so that it may be given to another.
                Err(error) => {
                    failure = error;
                    if let Some(worker) = self.worker.take() {
                        self.pool.0.dismiss(worker);
                    }
                }
            }
        }
        Err(SlotError::Unresponsive(failure.into()))
    }

    /// What the slot says next of its job. Cancel-safe: nothing is lost when the future is dropped. Waits for ever while
    /// the slot has no job and lives.
    pub async fn next(&mut self) -> SlotEvent {
        let event = match &self.worker {
            Some(worker) if self.phase != Phase::Lost => worker.next().await,
            _ => SlotEvent::Lost,
        };
        match event {
            SlotEvent::SpawnFailed { .. } | SlotEvent::Clean | SlotEvent::Exited { left: false, .. } => {
                self.phase = Phase::Idle;
            }
            SlotEvent::Lost => self.phase = Phase::Lost,
            SlotEvent::Started { .. } | SlotEvent::Exited { left: true, .. } => {}
        }
        event
    }

    /// SIGTERM, and SIGCONT for those that are stopped, to the whole tree of the job. Its exit is still reported.
    pub fn terminate(&self) {
        self.order(Order::Terminate);
    }

    /// SIGKILL to the whole tree of the job. Its exit is still reported.
    pub fn kill(&self) {
        self.order(Order::Kill);
    }

    /// After an exit with descendants left: ends them. [`SlotEvent::Clean`] follows.
    pub fn sweep(&self) {
        self.order(Order::Sweep);
    }

    fn order(&self, order: Order) {
        if let (Phase::Running, Some(worker)) = (self.phase, &self.worker) {
            worker.order(order);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        if self.phase == Phase::Idle { self.pool.0.keep(worker) } else { self.pool.0.dismiss(worker) }
    }
}

/// How long a slot that is dismissed has to end its tree and itself.
const DISMISSED_FOR: Duration = Duration::from_millis(500);

/// How long a pool waits for its first slot.
const READY_WITHIN: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

#[derive(Debug)]
struct Shared {
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
    fn start_worker(&self) -> Result<Worker, SlotError> {
        let program = &self.options.program;
        let start = || -> io::Result<Worker> {
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            // The system's default may be smaller than a message; what cannot be had is found out by sending.
            let _ = sockopt::set_socket_send_buffer_size(&ours, MAX_MESSAGE);
            let socket = Arc::new(ours);
            let watched = watch(Arc::clone(&socket))?;
            let ward = self.reaper.raise(self.pool, || spawn::slot(program, self.options.signal_scope, theirs))?;
            Ok(Worker { ward, socket, watched, last_job: NO_JOB, message: Vec::new() })
        };
        start().map_err(|source| SlotError::Spawn { program: program.clone(), source })
    }

    /// Waits for a fresh slot's first word, and returns whether its signals are scoped.
    fn await_ready(&self, worker: &Worker) -> io::Result<bool> {
        let mut watched = [PollFd::new(&worker.socket, PollFlags::IN)];
        while poll(&mut watched, Some(&READY_WITHIN)) == Err(Errno::INTR) {}
        let mut buffer = [0; MAX_SHORT];
        let length = recv(&worker.socket, &mut buffer[..], RecvFlags::DONTWAIT).map_or(0, |(length, _)| length);
        match protocol::decode_report(&buffer[..length]) {
            Some((NO_JOB, Report::Ready { signal_scope })) => Ok(signal_scope),
            _ => {
                self.reaper.kill(worker.ward);
                let program = self.options.program.display();
                Err(io::Error::other(format!("`{program} slot` did not become a slot; see its words above")))
            }
        }
    }

    fn engage(&self, worker: &Worker) {
        self.state().taken.insert(worker.ward, Arc::downgrade(&worker.socket));
    }

    fn keep(&self, worker: Worker) {
        let mut state = self.state();
        state.taken.remove(&worker.ward);
        if state.closed {
            drop(state);
            self.end(worker);
        } else {
            state.idle.push(worker);
        }
    }

    fn dismiss(&self, worker: Worker) {
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

/// Only reading is watched: with writing, each job that is read would wake the runtime.
#[expect(deprecated, reason = "the successor is unsafe for what lies about its descriptor; an OwnedFd does not")]
fn watch(socket: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

/// A slot process and the socket to it. Dropped, the process sees the socket close.
#[derive(Debug)]
struct Worker {
    ward: Ward,
    socket: Arc<OwnedFd>,
    watched: AsyncFd<Arc<OwnedFd>>,
    /// Jobs are numbered, so that a late message meets no other job than its own.
    last_job: u64,
    message: Vec<u8>,
}

impl Worker {
    fn start(&mut self, job: &Job<'_>, size: usize, stdio: &Stdio) -> Result<(), Errno> {
        self.last_job += 1;
        self.message.clear();
        self.message.reserve(size);
        protocol::encode_start(&mut self.message, self.last_job, job);
        let descriptors = [stdio.stdin.as_fd(), stdio.stdout.as_fd(), stdio.stderr.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(&self.message)], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// A slot that is gone, or reads nothing, is found out by its silence.
    fn order(&self, order: Order) {
        let mut message = Vec::with_capacity(MAX_SHORT);
        protocol::encode_order(&mut message, self.last_job, order);
        while send(&self.socket, &message, SendFlags::NOSIGNAL) == Err(Errno::INTR) {}
    }

    async fn next(&self) -> SlotEvent {
        loop {
            let mut buffer = [0; MAX_SHORT];
            let received = self
                .watched
                .async_io(Interest::READABLE, |socket| Ok(recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)?.0))
                .await;
            let length = match received {
                Ok(0) | Err(_) => return SlotEvent::Lost,
                Ok(length) => length,
            };
            match protocol::decode_report(&buffer[..length]) {
                Some((number, report)) if number == self.last_job => {
                    if let Some(event) = report.event() {
                        return event;
                    }
                }
                // A late word on a job that is over, or a fresh slot's first.
                Some(_) => {}
                None => return SlotEvent::Lost,
            }
        }
    }
}
