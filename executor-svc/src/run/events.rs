//! The events of one run: a bounded log that the run writes and any number of readers follow.
//!
//! The result and what says where the run is are never dropped while the log is kept. Output is: at most
//! [`MAX_OUTPUT_BYTES`] of it are held, and a reader that falls behind finds the lines it missed counted in its next
//! piece. The writer waits for a reader that is slow but moves ([`EventLog::has_room`]), and never for one that stands.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use skillyard::service::error::Refusal;
use tokio::sync::Notify;

use crate::run::dropped::Dropped;
use crate::run::event::{Chunk, Event, Stamped};

/// Most bytes of output that are held for readers.
pub const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// A reader that has not moved for this long is not waited for.
pub const STALLED_AFTER: Duration = Duration::from_millis(200);
/// What an event costs beside its text.
const EVENT_COST: usize = 96;

/// The log of one run.
#[derive(Debug, Default)]
pub struct EventLog {
    inner: Mutex<Inner>,
    /// Wakes the writer: the last reader left, one came, or one that it waits for moved.
    writer: Notify,
    /// The last event is there.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    kept: VecDeque<Kept>,
    last_seq: u64,
    /// Lines of output so far, dropped ones included.
    lines: u64,
    output_bytes: usize,
    /// What all output so far would take, dropped or not.
    output_written: usize,
    bytes: usize,
    ended: bool,
    dropped: Dropped,
    /// What those get who still read, once their events were given up.
    cut_off: Option<Refusal>,
    /// The writer waits for a reader to move.
    writer_waits: bool,
    readers: Vec<Place>,
    next_reader: u64,
}

#[derive(Debug)]
struct Kept {
    stamped: Stamped,
    cost: usize,
    /// Lines of output before it.
    lines_before: u64,
    /// What the output before it would take.
    output_before: usize,
}

/// Where a reader is.
#[derive(Debug)]
struct Place {
    reader: u64,
    seq: u64,
    lines: u64,
    moved: Instant,
    waker: Option<Waker>,
}

impl EventLog {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. Output over the bound pushes the oldest output out.
    pub fn push(&self, event: Event) {
        let wakers = {
            let mut inner = self.lock();
            if inner.ended {
                return;
            }
            inner.add(event);
            inner.wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Adds the result and the end in one step.
    pub fn finish(&self, result: Option<&Arc<str>>, last: Event) {
        let wakers = {
            let mut inner = self.lock();
            if inner.ended {
                return;
            }
            for chunk in result.into_iter().flat_map(Chunk::cut) {
                inner.add(Event::Result(chunk));
            }
            inner.add(last);
            inner.ended = true;
            inner.wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
        self.ended.notify_waiters();
    }

    /// Whether output of this size can be added without taking from a reader that moves; if not, until when to wait for
    /// it at the longest.
    ///
    /// # Errors
    /// The moment from which on the slow reader counts as standing still.
    pub fn has_room(&self, size: usize) -> Result<(), Instant> {
        let mut inner = self.lock();
        if inner.output_bytes + size <= MAX_OUTPUT_BYTES {
            return Ok(());
        }
        let now = Instant::now();
        let would_lose = |place: &&Place| {
            let read = inner.after(place.seq).map_or(inner.output_written, |kept| kept.output_before);
            inner.output_written - read + size > MAX_OUTPUT_BYTES
        };
        let losers = inner.readers.iter().filter(would_lose);
        match losers.map(|place| place.moved + STALLED_AFTER).filter(|until| *until > now).max() {
            Some(until) => {
                inner.writer_waits = true;
                Err(until)
            }
            None => Ok(()),
        }
    }

    /// Resolves when the writer should look again: at [`Self::has_room`], at [`Self::is_followed`], or at what else
    /// [`Self::touch`] was called for. Only one may wait.
    pub async fn touched(&self) {
        self.writer.notified().await;
    }

    /// Makes the writer look.
    pub fn touch(&self) {
        self.writer.notify_one();
    }

    /// Whether anybody reads it.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        !self.lock().readers.is_empty()
    }

    /// Resolves when the last event is there.
    pub async fn ended(&self) {
        loop {
            let notified = self.ended.notified();
            if self.lock().ended {
                return;
            }
            notified.await;
        }
    }

    /// What it holds, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let inner = self.lock();
        inner.bytes + inner.dropped.bytes()
    }

    /// Forgets the events of a run that has ended, unless somebody reads them.
    pub fn clear(&self) -> bool {
        let mut inner = self.lock();
        let clear = inner.ended && inner.readers.is_empty();
        if clear {
            inner.kept = VecDeque::new();
            inner.dropped = Dropped::default();
            inner.bytes = 0;
            inner.output_bytes = 0;
        }
        clear
    }

    /// Takes the events of a run that has ended from its readers, if there are any and none has moved for so long, and
    /// returns how many bytes that freed. They end with this refusal.
    pub fn cut_off(&self, still_for: Duration, refusal: impl FnOnce() -> Refusal) -> Option<usize> {
        let (freed, wakers) = {
            let mut inner = self.lock();
            let still = |place: &Place| place.moved.elapsed() >= still_for;
            if !inner.ended || inner.readers.is_empty() || !inner.readers.iter().all(still) {
                return None;
            }
            inner.kept = VecDeque::new();
            inner.dropped = Dropped::default();
            inner.output_bytes = 0;
            inner.cut_off = Some(refusal());
            (std::mem::take(&mut inner.bytes), inner.wakers())
        };
        wakers.into_iter().for_each(Waker::wake);
        Some(freed)
    }

    /// Follows the run from its first event that is kept; `None` when its events are gone.
    pub fn read(self: &Arc<Self>) -> Option<Reader> {
        self.read_after(0).ok()
    }

    /// Follows the run from the first event after one that is kept. The lines that were dropped since that one are counted
    /// in the next output.
    ///
    /// # Errors
    /// There is no such place.
    pub fn read_after(self: &Arc<Self>, seq: u64) -> Result<Reader, NoPlace> {
        let mut inner = self.lock();
        if inner.ended && inner.kept.is_empty() {
            return Err(NoPlace::Gone);
        }
        if seq > inner.last_seq {
            return Err(NoPlace::Beyond { last_seq: inner.last_seq });
        }
        let (reader, lines) = (inner.next_reader, inner.lines_until(seq));
        inner.next_reader += 1;
        inner.readers.push(Place { reader, seq, lines, moved: Instant::now(), waker: None });
        drop(inner);
        self.touch();
        Ok(Reader { log: Arc::clone(self), reader, done: false })
    }
}

impl Inner {
    fn add(&mut self, event: Event) {
        self.last_seq += 1;
        let lines_before = self.lines;
        let text = match &event {
            Event::Log { piece, .. } => {
                self.lines += piece.lines;
                piece.text.len()
            }
            Event::Progress(progress) => progress.message.len(),
            Event::Result(chunk) => chunk.as_str().len(),
            Event::Finished(end) => end.message.len() + end.stderr_tail.len() + end.stdout_head.len(),
            Event::Accepted { .. } | Event::Started { .. } | Event::Refused(_) => 0,
        };
        let cost = text + EVENT_COST;
        let stamped = Stamped { seq: self.last_seq, time: SystemTime::now(), event };
        let kept = Kept { stamped, cost, lines_before, output_before: self.output_written };
        self.bytes += cost;
        if kept.is_output() {
            self.output_bytes += cost;
            self.output_written += cost;
            while self.output_bytes > MAX_OUTPUT_BYTES
                && let Some(oldest) = self.kept.iter().position(Kept::is_output)
                && let Some(dropped) = self.kept.remove(oldest)
            {
                self.output_bytes -= dropped.cost;
                self.bytes -= dropped.cost;
                let lines = self.kept.get(oldest).map_or(lines_before, |next| next.lines_before);
                self.dropped.push(dropped.stamped.seq, lines);
            }
        }
        self.kept.push_back(kept);
    }

    fn wakers(&mut self) -> Vec<Waker> {
        self.readers.iter_mut().filter_map(|place| place.waker.take()).collect()
    }

    /// Lines of output up to the event of this number, it included.
    fn lines_until(&self, seq: u64) -> u64 {
        match self.dropped.lines_until(seq) {
            Some(lines) => lines,
            None => self.after(seq).map_or(self.lines, |kept| kept.lines_before),
        }
    }

    /// The first event after `seq`.
    fn after(&self, seq: u64) -> Option<&Kept> {
        self.kept.get(self.kept.partition_point(|kept| kept.stamped.seq <= seq))
    }
}

impl Kept {
    fn is_output(&self) -> bool {
        matches!(self.stamped.event, Event::Log { .. } | Event::Progress(_))
    }
}

/// Why nobody can read from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// The run has ended, and its events are gone.
    Gone,
    /// The run has not come so far.
    Beyond {
        /// The number of its last event.
        last_seq: u64,
    },
}

/// One reader of a run's events. While it lives, the run is followed.
#[derive(Debug)]
pub struct Reader {
    log: Arc<EventLog>,
    reader: u64,
    done: bool,
}

impl Reader {
    /// Where the run has a slot, and nothing more is there than that, waits for more, for `limit` at most: what is there
    /// when an answer begins goes to the caller in one step.
    pub async fn settle(&mut self, limit: Duration) {
        let more = std::future::poll_fn(|context| {
            let mut inner = self.log.lock();
            let Some(i) = inner.readers.iter().position(|place| place.reader == self.reader) else {
                return Poll::Ready(());
            };
            let first = inner.after(inner.readers[i].seq).map(|kept| &kept.stamped);
            let alone = first.is_some_and(|first| {
                first.seq == inner.last_seq && matches!(first.event, Event::Accepted { queue_position: 0 })
            });
            if !alone || inner.ended {
                return Poll::Ready(());
            }
            inner.readers[i].waker = Some(context.waker().clone());
            Poll::Pending
        });
        let _ = tokio::time::timeout(limit, more).await;
    }
}

impl tokio_stream::Stream for Reader {
    type Item = Stamped;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Stamped>> {
        if self.done {
            return Poll::Ready(None);
        }
        let reader = self.reader;
        let mut inner = self.log.lock();
        let Some(i) = inner.readers.iter().position(|place| place.reader == reader) else {
            return Poll::Ready(None);
        };
        let place = &inner.readers[i];
        if let Some(refusal) = &inner.cut_off {
            let (seq, event) = (inner.last_seq + 1, Event::Refused(refusal.clone()));
            drop(inner);
            self.done = true;
            return Poll::Ready(Some(Stamped { seq, time: SystemTime::now(), event }));
        }
        let Some(kept) = inner.after(place.seq) else {
            if inner.ended {
                drop(inner);
                self.done = true;
                return Poll::Ready(None);
            }
            inner.readers[i].waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        let mut stamped = kept.stamped.clone();
        let (seq, mut lines) = (stamped.seq, place.lines);
        if let Event::Log { piece, dropped_lines } = &mut stamped.event {
            *dropped_lines = kept.lines_before - lines;
            lines = kept.lines_before + piece.lines;
        }
        let last = matches!(stamped.event, Event::Finished(_) | Event::Refused(_));
        let place = &mut inner.readers[i];
        (place.seq, place.lines, place.moved) = (seq, lines, Instant::now());
        if std::mem::take(&mut inner.writer_waits) {
            self.log.touch();
        }
        drop(inner);
        self.done = last;
        Poll::Ready(Some(stamped))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut inner = self.log.lock();
        inner.readers.retain(|place| place.reader != self.reader);
        if inner.readers.is_empty() || std::mem::take(&mut inner.writer_waits) {
            self.log.touch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::event::MAX_CHUNK_BYTES;
    use crate::run::lines::Piece;
    use crate::run::outcome::Finished;
    use tokio_stream::StreamExt as _;

    fn line(text: &str) -> Event {
        let piece = Piece { text: text.into(), lossy: false, partial: false, lines: 1 };
        Event::Log { piece, dropped_lines: 0 }
    }

    fn log() -> Arc<EventLog> {
        Arc::new(EventLog::default())
    }

    #[tokio::test]
    async fn readers_see_everything_in_order() {
        let log = log();
        let mut live = log.read().unwrap();
        log.push(Event::Accepted { queue_position: 0 });
        let first = live.next().await.unwrap();
        assert_eq!((first.seq, first.event), (1, Event::Accepted { queue_position: 0 }));
        log.push(line("a\n"));
        let result: Arc<str> = Arc::from("é".repeat(MAX_CHUNK_BYTES));
        log.finish(Some(&result), Event::Finished(Arc::new(Finished::for_tests())));
        for mut reader in [live, log.read().unwrap()] {
            let mut text = String::new();
            let mut chunks = 0;
            while let Some(stamped) = reader.next().await {
                if let Event::Result(chunk) = stamped.event {
                    assert!(chunk.as_str().len() <= MAX_CHUNK_BYTES);
                    text.push_str(chunk.as_str());
                    chunks += 1;
                }
            }
            assert_eq!((text.len(), chunks), (result.len(), 2));
        }
        assert!(log.clear());
        assert!(log.read().is_none());
    }

    #[tokio::test]
    async fn what_a_reader_missed_is_counted() {
        let log = log();
        let mut slow = log.read().unwrap();
        log.push(Event::Accepted { queue_position: 0 });
        log.push(line("first\n"));
        slow.next().await.unwrap();
        slow.next().await.unwrap();
        let big = format!("{}\n", "x".repeat(100_000));
        for _ in 0..50 {
            log.push(line(&big));
        }
        log.finish(None, Event::Finished(Arc::new(Finished::for_tests())));
        assert!(log.bytes() < MAX_OUTPUT_BYTES + 1000);
        let (mut seen, mut dropped, mut last) = (0, 0, 2);
        while let Some(stamped) = slow.next().await {
            assert!(stamped.seq > last);
            last = stamped.seq;
            if let Event::Log { piece, dropped_lines } = stamped.event {
                seen += piece.lines;
                dropped += dropped_lines;
            }
        }
        assert_eq!(seen + dropped, 50);
        assert!(seen >= 9 && dropped >= 39, "{seen} seen, {dropped} dropped");
        assert_eq!(last, 53);
    }

    /// What a reader sees that comes back after an event: the number of the first, lines dropped and lines seen.
    async fn seen_after(log: &Arc<EventLog>, seq: u64) -> (Option<u64>, u64, u64) {
        let mut reader = log.read_after(seq).unwrap();
        let (mut first, mut dropped, mut seen) = (None, 0, 0);
        while let Some(stamped) = reader.next().await {
            first.get_or_insert(stamped.seq);
            if let Event::Log { piece, dropped_lines } = stamped.event {
                (dropped, seen) = (dropped + dropped_lines, seen + piece.lines);
            }
        }
        (first, dropped, seen)
    }

    #[tokio::test]
    async fn who_comes_back_is_told_of_the_gap_since() {
        let log = log();
        log.push(Event::Accepted { queue_position: 0 });
        let big = format!("{}\n", "x".repeat(100_000));
        for _ in 0..50 {
            log.push(line(&big));
        }
        assert_eq!(log.read_after(52).unwrap_err(), NoPlace::Beyond { last_seq: 51 });
        log.finish(None, Event::Finished(Arc::new(Finished::for_tests())));
        let (_, dropped, seen) = seen_after(&log, 0).await;
        assert_eq!(dropped + seen, 50);
        // Line i is event i + 1.
        for seq in 1..=51 {
            let lost = (dropped + 1).saturating_sub(seq);
            let expected = (Some(seq + lost + 1), lost, 51 - seq - lost);
            assert_eq!(seen_after(&log, seq).await, expected, "{seq}");
        }
        assert_eq!(seen_after(&log, 52).await, (None, 0, 0), "there is nothing after the end");
        assert!(log.clear());
        assert_eq!(log.read_after(1).unwrap_err(), NoPlace::Gone);
    }

    #[tokio::test]
    async fn an_answer_waits_for_a_start_and_for_nothing_else() {
        // Whoever waits so long does not end.
        const LONG: Duration = Duration::from_secs(3600);
        let queued = log();
        queued.push(Event::Accepted { queue_position: 1 });
        queued.read().unwrap().settle(LONG).await;
        let log = log();
        log.push(Event::Accepted { queue_position: 0 });
        let (mut reader, began) = (log.read().unwrap(), Instant::now());
        reader.settle(Duration::from_millis(2)).await;
        assert!(began.elapsed() >= Duration::from_millis(2));
        tokio::join!(reader.settle(LONG), async { log.push(Event::Started { pid: 1 }) });
        reader.settle(LONG).await;
        assert_eq!(
            (reader.next().await.map(|event| event.seq), reader.next().await.map(|event| event.seq)),
            (Some(1), Some(2))
        );
    }

    #[tokio::test]
    async fn only_a_reader_that_moves_is_waited_for() {
        let log = log();
        let reader = log.read().unwrap();
        let big = "x".repeat(MAX_OUTPUT_BYTES - EVENT_COST);
        log.push(line(&big));
        let until = log.has_room(1).unwrap_err();
        assert!(until <= Instant::now() + STALLED_AFTER);
        drop(reader);
        assert_eq!(log.has_room(1), Ok(()));
        log.touched().await;
        assert!(!log.is_followed());
    }
}
