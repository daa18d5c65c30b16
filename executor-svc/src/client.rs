//! `executor-svc run` and `executor-svc attach`: one run from a terminal or a script. What the skill says goes to stderr as
//! it comes, its result alone to stdout, and the exit code tells the outcomes apart.

mod connect;
mod request;
mod runs;
mod terminal;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::{
    Accepted, AttachRunRequest, AttachRunResponse, CancelRunRequest, Finished, Outcome, RunEvent, RunSkillRequest,
    RunSkillResponse,
};
use skillyard::service::dial::Dialer;
use skillyard::service::error::{DOMAIN, Reason};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

use self::connect::ConnectArgs;
pub use self::request::RunArgs;
pub use self::runs::{CancelArgs, RunsArgs};
use self::terminal::{Terminal, cause};
use crate::config::Command;

/// What the exit codes mean. The skill's own is told on stderr and never passed on: it could be any of these.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    SUCCEEDED: the result is on stdout
  1    FAILED: the skill exited with a code other than 0
  3    INVALID_RESULT: its stdout was not exactly one JSON value
  4    RESULT_TOO_LARGE
  5    SPAWN_FAILED: it could not be started
  6    SIGNALED: a signal ended it
  7    LOST: the executor, or what watched the run, went away
  8    refused: nothing was started; the reason is on stderr
  9    no answer: the executor cannot be reached, or the connection broke; the run may be going on
  10   OUT_OF_MEMORY: its processes took more than they may
  64   the command line cannot be used, or the arguments cannot be read or are over 8 MiB
  74   the result could not be written to stdout
  124  TIMED_OUT
  130  CANCELLED, also by Ctrl-C (once: cancel and wait for the end; twice: go at once)";

const INVALID_RESULT: u8 = 3;
const RESULT_TOO_LARGE: u8 = 4;
const SPAWN_FAILED: u8 = 5;
const SIGNALED: u8 = 6;
const LOST: u8 = 7;
const REFUSED: u8 = 8;
const NO_ANSWER: u8 = 9;
const OUT_OF_MEMORY: u8 = 10;
const USAGE: u8 = 64;
const NOT_WRITTEN: u8 = 74;
const TIMED_OUT: u8 = 124;
const CANCELLED: u8 = 130;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(10);
/// An executor says something every 15 s.
const SILENCE: Duration = Duration::from_secs(45);
/// Before each further call for a run whose connection broke.
const PAUSES: [Duration; 3] = [Duration::from_millis(200), Duration::from_millis(500), Duration::from_secs(1)];
/// What a cancelled run may still say after its end was told.
const LAST_WORDS: Duration = Duration::from_secs(2);

type Client = ExecutorServiceClient<Dialer>;

/// Does what a command line says.
pub async fn execute(command: Command) -> ExitCode {
    match command {
        Command::Run(args) => run(args).await,
        Command::Attach(args) => attach(args).await,
        Command::Runs(args) => runs::list(args).await,
        Command::Cancel(args) => runs::cancel(args).await,
    }
}

/// Follows a run to its end: what it says goes to stderr, its result alone to stdout.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct AttachArgs {
    /// The run.
    run_id: String,
    /// Begin after this event, and not with the first that is kept. The result needs all its pieces.
    #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
    after_seq: u64,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs a skill and returns when the run has ended, or has begun where it is detached; see [`EXIT_CODES`].
async fn run(args: RunArgs) -> ExitCode {
    let detach = args.detach;
    follow(args.into_request().map_err(|error| error.to_string()), Ask::Run { detach }).await
}

/// Follows a run and returns when it has ended; see [`EXIT_CODES`].
async fn attach(args: AttachArgs) -> ExitCode {
    let request = RunSkillRequest { run_id: args.run_id, ..RunSkillRequest::default() };
    let target = args.connect.dialer().map(|executor| (executor, request)).map_err(|error| error.to_string());
    follow(target, Ask::Attach { after_seq: args.after_seq }).await
}

async fn follow(target: Result<(Dialer, RunSkillRequest), String>, ask: Ask) -> ExitCode {
    let mut terminal = Terminal::new();
    let (executor, request) = match target {
        Ok(target) => target,
        Err(error) => {
            terminal.say(&error);
            return USAGE.into();
        }
    };
    let interrupts = match Interrupts::new() {
        Ok(interrupts) => interrupts,
        Err(error) => {
            terminal.say(&format!("signals cannot be handled: {error}"));
            return USAGE.into();
        }
    };
    let mut call = Call {
        seen: if let Ask::Attach { after_seq } = ask { after_seq } else { 0 },
        ask,
        request,
        terminal,
        interrupts,
        accepted: None,
        accepted_at: None,
        started: false,
        result: String::new(),
        cancelling: None,
        finished: None,
    };
    call.run(executor).await.into()
}

/// How a run is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ask {
    /// By the call that makes it.
    Run {
        /// And left, once it goes on by itself.
        detach: bool,
    },
    /// By its id.
    Attach {
        /// From after this event on.
        after_seq: u64,
    },
}

/// A run, from its call to its end.
struct Call {
    ask: Ask,
    request: RunSkillRequest,
    terminal: Terminal,
    interrupts: Interrupts,
    accepted: Option<Accepted>,
    /// Tells a run from another with its id, after its executor was restarted.
    accepted_at: Option<prost_types::Timestamp>,
    /// The `seq` of the last event: a further call for the same run begins with the first again.
    seen: u64,
    started: bool,
    result: String,
    cancelling: Option<Cancelling>,
    /// The end as `CancelRun` told it.
    finished: Option<Finished>,
}

type Cancelling = Pin<Box<dyn Future<Output = Result<Option<Finished>, Status>>>>;

/// How the following of a run ended.
enum End {
    Finished(Box<Finished>),
    /// It goes on by itself.
    Detached,
    /// Nothing is known of the run.
    Broken(String),
    Refused(Status),
    /// Nobody waits for the run any more.
    Left,
}

impl Call {
    async fn run(&mut self, mut executor: Dialer) -> u8 {
        let mut pauses = PAUSES.into_iter();
        loop {
            let cause = match self.follow(&executor).await {
                End::Finished(finished) => return self.finish(&finished),
                End::Detached => return self.detached(),
                End::Refused(status) => return self.refused(&status),
                End::Left => {
                    self.terminal.say("left without waiting for the run's end");
                    return CANCELLED;
                }
                End::Broken(cause) => cause,
            };
            if let Some(finished) = self.finished.take() {
                return self.finish(&finished);
            }
            let Some(pause) = pauses.next() else { return self.no_answer(&cause) };
            let Some(accepted) = &self.accepted else {
                if self.seen == 0 {
                    return self.no_answer(&cause);
                }
                // Attached behind its first event: the executor that was asked has it.
                tokio::time::sleep(pause).await;
                continue;
            };
            // The same run_id on the same executor is the same run, on another it would be a second one.
            match executor.elsewhere(&accepted.endpoint) {
                Ok(same) => executor = same,
                Err(_) => return self.no_answer(&cause),
            }
            self.terminal.say(&format!("the connection broke ({cause}): asking for the run again"));
            tokio::time::sleep(pause).await;
        }
    }

    async fn follow(&mut self, executor: &Dialer) -> End {
        let request = self.request.clone();
        let mut caller = Client::new(executor.clone());
        let ask = async {
            Ok(match self.ask {
                Ask::Run { .. } => Events::Run(caller.run_skill(request).await?.into_inner()),
                Ask::Attach { .. } => {
                    let request = AttachRunRequest { run_id: request.run_id, after_seq: self.seen };
                    Events::Attach(caller.attach_run(request).await?.into_inner())
                }
            })
        };
        let answer = tokio::select! {
            answer = timeout(SILENCE, ask) => answer,
            () = self.interrupts.next() => return End::Left,
        };
        let mut stream = match answer {
            Ok(Ok(stream)) => stream,
            Ok(Err(status)) => return ended(status),
            Err(_) => return End::Broken(format!("no answer within {SILENCE:?}")),
        };
        loop {
            let patience = if self.finished.is_some() { LAST_WORDS } else { SILENCE };
            tokio::select! {
                event = timeout(patience, stream.next()) => match event {
                    Ok(Ok(Some(event))) => {
                        if let Some(finished) = self.take(event) {
                            return End::Finished(Box::new(finished));
                        }
                        if self.may_leave() {
                            return End::Detached;
                        }
                    }
                    Ok(Ok(None)) => return End::Broken("the stream ended before the run".to_owned()),
                    Ok(Err(status)) => return ended(status),
                    Err(_) => return End::Broken(format!("nothing was said for {patience:?}")),
                },
                () = self.interrupts.next() => {
                    if self.cancelling.is_some() || self.finished.is_some() {
                        return End::Left;
                    }
                    self.terminal.say("cancelling the run; once more to leave without waiting");
                    self.cancelling = Some(Box::pin(self.cancel(executor.clone())));
                }
                result = wait(&mut self.cancelling) => {
                    self.cancelling = None;
                    match result {
                        Ok(finished) => self.finished = finished,
                        Err(status) => self.terminal.say(&format!("the run cannot be cancelled: {}", cause(&status))),
                    }
                }
            }
        }
    }

    /// What to do for the run's end, and the run as it ended.
    fn cancel(&self, executor: Dialer) -> impl Future<Output = Result<Option<Finished>, Status>> + use<> {
        let endpoint = self.accepted.as_ref().map(|accepted| executor.elsewhere(&accepted.endpoint));
        let reason = "interrupted by the caller".to_owned();
        let request = CancelRunRequest { run_id: self.request.run_id.clone(), reason };
        async move {
            let mut answer = Client::new(executor).cancel_run(request.clone()).await;
            // Behind a balancer, the one that was asked is not always the one that runs it.
            if let (Err(status), Some(Ok(executor))) = (&answer, endpoint)
                && (reason_of(status).as_deref() == Some(Reason::UnknownRun.as_str())
                    || status.code() == Code::Unavailable)
            {
                answer = Client::new(executor).cancel_run(request).await;
            }
            Ok(answer?.into_inner().run.and_then(|run| run.finished))
        }
    }

    fn take(&mut self, event: RunEvent) -> Option<Finished> {
        if let Some(Event::Accepted(_)) = event.event {
            let earlier = std::mem::replace(&mut self.accepted_at, event.time);
            if earlier.is_some() && earlier != event.time {
                self.terminal.say("the executor was restarted; the skill runs again from its start");
                self.seen = 0;
                self.result.clear();
            }
        }
        // Heartbeats have no number.
        if event.seq > 0 && event.seq <= self.seen {
            return None;
        }
        self.seen = self.seen.max(event.seq);
        match event.event? {
            Event::Accepted(accepted) => {
                if accepted.queue_position > 0 {
                    self.terminal.say(&format!("queued: {} ahead", accepted.queue_position));
                }
                self.accepted = Some(accepted);
            }
            Event::Log(log) => self.terminal.log(&log),
            Event::Progress(progress) => self.terminal.progress(&progress),
            Event::Result(chunk) => self.result.push_str(&chunk.json),
            Event::Started(_) => self.started = true,
            Event::Heartbeat(_) => {}
            Event::Finished(finished) => return Some(finished),
        }
        None
    }

    /// Whether a detached run goes on by itself: a run with an approval may be refused until it starts.
    fn may_leave(&self) -> bool {
        let needs = if self.request.approval_id.is_empty() { self.accepted.is_some() } else { self.started };
        self.ask == Ask::Run { detach: true } && needs
    }

    fn detached(&mut self) -> u8 {
        let Some(accepted) = &self.accepted else { return NO_ANSWER };
        let (run_id, endpoint) = (accepted.run_id.clone(), accepted.endpoint.clone());
        self.terminal.say(&format!("run {run_id} goes on at {endpoint}: executor-svc attach {run_id}"));
        match self.terminal.result(&run_id) {
            Ok(()) => 0,
            Err(error) => {
                self.terminal.say(&format!("the run_id cannot be written: {error}"));
                NOT_WRITTEN
            }
        }
    }

    fn finish(&mut self, finished: &Finished) -> u8 {
        self.terminal.finished(finished);
        match finished.outcome() {
            Outcome::Succeeded if self.result.len() as u64 != finished.result_bytes => {
                let (came, all) = (self.result.len(), finished.result_bytes);
                self.no_answer(&format!("only {came} of {all} bytes of the result came"))
            }
            Outcome::Succeeded => match self.terminal.result(&self.result) {
                Ok(()) => 0,
                Err(error) => {
                    self.terminal.say(&format!("the result cannot be written: {error}"));
                    NOT_WRITTEN
                }
            },
            Outcome::Failed => 1,
            Outcome::TimedOut => TIMED_OUT,
            Outcome::Cancelled => CANCELLED,
            Outcome::Signaled => SIGNALED,
            Outcome::OutOfMemory => OUT_OF_MEMORY,
            Outcome::InvalidResult => INVALID_RESULT,
            Outcome::ResultTooLarge => RESULT_TOO_LARGE,
            Outcome::SpawnFailed => SPAWN_FAILED,
            Outcome::Lost | Outcome::Unspecified => LOST,
        }
    }

    fn refused(&mut self, status: &Status) -> u8 {
        self.terminal.refused(status);
        REFUSED
    }

    fn no_answer(&mut self, cause: &str) -> u8 {
        let known = match &self.accepted {
            Some(accepted) => format!("run {} may be going on", accepted.run_id),
            None => "is --executor the address of an executor?".to_owned(),
        };
        self.terminal.say(&format!("no answer: {cause}; {known}"));
        NO_ANSWER
    }
}

/// How an executor is connected to.
fn endpoint(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .tcp_nodelay(true)
}

/// The events of a run, however they were asked for.
enum Events {
    Run(Streaming<RunSkillResponse>),
    Attach(Streaming<AttachRunResponse>),
}

impl Events {
    async fn next(&mut self) -> Result<Option<RunEvent>, Status> {
        Ok(match self {
            Self::Run(stream) => stream.message().await?.and_then(|message| message.event),
            Self::Attach(stream) => stream.message().await?.and_then(|message| message.event),
        })
    }
}

fn ended(status: Status) -> End {
    if reason_of(&status).is_some() { End::Refused(status) } else { End::Broken(cause(&status)) }
}

/// The reason, where the error is ours.
fn reason_of(status: &Status) -> Option<String> {
    status.get_details_error_info().filter(|info| info.domain == DOMAIN).map(|info| info.reason)
}

async fn wait(cancelling: &mut Option<Cancelling>) -> Result<Option<Finished>, Status> {
    match cancelling {
        Some(cancelling) => cancelling.await,
        None => std::future::pending().await,
    }
}

/// Ctrl-C, and what a script's supervisor sends.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
