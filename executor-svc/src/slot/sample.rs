//! What a run takes, measured by its slot: the memory of all its processes together, and how many there are. Found from
//! parent to child by the kernel's lists, so that the cost is the run's alone. Ends nothing.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use super::limits::Limits;
use super::{Excess, Limited};

/// Between two looks. A run that ends before the first one costs nothing.
const EVERY: Duration = Duration::from_millis(100);

/// Looking takes at most one part in so many of a processor, however large the tree is.
const SHARE: u32 = 10;

/// Looks at the tree below the calling process, now and then.
#[derive(Debug)]
pub(super) struct Sampler {
    memory: Option<u64>,
    processes: Option<u64>,
    due: Instant,
    /// The last look of any kind.
    last: Option<Instant>,
    /// Where files of /proc are read to.
    text: Vec<u8>,
}

/// One process, as it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    parent: u32,
    threads: u64,
    /// Bytes that are its own or shared with others, without those of files.
    memory: u64,
    /// Bytes of these that none but its relatives can share.
    anonymous: u64,
}

impl Sampler {
    /// For a run that began then.
    pub(super) fn new(limits: Limits, began: Instant) -> Self {
        let Limits { memory, processes, .. } = limits;
        Self { memory, processes, due: began + EVERY, last: None, text: Vec::new() }
    }

    /// Whether the last look was so long ago.
    pub(super) fn may_look_again(&self, after: Duration) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= after)
    }

    /// Looks if it is time to, and says what there is too much of.
    pub(super) fn look(&mut self) -> Option<Excess> {
        if self.due > Instant::now() { None } else { self.measure() }
    }

    /// Looks now.
    pub(super) fn measure(&mut self) -> Option<Excess> {
        let began = Instant::now();
        let excess = self.count();
        let now = Instant::now();
        self.last = Some(now);
        self.due = now + EVERY.max((now - began) * SHARE);
        excess
    }

    fn count(&mut self) -> Option<Excess> {
        let own = std::process::id();
        let mut found = vec![];
        let mut waiting = vec![];
        // Of all its threads.
        self.children(own, 2, &mut waiting);
        let (mut tasks, mut memory, mut sure) = (0, 0u64, false);
        while let Some((pid, parent)) = waiting.pop() {
            let Some(seen) = self.status(pid) else { continue };
            // A pid that was given to somebody else meanwhile; an orphan is the slot's.
            if seen.parent != parent && seen.parent != own {
                continue;
            }
            tasks += seen.threads;
            if let Some(limit) = self.processes
                && tasks > limit
            {
                // The rest need not be counted: it may be growing as fast.
                return Some(Excess { of: Limited::Processes, measured: tasks, limit });
            }
            memory = memory.saturating_add(seen.memory);
            sure |= self.memory.is_some_and(|limit| seen.anonymous > limit);
            found.push((pid, seen.memory));
            self.children(pid, seen.threads, &mut waiting);
        }
        let limit = self.memory.filter(|limit| memory > *limit)?;
        // What several share was counted for each of them. While some end, the shares of others grow: what was too much
        // twice in a row was not that.
        let mut shares = || found.iter().map(|(pid, most)| self.share(*pid, *most)).sum::<u64>();
        let measured = if sure { memory } else { shares().min(shares()) };
        (measured > limit).then_some(Excess { of: Limited::Memory, measured, limit })
    }

    /// Adds a process's children with their parent.
    fn children(&mut self, pid: u32, threads: u64, to: &mut Vec<(u32, u32)>) {
        let mut add = |text: &[u8]| {
            let words = text.split(u8::is_ascii_whitespace);
            to.extend(words.filter_map(|word| Some((std::str::from_utf8(word).ok()?.parse().ok()?, pid))));
        };
        if threads == 1 {
            add(self.read(&format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default());
            return;
        }
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            add(self.read(&format!("/proc/{pid}/task/{}/children", task.file_name().display())).unwrap_or_default());
        }
    }

    fn status(&mut self, pid: u32) -> Option<Seen> {
        self.read(&format!("/proc/{pid}/status")).map(parse_status)
    }

    /// A process's proportional share: what two share is half each one's. Where that may not be read, all of it.
    fn share(&mut self, pid: u32, most: u64) -> u64 {
        match self.try_read(&format!("/proc/{pid}/smaps_rollup")) {
            Ok(text) => parse_share(text).unwrap_or(most).min(most),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => most,
            // It has ended.
            Err(_) => 0,
        }
    }

    fn read(&mut self, path: &str) -> Option<&[u8]> {
        self.try_read(path).ok()
    }

    fn try_read(&mut self, path: &str) -> io::Result<&[u8]> {
        self.text.clear();
        File::open(path)?.read_to_end(&mut self.text)?;
        Ok(&self.text)
    }
}

/// As proc_pid_status(5) has it.
fn parse_status(text: &[u8]) -> Seen {
    let mut seen = Seen::default();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        let (key, value) = (&line[..at], &line[at + 1..]);
        match key {
            b"PPid" => seen.parent = number(value).and_then(|n| n.try_into().ok()).unwrap_or(0),
            b"RssAnon" | b"VmSwap" => seen.anonymous += kilobytes(value),
            b"RssShmem" => seen.memory += kilobytes(value),
            b"Threads" => {
                seen.threads = number(value).unwrap_or(1);
                break;
            }
            _ => {}
        }
    }
    seen.memory += seen.anonymous;
    seen
}

/// As proc_pid_smaps(5) has it; `None` before Linux 5.9.
fn parse_share(text: &[u8]) -> Option<u64> {
    let mut share = None;
    for line in text.split(|byte| *byte == b'\n') {
        for key in [&b"Pss_Anon:"[..], b"Pss_Shmem:", b"SwapPss:"] {
            if let Some(value) = line.strip_prefix(key) {
                share = Some(share.unwrap_or(0) + kilobytes(value));
            }
        }
    }
    share
}

fn kilobytes(value: &[u8]) -> u64 {
    number(value).unwrap_or(0) << 10
}

/// The first number in it.
fn number(value: &[u8]) -> Option<u64> {
    let text = value.trim_ascii();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        let text = "Name:\ta: Threads:\t9\nPPid:\t17\nVmRSS:\t  900 kB\nRssAnon:\t  100 kB\nRssFile:\t 700 kB\n\
                    RssShmem:\t   50 kB\nVmSwap:\t     4 kB\nThreads:\t3\nRssAnon:\t9 kB\n";
        let seen = Seen { parent: 17, threads: 3, memory: 154 << 10, anonymous: 104 << 10 };
        assert_eq!(parse_status(text.as_bytes()), seen);
        // One that has ended has no memory.
        let ended = Seen { parent: 1, threads: 1, ..Seen::default() };
        assert_eq!(parse_status(b"State:\tZ (zombie)\nPPid:\t1\nThreads:\t1\n"), ended);
        let share = "Rss:  9 kB\nPss:  8 kB\nPss_Anon:  3 kB\nPss_File:  4 kB\nPss_Shmem:  1 kB\nSwapPss:  2 kB\n";
        assert_eq!(parse_share(share.as_bytes()), Some(6 << 10));
        assert_eq!(parse_share(b"Rss: 9 kB\nPss: 8 kB\n"), None);
    }

    #[test]
    fn the_calling_process_can_be_read() {
        let mut sampler = Sampler::new(Limits::default(), Instant::now());
        let seen = sampler.status(std::process::id()).unwrap();
        assert!(seen.threads > 1 && seen.anonymous > 4096, "{seen:?}");
        let share = sampler.share(std::process::id(), u64::MAX);
        assert!(share > 4096 && share < 1 << 30, "{share}");
    }
}
