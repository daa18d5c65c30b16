//! What goes as it should: asked for, signed, used; read, watched, expired.

use std::time::Duration;

use registry_svc::store::approval::Signers;
use rstest::rstest;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::ApprovalState;
use skillyard::pb::registry::v1::request_approval_request::Arguments;
use skillyard::service::caller::Role;
use skillyard::wire::{duration_to_wire, struct_to_wire};
use tonic::Code;

use crate::bed::{ARGS, Bed, Engine, asking, dangerous, mutating, next, refusal, refused, sha256, using};
use crate::world::eventually;

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn asked_for_signed_and_used(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let asked = service.ask(pb::RequestApprovalRequest { requested_for: "eve".into(), ..dangerous() }).await.unwrap();
    assert_eq!(asked.state(), ApprovalState::Pending);
    assert_eq!(
        (asked.agent.as_str(), asked.skill.as_str(), asked.requested_by.as_str(), asked.requested_for.as_str()),
        ("dual-sign-required", "dangerous", "bot", "eve")
    );
    assert_eq!((asked.args_json.as_str(), &asked.args_sha256), (ARGS, &sha256(ARGS)));
    assert_eq!((asked.signatures_required, asked.class, asked.reason.as_str()), (2, 3, "the disk is full"));
    let (created, expires) = (asked.created_at.unwrap(), asked.expires_at.unwrap());
    assert_eq!(expires.seconds - created.seconds, 15 * 60);
    assert_eq!(service.get(&asked.id).await.unwrap(), asked);
    assert_eq!(bed.holding_arguments().await, 1);

    let once = service.sign("ann", &asked.id, true).await.unwrap();
    assert_eq!((once.state(), once.args_json.as_str(), once.signatures.len()), (ApprovalState::Pending, ARGS, 1));
    let twice = service.sign("bob", &asked.id, true).await.unwrap();
    assert_eq!((twice.state(), twice.args_json.as_str()), (ApprovalState::Approved, ""));
    let signers: Vec<_> =
        twice.signatures.iter().map(|by| (by.signer.as_str(), by.approve, by.comment.as_str())).collect();
    assert_eq!(signers, [("ann", true, "says ann"), ("bob", true, "says bob")]);
    assert_eq!(bed.holding_arguments().await, 0, "nobody decides on them any more");

    let used = service.consume("e1", using(&asked, "run-1")).await.unwrap();
    assert_eq!((used.state(), used.run_id.as_str(), used.signatures.len()), (ApprovalState::Consumed, "run-1", 2));
    assert_eq!(service.consume("e1", using(&asked, "run-1")).await.unwrap(), used, "an answer that was lost");
    assert_eq!(service.get(&asked.id).await.unwrap(), used);
    drop(service);
    assert_eq!(bed.serve().await.get(&asked.id).await.unwrap(), used, "a restart changes nothing");
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_is_one_approval(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let named = pb::RequestApprovalRequest { request_id: "q-1".into(), ..mutating() };
    let first = service.ask(named.clone()).await.unwrap();
    let clients = (0..8).map(|_| {
        let (mut client, request) =
            (service.bot(), pb::RequestApprovalRequest { request_id: "q-2".into(), ..mutating() });
        tokio::spawn(async move { client.request_approval(request).await.unwrap().into_inner().approval.unwrap().id })
    });
    let mut ids = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        ids.push(client.await.unwrap());
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    service.sign("ann", &first.id, true).await.unwrap();
    let again = service.ask(named.clone()).await.unwrap();
    assert_eq!((again.id == first.id, again.state()), (true, ApprovalState::Approved));
    for other in [
        pb::RequestApprovalRequest { reason: "another".into(), ..named.clone() },
        pb::RequestApprovalRequest { requested_for: "eve".into(), ..named.clone() },
        pb::RequestApprovalRequest { ttl: Some(duration_to_wire(Duration::from_secs(60))), ..named.clone() },
        pb::RequestApprovalRequest { arguments: None, ..named.clone() },
        pb::RequestApprovalRequest { agent: "dual-sign-required".into(), ..named.clone() },
    ] {
        assert_eq!(refused(service.ask(other).await), refusal(Code::AlreadyExists, "REQUEST_ID_REUSED"));
    }
    let mut another = service.as_one("bot2", &[Role::Orchestrator]);
    let theirs = another.request_approval(named).await.unwrap().into_inner().approval.unwrap();
    assert_ne!(theirs.id, first.id, "an id is its caller's");
    assert_ne!(service.ask(mutating()).await.unwrap().id, service.ask(mutating()).await.unwrap().id);
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_struct_and_its_canonical_text_have_one_hash(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let map = serde_json::json!({"z": 3, "a": {"b": [1.5, null, "é"]}}).as_object().unwrap().clone();
    let object = Some(Arguments::Args(struct_to_wire(&map)));
    let of_struct = service.ask(pb::RequestApprovalRequest { arguments: object, ..mutating() }).await.unwrap();
    assert_eq!(of_struct.args_json, r#"{"a":{"b":[1.5,null,"é"]},"z":3}"#);
    let of_text = service.ask(asking("mutating-with-confirm", "mutating", &of_struct.args_json)).await.unwrap();
    assert_eq!(of_text.args_sha256, of_struct.args_sha256);
    let none = service.ask(pb::RequestApprovalRequest { arguments: None, ..mutating() }).await.unwrap();
    assert_eq!((none.args_json.as_str(), none.args_sha256), ("{}", sha256("{}")));
    for (args, reason) in [("[1]", "INVALID_ARGUMENTS"), ("{\"a\":1,\"a\":2}", "INVALID_ARGUMENTS")] {
        let result = service.ask(asking("mutating-with-confirm", "mutating", args)).await;
        assert_eq!(refused(result), refusal(Code::InvalidArgument, reason));
    }
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(8 << 20));
    let result = service.ask(asking("mutating-with-confirm", "mutating", &large)).await;
    assert_eq!(refused(result), refusal(Code::InvalidArgument, "ARGUMENTS_TOO_LARGE"));
    let largest = format!(r#"{{"a":"{}"}}"#, "x".repeat((8 << 20) - 8));
    let asked = service.ask(asking("mutating-with-confirm", "mutating", &largest)).await.unwrap();
    assert_eq!((asked.args_json.as_str(), &asked.args_sha256), ("", &sha256(&largest)), "only one answer has them");
    assert!(service.get(&asked.id).await.unwrap().args_json == largest);
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn lists_are_paged_and_show_what_the_caller_may_see(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, service.ask(mutating()).await.unwrap().id);
    }
    let mut other = service.as_one("other", &[Role::Orchestrator]);
    let theirs = other.request_approval(mutating()).await.unwrap().into_inner().approval.unwrap().id;
    service.sign("ann", &ids[1], true).await.unwrap();
    let list = async |mut client: crate::bed::Client, request: pb::ListApprovalsRequest| {
        let page = client.list_approvals(request).await.unwrap().into_inner();
        (page.approvals.into_iter().map(|approval| approval.id).collect::<Vec<_>>(), page.next_page_token)
    };
    let all = pb::ListApprovalsRequest::default();
    let mut everybodys = ids.clone();
    everybodys.insert(0, theirs.clone());
    assert_eq!(list(service.bot(), all.clone()).await.0, ids);
    assert_eq!(list(service.approver("ann"), all.clone()).await.0, everybodys);
    assert_eq!(list(service.as_one("op", &[Role::Operator]), all.clone()).await.0, everybodys);
    let approved = pb::ListApprovalsRequest { state: ApprovalState::Approved.into(), ..all.clone() };
    assert_eq!(list(service.bot(), approved).await.0, [ids[1].clone()]);
    let paged = pb::ListApprovalsRequest { page_size: 3, ..all };
    let (first, token) = list(service.bot(), paged.clone()).await;
    assert_eq!(first, ids[..3]);
    let (second, token) = list(service.bot(), pb::ListApprovalsRequest { page_token: token, ..paged }).await;
    assert_eq!((second.as_slice(), token.as_str()), (&ids[3..], ""));
    assert_eq!(refused(service.get(&theirs).await), refusal(Code::NotFound, "UNKNOWN_APPROVAL"));
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn one_that_expires_is_forgotten_and_told(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let ttl = Some(duration_to_wire(Duration::from_secs(3)));
    let pending = service.ask(pb::RequestApprovalRequest { ttl, ..mutating() }).await.unwrap();
    let approved = service.ask(pb::RequestApprovalRequest { ttl, ..mutating() }).await.unwrap();
    service.sign("ann", &approved.id, true).await.unwrap();
    let watch = pb::WatchApprovalsRequest { id: pending.id.clone(), ..Default::default() };
    let mut watch = service.bot().watch_approvals(watch).await.unwrap().into_inner();
    assert_eq!(next(&mut watch).await, pending);
    let expired = next(&mut watch).await;
    assert_eq!((expired.state(), expired.args_json.as_str()), (ApprovalState::Expired, ""));
    assert!(watch.message().await.unwrap().is_none(), "nothing more can become of it");
    assert_eq!(bed.holding_arguments().await, 0);
    let signed = service.sign("ann", &pending.id, true).await;
    assert_eq!(refused(signed), refusal(Code::FailedPrecondition, "APPROVAL_INVALID"));
    eventually(async || (service.get(&approved.id).await.unwrap().state() == ApprovalState::Expired).then_some(()))
        .await;
    let used = service.consume("e1", using(&approved, "r")).await;
    assert_eq!(refused(used), refusal(Code::FailedPrecondition, "APPROVAL_INVALID"));
}

/// What has ended is deleted, however much there is of it; what has not stays, however old it is.
#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn old_ones_are_deleted(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let pending = service.ask(mutating()).await.unwrap();
    let approved = service.approved().await;
    let used = service.approved().await;
    service.consume("e1", using(&used, "r")).await.unwrap();
    let rejected = service.ask(mutating()).await.unwrap();
    service.sign("ann", &rejected.id, false).await.unwrap();
    bed.copies_of(&used.id, 1200).await;
    assert_eq!(bed.approvals_and_signatures().await, (1204, 3));
    drop(service);
    let service = bed.serve_keeping(&bed.url, Signers::default(), Duration::from_millis(1)).await;
    eventually(async || (bed.approvals_and_signatures().await == (2, 1)).then_some(())).await;
    assert_eq!(service.get(&pending.id).await.unwrap().state(), ApprovalState::Pending);
    assert_eq!(service.get(&approved.id).await.unwrap().state(), ApprovalState::Approved);
    // It is not used again for having been forgotten.
    let again = service.consume("e1", using(&used, "r")).await;
    assert_eq!(refused(again), refusal(Code::NotFound, "UNKNOWN_APPROVAL"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cleared_is_in_no_file() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let asked = service.ask(mutating()).await.unwrap();
    let holds_secret = || {
        let files = std::fs::read_dir(bed.path("")).unwrap().map(|entry| entry.unwrap());
        let files: Vec<_> =
            files.filter(|file| file.file_name().to_string_lossy().starts_with("approvals.db")).collect();
        assert!(!files.is_empty());
        files.iter().any(|file| std::fs::read(file.path()).unwrap().windows(7).any(|part| part == b"hunter2"))
    };
    assert!(holds_secret());
    service.sign("ann", &asked.id, true).await.unwrap();
    eventually(async || (!holds_secret()).then_some(())).await;
}
