//! What became of approvals and records since this registry was started, and which approvals are open now, for metrics:
//! counted by atomics where it happens. What other registries over the same database did is theirs to count.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::SystemTime;

use sqlx::Row as _;

use super::Store;
use super::approval::{State, from_millis};
use super::error::StoreError;

/// What can become of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was asked for.
    Requested,
    /// Somebody signed for it.
    SignedFor,
    /// Somebody signed against it.
    SignedAgainst,
    /// A run used it.
    Consumed,
    /// Its time passed.
    Expired,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Requested, Self::SignedFor, Self::SignedAgainst, Self::Consumed, Self::Expired];

    /// The word for it in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::SignedFor => "signed_for",
            Self::SignedAgainst => "signed_against",
            Self::Consumed => "consumed",
            Self::Expired => "expired",
        }
    }
}

/// All of it, of one registry.
#[derive(Debug, Default)]
pub struct Tally {
    events: [AtomicU64; Event::ALL.len()],
    records_new: AtomicU64,
    records_known: AtomicU64,
    records_rejected: AtomicU64,
    answers: AtomicBool,
    pending: AtomicU64,
    approved: AtomicU64,
    /// When the oldest that is pending was asked for, in milliseconds; 0 for none.
    oldest_pending: AtomicI64,
}

impl Tally {
    pub(super) fn count(&self, event: Event, n: u64) {
        self.events[event as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn stored(&self, new: usize, known: usize) {
        self.records_new.fetch_add(new as u64, Ordering::Relaxed);
        self.records_known.fetch_add(known as u64, Ordering::Relaxed);
    }

    /// Records were handed in that can never be stored.
    pub fn rejected(&self, records: usize) {
        self.records_rejected.fetch_add(records as u64, Ordering::Relaxed);
    }

    pub(super) fn answers(&self, answers: bool) {
        self.answers.store(answers, Ordering::Relaxed);
    }

    /// How often what became of an approval here.
    #[must_use]
    pub fn events(&self) -> [(&'static str, u64); Event::ALL.len()] {
        Event::ALL.map(|event| (event.as_str(), self.events[event as usize].load(Ordering::Relaxed)))
    }

    /// What became of records that were handed in here.
    #[must_use]
    pub fn records(&self) -> [(&'static str, u64); 3] {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [
            ("new", load(&self.records_new)),
            ("known", load(&self.records_known)),
            ("rejected", load(&self.records_rejected)),
        ]
    }

    /// Whether the database answered, the last time.
    #[must_use]
    pub fn is_answering(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// Approvals that are open, in the whole database, as it was last looked at.
    #[must_use]
    pub fn open(&self) -> [(&'static str, u64); 2] {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [(State::Pending.as_str(), load(&self.pending)), (State::Approved.as_str(), load(&self.approved))]
    }

    /// When the oldest approval was asked for whose signatures are missing.
    #[must_use]
    pub fn oldest_pending(&self) -> Option<SystemTime> {
        let at = self.oldest_pending.load(Ordering::Relaxed);
        (at > 0).then(|| from_millis(at))
    }
}

impl Store {
    /// What happened, for metrics.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.inner.tally
    }

    /// Counts the approvals that are open.
    pub(super) async fn count_open(&self) -> Result<(), StoreError> {
        let rows = sqlx::query(
            "SELECT state, count(*), min(created_at) FROM approvals WHERE state IN ('pending', 'approved') GROUP BY state",
        )
        .fetch_all(self.pool().await?)
        .await?;
        let (mut pending, mut approved, mut oldest) = (0, 0, 0);
        for row in rows {
            let (state, n, first): (String, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            match state.as_str() {
                "pending" => (pending, oldest) = (n, first),
                _ => approved = n,
            }
        }
        let tally = self.tally();
        tally.pending.store(pending.unsigned_abs(), Ordering::Relaxed);
        tally.approved.store(approved.unsigned_abs(), Ordering::Relaxed);
        tally.oldest_pending.store(oldest, Ordering::Relaxed);
        Ok(())
    }
}
