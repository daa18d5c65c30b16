//! What the executor itself holds and hears: the memory for outputs, a log that nobody reads, signals, and messages that
//! the transport refuses.

use std::time::Duration;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use rustix::process::Signal;
use skillyard::pb::executor::v1::Outcome;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::run_skill_request::Arguments;
use skillyard_tests::run::{cancelled, succeeded};
use skillyard_tests::{PATIENCE, Skill, World, call, eventually, pack};
use tonic::Code;

#[tokio::test]
async fn outputs_share_a_budget() {
    let large = "head -c 12000000 /dev/zero | tr '\\0' x; echo written >&2; sleep 300";
    let mut world = World::builder()
        .slots(6, 6)
        .flag("--max-output-memory", "52MiB")
        .skill(Skill::sh("large", large))
        .skill(Skill::tiny("tiny"))
        .start()
        .await;
    // Each takes 12 to 24 MB, as its reads fall out; five times 12 do not fit. The one that finds too little waits for a
    // while, and is told why it was ended.
    let mut held = Vec::new();
    let refused = loop {
        let mut live = world.open("large").await;
        let ended = live.until("its output, or its end", |event| match event {
            Event::Log(_) => Some(None),
            Event::Finished(finished) => Some(Some(finished.clone())),
            _ => None,
        });
        match ended.await {
            None => held.push(live),
            Some(finished) => break finished,
        }
    };
    assert!((2..=4).contains(&held.len()), "{}", held.len());
    assert_eq!((refused.outcome(), refused.reason.as_str()), (Outcome::ResultTooLarge, "OUTPUT_LIMIT"));
    assert!(refused.message.contains("--max-output-memory"), "{}", refused.message);
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT), "others are not disturbed");
    // What ended gives back what it had.
    drop(held);
    eventually("they have ended", async || world.status().await.running == 0).await;
    world.open("large").await.logged("written").await;
}

#[tokio::test]
async fn arguments_share_it_too() {
    let mut world = World::builder()
        .slots(1, 100)
        .flag("--max-output-memory", "32MiB")
        .skill(Skill::sh("sleeps", "sleep 300"))
        .start()
        .await;
    let args = format!(r#"{{"x":"{}"}}"#, "a".repeat(7 << 20));
    let mut held = Vec::new();
    let refused = loop {
        match world.try_open(call("sleeps").args(&args)).await {
            Ok(live) => held.push(live),
            Err(status) => break skillyard_tests::Refused::of(&status),
        }
        assert!(held.len() < 6);
    };
    assert_eq!(refused.short(), (Code::ResourceExhausted, "EXECUTOR_FULL"));
    assert!(refused.retry_after.is_some() && refused.message.contains("--max-output-memory"), "{refused:?}");
    assert_eq!(held.len(), 4);
}

#[tokio::test]
async fn a_second_signal_hastens_and_a_hangup_changes_nothing() {
    let mut world = World::builder()
        .flag("--drain-timeout", "1h")
        .skill(Skill::sh("sleeps", "echo up >&2; sleep 300"))
        .start()
        .await;
    let mut live = world.open("sleeps").await;
    live.logged("up").await;
    let (executor, registry) = (world.executor_server().pid(), world.registry_server().pid());
    for (pid, signal) in [(executor, Signal::HUP), (registry, Signal::HUP), (executor, Signal::TERM)] {
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
    eventually("both have heard", async || {
        let hangups = [world.executor_server().has_logged("SIGHUP"), world.registry_server().has_logged("SIGHUP")];
        hangups == [true, true] && world.executor_server().has_logged("draining")
    })
    .await;
    world.executor_server().signal(Signal::TERM);
    assert_eq!(live.rest().await.ended(), cancelled("DRAINING").by("SIGTERM").stderr("up\n"));
    let (status, _) = world.executor_server().ended(PATIENCE).await;
    assert!(status.success(), "{status:?}");
    world.registry_server().logs("SIGHUP").await;
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_nobody_up() {
    // The pipe of the log is full after some hundred lines.
    let mut world = World::builder().log_is_not_read().skill(Skill::tiny("tiny")).start().await;
    for _ in 0..500 {
        assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
    }
    world.executor_server().signal(Signal::TERM);
    world.executor_server().ended(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn what_the_transport_refuses_has_a_reason_too() {
    let mut world = World::of([Skill::tiny("tiny")]).await;
    let refused = world.refusal(call("tiny").args(format!(r#"{{"x":"{}"}}"#, "a".repeat(17 << 20)))).await;
    assert_eq!(
        (refused.short(), refused.domain.as_str()),
        ((Code::InvalidArgument, "ARGUMENTS_TOO_LARGE"), "skillyard")
    );
    let mut value = Value { kind: Some(Kind::NullValue(0)) };
    for _ in 0..200 {
        value = Value { kind: Some(Kind::ListValue(ListValue { values: vec![value] })) };
    }
    let mut deep = call("tiny");
    deep.request.arguments = Some(Arguments::Args(Struct { fields: [("x".to_owned(), value)].into() }));
    let refused = world.refusal(deep).await;
    assert_eq!((refused.short(), refused.domain.as_str()), ((Code::InvalidArgument, "INVALID_REQUEST"), "skillyard"));
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT), "the connection is as good as before");
}
