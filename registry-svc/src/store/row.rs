//! Rows of the database as values. What no version of ours writes is an error, not a guess.

use skillyard::{Class, Digest};
use sqlx::Row as _;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::approval::{Approval, Call, Signature, State, Use, from_millis};
use super::error::StoreError;

/// Those that [`approval`] reads; `$1` is the most bytes of arguments to read.
pub(super) const COLUMNS: &str = "id, changed, agent, skill, class, digest, \
     CASE WHEN octet_length(args_json) <= $1 THEN args_json END AS args_json, args_sha256, reason, requested_by, \
     requested_for, signatures_required, state, created_at, expires_at, run_id, executor, journal";

/// An approval, as yet without its signatures.
pub(super) fn approval(row: &AnyRow) -> Result<Approval, StoreError> {
    let class = text(row, "class")?;
    let state = text(row, "state")?;
    let (run_id, executor): (Option<String>, Option<String>) = (row.try_get("run_id")?, row.try_get("executor")?);
    // Null too where a version used it that knew no journals.
    let journal = row.try_get::<Option<String>, _>("journal")?.unwrap_or_default();
    let signatures_required: i64 = row.try_get("signatures_required")?;
    Ok(Approval {
        id: id(row, "id")?,
        changed: row.try_get("changed")?,
        call: Call {
            agent: text(row, "agent")?,
            skill: text(row, "skill")?,
            digest: digest(row, "digest")?,
            args_sha256: digest(row, "args_sha256")?,
        },
        class: [Class::Safe, Class::Mutating, Class::Dangerous]
            .into_iter()
            .find(|known| known.as_str() == class)
            .ok_or(StoreError::Value { column: "class", value: class })?,
        args_json: row.try_get("args_json")?,
        reason: text(row, "reason")?,
        requested_by: text(row, "requested_by")?,
        requested_for: text(row, "requested_for")?,
        signatures_required: u32::try_from(signatures_required)
            .map_err(|_| StoreError::Value { column: "signatures_required", value: signatures_required.to_string() })?,
        signatures: Vec::new(),
        state: State::ALL
            .into_iter()
            .find(|known| known.as_str() == state)
            .ok_or(StoreError::Value { column: "state", value: state })?,
        created_at: from_millis(row.try_get("created_at")?),
        expires_at: from_millis(row.try_get("expires_at")?),
        used_by: run_id.zip(executor).map(|(run_id, executor)| Use { run_id, executor, journal }),
    })
}

/// A signature, and the approval that it is on.
pub(super) fn signature(row: &AnyRow) -> Result<(Uuid, Signature), StoreError> {
    let signature = Signature {
        signer: text(row, "signer")?,
        approve: row.try_get::<i64, _>("approve")? == 1,
        comment: text(row, "comment")?,
        time: from_millis(row.try_get("signed_at")?),
    };
    Ok((id(row, "approval_id")?, signature))
}

fn text(row: &AnyRow, column: &'static str) -> Result<String, StoreError> {
    Ok(row.try_get(column)?)
}

fn digest(row: &AnyRow, column: &'static str) -> Result<Digest, StoreError> {
    let value = text(row, column)?;
    value.parse().map_err(|_| StoreError::Value { column, value })
}

fn id(row: &AnyRow, column: &'static str) -> Result<Uuid, StoreError> {
    let value = text(row, column)?;
    value.parse().map_err(|_| StoreError::Value { column, value })
}
