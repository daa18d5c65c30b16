//! The registry's state, in a database: SQLite in the state directory, or PostgreSQL where there are several registries.
//! It knows values only: neither the catalog nor the wire.

pub mod approval;
pub mod approvals;
pub mod database;
pub mod error;
pub mod history;
mod retention;
mod row;
pub mod tally;

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::AnyPool;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

pub use database::{Database, DatabaseUrl};
pub use error::StoreError;

/// Between two looks at what another registry may have changed, or what has expired.
const TICK: Duration = Duration::from_secs(1);
/// Between two attempts to reach a database that is away.
const RETRY: Duration = Duration::from_secs(2);
/// Between two looks at what is old enough to be deleted.
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// How long approvals are kept that have ended, where nothing else is said.
pub const DEFAULT_KEEP: Duration = Duration::from_secs(30 * 86_400);

/// The database.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: AnyPool,
    /// The number of the last change that is known of; none until the tables are there.
    clock: watch::Receiver<Option<i64>>,
    changed: Arc<Notify>,
    is_local: bool,
    tally: tally::Tally,
    _lock: Option<File>,
}

/// What looks after the database.
#[derive(Debug)]
pub struct Keeper {
    store: Store,
    publish: watch::Sender<Option<i64>>,
    keep: Duration,
}

/// Opens the database, and gives the task that looks after it, which runs until it is dropped. One in a file is usable
/// at once; one that is elsewhere may be away, and is then tried until it is there.
///
/// # Errors
/// The state directory or the URL cannot be used, or the file cannot be brought to this version.
pub async fn start(database: &Database) -> Result<(Store, Keeper), StoreError> {
    let opened = database::open(database)?;
    let (publish, clock) = watch::channel(None);
    let changed = Arc::new(Notify::new());
    let (is_local, tally) = (opened.is_local, tally::Tally::default());
    let inner = Inner { pool: opened.pool, clock, changed, is_local, tally, _lock: opened.lock };
    let store = Store { inner: Arc::new(inner) };
    if opened.is_local {
        store.ready(&publish).await?;
    }
    let keeper = Keeper { store: store.clone(), publish, keep: DEFAULT_KEEP };
    Ok((store, keeper))
}

impl Store {
    /// The number of the last change, whoever made it, as soon as it is known; it ends when the registry stops.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<i64>> {
        self.inner.clock.clone()
    }

    async fn pool(&self) -> Result<&AnyPool, StoreError> {
        match *self.inner.clock.borrow() {
            Some(_) => Ok(&self.inner.pool),
            None => Err(StoreError::NotReady),
        }
    }

    /// Something was changed here.
    fn poke(&self) {
        self.inner.changed.notify_one();
    }

    async fn ready(&self, publish: &watch::Sender<Option<i64>>) -> Result<(), StoreError> {
        database::migrate(&mut *self.inner.pool.acquire().await?).await?;
        publish.send_replace(Some(0));
        publish.send_replace(Some(self.clock().await?));
        Ok(())
    }
}

impl Keeper {
    /// Has approvals that have ended deleted this long after they were asked for, instead of after 30 days.
    #[must_use]
    pub fn keeping(self, keep: Duration) -> Self {
        Self { keep, ..self }
    }

    /// Says what has changed, writes down what has expired, and deletes what is old, for ever.
    pub async fn run(self) {
        let mut failing = false;
        let (mut forgotten, mut counted) = (None, false);
        loop {
            let known = *self.publish.borrow();
            let result = match known {
                None => self.store.ready(&self.publish).await,
                Some(_) => self.look(&mut forgotten, &mut counted).await,
            };
            let pause = if result.is_ok() { TICK } else { RETRY };
            self.store.tally().answers(result.is_ok());
            match result {
                Ok(()) if failing => tracing::info!("the database is there again"),
                Err(error) if !failing => {
                    tracing::error!(%error, "the database cannot be used: approvals are refused until it is there");
                }
                _ => {}
            }
            failing = pause == RETRY;
            // Whether it was a change or the time is the same to what comes next.
            let _ = timeout(pause, self.store.inner.changed.notified()).await;
        }
    }

    async fn look(&self, forgotten: &mut Option<Instant>, counted: &mut bool) -> Result<(), StoreError> {
        self.store.expire().await?;
        if forgotten.is_none_or(|at| at.elapsed() >= FORGET_EVERY) {
            let deleted = self.store.forget(self.keep).await?;
            if deleted > 0 {
                tracing::info!(deleted, "old approvals were deleted");
            }
            // Where there may be more, the next look goes on.
            *forgotten = (deleted < retention::BATCH).then(Instant::now);
        }
        let clock = self.store.clock().await?;
        let is_new = self.publish.send_if_modified(|known| known.replace(clock) != Some(clock));
        if is_new || !std::mem::replace(counted, true) {
            self.store.count_open().await?;
        }
        if is_new && self.store.inner.is_local {
            // SQLite keeps old pages in its log until then, and with them arguments that were cleared. Where somebody
            // reads just now, the next change does it.
            sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_optional(&self.store.inner.pool).await?;
        }
        Ok(())
    }
}
