//! What one run may use at most. Where the kernel has a limit of its own, the slot sets it once, for itself and for all
//! that it starts; what it has none for is measured (`sample.rs`). Limits are only ever lowered.

use std::fmt::{self, Write as _};

use rustix::io;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits of each run; `None` for none of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory that all processes of a run take together.
    pub memory: Option<u64>,
    /// Processes of a run, threads included.
    pub processes: Option<u64>,
    /// Open files of one process: what it starts with, and what it may raise that to.
    pub open_files: Option<(u64, u64)>,
    /// Bytes of one file that is written.
    pub file_size: Option<u64>,
    /// Processes and threads of the user, wherever they come from. Does not bind root.
    pub user_processes: Option<u64>,
}

/// The fewest open files that a slot and the programs it starts get along with.
pub const LEAST_OPEN_FILES: u64 = 64;

/// A process may have asked for so much more than the whole run may take, since most programs ask for more than they
/// touch. It ends what grows faster than it can be measured.
const fn data_backstop(memory: u64) -> u64 {
    memory.saturating_mul(2).saturating_add(1 << 30)
}

/// For people, in the words of the flags.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), |n| n.to_string());
        let (memory, file_size) = (told(self.memory), told(self.file_size));
        let (processes, open_files) = (told(self.processes), told(self.open_files.map(|(files, _)| files)));
        write!(f, "memory {memory} bytes, processes {processes}, open files {open_files}, file size {file_size} bytes")
    }
}

impl Limits {
    /// As a slot's argument, after its name.
    pub(super) fn to_argument(self) -> String {
        let mut text = String::new();
        let (files, most_files) = self.open_files.unzip();
        for (name, value) in [
            ('m', self.memory),
            ('p', self.processes),
            ('f', files),
            ('F', most_files),
            ('s', self.file_size),
            ('u', self.user_processes),
        ] {
            if let Some(value) = value {
                // Writing to a String does not fail.
                let _ = write!(text, "{name}{value},");
            }
        }
        text
    }

    /// What [`Self::to_argument`] was made of, or `None` for anything else.
    pub(super) fn from_argument(argument: &str) -> Option<Self> {
        let mut limits = Self::default();
        let (mut files, mut most_files) = (None, None);
        for part in argument.split_terminator(',') {
            let place = match part.chars().next()? {
                'm' => &mut limits.memory,
                'p' => &mut limits.processes,
                'f' => &mut files,
                'F' => &mut most_files,
                's' => &mut limits.file_size,
                'u' => &mut limits.user_processes,
                _ => return None,
            };
            *place = Some(part[1..].parse().ok()?);
        }
        limits.open_files = files.zip(most_files);
        Some(limits)
    }

    /// Sets those that the kernel keeps, for the calling process and all that it starts from now on.
    pub(super) fn apply(self) -> io::Result<()> {
        lower(Resource::Core, 0, 0)?;
        if let Some((files, most)) = self.open_files {
            lower(Resource::Nofile, files, most)?;
        }
        if let Some(bytes) = self.file_size {
            lower(Resource::Fsize, bytes, bytes)?;
        }
        if let Some(bytes) = self.memory.map(data_backstop) {
            lower(Resource::Data, bytes, bytes)?;
        }
        if let Some(count) = self.user_processes {
            lower(Resource::Nproc, count, count)?;
        }
        Ok(())
    }
}

/// To these, or to what there is where that is lower.
fn lower(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let hard = now.maximum.map_or(hard, |now| now.min(hard));
    let soft = soft.min(hard);
    setrlimit(resource, Rlimit { current: Some(soft), maximum: Some(hard) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_argument_is_read_as_it_was_written(
            memory: Option<u64>, processes: Option<u64>, open_files: Option<(u64, u64)>, file_size: Option<u64>,
            user_processes: Option<u64>,
        ) {
            let limits = Limits { memory, processes, open_files, file_size, user_processes };
            prop_assert_eq!(Limits::from_argument(&limits.to_argument()), Some(limits));
        }

        #[test]
        fn no_argument_is_too_strange(text in "[mpfFsux0-9,é]{0,12}") {
            let _ = Limits::from_argument(&text);
        }
    }
}
