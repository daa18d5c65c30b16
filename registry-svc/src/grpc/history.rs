//! HistoryService: what ran, across executors. Who may hand in and read what is asked here; where it is kept, and for how
//! long, is the store's.

mod request;

use prost::Message as _;
use skillyard::pb::registry::v1 as pb;
use skillyard::service::caller::{Caller, Role};
use skillyard::service::error::{Reason, Refusal};
use tonic::{Request, Response, Status};

use crate::store::history::{AppendError, Filter, Position, Stored};
use crate::store::{Store, StoreError};
use skillyard::service::page::{MAX_BYTES, Page};

/// Those who may read records: of their own runs, or all of them.
const READERS: [Role; 2] = [Role::Orchestrator, Role::Operator];
/// Most records of one run.
const MAX_SAME: usize = 100;

/// Answers from the store.
#[derive(Debug)]
pub(super) struct Service {
    store: Store,
}

impl Service {
    pub(super) fn new(store: Store) -> Self {
        Self { store }
    }
}

#[tonic::async_trait]
impl pb::history_service_server::HistoryService for Service {
    async fn append_runs(
        &self,
        request: Request<pb::AppendRunsRequest>,
    ) -> Result<Response<pb::AppendRunsResponse>, Status> {
        let caller = Caller::of(&request);
        let identity = caller.require(&[Role::Executor])?;
        let (batch, rejected) = request::batch(identity, request.into_inner())?;
        let appended = self.store.append(&batch).await.map_err(|error| append_failed(error, &batch.journal_id))?;
        self.store.tally().rejected(rejected.len());
        let (executor, journal, end) = (&batch.executor, &batch.journal_id, batch.end);
        for pb::RejectedRecord { run_id, reason } in &rejected {
            tracing::warn!(caller = identity, executor, run_id, reason, "a record of a run can never be stored");
        }
        tracing::debug!(
            caller = identity,
            executor,
            journal,
            end,
            new = appended.new,
            known = appended.known,
            rejected = rejected.len(),
            "records of runs were handed in"
        );
        let outcome = if rejected.is_empty() { pb::AppendOutcome::Stored } else { pb::AppendOutcome::Permanent };
        Ok(Response::new(pb::AppendRunsResponse { outcome: outcome.into(), rejected }))
    }

    async fn list_run_records(
        &self,
        request: Request<pb::ListRunRecordsRequest>,
    ) -> Result<Response<pb::ListRunRecordsResponse>, Status> {
        let caller = Caller::of(&request);
        caller.require(&READERS)?;
        let message = request.into_inner();
        let (page_size, page_token) = (message.page_size, message.page_token.clone());
        let (conditions, filter) = request::filter(message)?;
        let filter = Filter { caller: only_of(&caller), ..filter };
        let conditions: Vec<_> = conditions.iter().map(String::as_str).collect();
        let page = Page::of(&conditions, page_size, &page_token)?;
        let after = page.after().and_then(Position::from_bytes);
        let found = self.store.records(&filter, after.as_ref(), page.lookup(), MAX_BYTES).await;
        let found = found.map_err(store_failed)?.into_iter().map(record).collect::<Result<Vec<_>, _>>()?;
        let (records, next_page_token) =
            page.cut(found.into_iter(), |(position, _)| position.to_bytes(), |(_, record)| record.clone());
        Ok(Response::new(pb::ListRunRecordsResponse { records, next_page_token }))
    }

    async fn get_run_record(
        &self,
        request: Request<pb::GetRunRecordRequest>,
    ) -> Result<Response<pb::GetRunRecordResponse>, Status> {
        let caller = Caller::of(&request);
        caller.require(&READERS)?;
        let run_id = request.into_inner().run_id;
        let filter = Filter { run_id: Some(run_id.clone()), caller: only_of(&caller), ..Filter::default() };
        let found = self.store.records(&filter, None, MAX_SAME, MAX_BYTES).await.map_err(store_failed)?;
        if found.is_empty() {
            return Err(unknown_run(&run_id).into());
        }
        let records = found.into_iter().map(|stored| Ok(record(stored)?.1)).collect::<Result<_, Refusal>>()?;
        Ok(Response::new(pb::GetRunRecordResponse { records }))
    }
}

/// Whose records a caller sees; `None` for everybody's.
fn only_of(caller: &Caller) -> Option<String> {
    caller.allow(&[Role::Operator]).is_err().then(|| caller.identity().to_owned())
}

fn record(stored: Stored) -> Result<(Position, pb::RunRecord), Refusal> {
    let record = pb::RunRecord::decode(stored.bytes.as_slice()).map_err(|error| internal(&error))?;
    Ok((stored.position, pb::RunRecord { appended_by: stored.identity, ..record }))
}

/// The same for whoever may not see it.
fn unknown_run(run_id: &str) -> Refusal {
    let message = format!(
        "no record of run {run_id:?}: it has not ended, its executor has not handed it in yet, or it is forgotten; \
         ListRunRecords gives those that you may see"
    );
    Refusal::new(Reason::UnknownRun, message).with("run_id", run_id)
}

fn append_failed(error: AppendError, journal_id: &str) -> Refusal {
    match error {
        AppendError::OtherIdentity => {
            let message = format!(
                "journal {journal_id:?} belongs to another identity: hand it in with that one's token or certificate, or \
                 give the executor a new state directory"
            );
            Refusal::new(Reason::CallerNotAllowed, message).with("journal_id", journal_id)
        }
        AppendError::Store(error) => store_failed(error),
    }
}

fn store_failed(error: StoreError) -> Refusal {
    match error {
        StoreError::Value { .. } => internal(&error),
        error => {
            tracing::error!(%error, "a call on the history failed");
            let message =
                "the history cannot be read or written, as the registry's database does not answer: try again";
            Refusal::new(Reason::StoreUnavailable, message).retry_after(std::time::Duration::from_secs(1))
        }
    }
}

fn internal(error: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(%error, "a fault of ours");
    Refusal::new(Reason::Internal, "a fault of the registry: its log has the cause")
}
