//! What happens in a run, as a value.

use std::sync::Arc;
use std::time::SystemTime;

use skillyard::service::error::Refusal;

use crate::run::lines::Piece;
use crate::run::outcome::Finished;
use crate::run::progress::Progress;

/// Most bytes of a piece of the result.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The run has an id and a place in the queue.
    Accepted {
        /// Runs ahead of it; 0 when it starts at once.
        queue_position: u32,
    },
    /// The process exists.
    Started {
        /// Its pid.
        pid: i32,
    },
    /// The skill wrote to stderr.
    Log {
        /// What.
        piece: Piece,
        /// Lines that this reader missed just before it.
        dropped_lines: u64,
    },
    /// The skill said how far it is.
    Progress(Progress),
    /// A piece of the result.
    Result(Chunk),
    /// The end.
    Finished(Arc<Finished>),
    /// The end of a run that was accepted and then never started.
    Refused(Refusal),
}

/// A piece of a result, sharing its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    result: Arc<str>,
    start: usize,
    end: usize,
}

impl Chunk {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.result[self.start..self.end]
    }

    /// Cuts a result at characters.
    pub fn cut(result: &Arc<str>) -> impl Iterator<Item = Self> {
        let mut start = 0;
        std::iter::from_fn(move || {
            if start == result.len() {
                return None;
            }
            let mut end = (start + MAX_CHUNK_BYTES).min(result.len());
            while !result.is_char_boundary(end) {
                end -= 1;
            }
            let chunk = Self { result: Arc::clone(result), start, end };
            start = end;
            Some(chunk)
        })
    }
}

/// An event with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Stamped {
    /// Counts from 1.
    pub seq: u64,
    /// When.
    pub time: SystemTime,
    /// What.
    pub event: Event,
}
