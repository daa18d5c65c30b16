//! The processes below the calling one, found by walking /proc: for a kernel without signal scopes, and for what a dead
//! slot left to the executor. Signals a process only while it is proved to be a descendant: pids are reused. Waits for
//! none.

use std::collections::HashSet;
use std::fs::{File, read_dir};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::str::FromStr;

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

/// Sends `signal` once to each of `roots` and to all below them, parents before children: a shell whose command ends
/// first would go on to the next. `roots` are children of the calling process that nobody waits for meanwhile, so that
/// their pids stay theirs.
pub(super) fn signal(roots: &[Pid], signal: Signal) {
    for &root in roots {
        walk_root(root, signal, &mut |process, when| {
            if when == When::Before {
                process.send(signal);
            }
        });
    }
}

/// One attempt to kill all that `roots` gives, and all below, and returns how many of the roots were hit. A tree that
/// forks as fast as it is killed is stopped first: those that are stopped keep their place under the limit on processes
/// that in the end stops every fork. Who was born unseen is left to the next attempt.
pub(super) fn kill(roots: impl Fn() -> Vec<Pid>) -> usize {
    let mut seen = HashSet::new();
    for _ in 0..MAX_FREEZES {
        let before = seen.len();
        for root in roots() {
            walk_root(root, Signal::STOP, &mut |process, when| {
                // Once it is sent, no instruction of the program runs any more.
                if when == When::Before && seen.insert((process.pid, process.start)) {
                    process.send(Signal::STOP);
                }
            });
        }
        if seen.len() == before {
            break;
        }
    }
    let roots = roots();
    let hit = |root: &Pid| {
        // Children before parents: a group whose last parent ends is woken by the kernel.
        walk_root(*root, Signal::KILL, &mut |process, when| {
            if when == When::After {
                process.send(Signal::KILL);
            }
        });
        kill_process(*root, Signal::KILL).is_ok()
    };
    roots.iter().filter(|root| hit(root)).count()
}

/// How often a tree is looked at for processes that are not stopped yet.
const MAX_FREEZES: usize = 20;

/// Before those below it were visited, or after.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    After,
}

type Visit<'a> = dyn FnMut(&Process, When) + 'a;

fn walk_root(root: Pid, signal: Signal, visit: &mut Visit<'_>) {
    match Process::open(root) {
        Ok(process) => walk(&process, signal, visit, 1),
        // Descriptors may have run out; its pid is its own, and those below come nearer by its end.
        Err(_) => drop(kill_process(root, signal)),
    }
}

fn walk(process: &Process, signal: Signal, visit: &mut Visit<'_>, depth: usize) {
    // The list is read before the signal: what one that ends leaves behind is still on it.
    let below = process.children().unwrap_or_default();
    visit(process, When::Before);
    for pid in below.into_iter().filter(|_| depth < MAX_DEPTH) {
        let Ok(child) = Process::open(pid) else { continue };
        // An ended parent's children are the caller's own by now. SIGKILL leaves them to the next attempt; other
        // signals have none.
        let adopted = || signal != Signal::KILL && child.parent() == Some(getpid());
        if child.is_child_of(process) || adopted() {
            walk(&child, signal, visit, depth + 1);
        }
    }
    visit(process, When::After);
}

/// A process by its directory in /proc, which stays that process's whoever gets its pid next.
struct Process {
    pid: Pid,
    /// When it was started: with the pid, its name for ever.
    start: u64,
    directory: OwnedFd,
}

impl Process {
    fn open(pid: Pid) -> io::Result<Self> {
        let path = format!("/proc/{}", pid.as_raw_nonzero());
        let directory = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut process = Self { pid, start: 0, directory };
        process.start = process.stat(START).ok_or(Errno::SRCH)?;
        Ok(process)
    }

    fn send(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.directory, signal);
    }

    fn is_child_of(&self, parent: &Self) -> bool {
        // `parent` is there after the look at its number, so the number was its own at the look.
        self.parent() == Some(parent.pid) && parent.parent().is_some()
    }

    fn parent(&self) -> Option<Pid> {
        Pid::from_raw(self.stat(PARENT)?)
    }

    /// A field of its stat, counted from the state.
    fn stat<T: FromStr>(&self, field: usize) -> Option<T> {
        let text = self.read("stat").ok()?;
        // The command's name stands in parentheses and may hold any of them: its end is the last.
        let (_, rest) = text.rsplit_once(')')?;
        rest.split_ascii_whitespace().nth(field)?.parse().ok()
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

/// Fields of stat: proc_pid_stat(5) counts them from 1, and the state is the third.
const PARENT: usize = 4 - 3;
const START: usize = 22 - 3;

fn parse_children(text: &str, pids: &mut Vec<Pid>) {
    pids.extend(text.split_ascii_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)));
}

/// The task ended between the listing and the look.
fn is_gone(error: &io::Error) -> bool {
    [Some(Errno::NOENT.raw_os_error()), Some(Errno::SRCH.raw_os_error())].contains(&error.raw_os_error())
}
