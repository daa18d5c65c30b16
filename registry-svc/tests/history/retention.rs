//! What is forgotten, and that nobody waits for it.

use std::time::Duration;

use registry_svc::store::history::Retention;
use rstest::rstest;
use skillyard::pb::registry::v1 as pb;
use sqlx::Row as _;

use crate::bed::{Bed, Engine};
use crate::records::{batch, begin, changed, record};

impl Bed {
    async fn count(&self, table: &'static str) -> i64 {
        let mut connection = <sqlx::AnyConnection as sqlx::Connection>::connect(&self.url).await.unwrap();
        let sql = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        sqlx::query(sql).fetch_one(&mut connection).await.unwrap().try_get(0).unwrap()
    }
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn by_age_and_by_number(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    // One a second; the first an hour ago.
    let labelled = |n: u64| {
        changed(record(&format!("r{n:04}"), n * 1000), |run| {
            run.labels = [("n".to_owned(), n.to_string()), ("team".to_owned(), "blue".to_owned())].into();
        })
    };
    let records: Vec<_> = (0..1000).map(labelled).collect();
    service.append("e", batch("j", 1000, &records)).await.unwrap();
    let everything = Retention { max_age: Duration::from_secs(7200), max_records: 1000 };
    assert_eq!(service.store.forget_records(everything).await.unwrap(), 0);
    let since = begin().elapsed().unwrap();
    let by_age = Retention { max_age: since - Duration::from_millis(399_500), ..everything };
    let forgotten = service.store.forget_records(by_age).await.unwrap();
    assert!((400..440).contains(&forgotten), "{forgotten}");
    let by_number = Retention { max_records: 250, ..everything };
    assert_eq!(service.store.forget_records(by_number).await.unwrap(), 1000 - 250 - forgotten);
    let ids = service.ids(pb::ListRunRecordsRequest::default()).await;
    assert_eq!((ids.len(), ids[0].as_str(), ids[249].as_str()), (250, "r0999", "r0750"));
    assert_eq!((bed.count("run_records").await, bed.count("run_labels").await), (250, 500));
    assert_eq!(bed.count("run_journals").await, 1);
    // What is handed in again although it was forgotten is forgotten again.
    service.append("e", batch("j", 1000, &records[..10])).await.unwrap();
    assert_eq!(service.store.forget_records(by_number).await.unwrap(), 10);
    let nothing = Retention { max_age: Duration::ZERO, max_records: 1 };
    assert_eq!(service.store.forget_records(nothing).await.unwrap(), 250);
    let left = (bed.count("run_records").await, bed.count("run_labels").await, bed.count("run_journals").await);
    assert_eq!(left, (0, 0, 0));
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn executors_hand_in_while_much_is_forgotten(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let service = bed.serve().await;
    for part in 0..5 {
        let records: Vec<_> = (0..1000).map(|n| record(&format!("old-{part}-{n}"), part * 1000 + n)).collect();
        service.append("e", batch("j", part, &records)).await.unwrap();
    }
    let store = service.store.clone();
    let forgetting =
        tokio::spawn(async move { store.forget_records(Retention { max_records: 10, ..Retention::default() }).await });
    let mut handed_in = 0;
    while !forgetting.is_finished() {
        handed_in += 1;
        let late = record(&format!("new-{handed_in}"), 1_000_000 + handed_in);
        service.append("e", batch("k", handed_in, &[late])).await.unwrap();
    }
    assert!(forgetting.await.unwrap().unwrap() >= 4990);
    assert!(handed_in > 10, "only {handed_in} batches found room between the steps");
    let ids = service.ids(pb::ListRunRecordsRequest { page_size: 1000, ..Default::default() }).await;
    let new = ids.iter().filter(|id| id.starts_with("new")).count() as u64;
    assert!(new >= handed_in.min(10), "{new} of {handed_in}");
}
