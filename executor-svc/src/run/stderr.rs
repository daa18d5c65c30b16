//! What a run leaves of its stderr for the record: the first part and the last. Knows no lines.

use std::collections::VecDeque;

/// How much of stderr a run that did not succeed shows.
const EXCERPT_BYTES: usize = super::outcome::EXCERPT_BYTES;
/// Most bytes of stderr in a record, what stands for the left out part included.
pub const MAX_BYTES: usize = 64 << 10;
/// Room for what stands for the left out part.
const MARK_BYTES: usize = 64;
/// Most bytes of each part.
const PART_BYTES: usize = (MAX_BYTES - MARK_BYTES) / 2;

/// The first and last bytes of what was written.
#[derive(Clone, Debug, Default)]
pub struct Stderr {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    written: u64,
}

impl Stderr {
    /// Takes what was written.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.written += bytes.len() as u64;
        let room = PART_BYTES - self.head.len();
        if room > 0 {
            let (first, rest) = bytes.split_at(bytes.len().min(room));
            self.head.extend_from_slice(first);
            bytes = rest;
        }
        let bytes = &bytes[bytes.len().saturating_sub(PART_BYTES)..];
        let over = (self.tail.len() + bytes.len()).saturating_sub(PART_BYTES);
        self.tail.drain(..over);
        self.tail.extend(bytes);
    }

    /// The last bytes that a [`super::outcome::Finished`] shows.
    #[must_use]
    pub fn last(&self) -> Vec<u8> {
        let from_tail = self.tail.len().min(EXCERPT_BYTES);
        // The head ends where the tail begins while nothing was left out between them.
        let from_head = if self.left_out() == 0 { self.head.len().min(EXCERPT_BYTES - from_tail) } else { 0 };
        let mut last = self.head[self.head.len() - from_head..].to_vec();
        last.extend(self.tail.range(self.tail.len() - from_tail..));
        last
    }

    /// The text for the record: at most [`MAX_BYTES`], with a mark where something was left out.
    #[must_use]
    pub fn into_text(mut self) -> String {
        let mut left_out = self.left_out();
        if left_out == 0 {
            self.head.extend(self.tail.drain(..));
            let text = text(&self.head);
            if text.len() <= MAX_BYTES {
                return text;
            }
            // What is no UTF-8 grows when it is shown.
            self.tail = self.head.split_off(self.head.len() / 2).into();
        }
        let (mut head, mut tail) = (text(&self.head), text(self.tail.make_contiguous()));
        let end = floor(&head, PART_BYTES);
        left_out += (head.len() - end) as u64;
        head.truncate(end);
        let start = ceil(&tail, tail.len().saturating_sub(PART_BYTES));
        left_out += start as u64;
        tail.drain(..start);
        format!("{head}\n[… {left_out} bytes left out …]\n{tail}")
    }

    fn left_out(&self) -> u64 {
        self.written - (self.head.len() + self.tail.len()) as u64
    }
}

/// Text of bytes whose ends may have been cut within a character.
fn text(bytes: &[u8]) -> String {
    super::outcome::excerpt(bytes)
}

/// The last boundary of a character at or before an index.
fn floor(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn ceil(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&[u8]]) -> Stderr {
        let mut stderr = Stderr::default();
        pieces.iter().for_each(|piece| stderr.push(piece));
        stderr
    }

    #[test]
    fn what_fits_is_kept_whole() {
        assert_eq!(of(&[]).into_text(), "");
        assert_eq!(of(&[b"a\n", "é".as_bytes()]).into_text(), "a\né");
        let whole = "é".repeat(PART_BYTES);
        let stderr = of(&whole.as_bytes().chunks(7).collect::<Vec<_>>());
        assert_eq!(stderr.last().len(), EXCERPT_BYTES);
        assert_eq!(stderr.into_text(), whole);
    }

    #[test]
    fn of_more_the_first_and_the_last() {
        let text: String = (0..100_000).map(|i| format!("line {i}\n")).collect();
        for size in [1, 100, 70_000, text.len()] {
            let stderr = of(&text.as_bytes().chunks(size).collect::<Vec<_>>());
            assert!(text.as_bytes().ends_with(&stderr.last()) && stderr.last().len() == EXCERPT_BYTES);
            let kept = stderr.into_text();
            assert!(kept.len() <= MAX_BYTES, "{}", kept.len());
            let (head, rest) = kept.split_once("\n[… ").unwrap();
            let (left_out, tail) = rest.split_once(" bytes left out …]\n").unwrap();
            assert!(text.starts_with(head) && text.ends_with(tail));
            assert_eq!(head.len() + tail.len() + left_out.parse::<usize>().unwrap(), text.len());
        }
    }

    #[test]
    fn what_grows_when_it_is_shown_is_bounded_too() {
        for size in [30_000, 64 << 10, 1 << 20] {
            let kept = of(&[&vec![0xFF; size]]).into_text();
            assert!(kept.len() <= MAX_BYTES, "{size}: {}", kept.len());
            assert!(kept.contains("left out"));
        }
    }
}
