//! Runs that there are or were: by the same call again, by their id, and in lists. Starts none.

use std::sync::Arc;
use std::time::SystemTime;

use skillyard::Digest;
use skillyard::service::caller::{Caller, Role};
use skillyard::service::error::{Reason, Refusal};
use tracing::{error, info};

use super::{RunRequest, Runner};
use crate::run::admission::draining;
use crate::run::event::Event;
use crate::run::events::{NoPlace, Reader};
use crate::run::id::RunId;
use crate::run::journal::Entry;
use crate::run::outcome::{Cause, Outcome};
use crate::run::table::{Run, expired, reused};

/// Which runs are to be listed.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only those that have not ended.
    pub active: bool,
    /// Only those of this skill; empty for all.
    pub skill: String,
    /// Only those on behalf of this agent; empty for all.
    pub agent: String,
}

impl Runner {
    /// A run that this caller may see.
    ///
    /// # Errors
    /// UNKNOWN_RUN, RESULT_EXPIRED, or CALLER_NOT_ALLOWED where another caller started it.
    pub async fn get(&self, caller: &Caller, id: &str) -> Result<Arc<Run>, Refusal> {
        let unknown = || {
            let message = format!(
                "unknown run {id:?}: it was not started on this executor, or not at all, or it ended too long ago; the \
                 registry's history may have it"
            );
            Refusal::new(Reason::UnknownRun, message)
        };
        let id: RunId = id.parse().map_err(|_| unknown())?;
        let table = &self.inner.table;
        if let Some(run) = table.get(&id) {
            may_see(caller, &id, &run.call.caller)?;
            return Ok(run);
        }
        if let Some(used) = table.used(&id) {
            may_see(caller, &id, &used.caller)?;
            return Err(expired(&id, used.outcome));
        }
        let Some(entry) = self.in_journal(&id).await? else { return Err(unknown()) };
        may_see(caller, &id, &entry.call.caller)?;
        match (table.get(&id), entry.outcome) {
            (Some(run), _) => Ok(run),
            (None, Some(Outcome::Lost)) => Ok(self.take_in(&entry)),
            (None, Some(outcome)) => Err(expired(&id, Some(outcome))),
            (None, None) => Err(unknown()),
        }
    }

    /// Follows a run from the first event after one.
    ///
    /// # Errors
    /// As [`Self::get`]; INVALID_REQUEST where the run has not come so far.
    pub async fn attach(&self, caller: &Caller, id: &str, after_seq: u64) -> Result<(Arc<Run>, Reader), Refusal> {
        let run = self.get(caller, id).await?;
        match run.events.read_after(after_seq) {
            Ok(reader) => Ok((run, reader)),
            Err(NoPlace::Gone) => Err(expired(&run.call.id, run.end().map(|(_, finished)| finished.outcome))),
            Err(NoPlace::Beyond { last_seq }) => {
                let message = format!(
                    "after_seq is {after_seq}, and the last event of run {} has seq {last_seq}: it is not the run that was \
                     followed before; begin with 0",
                    run.call.id
                );
                Err(Refusal::new(Reason::InvalidRequest, &message).violation("after_seq", message))
            }
        }
    }

    /// The newest runs that this caller may see and that match, newest first: of those before a place, and at most so many.
    #[must_use]
    pub fn list(
        &self,
        caller: &Caller,
        filter: &Filter,
        before: Option<(SystemTime, &str)>,
        most: usize,
    ) -> Vec<Arc<Run>> {
        let sees_all = caller.allow(&[Role::Operator]).is_ok();
        let is = |wanted: &str, text: &str| wanted.is_empty() || wanted == text;
        self.inner.table.newest(before, most, |run| {
            let call = &run.call;
            (sees_all || call.caller == caller.identity())
                && is(&filter.skill, call.skill.as_str())
                && is(&filter.agent, &call.agent)
                && !(filter.active && run.end().is_some())
        })
    }

    /// Ends a run, and answers when it has ended.
    ///
    /// # Errors
    /// As [`Self::get`], or what a run was refused with that had been accepted and was not started.
    pub async fn cancel(&self, caller: &Caller, id: &str, why: String) -> Result<Arc<Run>, Refusal> {
        let run = self.get(caller, id).await?;
        if run.end().is_none() {
            info!(run_id = %run.call.id, caller = caller.identity(), "cancel asked for");
            run.stop(Cause::CancelRequested(why));
            run.events.ended().await;
        }
        if run.end().is_some() { Ok(run) } else { Err(draining()) }
    }

    /// The run of the same call, if this process knows it.
    pub(super) fn find_same(
        &self,
        request: &RunRequest,
        fingerprint: &Digest,
    ) -> Result<Option<(Arc<Run>, Reader)>, Refusal> {
        let Some(id) = &request.run_id else { return Ok(None) };
        let Some(run) = self.inner.table.find_same(id, fingerprint)? else { return Ok(None) };
        let outcome = || run.end().map(|(_, finished)| finished.outcome);
        let reader = run.events.read().ok_or_else(|| expired(id, outcome()))?;
        Ok(Some((run, reader)))
    }

    /// The run of the same call in an earlier life of this executor, which is not run again.
    pub(super) async fn find_earlier(
        &self,
        request: &RunRequest,
        fingerprint: &Digest,
    ) -> Result<Option<(Arc<Run>, Reader)>, Refusal> {
        let Some(id) = &request.run_id else { return Ok(None) };
        // Without an end, it is a run of this life: the table has it.
        let found = self.in_journal(id).await?;
        let Some((entry, outcome)) = found.and_then(|entry| entry.outcome.map(|outcome| (entry, outcome))) else {
            return Ok(None);
        };
        if entry.call.request != *fingerprint {
            return Err(reused(id));
        }
        if outcome != Outcome::Lost {
            return Err(expired(id, Some(outcome)));
        }
        // Asked twice at once, the first has put it into the table meanwhile.
        if let Some(found) = self.find_same(request, fingerprint)? {
            return Ok(Some(found));
        }
        let run = self.take_in(&entry);
        let reader = run.events.read().ok_or_else(|| expired(id, Some(outcome)))?;
        Ok(Some((run, reader)))
    }

    /// Puts a run of an earlier life that was LOST into the table, as accepted and finished.
    fn take_in(&self, entry: &Entry) -> Arc<Run> {
        let run = Run::of(Arc::clone(&entry.call));
        run.events.push(Event::Accepted { queue_position: 0 });
        if let Some(at) = entry.started_at {
            run.started(at);
        }
        let finished = Arc::new(entry.lost());
        run.finished(SystemTime::now(), Arc::clone(&finished));
        run.events.finish(None, Event::Finished(finished));
        self.inner.table.insert(&run);
        self.inner.table.ended(&run);
        run
    }

    async fn in_journal(&self, id: &RunId) -> Result<Option<Entry>, Refusal> {
        self.inner.gate.journal.find(id).await.map_err(|error| {
            error!(%error, "a run could not be looked for in the journal");
            let message = format!(
                "whether run {id} was made before cannot be read from this executor's journal, and nothing is started; the \
                 log has the cause"
            );
            Refusal::new(Reason::Internal, message)
        })
    }
}

/// A run is seen by its caller and by operators.
fn may_see(caller: &Caller, id: &RunId, owner: &str) -> Result<(), Refusal> {
    if caller.identity() == owner || caller.allow(&[Role::Operator]).is_ok() {
        return Ok(());
    }
    let message =
        format!("run {id} was started by another caller: it, or an operator, can follow, look at and cancel it");
    Err(Refusal::new(Reason::CallerNotAllowed, message).with("caller", caller.identity()))
}
