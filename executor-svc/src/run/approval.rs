//! What comes before the start of a mutating or dangerous run: its record in the journal, and the registry's word that its
//! approval is good and now used up by it. Both, in this order, or nothing is started.
//!
//! Why a run is not made twice. (1) While the process lives, the run table has one run of an id. (2) The record is on the
//! disk before the registry is asked, and so before the start; a run whose record has no end when the executor starts
//! again is LOST, and one with an end keeps it. So an id in the journal never starts again, whenever the process died. (3)
//! The registry gives an approval to one run in one journal of one executor. So another id, another executor, or this one
//! over a journal that does not know the run, does not start with it either. Only a run that was certainly not started
//! leaves the journal: its id may be used again, and the registry answers the same run in the same journal again, so that
//! an answer that was lost costs nothing.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skillyard::Digest;
use skillyard::service::error::{Reason, Refusal};
use tracing::{error, info};

use crate::run::admission::{Permit, RETRY_AFTER, draining};
use crate::run::call::Call;
use crate::run::journal::{Journal, JournalError, RunRecord};
use crate::run::table::expired;

/// How far the clocks of the registry and of this executor may be apart.
const CLOCKS_APART: Duration = Duration::from_secs(300);

/// What an approval is to be used up for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The approval.
    pub approval_id: String,
    /// The run that uses it.
    pub run_id: String,
    /// On whose behalf; empty for no agent.
    pub agent: String,
    /// The skill.
    pub skill: String,
    /// The package.
    pub digest: Digest,
    /// Of the argument bytes.
    pub args_sha256: Digest,
    /// The journal that remembers the run.
    pub journal_id: String,
}

/// An approval that was used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// When it was asked for.
    pub created_at: SystemTime,
}

/// What consuming an approval comes to.
pub type Consuming<'a> = Pin<Box<dyn Future<Output = Result<Consumed, Refusal>> + Send + 'a>>;

/// Whoever keeps the approvals.
pub trait Approvals: Debug + Send + Sync {
    /// Uses an approval up for one run in one journal of this executor. The same gets the same answer again; any other is
    /// refused. Answers within a few seconds.
    fn consume(&self, what: Use) -> Consuming<'_>;
}

/// What mutating and dangerous runs need before they start.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Remembers them.
    pub journal: Journal,
    /// Says which may start.
    pub approvals: Arc<dyn Approvals>,
}

/// A run that starts only with an approval.
#[derive(Clone, Debug)]
pub struct Guarded {
    gate: Gate,
    what: Use,
    call: Arc<Call>,
}

impl Guarded {
    /// A run with the approval that its request named.
    #[must_use]
    pub fn new(gate: Gate, call: &Arc<Call>, approval_id: &str) -> Self {
        let what = Use {
            approval_id: approval_id.to_owned(),
            run_id: call.id.to_string(),
            agent: call.agent.clone(),
            skill: call.skill.to_string(),
            digest: call.digest,
            args_sha256: call.args_sha256,
            journal_id: gate.journal.id().to_owned(),
        };
        Self { gate, what, call: Arc::clone(call) }
    }

    /// Writes the run down and uses its approval up; when this returns, the run may start, once, at once. Dropped before,
    /// or with a refusal, it may not.
    ///
    /// # Errors
    /// Why the run may not start.
    pub async fn obtain(&self, permit: &Permit) -> Result<(), Refusal> {
        let journal = &self.gate.journal;
        journal.accept(&self.call).await.map_err(not_written)?;
        // An approval is not used up for an executor that goes away. Once it is, the run has till the end of the drain.
        if permit.is_draining() {
            return Err(draining());
        }
        let consumed = self.gate.approvals.consume(self.what.clone()).await?;
        if journal.forgotten_until().is_some_and(|until| consumed.created_at < until + CLOCKS_APART) {
            let message = format!(
                "approval {} is as old as runs that this executor has forgotten, and may have been used by one: ask for a new approval",
                self.what.approval_id
            );
            return Err(
                Refusal::new(Reason::ApprovalInvalid, message).with("approval_id", self.what.approval_id.as_str())
            );
        }
        // So that a record of a run that was LOST before this certainly means that nothing was started.
        journal.approved(&self.call.id).await.map_err(not_written)?;
        info!(approval_id = self.what.approval_id, caller = self.call.caller, "the approval is used by this run");
        Ok(())
    }

    /// Notes how the run ended, before anybody is told.
    pub async fn ended(&self, record: RunRecord) {
        if let Err(error) = self.gate.journal.end(record).await {
            error!(%error, "the end of a run could not be written down: after a restart it is LOST");
        }
    }

    /// Notes that the run was not started and will not be; its id may be used again from then on.
    pub async fn refused(&self) {
        if let Err(error) = self.gate.journal.forget(&self.call.id).await {
            error!(%error, "a run that was not started could not be forgotten: after a restart its id cannot be used");
        }
    }
}

fn not_written(error: JournalError) -> Refusal {
    match error {
        JournalError::Known(id) => expired(&id, None),
        error => {
            error!(%error, "a run is not started: it could not be written down");
            let message = "this executor cannot write its journal and starts only safe skills until it is mended; its log has the cause: run it on another executor";
            Refusal::new(Reason::NotReady, message).retry_after(RETRY_AFTER)
        }
    }
}
