//! What the journal counts for metrics: written by its thread, read by whoever asks.

use std::sync::atomic::{AtomicU64, Ordering};

use super::database::Waiting;

/// How the journal stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalFigures {
    /// Records that are not shipped.
    pub unshipped: u64,
    /// Bytes of these.
    pub unshipped_bytes: u64,
    /// Records that will never be shipped, since the start: too old or too much, without room, or not written.
    pub dropped: u64,
    /// Writes that failed, since the start.
    pub failures: u64,
    /// Runs that went on when the process before ended, as it was found at the start.
    pub lost_at_start: u64,
}

#[derive(Debug)]
pub(super) struct Counts {
    unshipped: AtomicU64,
    unshipped_bytes: AtomicU64,
    dropped: AtomicU64,
    failures: AtomicU64,
    lost_at_start: u64,
}

impl Counts {
    pub(super) fn new(lost: usize, waiting: Waiting) -> Self {
        Self {
            unshipped: AtomicU64::new(waiting.records),
            unshipped_bytes: AtomicU64::new(waiting.bytes),
            dropped: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            lost_at_start: lost as u64,
        }
    }

    pub(super) fn written(&self, waiting: Waiting, dropped: u64) {
        self.unshipped.store(waiting.records, Ordering::Relaxed);
        self.unshipped_bytes.store(waiting.bytes, Ordering::Relaxed);
        self.dropped(dropped);
    }

    /// A write failed, and so many records with it.
    pub(super) fn failed(&self, records: u64) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.dropped(records);
    }

    pub(super) fn dropped(&self, records: u64) {
        self.dropped.fetch_add(records, Ordering::Relaxed);
    }

    pub(super) fn figures(&self) -> JournalFigures {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        JournalFigures {
            unshipped: load(&self.unshipped),
            unshipped_bytes: load(&self.unshipped_bytes),
            dropped: load(&self.dropped),
            failures: load(&self.failures),
            lost_at_start: self.lost_at_start,
        }
    }
}
