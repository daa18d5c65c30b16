//! Agents: on whose behalf skills are listed and run.

use std::collections::BTreeSet;

/// An agent, as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Unique among the agents.
    pub name: String,
    /// For people.
    pub description: String,
    /// Exact names, or `*` for all. Empty: all.
    pub skills: BTreeSet<String>,
    /// Beats `skills`; `*` for all.
    pub disallowed_skills: BTreeSet<String>,
    /// Which classes of skill it may run.
    pub permission_mode: PermissionMode,
}

/// Which classes of skill an agent may run; see [`crate::policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PermissionMode {
    /// safe alone.
    #[default]
    ReadOnly,
    /// safe, and mutating with one approval.
    MutatingWithConfirm,
    /// safe, mutating with one approval, dangerous with two.
    DualSignRequired,
}

impl PermissionMode {
    /// All of them, in order of what they permit.
    pub const ALL: [Self; 3] = [Self::ReadOnly, Self::MutatingWithConfirm, Self::DualSignRequired];

    /// As an agent's file writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::MutatingWithConfirm => "mutating-with-confirm",
            Self::DualSignRequired => "dual-sign-required",
        }
    }
}
