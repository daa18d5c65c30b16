//! One skill as JSON, read from its package piece by piece: what does not fit into one piece is never whole in memory. Every
//! file is checked against the catalog on its way, so that what was begun and does not hold is cut off.

use std::io::{self, Read as _, Write};
use std::time::Duration;

use axum::body::Bytes;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use serde_json::json;
use skillyard::Digest;
use skillyard::digest::Hasher;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::source::{self, FoundSkill, SourceFile};

const PIECE: usize = 256 << 10;
/// Larger files are sent in base64, which needs to know nothing of what comes.
const SMALL: u64 = 1 << 20;
/// A reader that takes nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(30);
const SKILL_MD: &str = "SKILL.md";

/// A part of an answer.
#[derive(Debug)]
pub(super) enum Piece {
    More(Bytes),
    /// The whole of it, or the end.
    Last(Bytes),
}

impl Piece {
    pub(super) fn into_bytes(self) -> Bytes {
        let (Self::More(bytes) | Self::Last(bytes)) = self;
        bytes
    }
}

/// Writes a skill's answer to a channel; on a thread that may block. An error ends it in the middle.
pub(super) fn write(found: &FoundSkill, with_files: bool, to: &mpsc::Sender<io::Result<Piece>>, handle: &Handle) {
    let mut pieces = Pieces { buffer: Vec::new(), to, handle };
    let done = skill(found, with_files, &mut pieces);
    let last = done.map(|()| Piece::Last(std::mem::take(&mut pieces.buffer).into()));
    // A reader that has gone needs no end.
    let _: io::Result<()> = pieces.send(last);
}

fn skill(found: &FoundSkill, with_files: bool, out: &mut impl Write) -> io::Result<()> {
    let skill = &found.skill;
    let (mut raw_md, mut others) = (None, Vec::new());
    for file in &found.package.files {
        if file.file.path.as_str() == SKILL_MD { raw_md = Some(file) } else { others.push(file) }
    }
    let raw_md = raw_md.ok_or_else(changed)?;
    let text = String::from_utf8(whole(raw_md)?).map_err(|_| changed())?;
    let mut head = json!({
        "id": skill.name.as_str(),
        "name": skill.name.as_str(),
        "description": skill.description,
        "hash": skill.digest.to_string(),
        "digest": skill.digest.to_string(),
        "executable": raw_md.file.executable,
        "size": raw_md.file.size,
    })
    .to_string();
    head.pop();
    write!(out, "{head},\"raw_md\":")?;
    serde_json::to_writer(&mut *out, &text)?;
    if with_files {
        out.write_all(b",\"files\":[")?;
        for (index, file) in others.into_iter().enumerate() {
            out.write_all(if index == 0 { b"" } else { b"," })?;
            write_file(file, out)?;
        }
        out.write_all(b"]")?;
    }
    out.write_all(b"}")
}

fn write_file(file: &SourceFile, out: &mut impl Write) -> io::Result<()> {
    let what = &file.file;
    let mut head = json!({"path": what.path.as_str(), "size": what.size, "executable": what.executable}).to_string();
    head.pop();
    write!(out, "{head},")?;
    if what.size > SMALL {
        write!(out, "\"content_b64\":\"")?;
        let mut coder = EncoderWriter::new(&mut *out, &STANDARD);
        copy(file, &mut coder)?;
        coder.finish()?;
        drop(coder);
        return out.write_all(b"\"}");
    }
    let content = whole(file)?;
    match std::str::from_utf8(&content) {
        Ok(text) if is_plain(&content) => {
            write!(out, "\"content\":")?;
            serde_json::to_writer(&mut *out, text)?;
        }
        _ => {
            write!(out, "\"content_b64\":\"")?;
            let mut coder = EncoderWriter::new(&mut *out, &STANDARD);
            coder.write_all(&content)?;
            coder.finish()?;
            drop(coder);
            out.write_all(b"\"")?;
        }
    }
    out.write_all(b"}")
}

/// Whether it takes less room as a JSON text than in base64.
fn is_plain(content: &[u8]) -> bool {
    let more = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 1,
        0..0x20 => 5,
        _ => 0,
    };
    content.iter().map(more).sum::<usize>() * 3 <= content.len().max(64)
}

/// A file as the catalog knows it.
fn whole(file: &SourceFile) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    source::open(file)?.take(file.file.size + 1).read_to_end(&mut content)?;
    if Digest::of(&content) == file.file.sha256 { Ok(content) } else { Err(changed()) }
}

fn copy(file: &SourceFile, to: &mut impl Write) -> io::Result<()> {
    let mut from = source::open(file)?.take(file.file.size + 1);
    let (mut hasher, mut buffer) = (Hasher::default(), vec![0; 48 << 10]);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return if hasher.finish() == file.file.sha256 { Ok(()) } else { Err(changed()) },
            Ok(read) => {
                hasher.update(&buffer[..read]);
                to.write_all(&buffer[..read])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn changed() -> io::Error {
    io::Error::other("a file of the package is no longer what the catalog knows")
}

/// Gathers what is written into pieces.
struct Pieces<'a> {
    buffer: Vec<u8>,
    to: &'a mpsc::Sender<io::Result<Piece>>,
    handle: &'a Handle,
}

impl Pieces<'_> {
    fn send(&self, piece: io::Result<Piece>) -> io::Result<()> {
        let sent = self.handle.block_on(async { tokio::time::timeout(PATIENCE, self.to.send(piece)).await });
        match sent {
            Ok(Ok(())) => Ok(()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > PIECE && !self.buffer.is_empty() {
            let piece = std::mem::take(&mut self.buffer);
            self.send(Ok(Piece::More(piece.into())))?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_as_text() {
        assert!(is_plain(b"# Title\n\nText with \"quotes\".\n") && is_plain("ü".as_bytes()) && is_plain(b""));
        assert!(!is_plain(&[1; 100]));
    }
}
