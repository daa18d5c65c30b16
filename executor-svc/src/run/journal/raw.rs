//! Entries and records as bytes in the database: JSON, so that a later version can read what this one wrote.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::record::{Entry, RunRecord};
use crate::run::call::{Call, Step};
use crate::run::id::RunId;
use crate::run::outcome::{Figures, Finished, Outcome};
use crate::slot::{Exit, Usage};

#[derive(Debug, Deserialize, Serialize)]
struct RawCall {
    id: String,
    named: bool,
    request: String,
    skill: String,
    digest: String,
    agent: String,
    caller: String,
    args_sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval_id: Option<String>,
    needs_approval: bool,
    #[serde(default)]
    detached: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    executor: String,
    accepted_ns: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct RawEntry {
    call: RawCall,
    step: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct RawRunRecord {
    call: RawCall,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started_ns: Option<u64>,
    finished_ns: u64,
    finished: RawFinished,
    #[serde(default)]
    stderr: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct RawFinished {
    outcome: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(default)]
    stderr_tail: String,
    #[serde(default)]
    stdout_head: String,
    result_bytes: u64,
    queued_ns: u64,
    wall_ns: u64,
    cpu_user_ns: u64,
    cpu_system_ns: u64,
    max_rss_bytes: u64,
    stderr_bytes: u64,
    stdout_bytes: u64,
}

pub(super) fn entry_to_bytes(entry: &Entry) -> Result<Vec<u8>, String> {
    // The labels of a run that has ended are in its record.
    let labels = matches!(entry.outcome, None | Some(Outcome::Lost));
    to_bytes(&RawEntry {
        call: call_to_raw(&entry.call, labels),
        step: entry.step.as_str().to_owned(),
        started_ns: entry.started_at.map(to_ns),
        outcome: entry.outcome.map(|outcome| outcome.as_str().to_owned()),
    })
}

pub(super) fn entry_from_bytes(id: &str, bytes: &[u8]) -> Result<Entry, String> {
    let raw: RawEntry = from_bytes(id, bytes)?;
    let call = call_from_raw(raw.call)?;
    let wrong = |what: &str| format!("run {id}: its {what} is none");
    if call.id.as_str() != id {
        return Err(wrong("id"));
    }
    Ok(Entry {
        call: Arc::new(call),
        step: Step::of_word(&raw.step).ok_or_else(|| wrong("step"))?,
        started_at: raw.started_ns.map(from_ns),
        outcome: match raw.outcome {
            Some(word) => Some(Outcome::of_word(&word).ok_or_else(|| wrong("outcome"))?),
            None => None,
        },
    })
}

pub(super) fn record_to_bytes(record: &RunRecord) -> Result<Vec<u8>, String> {
    let (finished, figures) = (&record.finished, &record.finished.figures);
    let (exit_code, signal) = match finished.exit {
        Some(Exit::Code(code)) => (Some(code), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    to_bytes(&RawRunRecord {
        call: call_to_raw(&record.call, true),
        started_ns: record.started_at.map(to_ns),
        finished_ns: to_ns(record.finished_at),
        finished: RawFinished {
            outcome: finished.outcome.as_str().to_owned(),
            message: finished.message.clone(),
            reason: finished.reason.clone().into_owned(),
            exit_code,
            signal,
            stderr_tail: finished.stderr_tail.clone(),
            stdout_head: finished.stdout_head.clone(),
            result_bytes: finished.result_bytes,
            queued_ns: nanos(figures.queued),
            wall_ns: nanos(figures.usage.wall),
            cpu_user_ns: nanos(figures.usage.cpu_user),
            cpu_system_ns: nanos(figures.usage.cpu_system),
            max_rss_bytes: figures.usage.max_rss_bytes,
            stderr_bytes: figures.stderr_bytes,
            stdout_bytes: figures.stdout_bytes,
        },
        stderr: record.stderr.clone(),
    })
}

pub(super) fn record_from_bytes(seq: u64, bytes: &[u8]) -> Result<RunRecord, String> {
    let raw: RawRunRecord = from_bytes(&format!("record {seq}"), bytes)?;
    let call = call_from_raw(raw.call)?;
    let finished = raw.finished;
    let outcome = Outcome::of_word(&finished.outcome).ok_or_else(|| format!("record {seq}: its outcome is none"))?;
    let exit = finished.exit_code.map(Exit::Code).or(finished.signal.map(Exit::Signal));
    let usage = Usage {
        wall: Duration::from_nanos(finished.wall_ns),
        cpu_user: Duration::from_nanos(finished.cpu_user_ns),
        cpu_system: Duration::from_nanos(finished.cpu_system_ns),
        max_rss_bytes: finished.max_rss_bytes,
    };
    Ok(RunRecord {
        call: Arc::new(call),
        started_at: raw.started_ns.map(from_ns),
        finished_at: from_ns(raw.finished_ns),
        finished: Arc::new(Finished {
            outcome,
            message: finished.message,
            reason: finished.reason.into(),
            exit,
            stderr_tail: finished.stderr_tail,
            stdout_head: finished.stdout_head,
            result_bytes: finished.result_bytes,
            figures: Figures {
                queued: Duration::from_nanos(finished.queued_ns),
                usage,
                stderr_bytes: finished.stderr_bytes,
                stdout_bytes: finished.stdout_bytes,
            },
        }),
        stderr: raw.stderr,
    })
}

fn call_to_raw(call: &Call, labels: bool) -> RawCall {
    let labels = if labels { call.labels.clone().into_iter().collect() } else { BTreeMap::new() };
    RawCall {
        id: call.id.to_string(),
        named: call.named_by_caller,
        request: call.request.to_string(),
        skill: call.skill.to_string(),
        digest: call.digest.to_string(),
        agent: call.agent.clone(),
        caller: call.caller.clone(),
        args_sha256: call.args_sha256.to_string(),
        approval_id: call.approval_id.clone(),
        needs_approval: call.needs_approval,
        detached: call.detached,
        labels,
        executor: call.executor.to_string(),
        accepted_ns: to_ns(call.accepted_at),
    }
}

fn call_from_raw(raw: RawCall) -> Result<Call, String> {
    let id: RunId = raw.id.parse().map_err(|_| format!("{:?} is no id of a run", raw.id))?;
    let wrong = |what: &str| format!("run {id}: its {what} is none");
    Ok(Call {
        named_by_caller: raw.named,
        request: raw.request.parse().map_err(|_| wrong("request"))?,
        skill: raw.skill.parse().map_err(|_| wrong("skill"))?,
        digest: raw.digest.parse().map_err(|_| wrong("digest"))?,
        agent: raw.agent,
        caller: raw.caller,
        args_sha256: raw.args_sha256.parse().map_err(|_| wrong("args_sha256"))?,
        approval_id: raw.approval_id,
        needs_approval: raw.needs_approval,
        detached: raw.detached,
        labels: raw.labels.into_iter().collect(),
        executor: raw.executor.into(),
        accepted_at: from_ns(raw.accepted_ns),
        id,
    })
}

fn to_bytes(raw: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(raw).map_err(|error| error.to_string())
}

fn from_bytes<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("run {what}: {error}"))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970.
pub(super) fn to_ns(time: SystemTime) -> u64 {
    nanos(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// The moment so many nanoseconds after 1970.
pub(super) fn from_ns(ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)
}
