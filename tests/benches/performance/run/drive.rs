//! Drives whatever takes runs: so many calls at a time for so long, on one thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::run::cpu::Spent;

/// What every run is given.
pub(crate) const ARGUMENTS: &str = r#"{"path":"/var/log","days":7}"#;

/// Takes one run and waits for its result.
pub(crate) trait Target: Clone + 'static {
    async fn run(&mut self);
}

/// What a while of runs came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Runs a second.
    pub(crate) rate: f64,
    /// Seconds of processor time a run.
    pub(crate) cpu: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl Sample {
    pub(crate) fn new(mut took: Vec<Duration>, length: Duration, cpu: f64) -> Self {
        assert!(!took.is_empty(), "no run ended in {length:?}");
        took.sort_unstable();
        let runs = took.len();
        Self {
            rate: runs as f64 / length.as_secs_f64(),
            cpu: cpu / runs as f64,
            p50: took[runs / 2],
            p99: took[runs * 99 / 100],
        }
    }
}

/// `server` is whose processor time, with that of all below it, is counted.
pub(crate) async fn measure(target: &impl Target, server: i32, at: usize, length: Duration) -> Sample {
    let (before, began) = (Spent::by_tree(server), Instant::now());
    let (local, took) = (tokio::task::LocalSet::new(), Rc::new(RefCell::new(Vec::new())));
    for _ in 0..at {
        let (mut target, took) = (target.clone(), Rc::clone(&took));
        local.spawn_local(async move {
            while began.elapsed() < length {
                let began = Instant::now();
                target.run().await;
                took.borrow_mut().push(began.elapsed());
            }
        });
    }
    local.await;
    let length = began.elapsed();
    Sample::new(took.take(), length, Spent::by_tree(server).since(&before))
}
