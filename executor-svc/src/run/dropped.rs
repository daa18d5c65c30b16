//! Where dropped output was: how many lines a run had written up to each dropped event, so that who comes back after one
//! is told how many were lost since. Bounded: of very many, only every second, fourth, … is known.

/// Most places that are known.
const MAX_PLACES: usize = 8192;

/// The dropped output of one run.
#[derive(Debug)]
pub struct Dropped {
    /// Numbers of dropped events, with the lines up to each, it included.
    places: Vec<(u64, u64)>,
    last_seq: u64,
    count: u64,
    /// One of so many is kept.
    stride: u64,
}

impl Default for Dropped {
    fn default() -> Self {
        Self { places: Vec::new(), last_seq: 0, count: 0, stride: 1 }
    }
}

impl Dropped {
    /// The next event was dropped; up to it there were so many lines.
    pub fn push(&mut self, seq: u64, lines: u64) {
        self.last_seq = seq;
        self.count += 1;
        if !self.count.is_multiple_of(self.stride) {
            return;
        }
        self.places.push((seq, lines));
        if self.places.len() > MAX_PLACES {
            self.stride *= 2;
            let mut i = 0_usize;
            self.places.retain(|_| {
                i += 1;
                i.is_multiple_of(2)
            });
        }
    }

    /// Lines up to an event, where output after it was dropped: never more than there were, and fewer only where places are
    /// no longer known.
    #[must_use]
    pub fn lines_until(&self, seq: u64) -> Option<u64> {
        if seq >= self.last_seq {
            return None;
        }
        let after = self.places.partition_point(|(place, _)| *place <= seq);
        Some(after.checked_sub(1).map_or(0, |last| self.places[last].1))
    }

    /// What it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.places.len() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_few_all_is_known_and_of_many_nearly() {
        let mut dropped = Dropped::default();
        assert_eq!(dropped.lines_until(0), None);
        for seq in 1..=100_000 {
            dropped.push(seq, 2 * seq);
            if seq == 8000 {
                for at in 0..seq {
                    assert_eq!(dropped.lines_until(at), Some(2 * at));
                }
                assert_eq!(dropped.lines_until(seq), None);
            }
        }
        assert!(dropped.places.len() <= MAX_PLACES && dropped.stride == 16);
        for at in 0..100_000 {
            let known = dropped.lines_until(at).unwrap();
            assert!(known <= 2 * at && 2 * at - known < 2 * dropped.stride, "{at}: {known}");
        }
    }
}
