//! Every way to misuse an approval is refused.

use std::time::Duration;

use registry_svc::store::approval::Signers;
use rstest::rstest;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::ApprovalState;
use skillyard::service::caller::Role;
use skillyard::wire::duration_to_wire;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::bed::{ARGS, Bed, Engine, asking, dangerous, mutating, refusal, refused, sha256, using};

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn it_is_for_one_call_of_one_run(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let pending = service.ask(mutating()).await.unwrap();
    let used = service.consume("e1", using(&pending, "r")).await;
    assert_eq!(refused(used), refusal(Code::FailedPrecondition, "APPROVAL_PENDING"));
    let approval = service.approved().await;
    let good = using(&approval, "r");
    for other in [
        pb::ConsumeApprovalRequest { args_sha256: sha256(&ARGS.replace("/srv", "/srw")), ..good.clone() },
        pb::ConsumeApprovalRequest { args_sha256: sha256(&format!("{ARGS} ")), ..good.clone() },
        pb::ConsumeApprovalRequest { digest: sha256("another package"), ..good.clone() },
        pb::ConsumeApprovalRequest { agent: "dual-sign-required".into(), ..good.clone() },
        pb::ConsumeApprovalRequest { agent: String::new(), ..good.clone() },
        pb::ConsumeApprovalRequest { skill: "dangerous".into(), ..good.clone() },
    ] {
        let used = service.consume("e1", other).await;
        assert_eq!(refused(used), refusal(Code::FailedPrecondition, "APPROVAL_INVALID"));
    }
    for bad in [
        pb::ConsumeApprovalRequest { args_sha256: String::new(), ..good.clone() },
        pb::ConsumeApprovalRequest { digest: "x".into(), ..good.clone() },
        pb::ConsumeApprovalRequest { run_id: String::new(), ..good.clone() },
        pb::ConsumeApprovalRequest { journal_id: "a b".into(), ..good.clone() },
    ] {
        assert_eq!(refused(service.consume("e1", bad).await), refusal(Code::InvalidArgument, "INVALID_REQUEST"));
    }
    for unknown in ["", "x", "00000000-0000-0000-0000-000000000000", "a\0b"] {
        let used = service.consume("e1", pb::ConsumeApprovalRequest { id: unknown.into(), ..good.clone() }).await;
        assert_eq!(refused(used), refusal(Code::NotFound, "UNKNOWN_APPROVAL"));
    }
    service.consume("e1", good.clone()).await.unwrap();
    service.consume("e1", good.clone()).await.unwrap();
    drop(service);
    let service = bed.serve().await;
    service.consume("e1", good.clone()).await.unwrap();
    for (executor, request) in [
        ("e2", good.clone()),
        ("e1", using(&approval, "r2")),
        // A second executor of this identity, or this one after its state was lost: it does not know what it ran.
        ("e1", pb::ConsumeApprovalRequest { journal_id: "another".into(), ..good.clone() }),
        ("e1", pb::ConsumeApprovalRequest { journal_id: String::new(), ..good.clone() }),
    ] {
        let used = service.consume(executor, request).await;
        assert_eq!(refused(used), refusal(Code::FailedPrecondition, "APPROVAL_INVALID"));
    }
    let late = service.sign("bob", &approval.id, false).await;
    assert_eq!(refused(late), refusal(Code::FailedPrecondition, "APPROVAL_INVALID"));
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn who_may_sign(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let signers = Signers { mutating: None, dangerous: Some(["ann", "bob", "bot"].map(String::from).into()) };
    let service = bed.serve_for(signers).await;
    let asked = service.ask(pb::RequestApprovalRequest { requested_for: "Bob".into(), ..dangerous() }).await.unwrap();
    let mut own = service.as_one("bot", &[Role::Orchestrator, Role::Approver]);
    let sign = |approve| pb::SignApprovalRequest { id: asked.id.clone(), approve, comment: String::new() };
    for approve in [true, false] {
        let refused_own = refused(own.sign_approval(sign(approve)).await);
        assert_eq!(refused_own, refusal(Code::PermissionDenied, "CALLER_NOT_ALLOWED"), "who asked");
    }
    for (who, why) in [("bob", "whom it is for"), ("cat", "who is not named for dangerous skills")] {
        let signed = service.sign(who, &asked.id, true).await;
        assert_eq!(refused(signed), refusal(Code::PermissionDenied, "CALLER_NOT_ALLOWED"), "{why}");
    }
    service.sign("ann", &asked.id, true).await.unwrap();
    for approve in [true, false] {
        let signed = service.sign("ann", &asked.id, approve).await;
        assert_eq!(refused(signed), refusal(Code::AlreadyExists, "ALREADY_SIGNED"));
    }
    let still = service.get(&asked.id).await.unwrap();
    assert_eq!((still.state(), still.signatures.len()), (ApprovalState::Pending, 1));
    let mutating_one = service.ask(mutating()).await.unwrap();
    service.sign("cat", &mutating_one.id, true).await.unwrap();
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn one_signature_against_ends_it(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let asked = service.ask(dangerous()).await.unwrap();
    service.sign("ann", &asked.id, true).await.unwrap();
    assert_eq!(service.sign("bob", &asked.id, false).await.unwrap().state(), ApprovalState::Rejected);
    assert_eq!(bed.holding_arguments().await, 0);
    let late = service.sign("cat", &asked.id, true).await;
    assert_eq!(refused(late), refusal(Code::FailedPrecondition, "APPROVAL_INVALID"));
    let approved = service.approved().await;
    assert_eq!(service.sign("bob", &approved.id, false).await.unwrap().state(), ApprovalState::Rejected);
    for ended in [asked, approved] {
        let used = service.consume("e1", using(&ended, "r")).await;
        assert_eq!(refused(used), refusal(Code::FailedPrecondition, "APPROVAL_INVALID"));
    }
}

/// The table of classes and modes, and what else keeps an approval from being asked for.
#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_asked_for(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let denied = || Err(refusal(Code::PermissionDenied, "CLASS_NOT_PERMITTED"));
    let not_needed = || Err(refusal(Code::FailedPrecondition, "APPROVAL_NOT_NEEDED"));
    for (agent, skill, expected) in [
        ("read-only", "safe", not_needed()),
        ("mutating-with-confirm", "safe", not_needed()),
        ("dual-sign-required", "safe", not_needed()),
        ("", "safe", not_needed()),
        ("read-only", "mutating", denied()),
        ("mutating-with-confirm", "mutating", Ok(1)),
        ("dual-sign-required", "mutating", Ok(1)),
        ("", "mutating", denied()),
        ("read-only", "dangerous", denied()),
        ("mutating-with-confirm", "dangerous", denied()),
        ("dual-sign-required", "dangerous", Ok(2)),
        ("", "dangerous", denied()),
        ("dual-sign-required", "guide", Err(refusal(Code::FailedPrecondition, "NOT_RUNNABLE"))),
        ("dual-sign-required", "nothing", Err(refusal(Code::NotFound, "UNKNOWN_SKILL"))),
        ("narrow", "mutating", Err(refusal(Code::NotFound, "UNKNOWN_SKILL"))),
        ("nobody", "mutating", Err(refusal(Code::NotFound, "UNKNOWN_AGENT"))),
    ] {
        let result = service.ask(asking(agent, skill, ARGS)).await;
        let result = match result {
            Ok(approval) => Ok(approval.signatures_required),
            Err(status) => Err(refused::<()>(Err(status))),
        };
        assert_eq!(result, expected, "{agent:?} {skill}");
    }
    let long = "x".repeat(4097);
    for bad in [
        pb::RequestApprovalRequest { reason: long, ..mutating() },
        pb::RequestApprovalRequest { reason: "a\0".into(), ..mutating() },
        pb::RequestApprovalRequest { requested_for: "a\n".into(), ..mutating() },
        pb::RequestApprovalRequest { request_id: "a b".into(), ..mutating() },
        pb::RequestApprovalRequest { ttl: Some(duration_to_wire(Duration::from_secs(86_401))), ..mutating() },
        pb::RequestApprovalRequest { ttl: Some(prost_types::Duration { seconds: -1, nanos: 0 }), ..mutating() },
    ] {
        assert_eq!(refused(service.ask(bad).await), refusal(Code::InvalidArgument, "INVALID_REQUEST"));
    }
}

/// As RunSkill would refuse them: nobody is to sign what cannot run.
#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_break_the_schema_are_not_asked_about() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let schema =
        r#"{"type":"object","properties":{"path":{"type":"string"},"days":{"type":"integer"}},"required":["path"]}"#;
    bed.world.skill("strict", &format!(r#","class":"mutating","schema":{schema}"#));
    let service = bed.serve().await;
    let ask = async |args: &str| service.ask(asking("mutating-with-confirm", "strict", args)).await;
    let status = ask(r#"{"days":"7"}"#).await.unwrap_err();
    let mut fields: Vec<_> = status.get_details_bad_request().unwrap().field_violations;
    fields.sort_by(|a, b| a.field.cmp(&b.field));
    assert_eq!(fields.iter().map(|violation| violation.field.as_str()).collect::<Vec<_>>(), ["", "/days"]);
    assert_eq!(refused::<()>(Err(status)), refusal(Code::InvalidArgument, "INVALID_ARGUMENTS"));
    assert_eq!(ask(r#"{"path":"/srv","days":7}"#).await.unwrap().state(), ApprovalState::Pending);
    let list = service.bot().list_approvals(pb::ListApprovalsRequest::default()).await.unwrap().into_inner();
    assert_eq!(list.approvals.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_needs_an_identity_and_a_role() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let id = service.ask(mutating()).await.unwrap().id;
    let sign = || pb::SignApprovalRequest { id: id.clone(), approve: true, comment: String::new() };
    let get = || pb::GetApprovalRequest { id: id.clone() };
    let watch = || pb::WatchApprovalsRequest { id: id.clone(), ..Default::default() };
    let consume = || pb::ConsumeApprovalRequest { id: id.clone(), ..Default::default() };
    let list = pb::ListApprovalsRequest::default;

    let unknown = refusal(Code::Unauthenticated, "CALLER_UNKNOWN");
    let mut nobody = service.as_nobody();
    assert_eq!(refused(nobody.request_approval(mutating()).await), unknown);
    assert_eq!(refused(nobody.sign_approval(sign()).await), unknown);
    assert_eq!(refused(nobody.get_approval(get()).await), unknown);
    assert_eq!(refused(nobody.list_approvals(list()).await), unknown);
    assert_eq!(refused(nobody.watch_approvals(watch()).await.map(|_| ())), unknown);
    assert_eq!(refused(nobody.consume_approval(consume()).await), unknown);

    let not_allowed = refusal(Code::PermissionDenied, "CALLER_NOT_ALLOWED");
    for role in Role::ALL {
        let mut client = service.as_one("somebody", &[role]);
        if role != Role::Orchestrator {
            assert_eq!(refused(client.request_approval(mutating()).await), not_allowed);
        }
        if role != Role::Approver {
            assert_eq!(refused(client.sign_approval(sign()).await), not_allowed);
        }
        if role != Role::Executor {
            assert_eq!(refused(client.consume_approval(consume()).await), not_allowed);
        } else {
            assert_eq!(refused(client.get_approval(get()).await), not_allowed);
            assert_eq!(refused(client.list_approvals(list()).await), not_allowed);
            assert_eq!(refused(client.watch_approvals(watch()).await.map(|_| ())), not_allowed);
        }
    }
    let mut bound = service.as_one("bound", &[Role::Orchestrator]);
    assert_eq!(refused(bound.request_approval(mutating()).await), not_allowed, "not one of its agents");
    let not_its_own = refusal(Code::NotFound, "UNKNOWN_APPROVAL");
    assert_eq!(refused(bound.watch_approvals(watch()).await.map(|_| ())), not_its_own);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_an_end_to_what_one_may_ask_for() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let mut last = service.ask(mutating()).await;
    for _ in 0..200 {
        last = service.ask(mutating()).await;
    }
    assert_eq!(refused(last), refusal(Code::ResourceExhausted, "TOO_MANY_APPROVALS"));
}
