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
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Written down before its start, by [`Guarded::obtain`].
    Guarded(Box<Guarded>),
    /// Safe; whether it was noted that it was accepted.
    Safe { noted: bool },
}

impl Diary {
    /// Of a run that was accepted.
    #[must_use]
    pub fn new(journal: Journal, guarded: Option<Guarded>, call: &Arc<Call>) -> Self {
        let kind = match guarded {
            Some(guarded) => Kind::Guarded(Box::new(guarded)),
            None => Kind::Safe { noted: journal.note_accepted(call) },
        };
        Self { journal, call: Arc::clone(call), kind }
    }

    /// The run ended; nobody has been told yet.
    pub async fn ended(self, record: RunRecord) {
        match self.kind {
            Kind::Guarded(guarded) => guarded.ended(record).await,
            Kind::Safe { noted } => self.journal.note_ended(record, noted),
        }
    }

    /// The run was not started and will not be; its id may be used again from then on.
    pub async fn refused(self) {
        match self.kind {
            Kind::Guarded(guarded) => guarded.refused().await,
            Kind::Safe { noted: true } => self.journal.note_forgotten(&self.call.id),
            Kind::Safe { noted: false } => {}
        }
    }
}
