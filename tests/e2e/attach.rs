//! AttachRun and detached runs: a run that is followed again, from a second client, after its caller left, after its end.

use std::time::Duration;

use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::{AttachRunRequest, GetRunRequest, Outcome, Run, RunEvent, RunState};
use skillyard_tests::run::{Refused, succeeded};
use skillyard_tests::{PATIENCE, Skill, World, call, eventually};
use tonic::{Code, Status};

/// The events of a run from after one on, to the end.
async fn attach(world: &mut World, run_id: &str, after_seq: u64) -> Result<Vec<RunEvent>, Status> {
    let request = AttachRunRequest { run_id: run_id.to_owned(), after_seq };
    let mut stream = world.executor().attach_run(request).await?.into_inner();
    let mut events = Vec::new();
    while let Some(message) = tokio::time::timeout(PATIENCE, stream.message()).await.expect("no event")? {
        events.extend(message.event.filter(|event| event.seq > 0));
    }
    Ok(events)
}

async fn refused(world: &mut World, run_id: &str, after_seq: u64) -> (Code, String) {
    let refused = Refused::of(&attach(world, run_id, after_seq).await.expect_err("there is nothing to follow"));
    (refused.code, refused.reason)
}

async fn get(world: &mut World, run_id: &str) -> Run {
    let request = GetRunRequest { run_id: run_id.to_owned() };
    world.executor().get_run(request).await.expect("GetRun").into_inner().run.expect("a run")
}

fn outcome(events: &[RunEvent]) -> Outcome {
    match events.last().and_then(|event| event.event.clone()) {
        Some(Event::Finished(finished)) => finished.outcome(),
        other => panic!("the last event is {other:?}"),
    }
}

/// Says a line, and ends when a file is there.
fn waits(world: &skillyard_tests::world::Builder) -> Skill {
    let go = world.path("go");
    Skill::sh(
        "waits",
        &format!("echo one >&2; while [ ! -e {} ]; do sleep 0.05; done; echo two >&2; echo {{}}", go.display()),
    )
    .timeout(60)
}

fn go(world: &World) {
    std::fs::write(world.path("go"), "").unwrap();
}

#[tokio::test]
async fn after_a_lost_connection_every_event_comes_once_in_order() {
    let builder = World::builder();
    let skill = waits(&builder);
    let mut world = builder.skill(skill).start().await;
    let mut live = world.open(call("waits").run_id("mine")).await;
    live.logged("one").await;
    drop(live);
    // Two readers: one that saw three events before, one that saw none.
    let request = AttachRunRequest { run_id: "mine".to_owned(), after_seq: 3 };
    let mut rest = world.executor().attach_run(request).await.unwrap().into_inner();
    let request = AttachRunRequest { run_id: "mine".to_owned(), after_seq: 0 };
    let mut all = world.executor().attach_run(request).await.unwrap().into_inner();
    assert_eq!(get(&mut world, "mine").await.state(), RunState::Running);
    assert_eq!(refused(&mut world, "mine", 99).await, (Code::InvalidArgument, "INVALID_REQUEST".to_owned()));
    go(&world);
    let mut seen = [Vec::new(), Vec::new()];
    for (stream, seen) in [&mut rest, &mut all].into_iter().zip(&mut seen) {
        while let Some(message) = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap().unwrap() {
            seen.extend(message.event.filter(|event| event.seq > 0));
        }
    }
    let [rest, all] = seen;
    assert_eq!(all.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=all.len() as u64).collect::<Vec<_>>());
    assert_eq!((rest.as_slice(), outcome(&all)), (&all[3..], Outcome::Succeeded));
    // After the end the same again, and nothing after the last.
    assert_eq!(attach(&mut world, "mine", 0).await.unwrap(), all);
    assert_eq!(attach(&mut world, "mine", all.len() as u64).await.unwrap(), []);
    let run = get(&mut world, "mine").await;
    assert_eq!((run.state(), run.finished.unwrap().outcome()), (RunState::Finished, Outcome::Succeeded));
    assert_eq!(refused(&mut world, "nobody", 0).await, (Code::NotFound, "UNKNOWN_RUN".to_owned()));
}

#[tokio::test]
async fn what_is_no_longer_kept_is_a_gap_with_its_lines_counted() {
    let skill = Skill::sh(
        "talks",
        "i=0; while [ $i -lt 40000 ]; do echo $i-123456789012345678901234567890123456789012345678901234567890 >&2; i=$((i+1)); done; echo {}",
    );
    let mut world = World::of([skill.timeout(60)]).await;
    let run = world.run(call("talks").run_id("mine").detached()).await;
    assert_eq!(run.finished.outcome(), Outcome::Succeeded);
    // The first that is kept of its output comes long after those that are not.
    let kept = attach(&mut world, "mine", 2).await.unwrap()[0].seq;
    assert!(kept > 6, "{kept}");
    for after_seq in [0, 2, kept / 2] {
        let events = attach(&mut world, "mine", after_seq).await.unwrap();
        let (mut lines, mut dropped) = (0, 0);
        for event in &events {
            if let Some(Event::Log(log)) = &event.event {
                lines += log.text.matches('\n').count() as u64;
                dropped += log.dropped_lines;
            }
        }
        assert!(dropped > 0 && events[0].seq > after_seq, "{after_seq}: {dropped}");
        if after_seq <= 2 {
            assert_eq!(lines + dropped, 40_000, "{after_seq}");
        } else {
            assert!(lines + dropped < 40_000, "{after_seq} of {kept}");
        }
    }
}

#[tokio::test]
async fn a_detached_run_goes_on_alone_and_is_followed_later() {
    let builder = World::builder();
    let skill = waits(&builder);
    let mut world = builder.skill(skill).start().await;
    let detached = || call("waits").detached().deadline(Duration::from_secs(1));
    let mut live = world.open(detached()).await;
    let accepted = live.accepted().await;
    // Nobody is there, and its deadline passes.
    drop(live);
    let began = std::time::Instant::now();
    eventually("the deadline passes", async || began.elapsed() > Duration::from_millis(1500)).await;
    assert_eq!(get(&mut world, &accepted.run_id).await.state(), RunState::Running);
    go(&world);
    let events = attach(&mut world, &accepted.run_id, 0).await.unwrap();
    assert_eq!((outcome(&events), events[0].seq), (Outcome::Succeeded, 1));
}

#[tokio::test]
async fn a_detached_run_is_cancelled_and_drained_like_others() {
    let builder = World::builder().flag("--drain-timeout", "0s");
    let skill = waits(&builder);
    let mut world = builder.skill(skill).start().await;
    for id in ["one", "two"] {
        let mut live = world.open(call("waits").run_id(id).detached()).await;
        live.started().await;
    }
    let run = world.cancel("one", "enough").await.unwrap();
    assert_eq!(run.finished.unwrap().reason, "CANCEL_REQUESTED");
    let reader = world.open(call("waits").run_id("two").detached()).await;
    world.executor_server().signal(rustix::process::Signal::TERM);
    let ended = reader.rest().await.finished;
    assert_eq!((ended.outcome(), &*ended.reason), (Outcome::Cancelled, "DRAINING"));
    world.executor_server().ended(PATIENCE).await;
    world.start_executor().await;
    // What ended before is in the journal, and is not run again.
    for id in ["one", "two"] {
        let refusal = world.refusal(call("waits").run_id(id).detached()).await;
        assert_eq!(refusal.short(), (Code::FailedPrecondition, "RESULT_EXPIRED"));
        assert!(refusal.message.contains("CANCELLED"), "{}", refusal.message);
        assert_eq!(refused(&mut world, id, 0).await, (Code::FailedPrecondition, "RESULT_EXPIRED".to_owned()));
    }
    go(&world);
    assert_eq!(world.run(call("waits").run_id("three")).await, succeeded("{}\n").stderr("one\ntwo\n"));
}

#[tokio::test]
async fn when_the_events_are_gone_the_id_is_known_still() {
    // Its skill leaves a line outside its scratch directory.
    let builder = World::builder().flag("--keep-finished", "0s").flag("--isolation-at-most", "seccomp");
    let script = format!("echo run >> {}; echo {{}}", builder.path("effects").display());
    let mut world = builder.skill(Skill::sh("counted", &script)).start().await;
    world.run(call("counted").run_id("old")).await;
    assert_eq!(refused(&mut world, "old", 0).await, (Code::FailedPrecondition, "RESULT_EXPIRED".to_owned()));
    world.executor_server().signal(rustix::process::Signal::TERM);
    world.executor_server().ended(PATIENCE).await;
    world.start_executor().await;
    assert_eq!(refused(&mut world, "old", 0).await, (Code::FailedPrecondition, "RESULT_EXPIRED".to_owned()));
    assert_eq!(world.refusal(call("counted").run_id("old")).await.short().1, "RESULT_EXPIRED");
    assert_eq!(world.refusal(call("counted").run_id("old").label("a", "b")).await.short().1, "RUN_ID_REUSED");
    assert_eq!(std::fs::read_to_string(world.path("effects")).unwrap(), "run\n");
}

/// Twenty at once, and the executor is killed: each is LOST to whoever asks, and none is run again.
#[tokio::test]
async fn after_a_kill_every_run_is_lost() {
    let builder = World::builder().slots(21, 20).skill(Skill::sh("quick", "echo {}"));
    let skill = waits(&builder);
    let mut world = builder.skill(skill).start().await;
    let ids: Vec<_> = (0..20).map(|i| format!("run-{i}")).collect();
    let mut lives = Vec::new();
    for id in &ids {
        let mut live = world.open(call("waits").run_id(id)).await;
        live.logged("one").await;
        lives.push(live);
    }
    // Notes are on the disk a moment later: with, or before, those of runs that come after them.
    for _ in 0..3 {
        world.run("quick").await;
        let (ended, journal) = (std::time::SystemTime::now(), world.path("state/journal/journal.redb"));
        eventually("the journal is written", async || journal.metadata().unwrap().modified().unwrap() > ended).await;
    }
    world.kill_executor();
    drop(lives);
    world.start_executor().await;
    for id in &ids {
        let events = attach(&mut world, id, 0).await.unwrap();
        assert_eq!((events.len(), outcome(&events)), (2, Outcome::Lost), "{id}");
        let run = get(&mut world, id).await;
        assert!(run.started_at.is_some(), "{run:?}");
        let lost = world.run(call("waits").run_id(id)).await;
        assert_eq!((lost.finished.outcome(), &*lost.finished.reason), (Outcome::Lost, "EXECUTOR_LOST"));
    }
}
