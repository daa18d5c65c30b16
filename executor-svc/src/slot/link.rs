//! The slot's end of the socket to its executor: blocking, one message at a time. Decides nothing.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg, send};

use super::Stdio;
use super::protocol::{self, MAX_SHORT, Order, Report, Request};

/// The executor is gone: nothing is left to do but to end the tree.
pub(super) struct Closed;

/// The socket to the executor.
pub(super) struct Link {
    socket: OwnedFd,
    outgoing: Vec<u8>,
}

impl Link {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, outgoing: Vec::with_capacity(MAX_SHORT) }
    }

    /// An executor that is gone is noticed at the next receive.
    pub(super) fn report(&mut self, number: u64, report: Report) {
        protocol::encode_report(&mut self.outgoing, number, report);
        while send(&self.socket, &self.outgoing, SendFlags::NOSIGNAL) == Err(Errno::INTR) {}
    }

    /// Waits for the next message, and returns its length and its descriptors, if these are three.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<(usize, Option<Stdio>), Closed> {
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

    /// Waits for the leader's exit, a message or the end of `limit`, and returns which of the first two there is. Where even that
    /// cannot be done, as with a limit of no descriptors, the slot is of no more use than without its executor.
    pub(super) fn wait(&self, leader: Option<&OwnedFd>, limit: Duration) -> Result<(bool, bool), Closed> {
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
        match poll(watched, Timespec::try_from(limit).ok().as_ref()) {
            Ok(0) | Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => Ok((false, false)),
            Err(_) => Err(Closed),
            Ok(_) => {
                let ready = |index: usize| watched.get(index).is_some_and(|fd| !fd.revents().is_empty());
                Ok((ready(1), ready(0)))
            }
        }
    }

    /// The next message, if it is an order for job `number`.
    pub(super) fn order(&self, number: u64) -> Result<Option<Order>, Closed> {
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
