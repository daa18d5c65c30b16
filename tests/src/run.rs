//! Runs as a caller sees them: a call, its events as they come, and the whole run once it has ended. Every stream that
//! is read here is checked against what the contract promises of all of them.

use std::time::{Duration, Instant};

use serde_json::Value;
use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::run_skill_request::Arguments;
use skillyard::pb::executor::v1::{Accepted, Finished, Log, Outcome, Progress, RunEvent, RunSkillRequest};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::{Code, Request, Status, Streaming};
use tonic_types::StatusExt as _;

use crate::PATIENCE;

/// A call of `RunSkill`.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is sent.
    pub request: RunSkillRequest,
    /// The call's own deadline, as `grpc-timeout`.
    pub deadline: Option<Duration>,
    /// What else is said in metadata.
    pub metadata: Vec<(&'static str, String)>,
}

/// A call of a skill, without arguments.
#[must_use]
pub fn call(skill: &str) -> Call {
    Call {
        request: RunSkillRequest { skill: skill.to_owned(), ..Default::default() },
        deadline: None,
        metadata: Vec::new(),
    }
}

impl Call {
    /// The arguments, as bytes.
    #[must_use]
    pub fn args(mut self, json: impl Into<String>) -> Self {
        self.request.arguments = Some(Arguments::ArgsJson(json.into()));
        self
    }

    /// The arguments, as a Struct.
    ///
    /// # Panics
    /// When they are no object.
    #[must_use]
    pub fn args_struct(mut self, value: &Value) -> Self {
        let fields = skillyard::wire::struct_to_wire(value.as_object().unwrap());
        self.request.arguments = Some(Arguments::Args(fields));
        self
    }

    /// On whose behalf.
    #[must_use]
    pub fn agent(mut self, name: &str) -> Self {
        self.request.agent = name.to_owned();
        self
    }

    /// The id that the caller chose.
    #[must_use]
    pub fn run_id(mut self, id: &str) -> Self {
        self.request.run_id = id.to_owned();
        self
    }

    /// The call's timeout.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.request.timeout = Some(limit.try_into().unwrap());
        self
    }

    /// The only version that may run.
    #[must_use]
    pub fn digest(mut self, digest: &str) -> Self {
        self.request.expected_digest = digest.to_owned();
        self
    }

    /// The approval that it uses up.
    #[must_use]
    pub fn approval(mut self, id: &str) -> Self {
        self.request.approval_id = id.to_owned();
        self
    }

    /// It goes on without a reader.
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.request.detach = true;
        self
    }

    /// A label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.request.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The call's deadline.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }

    /// An entry of the metadata.
    #[must_use]
    pub fn metadata(mut self, name: &'static str, value: &str) -> Self {
        self.metadata.push((name, value.to_owned()));
        self
    }
}

impl From<&str> for Call {
    fn from(skill: &str) -> Self {
        call(skill)
    }
}

/// A run that may still go on. Dropping it is a caller who goes away.
#[derive(Debug)]
pub struct Live {
    stream: Streaming<skillyard::pb::executor::v1::RunSkillResponse>,
    events: Vec<(Instant, RunEvent)>,
    began: Instant,
}

impl Live {
    /// Calls.
    ///
    /// # Errors
    /// The executor's refusal.
    pub async fn open<C>(mut client: ExecutorServiceClient<C>, call: impl Into<Call>) -> Result<Self, Status>
    where
        C: GrpcService<Body, ResponseBody = Body>,
        C::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let call = call.into();
        let mut request = Request::new(call.request);
        if let Some(deadline) = call.deadline {
            request.set_timeout(deadline);
        }
        for (name, value) in call.metadata {
            request.metadata_mut().append(name, value.parse().unwrap());
        }
        let began = Instant::now();
        let answer = tokio::time::timeout(PATIENCE, client.run_skill(request)).await;
        let stream = answer.expect("no answer to RunSkill")?.into_inner();
        Ok(Self { stream, events: Vec::new(), began })
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// What the stream ended with.
    ///
    /// # Panics
    /// When nothing comes for a minute, though a heartbeat is due every 15 s.
    pub async fn next(&mut self) -> Result<Option<RunEvent>, Status> {
        let next = tokio::time::timeout(PATIENCE, self.stream.message()).await;
        let Some(response) = next.expect("no event for a minute")? else { return Ok(None) };
        let event = response.event.expect("an event");
        self.events.push((Instant::now(), event.clone()));
        Ok(Some(event))
    }

    /// The next event, of which nothing is kept: for more of them than there is memory.
    ///
    /// # Errors
    /// What the stream ended with.
    ///
    /// # Panics
    /// As [`Self::next`].
    pub async fn next_unkept(&mut self) -> Result<Option<RunEvent>, Status> {
        let next = self.next().await;
        self.events.clear();
        next
    }

    /// Reads on until the first event that gives a value; what is passed is kept.
    ///
    /// # Panics
    /// When the run ends before.
    pub async fn until<T>(&mut self, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        loop {
            let event = self.next().await.unwrap_or_else(|status| panic!("{what}: {status}"));
            let Some(event) = event else { panic!("the run ended without {what}: {:?}", self.events.last()) };
            if let Some(value) = pick(event.event.as_ref().expect("an event of a kind")) {
                return value;
            }
        }
    }

    /// Reads on until the run has its id.
    ///
    /// # Panics
    /// When the run ends before.
    pub async fn accepted(&mut self) -> Accepted {
        let pick = |event: &Event| if let Event::Accepted(accepted) = event { Some(accepted.clone()) } else { None };
        self.until("accepted", pick).await
    }

    /// Reads on until the process exists, and gives its id.
    ///
    /// # Panics
    /// When the run ends before.
    pub async fn started(&mut self) -> i32 {
        self.until("started", |event| if let Event::Started(started) = event { Some(started.pid) } else { None }).await
    }

    /// Reads on until a piece of stderr has this text.
    ///
    /// # Panics
    /// When the run ends before.
    pub async fn logged(&mut self, text: &str) {
        let pick = |event: &Event| matches!(event, Event::Log(log) if log.text.contains(text)).then_some(());
        self.until(text, pick).await;
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// What the stream ended with, when not with `finished`.
    ///
    /// # Panics
    /// When the events are not as the contract promises.
    pub async fn end(mut self) -> Result<RunSeen, Status> {
        while self.next().await?.is_some() {}
        Ok(RunSeen::of(self.began, &self.events))
    }

    /// Reads to the end of a run that is not refused.
    ///
    /// # Panics
    /// When it is.
    pub async fn rest(self) -> RunSeen {
        self.end().await.unwrap_or_else(|status| panic!("the stream broke off: {status:?}"))
    }
}

/// A run from its first event to its last.
#[derive(Clone, Debug)]
pub struct RunSeen {
    /// Its first event.
    pub accepted: Accepted,
    /// Its process, if there was one.
    pub pid: Option<i32>,
    /// All of stderr that came.
    pub stderr: String,
    /// Its pieces.
    pub logs: Vec<Log>,
    /// Lines of stderr that did not come.
    pub dropped: u64,
    /// What it said of its progress.
    pub progress: Vec<Progress>,
    /// Its result.
    pub result: String,
    /// The sizes of the pieces of the result.
    pub chunks: Vec<usize>,
    /// How many heartbeats came.
    pub heartbeats: usize,
    /// Its last event.
    pub finished: Finished,
    /// From the call to the last event.
    pub took: Duration,
    /// From Started to the last event; none where it was not started.
    pub ran: Option<Duration>,
}

impl RunSeen {
    fn of(began: Instant, events: &[(Instant, RunEvent)]) -> Self {
        let ((end, last), before) = events.split_last().expect("a stream has events");
        let Some(Event::Finished(finished)) = last.event.clone() else { panic!("the last event is {last:?}") };
        let ((_, first), _) = before.split_first().expect("a run has more than one event");
        let Some(Event::Accepted(accepted)) = first.event.clone() else { panic!("the first event is {first:?}") };
        let mut seen = Self {
            accepted,
            pid: None,
            stderr: String::new(),
            logs: Vec::new(),
            dropped: 0,
            progress: Vec::new(),
            result: String::new(),
            chunks: Vec::new(),
            heartbeats: 0,
            finished,
            took: *end - began,
            ran: None,
        };
        let (mut seq, mut gap) = (0, false);
        for (at, event) in events {
            assert!(event.time.is_some(), "an event without its time: {event:?}");
            if let Some(Event::Heartbeat(_)) = event.event {
                assert_eq!(event.seq, 0, "heartbeats are not counted");
            } else {
                assert!(event.seq > seq, "{} after {seq}: {event:?}", event.seq);
                gap |= event.seq != seq + 1;
                seq = event.seq;
            }
            seen.take(*at, *end, event);
        }
        assert!(!gap || seen.dropped > 0, "a gap in the events, and no word of what was dropped");
        seen.check();
        seen
    }

    fn take(&mut self, at: Instant, end: Instant, event: &RunEvent) {
        let started = self.pid.is_some();
        match event.event.clone().expect("an event of a kind") {
            Event::Accepted(_) | Event::Finished(_) => {}
            Event::Started(started) => {
                assert!(self.pid.replace(started.pid).is_none(), "a run starts once");
                self.ran = Some(end - at);
            }
            Event::Log(log) => {
                assert!(started, "stderr before started: {log:?}");
                assert!(log.text.len() <= 3 * (64 << 10), "a piece of {} bytes", log.text.len());
                assert!(self.result.is_empty(), "stderr after the result");
                self.stderr.push_str(&log.text);
                self.dropped += log.dropped_lines;
                self.logs.push(log);
            }
            Event::Progress(progress) => {
                assert!(started, "progress before started: {progress:?}");
                self.progress.push(progress);
            }
            Event::Result(chunk) => {
                assert!(started && chunk.json.len() <= 1 << 20, "a chunk of {} bytes", chunk.json.len());
                self.chunks.push(chunk.json.len());
                self.result.push_str(&chunk.json);
            }
            Event::Heartbeat(_) => self.heartbeats += 1,
        }
    }

    fn check(&self) {
        let finished = &self.finished;
        assert_eq!(finished.run_id, self.accepted.run_id);
        assert!(!finished.run_id.is_empty() && !self.accepted.executor.is_empty(), "{:?}", self.accepted);
        assert_eq!(self.accepted.digest.len(), 64, "{:?}", self.accepted);
        assert!(finished.stderr_tail.len() <= 3 * 4096 && finished.stdout_head.len() <= 3 * 4096);
        if finished.outcome() == Outcome::Succeeded {
            assert_eq!(finished.result_bytes, self.result.len() as u64);
            assert_eq!((&*finished.message, &*finished.stderr_tail, &*finished.stdout_head), ("", "", ""));
            assert_eq!(finished.exit_code, Some(0));
        } else {
            assert_eq!(self.result, "", "only a run that succeeded has a result");
            assert!(!finished.message.is_empty(), "a run that failed says why: {finished:?}");
        }
        assert!(finished.exit_code.is_none() || finished.signal.is_empty(), "{finished:?}");
    }

    /// What two runs of the same kind have in common.
    #[must_use]
    pub fn ended(&self) -> Ended {
        Ended {
            outcome: self.finished.outcome(),
            reason: self.finished.reason.clone(),
            exit_code: self.finished.exit_code,
            signal: self.finished.signal.clone(),
            stderr: self.stderr.clone(),
            result: self.result.clone(),
        }
    }
}

impl PartialEq<Ended> for RunSeen {
    fn eq(&self, other: &Ended) -> bool {
        self.ended() == *other
    }
}

/// How a run ended, without what differs from one to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Of `finished`.
    pub outcome: Outcome,
    /// Of `finished`.
    pub reason: String,
    /// Of `finished`.
    pub exit_code: Option<i32>,
    /// Of `finished`.
    pub signal: String,
    /// All of it.
    pub stderr: String,
    /// All of it.
    pub result: String,
}

impl Ended {
    fn new(outcome: Outcome, reason: &str) -> Self {
        let (reason, none) = (reason.to_owned(), String::new());
        Self { outcome, reason, exit_code: None, signal: none.clone(), stderr: none.clone(), result: none }
    }

    /// With this on stderr.
    #[must_use]
    pub fn stderr(mut self, text: &str) -> Self {
        self.stderr = text.to_owned();
        self
    }

    /// By this signal.
    #[must_use]
    pub fn by(mut self, signal: &str) -> Self {
        self.signal = signal.to_owned();
        self
    }

    /// With this exit code.
    #[must_use]
    pub fn code(mut self, code: i32) -> Self {
        self.exit_code = Some(code);
        self
    }
}

/// What became of a call, in a few words: the outcome and its reason, or the code and the reason of the refusal.
#[must_use]
pub fn in_short(result: &Result<RunSeen, Status>) -> String {
    match result {
        Ok(seen) => {
            let outcome = seen.finished.outcome().as_str_name().trim_start_matches("OUTCOME_").to_owned();
            format!("{outcome} {}", seen.finished.reason).trim_end().to_owned()
        }
        Err(status) => {
            let (code, reason) = (status.code(), Refused::of(status).reason);
            if reason.is_empty() { format!("{status:?}") } else { format!("{code:?} {reason}") }
        }
    }
}

/// A run that succeeded, with nothing on stderr.
#[must_use]
pub fn succeeded(result: &str) -> Ended {
    Ended { result: result.to_owned(), ..Ended::new(Outcome::Succeeded, "").code(0) }
}

/// A run that exited with a code other than 0.
#[must_use]
pub fn failed(code: i32) -> Ended {
    Ended::new(Outcome::Failed, "").code(code)
}

/// A run that took too long; the reason says for what.
#[must_use]
pub fn timed_out(reason: &str) -> Ended {
    Ended::new(Outcome::TimedOut, reason)
}

/// A run that was ended on demand; the reason says whose.
#[must_use]
pub fn cancelled(reason: &str) -> Ended {
    Ended::new(Outcome::Cancelled, reason)
}

/// A run that ended in another way.
#[must_use]
pub fn ended(outcome: Outcome) -> Ended {
    Ended::new(outcome, "")
}

/// A call that was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Its gRPC code.
    pub code: Code,
    /// `ErrorInfo.reason`; empty where there is none.
    pub reason: String,
    /// `ErrorInfo.domain`.
    pub domain: String,
    /// For people.
    pub message: String,
    /// The field of each violation.
    pub fields: Vec<String>,
    /// `RetryInfo`.
    pub retry_after: Option<Duration>,
}

impl Refused {
    /// Of an error.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let violations = details.bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default();
        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            domain: info.map(|info| info.domain.clone()).unwrap_or_default(),
            message: status.message().to_owned(),
            fields: violations.into_iter().map(|violation| violation.field).collect(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
        }
    }

    /// What a program acts on.
    ///
    /// # Panics
    /// When the error is not one of ours, or says nothing to people.
    #[must_use]
    pub fn short(&self) -> (Code, &str) {
        assert_eq!(self.domain, "skillyard", "{self:?}");
        assert!(!self.message.is_empty(), "{self:?}");
        (self.code, &self.reason)
    }
}
