//! ExecutorService: messages to requests, events to messages. Wire types stop here.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use skillyard::pb::executor::v1 as pb;
use skillyard::pb::executor::v1::executor_service_server::ExecutorService;
use skillyard::service::error::{Reason, Refusal};
use skillyard::wire::{duration_to_wire, struct_from_wire};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::run::arguments::RawArguments;
use crate::run::events::{Event, Reader, Stamped};
use crate::run::outcome::{Finished, Outcome, signal_name};
use crate::run::table::Run;
use crate::run::{RunRequest, Runner};
use crate::slot::Exit;

/// The decode limit lies above the limit of the arguments, so that the answer to larger ones is ours.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// A silent stream gets a heartbeat after this time, before proxies take it for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Labels: how many, and how many bytes together.
const MAX_LABELS: usize = 64;
const MAX_LABEL_BYTES: usize = 4 << 10;
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
}

#[tonic::async_trait]
impl ExecutorService for Executor {
    type RunSkillStream = RunStream;

    async fn run_skill(&self, request: Request<pb::RunSkillRequest>) -> Result<Response<RunStream>, Status> {
        let deadline = deadline(request.metadata())?;
        let request = run_request(request.into_inner(), deadline)?;
        let (run, reader) = self.runner.run(request).await?;
        let digest = run.digest.to_string();
        Ok(Response::new(RunStream {
            reader,
            accepted: pb::Accepted {
                run_id: run.id.to_string(),
                executor: self.name.to_string(),
                endpoint: self.endpoint.to_string(),
                digest,
                queue_position: 0,
            },
            heartbeat: None,
        }))
    }

    async fn cancel_run(
        &self,
        request: Request<pb::CancelRunRequest>,
    ) -> Result<Response<pb::CancelRunResponse>, Status> {
        let request = request.into_inner();
        if request.reason.len() > MAX_REASON_BYTES {
            return Err(invalid(
                "reason",
                format!("it has {} bytes, at most {MAX_REASON_BYTES} are taken", request.reason.len()),
            )
            .into());
        }
        let run = self.runner.cancel(&request.run_id, request.reason).await?;
        Ok(Response::new(pb::CancelRunResponse { run: Some(run_to_wire(&run, &self.name)) }))
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
        }))
    }
}

/// What a caller reads: the events of its run, and a heartbeat when there are none.
#[derive(Debug)]
pub struct RunStream {
    reader: Reader,
    accepted: pb::Accepted,
    heartbeat: Option<Pin<Box<Sleep>>>,
}

impl Stream for RunStream {
    type Item = Result<pb::RunSkillResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match Pin::new(&mut self.reader).poll_next(context) {
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(stamped)) => {
                if let Some(heartbeat) = &mut self.heartbeat {
                    heartbeat.as_mut().reset(tokio::time::Instant::now() + HEARTBEAT);
                }
                Poll::Ready(Some(event_to_wire(stamped, &self.accepted)))
            }
            Poll::Pending => {
                let heartbeat = self.heartbeat.get_or_insert_with(|| Box::pin(sleep(HEARTBEAT)));
                std::task::ready!(heartbeat.as_mut().poll(context));
                heartbeat.as_mut().reset(tokio::time::Instant::now() + HEARTBEAT);
                // Polled once more, so that the task is woken for the next one.
                let _ = heartbeat.as_mut().poll(context);
                Poll::Ready(Some(Ok(event(0, SystemTime::now(), pb::run_event::Event::Heartbeat(pb::Heartbeat {})))))
            }
        }
    }
}

fn run_request(message: pb::RunSkillRequest, deadline: Option<Instant>) -> Result<RunRequest, Refusal> {
    let label_bytes: usize = message.labels.iter().map(|(k, v)| k.len() + v.len()).sum();
    if message.labels.len() > MAX_LABELS || label_bytes > MAX_LABEL_BYTES {
        return Err(invalid("labels", format!("at most {MAX_LABELS} with {MAX_LABEL_BYTES} bytes together are taken")));
    }
    let run_id = match message.run_id.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| invalid("run_id", format!("{error}")))?),
    };
    let expected_digest = match message.expected_digest.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| invalid("expected_digest", format!("{error}")))?),
    };
    let timeout = match message.timeout {
        None => None,
        Some(timeout) => match Duration::try_from(timeout) {
            Ok(timeout) if !timeout.is_zero() => Some(timeout),
            _ => {
                return Err(invalid("timeout", "it is not positive: leave it out for the skill's own limit".to_owned()));
            }
        },
    };
    let arguments = match message.arguments {
        None => RawArguments::None,
        Some(pb::run_skill_request::Arguments::ArgsJson(text)) => RawArguments::Json(text),
        Some(pb::run_skill_request::Arguments::Args(args)) => {
            if !is_finite(&args) {
                return Err(Refusal::new(
                    Reason::InvalidArguments,
                    "the arguments hold a number that JSON cannot say (NaN or an infinity): send null or a string",
                ));
            }
            RawArguments::Object(struct_from_wire(args))
        }
    };
    Ok(RunRequest {
        skill: message.skill,
        arguments,
        agent: message.agent,
        run_id,
        timeout,
        deadline,
        expected_digest,
        labels: message.labels,
    })
}

fn is_finite(args: &prost_types::Struct) -> bool {
    args.fields.values().all(value_is_finite)
}

fn value_is_finite(value: &prost_types::Value) -> bool {
    use prost_types::value::Kind;
    match &value.kind {
        Some(Kind::NumberValue(n)) => n.is_finite(),
        Some(Kind::ListValue(list)) => list.values.iter().all(value_is_finite),
        Some(Kind::StructValue(map)) => is_finite(map),
        _ => true,
    }
}

fn invalid(field: &str, what: String) -> Refusal {
    Refusal::new(Reason::InvalidRequest, format!("{field}: {what}")).violation(field, what)
}

/// `grpc-timeout` bounds only the head of the answer in the transport; here it bounds the run.
fn deadline(metadata: &MetadataMap) -> Result<Option<Instant>, Refusal> {
    let Some(value) = metadata.get("grpc-timeout") else { return Ok(None) };
    let timeout = value
        .to_str()
        .ok()
        .and_then(parse_timeout)
        .ok_or_else(|| invalid("grpc-timeout", "it is not 1 to 8 digits and one of H, M, S, m, u, n".to_owned()))?;
    Ok(Instant::now().checked_add(timeout))
}

/// As the gRPC over HTTP/2 protocol has it: at most 8 digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

fn event(seq: u64, time: SystemTime, event: pb::run_event::Event) -> pb::RunSkillResponse {
    pb::RunSkillResponse { event: Some(pb::RunEvent { seq, time: Some(time.into()), event: Some(event) }) }
}

fn event_to_wire(stamped: Stamped, accepted: &pb::Accepted) -> Result<pb::RunSkillResponse, Status> {
    use pb::run_event::Event as Pb;
    let message = match stamped.event {
        Event::Accepted { queue_position } => Pb::Accepted(pb::Accepted { queue_position, ..accepted.clone() }),
        Event::Started { pid } => Pb::Started(pb::Started { pid }),
        Event::Log { piece, dropped_lines } => {
            Pb::Log(pb::Log { text: piece.text, lossy: piece.lossy, partial: piece.partial, dropped_lines })
        }
        Event::Progress(progress) => {
            Pb::Progress(pb::Progress { progress: progress.progress, total: progress.total, message: progress.message })
        }
        Event::Result(chunk) => Pb::Result(pb::ResultChunk { json: chunk.as_str().to_owned() }),
        Event::Finished(finished) => Pb::Finished(finished_to_wire(&finished, &accepted.run_id)),
        Event::Refused(refusal) => return Err(refusal.into()),
    };
    Ok(event(stamped.seq, stamped.time, message))
}

fn finished_to_wire(finished: &Finished, run_id: &str) -> pb::Finished {
    let outcome = match finished.outcome {
        Outcome::Succeeded => pb::Outcome::Succeeded,
        Outcome::Failed => pb::Outcome::Failed,
        Outcome::TimedOut => pb::Outcome::TimedOut,
        Outcome::Cancelled => pb::Outcome::Cancelled,
        Outcome::Signaled => pb::Outcome::Signaled,
        Outcome::InvalidResult => pb::Outcome::InvalidResult,
        Outcome::ResultTooLarge => pb::Outcome::ResultTooLarge,
        Outcome::SpawnFailed => pb::Outcome::SpawnFailed,
        Outcome::Lost => pb::Outcome::Lost,
    };
    let (exit_code, signal) = match finished.exit {
        Some(Exit::Code(code)) => (Some(code), String::new()),
        Some(Exit::Signal(signal)) => (None, signal_name(signal)),
        None => (None, String::new()),
    };
    let figures = &finished.figures;
    pb::Finished {
        run_id: run_id.to_owned(),
        outcome: outcome.into(),
        message: finished.message.clone(),
        exit_code,
        signal,
        stderr_tail: finished.stderr_tail.clone(),
        stdout_head: finished.stdout_head.clone(),
        result_bytes: finished.result_bytes,
        usage: Some(pb::Usage {
            queued: Some(duration_to_wire(figures.queued)),
            wall: Some(duration_to_wire(figures.wall)),
            cpu_user: Some(duration_to_wire(figures.usage.cpu_user)),
            cpu_system: Some(duration_to_wire(figures.usage.cpu_system)),
            max_rss_bytes: figures.usage.max_rss_bytes,
            stderr_bytes: figures.stderr_bytes,
            stdout_bytes: figures.stdout_bytes,
        }),
        reason: finished.reason.to_owned(),
    }
}

fn run_to_wire(run: &Run, executor: &str) -> pb::Run {
    let end = run.end();
    let started_at = run.started_at();
    let state = match (&end, started_at) {
        (Some(_), _) => pb::RunState::Finished,
        (None, Some(_)) => pb::RunState::Running,
        (None, None) => pb::RunState::Queued,
    };
    pb::Run {
        run_id: run.id.to_string(),
        skill: run.skill.to_string(),
        digest: run.digest.to_string(),
        agent: run.agent.clone(),
        args_sha256: run.args_sha256.to_string(),
        state: state.into(),
        accepted_at: Some(run.accepted_at.into()),
        started_at: started_at.map(Into::into),
        finished_at: end.as_ref().map(|(at, _)| (*at).into()),
        finished: end.map(|(_, finished)| finished_to_wire(&finished, run.id.as_str())),
        executor: executor.to_owned(),
        labels: run.labels.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_of_the_protocol() {
        assert_eq!(parse_timeout("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_timeout("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(parse_timeout("250m"), Some(Duration::from_millis(250)));
        for bad in ["", "S", "1", "123456789S", "-1S", "1.5S", "1X", "1é"] {
            assert_eq!(parse_timeout(bad), None, "{bad:?}");
        }
    }
}
