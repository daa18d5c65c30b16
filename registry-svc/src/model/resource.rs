//! The files of a playbook: its body, and those beside it, which a model reads one by one. What is listed is exactly what
//! can be read. Reading blocks.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use skillyard::package::PathError;
use skillyard::{PackageFile, PackagePath};

use super::verified::{self, Head, ReadError};
use crate::source::{self, FoundSkill};

/// Most bytes of a file that are read to a model.
pub const MAX_BYTES: usize = 1 << 20;
/// Where the body is.
const MANIFEST: &str = "SKILL.md";

/// The path of a file beside a `SKILL.md`: a path within a package, no part of it hidden, and no backslash in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relpath(PackagePath);

/// Why a text is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelpathError {
    /// It is no path within a package.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A part begins with a dot.
    #[error("the path {0:?} has a hidden part, which no playbook has: pass on a relpath that LoadSkill lists")]
    Hidden(String),
    /// It has a backslash.
    #[error("the path {0:?} has a backslash: write `/` between its parts")]
    Backslash(String),
    /// A link on it leads out of the package.
    #[error("the path {0:?} leads out of the skill by a link: pass on a relpath that LoadSkill lists")]
    LeadsOut(String),
}

impl FromStr for Relpath {
    type Err = RelpathError;

    fn from_str(text: &str) -> Result<Self, RelpathError> {
        let path: PackagePath = text.parse()?;
        if text.contains('\\') {
            return Err(RelpathError::Backslash(text.to_owned()));
        }
        if path.parts().any(|part| part.starts_with('.')) {
            return Err(RelpathError::Hidden(text.to_owned()));
        }
        Ok(Self(path))
    }
}

impl fmt::Display for Relpath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why there is nothing to read at a path.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// The path is none for a resource.
    #[error(transparent)]
    Relpath(#[from] RelpathError),
    /// It would be one, and the package has none there.
    #[error("unknown resource {0:?}")]
    Unknown(String),
    /// The files have changed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A file as a model gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// What there is of it.
    pub data: Data,
    /// Whether that is its first part.
    pub truncated: bool,
    /// The whole file.
    pub file: PackageFile,
}

/// The bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// The file is UTF-8.
    Text(String),
    /// It is not.
    Base64(String),
}

/// The files that a model can read, in byte order of their paths.
pub fn resources(found: &FoundSkill) -> impl Iterator<Item = &PackageFile> {
    let files = found.package.files.iter().map(|file| &file.file);
    files.filter(|file| file.path.as_str() != MANIFEST && file.path.as_str().parse::<Relpath>().is_ok())
}

/// Reads one of [`resources`].
///
/// # Errors
/// See [`ResourceError`].
pub fn resource(found: &FoundSkill, relpath: &Relpath) -> Result<Resource, ResourceError> {
    let Some(file) = resources(found).find(|file| file.path == relpath.0) else {
        if verified::leads_out(found, relpath.0.as_str()) {
            return Err(RelpathError::LeadsOut(relpath.to_string()).into());
        }
        return Err(ResourceError::Unknown(relpath.to_string()));
    };
    let Head { bytes, is_utf8 } = verified::read(found, file, MAX_BYTES)?;
    let data = if is_utf8 { Data::Text(at_a_character(bytes)) } else { Data::Base64(STANDARD.encode(bytes)) };
    Ok(Resource { data, truncated: file.size > MAX_BYTES as u64, file: file.clone() })
}

/// Reads a playbook's text, without its frontmatter.
///
/// # Errors
/// The file has changed.
pub fn body(found: &FoundSkill) -> Result<String, ReadError> {
    let mut files = found.package.files.iter().map(|file| &file.file);
    let file = files.find(|file| file.path.as_str() == MANIFEST).ok_or(ReadError::NoManifest)?;
    let head = verified::read(found, file, usize::MAX)?;
    // What has the digest was a playbook when it was made.
    source::body(&head.bytes).ok_or_else(|| ReadError::Content(file.path.clone()))
}

/// The text that the beginning of one is, without a part of a character at its end.
fn at_a_character(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let whole = error.utf8_error().valid_up_to();
        let mut bytes = error.into_bytes();
        bytes.truncate(whole);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests;
