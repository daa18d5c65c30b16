//! A world for the tests: a directory with skills and agents, and the real binary serving them on a free port.

#![expect(clippy::disallowed_methods, reason = "tests start the real binary")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use skillyard::service::dial::{DialOptions, Dialer};
use skillyard::service::token::Token;
use tempfile::TempDir;

/// Nothing here takes this long on a machine that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A directory to put skills and agents into.
pub(crate) struct World {
    pub(crate) dir: TempDir,
}

/// A registry that runs; it ends with the value.
pub(crate) struct Registry {
    child: Child,
    pub(crate) port: u16,
    /// Shows an operator's token.
    pub(crate) channel: Dialer,
    lines: Arc<Lines>,
}

#[derive(Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl World {
    pub(crate) fn new() -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        for dir in ["ext", "playbooks", "agents"] {
            fs::create_dir(world.path(dir)).unwrap();
        }
        world
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        // Links on the way, as a temporary directory may have one, would make other paths in reports.
        fs::canonicalize(self.dir.path()).unwrap().join(relative)
    }

    /// Writes a file and the directories to it, at once whole, as an editor that renames does.
    pub(crate) fn write(&self, relative: &str, content: impl AsRef<[u8]>) {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let beside = self.dir.path().join("beside");
        fs::write(&beside, content).unwrap();
        if relative.ends_with(".sh") {
            fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::rename(beside, path).unwrap();
    }

    /// A subprocess skill with further keys.
    pub(crate) fn skill(&self, name: &str, more: &str) {
        self.write(&format!("ext/{name}/run.sh"), "#!/bin/sh\necho '{}'\n");
        let manifest = format!(r#"{{"name":"{name}","description":"does {name}","entry":"run.sh"{more}}}"#);
        self.write(&format!("ext/{name}/skill.json"), manifest);
    }

    pub(crate) fn playbook(&self, name: &str) {
        self.write(
            &format!("playbooks/{name}/SKILL.md"),
            format!("---\nname: {name}\ndescription: about {name}\n---\nDo.\n"),
        );
    }

    pub(crate) fn agent(&self, name: &str, more: &str) {
        self.write(&format!("agents/{name}.md"), format!("---\nname: {name}\ndescription: an agent\n{more}\n---\n"));
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_registry-svc"));
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Serves the world's directories. Rescans come too seldom to help.
    pub(crate) async fn serve(&self, more: &[&str]) -> Registry {
        self.serve_beside("", more).await
    }

    /// The same, as another registry over the same directories: its state and its tokens have names of their own.
    pub(crate) async fn serve_beside(&self, name: &str, more: &[&str]) -> Registry {
        self.start(&[], name, more).await
    }

    /// The same, started by another program that becomes it.
    pub(crate) async fn serve_wrapped(&self, wrapper: &[String], more: &[&str]) -> Registry {
        self.start(wrapper, "", more).await
    }

    async fn start(&self, wrapper: &[String], name: &str, more: &[&str]) -> Registry {
        let (access, state) = (format!("access{name}"), format!("state{name}"));
        let mut command = self.command();
        command.args(["--listen", "127.0.0.1:0", "--log-format", "json", "--rescan-interval", "1h"]);
        command.arg("--external-dirs").arg(self.path("ext")).arg("--skill-roots").arg(self.path("playbooks"));
        command.arg("--agents-dir").arg(self.path("agents")).arg("--state-dir").arg(self.path(&state)).args(more);
        let token = Token::random().unwrap();
        self.write(&format!("{access}/tokens"), token.line("operator").unwrap());
        self.write(&format!("{access}/token"), token.expose());
        self.write(&format!("{access}/callers.yaml"), "callers: {operator: {roles: [operator]}}");
        command.arg("--tokens-file").arg(self.path(&format!("{access}/tokens")));
        command.arg("--callers-file").arg(self.path(&format!("{access}/callers.yaml")));
        if let Some((program, before)) = wrapper.split_first() {
            let mut wrapped = Command::new(program);
            wrapped.args(before).arg(command.get_program()).args(command.get_args());
            wrapped.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
            wrapped.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command = wrapped;
        }
        let options = DialOptions { token_file: Some(self.path(&format!("{access}/token"))), ..DialOptions::default() };
        Registry::start(command, "http://127.0.0.1", &options).await
    }
}

impl Registry {
    /// Starts it, and waits until it serves those who come with this.
    pub(crate) async fn start(mut command: Command, url: &str, options: &DialOptions) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = Arc::new(Lines::default());
        let (stderr, sink) = (child.stderr.take().unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                sink.lines.lock().unwrap().push(line.unwrap());
                sink.more.notify_all();
            }
        });
        let listening =
            lines.wait_for(|line| serde_json::from_str::<Value>(line).is_ok_and(|v| v["message"] == "listening"));
        let listening: Value = serde_json::from_str(&listening).unwrap();
        let port = listening["address"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        let channel = Dialer::check(&format!("{url}:{port}"), options).unwrap();
        let registry = Self { child, port, channel, lines };
        registry.until_serving().await;
        registry
    }

    async fn until_serving(&self) {
        let client = tonic_health::pb::health_client::HealthClient::new(self.channel.clone());
        let mut health =
            client.clone().watch(tonic_health::pb::HealthCheckRequest::default()).await.unwrap().into_inner();
        let serving = async { while health.message().await.unwrap().unwrap().status != 1 {} };
        tokio::time::timeout(PATIENCE, serving).await.unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a log line with this message, and gives all of it.
    pub(crate) fn logs(&self, message: &str) -> Value {
        let is = |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|value| value["message"] == message);
        serde_json::from_str(&self.lines.wait_for(is)).unwrap()
    }

    /// The log lines with this message so far.
    pub(crate) fn all(&self, message: &str) -> Vec<Value> {
        let lines = self.lines.lines.lock().unwrap();
        let values = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        values.filter(|value| value["message"] == message).collect()
    }

    /// The messages of the log so far, with the level before each.
    pub(crate) fn log(&self) -> Vec<String> {
        let lines = self.lines.lines.lock().unwrap();
        let values = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        values
            .map(|value| format!("{} {}", value["level"].as_str().unwrap(), value["message"].as_str().unwrap()))
            .collect()
    }

    /// Where its admin port is, as it logged before it served.
    #[allow(dead_code, reason = "not every test program asks for it")]
    pub(crate) fn admin_address(&self) -> SocketAddr {
        let lines = self.lines.lines.lock().unwrap();
        let mut values = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let line = values.find(|value| value["message"].as_str().unwrap().starts_with("admin port")).unwrap();
        line["address"].as_str().unwrap().parse().unwrap()
    }

    /// The calls in the log so far: level, method, agent and code of each.
    pub(crate) fn calls(&self) -> Vec<String> {
        let lines = self.lines.lines.lock().unwrap();
        let values = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        values
            .filter(|value| value["message"] == "answered")
            .map(|value| {
                let method = text(&value["span"]["method"]).rsplit('/').next().unwrap().to_owned();
                assert!(value["took"].is_string(), "{value}");
                [text(&value["level"]), method, text(&value["span"]["agent"]), text(&value["code"])].join(" ")
            })
            .collect()
    }

    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// How it ended, and how long that took.
    pub(crate) async fn ended(mut self) -> (ExitStatus, Duration) {
        let began = Instant::now();
        let status = eventually(async || self.child.try_wait().unwrap()).await;
        (status, began.elapsed())
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the registry's log:\n{}", self.lines.lines.lock().unwrap().join("\n"));
        }
    }
}

impl Lines {
    fn wait_for(&self, wanted: impl Fn(&str) -> bool) -> String {
        let mut lines = self.lines.lock().unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = lines.iter().find(|line| wanted(line)) {
                return line.clone();
            }
            assert!(Instant::now() < end, "the line does not come: {lines:#?}");
            lines = self.more.wait_timeout(lines, Duration::from_millis(100)).unwrap().0;
        }
    }
}

/// Asks until there is an answer.
pub(crate) async fn eventually<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < end, "it does not come to be");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Memory of a process, as `/proc/PID/status` names it, in KiB.
pub(crate) fn memory_kib(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
