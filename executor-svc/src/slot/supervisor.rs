//! The slot process: single-threaded, with an empty environment, kept from run to run. It starts one skill at a time for
//! the executor at the other end of its socket, says how it ended, and ends what it left behind. It reads no pipe, knows
//! no deadline, and outlives the executor by no more than the time that ending the tree takes.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketType, recv, recvmsg, send,
    sockopt,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, pidfd_open, wait, waitid, waitpid,
};
use rustix::thread::sched_yield;
use wait4::Wait4;

use super::protocol::{self, MAX_MESSAGE, MAX_SHORT, NO_JOB, Order, Report, Request};
use super::{Exit, Stdio, Usage, confine, spawn, tree};

/// How often a long run's adopted children are looked at; those that ended would stay zombies for as long as it goes on.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Runs as a slot until the socket on descriptor 0 closes. `arguments` are those after `slot`.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut signal_scope = true;
    for argument in arguments {
        if argument != spawn::NO_SIGNAL_SCOPE {
            eprintln!("executor-svc slot: unknown argument {}", argument.display());
            return ExitCode::from(64);
        }
        signal_scope = false;
    }
    if sockopt::socket_type(io::stdin()) != Ok(SocketType::SEQPACKET) {
        eprintln!(
            "executor-svc slot: descriptor 0 is not an executor's socket; slots are started by executor-svc alone"
        );
        return ExitCode::from(64);
    }
    match Supervisor::start(signal_scope) {
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

struct Supervisor {
    link: Link,
    tree: Tree,
    /// Where jobs are read to; only pages that a long one needs are ever touched.
    incoming: Vec<u8>,
}

/// The executor is gone: nothing is left to do but to end the tree.
struct Closed;

impl Supervisor {
    fn start(signal_scope: bool) -> io::Result<Self> {
        let socket = confine::settle()?;
        confine::drop_privileges()?;
        let scoped = signal_scope && confine::scope_signals();
        if !scoped {
            tree::check()?;
        }
        let mut link = Link { socket, outgoing: Vec::with_capacity(MAX_SHORT) };
        link.report(NO_JOB, Report::Ready { signal_scope: scoped });
        Ok(Self { link, tree: Tree { scoped }, incoming: vec![0; MAX_MESSAGE] })
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
            let started = spawn::skill(&start, stdio).and_then(Leader::new);
            let closed = match started {
                Ok(leader) => self.attend(number, leader),
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
        self.tree.end();
    }

    /// From the start of the leader to the end of its tree.
    fn attend(&mut self, number: u64, mut leader: Leader) -> Result<(), Closed> {
        self.link.report(number, Report::Started { pid: leader.pid.as_raw_nonzero().get() });
        loop {
            let (exited, spoken) = self.link.wait(Some(&leader.pidfd));
            if spoken {
                match self.link.order(number)? {
                    Some(Order::Terminate) => self.tree.terminate(),
                    Some(Order::Kill) => self.tree.signal(Signal::KILL),
                    // Too early: the executor has not been told of an exit.
                    Some(Order::Sweep) | None => {}
                }
            }
            if exited {
                break;
            }
            if !spoken {
                reap_adopted(leader.pid);
            }
        }
        let (exit, usage) = leader.reap();
        let left = reap_ended();
        self.link.report(number, Report::Exited { exit, usage, left });
        if left { self.await_sweep(number) } else { Ok(()) }
    }

    fn await_sweep(&mut self, number: u64) -> Result<(), Closed> {
        loop {
            let (_, spoken) = self.link.wait(None);
            if !spoken {
                reap_ended();
                continue;
            }
            match self.link.order(number)? {
                Some(Order::Terminate) => self.tree.terminate(),
                Some(Order::Kill | Order::Sweep) => {
                    self.tree.end();
                    self.link.report(number, Report::Clean);
                    return Ok(());
                }
                None => {}
            }
        }
    }
}

/// The socket to the executor.
struct Link {
    socket: OwnedFd,
    outgoing: Vec<u8>,
}

impl Link {
    /// An executor that is gone is noticed at the next receive.
    fn report(&mut self, number: u64, report: Report) {
        protocol::encode_report(&mut self.outgoing, number, report);
        while send(&self.socket, &self.outgoing, SendFlags::NOSIGNAL) == Err(Errno::INTR) {}
    }

    /// Waits for the next message, and returns its length and its descriptors, if these are three.
    fn receive(&self, buffer: &mut [u8]) -> Result<(usize, Option<Stdio>), Closed> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                // With messages unread, a dead executor is ECONNRESET and not an end of file.
                Err(_) => return Err(Closed),
                Ok(message) if message.bytes == 0 => return Err(Closed),
                Ok(message) => break message,
            }
        };
        let mut descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let mut descriptors = descriptors.by_ref().flatten();
        let stdio = match (descriptors.next(), descriptors.next(), descriptors.next()) {
            (Some(stdin), Some(stdout), Some(stderr)) => Some(Stdio { stdin, stdout, stderr }),
            _ => None,
        };
        // What was cut short decodes to nothing that should be obeyed.
        let length = if received.flags.contains(ReturnFlags::TRUNC) { 0 } else { received.bytes };
        Ok((length, stdio))
    }

    /// Waits for the leader's exit, a message or a tick, and returns which of the first two there is.
    fn wait(&self, leader: Option<&OwnedFd>) -> (bool, bool) {
        let socket = PollFd::new(&self.socket, PollFlags::IN);
        let mut both;
        let mut one;
        let watched: &mut [PollFd<'_>] = match leader {
            Some(leader) => {
                both = [socket, PollFd::new(leader, PollFlags::IN)];
                &mut both
            }
            None => {
                one = [socket];
                &mut one
            }
        };
        match poll(watched, Some(&TICK)) {
            Ok(0) | Err(_) => (false, false),
            Ok(_) => {
                let ready = |index: usize| watched.get(index).is_some_and(|fd| !fd.revents().is_empty());
                (ready(1), ready(0))
            }
        }
    }

    /// The next message, if it is an order for job `number`.
    fn order(&self, number: u64) -> Result<Option<Order>, Closed> {
        let mut buffer = [0; MAX_SHORT];
        match recv(self.socket.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT) {
            Err(Errno::INTR | Errno::AGAIN) => Ok(None),
            Err(_) | Ok((0, _)) => Err(Closed),
            Ok((length, _)) => match protocol::decode_request(&buffer[..length]) {
                Some((of, Request::Order(order))) if of == number => Ok(Some(order)),
                _ => Ok(None),
            },
        }
    }
}

/// The skill's first process.
struct Leader {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
}

impl Leader {
    fn new(mut child: Child) -> io::Result<Self> {
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { child, pid, pidfd }),
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
struct Tree {
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
