//! One skill, from a server's answer to a directory of its own beside the mirror. What is wrong with any file refuses all
//! of them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use skillyard::package::{MAX_BYTES, MAX_FILES};
use skillyard::{Digest, PackageFile, PackagePath};

use super::place::{self, Misplaced};
use super::protocol::{Body, File};
use super::tree::{self, Print};

const SKILL_MD: &str = "SKILL.md";

/// A skill that lies ready.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) print: Print,
    /// Files whose content the server does not give.
    pub(super) missing: Vec<String>,
}

/// Why a skill is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum StageError {
    #[error("the answer is not the JSON of the protocol ({0})")]
    Json(#[from] serde_json::Error),
    #[error("the answer is for the id {0:?}")]
    OtherId(String),
    #[error("the answer is of another version than the manifest: the server is changing it")]
    OtherVersion,
    #[error("its SKILL.md is empty")]
    Empty,
    #[error("{0}")]
    Misplaced(#[from] Misplaced),
    #[error("the file {0:?} is there twice, or is a directory elsewhere in the package")]
    Twice(String),
    #[error("the file {0:?} has neither a content nor a mark that it is truncated")]
    NoContent(String),
    #[error("the content of {0:?} is not base64")]
    Base64(String),
    #[error("the file {path:?} has {size} bytes by its size and {got} by its content: it was cut off")]
    Cut { path: String, size: u64, got: u64 },
    #[error("it has more than {MAX_FILES} files or {MAX_BYTES} bytes, which is the most that a package has")]
    TooLarge,
    #[error("its files are not those of the digest that the server gives with them")]
    Digest,
    #[error("{0:?} cannot be written: {1}")]
    Write(String, io::Error),
}

impl StageError {
    /// Whether it is ours and hits every other skill too.
    pub(super) fn is_fatal(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        matches!(self, Self::Write(_, error)
            if matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem | PermissionDenied))
    }
}

/// Writes a skill of this hash into a directory that is not there yet.
///
/// A hash is opaque; but a registry says in its answer of what it is, and it is then that of the files.
pub(super) fn stage(id: &str, hash: &str, answer: &[u8], directory: &Path) -> Result<Staged, StageError> {
    let body: Body<'_> = serde_json::from_slice(answer)?;
    if body.id != id {
        return Err(StageError::OtherId(body.id));
    }
    if body.digest.as_ref().is_some_and(|digest| digest != hash) {
        return Err(StageError::OtherVersion);
    }
    if body.raw_md.is_empty() {
        return Err(StageError::Empty);
    }
    std::fs::create_dir(directory).map_err(|error| StageError::Write(String::new(), error))?;
    let mut writer = Writer { directory, files: Vec::new(), bytes: 0 };
    let skill_md = place::file(SKILL_MD)?;
    writer.write(skill_md, body.raw_md.as_bytes(), body.executable == Some(true))?;
    let (mut missing, mut seen) = (Vec::new(), BTreeSet::new());
    for file in body.files.iter().flat_map(|files| &files.0) {
        let path = place::file(&file.path)?;
        if !seen.insert(path.clone()) {
            return Err(twice(&path));
        }
        let content = content(file)?;
        match content {
            None => missing.push(path.to_string()),
            // Some servers list it among the files too.
            Some(content) if path.as_str() == SKILL_MD && *content == *body.raw_md.as_bytes() => {}
            Some(content) => writer.write(path, &content, file.executable == Some(true))?,
        }
    }
    missing.retain(|path| path != SKILL_MD);
    let digest = Digest::of_package(&writer.files).to_string();
    if missing.is_empty() && body.digest.is_some_and(|given| given != digest) {
        return Err(StageError::Digest);
    }
    let gone = || StageError::Write(String::new(), io::ErrorKind::NotFound.into());
    Ok(Staged { print: tree::print(directory).ok_or_else(gone)?, missing })
}

/// A file's bytes; `None` where the server gives none.
fn content<'a>(file: &'a File<'_>) -> Result<Option<Cow<'a, [u8]>>, StageError> {
    let path = || file.path.to_string();
    if file.truncated == Some(true) {
        return Ok(None);
    }
    let cut = |got: usize| StageError::Cut { path: path(), size: file.size.unwrap_or_default(), got: got as u64 };
    match (&file.content_b64, &file.content) {
        (Some(coded), _) => {
            let bytes = STANDARD.decode(coded.0.as_bytes()).map_err(|_| StageError::Base64(path()))?;
            if file.size.is_some_and(|size| size != bytes.len() as u64) {
                Err(cut(bytes.len()))
            } else {
                Ok(Some(bytes.into()))
            }
        }
        // A size in characters is less than one in bytes.
        (None, Some(text)) if file.size.is_some_and(|size| size > text.0.len() as u64) => Err(cut(text.0.len())),
        (None, Some(text)) => Ok(Some(text.0.as_bytes().into())),
        (None, None) => Err(StageError::NoContent(path())),
    }
}

fn twice(path: &PackagePath) -> StageError {
    StageError::Twice(path.to_string())
}

struct Writer<'a> {
    directory: &'a Path,
    files: Vec<PackageFile>,
    bytes: u64,
}

impl Writer<'_> {
    fn write(&mut self, path: PackagePath, content: &[u8], executable: bool) -> Result<(), StageError> {
        let size = content.len() as u64;
        self.bytes += size;
        if self.bytes > MAX_BYTES || self.files.len() >= MAX_FILES {
            return Err(StageError::TooLarge);
        }
        let failed = |error: io::Error| match error.kind() {
            // On a file system that takes two names for one, too.
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => twice(&path),
            _ => StageError::Write(path.to_string(), error),
        };
        let target = self.directory.join(path.as_str());
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        tree::create(&target, content, executable).map_err(failed)?;
        self.files.push(PackageFile { path, size, executable, sha256: Digest::of(content) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn staged(files: Value, more: Value) -> Result<(tempfile::TempDir, Staged), StageError> {
        let mut answer = json!({"id": "a", "raw_md": "\u{feff}---\r\n", "files": files});
        answer.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        let dir = tempfile::tempdir().unwrap();
        let hash = answer["digest"].as_str().unwrap_or("opaque").to_owned();
        let staged = stage("a", &hash, &serde_json::to_vec(&answer).unwrap(), &dir.path().join("s"))?;
        Ok((dir, staged))
    }

    #[test]
    fn byte_for_byte() {
        let files = json!([
            {"path": "references/ü.md", "content": "a\u{0}b\r\n", "size": 5},
            {"path": "logo.png", "content_b64": "iVAA/w==", "size": 4},
            {"path": "run.sh", "content": "", "executable": true},
            {"path": "big.bin", "truncated": true, "size": 99, "content": "head"},
            {"path": "SKILL.md", "content": "\u{feff}---\r\n"},
        ]);
        let (dir, staged) = staged(files, json!({"unknown": [1]})).unwrap();
        let read = |path: &str| std::fs::read(dir.path().join("s").join(path)).unwrap();
        assert_eq!(read("SKILL.md"), b"\xEF\xBB\xBF---\r\n");
        assert_eq!((read("references/ü.md"), read("logo.png")), (b"a\0b\r\n".to_vec(), b"\x89P\0\xff".to_vec()));
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &str| std::fs::metadata(dir.path().join("s").join(path)).unwrap().permissions().mode();
        assert_eq!((mode("run.sh") & 0o100, mode("logo.png") & 0o111), (0o100, 0));
        assert_eq!(staged.missing, ["big.bin"]);
        assert!(!dir.path().join("s/big.bin").exists());
    }

    #[test]
    fn what_is_refused_whole() {
        let long = "x".repeat(300);
        for (files, words) in [
            (json!([{"path": "../x", "content": ""}]), "leaves the package"),
            (json!([{"path": "/etc/x", "content": ""}]), "leaves the package"),
            (json!([{"path": ".git/config", "content": ""}]), "hidden"),
            (json!([{"path": "a\\..\\b", "content": ""}]), "backslash"),
            (json!([{"path": "", "content": ""}]), "leaves the package"),
            (json!([{"path": long, "content": ""}]), "more than 255 bytes"),
            (json!([{"path": "a", "content": ""}, {"path": "a/b", "content": ""}]), "\"a/b\" is there twice"),
            (json!([{"path": "a/b", "content": ""}, {"path": "a", "content": ""}]), "\"a\" is there twice"),
            (json!([{"path": "a", "content": ""}, {"path": "a", "content": ""}]), "there twice"),
            (json!([{"path": "SKILL.md", "content": "other"}]), "there twice"),
            (json!([{"path": "a"}]), "neither a content"),
            (json!([{"path": "a", "content_b64": "%%"}]), "not base64"),
            (json!([{"path": "a", "content": "ab", "size": 3}]), "cut off"),
            (json!([{"path": "a", "content_b64": "AAAA", "size": 2}]), "cut off"),
            (json!([{"path": 1}]), "not the JSON"),
        ] {
            let error = staged(files.clone(), json!({})).unwrap_err();
            assert!(error.to_string().contains(words), "{files}: {error}");
            assert!(!error.is_fatal());
        }
        for (more, words) in [
            (json!({"id": "b"}), "for the id \"b\""),
            (json!({"raw_md": ""}), "is empty"),
            (json!({"raw_md": null}), "not the JSON"),
            (json!({"digest": "00"}), "not those of the digest"),
        ] {
            assert!(staged(json!([]), more).unwrap_err().to_string().contains(words), "{words}");
        }
        let many: Vec<_> = (0..MAX_FILES).map(|i| json!({"path": format!("f{i}"), "content": ""})).collect();
        assert!(matches!(staged(many.into(), json!({})), Err(StageError::TooLarge)));
    }

    #[test]
    fn a_digest_that_holds() {
        let file = PackageFile {
            path: "SKILL.md".parse().unwrap(),
            size: 8,
            executable: true,
            sha256: Digest::of("\u{feff}---\r\n".as_bytes()),
        };
        let digest = Digest::of_package(&[file]).to_string();
        assert!(staged(Value::Null, json!({"digest": digest, "executable": true})).is_ok());
        assert!(matches!(staged(Value::Null, json!({"digest": digest})), Err(StageError::Digest)));
        let answer = json!({"id": "a", "raw_md": "x", "digest": digest}).to_string();
        let dir = tempfile::tempdir().unwrap();
        let other = stage("a", "another", answer.as_bytes(), &dir.path().join("s"));
        assert!(matches!(other, Err(StageError::OtherVersion)));
    }
}
