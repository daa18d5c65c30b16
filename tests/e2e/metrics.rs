//! What Prometheus is told: each figure after real runs, calls and approvals, and that the page has all of them and no
//! others.

use std::collections::BTreeSet;
use std::time::Duration;

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::registry::v1::SignApprovalRequest;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard_tests::metrics::Scrape;
use skillyard_tests::run::Live;
use skillyard_tests::world::{Builder, endpoint};
use skillyard_tests::{AgentFile, Skill, World, call, eventually};

use crate::approvals::{AGENT, signed};

const PAGE: &str = include_str!("../../docs/metrics.md");
const RUN_SKILL: &str = "skillyard.executor.v1.ExecutorService/RunSkill";

fn builder() -> Builder {
    World::builder().registry_flag("--admin-listen", "127.0.0.1:0").flag("--admin-listen", "127.0.0.1:0")
}

async fn executor(world: &mut World) -> Scrape {
    Scrape::of(world.executor_server().admin_address()).await
}

async fn registry(world: &mut World) -> Scrape {
    Scrape::of(world.registry_server().admin_address()).await
}

/// Waits until a figure of the executor is so.
async fn until(world: &mut World, series: &str, value: f64) {
    let address = world.executor_server().admin_address();
    eventually(&format!("{series} is {value}"), async || Scrape::of(address).await.get(series) == Some(value)).await;
}

/// Whatever is told is on the page; what is on it is told, but for what needs more than there is in a test.
fn is_on_the_page(told: &BTreeSet<String>, service: &str, but: &[&str]) {
    let written: BTreeSet<_> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next().map(str::to_owned))
        .filter(|name| name.starts_with(service))
        .collect();
    let missing: Vec<_> = told.difference(&written).collect();
    assert!(missing.is_empty(), "not in docs/metrics.md: {missing:?}");
    let more: Vec<_> = written.difference(told).filter(|name| !but.iter().any(|but| name.ends_with(but))).collect();
    assert!(more.is_empty(), "in docs/metrics.md alone: {more:?}");
}

#[tokio::test]
async fn runs_are_counted_by_skill_class_and_outcome() {
    let builder = builder().slots(1, 1);
    let gate = builder.path("gate");
    let waits = format!("echo up >&2; while ! [ -e {} ]; do sleep 0.01; done; echo '{{}}'", gate.display());
    let mut world = builder
        .skill(Skill::sh("greets", "echo heard >&2; echo '{}'"))
        .skill(Skill::sh("fails", "exit 3"))
        .skill(Skill::sh("kills_its_slot", "kill -9 $PPID; sleep 60"))
        .skill(Skill::sh("waits", &waits))
        .start()
        .await;
    let before = executor(&mut world).await;
    assert_eq!(before.get("skillyard_executor_runs_total"), None, "no row for what did not run");
    assert_eq!(before.value("skillyard_executor_refusals_total{reason=\"EXECUTOR_FULL\"}"), 0.0);
    for skill in ["greets", "greets", "fails"] {
        world.run(skill).await;
    }
    world.refusal("nothing").await;
    let mut first = world.open("waits").await;
    first.logged("up").await;
    let mut second = world.open("waits").await;
    second.accepted().await;
    world.refusal("waits").await;
    let busy = executor(&mut world).await;
    for (figure, value) in [
        ("slots", 1.0),
        ("queue_limit", 1.0),
        ("runs_running", 1.0),
        ("runs_queued", 1.0),
        ("slot_processes{state=\"taken\"}", 1.0),
        ("slot_processes{state=\"idle\"}", 0.0),
        ("draining", 0.0),
        ("ready", 1.0),
        ("registry_connected", 1.0),
        ("packages_missing", 0.0),
        ("runs_total{skill=\"greets\",class=\"safe\",outcome=\"SUCCEEDED\"}", 2.0),
        ("runs_total{skill=\"fails\",class=\"safe\",outcome=\"FAILED\"}", 1.0),
        ("refusals_total{reason=\"UNKNOWN_SKILL\"}", 1.0),
        ("refusals_total{reason=\"EXECUTOR_FULL\"}", 1.0),
        // Three ended, and one has a slot.
        ("run_queue_duration_seconds_count", 4.0),
        ("run_spawn_duration_seconds_count", 3.0),
        ("run_duration_seconds_count", 3.0),
        ("output_bytes_total{stream=\"stdout\"}", 6.0),
        ("output_bytes_total{stream=\"stderr\"}", 12.0),
        ("log_lines_dropped_total", 0.0),
        ("journal_write_failures_total", 0.0),
        ("journal_records_dropped_total", 0.0),
        ("journal_records_rejected_total", 0.0),
        ("runs_lost_at_start", 0.0),
        ("runs_lost_total", 0.0),
    ] {
        assert_eq!(busy.value(&format!("skillyard_executor_{figure}")), value, "{figure}");
    }
    assert!(busy.value("skillyard_executor_catalog_age_seconds") < 600.0);
    let started = busy.value("skillyard_executor_start_time_seconds");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!(started <= now && started > now - 600.0, "{started}");
    let call = |code: &str| format!("skillyard_executor_grpc_requests_total{{method=\"{RUN_SKILL}\",code=\"{code}\"}}");
    assert_eq!((busy.value(&call("OK")), busy.value(&call("RESOURCE_EXHAUSTED"))), (3.0, 1.0));
    assert_eq!(busy.value(&format!("skillyard_executor_grpc_requests_open{{method=\"{RUN_SKILL}\"}}")), 2.0);
    is_on_the_page(busy.names(), "skillyard_executor_", &["certificate_not_after_time_seconds"]);

    std::fs::write(&gate, "").unwrap();
    let ended = [first.rest().await, second.rest().await];
    world.run("kills_its_slot").await;
    let quiet = executor(&mut world).await;
    let lost = "skillyard_executor_runs_total{skill=\"kills_its_slot\",class=\"safe\",outcome=\"LOST\"}";
    assert_eq!((quiet.value(lost), quiet.value("skillyard_executor_runs_lost_total")), (1.0, 1.0));
    let waits = "{skill=\"waits\",class=\"safe\"}";
    let ran = quiet.value(&format!("skillyard_executor_skill_run_seconds_total{waits}"));
    let cpu = quiet.value(&format!("skillyard_executor_skill_cpu_seconds_total{waits}"));
    let wall = |run: &skillyard_tests::RunSeen| {
        Duration::try_from(run.finished.usage.as_ref().unwrap().wall.unwrap()).unwrap().as_secs_f64()
    };
    let expected: f64 = ended.iter().map(wall).sum();
    assert!((ran - expected).abs() < 1e-6, "{ran} is not {expected}");
    assert!(cpu >= 0.0 && cpu.is_finite());
    let queued = quiet.value("skillyard_executor_run_queue_duration_seconds_sum");
    assert!(queued > 0.0 && queued < 600.0, "{queued}");
}

#[tokio::test]
async fn lines_that_a_reader_missed_are_counted() {
    let script = "yes 'a line of some fifty characters, as programs write' | head -n 400000 >&2; echo '{}'";
    let mut world = builder().skill(Skill::sh("floods", script)).start().await;
    let narrow = endpoint(world.executor_address())
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535)
        .connect()
        .await
        .unwrap();
    let mut run = Live::open(ExecutorServiceClient::new(narrow), "floods").await.unwrap();
    run.started().await;
    eventually("the skill has ended without its reader", async || world.skill_processes().is_empty()).await;
    let run = run.rest().await;
    assert!(run.dropped > 0);
    let told = executor(&mut world).await.value("skillyard_executor_log_lines_dropped_total");
    assert_eq!(told, run.dropped as f64);
}

#[tokio::test]
async fn records_that_wait_for_the_registry_and_runs_that_were_lost_are_told() {
    let mut world = builder()
        .skill(Skill::sh("greets", "echo '{}'"))
        .skill(Skill::sh("waits", "echo up >&2; sleep 300"))
        .start()
        .await;
    world.run("greets").await;
    let address = world.registry_server().admin_address();
    eventually("its record is handed in", async || {
        Scrape::of(address).await.value("skillyard_registry_history_records_total{result=\"new\"}") == 1.0
    })
    .await;
    until(&mut world, "skillyard_executor_journal_records_unshipped", 0.0).await;
    world.kill_registry();
    for _ in 0..3 {
        world.run("greets").await;
    }
    until(&mut world, "skillyard_executor_journal_records_unshipped", 3.0).await;
    until(&mut world, "skillyard_executor_journal_shipping_failing", 1.0).await;
    until(&mut world, "skillyard_executor_registry_connected", 0.0).await;
    assert!(executor(&mut world).await.value("skillyard_executor_journal_unshipped_bytes") > 0.0);
    let mut live = world.open(call("waits").run_id("lost-1")).await;
    live.logged("up").await;
    // The journal shares writes of 100 ms: that the run was accepted is on the disk when another that ended later is.
    world.run("greets").await;
    until(&mut world, "skillyard_executor_journal_records_unshipped", 4.0).await;
    world.kill_executor();
    world.start_executor().await;
    let again = executor(&mut world).await;
    assert_eq!(again.value("skillyard_executor_runs_lost_at_start"), 1.0);
    assert_eq!(again.value("skillyard_executor_journal_records_unshipped"), 5.0);
    world.start_registry().await;
    until(&mut world, "skillyard_executor_journal_records_unshipped", 0.0).await;
    until(&mut world, "skillyard_executor_journal_shipping_failing", 0.0).await;
    let told = registry(&mut world).await;
    assert_eq!(told.value("skillyard_registry_history_records_total{result=\"new\"}"), 5.0);
}

#[tokio::test]
async fn approvals_records_and_calls_of_the_registry_are_told() {
    let mut world = builder()
        .skill(Skill::sh("changes", "echo '{}'").set("class", "mutating"))
        .agent(&AgentFile::new(AGENT).mode(AGENT))
        .known_callers()
        .start()
        .await;
    let approved = signed(&mut world, AGENT, "changes", r#"{"n":1}"#, &["ann"]).await;
    let pending = signed(&mut world, AGENT, "changes", r#"{"n":2}"#, &[]).await;
    let address = world.registry_server().admin_address();
    let open = |scrape: &Scrape| {
        ["pending", "approved"]
            .map(|state| scrape.value(&format!("skillyard_registry_approvals_open{{state=\"{state}\"}}")))
    };
    eventually("one is pending, one approved", async || open(&Scrape::of(address).await) == [1.0, 1.0]).await;
    let oldest = Scrape::of(address).await.value("skillyard_registry_approvals_oldest_pending_time_seconds");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!(oldest <= now && oldest > now - 600.0, "{oldest}");
    let run = call("changes").agent(AGENT).args(r#"{"n":1}"#).approval(&approved);
    Live::open(world.executor_as("orchestrator"), run).await.unwrap().rest().await;
    // It is accepted, and refused when the registry knows no such approval.
    let none = call("changes").agent(AGENT).args(r#"{"n":1}"#).approval("none");
    Live::open(world.executor_as("orchestrator"), none).await.unwrap().end().await.unwrap_err();
    let here = executor(&mut world).await;
    for (figure, value) in [
        ("runs_total{skill=\"changes\",class=\"mutating\",outcome=\"SUCCEEDED\"}", 1.0),
        ("refusals_total{reason=\"UNKNOWN_APPROVAL\"}", 1.0),
        ("run_queue_duration_seconds_count", 2.0),
        ("run_spawn_duration_seconds_count", 1.0),
    ] {
        assert_eq!(here.value(&format!("skillyard_executor_{figure}")), value, "{figure}");
    }
    let against = SignApprovalRequest { id: pending, approve: false, comment: String::new() };
    ApprovalServiceClient::new(world.registry_as("ann")).sign_approval(against).await.unwrap();
    eventually("none is open", async || open(&Scrape::of(address).await) == [0.0, 0.0]).await;
    eventually("the record is handed in", async || {
        Scrape::of(address).await.value("skillyard_registry_history_records_total{result=\"new\"}") == 1.0
    })
    .await;
    let told = Scrape::of(address).await;
    for (figure, value) in [
        ("ready", 1.0),
        ("database_ready", 1.0),
        // The skill and the agent.
        ("candidates_registered", 2.0),
        ("candidates_refused", 0.0),
        ("roots{state=\"unreadable\"}", 0.0),
        ("approvals_total{event=\"requested\"}", 2.0),
        ("approvals_total{event=\"signed_for\"}", 1.0),
        ("approvals_total{event=\"signed_against\"}", 1.0),
        ("approvals_total{event=\"consumed\"}", 1.0),
        ("approvals_total{event=\"expired\"}", 0.0),
        ("history_records_total{result=\"known\"}", 0.0),
        ("history_records_total{result=\"rejected\"}", 0.0),
        ("grpc_requests_total{method=\"skillyard.registry.v1.ApprovalService/ConsumeApproval\",code=\"OK\"}", 1.0),
        ("grpc_request_duration_seconds_count{method=\"skillyard.registry.v1.ApprovalService/ConsumeApproval\"}", 2.0),
        ("grpc_requests_open{method=\"skillyard.registry.v1.PackageService/WatchCatalog\"}", 1.0),
    ] {
        assert_eq!(told.value(&format!("skillyard_registry_{figure}")), value, "{figure}");
    }
    assert!(told.value("skillyard_registry_roots{state=\"registered\"}") >= 1.0);
    assert!(told.value("skillyard_registry_catalog_loaded_time_seconds") > now - 3600.0);
    let but = [
        "certificate_not_after_time_seconds",
        "oldest_pending_time_seconds",
        "sync_attempted_time_seconds",
        "sync_succeeded_time_seconds",
        "sync_skills",
        "sync_skills_failed",
        "sync_failing",
    ];
    is_on_the_page(told.names(), "skillyard_registry_", &but);
    // What nobody serves makes no row.
    assert!(!told.names().iter().any(|name| name.contains("Health")));
}
