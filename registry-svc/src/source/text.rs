//! A manifest's text: read once and bounded, UTF-8, without its byte order mark, with positions for people.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

use super::beneath::{Beneath, fill};
use super::findings::Fault;
use super::{Stage, codes};

/// Most bytes of an agent's file, or the list of a mirror.
pub(crate) const MAX_TEXT_BYTES: u64 = 4 << 20;
/// Most bytes of a `SKILL.md`. A model loads all of it, and its text comes twice in one message.
pub(crate) const MAX_PLAYBOOK_BYTES: u64 = 1 << 20;
/// Most bytes of a `skill.json`. All of it goes into one message, where numbers take six times the room, and peers accept
/// messages of 4 MiB.
pub(crate) const MAX_SKILL_JSON_BYTES: u64 = 512 << 10;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// A text and the line it begins at in its file.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    content: String,
    first_line: u32,
}

impl Text {
    /// A file's text. One byte order mark at the start is dropped.
    pub(crate) fn of_file(bytes: &[u8]) -> Result<Self, Fault> {
        Self::of_bytes(bytes.to_vec())
    }

    /// The same of bytes that nobody else needs.
    pub(crate) fn of_bytes(mut bytes: Vec<u8>) -> Result<Self, Fault> {
        if bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        String::from_utf8(bytes).map(|content| Self::part(content, 1)).map_err(|error| {
            let (valid, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
            let read = String::from_utf8_lossy(&bytes[..valid]).into_owned();
            let (line, column) = Self::part(read, 1).position(valid);
            let hint = match bytes {
                [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => "it looks like UTF-16: ",
                _ => "",
            };
            let byte = bytes[valid];
            let message = format!("the byte 0x{byte:02X} is not UTF-8; {hint}save the file as UTF-8");
            Fault { code: codes::E_NOT_UTF8, stage: Stage::Parse, message, line, column }
        })
    }

    /// A part of a file that begins at a line.
    pub(crate) fn part(content: String, first_line: u32) -> Self {
        Self { content, first_line }
    }

    /// All of it.
    pub(crate) fn as_str(&self) -> &str {
        &self.content
    }

    /// Line and column, in characters, both from 1, of a byte. Any offset has one.
    pub(crate) fn position(&self, offset: usize) -> (u32, u32) {
        let before = &self.content.as_bytes()[..offset.min(self.content.len())];
        let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        let line = before.iter().filter(|b| **b == b'\n').count();
        (self.first_line.saturating_add(to_u32(line)), to_u32(characters(&before[line_start..]) + 1))
    }

    /// The column in characters of a column in bytes (both from 1) of a line of the file.
    pub(crate) fn column_of_bytes(&self, line: u32, bytes: usize) -> u32 {
        let text = self.line(line).as_bytes();
        to_u32(characters(&text[..bytes.saturating_sub(1).min(text.len())]) + 1)
    }

    /// A line of the file, without its end; empty where there is none.
    pub(crate) fn line(&self, line: u32) -> &str {
        let index = line.checked_sub(self.first_line).map_or(usize::MAX, |i| i as usize);
        self.content.lines().nth(index).unwrap_or_default()
    }
}

/// Characters of a piece of UTF-8 that may begin or end within one.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| **b & 0xC0 != 0x80).count()
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Opens a regular file for reading, and nothing else: a FIFO does not block, a device is not touched.
///
/// # Errors
/// Of the system; `InvalidInput` where it is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// A whole file of at most so many bytes.
pub(crate) fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>, Fault> {
    let opened = open_regular(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    whole(opened, path, most)
}

/// The same, of a canonical path below a root that is opened.
pub(crate) fn read_beneath(beneath: &Beneath, root: &Path, path: &Path, most: u64) -> Result<Vec<u8>, Fault> {
    let opened = beneath.file(path.strip_prefix(root).unwrap_or(path)).map(|(file, stamp)| (stamp.size, file));
    whole(opened, path, most)
}

fn whole(opened: io::Result<(u64, File)>, path: &Path, most: u64) -> Result<Vec<u8>, Fault> {
    let unreadable = |error: io::Error| {
        Fault::file(codes::E_UNREADABLE, Stage::Parse, format!("{} cannot be read: {error}", path.display()))
    };
    let (size, mut file) = opened.map_err(unreadable)?;
    // One more than there is: that the file ends is seen at once.
    let mut bytes = vec![0; usize::try_from(size.min(most)).unwrap_or_default() + 1];
    let mut filled = fill(&mut file, &mut bytes, size).map_err(unreadable)?;
    while filled == bytes.len() && filled as u64 <= most {
        // It has grown.
        bytes.resize((filled * 2).min(usize::try_from(most).unwrap_or(usize::MAX - 1) + 1), 0);
        filled += fill(&mut file, &mut bytes[filled..], 0).map_err(unreadable)?;
    }
    bytes.truncate(filled);
    if bytes.len() as u64 > most {
        let message = format!(
            "{} has more than {most} bytes: move what a model does not always need into files beside it",
            path.display()
        );
        return Err(Fault::file(codes::E_TOO_LARGE, Stage::Parse, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_and_positions() {
        let text = Text::of_file(b"\xEF\xBB\xBFa\n\xC3\xA9x\r\n").unwrap();
        assert_eq!(text.as_str(), "a\néx\r\n");
        assert_eq!(text.position(0), (1, 1));
        assert_eq!(text.position(4), (2, 2));
        assert_eq!(text.position(999), (3, 1));
        assert_eq!(text.line(2), "éx");
        assert_eq!(text.column_of_bytes(2, 3), 2);
    }

    #[test]
    fn what_is_not_utf8_is_placed() {
        let fault = Text::of_file(b"---\nname: x\ndescription: a\xFF\xFE\n").unwrap_err();
        assert_eq!((fault.code, fault.line, fault.column), (codes::E_NOT_UTF8, 3, 15));
        assert!(Text::of_file(b"\xFF\xFE-\0").unwrap_err().message.contains("UTF-16"));
    }

    #[test]
    fn a_fifo_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
        assert_eq!(open_regular(&fifo).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(read_bounded(dir.path(), 1).unwrap_err().code, codes::E_UNREADABLE);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_offset_has_a_position(bytes in proptest::collection::vec(any::<u8>(), 0..64), offset in 0usize..80) {
            if let Ok(text) = Text::of_file(&bytes) {
                let (line, column) = text.position(offset);
                prop_assert!(line >= 1 && column >= 1);
                prop_assert!(text.column_of_bytes(line, offset) >= 1);
            }
        }
    }
}
