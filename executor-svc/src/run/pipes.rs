//! The executor's ends of a run's three pipes: what they hold is read and written here, and looked at elsewhere.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tracing::warn;

use crate::slot::Stdio;

/// Most bytes of one read, and so of one piece of stderr.
pub const READ_BYTES: usize = 64 << 10;

/// The executor's ends of the pipes of one run. An end that is closed is `None`.
#[derive(Debug)]
pub struct Pipes {
    stdin: Stdin,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
}

#[derive(Debug)]
enum Stdin {
    Unwritten(OwnedFd),
    Writing { pipe: pipe::Sender, rest: Vec<u8>, written: usize },
    Closed,
}

/// One of the two that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl Pipes {
    /// Three new pipes, and the skill's ends of them.
    ///
    /// # Errors
    /// There is no descriptor, or no memory, left.
    pub fn open() -> std::io::Result<(Self, Stdio)> {
        let (stdin, stdin_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stdout_reader, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr_reader, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        for ours in [&stdin_writer, &stdout_reader, &stderr_reader] {
            rustix::io::ioctl_fionbio(ours, true)?;
        }
        let pipes = Self {
            stdin: Stdin::Unwritten(stdin_writer),
            stdout: Some(pipe::Receiver::from_owned_fd_unchecked(stdout_reader)?),
            stderr: Some(pipe::Receiver::from_owned_fd_unchecked(stderr_reader)?),
        };
        Ok((pipes, Stdio { stdin, stdout, stderr }))
    }

    /// Writes to stdin and closes it after. Small arguments fit into the pipe at once, and then nothing of stdin is left
    /// to watch.
    pub fn write_arguments(&mut self, arguments: Vec<u8>) {
        let Stdin::Unwritten(fd) = std::mem::replace(&mut self.stdin, Stdin::Closed) else { return };
        let written = match rustix::io::write(&fd, &arguments) {
            Ok(n) if n == arguments.len() => return,
            Ok(written) => written,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            // The skill closed its stdin: its exit decides.
            Err(_) => return,
        };
        match pipe::Sender::from_owned_fd_unchecked(fd) {
            Ok(pipe) => self.stdin = Stdin::Writing { pipe, rest: arguments, written },
            Err(error) => warn!(%error, "stdin is closed early"),
        }
    }

    /// Whether stdin is not all written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        matches!(self.stdin, Stdin::Writing { .. })
    }

    /// Resolves when more can be written.
    pub async fn writable(&self) {
        match &self.stdin {
            // An error shows again at the write.
            Stdin::Writing { pipe, .. } => drop(pipe.writable().await),
            _ => std::future::pending().await,
        }
    }

    /// Writes what the pipe takes now.
    pub fn write_more(&mut self) {
        if let Stdin::Writing { pipe, rest, written } = &mut self.stdin {
            match pipe.try_write(&rest[*written..]) {
                Ok(n) => *written += n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => *written = rest.len(),
            }
            if *written == rest.len() {
                self.stdin = Stdin::Closed;
            }
        }
    }

    /// Whether this one has not come to its end.
    #[must_use]
    pub fn is_open(&self, output: Output) -> bool {
        self.end(output).is_some()
    }

    /// Whether both outputs have come to their ends.
    #[must_use]
    pub fn are_at_end(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none()
    }

    /// Resolves when there is something to read, or the end.
    pub async fn readable(&self, output: Output) {
        match self.end(output) {
            // An error shows again at the read.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }

    /// Reads once, without waiting, and closes the end when it has come. Returns how many bytes there were.
    pub fn read(&mut self, output: Output, take: impl FnOnce(&[u8])) -> usize {
        let Some(pipe) = self.end(output) else { return 0 };
        let read = with_buffer(|buffer| {
            let read = pipe.try_read(buffer);
            if let Ok(n @ 1..) = read {
                take(&buffer[..n]);
            }
            read
        });
        match read {
            Ok(n @ 1..) => return n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => match output {
                Output::Stdout => self.stdout = None,
                Output::Stderr => self.stderr = None,
            },
        }
        0
    }

    fn end(&self, output: Output) -> Option<&pipe::Receiver> {
        match output {
            Output::Stdout => self.stdout.as_ref(),
            Output::Stderr => self.stderr.as_ref(),
        }
    }
}

/// Lends a buffer that all runs share: it is never held across an await.
fn with_buffer<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static BUFFER: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; READ_BYTES]));
    BUFFER.with_borrow_mut(|buffer| f(buffer))
}
