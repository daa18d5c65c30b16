//! Where log lines wait to be written: a bounded queue, and a thread that writes. Nobody who logs ever waits for whoever
//! reads the log; a line that finds no room is dropped and counted, and the count is logged when there is room again.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Bytes of lines that wait.
const MOST: usize = 1 << 20;

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
}

impl LogQueue {
    /// Writes to `to`; `lost` is the line that says how many were lost. Where no thread can be had, nothing is written.
    pub(super) fn to(mut to: impl Write + Send + 'static, lost: fn(u64) -> String) -> Self {
        let inner = Arc::new(Inner::default());
        let own = Arc::clone(&inner);
        let write = move || {
            loop {
                let (line, dropped) = own.next();
                // A line that cannot be written, to a full disk or to a reader that left, is lost: where would one say so?
                let _ = to.write_all(&line);
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
        let state = self.inner.state();
        let unwritten = |state: &mut State| state.writing || !state.lines.is_empty();
        drop(self.inner.drained.wait_timeout_while(state, limit, unwritten));
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.bytes + line.len() > MOST {
            state.dropped += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        drop(state);
        self.filled.notify_one();
    }

    /// Waits for the next line, and takes it with the number of those that were dropped before the queue was empty.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut state = self.state();
        state.writing = false;
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                state.writing = true;
                let dropped = if state.lines.is_empty() { std::mem::take(&mut state.dropped) } else { 0 };
                return (line, dropped);
            }
            self.drained.notify_all();
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Takes a line at a time, and is never full.
#[derive(Debug)]
pub(super) struct Lines<'a>(&'a Inner);

impl Write for Lines<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = Lines<'a>;

    fn make_writer(&'a self) -> Lines<'a> {
        Lines(&self.inner)
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
