//! The line cutter: stderr as it was read, in pieces of whole lines.

use std::time::{Duration, Instant};

/// A line without an end is sent after this time.
pub const FLUSH_AFTER: Duration = Duration::from_millis(200);
/// A line longer than this is sent in pieces.
pub const MAX_LINE: usize = 16 << 10;

/// A piece of stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whole lines, line ends kept, unless `partial`.
    pub text: String,
    /// Some bytes were not UTF-8 and are shown as U+FFFD.
    pub lossy: bool,
    /// It stops within a line, which goes on in the next piece.
    pub partial: bool,
    /// Line ends in it, and one more for a last line that never ended.
    pub lines: u64,
}

/// Cuts a stream of bytes at line ends. What came in is held back only until its line ends, for at most
/// [`FLUSH_AFTER`] and [`MAX_LINE`] bytes.
#[derive(Debug, Default)]
pub struct LineCutter {
    unfinished: Vec<u8>,
    since: Option<Instant>,
}

impl LineCutter {
    /// Takes what one read gave (the fewer reads, the fewer pieces), and gives what can be sent now.
    pub fn push(&mut self, bytes: &[u8], now: Instant) -> Option<Piece> {
        let Some(end) = bytes.iter().rposition(|b| *b == b'\n').map(|i| i + 1) else {
            self.unfinished.extend_from_slice(bytes);
            if self.unfinished.len() > MAX_LINE {
                return self.cut();
            }
            self.since.get_or_insert(now);
            return None;
        };
        let (lines, rest) = bytes.split_at(end);
        let piece = if self.unfinished.is_empty() {
            piece(lines, false)
        } else {
            self.unfinished.extend_from_slice(lines);
            let piece = piece(&self.unfinished, false);
            self.unfinished.clear();
            piece
        };
        self.unfinished.extend_from_slice(rest);
        self.since = (!rest.is_empty()).then_some(now);
        Some(piece)
    }

    /// When [`Self::flush`] is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + FLUSH_AFTER)
    }

    /// The unfinished line that has waited long enough.
    pub fn flush(&mut self) -> Option<Piece> {
        if self.unfinished.is_empty() {
            self.since = None;
            return None;
        }
        self.cut()
    }

    /// The last line, which has no end.
    pub fn finish(&mut self) -> Option<Piece> {
        self.since = None;
        let rest = std::mem::take(&mut self.unfinished);
        (!rest.is_empty()).then(|| {
            let mut piece = piece(&rest, false);
            piece.lines += 1;
            piece
        })
    }

    /// What is there of a line, but for a character that has not come whole.
    fn cut(&mut self) -> Option<Piece> {
        let end = self.unfinished.len() - incomplete_character(&self.unfinished);
        if end == 0 {
            // Nothing but the beginning of a character: it waits once more.
            self.since = None;
            return None;
        }
        let piece = piece(&self.unfinished[..end], true);
        self.unfinished.drain(..end);
        self.since = None;
        Some(piece)
    }
}

fn piece(bytes: &[u8], partial: bool) -> Piece {
    let lines = bytes.iter().filter(|b| **b == b'\n').count() as u64;
    match std::str::from_utf8(bytes) {
        Ok(text) => Piece { text: text.to_owned(), lossy: false, partial, lines },
        Err(_) => Piece { text: String::from_utf8_lossy(bytes).into_owned(), lossy: true, partial, lines },
    }
}

/// How many bytes at the end begin a character that is not complete.
fn incomplete_character(bytes: &[u8]) -> usize {
    for back in 1..=3.min(bytes.len()) {
        let byte = bytes[bytes.len() - back];
        let width = match byte {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => 1,
        };
        return if width > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(text: &str, partial: bool, lines: u64) -> Option<Piece> {
        Some(Piece { text: text.into(), lossy: false, partial, lines })
    }

    #[test]
    fn whole_lines_go_at_once() {
        let now = Instant::now();
        let mut cutter = LineCutter::default();
        assert_eq!(cutter.push(b"a\nb\nc", now), line("a\nb\n", false, 2));
        assert_eq!(cutter.due(), Some(now + FLUSH_AFTER));
        assert_eq!(cutter.push(b"d\r\n", now), line("cd\r\n", false, 1));
        assert_eq!(cutter.due(), None);
        assert_eq!(cutter.push(b"end", now), None);
        assert_eq!(cutter.finish(), line("end", false, 1));
        assert_eq!(cutter.finish(), None);
    }

    #[test]
    fn a_line_that_does_not_end() {
        let now = Instant::now();
        let mut cutter = LineCutter::default();
        assert_eq!(cutter.push("50 % é".as_bytes(), now), None);
        assert_eq!(cutter.flush(), line("50 % é", true, 0));
        assert_eq!(cutter.push(b"\n", now), line("\n", false, 1));
        let long = vec![b'x'; MAX_LINE + 1];
        assert_eq!(cutter.push(&long, now).map(|p| (p.text.len(), p.partial)), Some((MAX_LINE + 1, true)));
        // A character in two halves stays whole.
        assert_eq!(cutter.push(&"é".as_bytes()[..1], now), None);
        assert_eq!(cutter.flush(), None);
        assert_eq!(cutter.push(&"é".as_bytes()[1..], now), None);
        assert_eq!(cutter.finish(), line("é", false, 1));
    }

    #[test]
    fn bytes_that_are_not_utf8() {
        let piece = LineCutter::default().push(b"a\xFFb\n", Instant::now()).unwrap();
        assert_eq!((piece.text.as_str(), piece.lossy), ("a\u{FFFD}b\n", true));
    }

    proptest! {
        // Each has tens of thousands of bytes.
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        #[test]
        fn bytes_that_are_no_text_keep_their_places(
            reads in proptest::collection::vec((proptest::collection::vec(prop_oneof![
                4 => Just(b'a'), 2 => Just(b'b'), 1 => Just(0xFF), 1 => Just(b'\n')], 1..3000), any::<bool>()), 0..40)
        ) {
            let now = Instant::now();
            let mut cutter = LineCutter::default();
            let (mut all, mut text) = (Vec::new(), String::new());
            for (bytes, flush) in &reads {
                all.extend_from_slice(bytes);
                let pieces = [cutter.push(bytes, now), if *flush { cutter.flush() } else { None }];
                for piece in pieces.into_iter().flatten() {
                    prop_assert_eq!(piece.lossy, piece.text.contains('\u{FFFD}'));
                    text.push_str(&piece.text);
                }
                prop_assert!(cutter.unfinished.len() <= MAX_LINE + 1);
            }
            text.extend(cutter.finish().map(|piece| piece.text));
            prop_assert_eq!(text, String::from_utf8_lossy(&all));
        }

    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_invented(
            reads in proptest::collection::vec((proptest::collection::vec(prop_oneof![
                Just(b'\n'), Just(b'a'), Just(0xC3), Just(0xA9), Just(0xFF), any::<u8>()], 1..40), any::<bool>()), 0..30)
        ) {
            let now = Instant::now();
            let mut cutter = LineCutter::default();
            let (mut all, mut pieces) = (Vec::new(), Vec::new());
            for (bytes, flush) in &reads {
                all.extend_from_slice(bytes);
                pieces.extend(cutter.push(bytes, now));
                if *flush {
                    pieces.extend(cutter.flush());
                }
            }
            pieces.extend(cutter.finish());
            let text: String = pieces.iter().map(|p| p.text.as_str()).collect();
            if std::str::from_utf8(&all).is_ok() {
                prop_assert_eq!(text.as_bytes(), &all[..]);
                prop_assert!(pieces.iter().all(|p| !p.lossy));
            }
            let ends = all.iter().filter(|b| **b == b'\n').count() as u64;
            let unended = u64::from(all.last().is_some_and(|b| *b != b'\n') && pieces.last().is_some_and(|p| !p.partial));
            prop_assert_eq!(pieces.iter().map(|p| p.lines).sum::<u64>(), ends + unended);
            for piece in &pieces {
                prop_assert!(piece.partial || piece.text.ends_with('\n') || std::ptr::eq(piece, pieces.last().unwrap()));
            }
        }
    }
}
