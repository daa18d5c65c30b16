//! Many callers, one approval, whole runs: over two executors and two registries on one database, one run is made.

use std::sync::Arc;

use rstest::rstest;
use skillyard::pb::registry::v1 as registry;
use skillyard::pb::registry::v1::request_approval_request::Arguments;
use skillyard_tests::cluster::{Cluster, Shown};
use skillyard_tests::postgres::Database;
use skillyard_tests::run::{Live, in_short};
use skillyard_tests::{AgentFile, call};
use tokio::sync::Barrier;

const CLIENTS: usize = 20;
const AGENT: &str = "mutating-with-confirm";

/// The id of an approval that is signed.
async fn approved(cluster: &Cluster, args: &str) -> String {
    let request = registry::RequestApprovalRequest {
        agent: AGENT.into(),
        skill: "mutates".into(),
        arguments: Some(Arguments::ArgsJson(args.into())),
        ..Default::default()
    };
    let mut planner = cluster.approvals(0, Shown::Token("planner"));
    let id = planner.request_approval(request).await.unwrap().into_inner().approval.unwrap().id;
    let word = registry::SignApprovalRequest { id: id.clone(), approve: true, comment: String::new() };
    cluster.approvals(0, Shown::Token("ann")).sign_approval(word).await.unwrap();
    id
}

/// The outcomes of so many runs that begin at once, on the executors in turn.
async fn race(cluster: &Cluster, args: &str, approval: &str, run_id: impl Fn(usize) -> String) -> Vec<String> {
    let start = Arc::new(Barrier::new(CLIENTS));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..CLIENTS {
        let (start, client) = (Arc::clone(&start), cluster.runs(n % 2, Shown::Token("planner")));
        let call = call("mutates").agent(AGENT).args(args).approval(approval).run_id(&run_id(n));
        tasks.spawn(async move {
            start.wait().await;
            match Live::open(client, call).await {
                Ok(live) => in_short(&live.end().await),
                Err(status) => in_short(&Err(status)),
            }
        });
    }
    tasks.join_all().await
}

#[rstest]
#[case::sqlite(1)]
#[case::postgres(2)]
#[tokio::test]
async fn of_twenty_runs_one_is_made(#[case] registries: usize) {
    let database = if registries == 1 { None } else { Database::new().await.map(|database| database.url()) };
    if registries > 1 && database.is_none() {
        return;
    }
    // Each executor as it should be, with an identity of its own, and both with one.
    for identities in [["e0", "e1"], ["e0", "e0"]] {
        let builder = Cluster::builder().registries(registries, database.clone()).executors(&identities);
        let skill = builder.leaves_a_line("mutates", "mutating");
        let cluster = builder.skill(&skill).agent(&AgentFile::new(AGENT).mode(AGENT)).start().await;
        let mut expected = Vec::new();
        for round in 0..3 {
            // Each call is a run of its own.
            let args = format!(r#"{{"round":{round}}}"#);
            let id = approved(&cluster, &args).await;
            let outcomes = race(&cluster, &args, &id, |n| format!("{identities:?}-{round}-{n}").replace(' ', "")).await;
            let made = outcomes.iter().filter(|outcome| *outcome == "SUCCEEDED").count();
            let refused = outcomes.iter().filter(|outcome| *outcome == "FailedPrecondition APPROVAL_INVALID").count();
            assert_eq!((made, refused), (1, CLIENTS - 1), "{identities:?} {outcomes:?}");
            expected.push(args);
            assert_eq!(cluster.effects(), expected);
        }
        // All calls are the same run, on one executor: half of the callers have asked the wrong one.
        let args = r#"{"all":"the same"}"#;
        let id = approved(&cluster, args).await;
        let outcomes = race(&cluster, args, &id, |_| "the-same".to_owned()).await;
        let made = outcomes.iter().filter(|outcome| *outcome == "SUCCEEDED").count();
        assert_eq!(made, CLIENTS / 2, "{identities:?} {outcomes:?}");
        expected.push(args.to_owned());
        assert_eq!(cluster.effects(), expected, "{outcomes:?}");
    }
}
