//! A slot process that is sent anything at all: it neither ends nor panics before its socket closes, and then ends well.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, its helpers too")]

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

/// A slot, and the executor's end of its socket.
fn slot() -> (Child, OwnedFd) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair of sockets");
    #[expect(clippy::disallowed_methods, reason = "the test is the executor here")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_executor-svc"));
    let child = command.arg("slot").arg("--limits=m100000000,p100,").env_clear().stdin(theirs).stderr(Stdio::piped());
    (child.spawn().expect("a slot"), ours)
}

fn ended(child: &mut Child) -> std::process::ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the slot does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Bytes, and what begins like a message of a job.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let known = (any::<u64>(), "[JTKWRSFLXC]", proptest::collection::vec(any::<u8>(), 0..300))
        .prop_map(|(number, kind, rest)| [&number.to_le_bytes()[..], kind.as_bytes(), &rest].concat());
    prop_oneof![proptest::collection::vec(any::<u8>(), 1..300), known]
}

#[test]
fn a_slot_that_is_sent_anything_goes_on() {
    let mut runner = TestRunner::new(Config { cases: 8, failure_persistence: None, ..Config::default() });
    runner
        .run(&proptest::collection::vec(message(), 1..200), |messages| {
            let (mut child, socket) = slot();
            let mut answer = [0; 64];
            // Its first word, before anything is sent.
            recv(&socket, &mut answer[..], RecvFlags::empty()).unwrap();
            for message in &messages {
                prop_assert!(send(&socket, message, SendFlags::NOSIGNAL).is_ok(), "the slot has gone");
                // Answers to what was a job are not left to fill the socket.
                while recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).is_ok_and(|(length, _)| length > 0) {}
            }
            prop_assert!(child.try_wait().unwrap().is_none(), "the slot has ended");
            drop(socket);
            let status = ended(&mut child);
            prop_assert!(status.success(), "{status:?}");
            Ok(())
        })
        .unwrap();
}
