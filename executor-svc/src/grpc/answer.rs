//! Events and runs as messages, and the stream that a caller reads.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use skillyard::pb::executor::v1 as pb;
use skillyard::wire::duration_to_wire;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::Status;

use crate::run::call::Call;
use crate::run::event::{Event, Stamped};
use crate::run::events::Reader;
use crate::run::journal::RunRecord;
use crate::run::outcome::{Finished, Outcome, signal_name};
use crate::run::table::Run;
use crate::run::tally::Tally;
use crate::slot::Exit;

/// A silent stream gets a heartbeat after this time, before proxies take it for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// What a caller reads: the events of its run, and a heartbeat when there are none.
#[derive(Debug)]
pub struct RunStream<M> {
    reader: Reader,
    /// Makes an event the message of the call that reads.
    wrap: fn(pb::RunEvent) -> M,
    /// Every event of the run is told with these.
    accepted: pb::Accepted,
    heartbeat: Option<Pin<Box<Sleep>>>,
    tally: Tally,
}

impl<M> RunStream<M> {
    /// The events of a run, from where the reader stands.
    pub(super) fn new(run: &Run, reader: Reader, endpoint: &str, tally: &Tally, wrap: fn(pb::RunEvent) -> M) -> Self {
        let accepted = pb::Accepted {
            run_id: run.call.id.to_string(),
            executor: run.call.executor.to_string(),
            endpoint: endpoint.to_owned(),
            digest: run.call.digest.to_string(),
            queue_position: 0,
        };
        Self { reader, wrap, accepted, heartbeat: None, tally: tally.clone() }
    }
}

impl<M> Stream for RunStream<M> {
    type Item = Result<M, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match Pin::new(&mut self.reader).poll_next(context) {
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(stamped)) => {
                if let Some(heartbeat) = &mut self.heartbeat {
                    heartbeat.as_mut().reset(tokio::time::Instant::now() + HEARTBEAT);
                }
                if let Event::Log { dropped_lines, .. } = &stamped.event {
                    self.tally.dropped(*dropped_lines);
                }
                Poll::Ready(Some(event_to_wire(stamped, &self.accepted).map(self.wrap)))
            }
            Poll::Pending => {
                let heartbeat = self.heartbeat.get_or_insert_with(|| Box::pin(sleep(HEARTBEAT)));
                std::task::ready!(heartbeat.as_mut().poll(context));
                heartbeat.as_mut().reset(tokio::time::Instant::now() + HEARTBEAT);
                // Polled once more, so that the task is woken for the next one.
                let _ = heartbeat.as_mut().poll(context);
                let beat = event(0, SystemTime::now(), pb::run_event::Event::Heartbeat(pb::Heartbeat {}));
                Poll::Ready(Some(Ok((self.wrap)(beat))))
            }
        }
    }
}

fn event(seq: u64, time: SystemTime, event: pb::run_event::Event) -> pb::RunEvent {
    pb::RunEvent { seq, time: Some(time.into()), event: Some(event) }
}

fn event_to_wire(stamped: Stamped, accepted: &pb::Accepted) -> Result<pb::RunEvent, Status> {
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
        Outcome::OutOfMemory => pb::Outcome::OutOfMemory,
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
            wall: Some(duration_to_wire(figures.usage.wall)),
            cpu_user: Some(duration_to_wire(figures.usage.cpu_user)),
            cpu_system: Some(duration_to_wire(figures.usage.cpu_system)),
            max_rss_bytes: figures.usage.max_rss_bytes,
            stderr_bytes: figures.stderr_bytes,
            stdout_bytes: figures.stdout_bytes,
        }),
        reason: finished.reason.clone().into_owned(),
    }
}

/// A run, without its output.
pub(super) fn run_to_wire(run: &Run) -> pb::Run {
    let end = run.end();
    call_to_wire(&run.call, run.started_at(), end.as_ref().map(|(at, finished)| (*at, &**finished)))
}

/// The run of a record.
#[must_use]
pub fn record_to_wire(record: &RunRecord) -> pb::Run {
    call_to_wire(&record.call, record.started_at, Some((record.finished_at, &record.finished)))
}

fn call_to_wire(call: &Call, started_at: Option<SystemTime>, end: Option<(SystemTime, &Finished)>) -> pb::Run {
    let state = match (end, started_at) {
        (Some(_), _) => pb::RunState::Finished,
        (None, Some(_)) => pb::RunState::Running,
        (None, None) => pb::RunState::Queued,
    };
    pb::Run {
        run_id: call.id.to_string(),
        skill: call.skill.to_string(),
        digest: call.digest.to_string(),
        agent: call.agent.clone(),
        caller: call.caller.clone(),
        approval_id: call.approval_id.clone().unwrap_or_default(),
        args_sha256: call.args_sha256.to_string(),
        state: state.into(),
        accepted_at: Some(call.accepted_at.into()),
        started_at: started_at.map(Into::into),
        finished_at: end.map(|(at, _)| at.into()),
        finished: end.map(|(_, finished)| finished_to_wire(finished, call.id.as_str())),
        executor: call.executor.to_string(),
        labels: call.labels.clone(),
    }
}
