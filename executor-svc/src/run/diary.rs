//! What one run writes into the journal: a run with an approval waits for its writes, a safe one only notes.

use std::sync::Arc;

use crate::run::approval::Guarded;
use crate::run::call::Call;
use crate::run::journal::{Journal, RunRecord};

/// The pages of one run.
#[derive(Debug)]
pub struct Diary {
    journal: Journal,
    call: Arc<Call>,
    /// Of a run that is not safe: written down before its start, by [`Guarded::obtain`].
    guarded: Option<Guarded>,
    /// Of a safe run: whether it was noted that it was accepted.
    noted: bool,
}

impl Diary {
    /// Of a run that was accepted.
    #[must_use]
    pub fn new(journal: Journal, guarded: Option<Guarded>, call: &Arc<Call>) -> Self {
        let noted = guarded.is_none() && journal.note_accepted(call);
        Self { journal, call: Arc::clone(call), guarded, noted }
    }

    /// The run ended; nobody has been told yet.
    pub async fn ended(self, record: RunRecord) {
        match self.guarded {
            Some(guarded) => guarded.ended(record).await,
            None => self.journal.note_ended(record, self.noted),
        }
    }

    /// The run was not started and will not be; its id may be used again from then on.
    pub async fn refused(self) {
        match self.guarded {
            Some(guarded) => guarded.refused().await,
            None if self.noted => self.journal.note_forgotten(&self.call.id),
            None => {}
        }
    }
}
