//! The memory that the arguments and outputs of all runs may take together. Each run has a share that grows with what it
//! holds, and is given back with the run; its first part is a run's own, so that small ones go on whatever large ones take.
//! Nobody is waited for here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What each run has besides: enough for most arguments and results.
pub const OWN_BYTES: usize = 128 << 10;

/// So many bytes, for all runs. Clones are the same.
#[derive(Clone, Debug)]
pub struct Budget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit: usize,
    taken: AtomicUsize,
}

/// What one run has of a budget.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    held: usize,
    /// Of these, what was taken from all.
    taken: usize,
}

impl Budget {
    /// Of so many bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { inner: Arc::new(Inner { limit, taken: AtomicUsize::new(0) }) }
    }

    /// Of this many bytes there are none left for anybody.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.inner.limit
    }

    /// An empty share.
    #[must_use]
    pub fn share(&self) -> Share {
        Share { budget: self.clone(), held: 0, taken: 0 }
    }
}

impl Share {
    /// Takes more, if there is as much, and returns whether there was.
    pub fn take(&mut self, bytes: usize) -> bool {
        let Inner { limit, taken } = &*self.budget.inner;
        let held = self.held.saturating_add(bytes);
        let wanted = held.saturating_sub(OWN_BYTES) - self.taken;
        let more = |taken: usize| taken.checked_add(wanted).filter(|taken| taken <= limit);
        let had = wanted == 0 || taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if had {
            self.held = held;
            self.taken += wanted;
        }
        had
    }

    /// The whole budget's size.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.budget.limit()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.inner.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let budget = Budget::new(100);
        let (mut one, mut other) = (budget.share(), budget.share());
        assert!(one.take(OWN_BYTES) && other.take(OWN_BYTES), "these are their own");
        assert!(one.take(60) && !other.take(41) && other.take(40) && !one.take(1));
        assert!(!one.take(usize::MAX));
        drop(other);
        assert!(one.take(40));
        assert!(budget.share().take(OWN_BYTES) && !budget.share().take(OWN_BYTES + 1), "the small go on");
        drop(one);
        assert!(budget.share().take(OWN_BYTES + 100));
    }
}
