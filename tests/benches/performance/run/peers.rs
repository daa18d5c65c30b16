//! What a user would write or run instead, each on the smallest program, in turn with the executor. Those that
//! `performance/peers/install.sh` has installed are measured.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::rc::Rc;

use serde_json::{Value, json};
use skillyard_tests::process::command;
use skillyard_tests::world::endpoint;
use skillyard_tests::{binaries, pack};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::run::drive::{self, ARGUMENTS, Target};
use crate::run::executor::{self, Setting};
use crate::table::{Goal, Table};
use crate::{Options, say};

/// A peer: its name, its program and arguments below the target directory, how it is called, and how often the executor is
/// to be as fast.
const PEERS: [(&str, &[&str], Way, f64); 5] = [
    ("Python grpcio + subprocess", &["python/bin/python3", "grpc_server.py"], Way::Grpc, 5.0),
    ("MCP in Python, stdio", &["python/bin/python3", "mcp_server.py", "stdio"], Way::McpStdio, 10.0),
    ("MCP in Python, HTTP", &["python/bin/python3", "mcp_server.py", "http"], Way::McpHttp, 10.0),
    ("Go watchdog, HTTP", &["watchdog"], Way::Http, 2.5),
    ("Node grpc-js + spawn", &["node", "grpc_server.js"], Way::Grpc, 2.5),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Grpc,
    Http,
    McpHttp,
    McpStdio,
}

pub(crate) async fn measure(options: &Options, table: &mut Table) {
    let (mut world, calls) = executor::warm(Setting::AllOn.builder(), Setting::AllOn, options.slots).await;
    let executor = world.executor_server().pid();
    let program = binaries::compiled(pack::TINY);
    for (name, words, way, goal) in PEERS {
        let Some(mut peer) = Peer::start(words, way, &program) else {
            say(&format!("{name} is not installed: tests/benches/performance/peers/install.sh"));
            continue;
        };
        let target = peer.target(way).await;
        // The first calls start threads.
        target.measure(peer.pid(), 64, options.length / 2).await;
        for round in 0..options.rounds {
            for &at in &options.at {
                let (mut ours, mut theirs) = (None, None);
                for turn in [round % 2, (round + 1) % 2] {
                    if turn == 0 {
                        ours = Some(drive::measure(&calls, executor, at, options.length).await);
                    } else {
                        theirs = Some(target.measure(peer.pid(), at, options.length).await);
                    }
                }
                let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
                table.add(format!("runs a second, {at} at a time"), name, Goal::AtLeast(goal), ours.rate / theirs.rate);
                table.add(format!("processor time a run, {at} at a time"), name, Goal::None, ours.cpu / theirs.cpu);
            }
        }
    }
}

/// A peer's process, ended when it is dropped.
struct Peer(Child);

impl Peer {
    fn start(words: &[&str], way: Way, program: &Path) -> Option<Self> {
        let installed = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent()?.join("peers");
        let sources = binaries::workspace().join("tests/benches/performance/peers");
        let mut environment = vec![("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned())];
        let (first, arguments) = words.split_first()?;
        let mut start = if *first == "node" {
            let modules = installed.join("node/node_modules");
            environment.push(("NODE_PATH", modules.display().to_string()));
            modules.join("@grpc/grpc-js").exists().then(|| command(Path::new("node")))?
        } else {
            installed.join(first).exists().then(|| command(&installed.join(first)))?
        };
        for argument in arguments {
            match sources.join(argument) {
                script if script.exists() => start.arg(script),
                _ => start.arg(argument),
            };
        }
        start.arg(program).env_clear().envs(environment).stdout(Stdio::piped());
        start.stdin(if way == Way::McpStdio { Stdio::piped() } else { Stdio::null() });
        start.spawn().ok().map(Self)
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    async fn target(&mut self, way: Way) -> Called {
        if way == Way::McpStdio {
            let (stdin, stdout) = (self.0.stdin.take().unwrap(), self.0.stdout.take().unwrap());
            return Called::Stdio(StdioCalls::open(stdin, stdout).await);
        }
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().unwrap_or_else(|_| panic!("{line:?} is no port"));
        match way {
            Way::Grpc => Called::Grpc(GrpcCalls(endpoint(([127, 0, 0, 1], port).into()).connect_lazy())),
            _ => Called::Http(HttpCalls { port, mcp: way == Way::McpHttp, connection: None }),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

enum Called {
    Grpc(GrpcCalls),
    Http(HttpCalls),
    Stdio(StdioCalls),
}

impl Called {
    async fn measure(&self, server: i32, at: usize, length: std::time::Duration) -> drive::Sample {
        match self {
            Self::Grpc(calls) => drive::measure(calls, server, at, length).await,
            Self::Http(calls) => drive::measure(calls, server, at, length).await,
            Self::Stdio(calls) => drive::measure(calls, server, at, length).await,
        }
    }
}

#[derive(Clone)]
struct GrpcCalls(Channel);

impl Target for GrpcCalls {
    async fn run(&mut self) {
        let mut client = tonic::client::Grpc::new(self.0.clone());
        client.ready().await.unwrap();
        let request = tonic::Request::new(ARGUMENTS.as_bytes().to_vec());
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/peer.Runner/Run");
        let codec = ProstCodec::<Vec<u8>, Vec<u8>>::default();
        let answer = client.unary(request, path, codec).await.unwrap().into_inner();
        assert_eq!(answer, pack::TINY_RESULT.as_bytes());
    }
}

/// HTTP/1.1 on one connection each, which is kept.
struct HttpCalls {
    port: u16,
    mcp: bool,
    connection: Option<tokio::io::BufReader<TcpStream>>,
}

impl Clone for HttpCalls {
    fn clone(&self) -> Self {
        Self { connection: None, ..*self }
    }
}

impl Target for HttpCalls {
    async fn run(&mut self) {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
                stream.set_nodelay(true).unwrap();
                none.insert(tokio::io::BufReader::new(stream))
            }
        };
        let body = if self.mcp { tool_call(1).to_string() } else { ARGUMENTS.to_owned() };
        let request = format!(
            "POST /{} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
            if self.mcp { "mcp" } else { "" },
            self.port,
            body.len()
        );
        connection.get_mut().write_all(request.as_bytes()).await.unwrap();
        let (mut line, mut length, mut head) = (String::new(), 0, String::new());
        while connection.read_line(&mut line).await.unwrap() > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            head.push_str(&line);
            line.clear();
        }
        let mut answer = vec![0; length];
        connection.read_exact(&mut answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}{text}");
        if self.mcp {
            check(&serde_json::from_slice(&answer).unwrap());
        } else {
            assert_eq!(text, pack::TINY_RESULT);
        }
    }
}

/// Messages on a pipe, a line each; answers come in any order.
#[derive(Clone)]
struct StdioCalls(Rc<Stdios>);

struct Stdios {
    stdin: RefCell<ChildStdin>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Value>>>,
    answers: tokio::sync::Mutex<mpsc::UnboundedReceiver<Value>>,
    last: Cell<u64>,
}

impl StdioCalls {
    async fn open(stdin: ChildStdin, stdout: std::process::ChildStdout) -> Self {
        let (answered, answers) = mpsc::unbounded_channel();
        // Ends with the peer, whose end closes the pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if answered.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let (stdin, answers) = (RefCell::new(stdin), tokio::sync::Mutex::new(answers));
        let calls = Self(Rc::new(Stdios { stdin, waiting: RefCell::default(), answers, last: Cell::new(0) }));
        let client = json!({"name": "bench", "version": "1"});
        let parameters = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        calls.call(&|id| json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": parameters})).await;
        calls.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        calls
    }

    fn send(&self, message: &Value) {
        let line = format!("{message}\n");
        self.0.stdin.borrow_mut().write_all(line.as_bytes()).unwrap();
    }

    async fn call(&self, message: &dyn Fn(u64) -> Value) -> Value {
        let id = self.0.last.get() + 1;
        self.0.last.set(id);
        let (done, mut answer) = oneshot::channel();
        self.0.waiting.borrow_mut().insert(id, done);
        self.send(&message(id));
        // Whoever waits and finds nobody else at it hands out what comes.
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.unwrap(),
                mut answers = self.0.answers.lock() => {
                    if let Ok(answer) = answer.try_recv() {
                        return answer;
                    }
                    let answer = answers.recv().await.expect("the peer has ended");
                    if let Some(done) = answer["id"].as_u64().and_then(|id| self.0.waiting.borrow_mut().remove(&id)) {
                        let _ = done.send(answer);
                    }
                }
            }
        }
    }
}

impl Target for StdioCalls {
    async fn run(&mut self) {
        check(&self.call(&tool_call).await);
    }
}

fn tool_call(id: u64) -> Value {
    let arguments: Value = serde_json::from_str(ARGUMENTS).unwrap();
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "run", "arguments": arguments}})
}

fn check(answer: &Value) {
    assert_eq!(answer["result"]["content"][0]["text"], pack::TINY_RESULT, "{answer}");
}
