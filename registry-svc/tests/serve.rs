//! The real binary, asked over a real socket.

#![expect(clippy::unwrap_used, reason = "what is not as it should be fails the test")]

mod browse;
mod model;
mod notified;
mod reload;
mod world;

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::fs::symlink;

use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::agent_service_client::AgentServiceClient;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard::pb::registry::v1::catalog_service_client::CatalogServiceClient;
use skillyard::pb::registry::v1::fetch_package_response::Part;
use skillyard::pb::registry::v1::package_service_client::PackageServiceClient;
use skillyard::pb::skill::v1 as skill_pb;
use skillyard::service::dial::{DialOptions, Dialer};
use skillyard::{Digest, PackageFile};
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;
use world::{PATIENCE, Registry, World, eventually};

fn catalog(registry: &Registry) -> CatalogServiceClient<Dialer> {
    CatalogServiceClient::new(registry.channel.clone())
}

async fn list(registry: &Registry, request: pb::ListSkillsRequest) -> Result<Vec<String>, Status> {
    let response = catalog(registry).list_skills(request).await?.into_inner();
    Ok(response.skills.into_iter().map(|skill| skill.name).collect())
}

async fn get(registry: &Registry, name: &str, agent: &str) -> Result<skill_pb::Skill, Status> {
    let request = pb::GetSkillRequest { name: name.into(), agent: agent.into() };
    Ok(catalog(registry).get_skill(request).await?.into_inner().skill.unwrap())
}

async fn reload(registry: &Registry) -> pb::ReloadResponse {
    catalog(registry).reload(pb::ReloadRequest {}).await.unwrap().into_inner()
}

async fn watch(registry: &Registry, version: &str) -> Streaming<pb::WatchCatalogResponse> {
    let request = pb::WatchCatalogRequest { catalog_version: version.into(), ..Default::default() };
    PackageServiceClient::new(registry.channel.clone()).watch_catalog(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<pb::WatchCatalogResponse>) -> pb::WatchCatalogResponse {
    timeout(PATIENCE, stream.message()).await.unwrap().unwrap().unwrap()
}

async fn fetch(registry: &Registry, digest: &str) -> Result<Vec<(pb::FileHeader, Vec<u8>)>, Status> {
    let request = pb::FetchPackageRequest { digest: digest.into() };
    let mut stream = PackageServiceClient::new(registry.channel.clone()).fetch_package(request).await?.into_inner();
    let mut files: Vec<(pb::FileHeader, Vec<u8>)> = Vec::new();
    while let Some(message) = stream.message().await? {
        match message.part.unwrap() {
            Part::File(header) => files.push((header, Vec::new())),
            Part::Data(bytes) => files.last_mut().unwrap().1.extend(bytes),
        }
    }
    Ok(files)
}

/// Code and reason of a refusal.
fn refused<T: std::fmt::Debug>(result: Result<T, Status>) -> (Code, String) {
    let status = result.unwrap_err();
    let info = status.get_error_details().error_info().cloned();
    (status.code(), info.map(|info| info.reason).unwrap_or_default())
}

fn refusal(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

#[tokio::test]
async fn skills_are_listed_in_pages_and_by_filters() {
    let world = World::new();
    world.skill("b", r#","class":"mutating","category":"disk""#);
    world.skill("a", "");
    world.skill("c", "");
    world.playbook("guide");
    let registry = world.serve(&[]).await;
    let request = pb::ListSkillsRequest::default;

    assert_eq!(list(&registry, request()).await.unwrap(), ["a", "b", "c", "guide"]);
    assert_eq!(list(&registry, pb::ListSkillsRequest { kind: 2, ..request() }).await.unwrap(), ["guide"]);
    assert_eq!(list(&registry, pb::ListSkillsRequest { class: 2, ..request() }).await.unwrap(), ["b"]);
    let category = pb::ListSkillsRequest { category: "disk".into(), ..request() };
    assert_eq!(list(&registry, category.clone()).await.unwrap(), ["b"]);

    let paged = pb::ListSkillsRequest { page_size: 3, ..request() };
    let first = catalog(&registry).list_skills(paged.clone()).await.unwrap().into_inner();
    assert_eq!((first.skills.len(), first.total_size), (3, 4));
    let token = first.next_page_token;
    let second = pb::ListSkillsRequest { page_token: token.clone(), ..paged };
    assert_eq!(list(&registry, second).await.unwrap(), ["guide"]);

    for bad in [
        pb::ListSkillsRequest { page_size: -1, ..request() },
        pb::ListSkillsRequest { page_token: "x".into(), ..request() },
        pb::ListSkillsRequest { page_token: token.clone(), ..category },
        pb::ListSkillsRequest { kind: 9, ..request() },
        pb::ListSkillsRequest { class: -1, ..request() },
    ] {
        assert_eq!(refused(list(&registry, bad).await), refusal(Code::InvalidArgument, "INVALID_REQUEST"));
    }

    let skill = get(&registry, "b", "").await.unwrap();
    assert_eq!((skill.path.as_str(), skill.description.as_str()), ("b", "does b"));
    assert_eq!(skill.subprocess.unwrap().entry, "run.sh");
    let status = get(&registry, "nobody", "").await.unwrap_err();
    assert_eq!(status.message(), r#"unknown skill "nobody""#);
    assert_eq!(refused::<()>(Err(status)), refusal(Code::NotFound, "UNKNOWN_SKILL"));
}

#[tokio::test]
async fn an_agent_sees_its_own_skills_and_nothing_else() {
    let world = World::new();
    world.skill("a", "");
    world.skill("b", "");
    world.playbook("guide");
    world.agent("narrow", r#"skills: ["a", "guide"]"#);
    world.agent("without_b", r#"disallowed_skills: ["b"]"#);
    let registry = world.serve(&["--default-agent", "without_b"]).await;
    let seen =
        async |agent: &str| list(&registry, pb::ListSkillsRequest { agent: agent.into(), ..Default::default() }).await;

    assert_eq!(seen("narrow").await.unwrap(), ["a", "guide"]);
    assert_eq!(seen("").await.unwrap(), ["a", "guide"]);
    assert_eq!(refused(seen("nobody").await), refusal(Code::NotFound, "UNKNOWN_AGENT"));
    let (hidden, missing) =
        (get(&registry, "b", "narrow").await.unwrap_err(), get(&registry, "c", "narrow").await.unwrap_err());
    assert_eq!(hidden.message().replace('b', "c"), missing.message(), "what it may not see does not exist for it");
    assert_eq!((hidden.code(), missing.code()), (Code::NotFound, Code::NotFound));

    let mut agents = AgentServiceClient::new(registry.channel.clone());
    let all =
        agents.list_agents(pb::ListAgentsRequest { page_size: 1, ..Default::default() }).await.unwrap().into_inner();
    assert_eq!(all.agents[0].name, "narrow");
    let rest = pb::ListAgentsRequest { page_size: 1, page_token: all.next_page_token };
    let rest = agents.list_agents(rest).await.unwrap().into_inner();
    assert_eq!((rest.agents[0].name.as_str(), rest.next_page_token.as_str()), ("without_b", ""));
    let one =
        agents.get_agent(pb::GetAgentRequest { name: "narrow".into() }).await.unwrap().into_inner().agent.unwrap();
    assert_eq!(one.skills, ["a", "guide"]);
    let none = agents.get_agent(pb::GetAgentRequest { name: "x".into() }).await;
    assert_eq!(refused(none), refusal(Code::NotFound, "UNKNOWN_AGENT"));
}

#[tokio::test]
async fn what_became_of_every_candidate() {
    let world = World::new();
    world.skill("good", "");
    world.write("ext/twin/run.sh", "#!/bin/sh\n");
    world.write("ext/twin/skill.json", r#"{"name":"good","description":"d","entry":"run.sh"}"#);
    world.write("ext/typo/skill.json", "{\"name\": \"typo\",\n oops}");
    world.agent("a", r#"skills: ["god"]"#);
    let missing = world.path("missing");
    let registry = world.serve(&["--workspace", missing.to_str().unwrap(), "--tier", "lab"]).await;

    let ext = world.path("ext");
    registry
        .logs(&format!("skill loader: registered subprocess skill \"good\" from {}/good/skill.json", ext.display()));
    registry
        .logs(&format!("skill loader: skill \"good\" already registered, skipping {}/twin/skill.json", ext.display()));
    let parse = format!("WARN skill loader: parse {}/typo/skill.json: ", ext.display());
    eventually(async || registry.log().iter().any(|line| line.starts_with(&parse)).then_some(())).await;

    let request = pb::GetLoadReportRequest { page_size: 2, ..Default::default() };
    let first = catalog(&registry).get_load_report(request.clone()).await.unwrap().into_inner();
    let states: Vec<_> = first.roots.iter().map(|root| (root.state.as_str(), root.registered, root.skipped)).collect();
    assert_eq!(
        states,
        [("registered", 1, 2), ("registered", 0, 0), ("missing", 0, 0), ("missing", 0, 0), ("registered", 1, 0)]
    );
    assert_eq!(first.candidates.len(), 2);
    let rest = pb::GetLoadReportRequest { page_token: first.next_page_token, ..request };
    let rest = catalog(&registry).get_load_report(rest).await.unwrap().into_inner();
    assert_eq!((rest.roots.len(), rest.next_page_token.as_str()), (0, ""));
    let candidates: Vec<_> = first.candidates.into_iter().chain(rest.candidates).collect();
    let fates: Vec<_> = candidates.iter().map(|c| (c.registered, c.diagnostics.len())).collect();
    assert_eq!(fates, [(true, 0), (false, 1), (false, 1), (true, 1)]);
    assert_eq!(
        (candidates[1].diagnostics[0].code.as_str(), candidates[1].diagnostics[0].severity),
        ("E_NAME_TAKEN", 2)
    );
    assert!(candidates[1].diagnostics[0].message.contains("/ext/good/skill.json"));
    assert_eq!(candidates[2].diagnostics[0].line, 2);
    assert_eq!(candidates[3].diagnostics[0].code, "W_UNKNOWN_SKILL");
    let problems = pb::GetLoadReportRequest { problems_only: true, ..Default::default() };
    let problems = catalog(&registry).get_load_report(problems).await.unwrap().into_inner();
    assert_eq!(problems.candidates, candidates[1..]);
}

#[tokio::test]
async fn a_reload_answers_with_the_files_as_they_are() {
    let world = World::new();
    world.skill("a", "");
    let registry = world.serve(&[]).await;
    let before = reload(&registry).await;
    assert_eq!((before.registered, before.skipped, before.added), (1, 0, 0));
    for i in 0..20 {
        world.skill("a", &format!(r#","category":"c{i:02}""#));
        world.skill(&format!("b{i}"), "");
        let after = reload(&registry).await;
        assert_eq!(after.registered, i + 2);
        assert_eq!(get(&registry, "a", "").await.unwrap().card.unwrap().category, format!("c{i:02}"));
    }
    fs::remove_dir_all(world.path("ext/a")).unwrap();
    reload(&registry).await;
    assert_eq!(refused(get(&registry, "a", "").await), refusal(Code::NotFound, "UNKNOWN_SKILL"));
    let again = "skill loader: registered subprocess skill \"b0\"";
    let said = registry.log().iter().filter(|line| line.contains(again)).count();
    assert!(said <= 2, "only what changed is said again, and a skill may be seen while it is written: {said}");
}

/// Where no callers are configured everybody reads, and what changes anything wants an identity all the same.
#[tokio::test]
async fn without_identities_a_reload_is_refused() {
    let world = World::new();
    world.skill("one", "");
    let mut command = world.command();
    command.args(["--listen", "127.0.0.1:0", "--log-format", "json"]);
    command.arg("--external-dirs").arg(world.path("ext")).arg("--state-dir").arg(world.path("state"));
    let registry = Registry::start(command, "http://127.0.0.1", &DialOptions::default()).await;
    assert_eq!(list(&registry, pb::ListSkillsRequest::default()).await.unwrap(), ["one"]);
    let mut approvals = ApprovalServiceClient::new(registry.channel.clone());
    let refusals = [
        catalog(&registry).reload(pb::ReloadRequest {}).await.unwrap_err(),
        approvals.request_approval(pb::RequestApprovalRequest::default()).await.unwrap_err(),
        approvals.sign_approval(pb::SignApprovalRequest::default()).await.unwrap_err(),
        approvals.list_approvals(pb::ListApprovalsRequest::default()).await.unwrap_err(),
        approvals.consume_approval(pb::ConsumeApprovalRequest::default()).await.unwrap_err(),
    ];
    for status in refusals {
        assert_eq!(status.get_details_error_info().unwrap().reason, "CALLER_UNKNOWN", "{status:?}");
    }
}

#[tokio::test]
async fn a_watch_sees_every_change_without_being_asked() {
    let world = World::new();
    world.skill("a", r#","category":"c","x":1"#);
    world.playbook("guide");
    world.agent("me", "");
    let registry = world.serve(&[]).await;
    let mut stream = watch(&registry, "").await;

    let state = next(&mut stream).await;
    assert!(state.full && !state.more);
    assert_eq!(state.agents.unwrap().agents[0].name, "me");
    let [a, guide] = &state.changed[..] else { panic!("{:?}", state.changed) };
    assert!(a.subprocess.is_some() && a.description == "does a" && a.card.is_none() && a.extra.is_none());
    let whole = get(&registry, "guide", "").await.unwrap();
    let bare = skill_pb::Skill {
        name: "guide".into(),
        kind: whole.kind,
        source: whole.source,
        digest: whole.digest,
        ..Default::default()
    };
    assert_eq!(*guide, bare);

    let mut current = watch(&registry, &state.catalog_version).await;
    let word = next(&mut current).await;
    assert_eq!(word, pb::WatchCatalogResponse { catalog_version: state.catalog_version, ..Default::default() });

    let until = async |stream: &mut Streaming<pb::WatchCatalogResponse>,
                       wanted: fn(&pb::WatchCatalogResponse) -> bool| {
        while !wanted(&next(stream).await) {}
    };
    // A new directory, an edit in place, and an agent.
    world.skill("b", "");
    until(&mut stream, |state| state.changed.iter().any(|skill| skill.name == "b")).await;
    until(&mut current, |state| state.changed.iter().any(|skill| skill.name == "b")).await;
    fs::write(world.path("ext/a/run.sh"), "#!/bin/sh\necho 1\n").unwrap();
    let edited = world.path("ext/a/skill.json");
    fs::write(&edited, fs::read_to_string(&edited).unwrap().replace("does a", "did it")).unwrap();
    until(&mut stream, |state| state.changed.iter().any(|skill| skill.description == "did it")).await;
    world.agent("you", "");
    until(&mut stream, |state| state.agents.as_ref().is_some_and(|set| set.agents.len() == 2)).await;
    fs::remove_dir_all(world.path("ext/b")).unwrap();
    until(&mut stream, |change| !change.full && change.removed == ["b"] && change.changed.is_empty()).await;
}

/// How Kubernetes updates a mounted volume.
#[tokio::test]
async fn a_swap_of_links_is_seen() {
    let world = World::new();
    for (version, text) in [("..v1", "one"), ("..v2", "two")] {
        world.write(&format!("ext/{version}/a/run.sh"), "#!/bin/sh\n");
        let manifest = format!(r#"{{"name":"a","description":"{text}","entry":"run.sh"}}"#);
        world.write(&format!("ext/{version}/a/skill.json"), manifest);
    }
    symlink("..v1", world.path("ext/..data")).unwrap();
    symlink("..data/a", world.path("ext/a")).unwrap();
    let registry = world.serve(&[]).await;
    assert_eq!(get(&registry, "a", "").await.unwrap().description, "one");
    symlink("..v2", world.path("ext/..data_tmp")).unwrap();
    fs::rename(world.path("ext/..data_tmp"), world.path("ext/..data")).unwrap();
    eventually(async || {
        let skill = get(&registry, "a", "").await.ok()?;
        (skill.description == "two").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_root_may_come_and_go() {
    let world = World::new();
    fs::remove_dir(world.path("ext")).unwrap();
    let registry = world.serve(&[]).await;
    let listed = async |wanted: &'static [&'static str]| {
        eventually(async || {
            let names = list(&registry, pb::ListSkillsRequest::default()).await.ok()?;
            (names == wanted).then_some(())
        })
        .await;
    };
    listed(&[]).await;
    world.skill("a", "");
    listed(&["a"]).await;
    fs::rename(world.path("ext"), world.path("old")).unwrap();
    listed(&[]).await;
    world.skill("b", "");
    listed(&["b"]).await;
}

/// A write through a link that lies elsewhere is notified nowhere under the root.
#[tokio::test]
async fn what_is_not_notified_is_seen_at_the_next_rescan() {
    let world = World::new();
    world.skill("a", "");
    let elsewhere = world.path("elsewhere.json");
    fs::hard_link(world.path("ext/a/skill.json"), &elsewhere).unwrap();
    let registry = world.serve(&["--rescan-interval", "1s"]).await;
    for text in ["one", "two"] {
        fs::write(&elsewhere, format!(r#"{{"name":"a","description":"{text}","entry":"run.sh"}}"#)).unwrap();
        eventually(async || {
            let skill = get(&registry, "a", "").await.ok()?;
            (skill.description == text).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_default_agent_without_a_file() {
    let world = World::new();
    world.skill("a", "");
    let registry = world.serve(&["--default-agent", "ops"]).await;
    assert_eq!(
        refused(list(&registry, pb::ListSkillsRequest::default()).await),
        refusal(Code::NotFound, "UNKNOWN_AGENT")
    );
    // A line comes through a pipe, and may come after the answer.
    let warning = "WARN unknown agent \"ops\", which is --default-agent";
    eventually(async || registry.log().iter().any(|line| line.starts_with(warning)).then_some(())).await;
    world.agent("ops", "");
    reload(&registry).await;
    assert_eq!(list(&registry, pb::ListSkillsRequest::default()).await.unwrap(), ["a"]);
}

#[tokio::test]
async fn a_package_comes_whole_or_not_at_all() {
    let world = World::new();
    world.skill("a", "");
    world.write("ext/a/data/empty", "");
    world.write("ext/a/data/large", vec![7; 32 << 20]);
    world.write("ext/a/z", "last");
    let registry = world.serve(&[]).await;
    let digest = get(&registry, "a", "").await.unwrap().digest;

    let files = fetch(&registry, &digest).await.unwrap();
    let paths: Vec<_> = files.iter().map(|(header, _)| (header.path.as_str(), header.executable)).collect();
    assert_eq!(
        paths,
        [("data/empty", false), ("data/large", false), ("run.sh", true), ("skill.json", false), ("z", false)]
    );
    let received: Vec<_> = files
        .iter()
        .map(|(header, content)| {
            assert_eq!(header.size, content.len() as u64);
            assert_eq!(header.sha256, Digest::of(content).to_string());
            let path = header.path.parse().unwrap();
            PackageFile { path, size: header.size, executable: header.executable, sha256: Digest::of(content) }
        })
        .collect();
    assert_eq!(Digest::of_package(&received).to_string(), digest);

    let unknown = Digest::of(b"unknown").to_string();
    assert_eq!(refused(fetch(&registry, &unknown).await), refusal(Code::NotFound, "UNKNOWN_SKILL"));
    assert_eq!(refused(fetch(&registry, "x").await), refusal(Code::InvalidArgument, "INVALID_REQUEST"));

    // The client takes nothing yet, so the last file is not read before it changes.
    let request = pb::FetchPackageRequest { digest };
    let mut client = PackageServiceClient::new(registry.channel.clone());
    let mut stream = client.fetch_package(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    world.write("ext/a/z", "LAST");
    let end = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it came whole"),
            Err(status) => break Err::<(), _>(status),
        }
    };
    assert_eq!(refused(end), refusal(Code::Aborted, "PACKAGE_CHANGED"));
}

#[tokio::test]
async fn health_and_reflection() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServiceResponse};
    use tonic_reflection::pb::v1alpha;

    let world = World::new();
    let registry = world.serve(&[]).await;
    let services = ["CatalogService", "AgentService", "PackageService", "ApprovalService", "HistoryService"]
        .map(|s| format!("skillyard.registry.v1.{s}"));
    let mut health = HealthClient::new(registry.channel.clone());
    for service in services.iter().map(String::as_str).chain([""]) {
        let request = HealthCheckRequest { service: service.into() };
        assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "{service}");
    }

    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(registry.channel.clone());
    let mut stream = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) = stream.message().await.unwrap().unwrap().message_response
    else {
        panic!("no list");
    };
    let common = ["health.v1.Health", "reflection.v1.ServerReflection", "reflection.v1alpha.ServerReflection"];
    let mut served: Vec<_> = common.iter().map(|name| format!("grpc.{name}")).chain(services.clone()).collect();
    served.sort();
    let mut names: Vec<_> = list.service.into_iter().map(|ServiceResponse { name }| name).collect();
    names.sort();
    assert_eq!(names, served);

    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            services[0].clone(),
        )),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(registry.channel.clone());
    let mut stream = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    assert!(matches!(
        stream.message().await.unwrap().unwrap().message_response,
        Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))
    ));
}

#[tokio::test]
async fn every_call_has_its_line_and_an_operators_call_is_seen_by_default() {
    let world = World::new();
    world.skill("a", "");
    world.agent("me", "");
    for (log, seen) in [("info,skillyard::service::access=debug", true), ("info", false)] {
        let registry = world.serve(&["--log", log]).await;
        get(&registry, "a", "me").await.unwrap();
        get(&registry, "s3cret", "me").await.unwrap_err();
        list(&registry, pb::ListSkillsRequest { agent: "nobody".into(), ..Default::default() }).await.unwrap_err();
        let mut left = watch(&registry, "").await;
        next(&mut left).await;
        drop(left);
        let digest = get(&registry, "a", "").await.unwrap().digest;
        fetch(&registry, &digest).await.unwrap();
        reload(&registry).await;
        let mut expected = vec!["INFO Reload - OK"];
        if seen {
            expected.extend([
                "DEBUG GetSkill me OK",
                "DEBUG GetSkill me NOT_FOUND",
                "DEBUG ListSkills nobody NOT_FOUND",
                "DEBUG WatchCatalog - CANCELLED",
                "DEBUG GetSkill - OK",
                "DEBUG FetchPackage - OK",
            ]);
        }
        expected.sort_unstable();
        eventually(async || {
            let mut calls = registry.calls();
            // The test looks at the health first.
            calls.retain(|call| !call.contains(" Watch "));
            calls.sort_unstable();
            (calls == expected).then_some(())
        })
        .await;
        assert!(!registry.log().iter().any(|line| line.contains("s3cret")));
    }
}

#[tokio::test]
async fn every_fault_of_the_configuration_at_once() {
    let world = World::new();
    let output = world
        .command()
        .args(["--listen", "0.0.0.0:1", "--tier", "gold", "--log", "a=b=c"])
        .env("SKILLYARD_RESCAN_INTERVAL", "soon")
        .env("SKILLYARD_LOG_FORMAT", "json")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let messages: Vec<_> =
        stderr.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
    let faults: Vec<_> = messages.iter().map(|m| m["message"].as_str().unwrap().split_once(": ").unwrap().1).collect();
    assert_eq!(faults.len(), 4);
    for (fault, flag) in faults.iter().zip(["--listen", "--tier", "--rescan-interval", "--log"]) {
        assert!(fault.starts_with(&format!("{flag} (")), "{fault}");
    }
    for (level, faults) in [("off", 1), ("inf", 2)] {
        let output = world.command().args(["--tier", "gold", "--log", level]).output().unwrap();
        assert_eq!(output.status.code(), Some(64));
        assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), faults, "--log {level}");
    }
    let unknown = world.command().arg("--lisen").output().unwrap();
    assert_eq!(unknown.status.code(), Some(64));
    let help = world.command().arg("--help").output().unwrap();
    assert!(help.status.success() && String::from_utf8(help.stdout).unwrap().contains("ONGRID_SKILLS_EXTERNAL_DIRS"));
}

#[tokio::test]
async fn it_serves_at_every_log_level() {
    let world = World::new();
    for level in ["off", "error", "warn", "trace"] {
        // Its address is in a line that is not logged.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = world.command();
        command.args(["--log", level, "--listen", &free.to_string()]).arg("--state-dir").arg(world.path("state"));
        let mut child = command.spawn().unwrap();
        eventually(async || std::net::TcpStream::connect(free).ok()).await;
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
        let status = eventually(async || child.try_wait().unwrap()).await;
        assert!(status.success(), "--log {level}: {status}");
    }
}

#[tokio::test]
async fn a_port_that_is_taken() {
    let world = World::new();
    let registry = world.serve(&[]).await;
    let output = world.command().args(["--listen", &format!("127.0.0.1:{}", registry.port)]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot be listened on"));
}

#[tokio::test]
async fn it_stops_in_time_whoever_holds_on() {
    let world = World::new();
    world.skill("a", "");
    let registry = world.serve(&[]).await;
    let mut idle = TcpStream::connect(("127.0.0.1", registry.port)).unwrap();
    let mut health = HealthClient::new(registry.channel.clone());
    let mut statuses = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(statuses.message().await.unwrap().unwrap().status, 1);
    let mut states = watch(&registry, "").await;
    next(&mut states).await;

    registry.terminate();
    assert_eq!(statuses.message().await.unwrap().unwrap().status, 2);
    let last = timeout(PATIENCE, states.message()).await.unwrap();
    assert_eq!(refused(last), refusal(Code::Unavailable, "DRAINING"));
    let (status, took) = registry.ended().await;
    assert!(status.success());
    assert!(took.as_secs() < 5, "{took:?}");
    let mut rest = Vec::new();
    // Closed or reset: either way it is over.
    let _ = idle.read_to_end(&mut rest);
}

#[tokio::test]
async fn an_idle_registry_is_small() {
    let world = World::new();
    for i in 0..20 {
        world.skill(&format!("s{i}"), "");
        world.playbook(&format!("p{i}"));
    }
    let registry = world.serve(&[]).await;
    reload(&registry).await;
    // What is nobody else's and no file's: a build without optimizations has much more of the program in memory.
    let own = world::memory_kib(registry.pid(), "RssAnon");
    assert!(own < 10 << 10, "{own} KiB");
    if !cfg!(debug_assertions) {
        let all = world::memory_kib(registry.pid(), "VmRSS");
        assert!(all < 20_000, "{all} KiB");
    }
}
