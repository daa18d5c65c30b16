//! The command line of `executor-svc run`, and the request that it makes. Whether the arguments fit the skill is for the
//! executor to say.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use skillyard::pb::executor::v1::RunSkillRequest;
use skillyard::pb::executor::v1::run_skill_request::Arguments;
use skillyard::service::dial::{Dialer, FlagsError};
use skillyard::wire::duration_to_wire;
use uuid::Uuid;

use super::EXIT_CODES;
use super::connect::ConnectArgs;

/// The most that an executor takes.
const MAX_ARGS_BYTES: u64 = 8 << 20;

/// Runs one skill: what it says goes to stderr, its result alone to stdout.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    /// The skill's name.
    skill: String,
    /// Read the arguments from standard input.
    #[arg(value_name = "-", value_parser = ["-"], conflicts_with_all = ["args", "args_file"])]
    stdin: Option<String>,
    /// The arguments, a JSON object; passed to the skill byte for byte. None means {}.
    #[arg(long, value_name = "JSON", conflicts_with = "args_file", allow_hyphen_values = true)]
    args: Option<String>,
    /// A file with the arguments; - is standard input.
    #[arg(long, value_name = "FILE")]
    args_file: Option<PathBuf>,
    /// On whose behalf; without it, the executor's default agent.
    #[arg(long, env = "SKILLYARD_AGENT", default_value = "", hide_default_value = true)]
    agent: String,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Shortens the skill's own limit: 10s, 2m.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// The approval that a mutating or dangerous skill needs.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    approval_id: String,
    /// The same id with the same request is the same run, live or finished. Without it, a new one.
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// Print the run's id, and leave it to run to its end: `attach` follows it.
    #[arg(long)]
    pub(super) detach: bool,
}

/// Why there is no request.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("the arguments cannot be read from {from}: {source}")]
    Read { from: String, source: io::Error },
    #[error(
        "the arguments have more than {MAX_ARGS_BYTES} bytes: pass large data in a file, and its path as an argument"
    )]
    TooLarge,
    #[error("the arguments are not UTF-8: JSON must be")]
    NotUtf8,
    #[error(transparent)]
    Dial(#[from] FlagsError),
}

impl RunArgs {
    /// Where to call, and with what.
    pub(super) fn into_request(self) -> Result<(Dialer, RunSkillRequest), RequestError> {
        let executor = self.connect.dialer()?;
        let args = match (self.args, self.stdin, self.args_file) {
            (Some(args), ..) if args.len() as u64 > MAX_ARGS_BYTES => return Err(RequestError::TooLarge),
            (Some(args), ..) => Some(args),
            (None, Some(_), _) => Some(read("standard input", || Ok(io::stdin()))?),
            (None, None, Some(file)) if file == Path::new("-") => Some(read("standard input", || Ok(io::stdin()))?),
            (None, None, Some(file)) => Some(read(&file.display().to_string(), || File::open(&file))?),
            (None, None, None) => None,
        };
        let request = RunSkillRequest {
            skill: self.skill,
            arguments: args.map(Arguments::ArgsJson),
            agent: self.agent,
            // One of our own, so that a call whose connection broke can be repeated.
            run_id: self.run_id.unwrap_or_else(|| Uuid::now_v7().to_string()),
            timeout: self.timeout.map(duration_to_wire),
            approval_id: self.approval_id,
            detach: self.detach,
            ..RunSkillRequest::default()
        };
        Ok((executor, request))
    }
}

fn read<R: Read>(from: &str, open: impl FnOnce() -> io::Result<R>) -> Result<String, RequestError> {
    let mut bytes = Vec::new();
    let read = open().and_then(|file| file.take(MAX_ARGS_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|source| RequestError::Read { from: from.to_owned(), source })?;
    if bytes.len() as u64 > MAX_ARGS_BYTES {
        return Err(RequestError::TooLarge);
    }
    String::from_utf8(bytes).map_err(|_| RequestError::NotUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn request(line: &[&str]) -> Result<RunSkillRequest, String> {
        let line = Line::try_parse_from(["run"].iter().chain(line)).map_err(|error| error.to_string())?;
        line.run.into_request().map(|(_, request)| request).map_err(|error| error.to_string())
    }

    #[test]
    fn a_line_as_a_request() {
        let made =
            request(&["x", "--args", r#"{"a": 1}"#, "--agent", "ops", "--timeout", "1500ms", "--run-id", "r"]).unwrap();
        let expected = RunSkillRequest {
            skill: "x".to_owned(),
            arguments: Some(Arguments::ArgsJson(r#"{"a": 1}"#.to_owned())),
            agent: "ops".to_owned(),
            run_id: "r".to_owned(),
            timeout: Some(duration_to_wire(Duration::from_millis(1500))),
            ..RunSkillRequest::default()
        };
        assert_eq!(made, expected);
        assert_eq!(request(&["x"]).unwrap().arguments, None);
        assert_eq!(request(&["x", "--approval-id", "a"]).unwrap().approval_id, "a");
        assert_ne!(request(&["x"]).unwrap().run_id, request(&["x"]).unwrap().run_id);
    }

    #[test]
    fn arguments_of_a_file() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("args.json");
        let line = ["x", "--args-file", path.to_str().unwrap()];
        assert!(request(&line).unwrap_err().contains("args.json"));
        std::fs::write(&path, "{ \"a\":\t1 }\n").unwrap();
        assert_eq!(request(&line).unwrap().arguments, Some(Arguments::ArgsJson("{ \"a\":\t1 }\n".to_owned())));
        std::fs::write(&path, [0xff]).unwrap();
        assert!(request(&line).unwrap_err().contains("UTF-8"));
        std::fs::write(&path, vec![b' '; 8 << 20]).unwrap();
        assert!(request(&line).is_ok());
        std::fs::write(&path, vec![b' '; (8 << 20) + 1]).unwrap();
        assert!(request(&line).unwrap_err().contains("8388608"));
    }

    #[test]
    fn lines_that_are_refused() {
        for line in [
            &[][..],
            &["x", "y"],
            &["x", "-", "--args", "{}"],
            &["x", "--args", "{}", "--args-file", "f"],
            &["x", "--executor", "127.0.0.1:1"],
            &["x", "--executor", "https://127.0.0.1:1"],
            &["x", "--timeout", "soon"],
        ] {
            assert!(request(line).is_err(), "{line:?}");
        }
    }
}
