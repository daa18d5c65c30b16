//! The trace of a run: what the caller's metadata names is in the log lines of both services, and where nothing is named
//! a run has a trace of its own. The skill is told nothing of it.

use serde_json::Value;
use skillyard_tests::process::Server;
use skillyard_tests::run::{Live, succeeded};
use skillyard_tests::{AgentFile, Call, Skill, World, call, within};

use crate::approvals::{AGENT, signed};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

async fn world() -> World {
    World::builder()
        .skill(Skill::sh("changes", "echo '{}'").set("class", "mutating"))
        .skill(Skill::sh("tells", "echo \"\\\"$TRACEPARENT\\\"\""))
        .agent(&AgentFile::new(AGENT).mode(AGENT))
        .known_callers()
        .start()
        .await
}

/// The trace in the first line of a log with this message and this run.
async fn trace_of(server: &Server, message: &str, run_id: &str) -> String {
    let found = || {
        let lines = server.lines();
        let mut lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_it = |line: &Value| line["run_id"] == run_id || line["span"]["run_id"] == run_id;
        let line = lines.find(|line| line["message"] == message && is_it(line))?;
        Some(line["span"]["trace_id"].as_str().unwrap_or_default().to_owned())
    };
    within(skillyard_tests::PATIENCE, message, async || found()).await.0
}

/// The traces that a run has in the lines of both services.
async fn traces(world: &mut World, run: Call) -> [String; 3] {
    let live = Live::open(world.executor_as("orchestrator"), run).await.unwrap().rest().await;
    assert_eq!(live, succeeded("{}\n"));
    let run_id = live.finished.run_id;
    [
        trace_of(world.executor_server(), "the approval is used by this run", &run_id).await,
        trace_of(world.executor_server(), "run finished", &run_id).await,
        trace_of(world.registry_server(), "an approval was used", &run_id).await,
    ]
}

#[tokio::test]
async fn the_callers_trace_is_in_the_lines_of_both_services() {
    let mut world = world().await;
    let approval = signed(&mut world, AGENT, "changes", "{}", &["ann"]).await;
    let run = call("changes").agent(AGENT).args("{}").approval(&approval);
    let parent = format!("00-{TRACE}-b7ad6b7169203331-00");
    let run = run.metadata("traceparent", &parent).metadata("tracestate", "orchestrator=1");
    assert_eq!(traces(&mut world, run).await, [TRACE; 3]);
}

#[tokio::test]
async fn a_run_without_a_trace_begins_one() {
    let mut world = world().await;
    for parent in [None, Some("nonsense")] {
        let approval = signed(&mut world, AGENT, "changes", "{}", &["ann"]).await;
        let mut run = call("changes").agent(AGENT).args("{}").approval(&approval);
        if let Some(parent) = parent {
            run = run.metadata("traceparent", parent);
        }
        let [used, finished, registry] = traces(&mut world, run).await;
        assert!(used.len() == 32 && used.bytes().all(|b| b.is_ascii_hexdigit()), "{used:?}");
        assert_eq!((&finished, &registry), (&used, &used));
    }
}

#[tokio::test]
async fn the_same_call_of_another_trace_is_the_same_run() {
    let mut world = world().await;
    let mut ids = Vec::new();
    for span in ["b7ad6b7169203331", "b7ad6b7169203332"] {
        let run = call("tells").agent(AGENT).run_id("once").metadata("traceparent", &format!("00-{TRACE}-{span}-01"));
        let run = Live::open(world.executor_as("orchestrator"), run).await.unwrap().rest().await;
        // The environment is what the manifest allows, and that is nothing.
        assert_eq!(run, succeeded("\"\"\n"));
        ids.push(run.finished.run_id);
    }
    assert_eq!(ids, ["once", "once"]);
}
