//! How a run ended: from what happened to its process to one word, one sentence and the figures.

use std::borrow::Cow;
use std::time::Duration;

use crate::run::call::Step;
use crate::run::stderr::Stderr;
use crate::slot::{Excess, Exit, Limited, Usage};

/// Most bytes of stdout: a longer result is refused.
pub const MAX_RESULT_BYTES: usize = 16 << 20;
/// How much of stderr and stdout a run that did not succeed shows.
pub const EXCERPT_BYTES: usize = 4 << 10;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0 and exactly one JSON value on stdout.
    Succeeded,
    /// Exit code other than 0, or too many processes.
    Failed,
    /// A limit of time passed.
    TimedOut,
    /// Ended on demand.
    Cancelled,
    /// Ended by a signal that the executor did not send.
    Signaled,
    /// Its processes together took more memory than they may, as it was measured.
    OutOfMemory,
    /// Exit code 0, but stdout was not exactly one JSON value.
    InvalidResult,
    /// stdout was over the limit.
    ResultTooLarge,
    /// The executable could not be started.
    SpawnFailed,
    /// The slot, or the executor, went away during the run.
    Lost,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Signaled,
        Self::OutOfMemory,
        Self::InvalidResult,
        Self::ResultTooLarge,
        Self::SpawnFailed,
        Self::Lost,
    ];

    /// The outcome that [`Self::as_str`] gives this word for.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == word)
    }

    /// The word for it in logs and in the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED_OUT",
            Self::Cancelled => "CANCELLED",
            Self::Signaled => "SIGNALED",
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::InvalidResult => "INVALID_RESULT",
            Self::ResultTooLarge => "RESULT_TOO_LARGE",
            Self::SpawnFailed => "SPAWN_FAILED",
            Self::Lost => "LOST",
        }
    }
}

/// Why the executor ended a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The run's own limit, from Started.
    Timeout(Duration),
    /// The call's deadline.
    Deadline,
    /// Nobody follows the run any more.
    CallerGone,
    /// CancelRun, with what its caller said.
    CancelRequested(String),
    /// The executor goes away.
    Draining,
    /// Too much on stdout.
    OutputLimit,
    /// No memory left for what runs write to stdout, of so many bytes for all of them.
    OutputMemory(usize),
    /// Too much memory, or too many processes, as its slot measured it.
    OverLimit(Excess),
    /// The slot was stopped, was ended, or did not answer.
    SlotLost,
    /// The executor died, and was started again.
    ExecutorLost {
        /// How far the run came, as far as it was written down.
        step: Step,
        /// Whether the skill is safe.
        safe: bool,
    },
}

impl Cause {
    /// As it stands in `Finished.reason`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "TIMEOUT",
            Self::Deadline => "DEADLINE",
            Self::CallerGone => "CALLER_GONE",
            Self::CancelRequested(_) => "CANCEL_REQUESTED",
            Self::Draining => "DRAINING",
            Self::OutputLimit | Self::OutputMemory(_) => "OUTPUT_LIMIT",
            Self::OverLimit(Excess { of: Limited::Memory, .. }) => "MEMORY_LIMIT",
            Self::OverLimit(Excess { of: Limited::Processes, .. }) => "PROCESS_LIMIT",
            Self::SlotLost => "SLOT_LOST",
            Self::ExecutorLost { .. } => "EXECUTOR_LOST",
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Timeout(_) | Self::Deadline => Outcome::TimedOut,
            Self::CallerGone | Self::CancelRequested(_) | Self::Draining => Outcome::Cancelled,
            Self::OutputLimit | Self::OutputMemory(_) => Outcome::ResultTooLarge,
            Self::OverLimit(Excess { of: Limited::Memory, .. }) => Outcome::OutOfMemory,
            Self::OverLimit(Excess { of: Limited::Processes, .. }) => Outcome::Failed,
            Self::SlotLost | Self::ExecutorLost { .. } => Outcome::Lost,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Timeout(limit) => format!("the run was ended: it took longer than its limit of {limit:?}"),
            Self::Deadline => "the run was ended: the deadline of the call passed".to_owned(),
            Self::CallerGone => "the run was ended: its caller went away".to_owned(),
            Self::CancelRequested(why) if why.is_empty() => "the run was cancelled".to_owned(),
            Self::CancelRequested(why) => format!("the run was cancelled: {why}"),
            Self::Draining => "the run was ended: the executor is shutting down; run it again on another".to_owned(),
            Self::OutputLimit => {
                format!("the skill wrote more than {MAX_RESULT_BYTES} bytes (16 MiB) to stdout: write large data to a file and print its path")
            }
            Self::OutputMemory(limit) => {
                format!(
                    "the run was ended: the outputs of all runs together take the {} that they may: try again when others have ended, have the skill write less to stdout, or raise the executor's --max-output-memory",
                    mebibytes(*limit as u64)
                )
            }
            Self::OverLimit(Excess { of: Limited::Memory, measured, limit }) => {
                format!(
                    "the run was ended: its processes took {} of memory together, and may take {}: have the skill work in smaller parts, or raise the executor's --max-memory",
                    mebibytes(*measured),
                    mebibytes(*limit)
                )
            }
            Self::OverLimit(Excess { of: Limited::Processes, measured, limit }) => {
                format!(
                    "the run was ended: it had {measured} processes and threads or more, and may have {limit}: have the skill start fewer at once, or raise the executor's --max-processes"
                )
            }
            Self::SlotLost => {
                "the process that watched the run was stopped or killed, by the skill or from outside; what the run did is not known".to_owned()
            }
            Self::ExecutorLost { step, safe } => executor_lost(*step, *safe),
        }
    }
}

/// Before the start of a run with an approval every step is on the disk; a safe run's are written a moment later.
fn executor_lost(step: Step, safe: bool) -> String {
    let (what, then) = match (step, safe) {
        (Step::Accepted | Step::Approved, true) => (
            "the executor ended soon after the run was accepted; whether it was started is not known",
            "choose a new run_id to run it again",
        ),
        (Step::Started, true) => (
            "the executor ended while the run was going on, and its processes with it",
            "choose a new run_id to run it again",
        ),
        (Step::Accepted, false) => (
            "the executor ended before the run was started: it changed nothing, and its approval may be used up",
            "ask for a new approval and choose a new run_id",
        ),
        (Step::Approved, false) => (
            "the executor ended when the run was about to start, with its approval used up; whether it was started, and \
             what it did, is not known, and it is not run again",
            "look at what it was to change, then ask for a new approval and choose a new run_id",
        ),
        (Step::Started, false) => (
            "the executor ended while the run was going on; what the run did is not known, and it is not run again",
            "look at what it was to change, then ask for a new approval and choose a new run_id",
        ),
    };
    format!("{what}: {then}")
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// One word.
    pub outcome: Outcome,
    /// One sentence for a model or a person; empty on success.
    pub message: String,
    /// For programs; empty where the outcome says all.
    pub reason: Cow<'static, str>,
    /// How the process ended, if there was one and it was seen.
    pub exit: Option<Exit>,
    /// The end of stderr; empty on success.
    pub stderr_tail: String,
    /// The beginning of stdout; empty on success.
    pub stdout_head: String,
    /// Length of the result.
    pub result_bytes: u64,
    /// What it used.
    pub figures: Figures,
}

/// What a run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// From Accepted to Started.
    pub queued: Duration,
    /// Of the process.
    pub usage: Usage,
    /// Written to stderr.
    pub stderr_bytes: u64,
    /// Written to stdout.
    pub stdout_bytes: u64,
}

/// What a run left behind.
#[derive(Debug, Default)]
pub struct Remains {
    /// All of stdout, up to the limit.
    pub stdout: Vec<u8>,
    /// The first part of stderr and the last.
    pub stderr: Stderr,
    /// The figures.
    pub figures: Figures,
}

impl Remains {
    /// The end of a run that the executor ended.
    #[must_use]
    pub fn ended_by(self, cause: &Cause, exit: Option<Exit>) -> Finished {
        self.unsuccessful(cause.outcome(), cause.message(), cause.reason(), exit)
    }

    /// The end of a run whose process could not be started.
    #[must_use]
    pub fn spawn_failed(self, why: String) -> Finished {
        self.unsuccessful(Outcome::SpawnFailed, why, "", None)
    }

    /// The end of a run whose result could not be looked at, by a fault of the executor.
    #[must_use]
    pub fn unreadable(self) -> Finished {
        let why = "the result could not be looked at, by a fault of the executor; its log says which".to_owned();
        self.unsuccessful(Outcome::InvalidResult, why, "", Some(Exit::Code(0)))
    }

    /// The end of a run whose process ended by itself, and its result if there is one.
    #[must_use]
    pub fn exited(mut self, exit: Exit, hint: impl FnOnce(i32) -> Option<String>) -> (Finished, Option<String>) {
        match exit {
            Exit::Signal(signal) => {
                let name = signal_name(signal);
                let message = match name.as_str() {
                    "SIGXFSZ" => {
                        "the skill was ended by SIGXFSZ: it wrote a file that is longer than it may be; have it write less, or raise the executor's --max-file-size".to_owned()
                    }
                    _ => format!("the skill was ended by {name}, which the executor did not send"),
                };
                (self.unsuccessful(Outcome::Signaled, message, "", Some(exit)), None)
            }
            Exit::Code(0) => match one_json_value(std::mem::take(&mut self.stdout)) {
                Ok(result) => {
                    let finished = Finished {
                        outcome: Outcome::Succeeded,
                        message: String::new(),
                        reason: "".into(),
                        exit: Some(exit),
                        stderr_tail: String::new(),
                        stdout_head: String::new(),
                        result_bytes: result.len() as u64,
                        figures: self.figures,
                    };
                    (finished, Some(result))
                }
                Err((stdout, why)) => {
                    self.stdout = stdout;
                    (self.unsuccessful(Outcome::InvalidResult, why, "", Some(exit)), None)
                }
            },
            Exit::Code(code) => {
                let mut message = format!("the skill exited with code {code}");
                if let Some(hint) = hint(code) {
                    message.push_str(": ");
                    message.push_str(&hint);
                } else if let Some(line) = last_line(&self.stderr.last()) {
                    message.push_str(": ");
                    message.push_str(&line);
                }
                (self.unsuccessful(Outcome::Failed, message, "", Some(exit)), None)
            }
        }
    }

    fn unsuccessful(self, outcome: Outcome, message: String, reason: &'static str, exit: Option<Exit>) -> Finished {
        let head = &self.stdout[..self.stdout.len().min(EXCERPT_BYTES)];
        Finished {
            outcome,
            message,
            reason: reason.into(),
            exit,
            stderr_tail: excerpt(&self.stderr.last()),
            stdout_head: excerpt(head),
            result_bytes: 0,
            figures: self.figures,
        }
    }
}

impl Finished {
    /// Any one.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Remains::default().ended_by(&Cause::Deadline, None)
    }
}

/// As people read it; small limits are for tests, and still right.
fn mebibytes(bytes: u64) -> String {
    match bytes >> 20 {
        0..10 => format!("{} KiB", bytes >> 10),
        mebibytes => format!("{mebibytes} MiB"),
    }
}

/// The name of a signal.
#[must_use]
pub fn signal_name(number: i32) -> String {
    const NAMES: [&str; 32] = [
        "",
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    match usize::try_from(number).ok().and_then(|i| NAMES.get(i)) {
        Some(name) if !name.is_empty() => (*name).to_owned(),
        _ => format!("signal {number}"),
    }
}

/// Text of bytes that may have been cut within a character.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let start = bytes.iter().take(3).take_while(|b| (0x80..=0xBF).contains(*b)).count();
    let bytes = &bytes[start..];
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(error) if error.error_len().is_none() => {
            String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned()
        }
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn last_line(stderr: &[u8]) -> Option<String> {
    const MOST_CHARS: usize = 300;
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(MOST_CHARS).collect())
}

/// UTF-8 is looked at first: what only skips a value takes bytes that are none.
fn one_json_value(stdout: Vec<u8>) -> Result<String, (Vec<u8>, String)> {
    let text = match String::from_utf8(stdout) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let why = format!("stdout is not UTF-8 (byte {at}): print one JSON value and nothing else");
            return Err((error.into_bytes(), why));
        }
    };
    match serde_json::from_str::<&serde_json::value::RawValue>(&text) {
        Ok(_) => Ok(text),
        Err(error) => {
            let why = if text.trim().is_empty() {
                "the skill exited with code 0 and printed nothing: print one JSON value to stdout".to_owned()
            } else {
                format!("stdout is not exactly one JSON value ({error}): print one and nothing else, and log to stderr")
            };
            Err((text.into_bytes(), why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32, stdout: &str, stderr: &str) -> (Finished, Option<String>) {
        let mut remains = Remains { stdout: stdout.into(), ..Remains::default() };
        remains.stderr.push(stderr.as_bytes());
        remains.exited(Exit::Code(code), |_| None)
    }

    #[test]
    fn one_value_byte_for_byte() {
        for good in ["{}", " [1, 2]\n", "\"é\"", "null", "1e5", r#"{"a":"\ud83d"}"#] {
            let (finished, result) = exited(0, good, "logs");
            assert_eq!((finished.outcome, result.as_deref()), (Outcome::Succeeded, Some(good)));
            assert_eq!((finished.result_bytes, finished.stderr_tail.as_str()), (good.len() as u64, ""));
        }
        for bad in ["", " \n", "{}{}", "{\"a\":1}\n{\"b\":1}\n", "NaN", "{'a':1}", "hello", "{\"a\":", "\u{FEFF}{}"] {
            let (finished, result) = exited(0, bad, "logs");
            assert_eq!((finished.outcome, result), (Outcome::InvalidResult, None), "{bad:?}");
            assert_eq!((finished.stdout_head.as_str(), finished.stderr_tail.as_str()), (bad, "logs"));
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(exited(0, &deep, "").0.outcome, Outcome::Succeeded);
    }

    #[test]
    fn a_failure_says_its_last_line() {
        let (finished, _) = exited(3, "", "Traceback\nValueError: no such host\n\n");
        assert_eq!(finished.message, "the skill exited with code 3: ValueError: no such host");
        let killed = Remains::default().exited(Exit::Signal(9), |_| None).0;
        assert_eq!((killed.outcome, &*killed.reason), (Outcome::Signaled, ""));
        assert!(killed.message.contains("SIGKILL"));
    }

    #[test]
    fn excerpts_are_cut_at_characters() {
        let mut stderr = Stderr::default();
        for _ in 0..3000 {
            stderr.push("é".as_bytes());
        }
        stderr.push(b"x");
        assert_eq!(excerpt(&stderr.last()), format!("{}x", "é".repeat(2047)));
        assert_eq!(excerpt(&"é".as_bytes()[..1]), "");
        assert_eq!(excerpt(b"a\xFFb"), "a\u{FFFD}b");
        stderr.push(&vec![b'y'; 5000]);
        assert_eq!(excerpt(&stderr.last()), "y".repeat(4096));
        assert_eq!(signal_name(11), "SIGSEGV");
        assert_eq!(signal_name(34), "signal 34");
    }
}
