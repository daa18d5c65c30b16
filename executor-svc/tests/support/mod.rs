//! Jobs for slots, and a look at the processes that they leave.
//!
//! The waiting thread of a pool takes every child of its process: nothing here starts a process but slots.

#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use executor_svc::slot::{Exit, Flavour, Job, Pool, PoolOptions, Slot, SlotEvent, Stdio};
use rustix::pipe::{PipeFlags, pipe_with};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};

/// A pool of the built program's slots, and a directory for scripts.
pub(crate) struct World {
    pub(crate) pool: Pool,
    pub(crate) directory: TempDir,
    /// In the environment of every process that a job of this world started, and of none else.
    pub(crate) mark: String,
}

/// The executor's ends of a job's pipes.
pub(crate) struct Pipes {
    pub(crate) stdin: Sender,
    pub(crate) stdout: Receiver,
    pub(crate) stderr: Receiver,
}

/// What became of a job.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) events: Vec<&'static str>,
    pub(crate) exit: Option<Exit>,
    pub(crate) stdout: String,
}

impl World {
    pub(crate) fn new(signal_scope: bool) -> Self {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let program = PathBuf::from(env!("CARGO_BIN_EXE_executor-svc"));
        Self {
            pool: Pool::with(PoolOptions { program, signal_scope, ..PoolOptions::default() }).unwrap(),
            directory: tempfile::tempdir().unwrap(),
            mark: format!("SLOT_TEST={}-{}", std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Whether this is in force.
    pub(crate) fn isolation_has(&self, name: &str) -> bool {
        self.pool.isolation().iter().any(|told| told == name)
    }

    /// An executable shell script.
    pub(crate) fn script(&self, body: &str) -> PathBuf {
        self.file(&format!("#!/bin/sh\n{body}\n"), 0o755)
    }

    pub(crate) fn file(&self, text: &str, mode: u32) -> PathBuf {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let path = self.directory.path().join(format!("file-{}", FILES.fetch_add(1, Ordering::Relaxed)));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let (name, value) = self.mark.split_once('=').unwrap();
        vec![("PATH".into(), "/usr/bin:/bin".into()), (name.into(), value.into())]
    }

    /// Starts `program` in the world's directory.
    pub(crate) fn start(&self, slot: &mut Slot, program: &Path) -> Pipes {
        let (stdio, pipes) = pipes();
        let job = Job { program, directory: self.directory.path(), environment: &self.environment() };
        slot.start(&job, stdio).unwrap();
        pipes
    }

    /// From the start to the end of `program`, sweeping what it leaves.
    pub(crate) async fn run(&self, slot: &mut Slot, program: &Path) -> Outcome {
        let pipes = self.start(slot, program);
        finish(slot, pipes, b"").await
    }

    /// The same for a script, in a slot of its own.
    pub(crate) async fn sh(&self, body: &str) -> Outcome {
        let program = self.script(body);
        self.run(&mut self.pool.take(Flavour::Safe).await.unwrap(), &program).await
    }

    /// The living, and the zombies, that jobs of this world started.
    pub(crate) fn left(&self) -> Vec<String> {
        marked(&self.mark)
    }

    pub(crate) async fn nothing_is_left(&self) {
        eventually(Duration::from_secs(5), || self.left().is_empty().then_some(()).ok_or_else(|| self.left())).await;
    }
}

pub(crate) fn pipes() -> (Stdio, Pipes) {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
    let ((stdin, to), (from, stdout), (errors, stderr)) = (pipe(), pipe(), pipe());
    let pipes = Pipes {
        stdin: Sender::from_owned_fd(to).unwrap(),
        stdout: Receiver::from_owned_fd(from).unwrap(),
        stderr: Receiver::from_owned_fd(errors).unwrap(),
    };
    (Stdio { stdin, stdout, stderr }, pipes)
}

/// Follows the job to its end, with `input` on its standard input.
pub(crate) async fn finish(slot: &mut Slot, mut pipes: Pipes, input: &[u8]) -> Outcome {
    let mut outcome = Outcome { events: Vec::new(), exit: None, stdout: String::new() };
    let feed = async {
        let _ = pipes.stdin.write_all(input).await;
        drop(pipes.stdin);
    };
    let follow = async {
        loop {
            match within(slot.next()).await {
                SlotEvent::Started { pid } => {
                    assert!(pid > 1);
                    outcome.events.push("started");
                }
                SlotEvent::SpawnFailed { .. } => {
                    outcome.events.push("spawn failed");
                    break;
                }
                SlotEvent::OverLimit(_) => outcome.events.push("over a limit"),
                SlotEvent::Exited { exit, left, .. } => {
                    outcome.exit = Some(exit);
                    outcome.events.push(if left { "exited, left" } else { "exited" });
                    if !left {
                        break;
                    }
                    slot.sweep();
                }
                SlotEvent::Clean => {
                    outcome.events.push("clean");
                    break;
                }
                SlotEvent::Lost => {
                    outcome.events.push("lost");
                    break;
                }
            }
        }
    };
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let (_, _, read, _) = within(async {
        tokio::join!(feed, follow, pipes.stdout.read_to_end(&mut stdout), pipes.stderr.read_to_end(&mut stderr))
    })
    .await;
    read.unwrap();
    outcome.stdout = String::from_utf8(stdout).unwrap();
    outcome
}

/// The future's value, or a failure if it takes unreasonably long.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("took longer than 20 s")
}

/// Looks again until `look` has a value, or fails with its last word.
pub(crate) async fn eventually<T, W: std::fmt::Debug>(limit: Duration, mut look: impl FnMut() -> Result<T, W>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(why) => assert!(start.elapsed() < limit, "not within {limit:?}: {why:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Processes with `mark` in their environment, as `pid state command`.
pub(crate) fn marked(mark: &str) -> Vec<String> {
    processes().into_iter().filter(|pid| has_mark(*pid, mark)).map(describe).collect()
}

pub(crate) fn has_mark(pid: i32, mark: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()))
}

/// Every process there is.
pub(crate) fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Its state and its parent.
pub(crate) fn status(pid: i32) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The processes whose parent is `parent`.
pub(crate) fn children(parent: i32) -> Vec<i32> {
    processes().into_iter().filter(|pid| status(*pid).is_some_and(|(_, ppid)| ppid == parent)).collect()
}

fn describe(pid: i32) -> String {
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
    format!("{pid} {:?} {command}", status(pid))
}
