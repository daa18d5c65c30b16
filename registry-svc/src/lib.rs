//! The registry: finds skill packages, decides who may see which, and tells everyone else.
//!
//! One way through: roots, discovery, values, catalog, an agent's view, gRPC. Nothing flows back.

pub mod catalog;
pub mod check;
pub mod client;
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

use skillyard::service::admin::{Admin, AdminError};
use skillyard::service::readiness::Readiness;
use skillyard::service::serve;
use tokio::net::TcpListener;

use catalog::Catalogs;
pub use config::Config;

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
    let (mut routes, readiness) = serve::routes(&grpc::SERVICES).await?;
    let (store, keeper) = store::start(&config.database).await?;
    let (catalogs, loader) =
        catalog::reload::start_on(config.host, source::roots(&config.layout), config.rescan_interval);
    grpc::add(&mut routes, &catalogs, config.default_agent.clone(), &store, config.signers.clone());
    let _admin = match config.admin_listen {
        Some(address) => Some(Admin::start(address, readiness.clone(), metrics::registry(&catalogs)).await?),
        None => None,
    };
    tracing::info!(address = %listener.local_addr()?, "listening");
    let mut loader = tokio::spawn(loader);
    let mut keeper = tokio::spawn(keeper.keeping(config.approvals_keep).run());
    let mut historian = tokio::spawn(store.keep_history(config.history));
    let mut failed = None;
    let until = async {
        tokio::select! {
            () = shutdown => {}
            // They end by a panic alone: there is always something to look at.
            Err(error) = &mut loader => failed = Some(error),
            Err(error) = &mut keeper => failed = Some(error),
            () = serving(&catalogs, config.default_agent.as_deref(), &readiness) => {}
            Err(error) = &mut historian => failed = Some(error),
        }
        readiness.set(Err("it is stopping")).await;
        // With them the watches end, so that clients turn to another registry at once.
        loader.abort();
        keeper.abort();
        historian.abort();
    };
    serve::serve(listener, routes.routes(), config.access, until, GRACE).await?;
    failed.map_or(Ok(()), |error| Err(error.into()))
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
