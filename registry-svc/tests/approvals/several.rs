//! Two registries on one database, many clients at once, and a database that is away.

use std::sync::Arc;

use registry_svc::store::approval::Signers;
use rstest::rstest;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::ApprovalState;
use skillyard_tests::certificates::Ca;
use skillyard_tests::postgres::Database;
use sqlx::{Connection as _, Row as _};
use tokio::sync::Barrier;
use tonic::Code;

use crate::bed::{Bed, Engine, dangerous, mutating, next, refusal, refused, using};

const CLIENTS: usize = 20;

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_clients_one_uses_it(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let services = [bed.serve().await, bed.serve().await];
    for round in 0..3 {
        let approval = services[0].approved().await;
        let start = Arc::new(Barrier::new(CLIENTS));
        let clients = (0..CLIENTS).map(|n| {
            let (start, request) = (Arc::clone(&start), using(&approval, &format!("run-{n}")));
            let mut client = services[n % 2].executor(&format!("e{}", n % 5));
            tokio::spawn(async move {
                start.wait().await;
                client.consume_approval(request).await
            })
        });
        let mut used = Vec::new();
        for client in clients.collect::<Vec<_>>() {
            match client.await.unwrap() {
                Ok(response) => used.push(response.into_inner().approval.unwrap().run_id),
                Err(status) => {
                    let refused = refused::<()>(Err(status));
                    assert_eq!(refused, refusal(Code::FailedPrecondition, "APPROVAL_INVALID"));
                }
            }
        }
        assert_eq!(used.len(), 1, "round {round}: {used:?}");
        assert_eq!(services[1].get(&approval.id).await.unwrap().run_id, used[0]);
    }
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn signatures_that_come_at_once_are_all_counted(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let services = [bed.serve().await, bed.serve().await];
    let asked = services[0].ask(dangerous()).await.unwrap();
    let start = Arc::new(Barrier::new(CLIENTS));
    let clients = (0..CLIENTS).map(|n| {
        let start = Arc::clone(&start);
        // Each of ten people twice.
        let mut client = services[n % 2].approver(&format!("person-{}", n / 2));
        let request = pb::SignApprovalRequest { id: asked.id.clone(), approve: true, comment: String::new() };
        tokio::spawn(async move {
            start.wait().await;
            client.sign_approval(request).await
        })
    });
    let mut states = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        if let Ok(response) = client.await.unwrap() {
            states.push(response.into_inner().approval.unwrap().state());
        }
    }
    states.sort();
    assert_eq!(states, [ApprovalState::Pending, ApprovalState::Approved]);
    let approval = services[1].get(&asked.id).await.unwrap();
    assert_eq!((approval.state(), approval.signatures.len()), (ApprovalState::Approved, 2));
    assert_ne!(approval.signatures[0].signer, approval.signatures[1].signer);
}

#[rstest]
#[case(Engine::Sqlite)]
#[case(Engine::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_sees_what_the_other_registry_changes(#[case] engine: Engine) {
    let Some(bed) = Bed::new(engine).await else { return };
    let (here, there) = (bed.serve().await, bed.serve().await);
    let before = here.ask(mutating()).await.unwrap();
    let mut all =
        here.approver("ann").watch_approvals(pb::WatchApprovalsRequest::default()).await.unwrap().into_inner();
    let state = ApprovalState::Approved.into();
    let approved = pb::WatchApprovalsRequest { state, ..Default::default() };
    let mut approved = there.bot().watch_approvals(approved).await.unwrap().into_inner();
    assert_eq!(next(&mut all).await, before);
    let asked = there.ask(dangerous()).await.unwrap();
    assert_eq!(next(&mut all).await, asked);
    let once = there.sign("ann", &asked.id, true).await.unwrap();
    assert_eq!(next(&mut all).await, once);
    let twice = here.sign("bob", &asked.id, true).await.unwrap();
    assert_eq!(next(&mut all).await, twice);
    assert_eq!(next(&mut approved).await, twice, "the first that is approved");
    let used = there.consume("e1", using(&asked, "r")).await.unwrap();
    assert_eq!(next(&mut all).await, used);
}

/// As `sslmode` and `sslrootcert` in the URL say.
#[tokio::test(flavor = "multi_thread")]
async fn the_connection_to_postgresql_is_encrypted() {
    let Some(mut bed) = Bed::new(Engine::Postgres).await else { return };
    let Some(database) = Database::new().await else { return };
    let (url, ca) = (database.encrypted_url(), database.ca());
    let verified = format!("{url}?sslmode=verify-full&sslrootcert={}", ca.display());
    for url in [&url, &format!("{url}?sslmode=require"), &verified] {
        bed.url.clone_from(url);
        let service = bed.serve().await;
        service.approved().await;
        let mut connection = sqlx::AnyConnection::connect(url).await.unwrap();
        let sql = "SELECT count(*), count(*) FILTER (WHERE ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                   WHERE datname = current_database()";
        let row = sqlx::query(sql).fetch_one(&mut connection).await.unwrap();
        let (all, encrypted): (i64, i64) = (row.get(0), row.get(1));
        assert!(all >= 2 && all == encrypted, "{encrypted} of {all} with {url}");
    }
    // A name that the certificate is not for, and a CA that did not sign it.
    let other = bed.path("other.pem");
    std::fs::write(&other, Ca::new().pem()).unwrap();
    for bad in [
        verified.replace("localhost", "127.0.0.1"),
        format!("{url}?sslmode=verify-full&sslrootcert={}", other.display()),
    ] {
        let service = bed.serve_with(&bad, Signers::default()).await;
        assert_eq!(refused(service.ask(mutating()).await), refusal(Code::Unavailable, "STORE_UNAVAILABLE"), "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_told_at_once() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let url = format!("postgres:///none?host={}&user=none", bed.path("nowhere").display());
    let service = bed.serve_with(&url, Signers::default()).await;
    assert_eq!(refused(service.ask(mutating()).await), refusal(Code::Unavailable, "STORE_UNAVAILABLE"));
}
