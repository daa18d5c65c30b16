//! The slot process: small, with an empty environment, kept from run to run. It starts one skill at a time for
//! the executor at the other end of its socket, says how it ended, and ends what it left behind. It reads no pipe, knows
//! no deadline, and outlives the executor by no more than the time that ending the tree takes.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, pidfd_open, wait, waitid, waitpid,
};
use rustix::thread::sched_yield;
use wait4::Wait4;

use super::inherited::Inherited;
use super::link::{Closed, Link};
use super::protocol::{self, MAX_MESSAGE, NO_JOB, Order, Report, Request};
use super::sentry::Sentry;
use super::settings::Settings;
use super::{Exit, Usage, confine, spawn, tree};

/// Runs as a slot until the socket on descriptor 0 closes. `arguments` are those after `slot`.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let settings = match Settings::from_arguments(arguments) {
        Ok(settings) => settings,
        Err(argument) => {
            eprintln!("executor-svc slot: unknown argument {}", argument.display());
            return ExitCode::from(64);
        }
    };
    if sockopt::socket_type(io::stdin()) != Ok(SocketType::SEQPACKET) {
        eprintln!(
            "executor-svc slot: descriptor 0 is not an executor's socket; slots are started by executor-svc alone"
        );
        return ExitCode::from(64);
    }
    match Supervisor::start(&settings) {
        Ok(mut supervisor) => {
            supervisor.serve();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("executor-svc slot: cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// How often a run's adopted children are looked at; those that ended would stay zombies for as long as it goes on.
const TICK: Duration = Duration::from_millis(200);

struct Supervisor {
    link: Link,
    tree: Tree,
    sentry: Sentry,
    /// What every skill is to inherit; `None` where the filters keep skills from changing it, and it need not be looked at.
    inherited: Option<Inherited>,
    /// Where jobs are read to; only pages that a long one needs are ever touched.
    incoming: Vec<u8>,
}

impl Supervisor {
    fn start(settings: &Settings) -> io::Result<Self> {
        let socket = confine::settle()?;
        settings.limits.apply()?;
        let in_force = confine::apply(settings)?;
        let scoped = in_force.signals;
        if !scoped {
            tree::check()?;
        }
        let mut link = Link::new(socket);
        link.report(NO_JOB, Report::Ready(in_force));
        let tree = Tree { scoped };
        let sentry = Sentry::start(settings.limits, tree)?;
        let inherited = (!in_force.seccomp).then(Inherited::now);
        Ok(Self { link, tree, sentry, inherited, incoming: vec![0; MAX_MESSAGE] })
    }

    /// Whether a skill has changed what the next one would inherit. Such a slot is not clean, and never will be.
    fn is_changed(&self) -> bool {
        self.inherited.as_ref().is_some_and(|before| Inherited::now() != *before)
    }

    fn serve(&mut self) {
        while let Ok((length, descriptors)) = self.link.receive(&mut self.incoming) {
            // What is no job is a late order for one that is over.
            let Some((number, Request::Start(start))) = protocol::decode_request(&self.incoming[..length]) else {
                continue;
            };
            let Some(stdio) = descriptors else {
                self.link.report(number, Report::SpawnFailed { errno: Errno::BADF.raw_os_error() });
                continue;
            };
            self.sentry.begin();
            let started = spawn::skill(&start, stdio).and_then(Leader::new);
            if started.is_err() {
                self.sentry.end();
            }
            let closed = match started {
                Ok(leader) => self.attend(number, leader),
                // It was started, or could not be, in a slot that is not what it was: nobody can say what it did.
                Err(_) if self.is_changed() => Err(Closed),
                Err(error) => {
                    // A text with a NUL in it never gets as far as an errno.
                    let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
                    self.link.report(number, Report::SpawnFailed { errno });
                    Ok(())
                }
            };
            if closed.is_err() {
                break;
            }
        }
        self.sentry.end();
        self.tree.end();
    }

    /// From the start of the leader to the end of its tree.
    fn attend(&mut self, number: u64, mut leader: Leader) -> Result<(), Closed> {
        self.link.report(number, Report::Started { pid: leader.pid.as_raw_nonzero().get() });
        loop {
            let (exited, spoken) = self.link.wait(Some(&leader.pidfd), TICK)?;
            if spoken {
                match self.link.order(number)? {
                    Some(Order::Terminate) => self.tree.terminate(),
                    Some(Order::Kill) => self.tree.kill(),
                    // Too early: the executor has not been told of an exit.
                    Some(Order::Sweep) | None => {}
                }
            }
            if exited {
                break;
            }
            if !spoken {
                let _quiet = self.sentry.quiet();
                reap_adopted(leader.pid);
            }
            self.tell_excess(number);
        }
        self.tell_excess(number);
        let (exit, usage, left) = {
            let _quiet = self.sentry.quiet();
            let (exit, usage) = leader.reap();
            (exit, usage, reap_ended() || self.is_changed())
        };
        if !left {
            self.sentry.end();
        }
        self.link.report(number, Report::Exited { exit, usage, left });
        if left { self.await_sweep(number) } else { Ok(()) }
    }

    fn tell_excess(&mut self, number: u64) {
        if let Some(excess) = self.sentry.excess() {
            self.link.report(number, Report::OverLimit(excess));
        }
    }

    fn await_sweep(&mut self, number: u64) -> Result<(), Closed> {
        loop {
            let (_, spoken) = self.link.wait(None, TICK)?;
            if !spoken {
                let _quiet = self.sentry.quiet();
                reap_ended();
                continue;
            }
            match self.link.order(number)? {
                Some(Order::Terminate) => self.tree.terminate(),
                Some(Order::Kill | Order::Sweep) => {
                    self.sentry.end();
                    self.tree.end();
                    if self.is_changed() {
                        // Another takes its place: limits that were lowered cannot be raised.
                        return Err(Closed);
                    }
                    self.link.report(number, Report::Clean);
                    return Ok(());
                }
                None => {}
            }
        }
    }
}

/// The skill's first process.
struct Leader {
    started: Instant,
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
}

impl Leader {
    fn new(mut child: Child) -> io::Result<Self> {
        let (started, pid) = (Instant::now(), Pid::from_child(&child));
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { started, child, pid, pidfd }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    /// Takes the status of the leader, which has exited. Until then its pid is its own.
    fn reap(&mut self) -> (Exit, Usage) {
        match self.child.try_wait4() {
            Ok(Some(used)) => {
                let exit = match used.status.code() {
                    Some(code) => Exit::Code(code),
                    None => Exit::Signal(used.status.signal().unwrap_or(0)),
                };
                let usage = Usage {
                    wall: self.started.elapsed(),
                    cpu_user: used.rusage.utime,
                    cpu_system: used.rusage.stime,
                    max_rss_bytes: used.rusage.maxrss,
                };
                (exit, usage)
            }
            // Nobody else waits here. If the status is lost all the same, what is known is that it did not succeed.
            Ok(None) | Err(_) => (Exit::Signal(Signal::KILL.as_raw()), Usage::default()),
        }
    }
}

/// Everything below this slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    /// A signal to every process reaches the tree and nobody else.
    scoped: bool,
}

impl Tree {
    fn terminate(&self) {
        self.signal(Signal::TERM);
        // One that is stopped would not see it.
        self.signal(Signal::CONT);
    }

    /// In a scope this is atomic against fork; a walk may miss who is born meanwhile.
    fn signal(&self, signal: Signal) {
        if self.scoped {
            // kill(-1): every process but the caller.
            let _ = kill_process_group(Pid::INIT, signal);
        } else {
            tree::signal(&tree::children().unwrap_or_default(), signal);
        }
    }

    /// Has nothing in it run, where that can be had in one step.
    pub(super) fn stop(&self) {
        if self.scoped {
            self.signal(Signal::STOP);
        }
    }

    /// Undoes [`Self::stop`].
    pub(super) fn go_on(&self) {
        if self.scoped {
            self.signal(Signal::CONT);
        }
    }

    /// SIGKILL to all, once.
    pub(super) fn kill(&self) {
        if self.scoped {
            self.signal(Signal::KILL);
        } else {
            tree::kill(|| tree::children().unwrap_or_default());
        }
    }

    /// SIGKILL to all until none is left; a subreaper has no descendant when it has no child.
    fn end(&self) {
        loop {
            let sure_of_an_end = if self.scoped {
                self.signal(Signal::KILL);
                true
            } else {
                let children = || {
                    reap_ended();
                    tree::children().unwrap_or_default()
                };
                tree::kill(children) > 0
            };
            match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT) {
                Err(Errno::CHILD) => return,
                Ok(None) if sure_of_an_end => {
                    let _ = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
                }
                // The walk saw only those that had ended already: look again.
                Ok(None) => sched_yield(),
                Ok(Some(_)) | Err(_) => {}
            }
            if !reap_ended() {
                return;
            }
        }
    }
}

/// Reaps every child that ended, and returns whether others are left.
fn reap_ended() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Reaps the children that ended, but for the leader: its status and usage are the run's.
fn reap_adopted(leader: Pid) {
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if !matches!(waitid(WaitId::All, peek), Ok(Some(_))) {
        return;
    }
    for child in tree::children().unwrap_or_default() {
        if child != leader {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}
