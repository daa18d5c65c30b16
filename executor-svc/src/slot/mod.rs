//! Processes: the slot processes that start skills, the pool that keeps them, and the thread that waits for all of them.
//! Knows no catalog and no wire.

mod announced;
mod capabilities;
mod confine;
mod files;
mod handle;
mod inherited;
mod limits;
mod link;
mod pool;
mod protocol;
mod reaper;
mod sample;
mod scratch;
mod sentry;
mod settings;
mod spawn;
pub mod supervisor;
mod syscalls;
mod tree;
mod way;
mod worker;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

pub use crate::isolation::{Files, Flavour, InForce, Isolation, Level, RunAs};
pub use handle::Slot;
pub use limits::{LEAST_OPEN_FILES, Limits};
pub use pool::{Pool, PoolOptions, SlotError};
pub use scratch::SlotScratch;

/// Keeps other processes of the same user from reading the memory and the environment of this one: to be called before
/// anything secret is read. Its core is not dumped, and only root can trace it.
///
/// # Errors
/// The kernel refuses.
pub fn hide_process() -> std::io::Result<()> {
    confine::hide()
}

/// What a slot is to start.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Absolute path of the executable.
    pub program: &'a Path,
    /// Its working directory, absolute.
    pub directory: &'a Path,
    /// Its whole environment.
    pub environment: &'a [(String, String)],
}

/// The skill's ends of its three pipes.
#[derive(Debug)]
pub struct Stdio {
    /// Descriptor 0.
    pub stdin: OwnedFd,
    /// Descriptor 1.
    pub stdout: OwnedFd,
    /// Descriptor 2.
    pub stderr: OwnedFd,
}

/// What a slot says of its job, in this order: `Started`, `Exited`, and `Clean` if descendants were left; or
/// `SpawnFailed` alone. `OverLimit` may come once between `Started` and `Exited`. `Lost` may come at any time and is the
/// last.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotEvent {
    /// The process exists.
    Started {
        /// In the executor's pid namespace.
        pid: i32,
    },
    /// The process could not be started.
    SpawnFailed {
        /// `errno`.
        errno: i32,
    },
    /// There was too much of something, and the whole tree is being killed.
    OverLimit(Excess),
    /// The leader exited. Descendants that are left stay until [`Slot::sweep`].
    Exited {
        /// How.
        exit: Exit,
        /// What it used, with the descendants that it waited for.
        usage: Usage,
        /// Whether descendants are left.
        left: bool,
    },
    /// Every descendant has ended.
    Clean,
    /// The slot was stopped or ended, by the skill or from outside; what it ran is being killed.
    Lost,
}

/// What a run had too much of, as its slot measured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Of what.
    pub of: Limited,
    /// How much there was, at least.
    pub measured: u64,
    /// How much there may be.
    pub limit: u64,
}

/// What slots measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Bytes of memory of all processes together, without what is only kept of files.
    Memory,
    /// Processes, threads included.
    Processes,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// What a process used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// From its start to its exit.
    pub wall: Duration,
    /// Processor time in the program.
    pub cpu_user: Duration,
    /// Processor time in the kernel.
    pub cpu_system: Duration,
    /// The largest resident size of one process.
    pub max_rss_bytes: u64,
}
