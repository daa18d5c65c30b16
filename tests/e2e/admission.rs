//! Who runs, who waits, and who is turned away.

use std::time::{Duration, Instant};

use skillyard::pb::executor::v1::Outcome;
use skillyard_tests::run::{cancelled, succeeded};
use skillyard_tests::{Refused, RunSeen, Skill, World, call, eventually, pack};
use tokio::task::JoinSet;
use tonic::{Code, Status};

const SECOND: Duration = Duration::from_secs(1);

/// Runs until the test opens its gate.
fn gated(world: &skillyard_tests::world::Builder) -> Skill {
    let gate = world.path("gate");
    Skill::sh("gated", &format!("echo up >&2; while ! [ -e {} ]; do sleep 0.01; done; echo '{{}}'", gate.display()))
}

#[tokio::test]
async fn one_runs_two_wait_and_the_fourth_is_turned_away() {
    let builder = World::builder().slots(1, 2);
    let skill = gated(&builder);
    let mut world = builder.skill(skill).start().await;
    let mut first = world.open("gated").await;
    assert_eq!(first.accepted().await.queue_position, 0);
    first.logged("up").await;
    let mut second = world.open("gated").await;
    assert_eq!(second.accepted().await.queue_position, 1);
    let mut third = world.open("gated").await;
    let third_accepted = third.accepted().await;
    assert_eq!(third_accepted.queue_position, 2);

    let full = world.refusal("gated").await;
    assert_eq!(full.short(), (Code::ResourceExhausted, "EXECUTOR_FULL"));
    assert!(full.retry_after.is_some_and(|after| !after.is_zero()), "{full:?}");
    let status = world.status().await;
    assert_eq!((status.slots, status.running, status.queued, status.queue_limit), (1, 1, 2, 2));

    // A cancelled one leaves the queue at once, and makes room.
    let run = world.cancel(&third_accepted.run_id, "not needed").await.unwrap();
    assert_eq!(run.started_at, None);
    let third = third.rest().await;
    assert_eq!((third.pid, Some(&third.finished)), (None, run.finished.as_ref()));
    assert_eq!(third, cancelled("CANCEL_REQUESTED"));
    let mut fourth = world.open("gated").await;
    assert_eq!(fourth.accepted().await.queue_position, 2);

    std::fs::write(world.path("gate"), "").unwrap();
    for run in [first, second, fourth] {
        assert_eq!(run.rest().await, succeeded("{}\n").stderr("up\n"));
    }
    let status = world.status().await;
    assert_eq!((status.running, status.queued), (0, 0));
}

#[tokio::test]
async fn waiting_is_not_running() {
    let mut world =
        World::builder().slots(1, 4).skill(Skill::sh("slow", "sleep 2; echo '{}'").timeout(3)).start().await;
    let first = world.open("slow").await;
    let second = world.open("slow").await;
    let (first, second) = tokio::join!(first.rest(), second.rest());
    assert_eq!(first, succeeded("{}\n"));
    assert_eq!(second, succeeded("{}\n"));
    assert!(second.took > 4 * SECOND - SECOND / 4, "{:?}", second.took);
    let usage = second.finished.usage.unwrap();
    let time = |duration: Option<prost_types::Duration>| Duration::try_from(duration.unwrap()).unwrap();
    assert!(time(usage.queued) > SECOND * 3 / 2 && time(usage.wall) < SECOND * 3, "{usage:?}");
}

#[tokio::test]
async fn the_deadline_of_a_call_counts_in_the_queue() {
    let builder = World::builder().slots(1, 4);
    let skill = gated(&builder);
    let mut world = builder.skill(skill).start().await;
    let mut first = world.open("gated").await;
    first.logged("up").await;
    let began = Instant::now();
    let waits = world.open(call("gated").run_id("waits").deadline(SECOND / 2)).await;
    if let Err(status) = waits.end().await {
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    }
    let run = world.cancel("waits", "looking").await.unwrap();
    assert!(began.elapsed() < SECOND * 2, "{:?}", began.elapsed());
    let finished = run.finished.unwrap();
    assert_eq!((finished.outcome(), &*finished.reason, run.started_at), (Outcome::TimedOut, "DEADLINE", None));
    std::fs::write(world.path("gate"), "").unwrap();
    first.rest().await;
}

#[tokio::test]
async fn a_caller_who_leaves_the_queue_makes_room() {
    let builder = World::builder().slots(1, 1);
    let skill = gated(&builder);
    let mut world = builder.skill(skill).start().await;
    let mut first = world.open("gated").await;
    first.logged("up").await;
    let mut second = world.open("gated").await;
    second.accepted().await;
    assert_eq!(world.refusal("gated").await.short(), (Code::ResourceExhausted, "EXECUTOR_FULL"));
    drop(second);
    eventually("the queue is empty", async || world.status().await.queued == 0).await;
    let third = world.open("gated").await;
    std::fs::write(world.path("gate"), "").unwrap();
    assert_eq!(third.rest().await, succeeded("{}\n").stderr("up\n"));
    first.rest().await;
}

/// Calls all at once on one channel, and sorts what becomes of them.
async fn storm(world: &mut World, calls: usize) -> (Vec<RunSeen>, Vec<Status>) {
    let mut tasks = JoinSet::new();
    for _ in 0..calls {
        let client = world.executor();
        tasks.spawn(async move { skillyard_tests::Live::open(client, "tiny").await?.end().await });
    }
    let (mut runs, mut refused) = (Vec::new(), Vec::new());
    while let Some(result) = tasks.join_next().await {
        match result.unwrap() {
            Ok(run) => runs.push(run),
            Err(status) => refused.push(status),
        }
    }
    (runs, refused)
}

#[tokio::test]
async fn two_thousand_calls_at_once_with_few_descriptors_break_none() {
    for (slots, queue) in [(16, 2000), (16, 500)] {
        let mut world = World::builder().slots(slots, queue).open_files(256).skill(Skill::tiny("tiny")).start().await;
        let (runs, refused) = storm(&mut world, 2000).await;
        for run in &runs {
            assert_eq!(*run, succeeded(pack::TINY_RESULT));
        }
        for status in &refused {
            assert_eq!(Refused::of(status).short(), (Code::ResourceExhausted, "EXECUTOR_FULL"));
        }
        assert_eq!(runs.len() + refused.len(), 2000);
        let room = (slots + queue).min(2000) as usize;
        assert!(runs.len() >= room, "{} ran, and there was room for {room}", runs.len());
        assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
    }
}

/// More slots than there are descriptors for: what cannot run waits or is sent away, and is never an error of ours.
#[tokio::test]
async fn more_slots_than_descriptors_break_none() {
    let mut world = World::builder().slots(100, 2000).open_files(256).skill(Skill::tiny("tiny")).start().await;
    let (runs, refused) = storm(&mut world, 500).await;
    for run in &runs {
        assert_eq!(*run, succeeded(pack::TINY_RESULT));
    }
    for status in &refused {
        assert_eq!(Refused::of(status).short(), (Code::ResourceExhausted, "EXECUTOR_FULL"));
    }
    assert!(!runs.is_empty());
    assert_eq!(runs.len() + refused.len(), 500);
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
}

#[tokio::test]
async fn five_hundred_cancels_on_a_channel_disturb_nobody_on_it() {
    let mut world = World::builder()
        .slots(8, 1000)
        .skill(Skill::sh("naps", "sleep 300"))
        .skill(Skill::sh("steady", "echo up >&2; sleep 3; echo '{}'"))
        .start()
        .await;
    let mut steady = world.open("steady").await;
    steady.logged("up").await;
    let mut runs = Vec::new();
    for _ in 0..500 {
        let mut live = world.open("naps").await;
        live.accepted().await;
        runs.push(live);
    }
    drop(runs);
    eventually("all of them are gone", async || {
        let status = world.status().await;
        status.queued == 0 && status.running <= 1
    })
    .await;
    assert_eq!(steady.rest().await, succeeded("{}\n").stderr("up\n"));
    world.quiet(SECOND).await;

    // The same by CancelRun.
    let mut runs = Vec::new();
    for i in 0..500 {
        let mut live = world.open(call("naps").run_id(&format!("nap-{i}"))).await;
        live.accepted().await;
        runs.push(live);
    }
    let mut steady = world.open("steady").await;
    steady.accepted().await;
    let mut cancels = JoinSet::new();
    for i in 0..500 {
        let mut client = world.executor();
        cancels.spawn(async move {
            let run_id = format!("nap-{i}");
            let request = skillyard::pb::executor::v1::CancelRunRequest { run_id, reason: String::new() };
            client.cancel_run(request).await.map(|_| ())
        });
    }
    while let Some(cancelled) = cancels.join_next().await {
        cancelled.unwrap().unwrap();
    }
    for run in runs {
        assert_eq!(run.rest().await.finished.reason, "CANCEL_REQUESTED");
    }
    assert_eq!(steady.rest().await, succeeded("{}\n").stderr("up\n"));
}
