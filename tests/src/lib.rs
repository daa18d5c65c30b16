//! The harness of the end-to-end tests: worlds of both services as real processes over real sockets, the packages that
//! are written for them, and runs as a caller sees them. It replaces nothing by a mock, and fails by panicking.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a harness fails by panicking, with the cause")]

pub mod access;
pub mod binaries;
pub mod certificates;
pub mod cluster;
pub mod hostile;
pub mod metrics;
pub mod pack;
pub mod postgres;
pub mod process;
pub mod random;
pub mod remains;
pub mod run;
pub mod wire;
pub mod world;

use std::time::{Duration, Instant};

pub use pack::{AgentFile, Playbook, Skill};
pub use run::{Call, Ended, Live, Refused, RunSeen, call};
pub use world::World;

/// Longer than anything in a test takes that is not stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the long repetitions are wanted too: `SKILLYARD_TEST_LONG=1`.
#[must_use]
pub fn long() -> bool {
    std::env::var_os("SKILLYARD_TEST_LONG").is_some_and(|v| v != "0")
}

/// Waits until the condition gives a value, and says how long that took.
///
/// # Panics
/// When it gives none in `within`; `what` says what was waited for.
pub async fn within<T>(within: Duration, what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> (T, Duration) {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return (value, began.elapsed());
        }
        assert!(began.elapsed() < within, "after {within:?} still not: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the condition holds.
///
/// # Panics
/// When it does not in [`PATIENCE`]; `what` says what was waited for.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    within(PATIENCE, what, async || condition().await.then_some(())).await;
}
