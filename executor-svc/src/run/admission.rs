//! Admission: at most so many runs at once, at most so many behind them, first come first served.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use skillyard::service::error::{Reason, Refusal};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// When a caller that was refused may try again.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The slots and the queue in front of them.
#[derive(Clone, Debug)]
pub struct Admission {
    permits: Arc<Semaphore>,
    slots: usize,
    queued: Arc<AtomicUsize>,
    queue_limit: usize,
}

/// A place: a slot, or one in the queue.
#[derive(Debug)]
pub struct Ticket {
    place: Place,
    position: u32,
}

#[derive(Debug)]
enum Place {
    Slot(OwnedSemaphorePermit),
    Queue(Queued, Arc<Semaphore>),
}

/// Holds a slot until it is dropped.
#[derive(Debug)]
pub struct Permit {
    permit: OwnedSemaphorePermit,
}

impl Permit {
    /// Whether the executor has closed since.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.permit.semaphore().is_closed()
    }
}

/// Counts one waiting run while it lives.
#[derive(Debug)]
struct Queued(Arc<AtomicUsize>);

impl Admission {
    /// So many at once, so many behind them.
    #[must_use]
    pub fn new(slots: usize, queue_limit: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(slots)), slots, queued: Arc::default(), queue_limit }
    }

    /// Takes a slot, or a place in the queue.
    ///
    /// # Errors
    /// EXECUTOR_FULL with RetryInfo.
    pub fn enter(&self) -> Result<Ticket, Refusal> {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => return Ok(Ticket { place: Place::Slot(permit), position: 0 }),
            Err(TryAcquireError::Closed) => return Err(draining()),
            Err(TryAcquireError::NoPermits) => {}
        }
        let ahead = self.queued.fetch_add(1, Ordering::Relaxed);
        let queued = Queued(Arc::clone(&self.queued));
        if ahead >= self.queue_limit {
            let message = format!(
                "all {} slots are taken and {} runs wait: try again in {RETRY_AFTER:?}, or on another executor",
                self.slots, self.queue_limit
            );
            return Err(Refusal::new(Reason::ExecutorFull, message).retry_after(RETRY_AFTER));
        }
        let position = u32::try_from(ahead + 1).unwrap_or(u32::MAX);
        Ok(Ticket { place: Place::Queue(queued, Arc::clone(&self.permits)), position })
    }

    /// Lets nobody in any more, and sends those away who wait.
    pub fn close(&self) {
        self.permits.close();
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.permits.is_closed()
    }

    /// Runs at once.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Runs that hold a slot.
    #[must_use]
    pub fn running(&self) -> usize {
        self.slots - self.permits.available_permits()
    }

    /// Runs that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Runs that may wait.
    #[must_use]
    pub fn queue_limit(&self) -> usize {
        self.queue_limit
    }
}

impl Ticket {
    /// Runs ahead of it; 0 when it starts at once.
    #[must_use]
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Waits for the slot. Dropped before, the place in the queue is free again.
    ///
    /// # Errors
    /// DRAINING when the executor closed meanwhile.
    pub async fn slot(self) -> Result<Permit, Refusal> {
        match self.place {
            Place::Slot(permit) => Ok(Permit { permit }),
            Place::Queue(_queued, permits) => match permits.acquire_owned().await {
                Ok(permit) => Ok(Permit { permit }),
                Err(AcquireError { .. }) => Err(draining()),
            },
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a draining executor answers.
#[must_use]
pub fn draining() -> Refusal {
    Refusal::new(Reason::Draining, "the executor is shutting down and started nothing: run it on another")
        .retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_come_first_served() {
        let admission = Admission::new(1, 2);
        let running = admission.enter().unwrap();
        let (second, third) = (admission.enter().unwrap(), admission.enter().unwrap());
        assert_eq!((running.position(), second.position(), third.position()), (0, 1, 2));
        assert_eq!((admission.running(), admission.queued()), (1, 2));
        assert_eq!(admission.enter().unwrap_err().reason(), Reason::ExecutorFull);
        let running = running.slot().await.unwrap();
        let (second, third) = (tokio::spawn(second.slot()), tokio::spawn(third.slot()));
        tokio::task::yield_now().await;
        drop(running);
        let second = second.await.unwrap().unwrap();
        assert!(!third.is_finished());
        assert_eq!((admission.running(), admission.queued()), (1, 1));
        admission.close();
        assert_eq!(third.await.unwrap().unwrap_err().reason(), Reason::Draining);
        assert_eq!(admission.enter().unwrap_err().reason(), Reason::Draining);
        drop(second);
        assert_eq!((admission.running(), admission.queued()), (0, 0));
    }
}
