//! Shipping to a registry of the test's own, over real sockets, which answers as the real one does on its bad days: what
//! comes in is there once, in order, and what can never come in holds up nothing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use executor_svc::history::Shipper;
use executor_svc::registry::Registry;
use executor_svc::run::call::Call;
use executor_svc::run::journal::{Bounds, Journal, RunRecord};
use executor_svc::run::outcome::Remains;
use executor_svc::slot::Exit;
use skillyard::Digest;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::history_service_server::{HistoryService, HistoryServiceServer};
use skillyard::service::error::{Reason, Refusal};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

const PATIENCE: Duration = Duration::from_secs(30);

/// What a registry says to a batch; `None` to store it.
type Mood = Box<dyn FnMut(&pb::AppendRunsRequest) -> Option<Status> + Send>;

/// A registry that keeps what it is given.
#[derive(Clone)]
struct Peer {
    stored: Arc<Mutex<Vec<String>>>,
    /// How many records each batch had that came.
    batches: Arc<Mutex<Vec<usize>>>,
    mood: Arc<Mutex<Mood>>,
}

#[tonic::async_trait]
impl HistoryService for Peer {
    async fn append_runs(
        &self,
        request: Request<pb::AppendRunsRequest>,
    ) -> Result<Response<pb::AppendRunsResponse>, Status> {
        let batch = request.into_inner();
        assert_eq!((batch.executor.as_str(), batch.journal_id.len()), ("e1", 32));
        self.batches.lock().unwrap().push(batch.records.len());
        if let Some(status) = (self.mood.lock().unwrap())(&batch) {
            return Err(status);
        }
        let mut stored = self.stored.lock().unwrap();
        let mut rejected = Vec::new();
        for record in batch.records {
            let run_id = record.run.unwrap().run_id;
            if run_id.starts_with("never") {
                rejected.push(pb::RejectedRecord { run_id, reason: "it is bad".into() });
            } else if !stored.contains(&run_id) {
                stored.push(run_id);
            }
        }
        let outcome = if rejected.is_empty() { pb::AppendOutcome::Stored } else { pb::AppendOutcome::Permanent };
        Ok(Response::new(pb::AppendRunsResponse { outcome: outcome.into(), rejected }))
    }

    async fn list_run_records(
        &self,
        _: Request<pb::ListRunRecordsRequest>,
    ) -> Result<Response<pb::ListRunRecordsResponse>, Status> {
        Err(Status::unimplemented("nobody reads here"))
    }

    async fn get_run_record(
        &self,
        _: Request<pb::GetRunRecordRequest>,
    ) -> Result<Response<pb::GetRunRecordResponse>, Status> {
        Err(Status::unimplemented("nobody reads here"))
    }
}

/// A journal with records, a peer, and a shipper between them.
struct Bed {
    journal: Journal,
    peer: Peer,
    shipper: Shipper,
    stop: CancellationToken,
    _directory: tempfile::TempDir,
}

impl Bed {
    async fn new(mood: impl FnMut(&pb::AppendRunsRequest) -> Option<Status> + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path(), Bounds::default()).unwrap();
        let mood: Mood = Box::new(mood);
        let peer = Peer { stored: Arc::default(), batches: Arc::default(), mood: Arc::new(Mutex::new(mood)) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let service = HistoryServiceServer::new(peer.clone());
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
        let shipper = Shipper::new(journal.clone(), Registry::new(uri), "e1");
        Self { journal, peer, shipper, stop: CancellationToken::new(), _directory: directory }
    }

    /// Runs that end in this order.
    async fn end(&self, ids: impl IntoIterator<Item = String>, stderr: &str) {
        for id in ids {
            let (finished, _) = Remains::default().exited(Exit::Code(1), |_| None);
            let (call, finished, finished_at) = (call(&id), Arc::new(finished), SystemTime::now());
            let was_noted = self.journal.note_accepted(&call);
            let record = RunRecord { call, started_at: None, finished_at, finished, stderr: stderr.to_owned() };
            self.journal.note_ended(record, was_noted);
        }
        self.journal.flush().await.unwrap();
    }

    fn start(&self) {
        tokio::spawn(self.shipper.clone().run(self.stop.clone()));
    }

    /// Waits until the journal has nothing more, and gives what was stored, in order.
    async fn shipped(&self) -> Vec<String> {
        let begun = Instant::now();
        while !self.journal.unshipped(1 << 20, 10).await.unwrap().0.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "{:?}", self.peer.batches.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.peer.stored.lock().unwrap().clone()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn call(id: &str) -> Arc<Call> {
    Arc::new(Call {
        id: id.parse().unwrap(),
        named_by_caller: true,
        request: Digest::of(id.as_bytes()),
        skill: "greet".parse().unwrap(),
        digest: Digest::of(b"package"),
        agent: String::new(),
        caller: String::new(),
        args_sha256: Digest::of(b"{}"),
        approval_id: None,
        needs_approval: false,
        detached: false,
        labels: HashMap::new(),
        executor: "e1".into(),
        accepted_at: SystemTime::now(),
    })
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("run-{n:04}")).collect()
}

fn has(batch: &pb::AppendRunsRequest, id: &str) -> bool {
    batch.records.iter().any(|record| record.run.as_ref().unwrap().run_id == id)
}

#[tokio::test]
async fn all_in_order_in_batches_of_1_mib() {
    let bed = Bed::new(|batch| {
        let bytes = prost::Message::encoded_len(batch);
        assert!(bytes <= 1 << 20, "a batch of {bytes} bytes");
        None
    })
    .await;
    bed.end(ids(150), &"x".repeat(30 << 10)).await;
    bed.start();
    assert_eq!(bed.shipped().await, ids(150));
    assert!((5..20).contains(&bed.peer.batches.lock().unwrap().len()));
    // What comes later is shipped without being asked for.
    bed.end(["later".to_owned()], "").await;
    assert_eq!(bed.shipped().await.last().unwrap(), "later");
}

#[tokio::test]
async fn one_that_is_refused_is_passed_over_and_holds_up_nothing() {
    let refused = || Refusal::new(Reason::InvalidRequest, "no").into();
    let bed = Bed::new(move |batch| match () {
        () if has(batch, "run-0013") => Some(refused()),
        () if has(batch, "run-0040") => Some(Status::out_of_range("too large")),
        () => None,
    })
    .await;
    let mut all = ids(64);
    all.insert(30, "never-1".to_owned());
    all.push("never-2".to_owned());
    bed.end(all.clone(), "").await;
    bed.start();
    all.retain(|id| !["run-0013", "run-0040", "never-1", "never-2"].contains(&id.as_str()));
    assert_eq!(bed.shipped().await, all);
}

#[tokio::test]
async fn a_small_registry_gets_small_batches() {
    let bed =
        Bed::new(|batch| (batch.records.len() > 5).then(|| Status::resource_exhausted("message too large"))).await;
    bed.end(ids(40), "").await;
    bed.start();
    assert_eq!(bed.shipped().await, ids(40));
}

#[tokio::test]
async fn outages_keep_the_cursor() {
    let mut codes = [
        Code::Unavailable,
        Code::DeadlineExceeded,
        Code::Aborted,
        Code::Internal,
        Code::Unknown,
        Code::Unavailable,
        Code::Cancelled,
    ]
    .into_iter();
    let bed = Bed::new(move |_| codes.next().map(|code| Status::new(code, "not now"))).await;
    bed.end(ids(10), "").await;
    bed.start();
    assert_eq!(bed.shipped().await, ids(10));
    assert_eq!(*bed.peer.batches.lock().unwrap(), [10; 8], "the same batch again, whole");
}

#[tokio::test]
async fn without_an_identity_or_a_history_records_stay() {
    for status in
        [Status::unauthenticated("who?"), Status::permission_denied("no"), Status::unimplemented("what history?")]
    {
        let answer = status.clone();
        let bed = Bed::new(move |_| Some(answer.clone())).await;
        bed.end(ids(3), "").await;
        bed.start();
        let begun = Instant::now();
        while bed.peer.batches.lock().unwrap().len() < 3 {
            assert!(begun.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(bed.journal.unshipped(1 << 20, 10).await.unwrap().0.len(), 3, "{status:?}");
    }
}

#[tokio::test]
async fn at_the_end_what_is_left_is_shipped_and_a_failure_is_not_waited_for() {
    let bed = Bed::new(|_| None).await;
    bed.end(ids(2500), "").await;
    bed.shipper.last().await;
    assert_eq!(bed.shipped().await, ids(2500));
    let bed = Bed::new(|_| Some(Status::unavailable("away"))).await;
    bed.end(ids(3), "").await;
    bed.shipper.last().await;
    assert_eq!(*bed.peer.batches.lock().unwrap(), [3]);
    assert_eq!(bed.journal.unshipped(1 << 20, 10).await.unwrap().0.len(), 3);
}
