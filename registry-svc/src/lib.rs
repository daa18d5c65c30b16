//! The registry: finds skill packages, decides who may see which, and tells everyone else.
//!
//! One way through: roots, discovery, values, catalog, an agent's view, gRPC. Nothing flows back.

pub mod admin;
pub mod catalog;
pub mod check;
pub mod client;
pub mod command;
pub mod config;
pub mod grpc;
mod metrics;
pub mod model;
pub mod source;
pub mod store;
pub mod token;

use std::future::Future;
use std::io;
use std::time::Duration;

use skillyard::service::access::Access;
use skillyard::service::admin::{Admin, AdminError};
use skillyard::service::calls::Calls;
use skillyard::service::readiness::Readiness;
use skillyard::service::serve;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use catalog::Catalogs;
pub use config::Config;
use config::{Publish, Pull};

/// Calls that go on have this long to end when the registry stops.
const GRACE: Duration = Duration::from_secs(3);

/// Why the registry could not serve, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The listener has no address.
    #[error("the listener has no address: {0}")]
    Address(#[from] io::Error),
    /// The build is broken.
    #[error("the descriptors of the services cannot be read: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The address for publishing is taken.
    #[error("{listen} cannot be published on ({source}): stop what holds it, or give another with --publish-listen")]
    Publish {
        /// The address.
        listen: std::net::SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The transport failed.
    #[error("serving failed: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// A fault of ours.
    #[error("a task that looks at the roots or the database has ended: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The admin port cannot be had.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The state cannot be opened.
    #[error(transparent)]
    Store(#[from] store::StoreError),
}

/// Serves until `shutdown`, and then for 3 s more at most. Skills are looked for while it serves already: its health is
/// NOT_SERVING until there is a catalog, and again from `shutdown` on.
///
/// # Errors
/// See [`RunError`].
pub async fn run(config: Config, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    let exporting = config.export.start("");
    let (mut routes, readiness) = serve::routes(&grpc::SERVICES).await?;
    let (store, keeper) = store::start(&config.database).await?;
    if let Some(cloud_dir) = config.layout.cloud_dir.clone() {
        tokio::task::spawn_blocking(move || admin::recover(&cloud_dir)).await?;
    }
    let (catalogs, loader) =
        catalog::reload::start_on(config.host, source::roots(&config.layout), config.rescan_interval);
    let (sync, mut syncer) = match config.pull {
        Some(Pull { puller, interval }) => {
            let (status, task) = admin::follow::start(puller, interval, catalogs.clone());
            (Some(status), Some(tokio::spawn(task)))
        }
        None => (None, None),
    };
    let calls = Calls::of(&grpc::SERVICES);
    let certificates = config.access.certificates(None);
    let metrics = metrics::registry(&catalogs, sync.as_ref(), &store, &calls, certificates);
    grpc::add(&mut routes, &catalogs, config.default_agent.clone(), &store, config.signers.clone(), sync);
    let _admin = match config.admin_listen {
        Some(address) => Some(Admin::start(address, readiness.clone(), metrics).await?),
        None => None,
    };
    tracing::info!(address = %listener.local_addr()?, "listening");
    let mut loader = tokio::spawn(loader);
    let mut keeper = tokio::spawn(keeper.keeping(config.approvals_keep).run());
    let mut historian = tokio::spawn(store.keep_history(config.history));
    let (stop, stopped) = oneshot::channel();
    let mut publishing = match config.publish {
        Some(publish) => Some(start_publishing(publish, &catalogs, &config.access, stopped).await?),
        None => None,
    };
    let mut failed = None;
    let until = async {
        tokio::select! {
            () = shutdown => {}
            // They end by a panic alone: there is always something to look at.
            Err(error) = &mut loader => failed = Some(error),
            Err(error) = &mut keeper => failed = Some(error),
            () = serving(&catalogs, config.default_agent.as_deref(), &readiness) => {}
            Err(error) = &mut historian => failed = Some(error),
            Err(error) = ended(&mut syncer) => failed = Some(error),
            Err(error) = ended(&mut publishing) => failed = Some(error),
        }
        readiness.set(Err("it is stopping")).await;
        // With them the watches end, so that clients turn to another registry at once.
        loader.abort();
        keeper.abort();
        historian.abort();
        // A sync is cut off where it is; the next one finishes what it must.
        syncer.iter().for_each(JoinHandle::abort);
        drop(stop);
    };
    serve::serve(listener, routes.routes(), config.access, calls, until, GRACE).await?;
    exporting.finish().await;
    if let Some(publishing) = publishing.filter(|publishing| !publishing.is_finished()) {
        publishing.await?;
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Publishes on a listener of its own until `stopped`.
async fn start_publishing(
    Publish { listen, readers }: Publish,
    catalogs: &Catalogs,
    access: &Access,
    stopped: oneshot::Receiver<()>,
) -> Result<JoinHandle<()>, RunError> {
    let listener = TcpListener::bind(listen).await.map_err(|source| RunError::Publish { listen, source })?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "publishing");
    if !access.is_encrypted() && !serve::is_loopback(&address) {
        tracing::warn!(%address, "whoever sees the traffic reads what is published, and tokens: give --tls-cert and --tls-key");
    }
    let (routes, access) = (admin::publish::routes(catalogs.clone(), readers).into(), access.clone());
    let until = async {
        // A sender that is gone means the same as one that spoke.
        let _ = stopped.await;
    };
    Ok(tokio::spawn(async move {
        if let Err(error) = serve::serve_http(listener, routes, &access, until, GRACE).await {
            tracing::error!(%error, "publishing has ended");
        }
    }))
}

/// How a task ends that may not be there.
async fn ended<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

/// Says so when the first catalog is there, and then waits for ever.
async fn serving(catalogs: &Catalogs, default_agent: Option<&str>, readiness: &Readiness) {
    let mut coming = catalogs.subscribe();
    let first = coming.wait_for(Option::is_some).await.ok().and_then(|first| first.clone());
    if let Some(first) = first {
        if let Err(error) = first.view("", default_agent) {
            tracing::warn!(
                "{error}, which is --default-agent: calls that name no agent are refused until it has a file"
            );
        }
        readiness.set(Ok(())).await;
    }
    std::future::pending().await
}
