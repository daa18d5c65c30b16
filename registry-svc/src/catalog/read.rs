//! Reads the files of a package once more, for whoever fetches it, and says when they are no longer those of its digest.
//! It blocks; it holds one file open and one piece in memory.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use skillyard::digest::Hasher;
use skillyard::{PackageFile, PackagePath};

use crate::source::{self, FoundSkill};

/// Most bytes of a piece.
pub const PIECE_BYTES: usize = 256 << 10;
/// Files that begin in one batch: small ones are read together.
const BATCH_FILES: usize = 64;

/// A part of a package: the beginning of a file, or some of its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// A file begins.
    File(PackageFile),
    /// Bytes of the file that began last.
    Data(Vec<u8>),
}

/// The files are no longer those of the digest.
#[derive(Debug, thiserror::Error)]
pub enum Changed {
    /// A file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// Which.
        path: PackagePath,
        /// Why.
        source: io::Error,
    },
    /// A file has other bytes, or another executable bit.
    #[error("{0} has changed")]
    Content(PackagePath),
}

/// Reads a package from its first file to its last.
#[derive(Debug)]
pub struct PackageReader {
    found: Arc<FoundSkill>,
    next: usize,
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    index: usize,
    file: File,
    left: u64,
    hasher: Hasher,
}

impl PackageReader {
    /// From the first file on.
    #[must_use]
    pub fn new(found: Arc<FoundSkill>) -> Self {
        Self { found, next: 0, open: None }
    }

    /// The next parts, of together at most [`PIECE_BYTES`] of data; none after the last.
    ///
    /// # Errors
    /// The files have changed; nothing more can be read.
    pub fn next_batch(&mut self) -> Result<Vec<Part>, Changed> {
        let (mut parts, mut room, mut files) = (Vec::new(), PIECE_BYTES, 0);
        while room > 0 && files < BATCH_FILES {
            let Some(open) = &mut self.open else {
                let Some(begun) = self.begin()? else { break };
                parts.push(Part::File(begun));
                files += 1;
                continue;
            };
            let path = || self.found.package.files[open.index].file.path.clone();
            let want = usize::try_from(open.left).unwrap_or(usize::MAX).min(room);
            let mut piece = vec![0; want];
            open.file.read_exact(&mut piece).map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof => Changed::Content(path()),
                _ => Changed::Unreadable { path: path(), source },
            })?;
            open.hasher.update(&piece);
            open.left -= want as u64;
            room -= want;
            if !piece.is_empty() {
                parts.push(Part::Data(piece));
            }
            if open.left == 0 {
                self.end()?;
            }
        }
        Ok(parts)
    }

    fn begin(&mut self) -> Result<Option<PackageFile>, Changed> {
        let Some(source_file) = self.found.package.files.get(self.next) else { return Ok(None) };
        let expected = &source_file.file;
        let unreadable = |source| Changed::Unreadable { path: expected.path.clone(), source };
        let file = source::open(source_file).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let executable = metadata.permissions().mode() & 0o111 != 0;
        if metadata.len() != expected.size || executable != expected.executable {
            return Err(Changed::Content(expected.path.clone()));
        }
        self.open = Some(OpenFile { index: self.next, file, left: expected.size, hasher: Hasher::default() });
        self.next += 1;
        Ok(Some(expected.clone()))
    }

    /// The file ends where it should, and its bytes are the expected ones.
    fn end(&mut self) -> Result<(), Changed> {
        let Some(OpenFile { index, mut file, hasher, .. }) = self.open.take() else { return Ok(()) };
        let expected = &self.found.package.files[index].file;
        let more = file.read(&mut [0]).map_err(|source| Changed::Unreadable { path: expected.path.clone(), source })?;
        if more > 0 || hasher.finish() != expected.sha256 {
            return Err(Changed::Content(expected.path.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Package, SourceFile};
    use proptest::prelude::*;
    use skillyard::skill::{Card, Kind};
    use skillyard::{Digest, Skill, Source};
    use std::fs;
    use std::path::Path;
    use std::time::SystemTime;

    fn package(directory: &Path, files: &[(&str, &[u8])]) -> Arc<FoundSkill> {
        let files: Vec<_> = files
            .iter()
            .map(|(name, content)| {
                fs::write(directory.join(name), content).unwrap();
                let (size, sha256) = (content.len() as u64, Digest::of(content));
                SourceFile {
                    file: PackageFile { path: name.parse().unwrap(), size, executable: false, sha256 },
                    directory: directory.into(),
                    elsewhere: None,
                }
            })
            .collect();
        let skill = Skill {
            name: "x".parse().unwrap(),
            description: "d".into(),
            source: Source::Override,
            digest: Digest::of_package(&files.iter().map(|f| f.file.clone()).collect::<Vec<_>>()),
            path: "x".into(),
            kind: Kind::Playbook(Box::default()),
            card: Card::default(),
            extra: serde_json::Map::new(),
            modified_at: SystemTime::UNIX_EPOCH,
        };
        Arc::new(FoundSkill { skill, package: Package { directory: directory.into(), files }, tier: None })
    }

    fn read(found: &Arc<FoundSkill>) -> Result<Vec<(String, Vec<u8>)>, Changed> {
        let mut reader = PackageReader::new(Arc::clone(found));
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        loop {
            let batch = reader.next_batch()?;
            let bytes: usize =
                batch.iter().map(|part| if let Part::Data(bytes) = part { bytes.len() } else { 0 }).sum();
            assert!(bytes <= PIECE_BYTES);
            if batch.is_empty() {
                return Ok(files);
            }
            for part in batch {
                match part {
                    Part::File(file) => files.push((file.path.to_string(), Vec::new())),
                    Part::Data(bytes) => files.last_mut().unwrap().1.extend(bytes),
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn every_file_and_every_byte(
            sizes in proptest::collection::vec(
                prop_oneof![Just(0), 1..2000_usize, Just(PIECE_BYTES), PIECE_BYTES - 2..PIECE_BYTES * 3], 0..80),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let files: Vec<_> = sizes.iter().enumerate().map(|(i, size)| {
                (format!("f{i:02}"), (0..*size).map(|at| (at % 251) as u8).collect::<Vec<_>>())
            }).collect();
            let written: Vec<_> = files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
            let found = package(directory.path(), &written);
            prop_assert!(read(&found).unwrap() == files);
        }
    }

    #[test]
    fn files_that_are_no_longer_those_of_the_digest() {
        let change = |change: fn(&Path)| {
            let directory = tempfile::tempdir().unwrap();
            let found = package(directory.path(), &[("a", b"one"), ("b", b"two")]);
            change(&directory.path().join("b"));
            read(&found).unwrap_err().to_string()
        };
        assert_eq!(change(|b| fs::write(b, "TWO").unwrap()), "b has changed");
        assert_eq!(change(|b| fs::write(b, "twoo").unwrap()), "b has changed");
        assert_eq!(change(|b| fs::write(b, "").unwrap()), "b has changed");
        assert_eq!(change(|b| fs::set_permissions(b, fs::Permissions::from_mode(0o755)).unwrap()), "b has changed");
        assert!(change(|b| fs::remove_file(b).unwrap()).starts_with("b cannot be read"));
    }
}
