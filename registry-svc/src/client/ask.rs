//! The command line of `registry-svc approvals request`, and the request that it makes. Whether the arguments fit the skill
//! is for the registry to say.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::request_approval_request::Arguments;
use skillyard::wire::duration_to_wire;

use super::Failure;

/// The most that a registry takes, and one more, which it refuses.
const MAX_ARGS_BYTES: u64 = (8 << 20) + 1;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Ask {
    /// The skill's name
    skill: String,
    /// On whose behalf it is to run; without it, the registry's default agent
    #[arg(long, env = "SKILLYARD_AGENT", default_value = "", hide_default_value = true)]
    agent: String,
    /// The arguments, a JSON object: the same bytes as in the run. None means {}
    #[arg(long, value_name = "JSON", conflicts_with = "args_file", allow_hyphen_values = true)]
    args: Option<String>,
    /// A file with the arguments; - is standard input
    #[arg(long, value_name = "FILE")]
    args_file: Option<PathBuf>,
    /// Why it is wanted, for the signers
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    /// The person on whose behalf it is asked, who may not sign
    #[arg(long, value_name = "PERSON", default_value = "", hide_default_value = true)]
    requested_for: String,
    /// How long it is good: 15m, at most 24h
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    /// The same id with the same request is the same approval
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
    /// Print its id alone
    #[arg(long)]
    pub(super) id_only: bool,
}

impl Ask {
    pub(super) fn into_request(self) -> Result<pb::RequestApprovalRequest, Failure> {
        let args = match (self.args, self.args_file) {
            (Some(args), _) => Some(args),
            (None, Some(file)) => Some(read(&file).map_err(|source| Failure::Arguments { path: file, source })?),
            (None, None) => None,
        };
        Ok(pb::RequestApprovalRequest {
            agent: self.agent,
            skill: self.skill,
            arguments: args.map(Arguments::ArgsJson),
            reason: self.reason,
            requested_for: self.requested_for,
            request_id: self.request_id,
            ttl: self.ttl.map(duration_to_wire),
        })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().take(MAX_ARGS_BYTES).read_to_string(&mut text)?;
    } else {
        std::fs::File::open(path)?.take(MAX_ARGS_BYTES).read_to_string(&mut text)?;
    }
    Ok(text)
}
