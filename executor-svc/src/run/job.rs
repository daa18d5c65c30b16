//! One run, from its place in the queue to its end: one loop that owns the slot, the pipes and every limit of time.

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use skillyard::service::error::{Reason, Refusal};
use tokio::net::unix::pipe;
use tracing::warn;

use crate::mirror::Held;
use crate::run::admission::{RETRY_AFTER, Ticket};
use crate::run::arguments::LARGE;
use crate::run::events::Event;
use crate::run::explain;
use crate::run::lines::{LineCutter, Piece};
use crate::run::outcome::{Cause, Finished, MAX_RESULT_BYTES, Remains, keep_tail};
use crate::run::progress;
use crate::run::table::Run;
use crate::slot::{self, Exit, Pool, Slot, SlotEvent, Stdio};

/// From SIGTERM to SIGKILL.
pub const GRACE: Duration = Duration::from_secs(2);
/// How long a run whose id the caller chose goes on without a reader.
pub const RECONNECT_WITHIN: Duration = Duration::from_secs(5);
/// After the leader's exit, for descendants to close the pipes.
const PIPES_CLOSE_WITHIN: Duration = Duration::from_millis(250);
/// A slot that has not obeyed a kill or a sweep for this long is given up.
const SLOT_OBEYS_WITHIN: Duration = Duration::from_millis(500);
/// A slot that has not started a process, or failed to, for this long is given up.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// Most bytes of one read, and so of one piece.
const READ_BYTES: usize = 64 << 10;

/// A run that was accepted.
#[derive(Debug)]
pub struct Job {
    /// Its entry in the table.
    pub run: Arc<Run>,
    /// Its place.
    pub ticket: Ticket,
    /// Its package, kept until it ends.
    pub package: Held,
    /// The executable, relative to the package.
    pub entry: String,
    /// Names of the variables that the manifest allows.
    pub env_allow: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// What it reads on stdin.
    pub arguments: Vec<u8>,
    /// Its limit, from Started.
    pub limit: Duration,
    /// The call's deadline.
    pub deadline: Option<Instant>,
    /// Where slots come from.
    pub pool: Pool,
}

impl Job {
    /// Runs it to its end.
    ///
    /// # Errors
    /// A refusal says that nothing was started.
    pub async fn execute(self) -> Result<(Finished, Option<Arc<str>>), Refusal> {
        let accepted = Instant::now();
        let Self { run, ticket, package, entry, env_allow, environment, arguments, limit, deadline, pool } = self;
        let mut patience = Patience { run: Arc::clone(&run), deadline, alone_since: None };
        let permit = {
            let mut slot = pin!(ticket.slot());
            loop {
                if let Err(cause) = patience.check(Instant::now()) {
                    let mut remains = Remains::default();
                    remains.figures.queued = accepted.elapsed();
                    return Ok((remains.ended_by(&cause, None), None));
                }
                tokio::select! {
                    biased;
                    permit = &mut slot => break permit?,
                    () = run.events.touched() => {}
                    () = until(patience.due()) => {}
                }
            }
        };
        let program = package.path().join(&entry);
        let job = slot::Job { program: &program, directory: package.path(), environment: &environment };
        let (mut slot, mut pipes) = start(&pool, &job).map_err(|error| {
            warn!(%error, "a run could not be given to a slot");
            let message = format!("the run could not be given to a slot process: {error}; nothing was started");
            if error.is_for_want_of_room() {
                Refusal::new(Reason::ExecutorFull, message).retry_after(RETRY_AFTER)
            } else {
                Refusal::new(Reason::Internal, message)
            }
        })?;
        pipes.write_arguments(arguments);
        let watch = Watch {
            run,
            patience,
            limit,
            accepted,
            started: None,
            phase: Phase::Starting { give_up: Instant::now() + STARTS_WITHIN },
            stop: None,
            exit: None,
            spawn_errno: None,
            cutter: LineCutter::default(),
            remains: Remains::default(),
        };
        let (remains, end) = watch.follow(&mut slot, &mut pipes).await;
        // The slot is free for the next run before the result is looked at.
        drop(slot);
        drop(permit);
        let conclude = move || {
            let _held = package;
            match end {
                End::Stopped(cause, exit) => (remains.ended_by(&cause, exit), None),
                End::SpawnFailed(errno) => {
                    (remains.spawn_failed(explain::spawn_failure(&entry, &program, errno)), None)
                }
                End::Exited(exit) => remains.exited(exit, |code| explain::exit_hint(code, &program, &env_allow)),
            }
        };
        let large = pipes.stdout_bytes > LARGE;
        let (finished, result) = if large {
            tokio::task::spawn_blocking(conclude).await.map_err(|error| {
                Refusal::new(Reason::Internal, format!("the result could not be looked at: {error}"))
            })?
        } else {
            conclude()
        };
        Ok((finished, result.map(Arc::from)))
    }
}

/// Makes the pipes and hands the job to a slot.
fn start(pool: &Pool, job: &slot::Job<'_>) -> Result<(Slot, Pipes), StartError> {
    let (stdin, stdin_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout_reader, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr_reader, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    for ours in [&stdin_writer, &stdout_reader, &stderr_reader] {
        rustix::io::ioctl_fionbio(ours, true)?;
    }
    let mut slot = pool.take()?;
    slot.start(job, Stdio { stdin, stdout, stderr })?;
    let pipes = Pipes {
        stdin: Stdin::Unwritten(stdin_writer),
        stdout: Some(pipe::Receiver::from_owned_fd_unchecked(stdout_reader)?),
        stderr: Some(pipe::Receiver::from_owned_fd_unchecked(stderr_reader)?),
        stdout_bytes: 0,
    };
    Ok((slot, pipes))
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("no pipe: {0}")]
    Pipe(#[from] rustix::io::Errno),
    #[error("no pipe: {0}")]
    Register(#[from] std::io::Error),
    #[error(transparent)]
    Slot(#[from] slot::SlotError),
}

impl StartError {
    /// Whether the system has no descriptor, process or memory left, and may have one when another run has ended.
    fn is_for_want_of_room(&self) -> bool {
        let errno = match self {
            Self::Pipe(errno) => Some(*errno),
            Self::Register(error) | Self::Slot(slot::SlotError::Spawn { source: error, .. }) => {
                rustix::io::Errno::from_io_error(error)
            }
            Self::Slot(_) => None,
        };
        use rustix::io::Errno;
        matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM))
    }
}

/// What may end a run from outside: its caller, by word, by deadline or by leaving.
struct Patience {
    run: Arc<Run>,
    deadline: Option<Instant>,
    alone_since: Option<Instant>,
}

impl Patience {
    fn check(&mut self, now: Instant) -> Result<(), Cause> {
        if let Some(cause) = self.run.stop_asked() {
            return Err(cause);
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Cause::Deadline);
        }
        if self.run.events.is_followed() {
            self.alone_since = None;
            return Ok(());
        }
        let since = *self.alone_since.get_or_insert(now);
        if self.run.named_by_caller && now < since + RECONNECT_WITHIN { Ok(()) } else { Err(Cause::CallerGone) }
    }

    /// When to check again at the latest.
    fn due(&self) -> Option<Instant> {
        earliest([self.deadline, self.alone_since.map(|since| since + RECONNECT_WITHIN)])
    }
}

/// The executor's ends of the pipes.
struct Pipes {
    stdin: Stdin,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    stdout_bytes: usize,
}

enum Stdin {
    Unwritten(OwnedFd),
    Writing { pipe: pipe::Sender, rest: Vec<u8>, written: usize },
    Closed,
}

impl Pipes {
    /// Small arguments fit into the pipe at once, and then nothing of stdin is left to watch.
    fn write_arguments(&mut self, arguments: Vec<u8>) {
        let Stdin::Unwritten(fd) = std::mem::replace(&mut self.stdin, Stdin::Closed) else { return };
        match rustix::io::write(&fd, &arguments) {
            Ok(n) if n == arguments.len() => {}
            Ok(written) => self.watch_stdin(fd, arguments, written),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => self.watch_stdin(fd, arguments, 0),
            // The skill closed its stdin: its exit decides.
            Err(_) => {}
        }
    }

    fn watch_stdin(&mut self, fd: OwnedFd, rest: Vec<u8>, written: usize) {
        match pipe::Sender::from_owned_fd_unchecked(fd) {
            Ok(pipe) => self.stdin = Stdin::Writing { pipe, rest, written },
            Err(error) => warn!(%error, "stdin is closed early"),
        }
    }

    fn write_more(&mut self) {
        if let Stdin::Writing { pipe, rest, written } = &mut self.stdin {
            match pipe.try_write(&rest[*written..]) {
                Ok(n) => *written += n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => *written = rest.len(),
            }
            if *written == rest.len() {
                self.stdin = Stdin::Closed;
            }
        }
    }

    fn are_at_end(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none()
    }
}

/// Where the process is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The slot has not answered.
    Starting { give_up: Instant },
    /// The leader lives.
    Running,
    /// The leader has exited; descendants may close the pipes by themselves until then.
    Exited { left: bool, until: Instant },
    /// The slot ends the descendants.
    Sweeping { give_up: Instant },
    /// No process is left that the slot knows; what is in the pipes is read, until then.
    Gone { until: Instant },
    /// All is read.
    Over,
}

/// A run that is being ended.
struct Stop {
    cause: Cause,
    kill_at: Option<Instant>,
    give_up: Option<Instant>,
}

/// How following ended.
enum End {
    Stopped(Cause, Option<Exit>),
    SpawnFailed(i32),
    Exited(Exit),
}

/// A run that holds a slot.
struct Watch {
    run: Arc<Run>,
    patience: Patience,
    limit: Duration,
    accepted: Instant,
    started: Option<Instant>,
    phase: Phase,
    stop: Option<Stop>,
    exit: Option<Exit>,
    spawn_errno: Option<i32>,
    cutter: LineCutter,
    remains: Remains,
}

impl Watch {
    async fn follow(mut self, slot: &mut Slot, pipes: &mut Pipes) -> (Remains, End) {
        let mut timer = pin!(tokio::time::sleep(Duration::MAX));
        let mut armed = None;
        let run = Arc::clone(&self.run);
        loop {
            // A stop or a timer is looked at here and nowhere else.
            let now = Instant::now();
            self.check_patience(slot, now);
            self.check_phase(slot, pipes, now);
            if self.phase == Phase::Over {
                break;
            }
            let room =
                if self.started.is_some() && pipes.stderr.is_some() { run.events.has_room(READ_BYTES) } else { Ok(()) };
            let due = earliest([self.due(), room.err()]);
            if due != armed {
                armed = due;
                let at = due.unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
                timer.as_mut().reset(at.into());
            }
            let log = self.started.is_some() && room.is_ok();
            tokio::select! {
                biased;
                event = slot.next(), if self.slot_speaks() => self.on_slot(event),
                () = readable(&pipes.stderr), if log && pipes.stderr.is_some() => self.read_stderr(pipes),
                () = readable(&pipes.stdout), if pipes.stdout.is_some() => self.read_stdout(pipes),
                () = writable(&pipes.stdin), if matches!(pipes.stdin, Stdin::Writing { .. }) => pipes.write_more(),
                () = run.events.touched() => {}
                () = &mut timer => armed = None,
            }
        }
        if let Some(piece) = self.cutter.finish() {
            self.log(piece);
        }
        self.remains.figures.queued = self.started.unwrap_or_else(Instant::now) - self.accepted;
        let end = match (self.stop, self.spawn_errno, self.exit) {
            (Some(stop), _, exit) => End::Stopped(stop.cause, exit),
            (None, Some(errno), _) => End::SpawnFailed(errno),
            (None, None, Some(exit)) => End::Exited(exit),
            (None, None, None) => End::Stopped(Cause::SlotLost, None),
        };
        (self.remains, end)
    }

    fn check_patience(&mut self, slot: &Slot, now: Instant) {
        if self.stop.is_none() && matches!(self.phase, Phase::Starting { .. } | Phase::Running) {
            if let Err(cause) = self.patience.check(now) {
                self.end(slot, cause, now);
            } else if self.started.is_some_and(|started| started + self.limit <= now) {
                self.end(slot, Cause::Timeout(self.limit), now);
            }
        }
        if let Some(stop) = &mut self.stop {
            if stop.kill_at.is_some_and(|at| at <= now) {
                stop.kill_at = None;
                stop.give_up = Some(now + SLOT_OBEYS_WITHIN);
                slot.kill();
            } else if stop.give_up.is_some_and(|at| at <= now) {
                self.give_up(now);
            }
        }
        if self.cutter.due().is_some_and(|due| due <= now)
            && let Some(piece) = self.cutter.flush()
        {
            self.log(piece);
        }
    }

    fn check_phase(&mut self, slot: &Slot, pipes: &mut Pipes, now: Instant) {
        let at_end = pipes.are_at_end();
        match self.phase {
            Phase::Exited { left: true, until } if at_end || until <= now => {
                slot.sweep();
                self.phase = Phase::Sweeping { give_up: now + GRACE };
            }
            Phase::Exited { left: false, until } | Phase::Gone { until } if at_end || until <= now => {
                self.read_what_is_there(pipes);
                self.phase = Phase::Over;
            }
            Phase::Starting { give_up } | Phase::Sweeping { give_up } if give_up <= now => self.give_up(now),
            _ => {}
        }
    }

    /// When to look again at the latest.
    fn due(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Starting { give_up } | Phase::Sweeping { give_up } => Some(give_up),
            Phase::Exited { until, .. } | Phase::Gone { until } => Some(until),
            Phase::Running | Phase::Over => None,
        };
        let ends = match &self.stop {
            Some(stop) => stop.kill_at.or(stop.give_up),
            None if matches!(self.phase, Phase::Starting { .. } | Phase::Running) => {
                earliest([self.patience.due(), self.started.map(|started| started + self.limit)])
            }
            None => None,
        };
        earliest([phase, ends, self.cutter.due()])
    }

    fn slot_speaks(&self) -> bool {
        matches!(self.phase, Phase::Starting { .. } | Phase::Running | Phase::Sweeping { .. })
    }

    fn end(&mut self, slot: &Slot, cause: Cause, now: Instant) {
        slot.terminate();
        self.stop = Some(Stop { cause, kill_at: Some(now + GRACE), give_up: None });
    }

    /// The slot does not do what it is told; dropped in this state, it is killed with all that it runs.
    fn give_up(&mut self, now: Instant) {
        if self.exit.is_none() {
            self.stop = Some(Stop { cause: Cause::SlotLost, kill_at: None, give_up: None });
        } else if let Some(stop) = &mut self.stop {
            (stop.kill_at, stop.give_up) = (None, None);
        }
        self.phase = Phase::Gone { until: now + PIPES_CLOSE_WITHIN };
    }

    fn on_slot(&mut self, event: SlotEvent) {
        let now = Instant::now();
        match event {
            SlotEvent::Started { pid } => {
                self.started = Some(now);
                self.phase = Phase::Running;
                self.run.started();
                self.run.events.push(Event::Started { pid });
            }
            SlotEvent::SpawnFailed { errno } => {
                self.spawn_errno = Some(errno);
                self.phase = Phase::Over;
            }
            SlotEvent::Exited { exit, usage, left } => {
                self.exit = Some(exit);
                self.remains.figures.usage = usage;
                self.remains.figures.wall = self.started.map(|started| now - started).unwrap_or_default();
                if let Some(stop) = &mut self.stop {
                    (stop.kill_at, stop.give_up) = (None, None);
                }
                self.phase = Phase::Exited { left, until: now + PIPES_CLOSE_WITHIN };
            }
            SlotEvent::Clean => self.phase = Phase::Gone { until: now + PIPES_CLOSE_WITHIN },
            SlotEvent::Lost => self.give_up(now),
        }
    }

    /// One read is one piece.
    fn read_stderr(&mut self, pipes: &mut Pipes) {
        let Some(pipe) = &pipes.stderr else { return };
        let more = with_buffer(|buffer| {
            let n = match pipe.try_read(buffer) {
                Ok(0) => return false,
                Ok(n) => n,
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            };
            self.remains.figures.stderr_bytes += n as u64;
            keep_tail(&mut self.remains.stderr_tail, &buffer[..n]);
            if let Some(piece) = self.cutter.push(&buffer[..n], Instant::now()) {
                self.log(piece);
            }
            true
        });
        if !more {
            pipes.stderr = None;
        }
    }

    fn log(&self, piece: Piece) {
        let told: Vec<_> = progress::all_in(&piece.text).collect();
        self.run.events.push(Event::Log { piece, dropped_lines: 0 });
        for progress in told {
            self.run.events.push(Event::Progress(progress));
        }
    }

    fn read_stdout(&mut self, pipes: &mut Pipes) {
        let Some(pipe) = &pipes.stdout else { return };
        let more = with_buffer(|buffer| {
            let n = match pipe.try_read(buffer) {
                Ok(0) => return false,
                Ok(n) => n,
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            };
            self.remains.figures.stdout_bytes += n as u64;
            pipes.stdout_bytes += n;
            let room = MAX_RESULT_BYTES - self.remains.stdout.len();
            self.remains.stdout.extend_from_slice(&buffer[..n.min(room)]);
            if n > room {
                self.too_much_output();
            }
            true
        });
        if !more {
            pipes.stdout = None;
        }
    }

    /// What the skill goes on to write is read and thrown away, so that it is not blocked while it ends.
    fn too_much_output(&mut self) {
        self.run.stop(Cause::OutputLimit);
        if self.exit.is_some() && self.stop.is_none() {
            self.stop = Some(Stop { cause: Cause::OutputLimit, kill_at: None, give_up: None });
        }
    }

    /// After the last process, without waiting: an end that somebody outside the tree holds open gives no end of file.
    fn read_what_is_there(&mut self, pipes: &mut Pipes) {
        for _ in 0..MAX_LAST_READS {
            let (stdout, stderr) = (self.remains.figures.stdout_bytes, self.remains.figures.stderr_bytes);
            self.read_stdout(pipes);
            self.read_stderr(pipes);
            if (stdout, stderr) == (self.remains.figures.stdout_bytes, self.remains.figures.stderr_bytes) {
                return;
            }
        }
    }
}

/// A pipe holds 64 KiB, or what its owner made of it; whoever still writes after its run is not listened to.
const MAX_LAST_READS: usize = 32;

fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    times.into_iter().flatten().min()
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

async fn readable(pipe: &Option<pipe::Receiver>) {
    match pipe {
        // An error shows again at the read.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

async fn writable(stdin: &Stdin) {
    match stdin {
        Stdin::Writing { pipe, .. } => drop(pipe.writable().await),
        _ => std::future::pending().await,
    }
}

/// Lends a buffer that all runs share: it is never held across an await.
fn with_buffer<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static BUFFER: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; READ_BYTES]));
    BUFFER.with_borrow_mut(|buffer| f(buffer))
}
