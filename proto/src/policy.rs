//! The policy table: what a permission mode lets a class of skill do.

use crate::agent::PermissionMode;
use crate::skill::Class;

/// What becomes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It runs.
    Runs,
    /// It runs with an approval that this many people signed.
    NeedsSignatures(u32),
    /// It is refused.
    Refused,
}

/// The table, row by row.
#[must_use]
pub fn rule(class: Class, mode: PermissionMode) -> Ruling {
    match (class, mode) {
        (Class::Safe, _) => Ruling::Runs,
        (Class::Mutating, PermissionMode::ReadOnly) => Ruling::Refused,
        (Class::Mutating, _) => Ruling::NeedsSignatures(1),
        (Class::Dangerous, PermissionMode::DualSignRequired) => Ruling::NeedsSignatures(2),
        (Class::Dangerous, _) => Ruling::Refused,
    }
}
