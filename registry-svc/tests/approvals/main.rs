//! Approvals over the wire, on both databases: their life, and every way to misuse them.

#![expect(clippy::unwrap_used, reason = "what is not as it should be fails the test")]

#[expect(dead_code, reason = "shared with tests that use the rest")]
mod bed;
mod cli;
mod encrypted;
mod life;
mod misuse;
mod several;
#[path = "../world/mod.rs"]
#[expect(dead_code, reason = "shared with tests that use the rest")]
mod world;
