//! Processes: the servers that a world starts, with their logs, and what the kernel says of all others. The one file of
//! the harness that starts any.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A command, for tests that talk to a program over its pipes.
#[expect(clippy::disallowed_methods, reason = "tests start the real programs, here alone")]
#[must_use]
pub fn command(program: &Path) -> Command {
    Command::new(program)
}

/// A server process. It is killed when it is dropped.
pub struct Server {
    name: &'static str,
    child: Child,
    log: Log,
}

/// The lines that a server has written to stderr so far.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its whole environment.
    pub environment: BTreeMap<String, String>,
    /// A program that sets something up and then becomes the server, with its arguments; empty for none.
    pub wrapper: Vec<OsString>,
}

impl Server {
    /// Starts one.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(name: &'static str, start: &Start) -> Self {
        let mut command = match start.wrapper.split_first() {
            None => command(&start.program),
            Some((wrapper, arguments)) => {
                let mut wrapped = command(Path::new(wrapper));
                wrapped.args(arguments).arg(&start.program);
                wrapped
            }
        };
        let mut child = command
            .args(&start.arguments)
            .env_clear()
            .envs(&start.environment)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", start.program.display()));
        let (log, stderr) = (Log::default(), child.stderr.take().unwrap());
        let lines = log.clone();
        // Ends with the server: its end closes the pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                lines.0.lock().unwrap().push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Self { name, child, log }
    }

    /// Where it listens, as it logs.
    ///
    /// # Panics
    /// When it ends, or is silent for a minute.
    #[must_use]
    pub fn address(&mut self) -> SocketAddr {
        self.listens("listening")
    }

    /// Where its admin port is, as it logs.
    ///
    /// # Panics
    /// When it has none, ends, or is silent for a minute.
    #[must_use]
    pub fn admin_address(&mut self) -> SocketAddr {
        self.listens("admin port")
    }

    /// The address in the line whose message begins with this.
    fn listens(&mut self, message: &str) -> SocketAddr {
        let began = Instant::now();
        loop {
            let lines = self.lines();
            let listening = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|line| {
                let said = line["message"].as_str().is_some_and(|said| said.starts_with(message));
                said.then(|| line["address"].as_str().unwrap_or_default().to_owned())
            });
            if let Some(address) = listening {
                return address.parse().unwrap_or_else(|_| panic!("{address:?} is no address"));
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && began.elapsed() < crate::PATIENCE,
                "{} does not listen ({ended:?}):\n{}",
                self.name,
                lines.join("\n")
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    /// Kills it, and waits for its end, not for that of its descendants.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it has not ended in `limit`.
    pub async fn ended(&mut self, limit: Duration) -> (ExitStatus, Duration) {
        let child = &mut self.child;
        crate::within(limit, "the server ended", async || child.try_wait().unwrap()).await
    }

    /// What it has written so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.log.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Whether a line of the log has this text.
    #[must_use]
    pub fn has_logged(&self, text: &str) -> bool {
        self.lines().iter().any(|line| line.contains(text))
    }

    /// Waits for a line of the log with this text: what a client has heard of may not have been read from the log yet.
    pub async fn logs(&self, text: &str) {
        crate::eventually(&format!("{} logs {text:?}", self.name), async || self.has_logged(text)).await;
    }

    /// Prints the end of its log.
    pub fn show_log(&self) {
        let lines = self.lines();
        let skipped = lines.len().saturating_sub(200);
        eprintln!("---- log of {} ({skipped} lines before)", self.name);
        for line in &lines[skipped..] {
            eprintln!("{line}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.pid())
    }
}

/// A process, as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// `R`, `S`, `T`, `Z`, …
    pub state: char,
    /// Its program and arguments; the program's name alone in brackets where it has none left.
    pub command: String,
}

impl Process {
    /// Whether it still does something, or could.
    #[must_use]
    pub fn lives(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    /// Where it is, where that may be known.
    #[must_use]
    pub fn directory(&self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()
    }

    /// Its program, where that may be known.
    #[must_use]
    pub fn program(&self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }

    /// Kills it, if it is still there.
    pub fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// All processes.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn all() -> Vec<Process> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// One process, if there is such a one.
#[must_use]
pub fn read(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold any character.
    let (head, tail) = stat.rsplit_once(')')?;
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<_> = arguments.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
    let mut command = arguments.join(" ").trim_end().to_owned();
    if command.is_empty() {
        command = format!("[{}]", head.split_once('(').map_or("", |(_, name)| name));
    }
    Some(Process { pid, parent, state, command })
}

/// The children of a process, theirs, and so on.
#[must_use]
pub fn descendants(of: i32) -> Vec<Process> {
    let mut rest = all();
    let (mut found, mut parents) = (Vec::new(), vec![of]);
    while let Some(parent) = parents.pop() {
        let (children, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|process| process.parent == parent);
        parents.extend(children.iter().map(|child| child.pid));
        found.extend(children);
        rest = others;
    }
    found
}

/// How many descriptors a process has open.
///
/// # Panics
/// When there is no such process.
#[must_use]
pub fn open_files(pid: i32) -> usize {
    let directory = format!("/proc/{pid}/fd");
    match std::fs::read_dir(&directory) {
        Ok(entries) => entries.count(),
        // The executor's are root's to list; everybody sees how many they are (Linux 6.2).
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            usize::try_from(std::fs::metadata(&directory).unwrap().len()).unwrap()
        }
        Err(error) => panic!("{directory}: {error}"),
    }
}

/// A field of `/proc/PID/status` that is given in kB, in bytes: `VmRSS`, `VmHWM`.
///
/// # Panics
/// When there is no such process or field.
#[must_use]
pub fn memory(pid: i32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_found_and_read() {
        let script = "sleep 3600 & echo; wait";
        let mut child = command(Path::new("/bin/sh")).args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // Until it has become another program, it is the shell's copy, and for a moment it has no command line.
        let became = |found: &Vec<Process>| found.iter().all(|process| process.command == "sleep 3600");
        let found = std::iter::repeat_with(|| descendants(pid)).find(became).unwrap();
        assert_eq!(found.iter().map(|process| process.parent).collect::<Vec<_>>(), [pid]);
        assert!(found[0].lives() && open_files(pid) >= 2 && memory(pid, "VmRSS") > 1 << 12);
        child.kill().unwrap();
        assert!(std::iter::from_fn(|| read(pid)).find(|process| !process.lives()).is_some());
        child.wait().unwrap();
        assert_eq!(read(pid), None);
        found[0].kill();
    }
}
