//! The files of a package, as both sides name them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::digest::Digest;

/// Most files of a package.
pub const MAX_FILES: usize = 4096;
/// Most bytes of a package, all files together.
pub const MAX_BYTES: u64 = 64 << 20;
/// Most bytes of a path within a package.
pub const MAX_PATH_BYTES: usize = 1024;
/// Where the entry of a subprocess package is kept when it lies outside the skill's directory.
pub const OUTSIDE_ENTRY_DIR: &str = ".entry";

/// One file of a package, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageFile {
    /// Where it is in the package.
    pub path: PackagePath,
    /// In bytes.
    pub size: u64,
    /// Whether it may be executed.
    pub executable: bool,
    /// Of the content.
    pub sha256: Digest,
}

/// A path within a package: relative, `/` between its parts, no part empty, `.` or `..`, no NUL.
///
/// Joined to a directory it stays below it, as long as no link on the way leads out. A copy shares the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackagePath(Arc<str>);

/// Why a text is no path within a package.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It is empty.
    #[error("the path is empty")]
    Empty,
    /// It is too long.
    #[error("the path has {0} bytes, at most {MAX_PATH_BYTES} are allowed")]
    TooLong(usize),
    /// It begins with a slash.
    #[error("the path {0:?} is absolute: write it relative to the package")]
    Absolute(String),
    /// It has an empty part, `.` or `..`.
    #[error("the path {0:?} has an empty part, `.` or `..`: write it without")]
    Part(String),
    /// It has a NUL.
    #[error("the path has a NUL")]
    Nul,
}

impl PackagePath {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its parts, at least one.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }
}

impl FromStr for PackagePath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if text.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong(text.len()));
        }
        if text.contains('\0') {
            return Err(PathError::Nul);
        }
        if text.starts_with('/') {
            return Err(PathError::Absolute(text.to_owned()));
        }
        if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(PathError::Part(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for PackagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn what_is_no_path() {
        for bad in ["", "/etc/passwd", "../x", "a/../b", "a/./b", "a//b", "a/", ".", "..", "a\0b"] {
            assert!(bad.parse::<PackagePath>().is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "...", ".hidden", "a b/ü", "a\\b"] {
            assert_eq!(good.parse::<PackagePath>().unwrap().as_str(), good);
        }
    }

    proptest! {
        #[test]
        fn joined_it_stays_below(text in "[a./\\\\\0é ]{0,12}") {
            if let Ok(path) = text.parse::<PackagePath>() {
                prop_assert!(Path::new(path.as_str()).components().all(|c| matches!(c, Component::Normal(_))));
                prop_assert_eq!(Path::new(path.as_str()).components().count(), path.parts().count());
            }
        }
    }
}
