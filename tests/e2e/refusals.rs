//! The table of errors: each with its code, its reason, and words for people.

use std::time::Duration;

use serde_json::json;
use skillyard_tests::run::succeeded;
use skillyard_tests::{AgentFile, Call, Playbook, Refused, Skill, World, call, pack};
use tonic::Code;

fn world() -> skillyard_tests::world::Builder {
    let schema = json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "pattern": "^/"},
            "days": {"type": "integer", "minimum": 1},
            "options": {"type": "object", "properties": {"a/b": {"type": "boolean"}}, "additionalProperties": false},
            "list": {"type": "array", "items": {"type": "integer"}}
        },
        "required": ["path"]
    });
    World::builder()
        .skill(Skill::c("echo", pack::ECHO))
        .skill(Skill::c("strict", pack::ECHO).set("schema", schema))
        .skill(Skill::tiny("mutates").set("class", "mutating"))
        .skill(Skill::tiny("destroys").set("class", "dangerous"))
        .playbook(&Playbook::new("triage", "What to do first.", "# Triage"))
        .agent(&AgentFile::new("reader").skills(&["echo", "mutates", "destroys"]))
        .agent(&AgentFile::new("confirms").mode("mutating-with-confirm"))
        .agent(&AgentFile::new("signs").mode("dual-sign-required"))
}

#[tokio::test]
async fn what_is_not_there_or_not_for_you() {
    let mut world = world().start().await;
    let unknown = |name: &str| format!("unknown skill {name:?}");
    for (call, name) in [
        (call("nobody"), "nobody"),
        (call(""), ""),
        (call("strict").agent("reader"), "strict"),
        (call("triage").agent("reader"), "triage"),
        (call("nobody").agent("reader"), "nobody"),
    ] {
        let refused = world.refusal(call).await;
        assert_eq!((refused.short(), refused.message.clone()), ((Code::NotFound, "UNKNOWN_SKILL"), unknown(name)));
    }
    let refused = world.refusal(call("echo").agent("stranger")).await;
    assert_eq!(refused.short(), (Code::NotFound, "UNKNOWN_AGENT"));
    let refused = Refused::of(&world.cancel("no-such-run", "").await.unwrap_err());
    assert_eq!(refused.short(), (Code::NotFound, "UNKNOWN_RUN"));
    let refused = world.refusal("triage").await;
    assert_eq!(refused.short(), (Code::FailedPrecondition, "NOT_RUNNABLE"));
    let refused = world.refusal(call("echo").digest(&"0".repeat(64))).await;
    assert_eq!(refused.short(), (Code::FailedPrecondition, "DIGEST_MISMATCH"));
    let digest = world.run("echo").await.accepted.digest;
    assert_eq!(world.run(call("echo").digest(&digest)).await, succeeded("{}"));
}

#[tokio::test]
async fn the_classes_that_each_mode_may_run() {
    let mut world = world().start().await;
    const DENIED: (Code, &str) = (Code::PermissionDenied, "CLASS_NOT_PERMITTED");
    const NEEDED: (Code, &str) = (Code::FailedPrecondition, "APPROVAL_REQUIRED");
    for (agent, mutating, dangerous) in
        [("", DENIED, DENIED), ("reader", DENIED, DENIED), ("confirms", NEEDED, DENIED), ("signs", NEEDED, NEEDED)]
    {
        assert_eq!(world.run(call("echo").agent(agent)).await, succeeded("{}"), "{agent}");
        assert_eq!(world.refusal(call("mutates").agent(agent)).await.short(), mutating, "{agent}");
        assert_eq!(world.refusal(call("destroys").agent(agent)).await.short(), dangerous, "{agent}");
    }
}

#[tokio::test]
async fn arguments_that_are_wrong_start_nothing() {
    let mut world = world().start().await;
    let invalid = (Code::InvalidArgument, "INVALID_ARGUMENTS");
    for args in [
        "",
        " ",
        "{",
        "{}{}",
        "{} x",
        "[]",
        "1",
        "null",
        "\"{}\"",
        "{'a':1}",
        "{\"a\":1,}",
        "// no\n{}",
        "{\"a\":NaN}",
        r#"{"a":1,"a":1}"#,
        r#"{"x":{"b":[{"c":1,"c":2}]}}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"a":"\ud800"}"#,
    ] {
        assert_eq!(world.refusal(call("echo").args(args)).await.short(), invalid, "{args}");
    }
    let deep = format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert_eq!(world.refusal(call("echo").args(deep)).await.short(), invalid);
    let large = |bytes: usize| format!(r#"{{"x":"{}"}}"#, "a".repeat(bytes - 8));
    let refused = world.refusal(call("echo").args(large((8 << 20) + 1))).await;
    assert_eq!(refused.short(), (Code::InvalidArgument, "ARGUMENTS_TOO_LARGE"));
    let refused = world.refusal(call("echo").args(large(12 << 20))).await;
    assert_eq!(refused.short(), (Code::InvalidArgument, "ARGUMENTS_TOO_LARGE"));
    assert_eq!(world.status().await.running, 0);
}

#[tokio::test]
async fn each_violation_of_the_schema_is_named_by_its_pointer() {
    let mut world = world().start().await;
    for (args, fields) in [
        (r#"{"path":"etc","days":0}"#, &["/path", "/days"][..]),
        (r#"{"path":"/etc","options":{"a/b":1}}"#, &["/options/a~1b"]),
        (r#"{"path":"/etc","list":[1,"2",3,"4"]}"#, &["/list/1", "/list/3"]),
        (r#"{"path":"/etc","options":{"c":1}}"#, &["/options"]),
        (r#"{}"#, &[""]),
    ] {
        let refused = world.refusal(call("strict").args(args)).await;
        assert_eq!(refused.short(), (Code::InvalidArgument, "INVALID_ARGUMENTS"), "{args}");
        let (mut seen, mut expected) = (refused.fields, fields.to_vec());
        seen.sort();
        expected.sort_unstable();
        assert_eq!(seen, expected, "{args}");
    }
    let args = r#"{"path":"/etc","days":3,"options":{"a/b":true}}"#;
    assert_eq!(world.run(call("strict").args(args)).await, succeeded(args));
}

#[tokio::test]
async fn a_struct_is_canonical_json() {
    let mut world = world().start().await;
    let args = json!({"b": 1, "a": {"z": 3.0, "y": [1, 2.5, -0.0, 1e21, true, null, "é\"\n"]}, "big": 9_007_199_254_740_991_u64});
    let run = world.run(call("echo").args_struct(&args)).await;
    let expected: serde_json::Value = serde_json::from_str(&run.result).unwrap();
    assert_eq!(expected["a"]["y"][1], json!(2.5));
    assert!(run.result.starts_with(r#"{"a":{"y":[1,2.5,"#), "{}", run.result);
    assert!(run.result.ends_with(r#""é\"\n"],"z":3},"b":1,"big":9007199254740991}"#), "{}", run.result);
    assert_eq!(world.run(call("echo").args_struct(&json!({}))).await, succeeded("{}"));
}

#[tokio::test]
async fn other_fields_that_are_wrong() {
    let mut world = world().start().await;
    let many = (0..65).fold(call("echo"), |call, i| call.label(&format!("k{i}"), "v"));
    let negative = {
        let mut call = call("echo");
        call.request.timeout = Some(prost_types::Duration { seconds: -1, nanos: 0 });
        call
    };
    let wrong: Vec<Call> = vec![
        call("echo").run_id("two words"),
        call("echo").run_id("né"),
        call("echo").run_id("new\nline"),
        call("echo").run_id(&"a".repeat(129)),
        call("echo").label("k", &"v".repeat(4097)),
        call("echo").digest("ABC"),
        many,
        negative,
    ];
    for call in wrong {
        let refused = world.refusal(call.clone()).await;
        assert_eq!(refused.code, Code::InvalidArgument, "{call:?}: {refused:?}");
        assert_eq!(refused.short().1, "INVALID_REQUEST", "{call:?}");
    }
    let run = world.run(call("echo").run_id(&"~".repeat(128)).timeout(Duration::from_secs(1)).label("k", "v")).await;
    assert_eq!(run, succeeded("{}"));
}

#[tokio::test]
async fn an_executor_without_a_catalog_is_not_ready() {
    let mut world = world().start_registry().await;
    world.kill_registry();
    world.launch_executor();
    let refused = world.refusal("echo").await;
    assert_eq!(refused.short(), (Code::Unavailable, "NOT_READY"));
    assert!(refused.retry_after.is_some(), "{refused:?}");
    let health = world.executor_health().check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap();
    assert_eq!(health.into_inner().status(), tonic_health::pb::health_check_response::ServingStatus::NotServing);
    let status = world.status().await;
    assert_eq!((&*status.catalog_version, status.registry_connected), ("", false));
    // It needs no restart.
    world.start_registry().await;
    skillyard_tests::world::serving(&mut world.executor_health()).await;
    world.settle().await;
    assert_eq!(world.run("echo").await, succeeded("{}"));
}
