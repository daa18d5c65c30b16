//! Processor time, as the kernel counts it for whole processes: of this one with the children it waited for, and of an
//! executor with its slots and all that these waited for.

use std::collections::HashMap;
use std::fs;

use skillyard_tests::process;

/// Seconds of processor time so far, by process.
#[derive(Debug, Default)]
pub(crate) struct Spent(HashMap<i32, f64>);

impl Spent {
    /// Of a process and all that it started.
    pub(crate) fn by_tree(pid: i32) -> Self {
        let below = process::descendants(pid);
        Self(below.iter().map(|process| process.pid).chain([pid]).map(|pid| (pid, of(pid))).collect())
    }

    /// Of this process, and of those that it started and that have ended.
    pub(crate) fn by_this() -> Self {
        let own = std::process::id().cast_signed();
        Self([(own, of(own))].into())
    }

    /// Since an earlier look; what is new was not there then.
    pub(crate) fn since(&self, before: &Self) -> f64 {
        self.0.iter().map(|(pid, now)| now - before.0.get(pid).unwrap_or(&0.0)).sum()
    }
}

/// User and system time with those of the children that were waited for: fields 14 to 17 of `proc_pid_stat(5)`. None where
/// the process has ended.
fn of(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, fields)) = stat.rsplit_once(')') else { return 0.0 };
    let ticks = fields.split_ascii_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64
}
