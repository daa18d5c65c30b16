//! A subprocess skill's program: where it really lies, and whether the system could start it. Never starts it.

use std::cell::RefCell;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use skillyard::package::OUTSIDE_ENTRY_DIR;
use skillyard::{Digest, PackagePath};

use super::beneath::fill;
use super::codes;
use super::findings::Findings;
use super::glance::Glances;
use super::manifest::Entry;
use super::memory::Remembered;
use super::package::{Item, Place};
use super::stamp::Stamp;

/// An entry that can be started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program {
    /// Its canonical path, under the canonical root.
    pub(crate) path: PathBuf,
}

/// Longest first line that the system reads.
const MAX_SHEBANG: usize = 256;

/// Finds and checks an entry of a package. `now` gets what was read of it, and the files outside of the package that the
/// answer depends on.
pub(crate) fn check(
    entry: &Entry,
    package: &Place<'_>,
    env_allow: &[String],
    now: &mut Remembered,
    glances: &Glances,
    findings: &mut Findings,
) -> Option<Program> {
    let at = entry.position;
    let itself = now.items().iter().position(|item| item.elsewhere.is_none() && item.path.as_str() == entry.path);
    let (path, executable) = match itself {
        // A regular file of the package: the package has looked at it.
        Some(item) => (package.directory.join(&entry.path), now.items()[item].stamp.executable()),
        None => elsewhere(entry, package, now, glances, findings)?,
    };
    let shown = path.display();
    if !executable {
        findings.build(codes::E_ENTRY_NOT_EXECUTABLE, at, format!("entry {shown} is not executable: chmod +x it"));
        return None;
    }
    BUFFER.with_borrow_mut(|buffer| {
        let read = package
            .beneath
            .file(path.strip_prefix(package.root).unwrap_or(&path))
            .and_then(|(mut file, stamp)| Ok((fill(&mut file, buffer, stamp.size)?, stamp)));
        let (read, stamp) = match read {
            Ok(read) => read,
            Err(error) => {
                findings.build(codes::E_UNREADABLE, at, format!("entry {shown} cannot be read: {error}"));
                return None;
            }
        };
        // All of it, and as it was when the package was listed: it need not be read again.
        if let Some(item) = itself.filter(|item| read < buffer.len() && now.items()[*item].stamp == stamp) {
            now.note(item, Digest::of(&buffer[..read]));
        }
        can_start(&buffer[..read], &path, env_allow, at, now, glances, findings).then_some(())
    })?;
    Some(Program { path })
}

/// Where an entry that is no file of the package itself leads to, and whether that is executable.
fn elsewhere(
    entry: &Entry,
    package: &Place<'_>,
    now: &mut Remembered,
    glances: &Glances,
    findings: &mut Findings,
) -> Option<(PathBuf, bool)> {
    let written = package.directory.join(&entry.path);
    now.watch(vec![glances.at(&written)]);
    let at = entry.position;
    let path = match canonical_as_far_as_there(&written) {
        Ok(path) => path,
        Err(error) => {
            findings.build(
                codes::E_UNREADABLE,
                at,
                format!("entry {} cannot be looked at: {error}", written.display()),
            );
            return None;
        }
    };
    if !path.starts_with(package.root) {
        let message = format!("entry {} escapes allowlist root {}", path.display(), package.root.display());
        findings.build(codes::E_ENTRY_ESCAPES, at, message);
        return None;
    }
    let shown = path.display();
    let metadata = match std::fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            let directory = package.directory.display();
            let message = format!("entry {shown} is not there: write a path relative to {directory}");
            findings.build(codes::E_ENTRY_MISSING, at, message);
            return None;
        }
        Err(error) => {
            findings.build(codes::E_UNREADABLE, at, format!("entry {shown} cannot be looked at: {error}"));
            return None;
        }
    };
    if metadata.is_dir() {
        findings.build(codes::E_ENTRY_NOT_FILE, at, format!("entry {shown} is a directory: name the program in it"));
        return None;
    }
    if !metadata.is_file() {
        findings.build(codes::E_ENTRY_NOT_FILE, at, format!("entry {shown} is not a regular file: name a program"));
        return None;
    }
    let executable = metadata.permissions().mode() & 0o111 != 0;
    Some((path, executable))
}

/// Whether the system can make something of a file that begins like this.
fn can_start(
    content: &[u8],
    path: &Path,
    env_allow: &[String],
    at: (u32, u32),
    now: &mut Remembered,
    glances: &Glances,
    findings: &mut Findings,
) -> bool {
    let shown = path.display();
    let head = &content[..content.len().min(MAX_SHEBANG)];
    match head {
        [b'#', b'!', ..] => {
            if let Some(wrapper) = wrapper(&String::from_utf8_lossy(content)) {
                let message = format!(
                    "entry {shown} seems to call {wrapper}, which the isolation of executors keeps from working: name the \
                     skill in --self-confined of every executor, or leave confining it to them"
                );
                findings.warn(codes::W_ENTRY_CONFINES, at, message);
            }
            shebang(head, path, env_allow, at, now, glances, findings)
        }
        [0x7F, b'E', b'L', b'F', ..] => elf(head, path, at, findings),
        _ => {
            let what = if head.is_empty() { "is empty" } else { "is neither a program nor has a first line `#!…`" };
            let message = format!("entry {shown} {what}: begin it with its interpreter, as in #!/bin/sh");
            findings.build(codes::E_ENTRY_NO_SHEBANG, at, message);
            false
        }
    }
}

/// Where an entry is in its package.
pub(crate) enum Packaged {
    /// It is one of the directory's files.
    Inside(PackagePath),
    /// It lies elsewhere under the root, and is packaged beside them.
    Outside(Item),
}

/// Finds an entry among a package's files, or its place beside them. The message says why it has none.
pub(crate) fn in_package(
    program: &Program,
    entry: &Entry,
    directory: &Path,
    items: &[Item],
) -> Result<Packaged, String> {
    let shown = program.path.display();
    if let Ok(relative) = program.path.strip_prefix(directory) {
        // As it really lies, for an interpreter looks for a script's neighbours there; else by a link to it.
        let named = |path: &Path| {
            let mut named = items.iter().filter(|item| Path::new(item.path.as_str()) == path);
            named.find(|item| item.is_at(directory, &program.path))
        };
        let item = named(relative)
            .or_else(|| named(Path::new(&entry.path)))
            .or_else(|| items.iter().find(|item| item.is_at(directory, &program.path)));
        return match item {
            Some(item) => Ok(Packaged::Inside(item.path.clone())),
            None => Err(format!("entry {shown} is not among the package's files: move it out of the hidden directory")),
        };
    }
    let name = program.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let path: PackagePath =
        format!("{OUTSIDE_ENTRY_DIR}/{name}").parse().map_err(|error| format!("entry {shown}: {error}"))?;
    if items.iter().any(|item| item.path == path) {
        return Err(format!("entry {shown} would be packaged as {path}, which is there already: rename one"));
    }
    let metadata = std::fs::metadata(&program.path).map_err(|error| format!("entry {shown}: {error}"))?;
    let elsewhere = Some(program.path.clone().into());
    Ok(Packaged::Outside(Item { path, elsewhere, stamp: Stamp::of(&metadata) }))
}

/// The canonical path of what is there, and the rest as it would be: what escapes is told from what is missing.
fn canonical_as_far_as_there(path: &Path) -> std::io::Result<PathBuf> {
    let mut there = path;
    loop {
        match std::fs::canonicalize(there) {
            Ok(canonical) => {
                let rest = path.strip_prefix(there).unwrap_or(Path::new(""));
                return Ok(rest.components().fold(canonical, |mut path, part| {
                    match part {
                        Component::ParentDir => drop(path.pop()),
                        Component::Normal(part) => path.push(part),
                        _ => {}
                    }
                    path
                }));
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                there = there.parent().ok_or(error)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// As much of a script as is looked through.
const MAX_SCRIPT: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_SCRIPT]);
}

/// Programs that confine others, and need namespaces or rights that slots do not have.
const WRAPPERS: [&str; 4] = ["bwrap", "firejail", "nsenter", "unshare"];

/// The wrapper that a script seems to call: a word of its own, or in quotes, outside of lines that are comments. Its
/// language is not looked at.
fn wrapper(script: &str) -> Option<&'static str> {
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut words = lines.flat_map(|line| line.split(|c: char| c.is_whitespace() || ";&|()[]{}`'\",=".contains(c)));
    words.find_map(|word| {
        let name = match word.rsplit_once('/') {
            Some((directory, name)) if directory.is_empty() || directory.starts_with('/') => name,
            Some(_) => return None,
            None => word,
        };
        WRAPPERS.into_iter().find(|wrapper| *wrapper == name)
    })
}

/// Whether the system can make something of a first line.
fn shebang(
    head: &[u8],
    path: &Path,
    env_allow: &[String],
    at: (u32, u32),
    now: &mut Remembered,
    glances: &Glances,
    findings: &mut Findings,
) -> bool {
    let shown = path.display();
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    if line.ends_with(b"\r") {
        let message = format!("entry {shown} ends its first line with CRLF: save it with LF (dos2unix)");
        findings.build(codes::E_ENTRY_CRLF, at, message);
        return false;
    }
    let line = String::from_utf8_lossy(&line[2..]).into_owned();
    let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
    let interpreter = words.next().unwrap_or_default();
    if !interpreter.starts_with('/') {
        let message = match interpreter {
            "" => format!("entry {shown} names no interpreter in its first line: write one, as in #!/bin/sh"),
            _ => {
                format!("entry {shown} names its interpreter {interpreter:?} by a relative path: write an absolute one")
            }
        };
        findings.build(codes::E_ENTRY_SHEBANG, at, message);
        return false;
    }
    let interpreter_path = Path::new(interpreter);
    let glance = glances.at(interpreter_path);
    let is_there = glance.stamp().is_some();
    now.watch(vec![glance]);
    if !is_there {
        let message =
            format!("the interpreter {interpreter} of entry {shown} is not on this host: every executor needs it");
        findings.warn(codes::W_INTERPRETER_MISSING, at, message);
    }
    let by_path = interpreter_path.file_name().is_some_and(|name| name == "env")
        && words.find(|word| !word.starts_with('-') && !word.contains('=')).is_some_and(|word| !word.contains('/'));
    if by_path && !env_allow.iter().any(|name| name == "PATH") {
        let message = format!(
            "entry {shown} finds its interpreter by PATH (#!{}), which env_allow does not pass on: it is looked for in /bin \
             and /usr/bin alone; if it is elsewhere, add \"PATH\" to env_allow or write the interpreter's path",
            line.trim()
        );
        findings.warn(codes::W_SHEBANG_NEEDS_PATH, at, message);
    }
    true
}

/// Whether an ELF file is a program. For another machine it may be right: the registry's host is not the executors'.
fn elf(head: &[u8], path: &Path, at: (u32, u32), findings: &mut Findings) -> bool {
    const TYPE: usize = 16;
    const MACHINE: usize = 18;
    let little = head.get(5) != Some(&2);
    let half = |offset: usize| {
        let bytes = [*head.get(offset)?, *head.get(offset + 1)?];
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    // ET_EXEC and ET_DYN: a program, or one that may be loaded anywhere.
    let (Some(2 | 3), Some(machine)) = (half(TYPE), half(MACHINE)) else {
        let message = format!("entry {} is an object file, not a program: link it", path.display());
        findings.build(codes::E_ENTRY_NOT_PROGRAM, at, message);
        return false;
    };
    let here = own_header();
    if here.is_some_and(|own| (own.0, own.1) != (head.get(4).copied().unwrap_or_default(), machine)) {
        let message = format!(
            "entry {} is a program for {}, which this host is not: every executor needs to be",
            path.display(),
            machine_name(machine)
        );
        findings.warn(codes::W_ARCHITECTURE, at, message);
    }
    true
}

/// Class and machine of this very program.
fn own_header() -> Option<(u8, u16)> {
    static OWN: OnceLock<Option<(u8, u16)>> = OnceLock::new();
    *OWN.get_or_init(read_own_header)
}

fn read_own_header() -> Option<(u8, u16)> {
    let mut file = std::fs::File::open("/proc/self/exe").ok()?;
    let mut header = [0; 20];
    file.read_exact(&mut header).ok()?;
    let bytes = [header[18], header[19]];
    Some((header[4], if header[5] == 2 { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }))
}

/// As `uname -m` says it, for the machines that servers have.
fn machine_name(machine: u16) -> String {
    match machine {
        3 => "i686".to_owned(),
        21 => "ppc64le".to_owned(),
        22 => "s390x".to_owned(),
        40 => "arm".to_owned(),
        62 => "x86_64".to_owned(),
        183 => "aarch64".to_owned(),
        243 => "riscv64".to_owned(),
        other => format!("machine {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_found_where_they_seem_to_be_called() {
        for (script, found) in [
            ("#!/bin/sh\nexec bwrap --ro-bind / / date", Some("bwrap")),
            ("#!/bin/sh\nx=$(/usr/bin/unshare -r id)", Some("unshare")),
            ("#!/usr/bin/python3\nsubprocess.run(['firejail', 'ls'])", Some("firejail")),
            ("#!/bin/sh\ncat x|nsenter -t 1 -m ls", Some("nsenter")),
            ("#!/bin/sh\n  # bwrap is not needed here\necho '{}'", None),
            ("#!/bin/sh\necho bwrapper un-unshare my.bwrap data/bwrap", None),
            ("#!/usr/bin/python3\nos.unshare(0)", None),
            ("", None),
        ] {
            assert_eq!(wrapper(script), found, "{script}");
        }
    }
}
