//! What the next skill inherits from its slot beside its clean environment: limits, niceness, processors. A skill may change
//! these for its slot, as for any process of its user; they are compared with what they were, and never set.

use rustix::process::{Resource, Rlimit, getpriority_process, getrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};

const LIMITS: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

/// The calling process's, at some moment.
#[derive(PartialEq, Eq)]
pub(super) struct Inherited {
    limits: [Rlimit; LIMITS.len()],
    niceness: Option<i32>,
    processors: Option<CpuSet>,
}

impl Inherited {
    pub(super) fn now() -> Self {
        Self {
            limits: LIMITS.map(getrlimit),
            niceness: getpriority_process(None).ok(),
            processors: sched_getaffinity(None).ok(),
        }
    }
}
