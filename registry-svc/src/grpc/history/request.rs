//! What executors and readers send, checked: a request that is wrong as a whole is refused, a record that is wrong is
//! named, and the others are taken.

use std::time::SystemTime;

use prost::Message as _;
use skillyard::pb::executor::v1 as run_pb;
use skillyard::pb::registry::v1 as pb;
use skillyard::service::error::{Reason, Refusal};

use crate::store::history::{Batch, Filter, NewRecord};

/// One batch; executors cut them at 1 MiB, and this leaves room for what is around the records.
const MAX_BATCH_BYTES: usize = (1 << 20) + (64 << 10);
/// One record: 64 KiB of stderr, and what is bounded elsewhere.
const MAX_RECORD_BYTES: usize = 256 << 10;
const MAX_ID_BYTES: usize = 128;
/// Labels that a reader can ask for.
const MAX_LABELS: usize = 16;

/// The batch, without the records that can never be stored, and these.
pub(super) fn batch(
    identity: &str,
    message: pb::AppendRunsRequest,
) -> Result<(Batch, Vec<pb::RejectedRecord>), Refusal> {
    if message.encoded_len() > MAX_BATCH_BYTES {
        return Err(invalid("records", "the batch is over 1 MiB: send fewer records at once"));
    }
    let pb::AppendRunsRequest { executor, journal_id, cursor, records } = message;
    if !is_id(&journal_id) {
        return Err(invalid("journal_id", "write 1 to 128 printable ASCII characters without blanks"));
    }
    let end = i64::try_from(cursor).map_err(|_| invalid("cursor", "write a number below 2^63"))?;
    let (mut taken, mut rejected) = (Vec::with_capacity(records.len()), Vec::new());
    for record in records {
        match new_record(&executor, &record) {
            Ok(record) => taken.push(record),
            Err(reason) => {
                let run_id = record.run.map(|run| run.run_id).unwrap_or_default();
                let run_id = run_id.chars().take(MAX_ID_BYTES).collect();
                rejected.push(pb::RejectedRecord { run_id, reason: reason.to_owned() });
            }
        }
    }
    let identity = identity.to_owned();
    Ok((Batch { journal_id, identity, executor, end, records: taken }, rejected))
}

fn new_record(executor: &str, record: &pb::RunRecord) -> Result<NewRecord, &'static str> {
    let run = record.run.as_ref().ok_or("it has no run")?;
    if !is_id(&run.run_id) {
        return Err("its run_id is not 1 to 128 printable ASCII characters without blanks");
    }
    if run.skill.is_empty() {
        return Err("it names no skill");
    }
    let finished = run.finished.as_ref().filter(|_| run.state() == run_pb::RunState::Finished);
    let finished = finished.ok_or("its run has not ended: state must be FINISHED, and finished be there")?;
    if finished.outcome == run_pb::Outcome::Unspecified as i32 {
        return Err("its run has no outcome");
    }
    let accepted_at = run.accepted_at.and_then(moment).ok_or("its accepted_at is missing, or no moment after 1970")?;
    if record.encoded_len() > MAX_RECORD_BYTES {
        return Err("it is over 256 KiB");
    }
    // Who handed it in is for the registry to say.
    let stored = pb::RunRecord { appended_by: String::new(), ..record.clone() };
    Ok(NewRecord {
        run_id: run.run_id.clone(),
        accepted_at,
        skill: run.skill.clone(),
        agent: run.agent.clone(),
        executor: if run.executor.is_empty() { executor.to_owned() } else { run.executor.clone() },
        caller: run.caller.clone(),
        outcome: finished.outcome,
        labels: run.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        bytes: stored.encode_to_vec(),
    })
}

/// What is asked for, as texts that a page's token is bound to, and as a filter.
pub(super) fn filter(message: pb::ListRunRecordsRequest) -> Result<(Vec<String>, Filter), Refusal> {
    let pb::ListRunRecordsRequest { skill, agent, executor, outcome, since, until, labels, .. } = message;
    if labels.len() > MAX_LABELS {
        return Err(invalid("labels", "at most 16 can be asked for"));
    }
    let outcome = match run_pb::Outcome::try_from(outcome) {
        Ok(run_pb::Outcome::Unspecified) => None,
        // One of a newer executor may be there.
        _ => Some(outcome),
    };
    let since = time("since", since)?;
    let until = time("until", until)?;
    let mut labels: Vec<_> = labels.into_iter().collect();
    labels.sort();
    let mut conditions = vec!["ListRunRecords".to_owned(), skill.clone(), agent.clone(), executor.clone()];
    conditions.push(format!("{outcome:?} {since:?} {until:?}"));
    conditions.extend(labels.iter().flat_map(|(name, value)| [name.clone(), value.clone()]));
    let given = |text: String| (!text.is_empty()).then_some(text);
    let (skill, agent, executor) = (given(skill), given(agent), given(executor));
    Ok((conditions, Filter { run_id: None, skill, agent, executor, caller: None, outcome, since, until, labels }))
}

fn time(field: &str, time: Option<prost_types::Timestamp>) -> Result<Option<SystemTime>, Refusal> {
    match time {
        None => Ok(None),
        Some(time) => moment(time).map(Some).ok_or_else(|| invalid(field, "write a moment after 1970")),
    }
}

fn moment(time: prost_types::Timestamp) -> Option<SystemTime> {
    let in_range = time.seconds >= 0 && (0..1_000_000_000).contains(&time.nanos);
    in_range.then(|| SystemTime::try_from(time).ok()).flatten()
}

fn is_id(text: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn invalid(field: &str, what: &str) -> Refusal {
    Refusal::new(Reason::InvalidRequest, format!("{field}: {what}")).violation(field, what)
}
