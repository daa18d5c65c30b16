//! Digests: a sha256 by which a package is named, fetched, verified and run.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::package::PackageFile;

/// A sha256, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a digest: write 64 lower-case hex digits")]
pub struct DigestError(String);

impl Digest {
    /// The digest of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of a package: sha256 over, for each file in byte order of its path, the path, 0x00, `x` or `-`
    /// (executable), 0x00, the 32 bytes of the content's sha256, 0x0A. The order of `files` does not matter.
    #[must_use]
    pub fn of_package<'a>(files: impl IntoIterator<Item = &'a PackageFile>) -> Self {
        let mut sorted: Vec<_> = files.into_iter().collect();
        sorted.sort_by(|a, b| a.path.as_str().as_bytes().cmp(b.path.as_str().as_bytes()));
        let mut hasher = Hasher::default();
        for file in sorted {
            hasher.update(file.path.as_str().as_bytes());
            hasher.update(if file.executable { b"\0x\0" } else { b"\0-\0" });
            hasher.update(&file.sha256.0);
            hasher.update(b"\n");
        }
        hasher.finish()
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Makes a digest of bytes that come in pieces.
#[derive(Clone, Debug, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all that was added.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let error = || DigestError(text.chars().take(80).collect());
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(error());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| error())?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 64];
        hex::encode_to_slice(self.0, &mut text).map_err(|_| fmt::Error)?;
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(path: &str, executable: bool, content: &str) -> PackageFile {
        PackageFile {
            path: path.parse().unwrap(),
            size: content.len() as u64,
            executable,
            sha256: Digest::of(content.as_bytes()),
        }
    }

    /// The same by hand: `printf 'SKILL.md\0-\0…\nrun.sh\0x\0…\n' | sha256sum`, with the contents' sha256 as bytes.
    #[test]
    fn the_formula() {
        let mut by_hand = Vec::new();
        by_hand.extend(b"SKILL.md\0-\0");
        by_hand.extend(hex::decode("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824").unwrap());
        by_hand.extend(b"\nrun.sh\0x\0");
        by_hand.extend(hex::decode("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855").unwrap());
        by_hand.extend(b"\n");
        let files = [file("run.sh", true, ""), file("SKILL.md", false, "hello")];
        assert_eq!(Digest::of_package(&files), Digest::of(&by_hand));
        assert_eq!(
            Digest::of_package(&[]).to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn texts_that_are_no_digest() {
        let text = Digest::of(b"a").to_string();
        assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        for bad in ["", "ab", &text.to_uppercase(), &text[1..], &format!("{text}0"), &text.replace('a', "g")] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_change_to_any_file_changes_it(
            contents in proptest::collection::btree_map("[a-z]{1,8}(/[a-z]{1,8}){0,2}", "[a-z]{0,6}", 1..6),
            pick in any::<proptest::sample::Index>(),
        ) {
            let files: Vec<_> = contents.iter().map(|(p, c)| file(p, false, c)).collect();
            let digest = Digest::of_package(&files);
            let mut reversed = files.clone();
            reversed.reverse();
            prop_assert_eq!(Digest::of_package(&reversed), digest);
            let i = pick.index(files.len());
            let mut changed = files.clone();
            changed[i].executable = true;
            prop_assert_ne!(Digest::of_package(&changed), digest);
            changed = files.clone();
            changed[i].sha256 = Digest::of(b"another content");
            prop_assert_ne!(Digest::of_package(&changed), digest);
            changed = files.clone();
            changed.remove(i);
            prop_assert_ne!(Digest::of_package(&changed), digest);
        }
    }
}
