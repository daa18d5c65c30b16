//! What the journal holds, as values: what it remembers of a run's id, and the record of a run that has ended.

use std::sync::Arc;
use std::time::SystemTime;

use crate::run::call::{Call, Step};
use crate::run::outcome::{Cause, Finished, Outcome, Remains};

/// What the journal has of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was asked for; its labels are dropped with its end, unless it was LOST.
    pub call: Arc<Call>,
    /// How far the run came, as far as it was written down.
    pub step: Step,
    /// When its process was started.
    pub started_at: Option<SystemTime>,
    /// How it ended; `None` while it goes on.
    pub outcome: Option<Outcome>,
}

/// The record of a run that has ended, for the history. Neither arguments nor a result are in it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// What was asked for, and by whom.
    pub call: Arc<Call>,
    /// When its process was started; `None` if none was.
    pub started_at: Option<SystemTime>,
    /// When it ended; of a run that was LOST, when that was found.
    pub finished_at: SystemTime,
    /// How it ended.
    pub finished: Arc<Finished>,
    /// The first and last parts of stderr, 64 KiB in all at most.
    pub stderr: String,
}

impl Entry {
    /// Of a run that was accepted.
    #[must_use]
    pub fn accepted(call: Arc<Call>) -> Self {
        Self { call, step: Step::Accepted, started_at: None, outcome: None }
    }

    /// How the run ended if the executor died here.
    #[must_use]
    pub fn lost(&self) -> Finished {
        let cause = Cause::ExecutorLost { step: self.step, safe: !self.call.needs_approval };
        Remains::default().ended_by(&cause, None)
    }

    /// Whether it is remembered after the run's end: its caller may ask for it again, or an approval was used by it.
    pub(super) fn is_remembered(call: &Call) -> bool {
        call.named_by_caller || call.needs_approval
    }
}

impl RunRecord {
    /// What it takes in memory and, about, on the disk.
    pub(super) fn bytes(&self) -> usize {
        const BASE: usize = 1024;
        let labels: usize = self.call.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        let finished = &self.finished;
        let texts = finished.message.len() + finished.stderr_tail.len() + finished.stdout_head.len();
        BASE + self.call.agent.len() + labels + texts + self.stderr.len()
    }

    /// The same without what skills wrote.
    pub(super) fn without_output(mut self) -> Self {
        if !self.finished.stderr_tail.is_empty() || !self.finished.stdout_head.is_empty() {
            let bare = Finished { stderr_tail: String::new(), stdout_head: String::new(), ..(*self.finished).clone() };
            self.finished = Arc::new(bare);
        }
        self.stderr = String::new();
        self
    }
}
