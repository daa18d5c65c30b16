//! How long approvals are kept once nothing more can become of them. What may still be signed or used is never deleted.

use std::time::{Duration, SystemTime};

use uuid::Builder;

use super::Store;
use super::approval::to_millis;
use super::error::StoreError;

/// Approvals that are deleted in one step: others wait for it.
pub(super) const BATCH: u64 = 500;
/// What chooses them: an id begins with the moment at which the approval was asked for, so the oldest have the smallest.
const CHOSEN: &str =
    "SELECT id FROM approvals WHERE id < $1 AND state IN ('rejected', 'expired', 'consumed') ORDER BY id LIMIT 500";

impl Store {
    /// Deletes some that were asked for longer ago than this, with their signatures, and says how many.
    pub(super) async fn forget(&self, keep: Duration) -> Result<u64, StoreError> {
        let until = to_millis(SystemTime::now()).saturating_sub_unsigned(millis(keep)).max(0);
        let first_kept = Builder::from_unix_timestamp_millis(until.unsigned_abs(), &[0; 10]).into_uuid().to_string();
        let found = sqlx::query(CHOSEN).bind(&first_kept).fetch_optional(self.pool().await?).await?;
        if found.is_none() {
            return Ok(0);
        }
        // Nothing else changes an approval meanwhile: both statements choose the same.
        let (mut tx, _) = self.change().await?;
        let mut deleted = 0;
        for (table, id) in [("approval_signatures", "approval_id"), ("approvals", "id")] {
            let sql = format!("DELETE FROM {table} WHERE {id} IN ({CHOSEN})");
            let done = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(&first_kept).execute(&mut *tx).await?;
            deleted = done.rows_affected();
        }
        self.commit(tx).await?;
        Ok(deleted)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
