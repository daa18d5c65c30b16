//! What a program's header says of the machine it is for, and of the loader it needs. Reads a few bytes, starts nothing.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A header of ELF, as elf(5) has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    class: u8,
    machine: u16,
}

impl Header {
    /// That of a file; `None` where it is no such program.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let mut head = [0; 20];
        File::open(path).ok()?.read_exact(&mut head).ok()?;
        (head[..4] == *b"\x7FELF").then(|| {
            let machine = [head[18], head[19]];
            let machine = if head[5] == 2 { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
            Self { class: head[4], machine }
        })
    }

    /// Whether the executor is for the same machine.
    pub(super) fn is_for_this_machine(&self) -> bool {
        Self::of(Path::new("/proc/self/exe")).as_ref() == Some(self)
    }

    /// As `uname -m` says it.
    pub(super) fn machine(&self) -> String {
        match self.machine {
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
}

/// The dynamic loader that a 64-bit program of a little-endian machine names.
pub(super) fn loader(path: &Path) -> Option<PathBuf> {
    const INTERP: u32 = 3;
    let file = File::open(path).ok()?;
    let bytes = |offset: u64, length: usize| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
    let head = bytes(0, 64)?;
    if head[..6] != *b"\x7FELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (number(&head[32..40]), number(&head[54..56]), number(&head[56..58]));
    for i in 0..count {
        let entry = bytes(table.checked_add(i * size)?, 56)?;
        if number(&entry[..4]) == u64::from(INTERP) {
            let length = usize::try_from(number(&entry[32..40])).ok().filter(|length| *length <= 4096)?;
            let name = String::from_utf8(bytes(number(&entry[8..16]), length)?).ok()?;
            return Some(PathBuf::from(name.trim_end_matches('\0')));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_for_this_machine_and_has_a_loader() {
        let own = Path::new("/proc/self/exe");
        assert!(Header::of(own).unwrap().is_for_this_machine());
        if cfg!(all(target_pointer_width = "64", target_endian = "little")) {
            assert!(loader(own).unwrap().is_absolute());
        }
        assert_eq!((Header::of(Path::new("/etc/passwd")), loader(Path::new("/etc/passwd"))), (None, None));
    }
}
