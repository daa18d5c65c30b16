//! Records as executors hand them in, and short ways to hand in and to read.

use std::time::{Duration, SystemTime};

use skillyard::Digest;
use skillyard::pb::executor::v1::{Finished, Outcome, Run, RunState};
use skillyard::pb::registry::v1 as pb;
use skillyard::service::caller::Role;
use tonic::Status;

use crate::bed::{HistoryClient, Service};

/// The moment at which the first run of these tests was accepted, less than the longest retention ago.
pub(crate) fn begin() -> SystemTime {
    static BEGIN: std::sync::OnceLock<SystemTime> = std::sync::OnceLock::new();
    *BEGIN.get_or_init(|| SystemTime::now() - Duration::from_secs(3600))
}

/// A run that was accepted so many milliseconds after the first.
pub(crate) fn record(run_id: &str, after_ms: u64) -> pb::RunRecord {
    let at = |more| Some((begin() + Duration::from_millis(after_ms + more)).into());
    pb::RunRecord {
        run: Some(Run {
            run_id: run_id.into(),
            skill: "disk_cleaner".into(),
            digest: Digest::of(b"package").to_string(),
            agent: "ops".into(),
            caller: "bot".into(),
            approval_id: String::new(),
            args_sha256: Digest::of(b"{}").to_string(),
            state: RunState::Finished.into(),
            accepted_at: at(0),
            started_at: at(1),
            finished_at: at(2),
            finished: Some(Finished {
                run_id: run_id.into(),
                outcome: Outcome::Succeeded.into(),
                exit_code: Some(0),
                ..Default::default()
            }),
            executor: "e1".into(),
            labels: Default::default(),
        }),
        stderr: format!("{run_id} says this\n"),
        appended_by: String::new(),
    }
}

/// The same, with its run changed.
pub(crate) fn changed(mut record: pb::RunRecord, change: impl FnOnce(&mut Run)) -> pb::RunRecord {
    change(record.run.as_mut().unwrap());
    record
}

/// As the registry gives it back.
pub(crate) fn appended_by(who: &str, record: &pb::RunRecord) -> pb::RunRecord {
    pb::RunRecord { appended_by: who.into(), ..record.clone() }
}

pub(crate) fn batch(journal_id: &str, cursor: u64, records: &[pb::RunRecord]) -> pb::AppendRunsRequest {
    pb::AppendRunsRequest { executor: "e1".into(), journal_id: journal_id.into(), cursor, records: records.to_vec() }
}

impl Service {
    pub(crate) async fn append(
        &self,
        who: &str,
        batch: pb::AppendRunsRequest,
    ) -> Result<Vec<(String, String)>, Status> {
        let response = self.history(who, &[Role::Executor]).append_runs(batch).await?.into_inner();
        let rejected: Vec<_> =
            response.rejected.iter().map(|rejected| (rejected.run_id.clone(), rejected.reason.clone())).collect();
        let expected = if rejected.is_empty() { pb::AppendOutcome::Stored } else { pb::AppendOutcome::Permanent };
        assert_eq!(response.outcome(), expected);
        Ok(rejected)
    }

    pub(crate) fn operator(&self) -> HistoryClient {
        self.history("op", &[Role::Operator])
    }

    /// All pages, each of at most `page_size`, as one list of ids.
    pub(crate) async fn ids(&self, request: pb::ListRunRecordsRequest) -> Vec<String> {
        ids(&mut self.operator(), request).await
    }

    pub(crate) async fn record(&self, run_id: &str) -> Result<Vec<pb::RunRecord>, Status> {
        let request = pb::GetRunRecordRequest { run_id: run_id.into() };
        Ok(self.operator().get_run_record(request).await?.into_inner().records)
    }
}

pub(crate) async fn ids(client: &mut HistoryClient, mut request: pb::ListRunRecordsRequest) -> Vec<String> {
    let mut ids = Vec::new();
    loop {
        let page = client.list_run_records(request.clone()).await.unwrap().into_inner();
        assert!(page.next_page_token.is_empty() || !page.records.is_empty());
        ids.extend(page.records.into_iter().map(|record| record.run.unwrap().run_id));
        if page.next_page_token.is_empty() {
            return ids;
        }
        request.page_token = page.next_page_token;
    }
}
