//! Who may: tokens and certificates over the wire, what each role can call, files that are rotated while calls go on, and
//! a skill that tries the services it runs beside.

use std::time::Duration;

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::{CancelRunRequest, GetStatusRequest};
use skillyard::pb::registry::v1 as registry;
use skillyard::pb::registry::v1::agent_service_client::AgentServiceClient;
use skillyard::pb::registry::v1::catalog_service_client::CatalogServiceClient;
use skillyard::pb::registry::v1::package_service_client::PackageServiceClient;
use skillyard_tests::access::{Door, Show, replace};
use skillyard_tests::run::{Live, succeeded};
use skillyard_tests::world::endpoint;
use skillyard_tests::{AgentFile, Refused, Skill, World, binaries, call, eventually};
use tonic::{Code, Status};

const UNKNOWN: (Code, &str) = (Code::Unauthenticated, "CALLER_UNKNOWN");
const NOT_ALLOWED: (Code, &str) = (Code::PermissionDenied, "CALLER_NOT_ALLOWED");

fn echo() -> Skill {
    Skill::sh("echo", "cat")
}

/// What became of a call, in short.
fn verdict<T>(result: Result<T, Status>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(status) => match Refused::of(&status).short() {
            UNKNOWN => "unknown",
            NOT_ALLOWED => "not allowed",
            other => panic!("{other:?}: {status:?}"),
        },
    }
}

/// What becomes of each call of both services, for whoever shows this.
async fn verdicts(world: &mut World, show: Show) -> Vec<(&'static str, &'static str)> {
    let to_registry = endpoint(world.registry_address()).connect().await.unwrap();
    let to_registry = Door::new(to_registry, show.clone());
    let to_executor = Door::new(endpoint(world.executor_address()).connect().await.unwrap(), show);
    let mut catalog = CatalogServiceClient::new(to_registry.clone());
    let mut agents = AgentServiceClient::new(to_registry.clone());
    let mut packages = PackageServiceClient::new(to_registry);
    let executor = ExecutorServiceClient::new(to_executor);
    let agent = || "reader".to_owned();
    let digest = skill_digest(world).await;
    let list = registry::ListSkillsRequest { agent: agent(), ..Default::default() };
    let get = registry::GetSkillRequest { name: "echo".into(), agent: agent() };
    let run = match Live::open(executor.clone(), call("echo").agent("reader")).await {
        Ok(live) => live.end().await.map(drop),
        Err(status) => Err(status),
    };
    vec![
        ("ListSkills", verdict(catalog.list_skills(list).await)),
        ("GetSkill", verdict(catalog.get_skill(get).await)),
        ("ListAgents", verdict(agents.list_agents(registry::ListAgentsRequest::default()).await)),
        ("GetAgent", verdict(agents.get_agent(registry::GetAgentRequest { name: agent() }).await)),
        ("GetLoadReport", verdict(catalog.get_load_report(registry::GetLoadReportRequest::default()).await)),
        ("Reload", verdict(catalog.reload(registry::ReloadRequest {}).await)),
        ("WatchCatalog", verdict(packages.watch_catalog(registry::WatchCatalogRequest::default()).await)),
        ("FetchPackage", verdict(packages.fetch_package(registry::FetchPackageRequest { digest }).await)),
        ("RunSkill", verdict(run)),
        ("CancelRun", verdict(cancel_of_another(world, executor.clone()).await)),
        ("GetStatus", verdict(executor.clone().get_status(GetStatusRequest {}).await)),
    ]
}

async fn skill_digest(world: &mut World) -> String {
    let request = registry::GetSkillRequest { name: "echo".into(), agent: String::new() };
    world.catalog().get_skill(request).await.unwrap().into_inner().skill.unwrap().digest
}

/// Cancels a run that `other` started and that has ended, which changes nothing for those who may.
async fn cancel_of_another(world: &mut World, mut executor: ExecutorServiceClient<Door>) -> Result<(), Status> {
    let run_id =
        format!("r{}", std::sync::atomic::AtomicU32::fetch_add(&RUNS, 1, std::sync::atomic::Ordering::Relaxed));
    let live = Live::open(world.executor_as("other"), call("echo").run_id(&run_id)).await.unwrap();
    live.rest().await;
    executor.cancel_run(CancelRunRequest { run_id, reason: String::new() }).await.map(drop)
}

static RUNS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

async fn world() -> World {
    World::builder()
        .skill(echo())
        .agent(&AgentFile::new("reader"))
        .agent(&AgentFile::new("writer"))
        .known_callers()
        .start()
        .await
}

#[tokio::test]
async fn what_each_role_can_call() {
    let mut world = world().await;
    let expected: [(&str, [&str; 11]); 7] = {
        let (y, n) = ("ok", "not allowed");
        //           skills  agents  report reload watch fetch run cancel status
        [
            ("operator", [y, y, y, y, y, y, y, y, n, y, y]),
            ("executor", [y, y, y, y, n, n, y, y, n, n, y]),
            ("orchestrator", [y, y, y, y, n, n, n, n, y, n, y]),
            ("other", [y, y, y, y, n, n, n, n, y, y, y]),
            ("narrow", [y, y, y, y, n, n, n, n, y, n, y]),
            ("approver", [y, y, y, y, n, n, n, n, n, n, y]),
            ("nothing", [n, n, n, n, n, n, n, n, n, n, y]),
        ]
    };
    for (name, row) in expected {
        let show = Show::token(world.identities.token(name));
        let seen = verdicts(&mut world, show).await;
        assert_eq!(seen.iter().map(|(_, verdict)| *verdict).collect::<Vec<_>>(), row, "{name}: {seen:?}");
    }
}

#[tokio::test]
async fn who_is_not_known_can_call_nothing() {
    let mut world = world().await;
    let strange = skillyard::service::token::Token::random().unwrap();
    let hash = world.identities.token("operator").hash();
    for show in [
        Show::default(),
        Show::token(&strange),
        Show::header("Bearer"),
        Show::header("Bearer "),
        Show::header(&format!("Bearer sha256:{hash}")),
        Show::header(&format!("Bearer {hash}")),
        Show::header("Basic b3BlcmF0b3I6"),
    ] {
        for (method, verdict) in verdicts(&mut world, show.clone()).await {
            assert_eq!(verdict, "unknown", "{method} with {show:?}");
        }
    }
    // What probes and tools ask needs nothing.
    skillyard_tests::world::serving(&mut world.executor_health()).await;
}

#[tokio::test]
async fn a_caller_names_its_agents_alone() {
    let mut world = world().await;
    for (agent, expected) in
        [("reader", "ok"), ("writer", "not allowed"), ("", "not allowed"), ("nobody", "not allowed")]
    {
        let run = match Live::open(world.executor_as("narrow"), call("echo").agent(agent)).await {
            Ok(live) => live.end().await.map(drop),
            Err(status) => Err(status),
        };
        assert_eq!(verdict(run), expected, "RunSkill for {agent:?}");
        let mut catalog = CatalogServiceClient::new(world.registry_as("narrow"));
        let list = registry::ListSkillsRequest { agent: agent.to_owned(), ..Default::default() };
        assert_eq!(verdict(catalog.list_skills(list).await), expected, "ListSkills for {agent:?}");
        let get = registry::GetSkillRequest { name: "echo".into(), agent: agent.to_owned() };
        assert_eq!(verdict(catalog.get_skill(get).await), expected, "GetSkill for {agent:?}");
        let mut agents = AgentServiceClient::new(world.registry_as("narrow"));
        let request = registry::GetAgentRequest { name: agent.to_owned() };
        assert_eq!(verdict(agents.get_agent(request).await), expected, "GetAgent of {agent:?}");
    }
    let mut agents = AgentServiceClient::new(world.registry_as("narrow"));
    let page = agents.list_agents(registry::ListAgentsRequest::default()).await.unwrap().into_inner();
    assert_eq!(page.agents.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>(), ["reader"]);
}

#[tokio::test]
async fn a_run_belongs_to_its_caller() {
    let mut world =
        World::builder().skill(Skill::sh("wait", "echo here >&2; exec sleep 600")).known_callers().start().await;
    let mut live = Live::open(world.executor_as("orchestrator"), call("wait").run_id("mine")).await.unwrap();
    live.logged("here").await;
    let cancel = || CancelRunRequest { run_id: "mine".into(), reason: String::new() };
    let refused = Live::open(world.executor_as("other"), call("wait").run_id("mine")).await;
    assert_eq!(Refused::of(&refused.err().unwrap()).short(), (Code::AlreadyExists, "RUN_ID_REUSED"));
    assert_eq!(verdict(world.executor_as("other").cancel_run(cancel()).await), "not allowed");
    // The same call again is the same run, and it is the caller's to end.
    let again = Live::open(world.executor_as("orchestrator"), call("wait").run_id("mine")).await.unwrap();
    let run = world.executor_as("orchestrator").cancel_run(cancel()).await.unwrap().into_inner().run.unwrap();
    assert_eq!((run.caller.as_str(), run.run_id.as_str()), ("orchestrator", "mine"));
    assert_eq!(again.rest().await.finished, live.rest().await.finished);
    // Without a run that is somebody's, whoever is anonymous cannot find one out.
    let mut live = Live::open(world.executor_as("orchestrator"), call("wait").run_id("second")).await.unwrap();
    live.logged("here").await;
    let cancel = CancelRunRequest { run_id: "second".into(), reason: String::new() };
    let run = world.executor_as("operator").cancel_run(cancel).await.unwrap().into_inner().run.unwrap();
    assert_eq!(run.caller, "orchestrator");
    world.executor_server().logs("\"caller\":\"orchestrator\"").await;
}

#[tokio::test]
async fn without_identities_a_run_is_nobodys() {
    let mut world = World::of([echo()]).await;
    // The executor of this world knows nobody: it serves reading and safe runs.
    assert_eq!(world.run("echo").await.ended(), succeeded("{}"));
    let run = world.run(call("echo").run_id("a")).await;
    assert_eq!(world.cancel("a", "").await.unwrap().caller, "");
    assert_eq!(run.ended(), succeeded("{}"));
}

#[tokio::test]
async fn tokens_are_rotated_while_calls_go_on() {
    let mut world = world().await;
    let old = Show::token(world.identities.token("orchestrator"));
    let channel = endpoint(world.executor_address()).connect().await.unwrap();
    let opened = |show: &Show| ExecutorServiceClient::new(Door::new(channel.clone(), show.clone()));
    // Others, whose tokens stay, notice nothing.
    let busy = tokio::spawn({
        let client =
            ExecutorServiceClient::new(Door::new(channel.clone(), Show::token(world.identities.token("other"))));
        async move {
            let end = std::time::Instant::now() + Duration::from_secs(4);
            let mut runs = 0;
            while std::time::Instant::now() < end {
                let live = Live::open(client.clone(), "echo").await.unwrap();
                assert_eq!(live.rest().await.ended(), succeeded("{}"));
                runs += 1;
            }
            runs
        }
    });
    // Both tokens are good while both lines are there.
    let tokens = world.identities.tokens_file();
    let before = std::fs::read_to_string(&tokens).unwrap();
    world.identities.rotate("orchestrator");
    world.identities.rotate("executor");
    let after = std::fs::read_to_string(&tokens).unwrap();
    replace(&tokens, format!("{before}{after}"));
    let new = Show::token(world.identities.token("orchestrator"));
    eventually("the new token is good", async || opened(&new).get_status(GetStatusRequest {}).await.is_ok()).await;
    assert_eq!(verdict(opened(&old).get_status(GetStatusRequest {}).await), "ok");
    // A file that cannot be read changes nothing.
    replace(&tokens, "orchestrator is not a line");
    eventually("the executor says so", async || {
        let _ = opened(&new).get_status(GetStatusRequest {}).await;
        world.executor_server().has_logged("what was read before stays in force")
    })
    .await;
    assert_eq!(verdict(opened(&new).get_status(GetStatusRequest {}).await), "ok");
    replace(&tokens, after);
    eventually("the old token is no good", async || opened(&old).get_status(GetStatusRequest {}).await.is_err()).await;
    assert_eq!(verdict(opened(&new).get_status(GetStatusRequest {}).await), "ok");
    assert!(busy.await.unwrap() > 0);
    // The executor shows its new token to the registry when it calls the next time.
    world.kill_registry();
    world.start_registry().await;
    world.write(&Skill::sh("second", "cat"));
    world.settle().await;
    // A role that was taken away is gone, whatever the token.
    replace(&world.identities.callers_file(), "callers: {orchestrator: {roles: [approver]}}");
    eventually("the role is gone", async || {
        let run = Live::open(opened(&new), "echo").await;
        run.is_err_and(|status| verdict::<()>(Err(status)) == "not allowed")
    })
    .await;
}

#[tokio::test]
async fn a_skill_on_the_same_host_is_refused() {
    // It has the program of a client, and the address; the executor's environment has a token that it is not given.
    let client = binaries::executor();
    let script =
        format!("read -r line; at=${{line#*:\\\"}}; exec {} run echo --executor \"${{at%%\\\"*}}\"", client.display());
    let builder = World::builder().skill(echo()).skill(Skill::sh("reach", &script)).known_callers();
    let token = builder.path("access/orchestrator.token");
    let mut world = builder.variable("SKILLYARD_TOKEN_FILE", token.display()).start().await;
    // Arguments are an object: the address is the only string in it.
    let args = format!("{{\"at\":\"http://{}\"}}", world.executor_address());
    let live = Live::open(world.executor_as("orchestrator"), call("reach").args(args)).await.unwrap();
    let seen = live.rest().await;
    assert_eq!(seen.finished.exit_code, Some(8), "{seen:?}");
    assert!(seen.stderr.contains("CALLER_UNKNOWN"), "{}", seen.stderr);
    world.executor_server().logs("call refused").await;
}
