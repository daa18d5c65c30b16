//! The executor: a worker that keeps a verified copy of what it may have to run, takes RunSkill calls, runs each skill as
//! a subprocess and streams what happens.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use skillyard::pb::executor::v1::executor_service_server::ExecutorServiceServer;
use skillyard::service::serve;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tracing::info;

mod approvals;
mod backoff;
pub mod client;
pub mod config;
pub mod grpc;
pub mod history;
pub mod mirror;
pub mod registry;
pub mod run;
pub mod slot;

pub use config::Config;

use crate::grpc::{Executor, MAX_MESSAGE_BYTES};
use crate::history::Shipper;
use crate::mirror::Mirror;
use crate::registry::Registry;
use crate::run::Runner;
use crate::run::approval::Gate;
use crate::run::journal::{Bounds, Journal};
use crate::run::runner::Limits;
use crate::slot::Pool;

/// How long clients may take to fetch the last events after the last run has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often runs that ended long ago are forgotten.
const EXPIRE_EVERY: Duration = Duration::from_secs(5);
/// The service's name in health checks.
const SERVICE: &str = "skillyard.executor.v1.ExecutorService";

/// Why an executor could not serve.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The state directory cannot be used.
    #[error(transparent)]
    Mirror(#[from] mirror::MirrorError),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] run::journal::JournalError),
    /// Slots cannot be started.
    #[error("slot processes cannot be started: {0}")]
    Slots(#[source] io::Error),
    /// The listener has no address.
    #[error("the listener cannot be used: {0}")]
    Listener(#[source] io::Error),
    /// The reflection service cannot be built.
    #[error("reflection cannot be served: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport ended.
    #[error("serving ended: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until `shutdown`, then drains.
///
/// # Errors
/// What keeps it from serving.
pub async fn run(config: Config, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    let address = listener.local_addr().map_err(RunError::Listener)?;
    let mirror = {
        let (state_dir, max_age) = (config.state_dir.clone(), config.max_catalog_age);
        Mirror::open(&state_dir, max_age)?
    };
    let bounds =
        Bounds { age: config.journal_max_age, record_bytes: config.journal_max_bytes as u64, ..Bounds::default() };
    let journal = Journal::open(&config.state_dir.join("journal"), bounds)?;
    let registry = Registry::over(config.registry.clone());
    let pool = Pool::new(config.slot_program.clone()).map_err(RunError::Slots)?;
    let limits = Limits {
        slots: config.slots,
        queue: config.queue,
        max_timeout: config.max_timeout,
        keep_finished: config.keep_finished,
        default_agent: config.default_agent.clone(),
        executor: config.name.as_str().into(),
    };
    let history = registry.clone();
    let gate = Gate { journal: journal.clone(), approvals: Arc::new(registry.clone()) };
    let runner = Runner::new(limits, config.environment.clone(), mirror.clone(), pool.clone(), gate);
    let endpoint = config.advertise.clone().unwrap_or_else(|| address.to_string());
    let service = ExecutorServiceServer::new(Executor::new(runner.clone(), &config.name, &endpoint))
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let (mut routes, health) = serve::routes(&[SERVICE])?;
    routes.add_service(service);
    health.set_service_status("", ServingStatus::NotServing).await;
    health.set_service_status(SERVICE, ServingStatus::NotServing).await;
    info!(%address, executor = config.name, isolation = ?pool.isolation(), slots = config.slots, "listening");

    let stop = CancellationToken::new();
    let following = tokio::spawn({
        let (mirror, stop) = (mirror.clone(), stop.clone());
        async move { mirror.follow(registry, stop).await }
    });
    let shipper = Shipper::new(journal.clone(), history, &config.name);
    let shipping = tokio::spawn(shipper.clone().run(stop.clone()));
    let readiness = tokio::spawn({
        let (mut ready, health) = (mirror.ready(), health.clone());
        async move {
            loop {
                let status =
                    if *ready.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
                health.set_service_status("", status).await;
                health.set_service_status(SERVICE, status).await;
                if ready.changed().await.is_err() {
                    return;
                }
            }
        }
    });
    let expiring = tokio::spawn({
        let runner = runner.clone();
        async move {
            let mut ticks = tokio::time::interval(EXPIRE_EVERY);
            loop {
                ticks.tick().await;
                runner.expire();
            }
        }
    });

    let drained = Arc::new(tokio::sync::Notify::new());
    let draining = {
        let drained = Arc::clone(&drained);
        async move {
            shutdown.await;
            readiness.abort();
            health.set_service_status("", ServingStatus::NotServing).await;
            health.set_service_status(SERVICE, ServingStatus::NotServing).await;
            runner.drain(config.drain_timeout).await;
            drained.notify_one();
        }
    };
    let serving = serve::serve(listener, routes.routes(), config.access, drained.notified(), LAST_WORDS);
    let ((), served) = tokio::join!(draining, serving);
    stop.cancel();
    expiring.abort();
    if following.await.is_err() {
        tracing::warn!("the mirror did not end by itself");
    }
    pool.shutdown();
    // The last runs have ended, and only noted it.
    if let Err(error) = journal.flush().await {
        tracing::error!(%error, "the last runs could not be written down: after a restart they are LOST");
    }
    if shipping.await.is_ok() {
        shipper.last().await;
    }
    info!("stopped");
    Ok(served?)
}
