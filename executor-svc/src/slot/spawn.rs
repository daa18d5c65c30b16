//! The one file that starts processes: slots, for the executor, and skills, for a slot. Both take the standard library's
//! posix_spawn path, whose cost does not grow with the size of the one that spawns: an absolute program, a whole
//! environment, and no code of ours between clone and exec. Waits for nothing.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use super::Stdio;
use super::limits::Limits;
use super::protocol::Start;

/// The argument that tells a slot not to take the signal scope.
pub(super) const NO_SIGNAL_SCOPE: &str = "--no-signal-scope";

/// How long a busy text file is waited for: a writer's descriptor leaks into a process that is just being started, for
/// as long as its exec takes.
const BUSY_WAITS: [Duration; 8] = [
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
    Duration::from_millis(32),
    Duration::from_millis(64),
];

/// Starts `program` as a slot at the other end of `socket`, which becomes its standard input.
pub(super) fn slot(program: &Path, signal_scope: bool, limits: Limits, socket: OwnedFd) -> io::Result<Child> {
    let mut command = command(program);
    command.arg0("executor-svc").arg("slot").env_clear().stdin(socket).stdout(std::process::Stdio::null());
    if !signal_scope {
        command.arg(NO_SIGNAL_SCOPE);
    }
    command.arg(limits.to_argument());
    command.spawn()
}

/// Starts a skill in a process group of its own. The slot's copies of its descriptors are closed on return.
pub(super) fn skill(start: &Start<'_>, stdio: Stdio) -> io::Result<Child> {
    let mut command = command(start.program);
    command
        .env_clear()
        .envs(start.environment.iter().copied())
        .current_dir(start.directory)
        .process_group(0)
        .stdin(stdio.stdin)
        .stdout(stdio.stdout)
        .stderr(stdio.stderr);
    let mut waits = BUSY_WAITS.iter();
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => match waits.next() {
                Some(wait) => thread::sleep(*wait),
                None => return Err(error),
            },
            result => return result,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one file that starts processes")]
fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}
