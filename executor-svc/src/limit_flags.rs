//! The flags that say what one run may use, as they are written and checked.

use clap::Args;

use crate::slot::{LEAST_OPEN_FILES, Limits};
use crate::{host, size};

/// The least memory that a run can do anything with: an interpreter takes about so much.
const LEAST_MEMORY: u64 = 16 << 20;
/// Room for one result, and for the arguments of another run.
const LEAST_OUTPUT_MEMORY: u64 = 32 << 20;

/// What one run may use, as it was written.
#[derive(Args, Clone, Debug)]
pub struct LimitFlags {
    /// Memory that the processes of one run take together, such as 512MiB; or none [default: half of what the machine or container has]
    #[arg(long, env = "SKILLYARD_MAX_MEMORY", value_name = "SIZE")]
    pub max_memory: Option<String>,
    /// Processes and threads of one run; or none
    #[arg(long, env = "SKILLYARD_MAX_PROCESSES", default_value = "512", value_name = "N")]
    pub max_processes: String,
    /// Open files of one process of a skill [default: as many as the executor was started with]
    #[arg(long, env = "SKILLYARD_MAX_OPEN_FILES", value_name = "N")]
    pub max_open_files: Option<String>,
    /// Longest file that a skill can write, such as 10GiB; or none
    #[arg(long, env = "SKILLYARD_MAX_FILE_SIZE", default_value = "none", value_name = "SIZE")]
    pub max_file_size: String,
    /// Memory of the executor for what runs are given and write to stdout, all together
    #[arg(long, env = "SKILLYARD_MAX_OUTPUT_MEMORY", default_value = "512MiB", value_name = "SIZE")]
    pub max_output_memory: String,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Those of each run. Limits on open files that were not asked for are the executor's own.
    pub each: Limits,
    /// Bytes of arguments and outputs of all runs together.
    pub output_memory: usize,
}

impl LimitFlags {
    /// Checks them all; each fault is told with its flag, its variable and what to write instead.
    pub(crate) fn check(&self, mut fault: impl FnMut(&'static str, &'static str, String)) -> RunLimits {
        let mut size = |text: &str, flag, variable, least| match text {
            NONE => None,
            text => match size::parse(text) {
                Ok(bytes) if bytes >= least => Some(bytes),
                Ok(_) => {
                    fault(flag, variable, format!("{text:?} is too little: write at least {} MiB", least >> 20));
                    None
                }
                Err(error) => {
                    fault(flag, variable, error.to_string());
                    None
                }
            },
        };
        let memory = match &self.max_memory {
            Some(text) => size(text, "--max-memory", "SKILLYARD_MAX_MEMORY", LEAST_MEMORY),
            None => host::memory().map(|all| (all / 2).max(LEAST_MEMORY)),
        };
        let file_size = size(&self.max_file_size, "--max-file-size", "SKILLYARD_MAX_FILE_SIZE", 0);
        let output = ("--max-output-memory", "SKILLYARD_MAX_OUTPUT_MEMORY");
        let output_memory = size(&self.max_output_memory, output.0, output.1, LEAST_OUTPUT_MEMORY);
        if self.max_output_memory == NONE {
            fault(output.0, output.1, "it cannot be without a limit: write a size, such as 512MiB".to_owned());
        }
        let mut number = |text: &str, flag, variable, least| match text.parse::<u64>() {
            Ok(n) if n >= least => Some(n),
            _ => {
                fault(flag, variable, format!("{text:?} is not a number from {least} on"));
                None
            }
        };
        let processes = match self.max_processes.as_str() {
            NONE => None,
            text => number(text, "--max-processes", "SKILLYARD_MAX_PROCESSES", 1),
        };
        let open_files = self.max_open_files.as_ref().and_then(|text| {
            number(text, "--max-open-files", "SKILLYARD_MAX_OPEN_FILES", LEAST_OPEN_FILES).map(|n| (n, n))
        });
        // A user that has all of them can start nothing any more, the executor's slots neither.
        let user_processes = host::process_ids().map(|all| all / 4 * 3);
        let each = Limits { memory, processes, open_files, file_size, user_processes };
        let output_memory = usize::try_from(output_memory.unwrap_or(LEAST_OUTPUT_MEMORY)).unwrap_or(usize::MAX);
        RunLimits { each, output_memory }
    }
}

/// Without a limit.
const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: LimitFlags,
    }

    fn check(flags: &[&str]) -> (RunLimits, Vec<&'static str>) {
        let mut faults = Vec::new();
        let line = Line::parse_from(std::iter::once(&"executor-svc").chain(flags));
        let limits = line.flags.check(|flag, variable, what| {
            assert!(variable.starts_with("SKILLYARD_MAX_") && !what.is_empty());
            faults.push(flag);
        });
        (limits, faults)
    }

    #[test]
    fn defaults_keep_a_run_from_taking_the_machine() {
        let (RunLimits { each, output_memory }, faults) = check(&[]);
        assert_eq!((each.memory, each.processes), (host::memory().map(|all| all / 2), Some(512)));
        assert_eq!((each.open_files, each.file_size, output_memory), (None, None, 512 << 20));
        assert!(each.user_processes.unwrap() < host::process_ids().unwrap());
        assert!(faults.is_empty());
    }

    #[test]
    fn limits_as_they_are_written() {
        let (RunLimits { each, output_memory }, faults) = check(&[
            "--max-memory=64MiB",
            "--max-processes=none",
            "--max-open-files=100",
            "--max-file-size=1GiB",
            "--max-output-memory=1GiB",
        ]);
        let Limits { memory, processes, open_files, file_size, user_processes: _ } = each;
        assert_eq!((memory, processes, open_files), (Some(64 << 20), None, Some((100, 100))));
        assert_eq!((file_size, output_memory), (Some(1 << 30), 1 << 30));
        assert!(faults.is_empty());
        assert_eq!(check(&["--max-memory=none"]).0.each.memory, None);
    }

    #[test]
    fn every_fault() {
        let (_, faults) = check(&[
            "--max-memory=1MiB",
            "--max-processes=0",
            "--max-open-files=3",
            "--max-file-size=much",
            "--max-output-memory=none",
        ]);
        let all = ["--max-memory", "--max-file-size", "--max-output-memory", "--max-processes", "--max-open-files"];
        assert_eq!(faults, all);
    }
}
