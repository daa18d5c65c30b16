//! A record as bytes in the database: JSON, so that a later version can read what this one wrote.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::Record;
use crate::run::id::RunId;
use crate::run::outcome::Outcome;

/// What serde reads and writes; the id is the key.
#[derive(Debug, Deserialize, Serialize)]
struct Raw {
    request: String,
    caller: String,
    approval_id: String,
    skill: String,
    digest: String,
    agent: String,
    args_sha256: String,
    accepted_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
}

/// The record as it is kept.
pub(super) fn to_bytes(record: &Record) -> Result<Vec<u8>, String> {
    let raw = Raw {
        request: record.request.to_string(),
        caller: record.caller.clone(),
        approval_id: record.approval_id.clone(),
        skill: record.skill.to_string(),
        digest: record.digest.to_string(),
        agent: record.agent.clone(),
        args_sha256: record.args_sha256.to_string(),
        accepted_ms: to_ms(record.accepted_at),
        outcome: record.outcome.map(|outcome| outcome.as_str().to_owned()),
    };
    serde_json::to_vec(&raw).map_err(|error| error.to_string())
}

/// The record that was kept under this id.
pub(super) fn from_bytes(id: RunId, bytes: &[u8]) -> Result<Record, String> {
    let raw: Raw = serde_json::from_slice(bytes).map_err(|error| format!("run {id}: {error}"))?;
    let wrong = |what: &str| format!("run {id}: its {what} is none");
    Ok(Record {
        request: raw.request.parse().map_err(|_| wrong("request"))?,
        caller: raw.caller,
        approval_id: raw.approval_id,
        skill: raw.skill.parse().map_err(|_| wrong("skill"))?,
        digest: raw.digest.parse().map_err(|_| wrong("digest"))?,
        agent: raw.agent,
        args_sha256: raw.args_sha256.parse().map_err(|_| wrong("args_sha256"))?,
        accepted_at: from_ms(raw.accepted_ms),
        outcome: match raw.outcome {
            Some(word) => Some(Outcome::of_word(&word).ok_or_else(|| wrong("outcome"))?),
            None => None,
        },
        id,
    })
}

/// Milliseconds since 1970.
pub(super) fn to_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The moment so many milliseconds after 1970.
pub(super) fn from_ms(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}
