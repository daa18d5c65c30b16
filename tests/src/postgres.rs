//! A PostgreSQL server of the tests' own, where one is installed: on a socket in a temporary directory, and on a loopback
//! port with TLS and a password. It is ended and removed when the tests' process ends, however it does.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use skillyard::service::token::Token;

use crate::certificates::{Ca, dns};
use crate::process::command;

/// Making a database cluster takes its time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// It ends with the pipe to it, and so with the tests. The first word is the programs' directory, the second ours, the
/// third the port.
const SCRIPT: &str = r#"
    PATH=$1:$PATH; export LC_ALL=C
    cd "$2" || exit 1
    initdb -D data -U postgres --auth-local=trust --auth-host=scram-sha-256 --pwfile=password --no-sync \
        >initdb.log 2>&1 || exit 1
    postgres -D data -k "$2" -c listen_addresses=127.0.0.1 -p "$3" -c fsync=off -c max_connections=400 \
        -c shared_buffers=16MB -c ssl=on -c ssl_cert_file="$2/server.pem" -c ssl_key_file="$2/server.key" \
        >postgres.log 2>&1 </dev/null &
    server=$!
    cat >/dev/null
    kill -INT $server
    wait $server
    rm -rf -- "$2"
"#;

#[derive(Debug)]
struct Server {
    programs: PathBuf,
    directory: PathBuf,
    port: u16,
    password: String,
    /// While this is open, it runs.
    _pipe: ChildStdin,
    _child: Child,
}

/// A database.
#[derive(Debug)]
pub struct Database {
    name: String,
    server: &'static Server,
}

impl Database {
    /// A new, empty one; none, and a line that says why, where there is no server.
    ///
    /// # Panics
    /// When the server makes none.
    pub async fn new() -> Option<Self> {
        let made = tokio::task::spawn_blocking(|| server().map(|server| Self { name: server.create(), server })).await;
        made.expect("a database is made")
    }

    /// Its URL over the socket, where no password is asked for.
    #[must_use]
    pub fn url(&self) -> String {
        let Server { directory, port, .. } = self.server;
        format!("postgres:///{}?host={}&port={port}&user=postgres", self.name, directory.display())
    }

    /// The same over TLS, as far as to its parameters.
    #[must_use]
    pub fn encrypted_url(&self) -> String {
        let Server { password, port, .. } = self.server;
        format!("postgres://postgres:{password}@localhost:{port}/{}", self.name)
    }

    /// Who signed the server's certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.server.directory.join("ca.pem")
    }
}

fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    match SERVER.get_or_init(start) {
        Ok(server) => Some(server),
        Err(why) => {
            eprintln!("skipped on PostgreSQL: {why}");
            None
        }
    }
}

/// On another port where the first was taken between its choice and its use.
fn start() -> Result<Server, String> {
    let taken = |started: &Result<Server, String>| started.as_ref().is_err_and(|why| why.contains("could not bind"));
    (0..5).map(|_| attempt()).find(|started| !taken(started)).unwrap_or_else(attempt)
}

fn attempt() -> Result<Server, String> {
    let programs = programs().ok_or("there is no initdb on the PATH or below /usr/lib/postgresql")?;
    // Readable by the server's user.
    let directory = tempfile::Builder::new().prefix("skillyard-pg-").tempdir().unwrap().keep();
    let (password, port) = (Token::random().unwrap().expose().to_owned(), free_port());
    fs::write(directory.join("password"), &password).unwrap();
    let ca = Ca::new();
    fs::write(directory.join("ca.pem"), ca.pem()).unwrap();
    ca.issue(&directory, "server", dns("localhost"));
    let key = directory.join("server.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = if fs::metadata("/proc/self").unwrap().uid() == 0 {
        // It refuses to run as root.
        for path in [directory.clone(), directory.join("password"), key] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        let mut command = command(Path::new("setpriv"));
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh"]);
        command
    } else {
        command(Path::new("sh"))
    };
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    command.args(["-c", SCRIPT, "postgres"]).arg(&programs).arg(&directory).arg(port.to_string());
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|error| format!("it cannot be started: {error}"))?;
    let pipe = child.stdin.take().unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let read = |name| fs::read_to_string(directory.join(name)).unwrap_or_default();
        let log = ["initdb.log", "postgres.log"].map(read).concat();
        if log.contains("ready to accept connections") {
            return Ok(Server { programs, directory, port, password, _pipe: pipe, _child: child });
        }
        let ended = child.try_wait().unwrap();
        if ended.is_some() || log.contains("FATAL") {
            drop(pipe);
            let status = child.wait().unwrap();
            // What is there of it is ours.
            let _ = fs::remove_dir_all(&directory);
            return Err(format!("it ended with {status}: {log}"));
        }
        assert!(Instant::now() < end, "PostgreSQL is not ready: {log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Server {
    /// A database, and its name.
    fn create(&self) -> String {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", NAMES.fetch_add(1, Ordering::Relaxed));
        let mut command = command(&self.programs.join("createdb"));
        command.args(["-U", "postgres", "-p", &self.port.to_string(), "-h"]).arg(&self.directory).arg(&name);
        let output = command.output().unwrap();
        assert!(output.status.success(), "createdb: {}", String::from_utf8_lossy(&output.stderr));
        name
    }
}

fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).find(|directory| directory.join("initdb").exists());
    // Debian's are there, one directory a version, and those that the PATH has may be links to them.
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|entry| entry.path().join("bin")).filter(|bin| bin.join("initdb").exists()).max();
    debian.or(on_path)
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
