//! The executor: runs skills.

pub mod slot;
