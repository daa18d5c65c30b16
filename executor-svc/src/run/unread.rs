//! What ended runs hold for readers who do not read: bounded, for all runs together. A run gives up its slot when it has
//! ended, so that without a bound callers who stand still could fill the memory. Knows no run that goes on.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::Duration;

use skillyard::service::error::{Reason, Refusal};

use crate::run::events::EventLog;
use crate::run::id::RunId;
use crate::run::table::Run;

/// Most bytes of all runs that ended, those that are kept without a reader included.
pub const MAX_BYTES: usize = 256 << 20;
/// Readers that have not moved for this long are cut off when there is too much.
pub const STANDS_STILL: Duration = Duration::from_secs(1);
/// A run that holds less is not looked after.
const SMALL: usize = 16 << 10;

/// The logs that hold much, oldest first.
#[derive(Debug, Default)]
pub struct Unread {
    logs: VecDeque<(RunId, Weak<EventLog>)>,
}

impl Unread {
    /// Notes a run that has ended, if it holds much, and returns whether it does.
    pub fn push(&mut self, run: &Run) -> bool {
        let large = run.events.bytes() >= SMALL;
        if large {
            self.logs.push_back((run.call.id.clone(), std::sync::Arc::downgrade(&run.events)));
        }
        large
    }

    /// While they hold more than `most` bytes together, takes the events from readers that have stood still for so long,
    /// the oldest run first. Readers that move make room by themselves.
    pub fn bound(&mut self, most: usize, still_for: Duration) {
        let mut bytes = 0;
        self.logs.retain(|(_, log)| match log.upgrade().map(|log| log.bytes()) {
            None | Some(0) => false,
            Some(held) => {
                bytes += held;
                true
            }
        });
        for (id, log) in &self.logs {
            if bytes <= most {
                return;
            }
            if let Some(freed) = log.upgrade().and_then(|log| log.cut_off(still_for, || not_read(id))) {
                tracing::warn!(run_id = %id, freed, "the events of a run are given up: nobody read them");
                bytes -= freed;
            }
        }
    }
}

fn not_read(id: &RunId) -> Refusal {
    let message = format!(
        "run {id} ended, and its events were given up because they were not read and memory was short; it is not run \
         again: choose a new id, and read faster"
    );
    Refusal::new(Reason::ResultExpired, message).with("run_id", id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::call::Call;
    use crate::run::event::Event;
    use crate::run::events::Reader;
    use crate::run::outcome::Finished;
    use std::sync::Arc;
    use tokio_stream::StreamExt as _;

    /// An ended run with a result of 1 MiB, and somebody who reads it.
    fn read_run() -> (Arc<Run>, Reader) {
        let run = Run::new(Call::for_tests(None, b"1"));
        let reader = run.events.read().unwrap();
        let result: Arc<str> = Arc::from("x".repeat(1 << 20));
        run.events.finish(Some(&result), Event::Finished(Arc::new(Finished::for_tests())));
        (run, reader)
    }

    #[tokio::test]
    async fn who_stands_still_is_cut_off_and_who_moves_is_not() {
        let (most, mut unread) = ((2 << 20) + 4096, Unread::default());
        let runs: Vec<_> = (0..4).map(|_| read_run()).collect();
        assert!(runs.iter().all(|(run, _)| unread.push(run)));
        unread.bound(most, Duration::from_secs(3600));
        assert!(runs.iter().all(|(run, _)| run.events.bytes() > 0), "nobody has stood still for so long");
        unread.bound(most, Duration::ZERO);
        let held: Vec<_> = runs.iter().map(|(run, _)| run.events.bytes() > 0).collect();
        assert_eq!(held, [false, false, true, true], "the oldest go first, and no more than must");
        for (i, (run, mut reader)) in runs.into_iter().enumerate() {
            let first = reader.next().await.unwrap().event;
            match first {
                Event::Refused(refusal) => assert_eq!((i < 2, refusal.reason()), (true, Reason::ResultExpired)),
                event => assert!(i >= 2 && matches!(event, Event::Result(_)), "{event:?}"),
            }
            assert_eq!(run.events.read().is_none(), i < 2);
        }
    }
}
