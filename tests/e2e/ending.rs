//! How runs are ended by others than the skill: limits, cancels, callers who leave, drains, and crashes.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use skillyard::pb::executor::v1::Outcome;
use skillyard_tests::run::{cancelled, succeeded, timed_out};
use skillyard_tests::{Ended, Refused, RunSeen, Skill, World, binaries, call, eventually, process, world};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::runs::GRACE;

const SECOND: Duration = Duration::from_secs(1);

/// Does what it is told when it is told to end.
fn naps(name: &str) -> Skill {
    Skill::sh(name, "sleep 300 & echo up >&2; wait")
}

/// Does not hear of it, and neither do its children.
fn deaf(name: &str) -> Skill {
    Skill::sh(name, "trap '' TERM INT HUP; setsid sleep 300 & echo up >&2; while :; do sleep 1; done")
}

/// Says so when it is asked to end.
fn polite(name: &str) -> Skill {
    // The shell's own word on its child's end goes nowhere.
    Skill::sh(
        name,
        "exec 3>&2 2>/dev/null; trap 'echo bye >&3; exit 0' TERM; echo up >&3; while :; do sleep 0.05; done",
    )
}

fn seen(run: &RunSeen) -> Ended {
    // Whether a shell was told of the signal before its child's end is up to the kernel.
    Ended { exit_code: None, signal: String::new(), ..run.ended() }
}

#[tokio::test]
async fn a_limit_ends_the_whole_tree() {
    let mut world = World::of([
        naps("naps").timeout(1),
        deaf("deaf").timeout(1),
        polite("polite").timeout(1),
        Skill::sh("own_limit", "sleep 300").timeout(300),
    ])
    .await;
    let run = world.run("naps").await;
    assert_eq!(seen(&run), timed_out("TIMEOUT").stderr("up\n"));
    let ran = run.ran.unwrap();
    assert!(ran >= SECOND - Duration::from_millis(50) && ran < SECOND + GRACE, "{ran:?}");
    world.quiet(Duration::from_millis(100)).await;

    let run = world.run("deaf").await;
    assert_eq!(run, timed_out("TIMEOUT").by("SIGKILL").stderr("up\n"));
    let ran = run.ran.unwrap();
    assert!(ran >= SECOND * 2 && ran < SECOND + GRACE, "{ran:?}");
    world.quiet(Duration::from_millis(100)).await;

    // What it writes in its grace is still read, and its exit code changes nothing.
    assert_eq!(seen(&world.run("polite").await), timed_out("TIMEOUT").stderr("up\nbye\n"));

    // The call shortens the skill's own limit, and does not lengthen it.
    let run = world.run(call("own_limit").timeout(SECOND / 2)).await;
    assert_eq!(seen(&run), timed_out("TIMEOUT"));
    assert!(run.ran.unwrap() < SECOND / 2 + GRACE, "{:?}", run.ran);
    let run = world.run(call("naps").timeout(SECOND * 60)).await;
    assert_eq!(seen(&run), timed_out("TIMEOUT").stderr("up\n"));
}

#[tokio::test]
async fn the_executors_limit_is_above_the_skills() {
    let mut world = World::builder().flag("--max-timeout", "1s").skill(naps("naps").timeout(300)).start().await;
    let run = world.run("naps").await;
    assert_eq!(seen(&run), timed_out("TIMEOUT").stderr("up\n"));
    assert!(run.ran.unwrap() < SECOND + GRACE, "{:?}", run.ran);
}

#[tokio::test]
async fn the_calls_deadline_ends_the_run() {
    let mut world = World::of([naps("naps"), deaf("deaf")]).await;
    for skill in ["naps", "deaf"] {
        let run_id = format!("deadline-{skill}");
        let began = Instant::now();
        let live = world.open(call(skill).run_id(&run_id).deadline(SECOND)).await;
        // The deadline may cut the stream, and never the end of the run.
        if let Err(status) = live.end().await {
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        }
        let run = world.cancel(&run_id, "looking").await.unwrap();
        assert!(began.elapsed() < SECOND + GRACE, "{skill}: {:?}", began.elapsed());
        let finished = run.finished.unwrap();
        assert_eq!((finished.outcome(), &*finished.reason), (Outcome::TimedOut, "DEADLINE"), "{skill}");
        world.quiet(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_cancel_ends_the_tree_and_answers_with_the_end() {
    let mut world = World::of([naps("naps"), deaf("deaf"), Skill::tiny("tiny")]).await;
    for (skill, limit) in [("naps", SECOND), ("deaf", GRACE)] {
        let mut live = world.open(skill).await;
        let id = live.accepted().await.run_id;
        live.logged("up").await;
        let began = Instant::now();
        let run = world.cancel(&id, "the user changed her mind").await.unwrap();
        assert!(began.elapsed() < limit, "{skill}: {:?}", began.elapsed());
        world.quiet(Duration::from_millis(100)).await;
        let seen_by_caller = live.rest().await;
        assert_eq!(seen(&seen_by_caller), cancelled("CANCEL_REQUESTED").stderr("up\n"));
        assert!(seen_by_caller.finished.message.contains("the user changed her mind"));
        assert_eq!(run.finished.as_ref(), Some(&seen_by_caller.finished));
        // Once more is the same.
        assert_eq!(world.cancel(&id, "again").await.unwrap(), run);
    }
    // One that had ended stays as it was.
    let run = world.run(call("tiny").run_id("done")).await;
    assert_eq!(world.cancel("done", "too late").await.unwrap().finished, Some(run.finished));
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_run() {
    let mut world = World::of([naps("naps"), deaf("deaf")]).await;
    for (skill, run_id, limit) in [
        ("naps", "", SECOND),
        ("deaf", "", GRACE),
        // Whoever chose the id may come back for it.
        ("naps", "chosen", 5 * SECOND + SECOND),
    ] {
        let mut live = world.open(call(skill).run_id(run_id)).await;
        let id = live.accepted().await.run_id;
        live.logged("up").await;
        drop(live);
        let took = world.quiet(limit).await;
        if !run_id.is_empty() {
            assert!(took > 4 * SECOND, "{took:?}: the caller had five seconds to come back");
        }
        let finished = world.cancel(&id, "looking").await.unwrap().finished.unwrap();
        assert_eq!((finished.outcome(), &*finished.reason), (Outcome::Cancelled, "CALLER_GONE"));
    }
}

#[tokio::test]
async fn a_caller_who_comes_back_in_time_finds_the_run() {
    let mut world = World::of([Skill::sh("counts", "echo once >&2; sleep 6.5; echo '{}'")]).await;
    let mut live = world.open(call("counts").run_id("mine")).await;
    live.logged("once").await;
    drop(live);
    let run = world.run(call("counts").run_id("mine")).await;
    assert_eq!(run, succeeded("{}\n").stderr("once\n"));
}

#[tokio::test]
async fn a_client_that_crashes_is_a_caller_who_leaves() {
    let mut world = World::of([naps("naps")]).await;
    let url = format!("http://{}", world.executor_address());
    let mut client = process::command(&binaries::executor());
    client.args(["run", "naps", "--executor", &url]).env_clear();
    client.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut client = client.spawn().unwrap();
    eventually("the skill runs", async || world.skill_processes().len() == 2).await;
    client.kill().unwrap();
    client.wait().unwrap();
    // The client may have chosen the run's id.
    world.quiet(5 * SECOND + GRACE).await;
    assert_eq!(world.status().await.running, 0);
}

#[tokio::test]
async fn a_client_that_hangs_is_noticed_by_its_silence() {
    let world = World::of([naps("naps").timeout(120)]).await;
    let url = format!("http://{}", world.executor_address());
    let mut client = process::command(&binaries::executor());
    client.args(["run", "naps", "--executor", &url]).env_clear();
    client.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut client = client.spawn().unwrap();
    eventually("the skill runs", async || world.skill_processes().len() == 2).await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(client.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    world.quiet(20 * SECOND + 5 * SECOND + GRACE).await;
    client.kill().unwrap();
    client.wait().unwrap();
}

#[tokio::test]
async fn a_drain_lets_runs_end_and_takes_no_more() {
    let mut world = World::builder()
        .slots(1, 10)
        .skill(Skill::sh("works", "echo up >&2; sleep 2; echo '{\"done\":true}'"))
        .skill(Skill::tiny("tiny"))
        .start()
        .await;
    let address = world.executor_address();
    // Neither of them holds the shutdown up.
    let _idle = tokio::net::TcpStream::connect(address).await.unwrap();
    let watch = world.executor_health().watch(HealthCheckRequest::default()).await.unwrap();
    let mut watch = watch.into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let mut running = world.open("works").await;
    running.logged("up").await;
    let mut queued = world.open("tiny").await;
    queued.accepted().await;
    world.executor_server().signal(Signal::TERM);
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    // The queued one ends at once, never started, and the running one goes on.
    let queued = Refused::of(&queued.end().await.unwrap_err());
    assert_eq!(queued.short(), (Code::Unavailable, "DRAINING"));
    let refused = world.refusal("tiny").await;
    assert_eq!(refused.short(), (Code::Unavailable, "DRAINING"));
    assert!(world.status().await.draining);
    assert_eq!(running.rest().await, succeeded("{\"done\":true}\n").stderr("up\n"));
    let (status, took) = world.executor_server().ended(6 * SECOND).await;
    assert!(status.success(), "{status:?} after {took:?}");
}

#[tokio::test]
async fn a_drain_is_bounded() {
    let mut world =
        World::builder().flag("--drain-timeout", "1s").skill(naps("naps")).skill(deaf("deaf")).start().await;
    let mut runs = Vec::new();
    for skill in ["naps", "deaf"] {
        let mut live = world.open(skill).await;
        live.logged("up").await;
        runs.push(live);
    }
    world.executor_server().signal(Signal::TERM);
    let began = Instant::now();
    for run in runs {
        assert_eq!(seen(&run.rest().await), cancelled("DRAINING").stderr("up\n"));
    }
    assert!(began.elapsed() < SECOND + GRACE, "{:?}", began.elapsed());
    let (status, _) = world.executor_server().ended(6 * SECOND).await;
    assert!(status.success(), "{status:?}");
    world.quiet(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn the_registry_stops_whatever_its_clients_hold() {
    let mut world = World::of([Skill::tiny("tiny")]).await;
    let _idle = tokio::net::TcpStream::connect(world.registry_address()).await.unwrap();
    let mut watch = world.packages().watch_catalog(skillyard::pb::registry::v1::WatchCatalogRequest::default()).await;
    let watch = watch.as_mut().unwrap().get_mut();
    watch.message().await.unwrap().unwrap();
    world.registry_server().signal(Signal::TERM);
    let (status, _) = world.registry_server().ended(6 * SECOND).await;
    assert!(status.success(), "{status:?}");
}

#[tokio::test]
async fn nothing_outlives_an_executor_that_is_killed() {
    let mut world = World::builder()
        .slots(20, 20)
        .skill(naps("naps"))
        .skill(deaf("deaf"))
        .skill(Skill::sh(
            "escapes",
            "( setsid sh -c 'trap \"\" TERM; setsid sleep 300 & sleep 300' & ) ; echo up >&2; sleep 300",
        ))
        .start()
        .await;
    let mut runs = Vec::new();
    for i in 0..20 {
        let mut live = world.open(["naps", "deaf", "escapes"][i % 3]).await;
        live.logged("up").await;
        runs.push(live);
    }
    let executor = world.executor_server().pid();
    let before = process::descendants(executor);
    assert!(before.len() >= 60, "{}", before.len());
    world.kill_executor();
    let gone = |p: &process::Process| process::read(p.pid).is_none_or(|now| !now.lives() || now.command != p.command);
    skillyard_tests::within(SECOND, "every process of the executor is gone", async || {
        (before.iter().all(gone) && world.skill_processes().iter().all(|p| !p.lives())).then_some(())
    })
    .await;
    for run in runs {
        let status = run.end().await.unwrap_err();
        assert_ne!(Refused::of(&status).domain, "skillyard", "nobody could say how it ended");
    }
    // The next one over the same state starts clean.
    world.start_executor().await;
    world.settle().await;
    assert_eq!(seen(&world.run(call("naps").timeout(SECOND / 10)).await).reason, "TIMEOUT");
    assert!(world::tree(&world.path("state")).len() < 100);
}

/// Kills its slot before that can have told of it, and says so.
const KILLS_AT_ONCE: &str = r#"
#include <signal.h>
#include <unistd.h>
int main(void) {
    kill(getppid(), SIGKILL);
    write(2, "here\n", 5);
    return 0;
}
"#;

#[tokio::test]
async fn what_has_written_was_started_though_its_slot_told_nobody() {
    let builder = World::builder().flag("--isolation-at-most", "seccomp").slots(2, 100);
    let mut world = builder.skill(Skill::c("kills", KILLS_AT_ONCE)).start().await;
    let mut lives = Vec::new();
    for _ in 0..20 {
        lives.push(world.open("kills").await);
    }
    // What is seen is checked for its order.
    for live in lives {
        assert_eq!(live.rest().await.finished.outcome(), Outcome::Lost);
    }
}
