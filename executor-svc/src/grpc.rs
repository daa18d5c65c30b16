//! ExecutorService: messages to requests, events to messages. Wire types stop here.

mod answer;
mod list;
mod request;

use std::sync::Arc;
use std::time::Duration;

use skillyard::pb::executor::v1 as pb;
use skillyard::pb::executor::v1::executor_service_server::ExecutorService;
use skillyard::service::caller::{Caller, Role};
use skillyard::service::error::Refusal;
use skillyard::service::trace::TraceContext;
use skillyard::wire::duration_to_wire;
use tonic::{Request, Response, Status};

pub use self::answer::record_to_wire;
use self::answer::{RunStream, run_to_wire};
use self::request::{deadline, invalid, run_request};
use crate::run::Runner;
use crate::run::events::Reader;
use crate::run::table::Run;
use crate::slot::Limits;

/// The decode limit lies above the limit of the arguments, so that the answer to larger ones is ours.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// How long an answer waits for the start of its run, so that both go to the caller in one step.
const STARTS_WITHIN: Duration = Duration::from_millis(2);
/// The reason of a CancelRun.
const MAX_REASON_BYTES: usize = 1 << 10;

/// The service.
#[derive(Debug)]
pub struct Executor {
    runner: Runner,
    name: Arc<str>,
    endpoint: Arc<str>,
}

impl Executor {
    /// Over a runner; `endpoint` is where clients reach it.
    #[must_use]
    pub fn new(runner: Runner, name: &str, endpoint: &str) -> Self {
        Self { runner, name: name.into(), endpoint: endpoint.into() }
    }

    async fn start(&self, request: Request<pb::RunSkillRequest>) -> Result<(Arc<Run>, Reader), Refusal> {
        let caller = Caller::of(&request);
        caller.allow(&[Role::Orchestrator])?;
        caller.may_name(&request.get_ref().agent)?;
        let (deadline, trace) = (deadline(request.metadata())?, TraceContext::of_call(&request));
        self.runner.run(run_request(caller, request.into_inner(), deadline, trace)?).await
    }

    fn stream<M>(&self, run: &Run, reader: Reader, wrap: fn(pb::RunEvent) -> M) -> RunStream<M> {
        RunStream::new(run, reader, &self.endpoint, self.runner.tally(), wrap)
    }
}

#[tonic::async_trait]
impl ExecutorService for Executor {
    type RunSkillStream = RunStream<pb::RunSkillResponse>;
    type AttachRunStream = RunStream<pb::AttachRunResponse>;

    async fn run_skill(&self, request: Request<pb::RunSkillRequest>) -> Result<Response<Self::RunSkillStream>, Status> {
        let (run, mut reader) =
            self.start(request).await.inspect_err(|refusal| self.runner.tally().refused(refusal.reason()))?;
        reader.settle(STARTS_WITHIN).await;
        let wrap = |event| pb::RunSkillResponse { event: Some(event) };
        Ok(Response::new(self.stream(&run, reader, wrap)))
    }

    async fn attach_run(
        &self,
        request: Request<pb::AttachRunRequest>,
    ) -> Result<Response<Self::AttachRunStream>, Status> {
        let caller = reader_of_runs(&request)?;
        let pb::AttachRunRequest { run_id, after_seq } = request.into_inner();
        let (run, reader) = self.runner.attach(&caller, &run_id, after_seq).await?;
        let wrap = |event| pb::AttachRunResponse { event: Some(event) };
        Ok(Response::new(self.stream(&run, reader, wrap)))
    }

    async fn get_run(&self, request: Request<pb::GetRunRequest>) -> Result<Response<pb::GetRunResponse>, Status> {
        let caller = reader_of_runs(&request)?;
        let run = self.runner.get(&caller, &request.into_inner().run_id).await?;
        Ok(Response::new(pb::GetRunResponse { run: Some(run_to_wire(&run)) }))
    }

    async fn list_runs(&self, request: Request<pb::ListRunsRequest>) -> Result<Response<pb::ListRunsResponse>, Status> {
        let caller = reader_of_runs(&request)?;
        Ok(Response::new(list::runs(&self.runner, &caller, request.into_inner())?))
    }

    async fn cancel_run(
        &self,
        request: Request<pb::CancelRunRequest>,
    ) -> Result<Response<pb::CancelRunResponse>, Status> {
        let caller = reader_of_runs(&request)?;
        let request = request.into_inner();
        if request.reason.len() > MAX_REASON_BYTES {
            return Err(invalid(
                "reason",
                format!("it has {} bytes, at most {MAX_REASON_BYTES} are taken", request.reason.len()),
            )
            .into());
        }
        let run = self.runner.cancel(&caller, &request.run_id, request.reason).await?;
        Ok(Response::new(pb::CancelRunResponse { run: Some(run_to_wire(&run)) }))
    }

    async fn get_status(
        &self,
        _request: Request<pb::GetStatusRequest>,
    ) -> Result<Response<pb::GetStatusResponse>, Status> {
        let admission = self.runner.admission();
        let mirror = self.runner.mirror().status();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Response::new(pb::GetStatusResponse {
            executor: self.name.to_string(),
            slots: count(admission.slots()),
            running: count(admission.running()),
            queued: count(admission.queued()),
            queue_limit: count(admission.queue_limit()),
            draining: admission.is_closed(),
            catalog_version: mirror.catalog_version,
            registry_connected: mirror.connected,
            isolation: self.runner.isolation(),
            missing: mirror.missing.into_iter().collect(),
            catalog_age: mirror.age.map(duration_to_wire),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            limits: Some(limits_to_wire(self.runner.each(), self.runner.max_timeout())),
        }))
    }
}

fn limits_to_wire(each: Limits, max_timeout: Duration) -> pb::RunLimits {
    pb::RunLimits {
        memory_bytes: each.memory,
        processes: each.processes,
        open_files: each.open_files.map(|(files, _)| files),
        file_size_bytes: each.file_size,
        max_timeout: Some(duration_to_wire(max_timeout)),
    }
}

/// Whoever may look at runs: at which, the runner says.
fn reader_of_runs<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = Caller::of(request);
    caller.allow(&[Role::Orchestrator, Role::Operator])?;
    Ok(caller)
}
