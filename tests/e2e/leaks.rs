//! A thousand runs leave nothing behind: no process, no zombie, no descriptor, no file, and no memory to speak of.

use std::time::Duration;

use skillyard_tests::run::succeeded;
use skillyard_tests::{Skill, World, eventually, pack, process, remains, world};
use tokio::task::JoinSet;

/// Many runs, eight at a time.
async fn runs(world: &mut World, skill: &'static str, count: usize, result: &'static str) {
    let mut tasks = JoinSet::new();
    for worker in 0..8 {
        let client = world.executor();
        tasks.spawn(async move {
            for _ in (worker..count).step_by(8) {
                let run = skillyard_tests::Live::open(client.clone(), skill).await.unwrap().rest().await;
                assert_eq!(run, succeeded(result));
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_thousand_runs_leave_nothing() {
    let mut world = World::builder().slots(8, 64).skill(Skill::tiny("tiny")).start().await;
    let executor = world.executor_server().pid();
    runs(&mut world, "tiny", 200, pack::TINY_RESULT).await;
    // How many slots it took is up to the machine: runs that are over soon are seldom eight at a time.
    let slots = remains::only_slots(&mut world, 8).await.len();
    // The directories of the slots are looked at with these.
    let kept = |world: &World| {
        let of_slots = ["state/scratch", "state/discarded"].map(|name| world.path(name));
        let mut paths = world::tree(&world.path("state"));
        paths.retain(|path| !of_slots.iter().any(|directory| path.starts_with(directory)));
        paths
    };
    let (state, before) = (kept(&world), remains::Held::of(executor));
    runs(&mut world, "tiny", 1000, pack::TINY_RESULT).await;
    let left = remains::only_slots(&mut world, 8).await;
    assert_eq!(kept(&world), state);
    // Finished runs are kept for five minutes: a thousand of them are small.
    before.no_more_is_held(executor, 16 << 20, left.len().saturating_sub(slots)).await;
    for slot in left {
        assert!(process::open_files(slot.pid) < 16, "{slot:?}");
    }
}

#[tokio::test]
async fn runs_that_leave_escapees_behind_leave_no_zombies() {
    let script = "( setsid sh -c 'sleep 0.2' >/dev/null 2>&1 & ); echo '{}'";
    let mut world = World::builder().slots(8, 64).skill(Skill::sh("escapes", script)).start().await;
    let count = if skillyard_tests::long() { 1000 } else { 200 };
    runs(&mut world, "escapes", count, "{}\n").await;
    remains::only_slots(&mut world, 8).await;
}

#[tokio::test]
async fn a_long_run_holds_no_zombies_of_its_orphans() {
    let script = "i=0; while [ $i -lt 50 ]; do ( /bin/true & ) ; i=$((i+1)); done; echo up >&2; sleep 2; echo '{}'";
    let mut world = World::of([Skill::sh("orphans", script)]).await;
    let executor = world.executor_server().pid();
    let mut run = world.open("orphans").await;
    run.logged("up").await;
    let (_, took) = skillyard_tests::within(Duration::from_secs(2), "its zombies are gone", async || {
        let zombies = process::descendants(executor).into_iter().filter(|process| process.state == 'Z').count();
        (zombies == 0).then_some(())
    })
    .await;
    assert!(took < Duration::from_secs(2));
    assert_eq!(run.rest().await, succeeded("{}\n").stderr("up\n"));
}

#[tokio::test]
async fn callers_who_leave_cost_no_descriptor() {
    let mut world = World::builder().slots(4, 64).skill(Skill::sh("naps", "sleep 300")).start().await;
    let executor = world.executor_server().pid();
    for round in 0..4 {
        let mut runs = Vec::new();
        for _ in 0..20 {
            let mut live = world.open("naps").await;
            live.accepted().await;
            runs.push(live);
        }
        drop(runs);
        eventually("all of them are gone", async || {
            let status = world.status().await;
            (status.queued, status.running) == (0, 0)
        })
        .await;
        // Four slots with two descriptors each, and what the executor began with.
        let files = process::open_files(executor);
        assert!(files < 64, "{files} in round {round}");
    }
    world.quiet(Duration::from_millis(500)).await;
}

#[tokio::test]
async fn both_are_small_when_idle() {
    let mut world = World::of([Skill::tiny("tiny")]).await;
    for (name, pid) in [("registry", world.registry_server().pid()), ("executor", world.executor_server().pid())] {
        // The pages of a program that was not optimised are many; what it has of its own is the same.
        let memory = process::memory(pid, if cfg!(debug_assertions) { "RssAnon" } else { "VmRSS" });
        eprintln!("the {name} takes {:.1} MB", memory as f64 / 1e6);
        assert!(memory < 20_000_000, "the {name} takes {memory} bytes");
    }
}

#[tokio::test]
async fn the_memory_of_large_results_is_given_back() {
    const LARGE: &str = "printf '\"'; /usr/bin/head -c 16000000 /dev/zero | /usr/bin/tr '\\0' x; printf '\"'";
    let builder = World::builder().slots(8, 64).flag("--keep-finished", "0s");
    let mut world = builder.skill(Skill::sh("large", LARGE)).skill(Skill::tiny("tiny")).start().await;
    let executor = world.executor_server().pid();
    runs(&mut world, "tiny", 100, pack::TINY_RESULT).await;
    let before = remains::Held::of(executor);
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        tasks.spawn(world.open("large").await.rest());
    }
    while let Some(run) = tasks.join_next().await {
        assert_eq!(run.unwrap().result.len(), 16_000_002);
    }
    before.no_more_is_held(executor, 32 << 20, 8).await;
}
