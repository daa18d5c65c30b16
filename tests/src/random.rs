//! Numbers that look random and that a seed decides, for tests that try many things in many orders. The seed is the
//! clock's, or `SKILLYARD_TEST_SEED`; it is printed, so that a test that fails says it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64, by Sebastiano Vigna: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// A seed for this test, which it prints.
///
/// # Panics
/// When `SKILLYARD_TEST_SEED` is not a number.
#[must_use]
pub fn seed() -> u64 {
    let seed = match std::env::var("SKILLYARD_TEST_SEED") {
        Ok(text) => text.parse().expect("SKILLYARD_TEST_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64),
    };
    eprintln!("again with SKILLYARD_TEST_SEED={seed}");
    seed
}

impl Random {
    /// The numbers of one part of a test: those of another part are others, whatever each takes.
    #[must_use]
    pub fn of(seed: u64, part: u64) -> Self {
        let mut mixed = Self(seed);
        Self(mixed.next() ^ part.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of 0 to `bound` - 1.
    ///
    /// # Panics
    /// When there is none.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A time of less than this, in whole milliseconds.
    ///
    /// # Panics
    /// When it is less than a millisecond.
    pub fn time_below(&mut self, bound: Duration) -> Duration {
        Duration::from_millis(self.below(bound.as_millis() as u64))
    }

    /// One of these, each as often as its weight says.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T], weight: impl Fn(&T) -> u64) -> &'a T {
        let mut left = self.below(from.iter().map(&weight).sum());
        let chosen = from.iter().find(|one| match left.checked_sub(weight(one)) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        chosen.expect("the number is below the sum")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_each_its_share() {
        let numbers = |seed, part| {
            let mut random = Random::of(seed, part);
            [random.below(1000), random.below(1000), random.below(1000)]
        };
        assert_eq!(numbers(1, 2), numbers(1, 2));
        assert!(numbers(1, 2) != numbers(2, 1) && numbers(1, 2) != numbers(1, 3));
        let mut random = Random::of(1, 1);
        let rare = (0..1000).filter(|_| *random.pick(&[(false, 9), (true, 1)], |one| one.1) == (true, 1)).count();
        assert!((50..200).contains(&rare), "{rare} of 1000");
    }
}
