//! How long to wait before the next attempt.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// Before the second attempt.
const FIRST: Duration = Duration::from_millis(100);

/// Doubles from 0.1 s up to a limit. Of each wait half is random, so that many executors do not come back at once.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    pub(crate) fn next(&mut self, limit: Duration) -> Duration {
        let full = FIRST.saturating_mul(1 << self.attempts.min(16)).min(limit);
        self.attempts = self.attempts.saturating_add(1);
        let random = RandomState::new().build_hasher().finish();
        let share = (random % 1001) as u32;
        full / 2 + full / 2 * share / 1000
    }

    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_the_limit() {
        let (mut backoff, limit) = (Backoff::default(), Duration::from_secs(5));
        for full in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.next(limit);
            assert!(
                wait >= Duration::from_millis(full / 2) && wait <= Duration::from_millis(full),
                "{wait:?} of {full}"
            );
        }
        (0..100).for_each(|_| assert!(backoff.next(limit) <= limit));
        backoff.reset();
        assert!(backoff.next(limit) <= FIRST);
    }
}
