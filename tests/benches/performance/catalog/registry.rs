//! A registry over a directory of skills, and what the kernel counts of it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use skillyard::pb::registry::v1::ReloadRequest;
use skillyard::pb::registry::v1::catalog_service_client::CatalogServiceClient;
use skillyard::pb::registry::v1::package_service_client::PackageServiceClient;
use skillyard_tests::access::{Door, Identities, Show};
use skillyard_tests::binaries;
use skillyard_tests::process::{Server, Start};
use tempfile::TempDir;
use tonic::transport::Endpoint;

pub(crate) struct Registry {
    directory: TempDir,
    server: Server,
    address: SocketAddr,
    token: Show,
}

impl Registry {
    /// Over what is written below the directory first: `ext` and `playbooks` of it. It looks at its files when it is told.
    pub(crate) async fn start(place: &Path, write: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir_in(place).unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["ext", "playbooks", "state"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        write(directory.path());
        let identities = Identities::new(&at("access"));
        let mut start = Start { program: binaries::registry(), ..Start::default() };
        let paths = [
            ("--external-dirs", at("ext")),
            ("--skill-roots", at("playbooks")),
            ("--state-dir", at("state")),
            ("--tokens-file", identities.tokens_file()),
            ("--callers-file", identities.callers_file()),
        ];
        start.arguments.extend(paths.map(|(flag, path)| [flag.into(), path.into_os_string()]).into_iter().flatten());
        let more = ["--listen", "127.0.0.1:0", "--rescan-interval", "1h", "--log-format", "json"];
        start.arguments.extend(more.map(OsString::from));
        let mut server = Server::start("registry-svc", &start);
        let address = server.address();
        let registry = Self { directory, server, address, token: Show::token(identities.token("operator")) };
        // It answers when the files have been looked at.
        while registry.catalog().await.reload(ReloadRequest {}).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        registry
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// On a connection of its own, as an executor has it.
    pub(crate) async fn packages(&self) -> PackageServiceClient<Door> {
        PackageServiceClient::new(self.door().await)
    }

    pub(crate) async fn catalog(&self) -> CatalogServiceClient<Door> {
        CatalogServiceClient::new(self.door().await)
    }

    async fn door(&self) -> Door {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
        Door::new(endpoint.tcp_nodelay(true).connect().await.unwrap(), self.token.clone())
    }

    /// Processor time since it was started, in seconds: to the hundredth.
    pub(crate) fn cpu(&self) -> f64 {
        self.ticks(11) + self.ticks(12)
    }

    /// What of it was not spent in the kernel.
    pub(crate) fn user(&self) -> f64 {
        self.ticks(11)
    }

    fn ticks(&self, field: usize) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.server.pid())).unwrap();
        let ticks: f64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(field).unwrap().parse().unwrap();
        ticks / rustix::param::clock_ticks_per_second() as f64
    }
}
