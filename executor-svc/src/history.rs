//! Ships the records of the journal to the registry's history: in order, from the journal's cursor, each once for good.
//!
//! The cursor moves when the registry has said what became of a batch. A registry that is away, or does not answer, or does
//! not know this executor, keeps it where it is: what was handed in twice for that is stored once there. A batch that is
//! refused for what is in it is halved, until the record that cannot be handed in stands alone and is passed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tracing::{debug, error, info, warn};

use crate::backoff::Backoff;
use crate::grpc::record_to_wire;
use crate::registry::{Batch, Registry, RegistryError};
use crate::run::journal::{Journal, JournalError};

/// Most bytes of a batch.
const MAX_BYTES: usize = 1 << 20;
/// The journal counts about, and leaves room for what is around records.
const READ_BYTES: usize = MAX_BYTES - (64 << 10);
/// Most records of a batch.
const MAX_RECORDS: usize = 1000;
/// Between two batches, so that a busy executor hands in many records at once.
const PACE: Duration = Duration::from_millis(250);
/// The longest pause before a registry that is away is tried again.
const AWAY: Duration = Duration::from_secs(5);
/// The same for what only a person can mend.
const REFUSED: Duration = Duration::from_secs(60);
/// How long what is left may take when the executor ends.
const LAST: Duration = Duration::from_secs(3);

/// Hands in records. Cheap to clone; one of the clones ships at a time.
#[derive(Clone, Debug)]
pub struct Shipper {
    journal: Journal,
    registry: Registry,
    executor: String,
    /// Records that can never be stored.
    rejected: Arc<AtomicU64>,
    /// The last batch could not be handed in.
    failing: Arc<AtomicBool>,
}

/// What one batch came to.
#[derive(Debug)]
enum Shipped {
    /// There is nothing to hand in.
    Nothing,
    /// So many records are past.
    Past(usize),
    /// The batch is refused for what is in it, or for its size, and has so many records.
    TooMuch(usize),
}

/// Why the cursor stays where it is.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl Shipper {
    /// From a journal to a registry, in the name of this executor.
    #[must_use]
    pub fn new(journal: Journal, registry: Registry, executor: &str) -> Self {
        Self { journal, registry, executor: executor.to_owned(), rejected: Arc::default(), failing: Arc::default() }
    }

    /// Records that can never be stored, since the start.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Whether the last batch could not be handed in, and waits.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Ships what there is and what comes, until `stop`. A batch that is on its way then is shipped again.
    pub async fn run(self, stop: CancellationToken) {
        // Goes on for ever.
        let _ = stop.run_until_cancelled(self.ship()).await;
    }

    /// Ships what is left, for some seconds at the most, and not at all past a failure: it is kept for the next start.
    pub async fn last(&self) {
        let all = async {
            let mut most = MAX_RECORDS;
            loop {
                match self.batch(most).await {
                    Ok(Shipped::Nothing) => return Ok(()),
                    Ok(Shipped::Past(_)) => most = MAX_RECORDS,
                    Ok(Shipped::TooMuch(records)) => most = records / 2,
                    Err(failure) => return Err(failure),
                }
            }
        };
        match timeout(LAST, all).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => info!(cause = %failure, "records of runs are left in the journal until the next start"),
            Err(_) => info!(after = ?LAST, "records of runs are left in the journal until the next start"),
        }
    }

    async fn ship(&self) {
        let mut changed = self.journal.changed();
        let (mut backoff, mut most) = (Backoff::default(), MAX_RECORDS);
        let mut failing = None;
        loop {
            changed.borrow_and_update();
            let shipped = self.batch(most).await;
            self.failing.store(shipped.is_err(), Ordering::Relaxed);
            match shipped {
                Ok(Shipped::Nothing) => {
                    backoff.reset();
                    if changed.changed().await.is_err() {
                        // The journal writes no more, so nothing comes.
                        return std::future::pending().await;
                    }
                }
                Ok(Shipped::Past(records)) => {
                    if failing.take().is_some() {
                        info!("records of runs are handed in again");
                    }
                    backoff.reset();
                    let was_whole = records >= most.min(MAX_RECORDS / 2);
                    most = (most * 2).min(MAX_RECORDS);
                    if !was_whole {
                        sleep(PACE).await;
                    }
                }
                Ok(Shipped::TooMuch(records)) => most = records / 2,
                Err(failure) => {
                    let kind = kind(&failure);
                    if failing.replace(kind) == Some(kind) {
                        debug!(cause = %failure, "records of runs wait still");
                    } else {
                        say(kind, &failure);
                    }
                    sleep(backoff.next(kind.pause())).await;
                }
            }
        }
    }

    /// Hands in one batch of at most so many records.
    async fn batch(&self, most: usize) -> Result<Shipped, Failure> {
        let (records, cursor) = self.journal.unshipped(READ_BYTES, most.max(1)).await?;
        let count = records.len();
        if count == 0 {
            return Ok(Shipped::Nothing);
        }
        let first = records[0].call.id.to_string();
        let mut batch = Batch::new(&self.executor, self.journal.id(), cursor);
        for record in records {
            let run = record_to_wire(&record);
            batch.push(run, record.stderr);
        }
        if batch.bytes() > MAX_BYTES && count > 1 {
            return Ok(Shipped::TooMuch(count));
        }
        match self.registry.append(batch).await {
            Ok(rejected) => {
                for record in rejected {
                    self.reject(&record.run_id, &record.reason);
                }
            }
            Err(error) => match verdict(&error) {
                Verdict::Smaller | Verdict::Wrong if count > 1 => {
                    debug!(%error, records = count, "a batch of records is halved");
                    return Ok(Shipped::TooMuch(count));
                }
                Verdict::Wrong => self.reject(&first, &error.to_string()),
                Verdict::Smaller | Verdict::Later => return Err(error.into()),
            },
        }
        self.journal.shipped(cursor).await?;
        debug!(records = count, cursor, "records of runs were handed in");
        Ok(Shipped::Past(count))
    }

    fn reject(&self, run_id: &str, reason: &str) {
        let rejected = self.rejected.fetch_add(1, Ordering::Relaxed) + 1;
        error!(run_id, reason, rejected, "the record of a run is never stored: the history lacks it");
    }
}

/// What a batch that failed is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Come again, as it is.
    Later,
    /// Come again in halves; a single record as it is.
    Smaller,
    /// Come again in halves; a single record never.
    Wrong,
}

fn verdict(error: &RegistryError) -> Verdict {
    use Code::{AlreadyExists, DataLoss, FailedPrecondition, InvalidArgument, NotFound, OutOfRange};
    let RegistryError::Call { code, reason, .. } = error else { return Verdict::Later };
    match code {
        InvalidArgument | OutOfRange => Verdict::Wrong,
        // Of a proxy, which has limits of its own; or of one that has too much to do.
        Code::ResourceExhausted => Verdict::Smaller,
        // What our registry says for good. From a proxy it says nothing of records.
        AlreadyExists | DataLoss | FailedPrecondition | NotFound if !reason.is_empty() => Verdict::Wrong,
        _ => Verdict::Later,
    }
}

/// What keeps records from being handed in, as people mend it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Journal,
    Unknown,
    NotAllowed,
    Older,
    Away,
}

impl Kind {
    fn pause(self) -> Duration {
        match self {
            Self::Away => AWAY,
            Self::Journal | Self::Unknown | Self::NotAllowed | Self::Older => REFUSED,
        }
    }
}

fn kind(failure: &Failure) -> Kind {
    match failure {
        Failure::Journal(_) => Kind::Journal,
        Failure::Registry(RegistryError::Call { code: Code::Unauthenticated, .. }) => Kind::Unknown,
        Failure::Registry(RegistryError::Call { code: Code::PermissionDenied, .. }) => Kind::NotAllowed,
        Failure::Registry(RegistryError::Call { code: Code::Unimplemented, .. }) => Kind::Older,
        Failure::Registry(_) => Kind::Away,
    }
}

/// Once, until it is another cause or has passed.
fn say(kind: Kind, failure: &Failure) {
    match kind {
        Kind::Journal => error!(error = %failure, "records of runs cannot be read from the journal"),
        Kind::Unknown => warn!(
            cause = %failure,
            "the registry does not know this executor: records of runs stay in its journal, until it has an identity with \
             the role executor (--registry-token-file, or --registry-cert)"
        ),
        Kind::NotAllowed => warn!(
            cause = %failure,
            "the registry does not let this executor hand in records of runs: they stay in its journal"
        ),
        Kind::Older => info!("the registry keeps no history: records of runs stay in the journal"),
        Kind::Away => warn!(cause = %failure, "records of runs cannot be handed in: they wait, and it is tried again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_the_cursor_and_what_halves() {
        let call = |code, reason: &str| RegistryError::Call { code, reason: reason.to_owned(), message: String::new() };
        for code in [
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::Aborted,
            Code::Internal,
            Code::Unauthenticated,
            Code::PermissionDenied,
            Code::Unimplemented,
            Code::Unknown,
            Code::Cancelled,
            Code::NotFound,
        ] {
            assert_eq!(verdict(&call(code, "")), Verdict::Later, "{code:?}");
        }
        for (code, reason) in [
            (Code::InvalidArgument, "INVALID_REQUEST"),
            (Code::InvalidArgument, ""),
            (Code::OutOfRange, ""),
            (Code::FailedPrecondition, "SOMETHING_NEW"),
        ] {
            assert_eq!(verdict(&call(code, reason)), Verdict::Wrong, "{code:?}");
        }
        assert_eq!(verdict(&call(Code::ResourceExhausted, "")), Verdict::Smaller);
        assert_eq!(verdict(&RegistryError::Silent(LAST)), Verdict::Later);
        assert_eq!(verdict(&RegistryError::NoOutcome), Verdict::Later);
    }
}
