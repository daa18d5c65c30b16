//! One file of a package, read once more for a model: as it was when its digest was made, or not at all. Whatever links
//! are swapped meanwhile, nothing outside of the package's directory is opened. It blocks.

use std::fs::File;
use std::io::{self, Read as _};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::OFlags;
use skillyard::digest::Hasher;
use skillyard::{PackageFile, PackagePath};

use crate::source::FoundSkill;

const READ_AT_ONCE: usize = 64 << 10;

/// The file is no longer that of the digest.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read, or a link on the way leads out of the package.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// Which.
        path: PackagePath,
        /// Why.
        source: io::Error,
    },
    /// It has other bytes.
    #[error("{0} has changed")]
    Content(PackagePath),
    /// The package has no text.
    #[error("the package has no SKILL.md")]
    NoManifest,
}

/// The first part of a file of which every byte was read and verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) bytes: Vec<u8>,
    /// Whether the whole file is UTF-8.
    pub(crate) is_utf8: bool,
}

/// Reads a file of a package, and keeps so many bytes of it.
pub(crate) fn read(found: &FoundSkill, file: &PackageFile, most: usize) -> Result<Head, ReadError> {
    let unreadable = |source| ReadError::Unreadable { path: file.path.clone(), source };
    let mut content = open(found, file.path.as_str()).map_err(unreadable)?;
    let (mut bytes, mut hasher, mut text, mut size) = (Vec::new(), Hasher::default(), Utf8::default(), 0);
    let mut buffer = vec![0; READ_AT_ONCE];
    loop {
        let piece = match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(error)),
        };
        size += piece.len() as u64;
        // It may grow for ever.
        if size > file.size {
            return Err(ReadError::Content(file.path.clone()));
        }
        hasher.update(piece);
        text.add(piece);
        bytes.extend_from_slice(&piece[..piece.len().min(most - bytes.len())]);
    }
    if size != file.size || hasher.finish() != file.sha256 {
        return Err(ReadError::Content(file.path.clone()));
    }
    Ok(Head { bytes, is_utf8: text.is_whole() })
}

/// Whether a path leads out of the package's directory by a link.
pub(crate) fn leads_out(found: &FoundSkill, path: &str) -> bool {
    let looked = directory(found).and_then(|directory| directory.metadata(path));
    // Of our own, not of the system: a refusal of the kernel has a number.
    looked.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none())
}

fn directory(found: &FoundSkill) -> io::Result<Dir> {
    Dir::open_ambient_dir(&found.package.directory, ambient_authority())
}

/// A regular file, and nothing else: a FIFO does not block, a device is not touched.
fn open(found: &FoundSkill, path: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    options.read(true).custom_flags(flags.cast_signed());
    let file = directory(found)?.open_with(path, &options)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file.into_std())
}

/// Whether bytes that come in pieces are UTF-8.
#[derive(Debug, Default)]
struct Utf8 {
    /// The beginning of a character that the last piece ended within.
    begun: Vec<u8>,
    broken: bool,
}

impl Utf8 {
    fn add(&mut self, piece: &[u8]) {
        let mut rest = piece;
        // A begun character needs three more bytes at most.
        while !self.begun.is_empty() && !self.broken {
            let Some((next, after)) = rest.split_first() else { return };
            self.begun.push(*next);
            rest = after;
            match std::str::from_utf8(&self.begun) {
                Ok(_) => self.begun.clear(),
                Err(error) => self.broken = error.error_len().is_some(),
            }
        }
        match std::str::from_utf8(rest) {
            Err(error) if error.error_len().is_some() => self.broken = true,
            Err(error) => self.begun.extend_from_slice(&rest[error.valid_up_to()..]),
            Ok(_) => {}
        }
    }

    fn is_whole(&self) -> bool {
        !self.broken && self.begun.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_utf8_as_the_whole_is(
            bytes in prop_oneof![
                "(?s).{0,12}".prop_map(String::into_bytes),
                proptest::collection::vec(prop_oneof![Just(b'a'), 0x80..=0xff_u8], 0..12),
            ],
            sizes in proptest::collection::vec(0..4_usize, 24),
        ) {
            let (mut text, mut rest) = (Utf8::default(), &bytes[..]);
            for size in sizes {
                let (piece, after) = rest.split_at(size.min(rest.len()));
                text.add(piece);
                rest = after;
            }
            text.add(rest);
            prop_assert_eq!(text.is_whole(), std::str::from_utf8(&bytes).is_ok());
        }
    }
}
