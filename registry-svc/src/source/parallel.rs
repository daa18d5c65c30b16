//! The same work on many things, on all processors. What is looked at is a disk of files, most of them in the system's
//! memory: it is the processors that are short.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a thread takes at a time: enough to be worth the taking, little enough that all end together.
const BLOCK: usize = 32;

/// The result for each item, in order. A panic in one of them is a panic here.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(items.len().div_ceil(BLOCK));
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            let Some(items) = items.chunks(BLOCK).nth(block) else { return done };
            done.push((block, items.iter().map(&work).collect::<Vec<R>>()));
        }
    };
    let mut done = Vec::with_capacity(items.len().div_ceil(BLOCK));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(take)).collect();
        done.extend(take());
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    done.sort_unstable_by_key(|(block, _)| *block);
    done.into_iter().flat_map(|(_, results)| results).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_however_many_there_are() {
        for count in [0, 1, BLOCK, BLOCK + 1, 10 * BLOCK, 1000] {
            let items: Vec<_> = (0..count).collect();
            let expected: Vec<_> = items.iter().map(|item| item * 2).collect();
            assert_eq!(map(&items, |item| item * 2), expected, "{count}");
        }
    }

    #[test]
    #[should_panic(expected = "the 777th")]
    fn a_panic_is_not_lost() {
        map(&(0..1000).collect::<Vec<_>>(), |item| assert!(*item != 777, "the 777th"));
    }
}
