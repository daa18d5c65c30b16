//! Runs that want an approval, over the real pair: every class in every permission mode, every way to misuse an approval,
//! a registry that is away, slow or broken, a skill that tries to help itself, and calls that are made again. What a run
//! did is a line in a file.

use std::time::Duration;

use rustix::process::Signal;
use skillyard::pb::registry::v1 as registry;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard::pb::registry::v1::request_approval_request::Arguments;
use skillyard::pb::registry::v1::{Approval, ApprovalState};
use skillyard::wire::duration_to_wire;
use skillyard_tests::access::{Door, Show};
use skillyard_tests::run::{Live, in_short, succeeded};
use skillyard_tests::world::{Builder, endpoint};
use skillyard_tests::{AgentFile, Call, Refused, Skill, World, binaries, call, eventually, within};
use tonic::{Code, Status};

const MODES: [&str; 3] = ["read-only", "mutating-with-confirm", "dual-sign-required"];
/// The agent that most of these tests run for.
pub(crate) const AGENT: &str = "dual-sign-required";

/// A skill of each class, which all but the safe one leave their arguments behind, and an agent of each mode.
fn builder() -> Builder {
    let builder = World::builder().known_callers().skill(Skill::sh("safe", "cat"));
    let effects = builder.path("effects");
    std::fs::create_dir(&effects).unwrap();
    let effects = effects.display();
    let script = format!(
        "read -r line; echo \"$line\" >>{effects}/lines; while [ -e {effects}/hold ]; do /bin/sleep 0.05; done; echo {{}}"
    );
    let builder = ["mutating", "dangerous"]
        .into_iter()
        .fold(builder, |builder, class| builder.skill(Skill::sh(class, &script).set("class", class)));
    MODES.into_iter().fold(builder, |builder, mode| builder.agent(&AgentFile::new(mode).mode(mode)))
}

fn effects(world: &World) -> Vec<String> {
    let text = std::fs::read_to_string(world.path("effects/lines")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn approvals(world: &mut World, who: &str) -> ApprovalServiceClient<Door> {
    ApprovalServiceClient::new(world.registry_as(who))
}

fn wanted(agent: &str, skill: &str, args: &str) -> registry::RequestApprovalRequest {
    registry::RequestApprovalRequest {
        agent: agent.into(),
        skill: skill.into(),
        arguments: Some(Arguments::ArgsJson(args.into())),
        ..Default::default()
    }
}

async fn ask(world: &mut World, request: registry::RequestApprovalRequest) -> Result<Approval, Status> {
    let mut client = approvals(world, "orchestrator");
    Ok(client.request_approval(request).await?.into_inner().approval.unwrap())
}

async fn sign(world: &mut World, who: &str, id: &str, approve: bool) -> Result<Approval, Status> {
    let request = registry::SignApprovalRequest { id: id.into(), approve, comment: String::new() };
    Ok(approvals(world, who).sign_approval(request).await?.into_inner().approval.unwrap())
}

/// The id of an approval that is signed by these.
pub(crate) async fn signed(world: &mut World, agent: &str, skill: &str, args: &str, signers: &[&str]) -> String {
    let id = ask(world, wanted(agent, skill, args)).await.unwrap().id;
    for who in signers {
        sign(world, who, &id, true).await.unwrap();
    }
    id
}

/// Runs as the orchestrator, to the end.
async fn run(world: &mut World, call: Call) -> String {
    let result = match Live::open(world.executor_as("orchestrator"), call).await {
        Ok(live) => live.end().await,
        Err(status) => Err(status),
    };
    in_short(&result)
}

fn mutating(args: &str, approval: &str) -> Call {
    call("mutating").agent(AGENT).args(args).approval(approval)
}

fn reason<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
    Refused::of(&result.unwrap_err()).reason
}

async fn state_of(world: &mut World, id: &str) -> ApprovalState {
    let request = registry::GetApprovalRequest { id: id.into() };
    approvals(world, "operator").get_approval(request).await.unwrap().into_inner().approval.unwrap().state()
}

#[tokio::test]
async fn every_class_in_every_mode() {
    let mut world = builder().start().await;
    let (denied, required) = ("PermissionDenied CLASS_NOT_PERMITTED", "FailedPrecondition APPROVAL_REQUIRED");
    let mut expected_effects = Vec::new();
    // Good for another agent.
    let others = signed(&mut world, AGENT, "mutating", "{}", &["ann"]).await;
    for (skill, agent, expected, people) in [
        ("safe", MODES[0], "SUCCEEDED", 0),
        ("safe", MODES[1], "SUCCEEDED", 0),
        ("safe", MODES[2], "SUCCEEDED", 0),
        ("mutating", MODES[0], denied, 0),
        ("mutating", MODES[1], required, 1),
        ("mutating", MODES[2], required, 1),
        ("dangerous", MODES[0], denied, 0),
        ("dangerous", MODES[1], denied, 0),
        ("dangerous", MODES[2], required, 2),
        // Without an agent as with a read-only one.
        ("safe", "", "SUCCEEDED", 0),
        ("mutating", "", denied, 0),
        ("dangerous", "", denied, 0),
    ] {
        let cell = format!("{skill} for {}", if agent.is_empty() { "nobody" } else { agent });
        let args = format!(r#"{{"cell":"{cell}"}}"#);
        let the_call = || call(skill).agent(agent).args(&*args);
        assert_eq!(run(&mut world, the_call()).await, expected, "{cell} without an approval");
        let asked = ask(&mut world, wanted(agent, skill, &args)).await;
        if people == 0 {
            let refused = if expected == denied { "CLASS_NOT_PERMITTED" } else { "APPROVAL_NOT_NEEDED" };
            assert_eq!(reason(asked), refused, "{cell}");
            // An approval of something else opens nothing, and is not used up.
            assert_eq!(run(&mut world, the_call().approval(&others)).await, expected, "{cell} with another's");
            assert_eq!(state_of(&mut world, &others).await, ApprovalState::Approved);
            continue;
        }
        let id = asked.unwrap().id;
        for who in &["ann", "bob"][..people] {
            let pending = run(&mut world, the_call().approval(&id)).await;
            assert_eq!(pending, "FailedPrecondition APPROVAL_PENDING", "{cell} before {who} has signed");
            sign(&mut world, who, &id, true).await.unwrap();
        }
        assert_eq!(run(&mut world, the_call().approval(&id)).await, "SUCCEEDED", "{cell}");
        assert_eq!(state_of(&mut world, &id).await, ApprovalState::Consumed);
        expected_effects.push(args);
        assert_eq!(effects(&world), expected_effects, "{cell}");
    }
    assert_eq!(expected_effects.len(), 3);
    // Nobody uses an approval up but an executor.
    let consume = registry::ConsumeApprovalRequest { id: others, run_id: "r".into(), ..Default::default() };
    for who in ["orchestrator", "ann", "operator"] {
        assert_eq!(reason(approvals(&mut world, who).consume_approval(consume.clone()).await), "CALLER_NOT_ALLOWED");
    }
}

#[tokio::test]
async fn an_approval_is_good_for_its_call_alone() {
    let mut world = builder().start().await;
    let invalid = "FailedPrecondition APPROVAL_INVALID";
    let id = signed(&mut world, AGENT, "mutating", r#"{"n":"a"}"#, &["ann"]).await;
    for (what, other) in [
        ("one byte", mutating(r#"{"n":"b"}"#, &id)),
        ("a blank", mutating(r#"{"n": "a"}"#, &id)),
        ("no arguments", call("mutating").agent(AGENT).approval(&id)),
        ("another agent", mutating(r#"{"n":"a"}"#, &id).agent("mutating-with-confirm")),
        ("another skill", call("dangerous").agent(AGENT).args(r#"{"n":"a"}"#).approval(&id)),
    ] {
        assert_eq!(run(&mut world, other).await, invalid, "{what}");
    }
    let unknown = mutating(r#"{"n":"a"}"#, "0199d0e2-0000-7000-8000-000000000000");
    assert_eq!(run(&mut world, unknown).await, "NotFound UNKNOWN_APPROVAL");
    assert_eq!(effects(&world), [""; 0]);
    // Used, it is good for nothing more.
    assert_eq!(run(&mut world, mutating(r#"{"n":"a"}"#, &id).run_id("first")).await, "SUCCEEDED");
    assert_eq!(run(&mut world, mutating(r#"{"n":"a"}"#, &id).run_id("second")).await, invalid);
    assert_eq!(reason(sign(&mut world, "bob", &id, false).await), "APPROVAL_INVALID");
    // The skill has changed since it was signed.
    let id = signed(&mut world, AGENT, "mutating", "{}", &["ann"]).await;
    world.write(&Skill::sh("mutating", "echo changed >&2; echo {}").set("class", "mutating"));
    world.settle().await;
    assert_eq!(run(&mut world, mutating("{}", &id)).await, invalid);
    assert_eq!(effects(&world), [r#"{"n":"a"}"#]);
}

#[tokio::test]
async fn who_signs_and_until_when() {
    let mut world = builder().start().await;
    let (invalid, pending) = ("FailedPrecondition APPROVAL_INVALID", "FailedPrecondition APPROVAL_PENDING");
    // The one who asked, who is an approver too.
    let mut both = approvals(&mut world, "both");
    let asked = both.request_approval(wanted(AGENT, "mutating", "{}")).await.unwrap().into_inner().approval.unwrap().id;
    assert_eq!(reason(sign(&mut world, "both", &asked, true).await), "CALLER_NOT_ALLOWED");
    assert_eq!(run(&mut world, mutating("{}", &asked)).await, pending);
    // One without the role, and the one it was asked for.
    let request = registry::RequestApprovalRequest { requested_for: "bob".into(), ..wanted(AGENT, "mutating", "{}") };
    let asked = ask(&mut world, request).await.unwrap().id;
    for who in ["bob", "operator", "orchestrator", "executor", "other"] {
        assert_eq!(reason(sign(&mut world, who, &asked, true).await), "CALLER_NOT_ALLOWED", "{who}");
    }
    assert_eq!(run(&mut world, mutating("{}", &asked)).await, pending);
    // One person under two tokens.
    let id = signed(&mut world, AGENT, "dangerous", "{}", &["ann"]).await;
    let second = world.identities.another("ann");
    let channel = endpoint(world.registry_address()).connect().await.unwrap();
    let mut again = ApprovalServiceClient::new(Door::new(channel, Show::token(&second)));
    let word = registry::SignApprovalRequest { id: id.clone(), approve: true, comment: String::new() };
    let refused = within(skillyard_tests::PATIENCE, "the second token is known", async || {
        let reason = reason(again.sign_approval(word.clone()).await);
        (reason != "CALLER_UNKNOWN").then_some(reason)
    })
    .await
    .0;
    assert_eq!(refused, "ALREADY_SIGNED");
    let dangerous = || call("dangerous").agent(AGENT).args("{}").approval(&id);
    assert_eq!(run(&mut world, dangerous()).await, pending);
    // Rejected after it was approved.
    let id = signed(&mut world, AGENT, "mutating", "{}", &["ann"]).await;
    sign(&mut world, "bob", &id, false).await.unwrap();
    assert_eq!(run(&mut world, mutating("{}", &id)).await, invalid);
    // After its end.
    let ttl = Some(duration_to_wire(Duration::from_secs(2)));
    let request = registry::RequestApprovalRequest { ttl, ..wanted(AGENT, "mutating", "{}") };
    let id = ask(&mut world, request).await.unwrap().id;
    // Where the machine is too slow to sign it in time, it is as good a case.
    let _ = sign(&mut world, "ann", &id, true).await;
    eventually("it has expired", async || state_of(&mut world, &id).await == ApprovalState::Expired).await;
    assert_eq!(run(&mut world, mutating("{}", &id)).await, invalid);
    assert_eq!(reason(sign(&mut world, "bob", &id, true).await), "APPROVAL_INVALID");
    assert_eq!(effects(&world), [""; 0]);
}

#[tokio::test]
async fn without_the_registry_safe_runs_alone_go_on() {
    let mut world = builder().start().await;
    let unavailable = "Unavailable REGISTRY_UNAVAILABLE";
    let id = signed(&mut world, AGENT, "mutating", "{}", &["ann"]).await;
    let the_call = || mutating("{}", &id).run_id("one");
    let safe = || call("safe").agent(AGENT).args("{}");
    // Slow: the call is answered after seconds, with the same id at any time.
    world.registry_server().signal(Signal::STOP);
    let began = std::time::Instant::now();
    let (slow, fast) = {
        let (slow, fast) = (world.executor_as("orchestrator"), world.executor_as("orchestrator"));
        let slow = async { in_short(&Live::open(slow, the_call()).await.unwrap().end().await) };
        let fast = async { Live::open(fast, safe()).await.unwrap().rest().await };
        tokio::join!(slow, fast)
    };
    assert_eq!((slow.as_str(), fast.ended()), (unavailable, succeeded("{}")));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // Away.
    world.registry_server().signal(Signal::CONT);
    world.kill_registry();
    assert_eq!(run(&mut world, the_call()).await, unavailable);
    assert_eq!(run(&mut world, safe()).await, "SUCCEEDED");
    assert_eq!(effects(&world), [""; 0]);
    // There again, with what was signed: the same call goes through, once.
    world.start_registry().await;
    eventually("the run goes through", async || {
        let outcome = run(&mut world, the_call()).await;
        assert!([unavailable, "SUCCEEDED"].contains(&outcome.as_str()), "{outcome}");
        outcome == "SUCCEEDED"
    })
    .await;
    assert_eq!(run(&mut world, the_call()).await, "SUCCEEDED");
    assert_eq!(effects(&world), ["{}"]);
}

/// Its registry answers every call on approvals with an error.
#[tokio::test]
async fn with_a_registry_whose_database_is_away_safe_runs_alone_go_on() {
    let builder = builder();
    let nowhere = format!("postgres:///none?host={}&user=none", builder.path("nowhere").display());
    let mut world = builder.registry_flag("--database-url", nowhere).start().await;
    assert_eq!(reason(ask(&mut world, wanted(AGENT, "mutating", "{}")).await), "STORE_UNAVAILABLE");
    let refused = run(&mut world, mutating("{}", "0199d0e2-0000-7000-8000-000000000000")).await;
    assert_eq!(refused, "Unavailable REGISTRY_UNAVAILABLE");
    assert_eq!(run(&mut world, call("safe").agent(AGENT).args("{}")).await, "SUCCEEDED");
    assert_eq!(effects(&world), [""; 0]);
}

#[tokio::test]
async fn the_same_call_at_any_time_is_made_once() {
    let mut world = builder().start().await;
    let hold = world.path("effects/hold");
    std::fs::write(&hold, "").unwrap();
    let id = ask(&mut world, wanted(AGENT, "mutating", "{}")).await.unwrap().id;
    let the_call = || mutating("{}", &id).run_id("one");
    // Before it may: a refused call uses no id up.
    assert_eq!(run(&mut world, the_call()).await, "FailedPrecondition APPROVAL_PENDING");
    sign(&mut world, "ann", &id, true).await.unwrap();
    // At once, and while it runs.
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let client = world.executor_as("orchestrator");
        let call = the_call();
        tasks.spawn(async move { in_short(&Live::open(client, call).await.unwrap().end().await) });
    }
    eventually("it runs", async || effects(&world).len() == 1).await;
    let client = world.executor_as("orchestrator");
    let call = the_call();
    tasks.spawn(async move { in_short(&Live::open(client, call).await.unwrap().end().await) });
    std::fs::remove_file(&hold).unwrap();
    while let Some(outcome) = tasks.join_next().await {
        assert_eq!(outcome.unwrap(), "SUCCEEDED");
    }
    // After its end, and after the end of the executor.
    assert_eq!(run(&mut world, the_call()).await, "SUCCEEDED");
    world.kill_executor();
    world.start_executor().await;
    assert_eq!(run(&mut world, the_call()).await, "FailedPrecondition RESULT_EXPIRED");
    assert_eq!(effects(&world), ["{}"]);
    // Killed while it runs.
    std::fs::write(&hold, "").unwrap();
    let id = signed(&mut world, AGENT, "mutating", r#"{"n":2}"#, &["ann"]).await;
    let second = || mutating(r#"{"n":2}"#, &id).run_id("two");
    let live = Live::open(world.executor_as("orchestrator"), second()).await.unwrap();
    eventually("it runs", async || effects(&world).len() == 2).await;
    world.kill_executor();
    drop(live);
    world.start_executor().await;
    std::fs::remove_file(&hold).unwrap();
    for _ in 0..2 {
        assert_eq!(run(&mut world, second()).await, "LOST EXECUTOR_LOST");
    }
    assert_eq!(run(&mut world, second().run_id("three")).await, "FailedPrecondition APPROVAL_INVALID");
    // Killed, and its state lost with it: what has forgotten the run gets no approval for it.
    world.kill_executor();
    std::fs::remove_dir_all(world.path("state/journal")).unwrap();
    world.start_executor().await;
    for again in [the_call(), second()] {
        assert_eq!(run(&mut world, again).await, "FailedPrecondition APPROVAL_INVALID");
    }
    assert_eq!(effects(&world), ["{}", r#"{"n":2}"#]);
}

/// A skill has the programs and the addresses, and what it was given: nothing.
#[tokio::test]
async fn a_skill_that_calls_the_services_gets_what_anybody_gets() {
    let (client, signer) = (binaries::executor(), binaries::registry());
    // Its one argument is three words: the address of the registry, that of the executor, an id.
    let script = format!(
        r#"read -r line; set -- $(printf %s "$line" | /bin/sed 's/^[^h]*//; s/".$//')
        for word in approve reject; do
            {signer} approvals $word $3 --registry $1 >&2; echo "$word: $?" >&2
        done
        {client} run safe --executor $2 >&2; printf '\nsafe: %s\n' $? >&2
        for skill in mutating dangerous; do
            {client} run $skill --agent {AGENT} --approval-id $3 --executor $2 >&2; echo "$skill: $?" >&2
        done
        echo {{}}"#,
        signer = signer.display(),
        client = client.display(),
    );
    let reach = || Skill::sh("reach", &script).set("env_allow", vec!["SKILLYARD_TOKEN_FILE", "PATH"]);
    // Where callers have identities, it has none.
    let mut world = builder().skill(reach()).start().await;
    let id = ask(&mut world, wanted(AGENT, "mutating", "{}")).await.unwrap().id;
    let at = |world: &World| (world.registry_address(), world.executor_address());
    let args = |(registry, executor), id: &str| format!(r#"{{"":"http://{registry} http://{executor} {id}"}}"#);
    let args_here = args(at(&world), &id);
    let live = Live::open(world.executor_as("orchestrator"), call("reach").agent(AGENT).args(args_here)).await.unwrap();
    let seen = live.rest().await;
    for line in ["approve: 8", "reject: 8", "safe: 8", "mutating: 8", "dangerous: 8"] {
        assert!(seen.stderr.lines().any(|said| said == line), "{line}: {}", seen.stderr);
    }
    assert_eq!(seen.stderr.matches("CALLER_UNKNOWN").count(), 5, "{}", seen.stderr);
    assert_eq!(state_of(&mut world, &id).await, ApprovalState::Pending);
    assert_eq!(effects(&world), [""; 0]);

    // Where the executor knows nobody, it is one of them: safe skills run, and nothing else does.
    let builder = World::builder().skill(reach()).skill(Skill::sh("safe", "cat"));
    let builder = builder.agent(&AgentFile::new(AGENT).mode(AGENT));
    let mut world = ["mutating", "dangerous"]
        .into_iter()
        .fold(builder, |builder, class| builder.skill(Skill::sh(class, "echo {}").set("class", class)))
        .start()
        .await;
    let args = args(at(&world), &id);
    let seen = world.run(call("reach").args(args)).await;
    for line in ["approve: 8", "reject: 8", "safe: 0", "mutating: 8", "dangerous: 8"] {
        assert!(seen.stderr.lines().any(|said| said == line), "{line}: {}", seen.stderr);
    }
}

#[tokio::test]
async fn what_executors_alone_may_is_refused_to_all_others() {
    let mut world = builder().start().await;
    let id = signed(&mut world, AGENT, "mutating", "{}", &["ann"]).await;
    let request = registry::GetApprovalRequest { id: id.clone() };
    let found = approvals(&mut world, "operator").get_approval(request).await;
    let approval = found.unwrap().into_inner().approval.unwrap();
    let consume = registry::ConsumeApprovalRequest {
        id,
        run_id: "taken".into(),
        agent: approval.agent,
        skill: approval.skill,
        digest: approval.digest,
        args_sha256: approval.args_sha256,
        journal_id: String::new(),
    };
    for who in ["operator", "orchestrator", "both", "ann", "narrow", "nothing"] {
        let refused = approvals(&mut world, who).consume_approval(consume.clone()).await.unwrap_err();
        assert_eq!(Refused::of(&refused).short(), (Code::PermissionDenied, "CALLER_NOT_ALLOWED"), "{who}");
    }
    let channel = endpoint(world.registry_address()).connect().await.unwrap();
    let refused = ApprovalServiceClient::new(channel).consume_approval(consume).await.unwrap_err();
    assert_eq!(Refused::of(&refused).short(), (Code::Unauthenticated, "CALLER_UNKNOWN"));
    assert_eq!(run(&mut world, mutating("{}", &approval.id)).await, "SUCCEEDED");
}
