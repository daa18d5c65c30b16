//! A world: a registry and an executor as real processes over directories of their own, on ports that the kernel chose,
//! with clients to both. When it is dropped, both are killed, and nothing that they started may be left.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::{CancelRunRequest, GetStatusRequest, GetStatusResponse, Run};
use skillyard::pb::registry::v1::agent_service_client::AgentServiceClient;
use skillyard::pb::registry::v1::catalog_service_client::CatalogServiceClient;
use skillyard::pb::registry::v1::history_service_client::HistoryServiceClient;
use skillyard::pb::registry::v1::package_service_client::PackageServiceClient;
use skillyard::pb::registry::v1::{GetLoadReportRequest, GetLoadReportResponse, ReloadRequest};
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::access::{Door, Identities, Show};
use crate::pack::{AgentFile, Playbook, Skill};
use crate::process::{self, Process, Server, Start};
use crate::run::{Call, Live, Refused, RunSeen};
use crate::{binaries, eventually};

/// Both services, their files, and clients.
#[derive(Debug)]
pub struct World {
    directory: TempDir,
    /// Who there is. The registry of every world knows them, the executor where a test wants it.
    pub identities: Identities,
    /// Kept for a second start.
    registry_start: Start,
    executor_start: Start,
    registry: Option<(Server, SocketAddr)>,
    executor: Option<(Server, SocketAddr)>,
    channels: BTreeMap<SocketAddr, Channel>,
}

/// What is in a world before it starts.
#[derive(Debug)]
pub struct Builder {
    directory: TempDir,
    identities: Identities,
    registry: Start,
    executor: Start,
}

impl World {
    /// An empty world.
    ///
    /// # Panics
    /// When there is no room for temporary files.
    #[must_use]
    pub fn builder() -> Builder {
        Self::builder_in(&std::env::temp_dir())
    }

    /// The same in another place than that for temporary files, in which others come and go: whatever changes there costs
    /// the executor new slots.
    ///
    /// # Panics
    /// When there is no room.
    #[must_use]
    pub fn builder_in(place: &Path) -> Builder {
        std::fs::create_dir_all(place).unwrap();
        let directory = tempfile::Builder::new().prefix("skillyard-world-").tempdir_in(place).unwrap();
        let at = |name: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path.into_os_string()
        };
        let log = || ["--log-format", "json", "--log", "info"].map(OsString::from);
        let mut registry = Start { program: binaries::registry(), ..Start::default() };
        registry.arguments.extend(log());
        for (flag, path) in [
            ("--external-dirs", at("external")),
            ("--skill-roots", at("playbooks")),
            ("--cloud-dir", at("cloud")),
            ("--workspace", at("workspace")),
            ("--agents-dir", at("agents")),
            ("--state-dir", at("registry-state")),
        ] {
            registry.arguments.extend([flag.into(), path]);
        }
        registry.arguments.extend(["--tier", "lab"].map(OsString::from));
        let mut executor = Start { program: binaries::executor(), ..Start::default() };
        executor.arguments.extend(log());
        executor.arguments.extend(["--name".into(), "e1".into(), "--state-dir".into(), at("state")]);
        for start in [&mut registry, &mut executor] {
            start.environment.insert("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into());
        }
        let identities = Identities::new(&directory.path().join("access"));
        for (flag, path) in [("--tokens-file", identities.tokens_file()), ("--callers-file", identities.callers_file())]
        {
            registry.arguments.extend([flag.into(), path.into_os_string()]);
        }
        let token = identities.token_file("executor").into_os_string();
        executor.arguments.extend(["--registry-token-file".into(), token]);
        Builder { directory, identities, registry, executor }
    }

    /// A world with these skills.
    pub async fn of(skills: impl IntoIterator<Item = Skill>) -> Self {
        skills.into_iter().fold(Self::builder(), Builder::skill).start().await
    }

    /// A directory of it: `external`, `playbooks`, `workspace`, `agents`, `state`, or one more for a test's own files.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a skill, new or changed.
    pub fn write(&self, skill: &Skill) {
        skill.write(&self.path("external"));
    }

    /// The registry's catalog, as an operator sees it.
    pub fn catalog(&mut self) -> CatalogServiceClient<Door> {
        CatalogServiceClient::new(self.registry_as("operator"))
    }

    /// The registry's agents, likewise.
    pub fn agents(&mut self) -> AgentServiceClient<Door> {
        AgentServiceClient::new(self.registry_as("operator"))
    }

    /// The registry's packages, likewise.
    pub fn packages(&mut self) -> PackageServiceClient<Door> {
        PackageServiceClient::new(self.registry_as("operator"))
    }

    /// The registry's history, likewise.
    pub fn history(&mut self) -> HistoryServiceClient<Door> {
        HistoryServiceClient::new(self.registry_as("operator"))
    }

    /// Has the executor reach the registry at another address, from its next start on.
    ///
    /// # Panics
    /// When the registry was never started.
    pub fn reach_registry_at(&mut self, address: SocketAddr) {
        let arguments = &mut self.executor_start.arguments;
        let at = arguments.iter().position(|argument| argument == "--registry").expect("the registry was started");
        arguments[at + 1] = format!("http://{address}").into();
    }

    /// A way to the registry that shows somebody's token.
    pub fn registry_as(&mut self, name: &str) -> Door {
        let show = Show::token(self.identities.token(name));
        Door::new(self.channel(self.registry_address()), show)
    }

    /// A way to the executor that shows somebody's token.
    pub fn executor_as(&mut self, name: &str) -> ExecutorServiceClient<Door> {
        let show = Show::token(self.identities.token(name));
        ExecutorServiceClient::new(Door::new(self.channel(self.executor_address()), show))
    }

    /// The executor, on the channel that all its clients share.
    pub fn executor(&mut self) -> ExecutorServiceClient<Channel> {
        ExecutorServiceClient::new(self.channel(self.executor_address()))
    }

    /// The health of the executor, on the same channel.
    pub fn executor_health(&mut self) -> HealthClient<Channel> {
        HealthClient::new(self.channel(self.executor_address()))
    }

    /// Where the registry listens.
    ///
    /// # Panics
    /// When it was stopped.
    #[must_use]
    pub fn registry_address(&self) -> SocketAddr {
        self.registry.as_ref().expect("the registry was stopped").1
    }

    /// Where the executor listens.
    ///
    /// # Panics
    /// When it was stopped.
    #[must_use]
    pub fn executor_address(&self) -> SocketAddr {
        self.executor.as_ref().expect("the executor was stopped").1
    }

    /// The registry's process.
    ///
    /// # Panics
    /// When it was stopped.
    pub fn registry_server(&mut self) -> &mut Server {
        &mut self.registry.as_mut().expect("the registry was stopped").0
    }

    /// The executor's process.
    ///
    /// # Panics
    /// When it was stopped.
    pub fn executor_server(&mut self) -> &mut Server {
        &mut self.executor.as_mut().expect("the executor was stopped").0
    }

    /// The process id of the executor itself: its server may have made a namespace for it.
    ///
    /// # Panics
    /// When it was stopped.
    pub fn executor_pid(&mut self) -> i32 {
        let made = self.executor_start.wrapper.iter().any(|word| word == "--fork");
        let server = self.executor_server().pid();
        let inside = || process::all().into_iter().find(|one| one.parent == server).map(|one| one.pid);
        if made { inside().expect("the executor runs") } else { server }
    }

    /// Runs a skill to its end.
    ///
    /// # Panics
    /// When the call is refused.
    pub async fn run(&mut self, call: impl Into<Call>) -> RunSeen {
        self.open(call).await.rest().await
    }

    /// Runs a skill, without waiting for its end.
    ///
    /// # Panics
    /// When the call is refused at once.
    pub async fn open(&mut self, call: impl Into<Call>) -> Live {
        let call = call.into();
        let skill = call.request.skill.clone();
        self.try_open(call).await.unwrap_or_else(|status| panic!("{skill} was refused: {status:?}"))
    }

    /// Runs a skill.
    ///
    /// # Errors
    /// The executor's refusal.
    pub async fn try_open(&mut self, call: impl Into<Call>) -> Result<Live, Status> {
        Live::open(self.executor(), call).await
    }

    /// Runs a skill that is refused, before or after the head of the answer.
    ///
    /// # Panics
    /// When it is not.
    pub async fn refusal(&mut self, call: impl Into<Call>) -> Refused {
        let status = match self.try_open(call).await {
            Err(status) => status,
            Ok(live) => live.end().await.expect_err("the call is refused"),
        };
        Refused::of(&status)
    }

    /// Ends a run, or finds one that has ended.
    ///
    /// # Errors
    /// The executor's refusal.
    ///
    /// # Panics
    /// When the answer has no run.
    pub async fn cancel(&mut self, run_id: &str, reason: &str) -> Result<Run, Status> {
        let request = CancelRunRequest { run_id: run_id.to_owned(), reason: reason.to_owned() };
        Ok(self.executor().cancel_run(request).await?.into_inner().run.expect("a run"))
    }

    /// What the executor says of itself.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn status(&mut self) -> GetStatusResponse {
        self.executor().get_status(GetStatusRequest {}).await.expect("GetStatus").into_inner()
    }

    /// The whole load report.
    ///
    /// # Panics
    /// When the registry does not answer.
    pub async fn report(&mut self) -> GetLoadReportResponse {
        let request = GetLoadReportRequest { page_size: 1000, ..Default::default() };
        self.catalog().get_load_report(request).await.expect("GetLoadReport").into_inner()
    }

    /// Has the registry look at its files, and waits until the executor has what it found.
    ///
    /// # Panics
    /// When that does not happen.
    pub async fn settle(&mut self) -> String {
        let version = self.catalog().reload(ReloadRequest {}).await.expect("Reload").into_inner().catalog_version;
        eventually("the executor has the registry's catalog", async || {
            // An executor without identities takes no notice of the token.
            let status =
                self.executor_as("operator").get_status(GetStatusRequest {}).await.expect("GetStatus").into_inner();
            status.catalog_version == version && status.missing.is_empty()
        })
        .await;
        version
    }

    /// What runs in this world as a skill, or is left of one: every process in one of its directories.
    #[must_use]
    pub fn skill_processes(&self) -> Vec<Process> {
        let slot = binaries::executor();
        let inside = |p: &Process| p.directory().is_some_and(|d| d.starts_with(self.directory.path()));
        let is_slot = |p: &Process| p.program().is_some_and(|program| program == slot);
        process::all().into_iter().filter(|p| inside(p) && !is_slot(p)).collect()
    }

    /// Waits until no skill runs any more, and says how long it took.
    ///
    /// # Panics
    /// When one still does after `limit`.
    pub async fn quiet(&self, limit: Duration) -> Duration {
        let what = "no process of a skill is left";
        let began = Instant::now();
        let mut late = None;
        let (last, _) = crate::within(limit + crate::PATIENCE, what, async || {
            let at = began.elapsed();
            let left = self.skill_processes();
            if at > limit && !left.is_empty() {
                late.get_or_insert(left);
                return None;
            }
            left.is_empty().then_some(at)
        })
        .await;
        assert!(late.is_none(), "{what}, but only after {last:?}; after {limit:?} there were {late:#?}");
        last
    }

    /// Kills the registry, as a crash would.
    pub fn kill_registry(&mut self) {
        self.registry_server().kill();
        self.registry = None;
    }

    /// Starts the registry again, at its old address, where the executor looks for it.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_registry(&mut self) {
        let mut server = Server::start("registry-svc", &self.registry_start);
        let address = server.address();
        self.registry = Some((server, address));
        // The next start is at the same address.
        if let Some(at) = self.registry_start.arguments.iter().position(|argument| argument == "--listen") {
            self.registry_start.arguments[at + 1] = address.to_string().into();
        }
        let channel = self.channel(address);
        serving(&mut HealthClient::new(channel)).await;
    }

    /// Kills the executor, as a crash would.
    pub fn kill_executor(&mut self) {
        self.executor_server().kill();
        self.executor = None;
    }

    /// Starts the executor, on a new port over the same state, and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    pub fn launch_executor(&mut self) {
        let mut server = Server::start("executor-svc", &self.executor_start);
        let address = server.address();
        self.executor = Some((server, address));
    }

    /// The same, and waits until it serves.
    ///
    /// # Panics
    /// When it does not.
    pub async fn start_executor(&mut self) {
        self.launch_executor();
        self.executor_serves().await;
    }

    /// Waits until the executor serves.
    pub async fn executor_serves(&mut self) {
        serving(&mut self.executor_health()).await;
    }

    fn channel(&mut self, address: SocketAddr) -> Channel {
        self.channels.entry(address).or_insert_with(|| endpoint(address).connect_lazy()).clone()
    }
}

impl Builder {
    /// Adds a subprocess skill.
    #[must_use]
    pub fn skill(self, skill: Skill) -> Self {
        skill.write(&self.path("external"));
        self
    }

    /// Adds a playbook under the root for tests and development.
    #[must_use]
    pub fn playbook(self, playbook: &Playbook) -> Self {
        playbook.write(&self.path("playbooks"));
        self
    }

    /// Adds a playbook of the workspace.
    #[must_use]
    pub fn workspace_playbook(self, playbook: &Playbook) -> Self {
        playbook.write(&self.path("workspace").join("skills"));
        self
    }

    /// Adds an agent.
    #[must_use]
    pub fn agent(self, agent: &AgentFile) -> Self {
        agent.write(&self.path("agents"));
        self
    }

    /// Has the executor, too, serve known callers alone.
    #[must_use]
    pub fn known_callers(self) -> Self {
        let (tokens, callers) = (self.identities.tokens_file(), self.identities.callers_file());
        self.flag("--tokens-file", tokens.display()).flag("--callers-file", callers.display())
    }

    /// Sets a flag of the executor.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: impl ToString) -> Self {
        self.executor.arguments.extend([flag.into(), value.to_string().into()]);
        self
    }

    /// Sets a flag of the registry.
    #[must_use]
    pub fn registry_flag(mut self, flag: &str, value: impl ToString) -> Self {
        self.registry.arguments.extend([flag.into(), value.to_string().into()]);
        self
    }

    /// Runs at once, and runs that may wait.
    #[must_use]
    pub fn slots(self, slots: u32, queue: u32) -> Self {
        self.flag("--slots", slots).flag("--queue", queue)
    }

    /// Sets a variable of the executor's environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl ToString) -> Self {
        self.executor.environment.insert(name.to_owned(), value.to_string());
        self
    }

    /// Limits the executor's open files.
    #[must_use]
    pub fn open_files(mut self, limit: u32) -> Self {
        self.executor.wrapper = ["/bin/sh", "-c", &limited(limit)].map(OsString::from).into();
        self
    }

    /// Starts the executor with so many open files, of as many as it can have.
    #[must_use]
    pub fn soft_open_files(mut self, limit: u32) -> Self {
        let script = format!("ulimit -S -n {limit}; exec \"$0\" \"$@\"");
        self.executor.wrapper = ["/bin/sh", "-c", &script].map(OsString::from).into();
        self
    }

    /// Has the executor log to a pipe that is read until it has said that it listens, and held open unread from then on.
    #[must_use]
    pub fn log_is_not_read(mut self) -> Self {
        let script = "exec \"$0\" \"$@\" 2> >(while read -r l; do echo \"$l\" >&2; case $l in *'\"listening\"'*) break;; esac; done; exec sleep 600 2>/dev/null)";
        self.executor.wrapper = ["/bin/bash", "-c", script].map(OsString::from).into();
        self
    }

    /// Gives the executor a namespace of its own with so many process ids, where that can be had: what goes wrong in it
    /// does not reach the host. To be called last.
    #[must_use]
    pub fn process_ids(mut self, most: u32) -> Self {
        let script = format!("echo {most} >/proc/sys/kernel/pid_max && exec \"$0\" \"$@\"");
        let mut wrapper: Vec<_> =
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"].map(OsString::from).into();
        wrapper.extend(["/bin/sh", "-c", &script].map(OsString::from));
        let mut whole = wrapper.clone();
        whole.push("true".into());
        match possible(&whole) {
            Ok(()) => {
                wrapper.append(&mut self.executor.wrapper);
                self.executor.wrapper = wrapper;
            }
            Err(why) => eprintln!("without a namespace of its own: {why}"),
        }
        self
    }

    /// Gives the executor's state a file system of its own, mounted with these options, which nobody else sees. Only root
    /// may do that, and not everywhere.
    ///
    /// # Errors
    /// Why not.
    pub fn state_on(mut self, options: &str) -> Result<Self, String> {
        let state = self.path("state");
        let script = format!("mount -t tmpfs -o {options} none {} && exec \"$0\" \"$@\"", state.display());
        let wrapper = ["unshare", "--mount", "/bin/sh", "-c", &script].map(OsString::from);
        let mut whole = wrapper.to_vec();
        whole.push("true".into());
        possible(&whole)?;
        self.executor.wrapper = wrapper.into();
        Ok(self)
    }

    /// Has the executor and all that it starts traced, a system call a line of this file, where there is strace.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn traced(mut self, to: &Path) -> Result<Self, String> {
        let wrapper = ["strace".into(), "-f".into(), "-qq".into(), "-o".into(), to.as_os_str().to_owned()];
        let mut whole = wrapper.to_vec();
        whole.push("true".into());
        possible(&whole)?;
        self.executor.wrapper = wrapper.into();
        Ok(self)
    }

    /// Limits the registry's open files.
    #[must_use]
    pub fn registry_open_files(mut self, limit: u32) -> Self {
        self.registry.wrapper = ["/bin/sh", "-c", &limited(limit)].map(OsString::from).into();
        self
    }

    /// Breaks the pipe that the executor logs to as soon as it has said that it listens.
    #[must_use]
    pub fn log_breaks(mut self) -> Self {
        let script = "exec \"$0\" \"$@\" 2> >(grep -m1 '\"listening\"' >&2)";
        self.executor.wrapper = ["/bin/bash", "-c", script].map(OsString::from).into();
        self
    }

    /// Makes the executor process 1 of a namespace of its own. Its server is then the parent of process 1. Only root may
    /// do that, and not everywhere.
    ///
    /// # Errors
    /// Why not.
    pub fn as_process_one(mut self) -> Result<Self, String> {
        let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"].map(OsString::from);
        match possible(&wrapper) {
            Ok(()) => self.executor.wrapper = wrapper.into(),
            Err(why) => return Err(why),
        }
        Ok(self)
    }

    /// Runs both as a user who is not root; root alone can do that, and is the one that needs it. To be called once
    /// everything is written.
    ///
    /// # Errors
    /// Why it cannot be done.
    ///
    /// # Panics
    /// When the files cannot be given away.
    pub fn as_nobody(mut self) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Ok(self);
        }
        let wrapper = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"].map(OsString::from);
        // It must get at the programs, too.
        let mut reaches = wrapper.to_vec();
        reaches.extend(["test".into(), "-x".into(), self.executor.program.clone().into()]);
        possible(&reaches[..4]).and_then(|()| possible(&reaches))?;
        let root = self.directory.path().to_owned();
        for path in tree(&root).iter().chain([&root]) {
            std::os::unix::fs::lchown(path, Some(65534), Some(65534)).unwrap();
        }
        self.registry.wrapper = wrapper.clone().into();
        let inner = std::mem::replace(&mut self.executor.wrapper, wrapper.into());
        self.executor.wrapper.extend(inner);
        Ok(self)
    }

    /// A path in the world to be.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts both, and waits until the executor serves everything that the registry found.
    pub async fn start(self) -> World {
        let mut world = self.start_registry().await;
        world.start_executor().await;
        world.settle().await;
        world
    }

    /// Starts the registry alone; the executor is told where it is.
    pub async fn start_registry(mut self) -> World {
        let listen = ["--listen".into(), "127.0.0.1:0".into()];
        self.registry.arguments.extend(listen.clone());
        self.executor.arguments.extend(listen);
        let mut world = World {
            directory: self.directory,
            identities: self.identities,
            registry_start: self.registry,
            executor_start: self.executor,
            registry: None,
            executor: None,
            channels: BTreeMap::new(),
        };
        world.start_registry().await;
        let url = format!("http://{}", world.registry_address());
        world.executor_start.arguments.extend(["--registry".into(), url.into()]);
        world
    }
}

/// A script that becomes a program with so many open files at the most.
fn limited(open_files: u32) -> String {
    format!("ulimit -n {open_files}; exec \"$0\" \"$@\"")
}

/// Whether a wrapper does what it is for on this host; else what it says.
fn possible(wrapper: &[OsString]) -> Result<(), String> {
    let mut command = process::command(Path::new(&wrapper[0]));
    command.args(&wrapper[1..]);
    if wrapper.last().is_none_or(|last| last.to_string_lossy().starts_with('-')) {
        command.arg("true");
    }
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// A client's end of a connection that gives up where nothing answers.
///
/// # Panics
/// Never: an address makes a URL.
#[must_use]
pub fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_timeout(Duration::from_secs(10))
}

/// Waits until a service is SERVING.
pub async fn serving(health: &mut HealthClient<Channel>) {
    eventually("the service is SERVING", async || {
        let answer = health.check(HealthCheckRequest::default()).await;
        answer.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving)
    })
    .await;
}

impl Drop for World {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        let mut suspects = Vec::new();
        if let Some((server, _)) = &mut self.executor {
            suspects = process::descendants(server.pid());
            // Where it is process 1 of a namespace, its parent is what made that.
            let program = binaries::executor();
            let itself = |pid| process::read(pid).and_then(|p| p.program()).is_some_and(|found| found == program);
            if !itself(server.pid()) {
                suspects.iter().filter(|p| p.parent == server.pid() && itself(p.pid)).for_each(Process::kill);
            }
            server.kill();
        }
        if let Some((server, _)) = &mut self.registry {
            server.kill();
        }
        // What the executor leaves behind ends by itself, at once. A pid that was used again has another parent.
        let began = Instant::now();
        let left = loop {
            let again = |p: &Process| process::read(p.pid).filter(|now| now.command == p.command);
            let mut left: Vec<_> = suspects.iter().filter_map(again).chain(self.skill_processes()).collect();
            left.retain(Process::lives);
            if left.is_empty() || began.elapsed() > Duration::from_secs(2) {
                break left;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        left.iter().for_each(Process::kill);
        if failing || !left.is_empty() {
            for (server, _) in self.registry.iter().chain(&self.executor) {
                server.show_log();
            }
        }
        assert!(left.is_empty() || failing, "two seconds after the executor's end there still was {left:#?}");
    }
}

/// Every file and directory below a path, for a look at what is left.
///
/// # Panics
/// When a directory cannot be read.
#[must_use]
pub fn tree(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found.sort();
    found
}
