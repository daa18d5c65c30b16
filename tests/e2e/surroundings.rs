//! What is around the services: health, reflection, configuration, the state directory, and the user they run as.

use std::collections::BTreeSet;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use skillyard::pb::executor::v1::Outcome;
use skillyard_tests::run::succeeded;
use skillyard_tests::{Skill, World, binaries, call, eventually, pack, process};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};

#[tokio::test]
async fn health_is_told_for_each_service_by_name() {
    let mut world = World::of([]).await;
    let registry = skillyard_tests::world::endpoint(world.registry_address()).connect().await.unwrap();
    for (mut health, services) in [
        (world.executor_health(), &["", "skillyard.executor.v1.ExecutorService"][..]),
        (
            HealthClient::new(registry),
            &[
                "",
                "skillyard.registry.v1.CatalogService",
                "skillyard.registry.v1.AgentService",
                "skillyard.registry.v1.PackageService",
                "skillyard.registry.v1.ApprovalService",
                "skillyard.registry.v1.HistoryService",
            ],
        ),
    ] {
        for service in services {
            let request = HealthCheckRequest { service: (*service).to_owned() };
            let status =
                health.check(request).await.unwrap_or_else(|status| panic!("{service}: {status}")).into_inner();
            assert_eq!(status.status(), ServingStatus::Serving, "{service}");
        }
        let request = HealthCheckRequest { service: "no.such.Service".to_owned() };
        assert_eq!(health.check(request).await.unwrap_err().code(), Code::NotFound);
    }
}

#[tokio::test]
async fn both_versions_of_reflection_name_what_is_served_and_nothing_else() {
    let world = World::of([]).await;
    let common =
        ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];
    for (address, own) in [
        (world.executor_address(), &["skillyard.executor.v1.ExecutorService"][..]),
        (
            world.registry_address(),
            &[
                "skillyard.registry.v1.AgentService",
                "skillyard.registry.v1.ApprovalService",
                "skillyard.registry.v1.CatalogService",
                "skillyard.registry.v1.HistoryService",
                "skillyard.registry.v1.PackageService",
            ],
        ),
    ] {
        let channel = skillyard_tests::world::endpoint(address).connect().await.unwrap();
        let mut new = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
        let request = v1::ServerReflectionRequest {
            message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
            ..Default::default()
        };
        let mut answers = new.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap().message_response;
        let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) = answer else {
            panic!()
        };
        let served: BTreeSet<_> = own.iter().chain(&common).map(ToString::to_string).collect();
        let names: BTreeSet<_> = list.service.into_iter().map(|service| service.name).collect();
        assert_eq!(names, served);

        let mut old = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
        let request = v1alpha::ServerReflectionRequest {
            message_request: Some(v1alpha::server_reflection_request::MessageRequest::ListServices(String::new())),
            ..Default::default()
        };
        let mut answers = old.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap().message_response;
        let Some(v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(list)) = answer else {
            panic!()
        };
        assert_eq!(list.service.into_iter().map(|service| service.name).collect::<BTreeSet<_>>(), served);
        // What an error of ours carries can be read by whoever knows only this server.
        for symbol in [own[0], "google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.rpc.RetryInfo"] {
            let by_symbol = v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol.to_owned());
            let request = v1alpha::ServerReflectionRequest { message_request: Some(by_symbol), ..Default::default() };
            let mut answers = old.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
            let answer = answers.message().await.unwrap().unwrap().message_response;
            assert!(
                matches!(answer, Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))),
                "{symbol}: {answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_executors_state_is_its_own() {
    let mut world = World::of([Skill::tiny("tiny")]).await;
    let registry = format!("http://{}", world.registry_address());
    let mut second = process::command(&binaries::executor());
    second
        .args(["--listen", "127.0.0.1:0", "--registry", &registry, "--state-dir"])
        .arg(world.path("state"))
        .env_clear();
    let output = second.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("in use"), "{stderr}");
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
}

#[tokio::test]
async fn a_run_can_be_found_in_the_log_and_its_arguments_cannot() {
    let mut world = World::builder()
        .skill(Skill::c("echo", pack::ECHO).set("env_allow", ["TOKEN"].to_vec()))
        .variable("TOKEN", "t0ken-value")
        .start()
        .await;
    world.run(call("echo").args(r#"{"password":"p4ssword-value"}"#).run_id("find-me")).await;
    let server = world.executor_server();
    eventually("the run's end is logged", async || {
        let lines = server.lines();
        let lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["span"]["run_id"] == "find-me").any(|line| line["outcome"] == "SUCCEEDED")
    })
    .await;
    for secret in ["t0ken-value", "p4ssword-value"] {
        assert!(!server.has_logged(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn process_one_reaps_what_is_left_to_it() {
    let script = "( setsid sh -c 'sleep 0.2' >/dev/null 2>&1 & ); echo '{}'";
    let world = World::builder()
        .slots(4, 64)
        .skill(Skill::sh("escapes", script))
        .skill(Skill::sh("kills", "( setsid sleep 300 & ) ; kill -9 $PPID; sleep 300"))
        .as_process_one();
    let mut world = match world {
        Ok(world) => world.start().await,
        Err(why) => return eprintln!("not tried: {why}"),
    };
    for _ in 0..if skillyard_tests::long() { 1000 } else { 50 } {
        assert_eq!(world.run("escapes").await, succeeded("{}\n"));
    }
    for _ in 0..4 {
        assert_eq!(world.run("kills").await.finished.outcome(), Outcome::Lost);
    }
    let unshare = world.executor_server().pid();
    eventually("process 1 has its slots and nothing else", async || {
        let left = process::descendants(unshare);
        left.len() <= 5 && left.iter().all(process::Process::lives)
    })
    .await;
    // Process 1 has no default for SIGTERM: it must have asked for it.
    let one = process::descendants(unshare).into_iter().find(|process| process.parent == unshare).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(one.pid).unwrap(), Signal::TERM).unwrap();
    let (status, _) = world.executor_server().ended(std::time::Duration::from_secs(10)).await;
    assert!(status.success(), "{status:?}");
}

#[tokio::test]
async fn it_all_works_for_a_user_who_is_not_root() {
    let world = World::builder()
        .skill(Skill::tiny("tiny"))
        .skill(Skill::sh("leaves", "( setsid sleep 300 >/dev/null 2>&1 & ) ; sleep 300 >/dev/null 2>&1 & echo '{}'"))
        .skill(Skill::sh("stops", "( setsid sleep 300 & ) ; kill -STOP $PPID; sleep 300"))
        .skill(Skill::sh("closed_directory", "echo '{}'"))
        .skill(Skill::sh("closed_file", "echo '{}'").file("data", "secret", 0o000))
        .as_nobody();
    let world = match world {
        Ok(world) => world,
        Err(why) => return eprintln!("not tried: {why}"),
    };
    let closed = world.path("external").join("closed_directory");
    let mode = |mode| std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    mode(0o000);
    let mut world = world.start().await;
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
    assert_eq!(world.run("leaves").await, succeeded("{}\n"));
    assert_eq!(world.run("stops").await.finished.reason, "SLOT_LOST");
    world.quiet(std::time::Duration::from_secs(1)).await;
    // Each has its one diagnostic, and the rest loads.
    let report = world.report().await;
    // So that it can be removed; the registry sees it at once.
    mode(0o755);
    let refused: Vec<_> = report.candidates.iter().filter(|candidate| !candidate.registered).collect();
    assert_eq!(refused.len(), 2, "{report:#?}");
    for candidate in refused {
        assert_eq!(candidate.diagnostics.len(), 1, "{candidate:?}");
        assert!(candidate.path.contains("closed_"), "{candidate:?}");
    }
}

#[tokio::test]
async fn faults_of_the_configuration_are_told_all_at_once() {
    // All faults of a configuration at once, and before anything is done.
    for program in [binaries::registry(), binaries::executor()] {
        let mut command = process::command(&program);
        command.args(["--listen", "0.0.0.0:0", "--log", "no=such=filter"]).env_clear();
        let output = command.stdin(Stdio::null()).output().unwrap();
        let stderr = std::str::from_utf8(&output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{stderr}");
        assert!(stderr.contains("--listen") && stderr.contains("--log"), "{stderr}");
    }
}
