//! What waits to be written: what runs wait for, and what they only note. Noting never waits; it is bounded by giving up,
//! in this order, that a run was accepted or started, what its skill wrote, and at last its record, which is counted.
//!
//! A note that a run was accepted serves a crash alone: without it, the run has no LOST record and its id may be used
//! again. So no run is ever LOST by the bound: where a record is given up, what was noted of its run goes with it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::JournalError;
use super::database::Write;
use super::record::RunRecord;
use crate::run::id::RunId;

/// How long notes wait for others, so that they share a write.
const GATHER_FOR: Duration = Duration::from_millis(100);
/// Beyond so many bytes of notes, only records are taken, and without what skills wrote.
const CROWDED_BYTES: usize = 16 << 20;
/// Beyond so many, no record is taken.
const FULL_BYTES: usize = 64 << 20;
/// What a small note takes.
const NOTE_BYTES: usize = 512;

/// Who waits for a write.
pub(super) type Done = oneshot::Sender<Result<(), JournalError>>;

/// A write, and who waits for it, if anybody does.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) write: Write,
    pub(super) done: Option<Done>,
}

/// Writes on their way to the thread.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<Queued>,
    note_bytes: usize,
    urgent: bool,
    closed: bool,
    given_up: u64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a write that somebody waits for; it takes what was noted before with it.
    pub(super) fn send(&self, write: Write, done: Done) {
        let mut inner = self.lock();
        inner.waiting.push(Queued { write, done: Some(done) });
        inner.urgent = true;
        drop(inner);
        self.wake.notify_one();
    }

    /// Adds a small note, unless the thread is far behind; returns whether it was taken.
    pub(super) fn note(&self, write: Write) -> bool {
        let inner = self.lock();
        if inner.note_bytes > CROWDED_BYTES {
            return false;
        }
        self.add(inner, write, NOTE_BYTES);
        true
    }

    /// Adds the record of a run, or what of it there is room for.
    pub(super) fn record(&self, record: RunRecord, was_noted: bool) {
        let mut inner = self.lock();
        if inner.note_bytes > FULL_BYTES {
            inner.given_up += 1;
            if was_noted {
                // As many as there are runs at once at the most: a run that is accepted now is not noted.
                self.add(inner, Write::Forget(record.call.id.clone()), NOTE_BYTES);
            }
            return;
        }
        let record = if inner.note_bytes > CROWDED_BYTES { record.without_output() } else { record };
        let bytes = record.bytes();
        self.add(inner, Write::End(Box::new(record)), bytes);
    }

    /// Adds that a run was not started, whatever the room: there are no more of these than runs that were noted.
    pub(super) fn forget(&self, id: RunId) {
        self.add(self.lock(), Write::Forget(id), NOTE_BYTES);
    }

    fn add(&self, mut inner: MutexGuard<'_, Inner>, write: Write, bytes: usize) {
        // With others waiting, the thread is awake already, or writes and looks again.
        let first = inner.waiting.is_empty();
        inner.waiting.push(Queued { write, done: None });
        inner.note_bytes += bytes;
        drop(inner);
        if first {
            self.wake.notify_one();
        }
    }

    /// What could not be written waits before all else, for the next time, as far as there is room for it; returns how many
    /// records there was none for.
    pub(super) fn put_back(&self, writes: Vec<Write>) -> u64 {
        let mut inner = self.lock();
        let (closed, mut lost) = (inner.closed, 0);
        let mut kept = Vec::new();
        for write in writes {
            let write = match write {
                Write::End(record) if inner.note_bytes > CROWDED_BYTES => Write::End(Box::new(record.without_output())),
                write => write,
            };
            let write = match write {
                Write::End(record) if closed || inner.note_bytes > FULL_BYTES => {
                    lost += 1;
                    Write::Forget(record.call.id.clone())
                }
                write => write,
            };
            inner.note_bytes += if let Write::End(record) = &write { record.bytes() } else { NOTE_BYTES };
            kept.push(Queued { write, done: None });
        }
        if !closed {
            inner.waiting.splice(0..0, kept);
        }
        lost
    }

    /// Nothing more comes.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    /// All that waits, once there is something; `None` when nothing will come.
    pub(super) fn take(&self) -> Option<Vec<Queued>> {
        let idle = |inner: &mut Inner| inner.waiting.is_empty() && !inner.closed;
        let inner = self.wake.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        let gathering = |inner: &mut Inner| !inner.urgent && !inner.closed;
        let waited = self.wake.wait_timeout_while(inner, GATHER_FOR, gathering);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (inner.note_bytes, inner.urgent) = (0, false);
        let waiting = std::mem::take(&mut inner.waiting);
        (!waiting.is_empty()).then_some(waiting)
    }

    /// Records that were given up since this was asked.
    pub(super) fn given_up(&self) -> u64 {
        std::mem::take(&mut self.lock().given_up)
    }
}

/// Leaves out what a later write of the same run makes needless: a safe run that has ended before it was written down once
/// is one record.
pub(super) fn settle(waiting: Vec<Queued>) -> Vec<Queued> {
    let mut settled = std::collections::HashSet::new();
    let mut kept: Vec<_> = waiting
        .into_iter()
        .rev()
        .filter(|queued| match &queued.write {
            Write::End(record) => {
                settled.insert(record.call.id.clone());
                true
            }
            Write::Forget(id) => {
                settled.insert(id.clone());
                true
            }
            Write::Note(entry) => !settled.remove(&entry.call.id),
            Write::Started(id, _) => !settled.contains(id),
            Write::Accept(entry) => {
                settled.remove(&entry.call.id);
                true
            }
            Write::Approved(_) | Write::Shipped(_) | Write::Nothing => true,
        })
        .collect();
    kept.reverse();
    kept
}
