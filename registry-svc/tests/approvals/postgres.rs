//! A PostgreSQL server of the tests' own, where one is installed: on a socket in a temporary directory, ended and removed
//! when the tests' process ends, however it does.

#![expect(clippy::disallowed_methods, reason = "tests start the real server")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

/// Making a database cluster takes its time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// It ends with the pipe to it, and so with the tests. The first word is the programs' directory, the second ours.
const SCRIPT: &str = r#"
    PATH=$1:$PATH; export LC_ALL=C
    cd "$2" || exit 1
    initdb -D data -U postgres --auth=trust --no-sync >initdb.log 2>&1 || exit 1
    postgres -D data -k "$2" -c listen_addresses= -c fsync=off -c max_connections=400 -c shared_buffers=16MB \
        >postgres.log 2>&1 </dev/null &
    server=$!
    cat >/dev/null
    kill -INT $server
    wait $server
    rm -rf -- "$2"
"#;

#[derive(Debug)]
struct Server {
    directory: PathBuf,
    /// While this is open, it runs.
    _pipe: ChildStdin,
    _child: Child,
}

/// The URL of a new, empty database; or none, and a line that says why.
pub(crate) async fn database() -> Option<String> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let server = match tokio::task::block_in_place(|| SERVER.get_or_init(start)) {
        Ok(server) => server,
        Err(why) => {
            eprintln!("skipped on PostgreSQL: {why}");
            return None;
        }
    };
    sqlx::any::install_default_drivers();
    let name = format!("t{}", NAMES.fetch_add(1, Ordering::Relaxed));
    let mut connection = server.connect().await;
    connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    connection.close().await.unwrap();
    Some(server.url(&name))
}

fn start() -> Result<Server, String> {
    let programs = programs().ok_or("there is no initdb on the PATH or below /usr/lib/postgresql")?;
    // Outside of what a test removes, and readable by the server's user.
    let directory = tempfile::Builder::new().prefix("skillyard-pg-").tempdir().unwrap().keep();
    let mut command = if fs::metadata("/proc/self").unwrap().uid() == 0 {
        // It refuses to run as root.
        std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh"]);
        command
    } else {
        Command::new("sh")
    };
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    command.args(["-c", SCRIPT, "postgres"]).arg(programs).arg(&directory);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|error| format!("it cannot be started: {error}"))?;
    let pipe = child.stdin.take().unwrap();
    let end = Instant::now() + PATIENCE;
    while fs::read_to_string(directory.join("postgres.log"))
        .is_ok_and(|log| log.contains("ready to accept connections"))
        .then_some(())
        .is_none()
    {
        let log = || {
            ["initdb.log", "postgres.log"]
                .map(|name| fs::read_to_string(directory.join(name)).unwrap_or_default())
                .concat()
        };
        if let Some(status) = child.try_wait().unwrap() {
            let log = log();
            // What is there of it is ours.
            let _ = fs::remove_dir_all(&directory);
            return Err(format!("it ended with {status}: {log}"));
        }
        assert!(Instant::now() < end, "PostgreSQL is not ready: {}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Server { directory, _pipe: pipe, _child: child })
}

impl Server {
    fn url(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&user=postgres", self.directory.display())
    }

    async fn connect(&self) -> sqlx::AnyConnection {
        sqlx::AnyConnection::connect(&self.url("postgres")).await.unwrap()
    }
}

fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).find(|directory| directory.join("initdb").exists());
    // Debian's are there, one directory a version, and those that the PATH has may be links to them.
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|entry| entry.path().join("bin")).filter(|bin| bin.join("initdb").exists()).max();
    debian.or(on_path).map(|path: PathBuf| Path::new(&path).to_owned())
}
