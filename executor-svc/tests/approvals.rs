//! Runs that need an approval: the executor as a real process, against a registry that answers as the test has it answer,
//! slowly, wrongly, or not at all; and `kill -9` at every step. What a run did is a line in a file; what must not be is a
//! second one.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test")]

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use skillyard::pb::executor::v1 as run;
use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::run_skill_request::Arguments;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::approval_service_server::{ApprovalService, ApprovalServiceServer};
use skillyard::pb::registry::v1::package_service_server::{PackageService, PackageServiceServer};
use skillyard::service::dial::{DialOptions, Dialer};
use skillyard::service::error::{Reason, Refusal};
use skillyard::service::token::Token;
use skillyard::skill::{Card, Kind, Subprocess};
use skillyard::{Agent, Class, Digest, PackageFile, PermissionMode, Skill, Source, wire};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};
use tonic_types::StatusExt as _;

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How the registry answers to a use of an approval.
#[derive(Clone, Debug)]
enum Mood {
    /// As it should: an approval is bound to the first run that asks.
    Good,
    /// Binds it, and its answer is lost.
    Loses,
    /// Says this.
    Refuses(Status),
    /// Answers with what this makes of the right answer.
    Answers(fn(&mut Option<pb::Approval>)),
    /// Binds it, and answers when the mood is another.
    Slow,
}

#[derive(Clone, Debug)]
struct Peer {
    state: pb::WatchCatalogResponse,
    package: Arc<Vec<pb::FetchPackageResponse>>,
    mood: watch::Sender<Mood>,
    used: Arc<Mutex<HashMap<String, pb::ConsumeApprovalRequest>>>,
    asked: watch::Sender<Vec<pb::ConsumeApprovalRequest>>,
}

#[tonic::async_trait]
impl PackageService for Peer {
    type WatchCatalogStream = Answer<pb::WatchCatalogResponse>;
    type FetchPackageStream = Answer<pb::FetchPackageResponse>;

    async fn watch_catalog(
        &self,
        _: Request<pb::WatchCatalogRequest>,
    ) -> Result<Response<Self::WatchCatalogStream>, Status> {
        let state = tokio_stream::once(Ok(self.state.clone()));
        Ok(Response::new(Box::pin(state.chain(tokio_stream::pending()))))
    }

    async fn fetch_package(
        &self,
        _: Request<pb::FetchPackageRequest>,
    ) -> Result<Response<Self::FetchPackageStream>, Status> {
        let messages: Vec<_> = self.package.iter().cloned().map(Ok).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}

#[tonic::async_trait]
impl ApprovalService for Peer {
    type WatchApprovalsStream = Answer<pb::WatchApprovalsResponse>;

    async fn consume_approval(
        &self,
        request: Request<pb::ConsumeApprovalRequest>,
    ) -> Result<Response<pb::ConsumeApprovalResponse>, Status> {
        let request = request.into_inner();
        self.asked.send_modify(|asked| asked.push(request.clone()));
        let mood = self.mood.borrow().clone();
        if let Mood::Refuses(status) = mood {
            return Err(status);
        }
        let used = self.used.lock().unwrap().entry(request.id.clone()).or_insert_with(|| request.clone()).clone();
        if used != request {
            return Err(Refusal::new(Reason::ApprovalInvalid, "it was used by another run: ask for a new one").into());
        }
        let mut approval = Some(pb::Approval {
            id: request.id,
            agent: request.agent,
            skill: request.skill,
            digest: request.digest,
            args_sha256: request.args_sha256,
            run_id: request.run_id,
            state: pb::ApprovalState::Consumed.into(),
            created_at: Some(SystemTime::now().into()),
            ..pb::Approval::default()
        });
        match mood {
            Mood::Loses => return Err(Status::unavailable("the connection was lost")),
            Mood::Answers(make) => make(&mut approval),
            Mood::Slow => {
                let mut mood = self.mood.subscribe();
                mood.wait_for(|mood| !matches!(mood, Mood::Slow)).await.unwrap();
            }
            Mood::Good | Mood::Refuses(_) => {}
        }
        Ok(Response::new(pb::ConsumeApprovalResponse { approval }))
    }

    async fn request_approval(
        &self,
        _: Request<pb::RequestApprovalRequest>,
    ) -> Result<Response<pb::RequestApprovalResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn sign_approval(
        &self,
        _: Request<pb::SignApprovalRequest>,
    ) -> Result<Response<pb::SignApprovalResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn get_approval(
        &self,
        _: Request<pb::GetApprovalRequest>,
    ) -> Result<Response<pb::GetApprovalResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn list_approvals(
        &self,
        _: Request<pb::ListApprovalsRequest>,
    ) -> Result<Response<pb::ListApprovalsResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn watch_approvals(
        &self,
        _: Request<pb::WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchApprovalsStream>, Status> {
        Err(Status::unimplemented("not asked"))
    }
}

/// The executor, its registry, and the files that tell what its skills did.
struct World {
    directory: TempDir,
    peer: Peer,
    address: SocketAddr,
    /// It goes with all its connections.
    registry: Option<Runtime>,
    flags: Vec<String>,
    executor: Option<Child>,
    client: Option<ExecutorServiceClient<Dialer>>,
    digest: Digest,
}

/// Leaves a line, and goes on for as long as a file is there.
fn script(directory: &TempDir) -> String {
    let directory = directory.path().display();
    format!(
        "#!/bin/sh\nread -r args\necho \"$args\" >> {directory}/effects\n\
         while [ -e {directory}/hold ]; do /bin/sleep 0.01; done\necho '{{}}'\n"
    )
}

fn skill(name: &str, class: Class, digest: Digest) -> Skill {
    Skill {
        name: name.parse().unwrap(),
        description: "does it".to_owned(),
        source: Source::External,
        digest,
        path: name.to_owned(),
        kind: Kind::Subprocess(Subprocess {
            schema_json: r#"{"type":"object"}"#.to_owned(),
            entry: "run.sh".parse().unwrap(),
            env_allow: Vec::new(),
            timeout_seconds: 30,
            class,
        }),
        card: Card::default(),
        extra: serde_json::Map::new(),
        modified_at: std::time::UNIX_EPOCH,
    }
}

fn agent(name: &str, permission_mode: PermissionMode) -> Agent {
    Agent {
        name: name.to_owned(),
        description: String::new(),
        skills: ["*".to_owned()].into(),
        disallowed_skills: [].into(),
        permission_mode,
    }
}

impl World {
    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn with(flags: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let content = script(&directory).into_bytes();
        let sha256 = Digest::of(&content);
        let path: skillyard::PackagePath = "run.sh".parse().unwrap();
        let digest = Digest::of_package(&[PackageFile { path, size: content.len() as u64, executable: true, sha256 }]);
        let header = pb::FileHeader {
            path: "run.sh".to_owned(),
            size: content.len() as u64,
            executable: true,
            sha256: sha256.to_string(),
        };
        let package = [pb::fetch_package_response::Part::File(header), pb::fetch_package_response::Part::Data(content)];
        let skills = [("safe", Class::Safe), ("mutates", Class::Mutating), ("destroys", Class::Dangerous)];
        let agents = [
            agent("reader", PermissionMode::ReadOnly),
            agent("confirms", PermissionMode::MutatingWithConfirm),
            agent("signs", PermissionMode::DualSignRequired),
        ];
        let peer = Peer {
            state: pb::WatchCatalogResponse {
                catalog_version: "1".to_owned(),
                full: true,
                more: false,
                changed: skills.iter().map(|(name, class)| wire::skill_to_wire(&skill(name, *class, digest))).collect(),
                agents: Some(pb::AgentSet { agents: agents.iter().map(wire::agent_to_wire).collect() }),
            },
            package: Arc::new(package.into_iter().map(|part| pb::FetchPackageResponse { part: Some(part) }).collect()),
            mood: watch::Sender::new(Mood::Good),
            used: Arc::default(),
            asked: watch::Sender::new(Vec::new()),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let registry = Some(serve(&peer, listener));
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let token = Token::random().unwrap();
        let callers = "callers: {planner: {roles: [orchestrator], agents: [\"*\"]}}";
        for (name, content) in
            [("token", token.expose()), ("tokens", &token.line("planner").unwrap()), ("callers.yaml", callers)]
        {
            fs::write(directory.path().join(name), content).unwrap();
        }
        let mut world = Self { directory, peer, address, registry, flags, executor: None, client: None, digest };
        world.start().await;
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn launch(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_executor-svc"))
            .args(["--listen", "127.0.0.1:0", "--name", "e1", "--log-format", "json"])
            .args(["--registry", &format!("http://{}", self.address)])
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--tokens-file")
            .arg(self.path("tokens"))
            .arg("--callers-file")
            .arg(self.path("callers.yaml"))
            .args(&self.flags)
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    /// Starts the executor over what it has on disk, and waits until it may run.
    async fn start(&mut self) {
        let (executor, mut lines, address) = within(async {
            loop {
                let mut executor = self.launch();
                let mut lines = BufReader::new(executor.stderr.take().unwrap()).lines();
                let mut said = Vec::new();
                while let Some(line) = lines.next_line().await.unwrap() {
                    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
                    if json["message"] == "listening" {
                        return (executor, lines, json["address"].as_str().unwrap().to_owned());
                    }
                    said.push(line);
                }
                // A slot that was being spawned when its executor was killed has its descriptors, the lock among them,
                // until it has become the slot.
                assert!(said.iter().any(|line| line.contains("is in use by process")), "the executor ended: {said:#?}");
            }
        })
        .await;
        // What it says further is read, so that it is not kept from saying it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let shown = DialOptions { token_file: Some(self.path("token")), ..DialOptions::default() };
        let dialer = Dialer::check(&format!("http://{address}"), &shown).unwrap();
        let mut client = ExecutorServiceClient::new(dialer);
        eventually("the executor has its catalog", async || {
            let status = client.clone().get_status(run::GetStatusRequest {}).await.unwrap().into_inner();
            !status.catalog_version.is_empty() && status.missing.is_empty()
        })
        .await;
        client.get_status(run::GetStatusRequest {}).await.unwrap();
        (self.executor, self.client) = (Some(executor), Some(client));
    }

    async fn kill(&mut self) {
        within(self.executor.take().unwrap().kill()).await.unwrap();
    }

    fn client(&self) -> ExecutorServiceClient<Dialer> {
        self.client.clone().unwrap()
    }

    fn feel(&self, mood: Mood) {
        self.peer.mood.send_replace(mood);
    }

    /// Waits until the registry was asked so many times.
    async fn asked(&self, times: usize) -> pb::ConsumeApprovalRequest {
        let mut asked = self.peer.asked.subscribe();
        within(asked.wait_for(|asked| asked.len() >= times)).await.unwrap()[times - 1].clone()
    }

    /// What the skills did: the arguments of every run that was started.
    fn effects(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("effects")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn run(&self, call: impl Borrow<Call>) -> Run {
        let mut run = Run { accepted: false, started: false, end: Ok(run::Finished::default()) };
        let mut stream = match self.open(call).await {
            Ok(stream) => stream,
            Err(status) => return Run { end: Err(status), ..run },
        };
        run.end = loop {
            match within(stream.message()).await {
                Err(status) => break Err(status),
                Ok(None) => panic!("a stream without an end: {run:?}"),
                Ok(Some(message)) => match message.event.unwrap().event.unwrap() {
                    Event::Accepted(_) => run.accepted = true,
                    Event::Started(_) => run.started = true,
                    Event::Finished(finished) => break Ok(finished),
                    _ => {}
                },
            }
        };
        run
    }

    async fn open(&self, call: impl Borrow<Call>) -> Result<Streaming<run::RunSkillResponse>, Status> {
        let call = call.borrow();
        let request = run::RunSkillRequest {
            skill: call.skill.to_owned(),
            arguments: Some(Arguments::ArgsJson(format!(r#"{{"n":"{}"}}"#, call.args))),
            agent: call.agent.to_owned(),
            run_id: call.run_id.clone(),
            approval_id: call.approval_id.clone(),
            ..run::RunSkillRequest::default()
        };
        let mut client = self.client();
        Ok(within(client.run_skill(request)).await?.into_inner())
    }

    /// Waits until nothing runs, and says why this run ended.
    async fn reason_of_end(&self, run_id: &str) -> String {
        eventually("the run ends", async || {
            self.client().get_status(run::GetStatusRequest {}).await.unwrap().into_inner().running == 0
        })
        .await;
        let request = run::CancelRunRequest { run_id: run_id.to_owned(), reason: String::new() };
        let run = self.client().cancel_run(request).await.unwrap().into_inner().run.unwrap();
        run.finished.unwrap().reason
    }

    fn registry_gone(&mut self) {
        self.registry.take().unwrap().shutdown_background();
    }

    fn registry_back(&mut self) {
        self.registry = Some(serve(&self.peer, TcpListener::bind(self.address).unwrap()));
    }
}

fn serve(peer: &Peer, listener: TcpListener) -> Runtime {
    let (packages, approvals) = (PackageServiceServer::new(peer.clone()), ApprovalServiceServer::new(peer.clone()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    listener.set_nonblocking(true).unwrap();
    runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let server = tonic::transport::Server::builder().add_service(packages).add_service(approvals);
        server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    runtime
}

impl Drop for World {
    /// Read-only directories are removed by nobody but root.
    fn drop(&mut self) {
        self.registry.take().into_iter().for_each(Runtime::shutdown_background);
        use std::os::unix::fs::PermissionsExt as _;
        for package in fs::read_dir(self.path("state/store")).into_iter().flatten().flatten() {
            let _ = fs::set_permissions(package.path(), fs::Permissions::from_mode(0o755));
        }
    }
}

#[derive(Clone, Debug)]
struct Call {
    skill: &'static str,
    agent: &'static str,
    args: String,
    run_id: String,
    approval_id: String,
}

/// A call of the mutating skill, whose run, arguments and approval have one name.
fn call(name: &str) -> Call {
    Call {
        skill: "mutates",
        agent: "confirms",
        args: name.to_owned(),
        run_id: name.to_owned(),
        approval_id: format!("approval-of-{name}"),
    }
}

#[derive(Debug)]
struct Run {
    accepted: bool,
    started: bool,
    end: Result<run::Finished, Status>,
}

impl Run {
    /// `SUCCEEDED`, `LOST EXECUTOR_LOST`, or the code and the reason of a refusal.
    fn short(&self) -> String {
        match &self.end {
            Ok(finished) => {
                let outcome = finished.outcome().as_str_name().trim_start_matches("OUTCOME_");
                format!("{outcome} {}", finished.reason).trim_end().to_owned()
            }
            Err(status) => {
                let info = status.get_details_error_info().unwrap_or_else(|| panic!("not ours: {status:?}"));
                format!("{:?} {}", status.code(), info.reason)
            }
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        self.end.as_ref().unwrap_err().get_details_retry_info()?.retry_delay
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("took longer than 30 s")
}

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn line(name: &str) -> String {
    format!(r#"{{"n":"{name}"}}"#)
}

#[tokio::test]
async fn a_run_uses_its_approval_and_says_so() {
    let world = World::new().await;
    for (skill, agent, expected) in [
        ("mutates", "reader", "PermissionDenied CLASS_NOT_PERMITTED"),
        ("mutates", "", "PermissionDenied CLASS_NOT_PERMITTED"),
        ("destroys", "confirms", "PermissionDenied CLASS_NOT_PERMITTED"),
        ("mutates", "confirms", "SUCCEEDED"),
        ("mutates", "signs", "SUCCEEDED"),
        ("destroys", "signs", "SUCCEEDED"),
        ("safe", "reader", "SUCCEEDED"),
    ] {
        let name = format!("{skill}-{agent}");
        let the_call = Call { skill, agent, ..call(&name) };
        if expected == "SUCCEEDED" && skill != "safe" {
            let without = Call { approval_id: String::new(), ..the_call.clone() };
            let refused = world.run(&without).await;
            assert_eq!(refused.short(), "FailedPrecondition APPROVAL_REQUIRED");
            let message = refused.end.unwrap_err().message().to_owned();
            assert!(message.contains("RequestApproval") && message.contains("approval_id"), "{message}");
        }
        assert_eq!(world.run(&the_call).await.short(), expected, "{name}");
    }
    assert_eq!(world.effects(), ["mutates-confirms", "mutates-signs", "destroys-signs", "safe-reader"].map(line));
    let asked = world.peer.asked.borrow().clone();
    assert_eq!(asked.len(), 3, "only for these: {asked:?}");
    assert_eq!(
        asked[2],
        pb::ConsumeApprovalRequest {
            id: "approval-of-destroys-signs".to_owned(),
            run_id: "destroys-signs".to_owned(),
            agent: "signs".to_owned(),
            skill: "destroys".to_owned(),
            digest: world.digest.to_string(),
            args_sha256: Digest::of(line("destroys-signs").as_bytes()).to_string(),
            journal_id: asked[0].journal_id.clone(),
        }
    );
    let request = run::CancelRunRequest { run_id: "destroys-signs".to_owned(), reason: String::new() };
    let run = world.client().cancel_run(request).await.unwrap().into_inner().run.unwrap();
    assert_eq!(run.approval_id, "approval-of-destroys-signs");
    // An id of the executor's choice does as well; an approval is of use once.
    let unnamed = Call { run_id: String::new(), ..call("unnamed") };
    assert_eq!(world.run(&unnamed).await.short(), "SUCCEEDED");
    assert_eq!(world.run(&unnamed).await.short(), "FailedPrecondition APPROVAL_INVALID");
    let bad = Call { approval_id: "a b".to_owned(), ..call("bad") };
    assert_eq!(world.run(&bad).await.short(), "InvalidArgument INVALID_REQUEST");
    assert_eq!(world.effects().len(), 5);
}

#[tokio::test]
async fn a_refused_approval_starts_nothing_and_uses_no_id_up() {
    let world = World::new().await;
    let refuses = |reason: Reason| Mood::Refuses(Refusal::new(reason, "for a reason").into());
    let moods = [
        (refuses(Reason::UnknownApproval), "NotFound UNKNOWN_APPROVAL"),
        (refuses(Reason::ApprovalPending), "FailedPrecondition APPROVAL_PENDING"),
        (refuses(Reason::ApprovalInvalid), "FailedPrecondition APPROVAL_INVALID"),
        (refuses(Reason::CallerUnknown), "Unavailable REGISTRY_UNAVAILABLE"),
        (refuses(Reason::CallerNotAllowed), "Unavailable REGISTRY_UNAVAILABLE"),
        (Mood::Refuses(Status::unimplemented("no such service")), "Unavailable REGISTRY_UNAVAILABLE"),
        (Mood::Refuses(Status::internal("a fault")), "Unavailable REGISTRY_UNAVAILABLE"),
        (Mood::Answers(|approval| *approval = None), "Unavailable REGISTRY_UNAVAILABLE"),
        (
            Mood::Answers(|approval| approval.as_mut().unwrap().state = pb::ApprovalState::Approved.into()),
            "Unavailable REGISTRY_UNAVAILABLE",
        ),
        (
            Mood::Answers(|approval| approval.as_mut().unwrap().run_id = "other".to_owned()),
            "Unavailable REGISTRY_UNAVAILABLE",
        ),
        (
            Mood::Answers(|approval| approval.as_mut().unwrap().digest = Digest::of(b"").to_string()),
            "Unavailable REGISTRY_UNAVAILABLE",
        ),
        (Mood::Answers(|approval| approval.as_mut().unwrap().created_at = None), "Unavailable REGISTRY_UNAVAILABLE"),
    ];
    for (mood, expected) in moods {
        world.feel(mood);
        let refused = world.run(call("a")).await;
        assert_eq!((refused.short().as_str(), refused.accepted, refused.started), (expected, true, false));
        assert_eq!(refused.retry_after().is_some(), expected.starts_with("Unavailable"), "{expected}");
    }
    assert_eq!(world.effects(), Vec::<String>::new());
    world.feel(Mood::Good);
    assert_eq!(world.run(call("a")).await.short(), "SUCCEEDED");
    assert_eq!(world.effects(), ["a"].map(line));
}

#[tokio::test]
async fn without_the_registry_safe_runs_go_on_and_the_others_are_refused_at_once() {
    let mut world = World::new().await;
    world.registry_gone();
    let begun = Instant::now();
    let refused = world.run(call("a")).await;
    assert_eq!(refused.short(), "Unavailable REGISTRY_UNAVAILABLE");
    assert!(refused.retry_after().is_some() && !refused.started);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let safe = Call { skill: "safe", approval_id: String::new(), ..call("b") };
    assert_eq!(world.run(&safe).await.short(), "SUCCEEDED");
    world.registry_back();
    eventually("the run goes through", async || world.run(call("a")).await.short() == "SUCCEEDED").await;
    assert_eq!(world.effects(), ["b", "a"].map(line));

    // One that is there and says nothing is waited for a few seconds.
    world.feel(Mood::Slow);
    let begun = Instant::now();
    assert_eq!(world.run(call("c")).await.short(), "Unavailable REGISTRY_UNAVAILABLE");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // It had bound the approval to the run, which may come again.
    world.feel(Mood::Good);
    assert_eq!(world.run(call("c")).await.short(), "SUCCEEDED");
    assert_eq!(world.effects(), ["b", "a", "c"].map(line));
}

#[tokio::test]
async fn an_answer_that_was_lost_is_asked_for_again() {
    let world = World::new().await;
    world.feel(Mood::Loses);
    let (run, ()) = tokio::join!(world.run(call("a")), async {
        world.asked(1).await;
        world.feel(Mood::Good);
    });
    assert_eq!(run.short(), "SUCCEEDED");
    world.feel(Mood::Loses);
    assert_eq!(world.run(call("b")).await.short(), "Unavailable REGISTRY_UNAVAILABLE");
    world.feel(Mood::Good);
    // The approval is bound to that run, and to no other.
    let other = Call { run_id: "other".to_owned(), ..call("b") };
    assert_eq!(world.run(&other).await.short(), "FailedPrecondition APPROVAL_INVALID");
    assert_eq!(world.run(call("b")).await.short(), "SUCCEEDED");
    assert_eq!(world.run(call("b")).await.short(), "SUCCEEDED");
    assert_eq!(world.effects(), ["a", "b"].map(line));
}

#[tokio::test]
async fn a_run_that_is_ended_while_it_waits_for_the_word_does_not_start() {
    let mut world = World::with(&["--drain-timeout", "0s"]).await;
    world.feel(Mood::Slow);
    // Cancelled by word.
    let (run, ()) = tokio::join!(world.run(call("cancelled")), async {
        world.asked(1).await;
        let request = run::CancelRunRequest { run_id: "cancelled".to_owned(), reason: String::new() };
        world.client().cancel_run(request).await.unwrap();
    });
    assert_eq!((run.short().as_str(), run.started), ("CANCELLED CANCEL_REQUESTED", false));
    // By the caller's leaving.
    let left = Call { run_id: String::new(), ..call("left") };
    let stream = world.open(&left).await.unwrap();
    let run_id = world.asked(2).await.run_id;
    drop(stream);
    assert_eq!(world.reason_of_end(&run_id).await, "CALLER_GONE");
    // By the deadline of the call.
    let mut client = world.client();
    let mut request = Request::new(run::RunSkillRequest {
        skill: "mutates".to_owned(),
        agent: "confirms".to_owned(),
        run_id: "late".to_owned(),
        approval_id: "late".to_owned(),
        ..run::RunSkillRequest::default()
    });
    request.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
    let _stream = client.run_skill(request).await;
    world.asked(3).await;
    assert_eq!(world.reason_of_end("late").await, "DEADLINE");
    // What comes late starts nothing.
    world.feel(Mood::Good);
    assert_eq!(world.run(call("after")).await.short(), "SUCCEEDED");
    assert_eq!(world.effects(), ["after"].map(line));
    assert_eq!(world.run(call("cancelled")).await.short(), "CANCELLED CANCEL_REQUESTED");

    // By the end of the executor.
    world.feel(Mood::Slow);
    let pid = world.executor.as_ref().unwrap().id().unwrap();
    let (run, ()) = tokio::join!(world.run(call("drained")), async {
        world.asked(5).await;
        let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    });
    assert_eq!((run.short().as_str(), run.started), ("CANCELLED DRAINING", false));
    within(world.executor.as_mut().unwrap().wait()).await.unwrap();
    world.feel(Mood::Good);
    world.start().await;
    // Each of them has its end, and is not made later either.
    for name in ["cancelled", "drained"] {
        let refused = world.run(call(name)).await;
        assert_eq!(refused.short(), "FailedPrecondition RESULT_EXPIRED", "{name}");
    }
    assert_eq!(world.effects(), ["after"].map(line));
}

#[tokio::test]
async fn the_same_call_again_at_any_time_is_one_run() {
    let mut world = World::new().await;
    let hold = world.path("hold");
    fs::write(&hold, "").unwrap();
    // While the registry thinks, while it runs, and after its end.
    world.feel(Mood::Slow);
    let runs = async { tokio::join!(world.run(call("a")), world.run(call("a")), world.run(call("a"))) };
    let later = async {
        world.asked(1).await;
        world.feel(Mood::Good);
        eventually("it runs", async || !world.effects().is_empty()).await;
        let again = world.run(call("a"));
        let end = async {
            // The same call while it runs, which is another's if anything is another.
            let other = Call { args: "other".to_owned(), ..call("a") };
            assert_eq!(world.run(&other).await.short(), "AlreadyExists RUN_ID_REUSED");
            fs::remove_file(&hold).unwrap();
        };
        tokio::join!(again, end).0
    };
    let ((first, second, third), fourth) = tokio::join!(runs, later);
    let fifth = world.run(call("a")).await;
    for run in [&first, &second, &third, &fourth, &fifth] {
        assert_eq!(run.short(), "SUCCEEDED");
        assert_eq!(run.end.as_ref().unwrap(), first.end.as_ref().unwrap());
    }
    assert_eq!(world.effects(), ["a"].map(line));
    assert_eq!(world.peer.asked.borrow().len(), 1);

    // After kill -9 of an executor whose run had ended.
    world.kill().await;
    world.start().await;
    let refused = world.run(call("a")).await;
    assert_eq!(refused.short(), "FailedPrecondition RESULT_EXPIRED");
    let other = Call { args: "other".to_owned(), ..call("a") };
    assert_eq!(world.run(&other).await.short(), "AlreadyExists RUN_ID_REUSED");

    // While it runs.
    fs::write(&hold, "").unwrap();
    let stream = world.open(call("b")).await.unwrap();
    eventually("it runs", async || world.effects().len() == 2).await;
    world.kill().await;
    drop(stream);
    world.start().await;
    fs::remove_file(&hold).unwrap();
    for _ in 0..2 {
        let lost = world.run(call("b")).await;
        assert_eq!((lost.short().as_str(), lost.accepted, lost.started), ("LOST EXECUTOR_LOST", true, false));
    }
    let other = Call { args: "other".to_owned(), ..call("b") };
    assert_eq!(world.run(&other).await.short(), "AlreadyExists RUN_ID_REUSED");
    let other = Call { run_id: "other".to_owned(), ..call("b") };
    assert_eq!(world.run(&other).await.short(), "FailedPrecondition APPROVAL_INVALID");

    // While the registry thinks.
    world.feel(Mood::Slow);
    let stream = world.open(call("c")).await.unwrap();
    let asked = world.peer.asked.borrow().len();
    world.asked(asked.max(3)).await;
    eventually("it is asked", async || world.peer.used.lock().unwrap().contains_key("approval-of-c")).await;
    world.kill().await;
    drop(stream);
    world.feel(Mood::Good);
    world.start().await;
    assert_eq!(world.run(call("c")).await.short(), "LOST EXECUTOR_LOST");
    assert_eq!(world.effects(), ["a", "b"].map(line));
}

/// A journal that does not know a run is another journal, and the registry gives it no approval that was used.
#[tokio::test]
async fn what_ran_is_not_run_again_after_the_state_was_lost() {
    let mut world = World::new().await;
    assert_eq!(world.run(call("a")).await.short(), "SUCCEEDED");
    let before = world.asked(1).await.journal_id;
    world.kill().await;
    world.start().await;
    assert_eq!(world.run(call("b")).await.short(), "SUCCEEDED");
    assert_eq!(world.asked(2).await.journal_id, before, "it is the journal's, not the process's");
    world.kill().await;
    // As an operator who empties a disk does.
    fs::remove_dir_all(world.path("state/journal")).unwrap();
    world.start().await;
    let refused = world.run(call("a")).await;
    assert_eq!(refused.short(), "FailedPrecondition APPROVAL_INVALID");
    let asked = world.asked(3).await;
    assert_eq!((asked.run_id.as_str(), asked.journal_id.len()), ("a", 32));
    assert_ne!(asked.journal_id, before);
    assert_eq!(world.effects(), ["a", "b"].map(line));
}

/// At moments that nobody chose; every call is made again until it has an answer that is none of "later".
#[tokio::test]
async fn killed_at_any_moment_it_runs_nothing_twice() {
    let mut world = World::new().await;
    let mut outcomes: HashMap<String, usize> = HashMap::new();
    for round in 0_u64..12 {
        let calls: Vec<_> = (0..3).map(|i| call(&format!("r{round}-{i}"))).collect();
        let mut streams = Vec::new();
        for call in &calls {
            streams.push(world.open(call).await.unwrap());
        }
        // From before the record is written to after the end.
        tokio::time::sleep(Duration::from_micros(round * 1500)).await;
        world.kill().await;
        drop(streams);
        world.start().await;
        for call in &calls {
            for _ in 0..2 {
                let run = world.run(call).await;
                *outcomes.entry(run.short()).or_default() += 1;
            }
            let made = world.effects().iter().filter(|effect| **effect == line(&call.args)).count();
            assert!(made <= 1, "{call:?} was run {made} times");
        }
    }
    for outcome in outcomes.keys() {
        let expected = ["SUCCEEDED", "LOST EXECUTOR_LOST", "FailedPrecondition RESULT_EXPIRED"];
        assert!(expected.contains(&outcome.as_str()), "{outcomes:?}");
    }
}

#[tokio::test]
async fn an_executor_does_not_start_over_a_journal_that_it_cannot_read() {
    let mut world = World::new().await;
    assert_eq!(world.run(call("a")).await.short(), "SUCCEEDED");
    world.kill().await;
    let journal = world.path("state/journal/journal.redb");
    let good = fs::read(&journal).unwrap();
    for bad in [&b""[..], b"nonsense", &good[..good.len() / 3]] {
        fs::write(&journal, bad).unwrap();
        // Not at the second attempt either.
        for _ in 0..2 {
            let ended = within(world.launch().wait_with_output()).await.unwrap();
            let said = String::from_utf8(ended.stderr).unwrap();
            assert_eq!(ended.status.code(), Some(1), "{said}");
            assert!(said.contains(journal.to_str().unwrap()) && said.contains("put back the file"), "{said}");
        }
    }
    fs::write(&journal, good).unwrap();
    world.start().await;
    assert_eq!(world.run(call("a")).await.short(), "FailedPrecondition RESULT_EXPIRED");
    assert_eq!(world.effects(), ["a"].map(line));
}
