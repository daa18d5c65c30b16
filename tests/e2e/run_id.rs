//! A run's id makes a call safe to repeat: the same id with the same request is the same run, once.

use std::time::Duration;

use serde_json::json;
use skillyard_tests::run::{failed, succeeded};
use skillyard_tests::world::Builder;
use skillyard_tests::{AgentFile, Call, Skill, World, call, pack};
use tonic::Code;

/// A world whose skills leave lines behind.
fn counting() -> Builder {
    // A safe skill may not write there otherwise.
    World::builder().flag("--isolation-at-most", "seccomp")
}

/// Leaves a line behind for every time that it ran.
fn counted(world: &Builder) -> Skill {
    let script = format!("echo run >> {}; cat; sleep 0.5; echo end >&2", world.path("effects").display());
    Skill::sh("counted", &script)
}

fn effects(world: &World) -> usize {
    std::fs::read_to_string(world.path("effects")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn the_same_call_is_the_same_run_live_and_finished() {
    let builder = counting();
    let skill = counted(&builder);
    let mut world = builder.skill(skill).start().await;
    let the_call = || call("counted").args(r#"{"a":1}"#).run_id("order-66").label("turn", "7");
    let expected = succeeded(r#"{"a":1}"#).stderr("end\n");

    let mut first = world.open(the_call()).await;
    first.started().await;
    let second = world.open(the_call()).await;
    let (first, second) = tokio::join!(first.rest(), second.rest());
    assert_eq!(first, expected);
    assert_eq!(second, expected);
    let third = world.run(the_call()).await;
    assert_eq!(third, expected);
    assert_eq!((&second.finished, &third.finished), (&first.finished, &first.finished));
    assert_eq!((third.accepted, third.pid), (first.accepted, first.pid));
    assert_eq!(effects(&world), 1);
}

#[tokio::test]
async fn a_hundred_at_once_are_one_run() {
    let builder = counting().slots(4, 200);
    let skill = counted(&builder);
    let mut world = builder.skill(skill).start().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let client = world.executor();
        tasks.spawn(async move {
            skillyard_tests::Live::open(client, call("counted").run_id("one")).await.unwrap().rest().await
        });
    }
    while let Some(run) = tasks.join_next().await {
        assert_eq!(run.unwrap(), succeeded("{}").stderr("end\n"));
    }
    assert_eq!(effects(&world), 1);
}

#[tokio::test]
async fn one_of_two_callers_may_leave() {
    let builder = counting();
    let skill = counted(&builder);
    let mut world = builder.skill(skill).start().await;
    let mut first = world.open(call("counted").run_id("shared")).await;
    first.started().await;
    let mut second = world.open(call("counted").run_id("shared")).await;
    second.accepted().await;
    drop(first);
    assert_eq!(second.rest().await, succeeded("{}").stderr("end\n"));
}

#[tokio::test]
async fn another_request_may_not_have_the_same_id() {
    let mut world = World::builder()
        .skill(Skill::c("echo", pack::ECHO))
        .skill(Skill::tiny("tiny"))
        .agent(&AgentFile::new("reader"))
        .start()
        .await;
    let first = || call("echo").args(r#"{"a":1}"#).run_id("mine");
    world.run(first()).await;
    let others: Vec<Call> = vec![
        call("tiny").args(r#"{"a":1}"#).run_id("mine"),
        call("echo").args(r#"{"a":2}"#).run_id("mine"),
        call("echo").args(r#"{"a": 1}"#).run_id("mine"),
        call("echo").run_id("mine"),
        first().agent("reader"),
        first().timeout(Duration::from_secs(3)),
        first().label("k", "v"),
    ];
    for other in others {
        let refused = world.refusal(other.clone()).await;
        assert_eq!(refused.short(), (Code::AlreadyExists, "RUN_ID_REUSED"), "{other:?}");
    }
    assert_eq!(world.run(first()).await, succeeded(r#"{"a":1}"#));
    // The bytes that reach the skill are what counts.
    assert_eq!(world.run(call("echo").args_struct(&json!({"a": 1})).run_id("mine")).await, succeeded(r#"{"a":1}"#));
}

#[tokio::test]
async fn a_failure_is_not_run_again_either() {
    let builder = counting();
    let script = format!("echo run >> {}; exit 7", builder.path("effects").display());
    let mut world = builder.skill(Skill::sh("fails", &script)).start().await;
    for _ in 0..3 {
        assert_eq!(world.run(call("fails").run_id("again")).await, failed(7));
    }
    assert_eq!(effects(&world), 1);
    // Without an id of the caller's, every call is a run of its own.
    let ids: Vec<_> = [world.run("fails").await, world.run("fails").await].map(|run| run.finished.run_id).into();
    assert_ne!(ids[0], ids[1]);
    assert_eq!(effects(&world), 3);
}

#[tokio::test]
async fn a_refused_call_uses_no_id_up() {
    let mut world = World::of([Skill::c("echo", pack::ECHO)]).await;
    assert_eq!(world.refusal(call("echo").args("[]").run_id("mine")).await.short().1, "INVALID_ARGUMENTS");
    assert_eq!(world.run(call("echo").run_id("mine")).await, succeeded("{}"));
}

#[tokio::test]
async fn an_id_whose_events_are_gone_is_not_run_again() {
    let builder = counting().flag("--keep-finished", "0s");
    let skill = counted(&builder);
    let mut world = builder.skill(skill).start().await;
    let the_call = || call("counted").run_id("old");
    assert_eq!(world.run(the_call()).await, succeeded("{}").stderr("end\n"));
    assert_eq!(world.refusal(the_call()).await.short(), (Code::FailedPrecondition, "RESULT_EXPIRED"));
    let other = world.refusal(the_call().label("k", "v")).await;
    assert_eq!(other.short(), (Code::AlreadyExists, "RUN_ID_REUSED"));
    assert_eq!(effects(&world), 1);
}
