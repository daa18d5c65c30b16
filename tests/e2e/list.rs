//! ListRuns and GetRun: who sees which runs, and in what order.

use skillyard::pb::executor::v1::{AttachRunRequest, GetRunRequest, ListRunsRequest};
use skillyard_tests::run::Refused;
use skillyard_tests::{AgentFile, Live, Skill, World, call};
use tonic::Code;

fn ids(runs: &[skillyard::pb::executor::v1::Run]) -> Vec<&str> {
    runs.iter().map(|run| run.run_id.as_str()).collect()
}

#[tokio::test]
async fn newest_first_by_page_and_filter() {
    let skills = [Skill::sh("quick", "echo {}"), Skill::sh("slow", "sleep 60").timeout(60)];
    let builder = skills.into_iter().fold(World::builder(), |builder, skill| builder.skill(skill));
    let mut world = builder.agent(&AgentFile::new("reader")).slots(1, 5).start().await;
    for i in 0..7 {
        let agent = if i % 2 == 0 { "reader" } else { "" };
        world.run(call("quick").run_id(&format!("run-{i}")).agent(agent)).await;
    }
    let mut slow = Vec::new();
    for id in ["running", "queued"] {
        let mut live = world.open(call("slow").run_id(id)).await;
        live.accepted().await;
        slow.push(live);
    }
    slow[0].started().await;
    let mut client = world.executor();
    let mut list = async |request| client.list_runs(request).await.map(tonic::Response::into_inner);
    let all = list(ListRunsRequest::default()).await.unwrap();
    let expected = ["queued", "running", "run-6", "run-5", "run-4", "run-3", "run-2", "run-1", "run-0"];
    assert_eq!((ids(&all.runs), &*all.next_page_token), (expected.to_vec(), ""));
    let active = list(ListRunsRequest { active: true, ..Default::default() }).await.unwrap();
    assert_eq!(ids(&active.runs), ["queued", "running"]);
    let of =
        |skill: &str, agent: &str| ListRunsRequest { skill: skill.into(), agent: agent.into(), ..Default::default() };
    assert_eq!(ids(&list(of("quick", "reader")).await.unwrap().runs), ["run-6", "run-4", "run-2", "run-0"]);
    assert!(list(of("nothing", "")).await.unwrap().runs.is_empty());
    let (mut seen, mut page_token) = (Vec::new(), String::new());
    loop {
        let page = list(ListRunsRequest { page_size: 2, page_token, ..Default::default() }).await.unwrap();
        seen.extend(ids(&page.runs).into_iter().map(ToOwned::to_owned));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
        let other = ListRunsRequest { skill: "quick".into(), page_token: page_token.clone(), ..Default::default() };
        assert_eq!(list(other).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_run_is_its_callers_and_the_operators() {
    let builder = World::builder().known_callers().skill(Skill::sh("quick", "echo {}"));
    let mut world = builder.agent(&AgentFile::new("reader")).start().await;
    let live = Live::open(world.executor_as("orchestrator"), call("quick").run_id("mine").agent("reader")).await;
    live.unwrap().rest().await;
    for (name, sees) in [("orchestrator", true), ("operator", true), ("approver", false)] {
        let mut client = world.executor_as(name);
        let listed = client.list_runs(ListRunsRequest::default()).await;
        let got = client.get_run(GetRunRequest { run_id: "mine".into() }).await;
        let attached = client.attach_run(AttachRunRequest { run_id: "mine".into(), after_seq: 0 }).await;
        if sees {
            assert_eq!(ids(&listed.unwrap().into_inner().runs), ["mine"]);
            assert_eq!(got.unwrap().into_inner().run.unwrap().caller, "orchestrator");
            assert!(attached.unwrap().into_inner().message().await.unwrap().is_some());
        } else {
            for status in [listed.unwrap_err(), got.unwrap_err(), attached.unwrap_err()] {
                assert_eq!(Refused::of(&status).short(), (Code::PermissionDenied, "CALLER_NOT_ALLOWED"), "{name}");
            }
        }
    }
}
