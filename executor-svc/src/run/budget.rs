//! The memory that the arguments and outputs of all runs may take together. Each run has a share that grows with what it
//! holds, and is given back with the run. Nobody is waited for here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    bytes: usize,
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
        Share { budget: self.clone(), bytes: 0 }
    }
}

impl Share {
    /// Takes more, if there is as much, and returns whether there was.
    pub fn take(&mut self, bytes: usize) -> bool {
        let Inner { limit, taken } = &*self.budget.inner;
        let more = |taken: usize| taken.checked_add(bytes).filter(|taken| taken <= limit);
        let had = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if had {
            self.bytes += bytes;
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
        self.budget.inner.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let budget = Budget::new(100);
        let (mut one, mut other) = (budget.share(), budget.share());
        assert!(one.take(60) && !other.take(41) && other.take(40) && !one.take(1));
        assert!(!one.take(usize::MAX));
        drop(other);
        assert!(one.take(40));
        drop(one);
        assert!(budget.share().take(100));
    }
}
