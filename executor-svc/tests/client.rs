//! `executor-svc run` as its callers meet it: the program itself, over a real socket, against a peer that says what the test
//! has it say, connections that break included.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;
use std::pin::Pin;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use skillyard::pb::executor::v1 as pb;
use skillyard::pb::executor::v1::executor_service_server::{ExecutorService, ExecutorServiceServer};
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::run_skill_request::Arguments;
use skillyard::service::error::{Reason, Refusal};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

type Attached = tokio_stream::Empty<Result<pb::AttachRunResponse, Status>>;
type Answer = Pin<Box<dyn Stream<Item = Result<pb::RunSkillResponse, Status>> + Send>>;

/// What one call is answered with.
#[derive(Clone, Debug)]
enum Script {
    Refused(Refusal),
    /// These, and the end of the stream.
    Events(Vec<Event>),
    /// These, and an error that is nobody's answer.
    Broken(Vec<Event>),
    /// These; then, when `CancelRun` was called, that.
    UntilCancelled(Vec<Event>, Vec<Event>),
}

#[derive(Clone, Debug)]
struct Peer {
    address: SocketAddr,
    /// One a call; the last one stays.
    scripts: Arc<Mutex<Vec<Script>>>,
    requests: Arc<Mutex<Vec<pb::RunSkillRequest>>>,
    cancelled: watch::Sender<bool>,
}

#[tonic::async_trait]
impl ExecutorService for Peer {
    type RunSkillStream = Answer;
    type AttachRunStream = Attached;

    async fn run_skill(&self, request: Request<pb::RunSkillRequest>) -> Result<Response<Answer>, Status> {
        let request = request.into_inner();
        let accepted = Event::Accepted(pb::Accepted {
            run_id: request.run_id.clone(),
            endpoint: self.address.to_string(),
            ..pb::Accepted::default()
        });
        self.requests.lock().unwrap().push(request);
        let script = {
            let mut scripts = self.scripts.lock().unwrap();
            if scripts.len() > 1 { scripts.remove(0) } else { scripts[0].clone() }
        };
        let mut seq = 0;
        let mut number = move |event| {
            seq += 1;
            let event = Some(event);
            Ok(pb::RunSkillResponse { event: Some(pb::RunEvent { seq, time: None, event }) })
        };
        let mut numbered = move |events: Vec<Event>| events.into_iter().map(&mut number).collect::<Vec<_>>();
        let mut first = numbered(vec![accepted]);
        Ok(Response::new(match script {
            Script::Refused(refusal) => return Err(refusal.into()),
            Script::Events(events) => {
                first.extend(numbered(events));
                Box::pin(tokio_stream::iter(first))
            }
            Script::Broken(events) => {
                first.extend(numbered(events));
                first.push(Err(Status::unknown("a proxy was restarted")));
                Box::pin(tokio_stream::iter(first))
            }
            Script::UntilCancelled(before, after) => {
                first.extend(numbered(before));
                let after = numbered(after);
                let mut cancelled = self.cancelled.subscribe();
                let (sender, rest) = tokio::sync::mpsc::unbounded_channel();
                tokio::spawn(async move {
                    cancelled.wait_for(|cancelled| *cancelled).await.unwrap();
                    after.into_iter().for_each(|event| drop(sender.send(event)));
                });
                let rest = tokio_stream::wrappers::UnboundedReceiverStream::new(rest);
                Box::pin(tokio_stream::iter(first).chain(rest))
            }
        }))
    }

    async fn cancel_run(
        &self,
        request: Request<pb::CancelRunRequest>,
    ) -> Result<Response<pb::CancelRunResponse>, Status> {
        let run_id = request.into_inner().run_id;
        assert_eq!(run_id, self.requests.lock().unwrap().last().unwrap().run_id);
        self.cancelled.send_replace(true);
        let finished = Some(pb::Finished { run_id, ..finished(pb::Outcome::Cancelled) });
        Ok(Response::new(pb::CancelRunResponse { run: Some(pb::Run { finished, ..pb::Run::default() }) }))
    }

    async fn attach_run(&self, _: Request<pb::AttachRunRequest>) -> Result<Response<Attached>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn get_run(&self, _: Request<pb::GetRunRequest>) -> Result<Response<pb::GetRunResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn list_runs(&self, _: Request<pb::ListRunsRequest>) -> Result<Response<pb::ListRunsResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn get_status(&self, _: Request<pb::GetStatusRequest>) -> Result<Response<pb::GetStatusResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }
}

impl Peer {
    async fn new(scripts: impl IntoIterator<Item = Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = Self {
            address: listener.local_addr().unwrap(),
            scripts: Arc::new(Mutex::new(scripts.into_iter().collect())),
            requests: Arc::default(),
            cancelled: watch::Sender::new(false),
        };
        let service = ExecutorServiceServer::new(peer.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        peer
    }

    fn start(&self, args: &[&str]) -> Child {
        start(&format!("http://{}", self.address), args)
    }

    async fn run(&self, args: &[&str]) -> Output {
        output(self.start(args)).await
    }
}

fn start(executor: &str, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_executor-svc"));
    command.env_clear().args(["run", "--executor", executor]).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

async fn output(child: Child) -> Output {
    tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await.unwrap().unwrap()
}

fn finished(outcome: pb::Outcome) -> pb::Finished {
    pb::Finished { run_id: "r".to_owned(), outcome: outcome.into(), ..pb::Finished::default() }
}

fn log(text: &str) -> Event {
    Event::Log(pb::Log { text: text.to_owned(), ..pb::Log::default() })
}

/// The result in pieces, and the end.
fn succeeded(pieces: &[&str]) -> Vec<Event> {
    let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
    let chunks = pieces.iter().map(|piece| Event::Result(pb::ResultChunk { json: (*piece).to_owned() }));
    let end = pb::Finished { result_bytes: bytes, ..finished(pb::Outcome::Succeeded) };
    chunks.chain([Event::Finished(end)]).collect()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn the_result_alone_is_on_stdout_byte_for_byte() {
    let mut events = vec![
        log("reading\n::progress {\"progress\": 1}\n\u{1b}[1mbold\u{1b}[0m\npart"),
        Event::Progress(pb::Progress { progress: 1.0, total: Some(4.0), message: "files".to_owned() }),
        Event::Progress(pb::Progress { progress: 2.5, total: None, message: String::new() }),
        Event::Log(pb::Log { text: "last\n".to_owned(), dropped_lines: 7, ..pb::Log::default() }),
    ];
    events.extend(succeeded(&[" {\"a\":", " 1.0}\n\n"]));
    let peer = Peer::new([Script::Events(events)]).await;
    let output = peer.run(&["x", "--args", r#"{"b": 2}"#, "--agent", "ops", "--timeout", "5s", "--run-id", "r"]).await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), " {\"a\": 1.0}\n\n");
    let expected = "reading\n\u{1b}[1mbold\u{1b}[0m\npart\nprogress: 1/4 files\nprogress: 2.5\n\
        skillyard: 7 lines of the skill were lost\nlast\n";
    assert_eq!(text(&output.stderr), expected);
    let request = peer.requests.lock().unwrap()[0].clone();
    assert_eq!((request.skill.as_str(), request.agent.as_str(), request.run_id.as_str()), ("x", "ops", "r"));
    assert_eq!(request.arguments, Some(Arguments::ArgsJson(r#"{"b": 2}"#.to_owned())));
    assert_eq!(request.timeout.unwrap().seconds, 5);
}

#[tokio::test]
async fn arguments_come_from_standard_input() {
    let peer = Peer::new([Script::Events(succeeded(&["1"]))]).await;
    for args in [&["x", "-"][..], &["x", "--args-file", "-"]] {
        let mut child = peer.start(args);
        child.stdin.take().unwrap().write_all(b"{\"from\": \"stdin\"}").await.unwrap();
        assert_eq!(output(child).await.status.code(), Some(0));
        let request = peer.requests.lock().unwrap().pop().unwrap();
        assert_eq!(request.arguments, Some(Arguments::ArgsJson("{\"from\": \"stdin\"}".to_owned())));
    }
}

#[tokio::test]
async fn outcomes_are_told_apart() {
    for (outcome, code) in [
        (pb::Outcome::Failed, 1),
        (pb::Outcome::InvalidResult, 3),
        (pb::Outcome::ResultTooLarge, 4),
        (pb::Outcome::SpawnFailed, 5),
        (pb::Outcome::Signaled, 6),
        (pb::Outcome::Lost, 7),
        (pb::Outcome::OutOfMemory, 10),
        (pb::Outcome::TimedOut, 124),
        (pb::Outcome::Cancelled, 130),
    ] {
        let end = pb::Finished {
            message: "this is why".to_owned(),
            reason: "REASON".to_owned(),
            exit_code: Some(42),
            ..finished(outcome)
        };
        let peer = Peer::new([Script::Events(vec![log("unfinished"), Event::Finished(end)])]).await;
        let output = peer.run(&["x"]).await;
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), ""));
        let name = outcome.as_str_name().strip_prefix("OUTCOME_").unwrap();
        assert_eq!(text(&output.stderr), format!("unfinished\nskillyard: run r: {name} (REASON): this is why\n"));
    }
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let refusal = Refusal::new(Reason::InvalidArguments, "the arguments break the schema")
        .violation("/path", "is required")
        .violation("", "is no object")
        .retry_after(Duration::from_millis(1500));
    let peer = Peer::new([Script::Refused(refusal)]).await;
    let output = peer.run(&["x"]).await;
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(8), ""));
    let expected = "skillyard: refused: INVALID_ARGUMENTS: the arguments break the schema\n  /path: is required\n  \
        the whole: is no object\n  try again in 1s 500ms\n";
    assert_eq!(text(&output.stderr), expected);
}

#[tokio::test]
async fn nobody_answers() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let output = output(start(&format!("http://{free}"), &["x"])).await;
    assert_eq!(output.status.code(), Some(9));
    assert!(text(&output.stderr).contains("no answer: ") && text(&output.stderr).contains("refused"), "{output:?}");
    assert!(text(&output.stderr).contains("--executor"), "{output:?}");
}

#[tokio::test]
async fn a_broken_connection_is_made_anew_and_nothing_is_said_twice() {
    let mut all = vec![log("one\n"), log("two\n")];
    all.extend(succeeded(&["{\"a\"", ":1}"]));
    let scripts = [Script::Broken(all[..1].to_vec()), Script::Broken(all[..3].to_vec()), Script::Events(all)];
    let peer = Peer::new(scripts).await;
    let output = peer.run(&["x"]).await;
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "{\"a\":1}"));
    let said = text(&output.stderr).lines().filter(|line| !line.starts_with("skillyard: ")).collect::<Vec<_>>();
    assert_eq!(said, ["one", "two"]);
    let requests = peer.requests.lock().unwrap();
    assert!(requests.len() == 3 && requests.iter().all(|request| *request == requests[0]));
}

#[tokio::test]
async fn a_connection_that_stays_broken_is_no_outcome() {
    let peer = Peer::new([Script::Broken(vec![log("one\n")])]).await;
    let output = peer.run(&["x", "--run-id", "r"]).await;
    assert_eq!(output.status.code(), Some(9));
    assert!(text(&output.stderr).ends_with("a proxy was restarted; run r may be going on\n"), "{output:?}");
    // Nor is a result that did not come whole.
    let short = pb::Finished { result_bytes: 9, ..finished(pb::Outcome::Succeeded) };
    let peer = Peer::new([Script::Events(vec![Event::Finished(short)])]).await;
    let output = peer.run(&["x"]).await;
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(9), ""));
}

async fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

#[tokio::test]
async fn an_interrupt_cancels_and_waits_for_the_end() {
    let end = Event::Finished(pb::Finished { message: "cancelled".to_owned(), ..finished(pb::Outcome::Cancelled) });
    // The stream tells the end; or only the answer to the cancelling does.
    for after in [vec![log("cleaning up\n"), end], vec![log("cleaning up\n")]] {
        let peer = Peer::new([Script::UntilCancelled(vec![log("begun\n")], after)]).await;
        let mut child = peer.start(&["x", "--run-id", "r"]);
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).await.unwrap();
        assert_eq!(line, "begun\n");
        interrupt(&child).await;
        let output = output(child).await;
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).await.unwrap();
        assert_eq!(output.status.code(), Some(130), "{rest}");
        assert!(rest.contains("cancelling the run") && rest.contains("cleaning up\n"), "{rest}");
        assert!(rest.contains("run r: CANCELLED") && *peer.cancelled.borrow(), "{rest}");
    }
}

#[tokio::test]
async fn a_wrong_line_is_64_and_help_has_the_codes() {
    let peer = Peer::new([Script::Events(succeeded(&["1"]))]).await;
    assert_eq!(peer.run(&["x", "--args-file", "/nonexistent/args.json"]).await.status.code(), Some(64));
    let help = peer.run(&["--help"]).await;
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("124  TIMED_OUT"), "{}", text(&help.stdout));
    assert!(peer.requests.lock().unwrap().is_empty());
}
