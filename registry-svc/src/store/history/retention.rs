//! What is forgotten: records that are too old, and the oldest of too many. In small steps, so that nobody who appends
//! waits for long.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use sqlx::Row as _;
use tokio::time::sleep;

use super::key::nanos_before;
use super::{DEFAULT_MAX_AGE, DEFAULT_MAX_RECORDS};
use crate::store::{Store, StoreError};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(60);
/// Between two looks while the database is not there.
const RETRY: Duration = Duration::from_secs(5);
/// Records that one step forgets.
const STEP: i64 = 200;
/// Between two steps: whoever waits for the database gets it.
const PAUSE: Duration = Duration::from_millis(50);

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long a record is kept, from when its run was accepted.
    pub max_age: Duration,
    /// How many records are kept.
    pub max_records: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_age: DEFAULT_MAX_AGE, max_records: DEFAULT_MAX_RECORDS }
    }
}

impl Store {
    /// Forgets what is too old or too much, again and again.
    pub async fn keep_history(self, retention: Retention) -> Infallible {
        let mut failing = false;
        loop {
            let pause = match self.forget_records(retention).await {
                Ok(forgotten) => {
                    if forgotten > 0 {
                        tracing::info!(records = forgotten, "old records of runs are forgotten");
                    }
                    failing = false;
                    EVERY
                }
                // The tables are made when the database is there.
                Err(StoreError::NotReady) => RETRY,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "old records of runs cannot be forgotten: it is tried again");
                    }
                    RETRY
                }
            };
            sleep(pause).await;
        }
    }

    /// Forgets what is too old or too much now, and says how many records that were.
    ///
    /// # Errors
    /// The database failed; what was forgotten until then stays so.
    pub async fn forget_records(&self, retention: Retention) -> Result<u64, StoreError> {
        let too_old = nanos_before(SystemTime::now(), retention.max_age);
        let mut forgotten = 0;
        loop {
            match self.forget_oldest(too_old, STEP).await? {
                0 => break,
                some => forgotten += some,
            }
            sleep(PAUSE).await;
        }
        let max_records = i64::try_from(retention.max_records).unwrap_or(i64::MAX);
        let mut too_many = self.count_records().await?.saturating_sub(max_records);
        while too_many > 0 {
            let some = self.forget_oldest(i64::MAX, too_many.min(STEP)).await?;
            if some == 0 {
                break;
            }
            forgotten += some;
            too_many = too_many.saturating_sub_unsigned(some);
            sleep(PAUSE).await;
        }
        // A journal that was not heard of for so long has no record here.
        sqlx::query("DELETE FROM run_journals WHERE seen_at < $1").bind(too_old).execute(self.pool().await?).await?;
        Ok(forgotten)
    }

    async fn count_records(&self) -> Result<i64, StoreError> {
        // One index is read through: some milliseconds a hundred thousand.
        let row = sqlx::query("SELECT count(*) FROM run_records").fetch_one(self.pool().await?).await?;
        Ok(row.try_get(0)?)
    }

    /// The oldest before a moment, some at a time. What was accepted in the same nanosecond goes together.
    async fn forget_oldest(&self, before: i64, most: i64) -> Result<u64, StoreError> {
        let pool = self.pool().await?;
        let row = sqlx::query(
            "SELECT max(accepted_at) FROM \
             (SELECT accepted_at FROM run_records WHERE accepted_at < $1 ORDER BY accepted_at LIMIT $2) AS oldest",
        )
        .bind(before)
        .bind(most)
        .fetch_one(pool)
        .await?;
        let Some(until) = row.try_get::<Option<i64>, _>(0)? else { return Ok(0) };
        let mut tx = pool.begin().await?;
        // Labels first: one that is left for a moment by another transaction leads to no record, and goes the next time.
        sqlx::query("DELETE FROM run_labels WHERE accepted_at <= $1").bind(until).execute(&mut *tx).await?;
        let gone = sqlx::query("DELETE FROM run_records WHERE accepted_at <= $1").bind(until).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(gone.rows_affected())
    }
}
