//! Playbooks over HTTP, over real sockets: from an admin server that misbehaves in every way into the mirror, and on from
//! one registry to the next.

#![expect(clippy::unwrap_used, reason = "what is not as it should be fails the test")]

mod bed;
mod chain;
mod hostile;
mod kill;
mod many;
mod mirror;
mod publish;
mod serving;
#[path = "../world/mod.rs"]
#[expect(dead_code, reason = "shared with tests that use the rest")]
mod world;
