//! Both services together, as real processes over real sockets. A test states a world, acts, and compares a whole value.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, its helpers too")]

mod admin_port;
mod admission;
mod approvals;
mod attach;
mod budget;
mod callers;
mod catalog;
mod certificates;
mod chain;
mod chaos;
mod client;
mod descriptors;
mod disk;
mod ending;
mod follow;
mod history;
mod hostile;
mod hostile_skills;
mod isolation;
mod large;
mod layers;
mod leaks;
mod limits;
mod list;
mod metrics;
#[cfg(feature = "otlp")]
mod otlp;
mod output;
mod race;
mod refusals;
mod run_id;
mod runs;
mod scratch;
mod soak;
mod surroundings;
mod syscalls;
mod traces;
