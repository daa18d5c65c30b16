//! What may end a run from outside: its caller, by word, by deadline or by leaving.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::run::outcome::Cause;
use crate::run::table::Run;

/// How long a run whose id the caller chose goes on without a reader.
pub const RECONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Whether a run is still wanted.
#[derive(Debug)]
pub struct Patience {
    run: Arc<Run>,
    deadline: Option<Instant>,
    alone_since: Option<Instant>,
}

impl Patience {
    /// Until the deadline, while somebody follows the run and nobody stops it.
    #[must_use]
    pub fn new(run: Arc<Run>, deadline: Option<Instant>) -> Self {
        Self { run, deadline, alone_since: None }
    }

    /// Looks again.
    ///
    /// # Errors
    /// Why the run is to end.
    pub fn check(&mut self, now: Instant) -> Result<(), Cause> {
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
        if self.run.call.named_by_caller && now < since + RECONNECT_WITHIN { Ok(()) } else { Err(Cause::CallerGone) }
    }

    /// When to check again at the latest.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        earliest([self.deadline, self.alone_since.map(|since| since + RECONNECT_WITHIN)])
    }
}

/// The first of some moments, if there is any.
#[must_use]
pub fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    times.into_iter().flatten().min()
}
