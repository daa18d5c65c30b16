//! The executor: a worker that keeps a verified copy of what it may have to run, takes RunSkill calls, runs each skill as
//! a subprocess and streams what happens.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skillyard::pb::executor::v1::executor_service_server::ExecutorServiceServer;
use skillyard::service::admin::{Admin, AdminError};
use skillyard::service::calls::Calls;
use skillyard::service::serve;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

mod approvals;
mod backoff;
pub mod client;
pub mod config;
pub mod grpc;
pub mod history;
pub mod host;
pub mod isolation;
pub mod limit_flags;
mod metrics;
pub mod mirror;
pub mod registry;
pub mod run;
pub mod size;
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
use crate::run::scratch::Scratch;
use crate::slot::{Pool, PoolOptions};

/// How long clients may take to fetch the last events after the last run has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long the end waits for scratch directories to be removed.
const SCRATCH_REMOVED_WITHIN: Duration = Duration::from_secs(2);
/// How often runs that ended long ago are forgotten.
const EXPIRE_EVERY: Duration = Duration::from_secs(5);
/// Why it is not ready while it runs.
const NO_CATALOG: &str = "it has no catalog, or one that is too old: GetStatus says whether the registry answers";
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
    /// The admin port cannot be had.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// There can be no scratch directories.
    #[error("scratch directories cannot be made in the state directory: {0}")]
    Scratch(#[source] io::Error),
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

/// Starts the first slots, and says what they are confined by.
fn start_slots(config: &Config, limits: slot::Limits) -> io::Result<Pool> {
    let mut isolation = config.isolation.clone();
    // It exists by now, and links on the way to it lead nowhere else.
    if let Some(files) = &mut isolation.files {
        files.state = files.state.canonicalize()?;
    }
    let unattended = isolation.run_as.is_none() && rustix::process::geteuid().is_root();
    let (program, slots) = (config.slot_program.clone(), config.slots);
    let pool = Pool::with(PoolOptions { program, slots, isolation, limits, ..PoolOptions::default() })?;
    info!(in_force = pool.isolation().join(", "), no_new_entries_in = ?pool.way(), "isolation");
    if unattended {
        warn!("skills run as root, whom little holds: start the executor as another user, or give --run-as UID");
    }
    let home = config.environment.get("HOME").map(Path::new);
    for directory in pool.way().iter().filter(|way| Some(way.as_path()) == home || *way == Path::new("/etc")) {
        warn!(
            directory = %directory.display(),
            "skills can make nothing new directly in this directory, since the state, a token or a key lies below it: move these to a directory that is for them alone, such as /var/lib/skillyard"
        );
    }
    Ok(pool)
}

/// Serves until `shutdown`, then drains; from `hastened` on, runs that still go on are ended.
///
/// # Errors
/// What keeps it from serving.
pub async fn run(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
    hastened: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let address = listener.local_addr().map_err(RunError::Listener)?;
    let exporting = config.export.clone().start(&config.name);
    let mirror = {
        let (state_dir, max_age) = (config.state_dir.clone(), config.max_catalog_age);
        Mirror::open(&state_dir, max_age)?
    };
    // Before the slots: theirs are among them.
    let scratch = Scratch::open(&config.state_dir).map_err(RunError::Scratch)?;
    let bounds =
        Bounds { age: config.journal_max_age, record_bytes: config.journal_max_bytes as u64, ..Bounds::default() };
    let journal = Journal::open(&config.state_dir.join("journal"), bounds)?;
    let certificates = config.access.certificates(Some(&config.registry));
    let registry = Registry::over(config.registry.clone());
    let slot_limits = slot_limits(&config);
    let pool = start_slots(&config, slot_limits).map_err(RunError::Slots)?;
    let limits = Limits {
        slots: config.slots,
        queue: config.queue,
        max_timeout: config.max_timeout,
        keep_finished: config.keep_finished,
        default_agent: config.default_agent.clone(),
        executor: config.name.as_str().into(),
        output_memory: config.limits.output_memory,
    };
    let shipper = Shipper::new(journal.clone(), registry.clone(), &config.name);
    let gate = Gate { journal: journal.clone(), approvals: Arc::new(registry.clone()) };
    let runner = Runner::new(limits, config.environment.clone(), mirror.clone(), pool.clone(), gate, scratch.clone());
    let endpoint = config.advertise.clone().unwrap_or_else(|| address.to_string());
    let service = ExecutorServiceServer::new(Executor::new(runner.clone(), &config.name, &endpoint))
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let (mut routes, readiness) = serve::routes(&[SERVICE]).await?;
    routes.add_service(service);
    let calls = Calls::of(&[SERVICE]);
    let metrics = metrics::registry(&runner, &shipper, &calls, certificates);
    let _admin = match config.admin_listen {
        Some(address) => Some(Admin::start(address, readiness.clone(), metrics).await?),
        None => None,
    };
    info!(%address, executor = config.name, slots = config.slots, limits = %slot_limits, "listening");

    let stop = CancellationToken::new();
    let following = tokio::spawn({
        let (mirror, stop) = (mirror.clone(), stop.clone());
        async move { mirror.follow(registry, stop).await }
    });
    let shipping = tokio::spawn(shipper.clone().run(stop.clone()));
    let following_readiness = tokio::spawn({
        let (mut ready, readiness) = (mirror.ready(), readiness.clone());
        async move {
            loop {
                let is_ready = *ready.borrow_and_update();
                readiness.set(if is_ready { Ok(()) } else { Err(NO_CATALOG) }).await;
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
            following_readiness.abort();
            readiness.set(Err("it is draining")).await;
            runner.drain(config.drain_timeout, hastened).await;
            drained.notify_one();
        }
    };
    let serving = serve::serve(listener, routes.routes(), config.access, calls, drained.notified(), LAST_WORDS);
    let ((), served) = tokio::join!(draining, serving);
    stop.cancel();
    expiring.abort();
    if following.await.is_err() {
        warn!("the mirror did not end by itself");
    }
    pool.shutdown();
    let _ = tokio::task::spawn_blocking(move || scratch.finish(SCRATCH_REMOVED_WITHIN)).await;
    // The last runs have ended, and only noted it.
    if let Err(error) = journal.flush().await {
        tracing::error!(%error, "the last runs could not be written down: after a restart they are LOST");
    }
    if shipping.await.is_ok() {
        shipper.last().await;
    }
    exporting.finish().await;
    info!("stopped");
    Ok(served?)
}

/// Descriptors of the executor for one run: the slot's socket, and its ends of the pipes, with the skill's until they are
/// handed over.
const OPEN_FILES_A_RUN: u64 = 7;
/// Descriptors for all else: the listener, the journal, the mirror, connections.
const OPEN_FILES_BESIDE: u64 = 64;

/// The limits of each run, with those on open files. The executor takes as many as it can get; skills start with as many
/// as it was started with.
fn slot_limits(config: &Config) -> slot::Limits {
    let (before, most) = host::raise_open_files();
    let needed = config.slots as u64 * OPEN_FILES_A_RUN + OPEN_FILES_BESIDE;
    if needed > most {
        tracing::warn!(
            slots = config.slots,
            needed,
            limit = most,
            "the limit on open files is too low for so many slots at once, and some runs will be refused: raise it (ulimit -n, LimitNOFILE) or lower --slots"
        );
    }
    let open_files = config.limits.each.open_files.or(Some((before, most)));
    slot::Limits { open_files, ..config.limits.each }
}
