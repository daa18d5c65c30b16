//! What a run costs: executors as real processes, floors, and peers.

mod cpu;
mod drive;
mod executor;
mod floor;
pub(crate) mod large;
pub(crate) mod memory;
pub(crate) mod output;
pub(crate) mod peers;
pub(crate) mod runs;
