//! A call that became a run: all that is known of it when it is accepted, and how far a run can come. Changes no more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::{Digest, SkillName};

use crate::run::id::RunId;

/// What was asked for, by whom, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Unique on the executor.
    pub id: RunId,
    /// Whether the caller chose the id, and so may call again.
    pub named_by_caller: bool,
    /// What was asked for, in all that makes a call the same call.
    pub request: Digest,
    /// The skill.
    pub skill: SkillName,
    /// The package that runs.
    pub digest: Digest,
    /// On whose behalf; empty for no agent.
    pub agent: String,
    /// Whose call it was; empty for an anonymous one.
    pub caller: String,
    /// Of the argument bytes; the arguments themselves are not kept.
    pub args_sha256: Digest,
    /// The approval that it was asked for with.
    pub approval_id: Option<String>,
    /// Whether the skill is mutating or dangerous.
    pub needs_approval: bool,
    /// Whether it goes on without a reader.
    pub detached: bool,
    /// As the request gave them.
    pub labels: HashMap<String, String>,
    /// The name of the executor.
    pub executor: Arc<str>,
    /// When it got its id.
    pub accepted_at: SystemTime,
}

/// How far a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// It has an id.
    Accepted,
    /// Its approval is used, and it is given to a slot next.
    Approved,
    /// Its process was started.
    Started,
}

impl Step {
    const ALL: [Self; 3] = [Self::Accepted, Self::Approved, Self::Started];

    /// The step that [`Self::as_str`] gives this word for.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.as_str() == word)
    }

    /// The word for it in the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Approved => "approved",
            Self::Started => "started",
        }
    }
}

#[cfg(test)]
impl Call {
    /// Of any safe run.
    pub(crate) fn for_tests(id: Option<&str>, request: &[u8]) -> Self {
        Self {
            id: id.map_or_else(RunId::random, |id| id.parse().unwrap()),
            named_by_caller: id.is_some(),
            request: Digest::of(request),
            skill: "x".parse().unwrap(),
            digest: Digest::of(b"x"),
            agent: String::new(),
            caller: String::new(),
            args_sha256: Digest::of(b"{}"),
            approval_id: None,
            needs_approval: false,
            detached: false,
            labels: HashMap::new(),
            executor: "here".into(),
            accepted_at: SystemTime::now(),
        }
    }
}
