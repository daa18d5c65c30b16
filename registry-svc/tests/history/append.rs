//! Handing in: once, whatever is repeated, lost, overlapping or out of order, by however many registries; and who may.

use std::collections::BTreeSet;
use std::sync::Arc;

use rstest::rstest;
use skillyard::pb::executor::v1::{Outcome, RunState};
use skillyard::pb::registry::v1 as pb;
use skillyard::service::caller::Role;
use tokio::sync::Barrier;
use tonic::Code;

use crate::bed::{Bed, Engine, refusal, refused};
use crate::records::{appended_by, batch, changed, record};

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_stored_once_and_comes_back_as_it_was(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let first = changed(record("a", 1), |run| {
        run.labels = [("ticket".to_owned(), "T-1".to_owned()), ("long".to_owned(), "x".repeat(4000))].into();
        run.agent = "é\0".repeat(300);
    });
    let second = changed(record("b", 2), |run| {
        run.finished.as_mut().unwrap().outcome = Outcome::Lost.into();
    });
    let whole = batch("j1", 2, &[first.clone(), second.clone()]);
    for _ in 0..3 {
        assert_eq!(service.append("e", whole.clone()).await.unwrap(), []);
    }
    // A part of it again, one that reaches further, one from the middle, and an older one.
    let third = record("c", 3);
    service.append("e", batch("j1", 1, std::slice::from_ref(&first))).await.unwrap();
    service.append("e", batch("j1", 3, &[first.clone(), second.clone(), third.clone()])).await.unwrap();
    service.append("e", batch("j1", 9, &[record("i", 9), record("i", 9)])).await.unwrap();
    service.append("e", batch("j1", 5, &[record("d", 4), second.clone()])).await.unwrap();
    service.append("e", batch("j1", 9, &[])).await.unwrap();
    assert_eq!(service.ids(pb::ListRunRecordsRequest::default()).await, ["i", "d", "c", "b", "a"]);
    assert_eq!(service.record("a").await.unwrap(), [appended_by("e", &first)]);
    assert_eq!(service.record("b").await.unwrap(), [appended_by("e", &second)]);
    // The same id on another executor, and once more on this one, long after the first was forgotten there.
    service.append("f", batch("j2", 1, &[record("a", 1)])).await.unwrap();
    service.append("e", batch("j1", 10, &[record("a", 10)])).await.unwrap();
    let all = service.record("a").await.unwrap();
    assert_eq!(all.len(), 3);
    assert_eq!(all[0], appended_by("e", &record("a", 10)), "newest first");
    let by: BTreeSet<_> = all[1..].iter().map(|record| record.appended_by.as_str()).collect();
    assert_eq!(by, ["e", "f"].into());
    drop(service);
    assert_eq!(bed.serve().await.record("a").await.unwrap(), all, "a restart changes nothing");
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_hand_in_the_same_each_record_is_there_once(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let services = [bed.serve().await, bed.serve().await];
    let start = Arc::new(Barrier::new(16));
    let records: Vec<_> = (0..200).map(|n| record(&format!("run-{n:03}"), n)).collect();
    let clients = (0..16_usize).map(|n| {
        let (start, mut client) = (Arc::clone(&start), services[n % 2].history("e", &[Role::Executor]));
        // Of two journals, parts that overlap.
        let part = &records[n * 10..(n * 10 + 60).min(200)];
        let request = batch(&format!("j{}", n % 4 / 2), n as u64, part);
        tokio::spawn(async move {
            start.wait().await;
            client.append_runs(request).await.unwrap()
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let expected: BTreeSet<_> =
        (0..16_usize).flat_map(|n| (n * 10..(n * 10 + 60).min(200)).map(move |run| (n % 4 / 2, run))).collect();
    let ids = services[1].ids(pb::ListRunRecordsRequest { page_size: 37, ..Default::default() }).await;
    assert_eq!(ids.len(), expected.len());
    for run in 0..200 {
        let times = expected.iter().filter(|(_, other)| *other == run).count();
        let id = format!("run-{run:03}");
        assert_eq!(ids.iter().filter(|other| **other == id).count(), times, "{id}");
    }
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_is_its_identitys(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    service.append("e", batch("j", 1, &[record("a", 1)])).await.unwrap();
    let other = service.append("f", batch("j", 2, &[record("b", 2)])).await;
    assert_eq!(refused(other), refusal(Code::PermissionDenied, "CALLER_NOT_ALLOWED"));
    assert_eq!(refused(service.record("b").await), refusal(Code::NotFound, "UNKNOWN_RUN"));
    service.append("f", batch("j-of-f", 1, &[record("b", 2)])).await.unwrap();
    assert_eq!(service.record("b").await.unwrap(), [appended_by("f", &record("b", 2))]);
    // What a record says of who handed it in is not believed.
    let claiming = pb::RunRecord { appended_by: "e".into(), ..record("c", 3) };
    service.append("f", batch("j-of-f", 2, &[claiming])).await.unwrap();
    assert_eq!(service.record("c").await.unwrap()[0].appended_by, "f");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_be_stored_is_named_and_the_rest_is_stored() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let bad = |id: &str, change: fn(&mut skillyard::pb::executor::v1::Run)| changed(record(id, 1), change);
    let records = [
        record("good-1", 1),
        pb::RunRecord { run: None, ..record("x", 1) },
        bad("x", |run| run.run_id.clear()),
        bad("x", |run| run.run_id = "a b".into()),
        bad("running", |run| run.state = RunState::Running.into()),
        bad("unfinished", |run| run.finished = None),
        bad("no-outcome", |run| run.finished.as_mut().unwrap().outcome = 0),
        bad("no-skill", |run| run.skill.clear()),
        bad("no-time", |run| run.accepted_at = None),
        bad("old", |run| run.accepted_at.as_mut().unwrap().seconds = -1),
        bad("odd", |run| run.accepted_at.as_mut().unwrap().nanos = -1),
        pb::RunRecord { stderr: "x".repeat(300 << 10), ..record("large", 1) },
        bad("newer", |run| run.finished.as_mut().unwrap().outcome = 77),
        bad("nameless", |run| run.executor.clear()),
        record("good-2", 2),
    ];
    let rejected = service.append("e", batch("j", 15, &records)).await.unwrap();
    let ids: Vec<_> = rejected.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(
        ids,
        ["", "", "a b", "running", "unfinished", "no-outcome", "no-skill", "no-time", "old", "odd", "large"]
    );
    assert!(rejected.iter().all(|(_, reason)| !reason.is_empty()), "{rejected:?}");
    assert_eq!(service.append("e", batch("j", 15, &records)).await.unwrap(), rejected, "asked again, the same");
    let mut stored = service.ids(pb::ListRunRecordsRequest::default()).await;
    stored.sort();
    assert_eq!(stored, ["good-1", "good-2", "nameless", "newer"]);
    let of = pb::ListRunRecordsRequest { outcome: 77, ..Default::default() };
    assert_eq!(service.ids(of).await, ["newer"], "a later executor's word");
    let of = pb::ListRunRecordsRequest { executor: "e1".into(), ..Default::default() };
    assert_eq!(service.ids(of).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_wrong_as_a_whole_is_refused() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let good = batch("j", 1, &[record("a", 1)]);
    let large = pb::RunRecord { stderr: "x".repeat(60 << 10), ..record("a", 1) };
    for wrong in [
        pb::AppendRunsRequest { journal_id: String::new(), ..good.clone() },
        pb::AppendRunsRequest { journal_id: "a b".into(), ..good.clone() },
        pb::AppendRunsRequest { cursor: u64::MAX, ..good.clone() },
        pb::AppendRunsRequest { records: vec![large.clone(); 20], ..good.clone() },
    ] {
        assert_eq!(refused(service.append("e", wrong).await), refusal(Code::InvalidArgument, "INVALID_REQUEST"));
    }
    let huge = pb::AppendRunsRequest { records: vec![large; 80], ..good.clone() };
    let status = service.append("e", huge).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert_eq!(service.ids(pb::ListRunRecordsRequest::default()).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_hand_in_and_operators_and_callers_read() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let theirs = changed(record("theirs", 2), |run| run.caller = "other".into());
    let nobodys = changed(record("nobodys", 3), |run| run.caller = String::new());
    service.append("e", batch("j", 3, &[record("mine", 1), theirs, nobodys])).await.unwrap();
    for role in [Role::Orchestrator, Role::Approver, Role::Operator] {
        let refused = refused(service.history("x", &[role]).append_runs(batch("j", 4, &[])).await);
        assert_eq!(refused, refusal(Code::PermissionDenied, "CALLER_NOT_ALLOWED"), "{role}");
    }
    let list = pb::ListRunRecordsRequest::default;
    let get = |id: &str| pb::GetRunRecordRequest { run_id: id.into() };
    for role in [Role::Executor, Role::Approver] {
        let mut client = service.history("x", &[role]);
        let not_allowed = refusal(Code::PermissionDenied, "CALLER_NOT_ALLOWED");
        assert_eq!(refused(client.list_run_records(list()).await), not_allowed, "{role}");
        assert_eq!(refused(client.get_run_record(get("mine")).await), not_allowed, "{role}");
    }
    let mut nobody = service.history_as_nobody();
    let unknown = refusal(Code::Unauthenticated, "CALLER_UNKNOWN");
    assert_eq!(refused(nobody.append_runs(batch("j", 4, &[])).await), unknown);
    assert_eq!(refused(nobody.list_run_records(list()).await), unknown);
    assert_eq!(refused(nobody.get_run_record(get("nobodys")).await), unknown);

    let mut bot = service.history("bot", &[Role::Orchestrator]);
    assert_eq!(crate::records::ids(&mut bot, list()).await, ["mine"]);
    assert_eq!(bot.get_run_record(get("mine")).await.unwrap().into_inner().records.len(), 1);
    for id in ["theirs", "nobodys", "none"] {
        assert_eq!(refused(bot.get_run_record(get(id)).await), refusal(Code::NotFound, "UNKNOWN_RUN"), "{id}");
    }
    assert_eq!(service.ids(list()).await, ["nobodys", "theirs", "mine"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_told_and_nothing_is_half_stored() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let url = format!("postgres:///none?host={}&user=none", bed.path("nowhere").display());
    let service = bed.serve_with(&url, Default::default()).await;
    let away = refusal(Code::Unavailable, "STORE_UNAVAILABLE");
    assert_eq!(refused(service.append("e", batch("j", 1, &[record("a", 1)])).await), away);
    assert_eq!(refused(service.record("a").await), away);

    // Another process holds the file.
    let service = bed.serve().await;
    let mut other = <sqlx::AnyConnection as sqlx::Connection>::connect(&bed.url).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    assert_eq!(refused(service.append("e", batch("j", 1, &[record("a", 1)])).await), away);
    assert_eq!(refused(service.record("a").await), refusal(Code::NotFound, "UNKNOWN_RUN"), "reading goes on");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    service.append("e", batch("j", 1, &[record("a", 1)])).await.unwrap();
    assert_eq!(service.record("a").await.unwrap().len(), 1);
}
