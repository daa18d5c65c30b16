//! A slot as a run holds it: one job at a time, from its start to the last word on it. Knows no deadline and no pipe.

use std::sync::Arc;

use rustix::io::Errno;

use super::pool::{Pool, SlotError};
use super::protocol::{self, MAX_MESSAGE, Order};
use super::scratch::SlotScratch;
use super::worker::{Nature, Worker};
use super::{Job, SlotEvent, Stdio};

/// A slot that is taken. Dropped, it is kept for the next one if its job is over; if not, it ends with what it runs.
#[derive(Debug)]
pub struct Slot {
    pool: Pool,
    nature: Nature,
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
    pub(super) fn new(pool: Pool, worker: Worker) -> Self {
        Self { pool, nature: worker.nature.clone(), worker: Some(worker), phase: Phase::Idle }
    }

    /// Where its jobs, one after the other, may write whatever their class; `None` where files are not confined.
    #[must_use]
    pub fn scratch(&self) -> Option<&Arc<SlotScratch>> {
        self.nature.scratch.as_ref()
    }

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
                    // In the same scratch directory: the job may have been told of it.
                    vacant.insert(self.pool.0.start_worker(self.nature.clone())?)
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
        self.note(&event);
        event
    }

    /// What the slot has said by now.
    pub fn try_next(&mut self) -> Option<SlotEvent> {
        let event = match &self.worker {
            Some(worker) if self.phase != Phase::Lost => worker.try_next()?,
            _ => SlotEvent::Lost,
        };
        self.note(&event);
        Some(event)
    }

    fn note(&mut self, event: &SlotEvent) {
        match event {
            SlotEvent::SpawnFailed { .. } | SlotEvent::Clean | SlotEvent::Exited { left: false, .. } => {
                self.phase = Phase::Idle;
            }
            SlotEvent::Lost => self.phase = Phase::Lost,
            SlotEvent::Started { .. } | SlotEvent::OverLimit(_) | SlotEvent::Exited { left: true, .. } => {}
        }
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
