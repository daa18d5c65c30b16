//! Playbooks over HTTP: from an admin server into the mirror, and from the catalog on to others. Knows no gRPC.

mod answer;
mod client;
mod commit;
mod fetch;
pub mod follow;
mod mirror;
mod next;
pub mod once;
mod place;
mod plan;
mod protocol;
pub mod publish;
mod pull;
mod server;
mod shelf;
mod stage;
mod tree;

pub use mirror::{MirrorError, recover};
pub use pull::{Puller, SyncError, Synced};
pub use server::{FetchError, Limits, Server};
