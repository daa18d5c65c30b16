//! The history in the database: records of runs, found by what stands in columns, and kept as bytes that only the service
//! can read. A record is known by its run, its moment and its journal, so that it is stored once, however often it is
//! handed in and by whichever registry.

mod key;
mod retention;
mod select;

use std::time::{Duration, SystemTime};

use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};

use self::key::{column, label, to_nanos};
pub use self::retention::Retention;
pub use self::select::{Filter, Position, Stored};
use super::Store;
use super::error::StoreError;

/// Rows of one INSERT: ten values each, of the 32,766 that SQLite takes.
const ROWS: usize = 64;

/// A part of a journal.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The journal.
    pub journal_id: String,
    /// Who hands it in.
    pub identity: String,
    /// The name of the executor.
    pub executor: String,
    /// Where in the journal it ends.
    pub end: i64,
    /// What is in it.
    pub records: Vec<NewRecord>,
}

/// A record, and what it is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecord {
    /// The run.
    pub run_id: String,
    /// When it got its id.
    pub accepted_at: SystemTime,
    /// The skill.
    pub skill: String,
    /// On whose behalf; empty for no agent.
    pub agent: String,
    /// The name of the executor.
    pub executor: String,
    /// Whose run it is; empty for a caller without an identity.
    pub caller: String,
    /// How it ended, as the API counts.
    pub outcome: i32,
    /// Of the request.
    pub labels: Vec<(String, String)>,
    /// The whole record.
    pub bytes: Vec<u8>,
}

/// What a batch changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Records that were not there before.
    pub new: usize,
    /// Those that were.
    pub known: usize,
}

/// Why a batch was not stored.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// It is another's.
    #[error("the journal belongs to another identity")]
    OtherIdentity,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for AppendError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

impl Store {
    /// Stores what is not there yet, all of it or nothing.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn append(&self, batch: &Batch) -> Result<Appended, AppendError> {
        let mut tx = self.pool().await?.begin().await?;
        if !enter(&mut tx, batch).await? {
            return Err(AppendError::OtherIdentity);
        }
        let mut new = 0;
        for records in batch.records.chunks(ROWS) {
            new += insert(&mut tx, batch, records).await?;
        }
        tx.commit().await?;
        let known = batch.records.len() - new;
        self.tally().stored(new, known);
        Ok(Appended { new, known })
    }
}

/// Takes the journal's row, which keeps other batches of it waiting. False where it is another's.
async fn enter(tx: &mut Transaction<'static, Any>, batch: &Batch) -> Result<bool, StoreError> {
    let row = sqlx::query(
        "INSERT INTO run_journals (id, identity, executor, batch_end, seen_at) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (id) DO UPDATE SET executor = excluded.executor, seen_at = excluded.seen_at, \
         batch_end = CASE WHEN excluded.batch_end > run_journals.batch_end THEN excluded.batch_end \
         ELSE run_journals.batch_end END \
         WHERE run_journals.identity = excluded.identity RETURNING batch_end",
    )
    .bind(&batch.journal_id)
    .bind(&batch.identity)
    .bind(column(&batch.executor).into_owned())
    .bind(batch.end)
    .bind(to_nanos(SystemTime::now()))
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row.is_some())
}

/// Inserts these, and says how many were not there.
async fn insert(tx: &mut Transaction<'static, Any>, batch: &Batch, records: &[NewRecord]) -> Result<usize, StoreError> {
    let sql = format!(
        "INSERT INTO run_records (accepted_at, run_id, journal_id, identity, skill, agent, executor, caller, outcome, \
         record) VALUES {} ON CONFLICT DO NOTHING RETURNING accepted_at, run_id",
        places(records.len(), 10)
    );
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for record in records {
        query = query
            .bind(to_nanos(record.accepted_at))
            .bind(&record.run_id)
            .bind(&batch.journal_id)
            .bind(&batch.identity)
            .bind(column(&record.skill).into_owned())
            .bind(column(&record.agent).into_owned())
            .bind(column(&record.executor).into_owned())
            .bind(column(&record.caller).into_owned())
            .bind(i64::from(record.outcome))
            .bind(&record.bytes);
    }
    let mut fresh = Vec::new();
    for row in query.fetch_all(&mut **tx).await? {
        fresh.push((row.try_get::<i64, _>(0)?, row.try_get::<String, _>(1)?));
    }
    let mut labels = Vec::new();
    for (accepted_at, run_id) in &fresh {
        // The first, where a batch has one twice: it is the one that was stored.
        let record =
            records.iter().find(|record| record.run_id == *run_id && to_nanos(record.accepted_at) == *accepted_at);
        for (name, value) in record.map(|record| record.labels.as_slice()).unwrap_or_default() {
            labels.push((label(name, value), *accepted_at, run_id.as_str()));
        }
    }
    for labels in labels.chunks(4 * ROWS) {
        let sql = format!(
            "INSERT INTO run_labels (label, accepted_at, run_id, journal_id) VALUES {} ON CONFLICT DO NOTHING",
            places(labels.len(), 4)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for (label, accepted_at, run_id) in labels {
            query = query.bind(label).bind(accepted_at).bind(*run_id).bind(&batch.journal_id);
        }
        query.execute(&mut **tx).await?;
    }
    Ok(fresh.len())
}

/// `($1, $2), ($3, $4)`.
fn places(rows: usize, columns: usize) -> String {
    let row = |row| {
        let places: Vec<_> = (1..=columns).map(|column| format!("${}", row * columns + column)).collect();
        format!("({})", places.join(", "))
    };
    (0..rows).map(row).collect::<Vec<_>>().join(", ")
}

/// How old what is kept may become.
pub const DEFAULT_MAX_AGE: Duration = Duration::from_secs(30 * 86_400);
/// How much is kept.
pub const DEFAULT_MAX_RECORDS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::places;

    #[test]
    fn places_of_rows() {
        assert_eq!(places(2, 3), "($1, $2, $3), ($4, $5, $6)");
        assert_eq!(places(0, 3), "");
    }
}
