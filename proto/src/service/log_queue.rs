//! Where log lines wait to be written: a bounded queue, and a thread that writes. Nobody who logs ever waits for whoever
//! reads the log; a line that finds no room is dropped and counted, and the count is logged when there is room again.
//! Lines that tell of no trouble wait some milliseconds for others: to wake the thread and to write cost a busy executor
//! more than all else that a line takes.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Bytes of lines that wait.
const MOST: usize = 1 << 20;
/// From so many on, they wait for no others.
const MANY: usize = MOST / 2;
/// How long a line waits for others, unless it tells of trouble.
const GATHER_FOR: Duration = Duration::from_millis(10);
/// Bytes of one write, where it is not one line: as many as a pipe takes in one step (`pipe(7)`), so that what slots say
/// on the same pipe stands between lines.
const ONE_WRITE: usize = 4096;

/// The queue. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct LogQueue {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Everything is written.
    drained: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    writing: bool,
    /// A line is not to wait for others.
    urgent: bool,
}

impl LogQueue {
    /// Writes to `to`; `lost` is the line that says how many were lost. Where no thread can be had, nothing is written.
    pub(super) fn to(mut to: impl Write + Send + 'static, lost: fn(u64) -> String) -> Self {
        let inner = Arc::new(Inner::default());
        let own = Arc::clone(&inner);
        let write = move || {
            loop {
                let (lines, dropped) = own.next();
                // What cannot be written, to a full disk or to a reader that left, is lost: where would one say so?
                let _ = to.write_all(&lines);
                if dropped > 0 {
                    let _ = to.write_all(lost(dropped).as_bytes());
                }
            }
        };
        let _ = thread::Builder::new().name("log".into()).stack_size(128 * 1024).spawn(write);
        Self { inner }
    }

    /// Waits until all lines are written, for so long at most.
    pub(super) fn flush(&self, limit: Duration) {
        let mut state = self.inner.state();
        state.urgent = true;
        self.inner.filled.notify_one();
        let unwritten = |state: &mut State| state.writing || !state.lines.is_empty();
        drop(self.inner.drained.wait_timeout_while(state, limit, unwritten));
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8], urgent: bool) {
        let mut state = self.state();
        if state.bytes + line.len() > MOST {
            state.dropped += 1;
            return;
        }
        let before = state.bytes;
        state.bytes += line.len();
        // Else the thread writes, and looks again, or gathers.
        let many = before < MANY && state.bytes >= MANY;
        let wake = state.lines.is_empty() || many || (urgent && !state.urgent);
        state.lines.push_back(line.to_vec());
        state.urgent |= urgent;
        drop(state);
        if wake {
            self.filled.notify_one();
        }
    }

    /// Waits for the next lines, and takes as many as are written at once, with the number of those that were dropped
    /// before the queue was empty.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut state = self.state();
        state.writing = false;
        if state.lines.is_empty() {
            self.drained.notify_all();
            let empty = |state: &mut State| state.lines.is_empty();
            state = self.filled.wait_while(state, empty).unwrap_or_else(PoisonError::into_inner);
            let gathering = |state: &mut State| !state.urgent && state.bytes < MANY;
            let gathered = self.filled.wait_timeout_while(state, GATHER_FOR, gathering);
            (state, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        let mut taken = state.lines.pop_front().unwrap_or_default();
        while let Some(line) = state.lines.front()
            && taken.len() + line.len() <= ONE_WRITE
        {
            taken.extend_from_slice(line);
            state.lines.pop_front();
        }
        state.bytes -= taken.len();
        let last = state.lines.is_empty();
        state.urgent &= !last;
        let dropped = if last { std::mem::take(&mut state.dropped) } else { 0 };
        (taken, dropped)
    }
}

/// Takes a line at a time, and is never full.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    queue: &'a Inner,
    urgent: bool,
}

impl Write for Lines<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queue.push(line, self.urgent);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = Lines<'a>;

    fn make_writer(&'a self) -> Lines<'a> {
        Lines { queue: &self.inner, urgent: true }
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Lines<'a> {
        Lines { queue: &self.inner, urgent: *of.level() <= Level::WARN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_reader_who_stands_still_holds_nobody_up_and_learns_what_it_missed() {
        let (mut reader, writer) = io::pipe().unwrap();
        let queue = LogQueue::to(writer, |lost| format!("lost {lost}\n"));
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        for _ in 0..4096 {
            queue.make_writer().write_all(&line).unwrap();
        }
        queue.flush(Duration::from_millis(10));
        let reading = thread::spawn(move || {
            let (mut text, mut buffer) = (String::new(), [0; 65536]);
            while !text.ends_with("end\n") {
                let n = reader.read(&mut buffer).unwrap();
                text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
            }
            text
        });
        queue.flush(Duration::from_secs(30));
        queue.make_writer().write_all(b"end\n").unwrap();
        let text = reading.join().unwrap();
        let lost: usize = text.lines().find_map(|line| line.strip_prefix("lost ")).unwrap().parse().unwrap();
        let whole = text.lines().filter(|line| line.len() == 1023).count();
        assert_eq!((whole + lost, whole >= 1024), (4096, true));
    }
}
