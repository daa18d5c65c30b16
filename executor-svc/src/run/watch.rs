//! One run while it holds a slot: one loop over what the slot says, what the pipes hold, and every limit of time.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::run::budget::Share;
use crate::run::event::Event;
use crate::run::journal::Journal;
use crate::run::lines::{LineCutter, Piece};
use crate::run::outcome::{Cause, MAX_RESULT_BYTES, Remains};
use crate::run::patience::{Patience, earliest};
use crate::run::pipes::{Output, Pipes, READ_BYTES};
use crate::run::progress;
use crate::run::table::Run;
use crate::slot::{Exit, Slot, SlotEvent};

/// From SIGTERM to SIGKILL.
pub const GRACE: Duration = Duration::from_secs(2);
/// After the leader's exit, for descendants to close the pipes.
const PIPES_CLOSE_WITHIN: Duration = Duration::from_millis(250);
/// A slot that has not obeyed a kill for this long is given up.
const SLOT_OBEYS_WITHIN: Duration = Duration::from_millis(500);
/// A slot that has not reported the end of a tree that it kills itself for this long is given up. A tree that forks as
/// fast as it can takes the processors that its end needs.
const SLOT_KILLS_WITHIN: Duration = Duration::from_secs(10);
/// A slot that has not started a process, or failed to, for this long is given up.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// The most that one read of stderr takes in the log: its text, and what that tells of progress, at 96 bytes a line of 26.
const READ_COST: usize = 5 * READ_BYTES;
/// How long a run waits for memory that other runs have, and how often it looks.
const WAITS_FOR_MEMORY: Duration = Duration::from_secs(2);
const LOOKS_FOR_MEMORY_EVERY: Duration = Duration::from_millis(20);
/// A pipe holds 64 KiB, or what its owner made of it; whoever still writes after its run is not listened to.
const MAX_LAST_READS: usize = 32;
/// For the process id that a slot did not live to tell.
const UNTOLD: i32 = 0;
/// How often the last words wait for a reader, for as long as it takes to count as standing still: 5 s at the most.
const MAX_LAST_WAITS: u32 = 25;

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
#[derive(Debug)]
struct Stop {
    cause: Cause,
    kill_at: Option<Instant>,
    give_up: Option<Instant>,
}

/// How following ended.
#[derive(Debug)]
pub enum End {
    /// The executor ended the run.
    Stopped(Cause, Option<Exit>),
    /// There was no process, for this `errno`.
    SpawnFailed(i32),
    /// The process ended by itself.
    Exited(Exit),
}

/// A run that holds a slot.
#[derive(Debug)]
pub struct Watch {
    run: Arc<Run>,
    journal: Journal,
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
    /// What stdout may take of the memory for all runs.
    memory: Share,
    /// Bytes that stdout may come to with it.
    stdout_room: usize,
    /// Since when there has been no more.
    starved_since: Option<Instant>,
    last_waits: u32,
}

impl Watch {
    /// A run that was just given to a slot.
    #[must_use]
    pub fn new(
        run: Arc<Run>,
        journal: Journal,
        patience: Patience,
        limit: Duration,
        accepted: Instant,
        memory: Share,
    ) -> Self {
        Self {
            run,
            journal,
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
            memory,
            stdout_room: 0,
            starved_since: None,
            last_waits: MAX_LAST_WAITS,
        }
    }

    /// Follows it to its end, and returns what it left behind. A slot that does not obey is left as it is: dropped, it
    /// is killed.
    pub async fn follow(mut self, slot: &mut Slot, pipes: &mut Pipes) -> (Remains, End) {
        let mut timer = pin!(tokio::time::sleep(Duration::MAX));
        let mut armed = None;
        let run = Arc::clone(&self.run);
        loop {
            // A stop or a timer is looked at here and nowhere else.
            let now = Instant::now();
            if self.due().is_some_and(|at| at <= now) {
                self.hear_out(slot);
            }
            self.check_patience(slot, now);
            self.check_phase(slot, pipes, now);
            if self.phase == Phase::Over {
                break;
            }
            let room = if self.started.is_some() && pipes.is_open(Output::Stderr) {
                run.events.has_room(READ_COST)
            } else {
                Ok(())
            };
            let may_read = self.has_memory(now);
            let due = earliest([self.due(), room.err(), (!may_read).then(|| now + LOOKS_FOR_MEMORY_EVERY)]);
            if due != armed {
                armed = due;
                let at = due.unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
                timer.as_mut().reset(at.into());
            }
            let may_log = self.started.is_some() && room.is_ok();
            tokio::select! {
                biased;
                event = slot.next(), if self.slot_speaks() => self.on_slot(event),
                () = pipes.readable(Output::Stderr), if may_log && pipes.is_open(Output::Stderr) => drop(self.read_stderr(pipes)),
                () = pipes.readable(Output::Stdout), if may_read && pipes.is_open(Output::Stdout) => drop(self.read_stdout(pipes)),
                () = pipes.writable(), if pipes.is_writing() => pipes.write_more(),
                () = run.events.touched() => {}
                () = &mut timer => armed = None,
            }
        }
        if let Some(piece) = self.cutter.finish() {
            log(&self.run, piece);
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

    /// What the slot said before a limit passed counts, however late it is heard: this process may have been stopped, or
    /// short of processor time.
    fn hear_out(&mut self, slot: &mut Slot) {
        while self.slot_speaks()
            && let Some(event) = slot.try_next()
        {
            self.on_slot(event);
        }
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
            log(&self.run, piece);
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
                if let Some(later) = self.wait_for_reader(pipes) {
                    self.phase = Phase::Gone { until: later };
                    return;
                }
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
                note_started(&self.run, &self.journal, pid);
            }
            SlotEvent::SpawnFailed { errno } => {
                self.spawn_errno = Some(errno);
                self.phase = Phase::Over;
            }
            SlotEvent::OverLimit(excess) => {
                // A run that was being ended before is ended for that.
                let cause = self.stop.take().map_or(Cause::OverLimit(excess), |stop| stop.cause);
                self.stop = Some(Stop { cause, kill_at: None, give_up: Some(now + SLOT_KILLS_WITHIN) });
            }
            SlotEvent::Exited { exit, usage, left } => {
                self.exit = Some(exit);
                self.remains.figures.usage = usage;
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
    fn read_stderr(&mut self, pipes: &mut Pipes) -> usize {
        let n = pipes.read(Output::Stderr, |bytes| {
            // The slot was lost before it told.
            if self.started.is_none() {
                self.started = Some(Instant::now());
                note_started(&self.run, &self.journal, UNTOLD);
            }
            self.remains.stderr.push(bytes);
            if let Some(piece) = self.cutter.push(bytes, Instant::now()) {
                log(&self.run, piece);
            }
        });
        self.remains.figures.stderr_bytes += n as u64;
        n
    }

    fn read_stdout(&mut self, pipes: &mut Pipes) -> usize {
        self.make_room();
        let most = self.stdout_room.min(MAX_RESULT_BYTES);
        let room = most.saturating_sub(self.remains.stdout.len());
        let n = pipes.read(Output::Stdout, |bytes| {
            self.remains.stdout.extend_from_slice(&bytes[..bytes.len().min(room)]);
        });
        self.remains.figures.stdout_bytes += n as u64;
        if n > room && self.stop.is_none() {
            let all = most == MAX_RESULT_BYTES;
            self.too_much_output(if all { Cause::OutputLimit } else { Cause::OutputMemory(self.memory.limit()) });
        }
        n
    }

    /// Whether one more read of stdout fits into the memory for all runs. A run that finds none waits, its skill with it,
    /// for a short while: others may be about to end.
    fn has_memory(&mut self, now: Instant) -> bool {
        if self.make_room() || self.stop.is_some() {
            self.starved_since = None;
            return true;
        }
        let since = *self.starved_since.get_or_insert(now);
        if now < since + WAITS_FOR_MEMORY {
            return false;
        }
        self.too_much_output(Cause::OutputMemory(self.memory.limit()));
        true
    }

    /// Takes memory for one more read of stdout, and returns whether there was any.
    fn make_room(&mut self) -> bool {
        let held = self.remains.stdout.len();
        if held + READ_BYTES <= self.stdout_room || self.stdout_room > MAX_RESULT_BYTES {
            return true;
        }
        // A vector grows to twice its size.
        let more = held.max(READ_BYTES);
        let had = self.memory.take(more);
        if had {
            self.stdout_room += more;
        }
        had
    }

    /// What the skill goes on to write is read and thrown away, so that it is not blocked while it ends.
    fn too_much_output(&mut self, cause: Cause) {
        self.run.stop(cause.clone());
        if self.exit.is_some() && self.stop.is_none() {
            self.stop = Some(Stop { cause, kill_at: None, give_up: None });
        }
    }

    /// Until when the last words wait for a reader that is slow but moves. Somebody outside the tree who goes on writing
    /// is waited for so often and no more.
    fn wait_for_reader(&mut self, pipes: &Pipes) -> Option<Instant> {
        let later =
            if pipes.is_open(Output::Stderr) { self.run.events.has_room(READ_COST).err()? } else { return None };
        self.last_waits = self.last_waits.checked_sub(1)?;
        Some(later)
    }

    /// After the last process, without waiting: an end that somebody outside the tree holds open gives no end of file.
    fn read_what_is_there(&mut self, pipes: &mut Pipes) {
        for _ in 0..MAX_LAST_READS {
            if self.read_stdout(pipes) + self.read_stderr(pipes) == 0 {
                return;
            }
        }
    }
}

fn note_started(run: &Run, journal: &Journal, pid: i32) {
    let at = SystemTime::now();
    run.started(at);
    journal.note_started(&run.call.id, at);
    run.events.push(Event::Started { pid });
}

fn log(run: &Run, piece: Piece) {
    let told: Vec<_> = progress::all_in(&piece.text).collect();
    run.events.push(Event::Log { piece, dropped_lines: 0 });
    for progress in told {
        run.events.push(Event::Progress(progress));
    }
}
