//! The processes below the calling one, found by walking /proc: for a kernel without signal scopes, and for what a dead
//! slot left to the executor. Signals a process only while it is proved to be a descendant: pids are reused. Waits for
//! none.

use std::fs::{File, read_dir};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, pidfd_send_signal};

/// How deep one walk goes; each level holds a descriptor. What is deeper comes nearer when its ancestors end.
const MAX_DEPTH: usize = 100;

/// Whether the kernel lists children at all; without the lists there would seem to be none.
pub(super) fn check() -> io::Result<()> {
    std::fs::read("/proc/thread-self/children").map(drop).map_err(|error| {
        let reason = "processes are found by it, so /proc must be mounted and the kernel built with PROC_CHILDREN";
        io::Error::new(error.kind(), format!("/proc/thread-self/children cannot be read ({error}): {reason}"))
    })
}

/// The calling process's children, of all its threads.
pub(super) fn children() -> io::Result<Vec<Pid>> {
    let mut pids = Vec::new();
    for task in read_dir("/proc/self/task")? {
        let path = task?.path().join("children");
        match std::fs::read_to_string(path) {
            Ok(text) => parse_children(&text, &mut pids),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(pids)
}

/// Sends `signal` to each of `roots` and to all below them, and returns how many of `roots` it was sent to. `roots` are
/// children of the calling process that nobody waits for meanwhile, so that their pids stay theirs.
pub(super) fn signal(roots: &[Pid], signal: Signal) -> usize {
    let mut sent = 0;
    for &root in roots {
        // The list is read before the signal: what a child that ends leaves behind is still on it.
        let process = Process::open(root).ok();
        let below = process.as_ref().and_then(|process| process.children().ok()).unwrap_or_default();
        if kill_process(root, signal).is_ok() {
            sent += 1;
        }
        if let Some(process) = process {
            signal_below(&process, &below, signal, 1);
        }
    }
    sent
}

fn signal_below(parent: &Process, pids: &[Pid], signal: Signal, depth: usize) {
    for &pid in pids {
        let Ok(process) = Process::open(pid) else { continue };
        // An ended parent's children are the caller's own by now. SIGKILL leaves them to the next pass; other signals
        // have none.
        let adopted = || signal != Signal::KILL && process.parent_pid() == Some(getpid());
        if !process.is_child_of(parent) && !adopted() {
            continue;
        }
        let below = process.children().unwrap_or_default();
        let _ = pidfd_send_signal(&process.directory, signal);
        if depth < MAX_DEPTH {
            signal_below(&process, &below, signal, depth + 1);
        }
    }
}

/// A process by its directory in /proc, which stays that process's whoever gets its pid next.
struct Process {
    pid: Pid,
    directory: OwnedFd,
}

impl Process {
    fn open(pid: Pid) -> io::Result<Self> {
        let path = format!("/proc/{}", pid.as_raw_nonzero());
        let directory = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { pid, directory })
    }

    fn is_child_of(&self, parent: &Self) -> bool {
        // `parent` is there after the look at its number, so the number was its own at the look.
        self.parent_pid() == Some(parent.pid) && parent.parent_pid().is_some()
    }

    fn parent_pid(&self) -> Option<Pid> {
        let text = self.read("stat").ok()?;
        // The command's name stands in parentheses and may hold any of them: its end is the last.
        let (_, rest) = text.rsplit_once(')')?;
        Pid::from_raw(rest.split_ascii_whitespace().nth(1)?.parse().ok()?)
    }

    fn children(&self) -> io::Result<Vec<Pid>> {
        let tasks =
            openat(&self.directory, "task", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut pids = Vec::new();
        for task in Dir::new(tasks)? {
            let name = task?;
            let name = name.file_name().to_string_lossy();
            if name.starts_with('.') {
                continue;
            }
            match self.read(format!("task/{name}/children")) {
                Ok(text) => parse_children(&text, &mut pids),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(pids)
    }

    fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let file = openat(&self.directory, path.as_ref(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = Vec::with_capacity(256);
        File::from(file).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn parse_children(text: &str, pids: &mut Vec<Pid>) {
    pids.extend(text.split_ascii_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)));
}

/// The task ended between the listing and the look.
fn is_gone(error: &io::Error) -> bool {
    [Some(Errno::NOENT.raw_os_error()), Some(Errno::SRCH.raw_os_error())].contains(&error.raw_os_error())
}
