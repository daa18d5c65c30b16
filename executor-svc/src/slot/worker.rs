//! The executor's end of one slot process: its socket, and the words on it. Decides nothing.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    send, sendmsg, socketpair, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::protocol::{self, MAX_MESSAGE, MAX_SHORT, NO_JOB, Order, Report};
use super::reaper::{Reaper, Ward};
use super::scratch::SlotScratch;
use super::settings::Settings;
use super::{Job, SlotEvent, Stdio, spawn};
use crate::isolation::{Flavour, InForce};

/// What a slot was started as.
#[derive(Clone, Debug)]
pub(super) struct Nature {
    pub(super) flavour: Flavour,
    /// Of the directories whose entries it was granted.
    pub(super) edition: u64,
    pub(super) scratch: Option<Arc<SlotScratch>>,
}

/// A slot process and the socket to it. Dropped, the process sees the socket close.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) ward: Ward,
    pub(super) socket: Arc<OwnedFd>,
    watched: AsyncFd<Arc<OwnedFd>>,
    pub(super) nature: Nature,
    /// Jobs are numbered, so that a late message meets no other job than its own.
    last_job: u64,
    message: Vec<u8>,
}

impl Worker {
    /// Starts a slot of `pool`'s.
    pub(super) fn spawn(
        reaper: &Reaper,
        pool: u64,
        program: &Path,
        settings: &Settings,
        nature: Nature,
    ) -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        // The system's default may be smaller than a message; what cannot be had is found out by sending.
        let _ = sockopt::set_socket_send_buffer_size(&ours, MAX_MESSAGE);
        let socket = Arc::new(ours);
        let watched = watch(Arc::clone(&socket))?;
        let ward = reaper.raise(pool, || spawn::slot(program, settings.to_arguments(), theirs))?;
        Ok(Self { ward, socket, watched, nature, last_job: NO_JOB, message: Vec::new() })
    }

    /// Waits, blocking, for a fresh slot's first word: what it is confined by.
    pub(super) fn await_ready(&self, limit: Duration) -> Option<InForce> {
        let limit = Timespec::try_from(limit).ok();
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        while poll(&mut watched, limit.as_ref()) == Err(Errno::INTR) {}
        let mut buffer = [0; MAX_SHORT];
        let (length, _) = recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT).ok()?;
        first_word(&buffer[..length])
    }

    /// The same, without blocking.
    pub(super) async fn ready(&self, limit: Duration) -> Option<InForce> {
        let mut buffer = [0; MAX_SHORT];
        let received = self
            .watched
            .async_io(Interest::READABLE, |socket| Ok(recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)?.0));
        let length = tokio::time::timeout(limit, received).await.ok()?.ok()?;
        first_word(&buffer[..length])
    }

    /// Hands the job over. After an error it did not arrive.
    pub(super) fn start(&mut self, job: &Job<'_>, size: usize, stdio: &Stdio) -> Result<(), Errno> {
        self.last_job += 1;
        self.message.clear();
        self.message.reserve(size);
        protocol::encode_start(&mut self.message, self.last_job, job);
        let descriptors = [stdio.stdin.as_fd(), stdio.stdout.as_fd(), stdio.stderr.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(&self.message)], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// A slot that is gone, or reads nothing, is found out by its silence.
    pub(super) fn order(&self, order: Order) {
        let mut message = Vec::with_capacity(MAX_SHORT);
        protocol::encode_order(&mut message, self.last_job, order);
        while send(&self.socket, &message, SendFlags::NOSIGNAL) == Err(Errno::INTR) {}
    }

    pub(super) async fn next(&self) -> SlotEvent {
        loop {
            let mut buffer = [0; MAX_SHORT];
            let received = self
                .watched
                .async_io(Interest::READABLE, |socket| Ok(recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)?.0))
                .await;
            match self.understand(received, &buffer) {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(Silent) => return SlotEvent::Lost,
            }
        }
    }

    /// The next word, if it is here: whether or not the runtime has heard of it yet.
    pub(super) fn try_next(&self) -> Option<SlotEvent> {
        loop {
            let mut buffer = [0; MAX_SHORT];
            let received = match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => continue,
                received => received.map(|(length, _)| length).map_err(io::Error::from),
            };
            match self.understand(received, &buffer) {
                Ok(Some(event)) => return Some(event),
                Ok(None) => {}
                Err(Silent) => return Some(SlotEvent::Lost),
            }
        }
    }

    /// The event in a message, if it is one of the job.
    fn understand(&self, received: io::Result<usize>, buffer: &[u8]) -> Result<Option<SlotEvent>, Silent> {
        let length = received.ok().filter(|length| *length > 0).ok_or(Silent)?;
        match protocol::decode_report(&buffer[..length]) {
            Some((number, report)) if number == self.last_job => Ok(report.event()),
            // A late word on a job that is over, or a fresh slot's first.
            Some(_) => Ok(None),
            None => Err(Silent),
        }
    }
}

fn first_word(message: &[u8]) -> Option<InForce> {
    match protocol::decode_report(message) {
        Some((NO_JOB, Report::Ready(in_force))) => Some(in_force),
        _ => None,
    }
}

/// Nothing more is to be heard of it.
struct Silent;

/// Only reading is watched: with writing, each job that is read would wake the runtime.
#[expect(deprecated, reason = "the successor is unsafe for what lies about its descriptor; an OwnedFd does not")]
fn watch(socket: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}
