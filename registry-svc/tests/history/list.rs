//! Reading: every condition, pages that stay in order while records come, and what a page of many records costs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rstest::rstest;
use skillyard::pb::executor::v1::Outcome;
use skillyard::pb::registry::v1 as pb;
use skillyard::service::caller::Role;
use tonic::Code;

use crate::bed::{Bed, Engine, Service, refusal, refused};
use crate::records::{batch, begin, changed, record};

fn labels(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn by_every_condition_and_all_at_once(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    let records = [
        changed(record("a", 1000), |run| run.labels = labels(&[("turn", "1"), ("team", "blue")])),
        changed(record("b", 2000), |run| run.labels = labels(&[("turn", "2"), ("team", "blue")])),
        changed(record("c", 3000), |run| {
            run.skill = "other".into();
            run.labels = labels(&[("turn", "1")]);
        }),
        changed(record("d", 4000), |run| run.agent = String::new()),
        changed(record("e", 5000), |run| run.executor = "e2".into()),
        changed(record("f", 6000), |run| run.finished.as_mut().unwrap().outcome = Outcome::TimedOut.into()),
    ];
    service.append("e", batch("j", 6, &records)).await.unwrap();
    let all = pb::ListRunRecordsRequest::default;
    let at = |ms: u64| Some((begin() + Duration::from_millis(ms)).into());
    let cases: Vec<(pb::ListRunRecordsRequest, &[&str])> = vec![
        (all(), &["f", "e", "d", "c", "b", "a"]),
        (pb::ListRunRecordsRequest { skill: "other".into(), ..all() }, &["c"]),
        (pb::ListRunRecordsRequest { skill: "none".into(), ..all() }, &[]),
        (pb::ListRunRecordsRequest { agent: "ops".into(), ..all() }, &["f", "e", "c", "b", "a"]),
        (pb::ListRunRecordsRequest { executor: "e2".into(), ..all() }, &["e"]),
        (pb::ListRunRecordsRequest { outcome: Outcome::TimedOut.into(), ..all() }, &["f"]),
        (pb::ListRunRecordsRequest { since: at(3000), ..all() }, &["f", "e", "d", "c"]),
        (pb::ListRunRecordsRequest { until: at(3000), ..all() }, &["b", "a"]),
        (pb::ListRunRecordsRequest { since: at(2000), until: at(4000), ..all() }, &["c", "b"]),
        (pb::ListRunRecordsRequest { labels: labels(&[("turn", "1")]), ..all() }, &["c", "a"]),
        (pb::ListRunRecordsRequest { labels: labels(&[("turn", "1"), ("team", "blue")]), ..all() }, &["a"]),
        (pb::ListRunRecordsRequest { labels: labels(&[("turn", "3"), ("team", "blue")]), ..all() }, &[]),
        (
            pb::ListRunRecordsRequest {
                skill: "disk_cleaner".into(),
                agent: "ops".into(),
                executor: "e1".into(),
                outcome: Outcome::Succeeded.into(),
                since: at(1001),
                until: at(9000),
                labels: labels(&[("team", "blue")]),
                ..all()
            },
            &["b"],
        ),
    ];
    for (request, expected) in cases {
        for page_size in [0, 1, 2] {
            let ids = service.ids(pb::ListRunRecordsRequest { page_size, ..request.clone() }).await;
            assert_eq!(ids, expected, "{request:?}");
        }
    }
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn pages_go_on_where_they_stopped_whatever_comes_meanwhile(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    // Some in the same moment, and the same run on two executors.
    let records: Vec<_> = (0..20).map(|n| record(&format!("r{n:02}"), n / 3)).collect();
    service.append("e", batch("j", 20, &records)).await.unwrap();
    service.append("f", batch("k", 20, &records[..5])).await.unwrap();
    let whole = service.ids(pb::ListRunRecordsRequest::default()).await;
    assert_eq!(whole.len(), 25);
    let (mut seen, mut page_token, mut round) = (Vec::new(), String::new(), 0);
    loop {
        let request = pb::ListRunRecordsRequest { page_size: 4, page_token, ..Default::default() };
        let page = service.operator().list_run_records(request).await.unwrap().into_inner();
        seen.extend(page.records.into_iter().map(|record| record.run.unwrap().run_id));
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
        round += 1;
        service.append("e", batch("j", 20 + round, &[record(&format!("new{round}"), 1000 + round)])).await.unwrap();
    }
    assert_eq!(seen, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_holds_3_mib_and_a_token_is_of_its_conditions() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    for n in 0..10 {
        let records: Vec<_> = (0..10)
            .map(|m| pb::RunRecord { stderr: "x".repeat(64 << 10), ..record(&format!("r{n}{m}"), n * 10 + m) })
            .collect();
        service.append("e", batch("j", n, &records)).await.unwrap();
    }
    let request = pb::ListRunRecordsRequest { page_size: 1000, ..Default::default() };
    let page = service.operator().list_run_records(request.clone()).await.unwrap().into_inner();
    assert!((40..50).contains(&page.records.len()), "{}", page.records.len());
    assert_eq!(service.ids(request.clone()).await.len(), 100);
    let page_token = page.next_page_token;
    for other in [
        pb::ListRunRecordsRequest { page_token: page_token.clone(), skill: "x".into(), ..request.clone() },
        pb::ListRunRecordsRequest { page_token: page_token.clone(), agent: "x".into(), ..request.clone() },
        pb::ListRunRecordsRequest { page_token: page_token.clone(), outcome: 1, ..request.clone() },
        pb::ListRunRecordsRequest { page_token: page_token.clone(), labels: labels(&[("a", "b")]), ..request.clone() },
        pb::ListRunRecordsRequest {
            page_token: page_token[..page_token.len() - 2].to_owned() + "zz",
            ..request.clone()
        },
        pb::ListRunRecordsRequest { page_size: -1, ..request.clone() },
        pb::ListRunRecordsRequest { since: Some(prost_types::Timestamp { seconds: -5, nanos: 0 }), ..request.clone() },
        pb::ListRunRecordsRequest {
            labels: (0..17).map(|n| (n.to_string(), String::new())).collect(),
            ..request.clone()
        },
    ] {
        let refused = refused(service.operator().list_run_records(other.clone()).await);
        assert_eq!(refused, refusal(Code::InvalidArgument, "INVALID_REQUEST"), "{other:?}");
    }
    // A token of the right list with a place that was made up begins anew, and breaks nothing.
    let bound = &page_token[..16];
    let odd = pb::ListRunRecordsRequest { page_token: format!("{bound}00ff"), ..request };
    assert!(!service.operator().list_run_records(odd).await.unwrap().into_inner().records.is_empty());
}

/// What the pages of a hundred thousand records are made of: an index each, and nothing is read that is not shown.
#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_many_records_costs_little(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    fill(&service, 100_000).await;
    if engine == Engine::Postgres {
        // What its autovacuum does within a minute.
        let mut connection = <sqlx::AnyConnection as sqlx::Connection>::connect(&bed.url).await.unwrap();
        sqlx::query("ANALYZE").execute(&mut connection).await.unwrap();
    }
    let all = pb::ListRunRecordsRequest::default;
    for request in [
        all(),
        pb::ListRunRecordsRequest { skill: "skill_3".into(), ..all() },
        pb::ListRunRecordsRequest { agent: "agent_1".into(), skill: "skill_4".into(), ..all() },
        pb::ListRunRecordsRequest { outcome: Outcome::Failed.into(), ..all() },
        pb::ListRunRecordsRequest { labels: labels(&[("turn", "77")]), ..all() },
        pb::ListRunRecordsRequest { labels: labels(&[("team", "blue")]), ..all() },
        pb::ListRunRecordsRequest { labels: labels(&[("team", "blue")]), skill: "skill_2".into(), ..all() },
        pb::ListRunRecordsRequest { skill: "none".into(), ..all() },
    ] {
        let began = Instant::now();
        let page = service.operator().list_run_records(request.clone()).await.unwrap().into_inner();
        let first = began.elapsed();
        let began = Instant::now();
        if !page.next_page_token.is_empty() {
            let next = pb::ListRunRecordsRequest { page_token: page.next_page_token, ..request.clone() };
            service.operator().list_run_records(next).await.unwrap();
        }
        eprintln!(
            "{engine:?}: {} records in {first:?}, the next page in {:?}: {request:?}",
            page.records.len(),
            began.elapsed()
        );
        assert!(first < Duration::from_secs(3), "{first:?} for {request:?}");
    }
    let began = Instant::now();
    assert_eq!(service.record("run-50000").await.unwrap().len(), 1);
    assert!(began.elapsed() < Duration::from_secs(3));
}

async fn fill(service: &Service, records: u64) {
    let mut client = service.history("e", &[Role::Executor]);
    for first in (0..records).step_by(1000) {
        let part: Vec<_> = (first..first + 1000)
            .map(|n| {
                changed(record(&format!("run-{n}"), n), |run| {
                    run.skill = format!("skill_{}", n % 10);
                    run.agent = format!("agent_{}", n % 3);
                    let outcome = if n % 1000 == 7 { Outcome::Failed } else { Outcome::Succeeded };
                    run.finished.as_mut().unwrap().outcome = outcome.into();
                    run.labels = labels(&[("turn", &(n / 10).to_string()), ("team", "blue")]);
                })
            })
            .collect();
        client.append_runs(batch("j", first + 1000, &part)).await.unwrap();
    }
}
