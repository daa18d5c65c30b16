//! One run, from call to record. Knows the mirror and the slots, and no wire.

pub mod admission;
pub mod approval;
pub mod budget;
pub mod call;
pub mod diary;
pub mod dropped;
mod elf;
pub mod environment;
pub mod event;
pub mod events;
pub mod explain;
pub mod fingerprint;
pub mod id;
pub mod job;
pub mod journal;
pub mod lines;
pub mod outcome;
pub mod patience;
pub mod permit;
pub mod pipes;
pub mod progress;
mod remove;
pub mod runner;
pub mod scratch;
pub mod stderr;
pub mod table;
pub mod tally;
mod traced;
pub mod unread;
pub mod watch;

pub use runner::{RunRequest, Runner};
