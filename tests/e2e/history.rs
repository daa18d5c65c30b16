//! The record of what ran: each run that a client saw is in the registry's history once, through outages and restarts of
//! either side and answers that are lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use skillyard::pb::executor::v1::{Outcome, RunState};
use skillyard::pb::registry::v1::history_service_client::HistoryServiceClient;
use skillyard::pb::registry::v1::{ListRunRecordsRequest, RunRecord};
use skillyard_tests::access::Door;
use skillyard_tests::run::Live;
use skillyard_tests::wire::Wire;
use skillyard_tests::{Skill, World, call, eventually};

/// Clients at once.
const CLIENTS: usize = 6;
const RESTARTS: usize = 5;

/// Succeeds, or fails where it is told to, and says on stderr which run it was.
fn mixed() -> Skill {
    Skill::sh("mixed", "read -r line; echo \"heard $line\" >&2; case $line in *fail*) exit 3;; esac; echo '{}'")
}

/// How many runs: `SKILLYARD_TEST_HISTORY_RUNS`, which is bounded by patience alone.
fn wanted() -> usize {
    let given = std::env::var("SKILLYARD_TEST_HISTORY_RUNS").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(if skillyard_tests::long() { 10_000 } else { 300 })
}

/// All records, by run; none is there twice.
pub(crate) async fn records(mut client: HistoryServiceClient<Door>) -> BTreeMap<String, RunRecord> {
    let mut request = ListRunRecordsRequest { page_size: 1000, ..Default::default() };
    let mut found = BTreeMap::new();
    loop {
        let page = client.list_run_records(request.clone()).await.expect("ListRunRecords").into_inner();
        for record in page.records {
            let run_id = record.run.as_ref().unwrap().run_id.clone();
            assert!(found.insert(run_id.clone(), record).is_none(), "{run_id} is recorded twice");
        }
        if page.next_page_token.is_empty() {
            return found;
        }
        request.page_token = page.next_page_token;
    }
}

/// Waits until there are so many, and gives them.
async fn recorded(world: &mut World, count: usize) -> BTreeMap<String, RunRecord> {
    let mut found = BTreeMap::new();
    eventually("all runs are recorded", async || {
        found = records(world.history()).await;
        found.len() >= count
    })
    .await;
    assert_eq!(found.len(), count);
    found
}

#[tokio::test]
async fn every_run_is_recorded_once_though_the_registry_is_killed_five_times() {
    let runs = wanted();
    let mut world = World::builder().skill(mixed()).start().await;
    let next = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (executor, next, done) = (world.executor(), Arc::clone(&next), Arc::clone(&done));
            tokio::spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= runs {
                        return seen;
                    }
                    let args = format!(r#"{{"{}":{n}}}"#, if n % 7 == 0 { "fail" } else { "good" });
                    let asked = call("mixed").args(args).label("n", &n.to_string());
                    let run = Live::open(executor.clone(), asked).await.unwrap().rest().await;
                    done.fetch_add(1, Ordering::Relaxed);
                    seen.push((n, run));
                }
            })
        })
        .collect();
    for restart in 1..=RESTARTS {
        let until = runs * restart / (RESTARTS + 1);
        skillyard_tests::within(20 * skillyard_tests::PATIENCE, "runs go on without the registry", async || {
            (done.load(Ordering::Relaxed) >= until).then_some(())
        })
        .await;
        world.kill_registry();
        // Some runs end while it is away.
        let away = (until + runs / 20).min(runs);
        skillyard_tests::within(20 * skillyard_tests::PATIENCE, "runs go on without the registry", async || {
            (done.load(Ordering::Relaxed) >= away).then_some(())
        })
        .await;
        world.start_registry().await;
    }
    let mut seen = BTreeMap::new();
    for client in clients {
        for (n, run) in client.await.unwrap() {
            assert!(seen.insert(run.finished.run_id.clone(), (n, run)).is_none());
        }
    }
    assert_eq!(seen.len(), runs);
    for (run_id, record) in recorded(&mut world, runs).await {
        let (n, run) = &seen[&run_id];
        let recorded = record.run.unwrap();
        assert_eq!(recorded.finished.as_ref(), Some(&run.finished));
        assert_eq!(record.stderr, run.stderr);
        assert_eq!((recorded.state(), recorded.skill.as_str()), (RunState::Finished, "mixed"));
        assert_eq!((recorded.executor.as_str(), record.appended_by.as_str()), ("e1", "executor"));
        assert_eq!((recorded.labels["n"].as_str(), &recorded.digest), (n.to_string().as_str(), &run.accepted.digest));
    }
    let failed = ListRunRecordsRequest { outcome: Outcome::Failed.into(), page_size: 1000, ..Default::default() };
    let failed = world.history().list_run_records(failed).await.unwrap().into_inner().records;
    assert_eq!(failed.len().min(1000), runs.div_ceil(7).min(1000));
}

#[tokio::test]
async fn what_an_executor_did_not_hand_in_it_hands_in_later() {
    let mut world =
        World::builder().skill(mixed()).skill(Skill::sh("wait", "echo here >&2; exec sleep 600")).start().await;
    world.run(call("mixed").run_id("before")).await;
    recorded(&mut world, 1).await;
    // The registry is away, and then the executor is killed in the middle of a run.
    world.kill_registry();
    for n in 0..5 {
        world.run(call("mixed").run_id(&format!("away-{n}"))).await;
    }
    let mut live = world.open(call("wait").run_id("cut-off")).await;
    live.logged("here").await;
    // What happens to safe runs is on the disk a moment after it happened.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    world.kill_executor();
    drop(live);
    world.start_registry().await;
    world.start_executor().await;
    world.run(call("mixed").run_id("after")).await;
    let found = recorded(&mut world, 8).await;
    let outcome = |id: &str| found[id].run.as_ref().unwrap().finished.as_ref().unwrap().outcome();
    assert_eq!(outcome("cut-off"), Outcome::Lost);
    for id in ["before", "away-0", "away-4", "after"] {
        assert_eq!(outcome(id), Outcome::Succeeded, "{id}");
    }
    // An executor that ends as it should hands in what is left.
    world.run(call("mixed").run_id("last")).await;
    let pid = rustix::process::Pid::from_raw(world.executor_server().pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    world.executor_server().logs("stopped").await;
    assert!(records(world.history()).await.contains_key("last"));
}

#[tokio::test]
async fn an_answer_that_is_lost_leads_to_no_second_record() {
    let mut world = World::builder().skill(mixed()).start_registry().await;
    let wire = Wire::to(world.registry_address()).await;
    world.reach_registry_at(wire.address);
    world.start_executor().await;
    world.settle().await;
    for round in 1..=5_usize {
        wire.hold_answers();
        world.run(call("mixed").run_id(&format!("held-{round}"))).await;
        // It is stored, and the executor does not hear of it.
        recorded(&mut world, 2 * round - 1).await;
        wire.cut();
        world.run(call("mixed").run_id(&format!("free-{round}"))).await;
        recorded(&mut world, 2 * round).await;
    }
    // Nothing is left to be handed in twice after a restart either.
    world.kill_executor();
    world.start_executor().await;
    world.run(call("mixed").run_id("end")).await;
    recorded(&mut world, 11).await;
}
