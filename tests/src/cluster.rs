//! Several registries and executors over the same files, as real processes, with or without TLS between everybody, and
//! clients to each that show what a person or a program shows. When it is dropped, all of it is killed.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use skillyard::pb::executor::v1::GetStatusRequest;
use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::registry::v1::ReloadRequest;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard::pb::registry::v1::catalog_service_client::CatalogServiceClient;
use skillyard::service::dial::{DialOptions, Dialer};
use skillyard::service::token::Token;
use tempfile::TempDir;

use crate::access::replace;
use crate::certificates::{Ca, dns, uri};
use crate::pack::{AgentFile, Skill};
use crate::process::{Server, Start};
use crate::{binaries, eventually};

/// Who there is, each with a token and, with TLS, a certificate.
pub const NAMES: [(&str, &str); 8] = [
    ("operator", "[operator]"),
    ("e0", "[executor]"),
    ("e1", "[executor]"),
    ("planner", "[orchestrator], agents: [\"*\"]"),
    ("ann", "[approver]"),
    ("bob", "[approver]"),
    ("cat", "[approver]"),
    ("nothing", "[]"),
];

/// Registries, executors, and what they share.
#[derive(Debug)]
pub struct Cluster {
    directory: TempDir,
    encrypted: bool,
    registries: Vec<Node>,
    executors: Vec<Node>,
}

/// A service.
#[derive(Debug)]
struct Node {
    start: Start,
    server: Server,
    address: SocketAddr,
}

/// What is in a cluster before it starts.
#[derive(Debug)]
pub struct Builder {
    directory: TempDir,
    registries: usize,
    /// Whom each executor is to its registry.
    executors: Vec<&'static str>,
    database: Option<String>,
    ca: Option<Ca>,
}

/// What a client shows of itself.
#[derive(Clone, Copy, Debug)]
pub enum Shown {
    /// Nothing.
    Nothing,
    /// Somebody's token, from the file `NAME.token`.
    Token(&'static str),
    /// The certificate in `NAME.pem` and its key; only with TLS.
    Certificate(&'static str),
}

impl Cluster {
    /// An empty one, of one registry and one executor.
    ///
    /// # Panics
    /// When there is no room for temporary files.
    #[must_use]
    pub fn builder() -> Builder {
        let directory = tempfile::Builder::new().prefix("skillyard-cluster-").tempdir().unwrap();
        for name in ["external", "agents", "access", "effects"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Builder { directory, registries: 1, executors: vec!["e0"], database: None, ca: None }
    }

    /// A file or directory of it: `external`, `agents`, `effects`, `access/NAME.token`, `access/NAME.pem`, …
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A way to a registry; it follows the files of what it shows.
    #[must_use]
    pub fn registry(&self, at: usize, shown: Shown) -> Dialer {
        self.dialer(self.registries[at].address, shown)
    }

    /// A way to an executor, likewise.
    #[must_use]
    pub fn executor(&self, at: usize, shown: Shown) -> Dialer {
        self.dialer(self.executors[at].address, shown)
    }

    /// The client of an executor.
    #[must_use]
    pub fn runs(&self, at: usize, shown: Shown) -> ExecutorServiceClient<Dialer> {
        ExecutorServiceClient::new(self.executor(at, shown))
    }

    /// The client of a registry's approvals.
    #[must_use]
    pub fn approvals(&self, at: usize, shown: Shown) -> ApprovalServiceClient<Dialer> {
        ApprovalServiceClient::new(self.registry(at, shown))
    }

    /// Where a registry can be reached.
    #[must_use]
    pub fn registry_url(&self, at: usize) -> String {
        self.url(self.registries[at].address)
    }

    /// Kills an executor, as a crash would, and starts it again over the same state, on another port.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn crash_executor(&mut self, at: usize) {
        self.executors[at].server.kill();
        let mut server = Server::start("executor-svc", &self.executors[at].start);
        self.executors[at].address = server.address();
        self.executors[at].server = server;
        self.settle().await;
    }

    /// What the skills of this cluster left behind: lines of the file `effects/lines`.
    #[must_use]
    pub fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("effects/lines")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until every executor has what its registry finds.
    ///
    /// # Panics
    /// When that does not happen.
    pub async fn settle(&self) {
        let operator = if self.encrypted { Shown::Certificate("operator") } else { Shown::Token("operator") };
        for at in 0..self.executors.len() {
            let mut catalog = CatalogServiceClient::new(self.registry(at % self.registries.len(), operator));
            let reload = async || catalog.reload(ReloadRequest {}).await.ok();
            let (answer, _) = crate::within(crate::PATIENCE, "the registry has looked", reload).await;
            let version = answer.into_inner().catalog_version;
            eventually("the executor has the registry's catalog", async || {
                let status = self.runs(at, operator).get_status(GetStatusRequest {}).await;
                let status = status.expect("GetStatus").into_inner();
                status.catalog_version == version && status.missing.is_empty()
            })
            .await;
        }
    }

    /// Prints the end of everybody's log.
    pub fn show_logs(&self) {
        self.registries.iter().chain(&self.executors).for_each(|node| node.server.show_log());
    }

    fn url(&self, address: SocketAddr) -> String {
        // A certificate is for a name.
        if self.encrypted { format!("https://localhost:{}", address.port()) } else { format!("http://{address}") }
    }

    fn dialer(&self, address: SocketAddr, shown: Shown) -> Dialer {
        let access = |name: String| Some(self.path("access").join(name));
        let ca = if self.encrypted { access("ca.pem".to_owned()) } else { None };
        let options = match shown {
            Shown::Nothing => DialOptions { ca, ..DialOptions::default() },
            Shown::Token(name) => {
                DialOptions { token_file: access(format!("{name}.token")), ca, ..DialOptions::default() }
            }
            Shown::Certificate(name) => DialOptions {
                cert: access(format!("{name}.pem")),
                key: access(format!("{name}.key")),
                ca,
                token_file: None,
            },
        };
        Dialer::check(&self.url(address), &options).expect("a way to a service")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The executors first, so that they do not miss their registries.
        self.executors.iter_mut().chain(&mut self.registries).for_each(|node| node.server.kill());
        if std::thread::panicking() {
            self.show_logs();
        }
    }
}

impl Builder {
    /// Adds a skill.
    #[must_use]
    pub fn skill(self, skill: &Skill) -> Self {
        skill.write(&self.path("external"));
        self
    }

    /// Adds an agent.
    #[must_use]
    pub fn agent(self, agent: &AgentFile) -> Self {
        agent.write(&self.path("agents"));
        self
    }

    /// Several registries on this database.
    #[must_use]
    pub fn registries(mut self, count: usize, database: Option<String>) -> Self {
        (self.registries, self.database) = (count, database);
        self
    }

    /// Executors, each with this identity; they ask the registries in turn.
    #[must_use]
    pub fn executors(mut self, names: &[&'static str]) -> Self {
        self.executors = names.to_vec();
        self
    }

    /// TLS everywhere, with a certificate for everybody. The authority comes back for more of them.
    #[must_use]
    pub fn encrypted(mut self, ca: Ca) -> Self {
        self.ca = Some(ca);
        self
    }

    /// A path in the cluster to be.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A skill of a class that leaves its arguments behind as a line, and goes on as long as `effects/hold` is there.
    #[must_use]
    pub fn leaves_a_line(&self, name: &str, class: &str) -> Skill {
        let effects = self.path("effects");
        let effects = effects.display();
        let script = format!(
            "read -r line; echo \"$line\" >>{effects}/lines; while [ -e {effects}/hold ]; do /bin/sleep 0.05; done; echo {{}}"
        );
        Skill::sh(name, &script).set("class", class)
    }

    /// Starts all of it, and waits until every executor has what its registry found.
    ///
    /// # Panics
    /// When that does not happen.
    pub async fn start(self) -> Cluster {
        let access = self.path("access");
        self.write_access(&access);
        let mut cluster = Cluster {
            directory: self.directory,
            encrypted: self.ca.is_some(),
            registries: Vec::new(),
            executors: Vec::new(),
        };
        for at in 0..self.registries {
            let mut start = common(binaries::registry(), &cluster, &format!("registry-{at}"));
            for (flag, name) in [("--external-dirs", "external"), ("--agents-dir", "agents"), ("--cloud-dir", "cloud")]
            {
                start.arguments.extend([flag.into(), cluster.path(name).into_os_string()]);
            }
            if let Some(database) = &self.database {
                start.arguments.extend(["--database-url", database].map(OsString::from));
            }
            cluster.registries.push(Node::start("registry-svc", start));
        }
        for (at, name) in self.executors.iter().enumerate() {
            let mut start = common(binaries::executor(), &cluster, &format!("executor-{at}"));
            let registry = cluster.registry_url(at % self.registries);
            start.arguments.extend(["--registry", &registry, "--name", &format!("x{at}")].map(OsString::from));
            let shown: &[(&str, &str)] = if cluster.encrypted {
                &[("--registry-cert", "pem"), ("--registry-key", "key")]
            } else {
                &[("--registry-token-file", "token")]
            };
            for (flag, ending) in shown {
                start.arguments.extend([flag.into(), access.join(format!("{name}.{ending}")).into_os_string()]);
            }
            if cluster.encrypted {
                start.arguments.extend(["--registry-ca".into(), access.join("ca.pem").into_os_string()]);
            }
            cluster.executors.push(Node::start("executor-svc", start));
        }
        cluster.settle().await;
        cluster
    }

    fn write_access(&self, access: &Path) {
        let (mut callers, mut tokens) = ("callers:\n".to_owned(), String::new());
        for (name, roles) in NAMES {
            callers += &format!("  {name}: {{roles: {roles}, certificates: [\"spiffe://cluster/{name}\"]}}\n");
            let token = Token::random().unwrap();
            tokens += &format!("{}\n", token.line(name).unwrap());
            replace(&access.join(format!("{name}.token")), token.expose());
        }
        replace(&access.join("callers.yaml"), callers);
        replace(&access.join("tokens"), tokens);
        if let Some(ca) = &self.ca {
            replace(&access.join("ca.pem"), ca.pem());
            issue_all(ca, access);
        }
    }
}

/// Writes a certificate for everybody and for the services, in place of what is there.
pub fn issue_all(ca: &Ca, access: &Path) {
    ca.issue(access, "server", dns("localhost"));
    for (name, _) in NAMES {
        ca.issue(access, name, uri(&format!("spiffe://cluster/{name}")));
    }
}

/// What both kinds of service are started with.
fn common(program: PathBuf, cluster: &Cluster, state: &str) -> Start {
    let mut start = Start { program, ..Start::default() };
    let fixed = ["--listen", "127.0.0.1:0", "--log-format", "json", "--log", "info"];
    start.arguments.extend(fixed.map(OsString::from));
    let access = |name: &str| cluster.path("access").join(name);
    let mut files = vec![
        ("--state-dir", cluster.path(state)),
        ("--tokens-file", access("tokens")),
        ("--callers-file", access("callers.yaml")),
    ];
    if cluster.encrypted {
        files.push(("--tls-cert", access("server.pem")));
        files.push(("--tls-key", access("server.key")));
        files.push(("--client-ca", access("ca.pem")));
    }
    start.arguments.extend(files.into_iter().flat_map(|(flag, path)| [flag.into(), path.into_os_string()]));
    start.environment.insert("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into());
    start
}

impl Node {
    fn start(name: &'static str, start: Start) -> Self {
        let mut server = Server::start(name, &start);
        let address = server.address();
        Self { start, server, address }
    }
}
