//! The history over the wire, on both databases: what is handed in is there once, and found.

#![expect(clippy::unwrap_used, reason = "what is not as it should be fails the test")]

mod append;
#[path = "../approvals/bed.rs"]
#[expect(dead_code, reason = "shared with tests that use the rest")]
mod bed;
mod cli;
mod list;
mod records;
mod retention;
#[path = "../world/mod.rs"]
#[expect(dead_code, reason = "shared with tests that use the rest")]
mod world;
