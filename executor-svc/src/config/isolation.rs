//! The flags that say what skills are confined by, and their check.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::FalseyValueParser;
use skillyard::SkillName;

use crate::isolation::{Files, Isolation, Level, RunAs};

/// What skills are confined by, as it was written.
#[derive(Args, Clone, Debug)]
pub struct IsolationFlags {
    /// Do not start without this isolation: no_new_privs, seccomp, files or files+signals; without a value, the last
    #[arg(
        long,
        env = "SKILLYARD_REQUIRE_ISOLATION",
        value_name = "LEVEL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "files+signals"
    )]
    pub require_isolation: Option<String>,
    /// What mutating and dangerous skills may write: absolute paths between commas [default: all that their user may]
    #[arg(long, env = "SKILLYARD_WRITABLE", value_name = "PATH,…")]
    pub writable: Option<String>,
    /// The user, and its only group, that skills run as; the executor is started as root for it
    #[arg(long, env = "SKILLYARD_RUN_AS", value_name = "UID[:GID]")]
    pub run_as: Option<String>,
    /// Skills have no sockets but those of the unix domain
    #[arg(long, env = "SKILLYARD_DENY_NETWORK", value_parser = FalseyValueParser::new())]
    pub deny_network: bool,
    /// Skills whose entry confines them itself (bwrap, firejail, nsenter) and that run without isolation of ours
    #[arg(long, env = "SKILLYARD_SELF_CONFINED", value_name = "NAME,…")]
    pub self_confined: Option<String>,
    /// The highest level, even where more could be had: to look for what keeps a skill from its work
    #[arg(long, hide = true, default_value = "files+signals", value_name = "LEVEL")]
    pub isolation_at_most: String,
}

/// What is wrong with a flag: its name, its variable, and why.
pub(super) type Found = (&'static str, &'static str, String);

impl IsolationFlags {
    /// Checks them all. `state` need not exist yet; `secrets` are the executor's files that no skill may read.
    pub(super) fn check(&self, state: &Path, secrets: Vec<PathBuf>, faults: &mut Vec<Found>) -> Isolation {
        Isolation {
            at_most: level(&self.isolation_at_most, "--isolation-at-most", "-", faults).unwrap_or_default(),
            required: given(self.require_isolation.as_ref())
                .and_then(|text| level(text, "--require-isolation", "SKILLYARD_REQUIRE_ISOLATION", faults)),
            files: Some(Files { state: state.to_owned(), secrets, writable: self.writable(state, faults) }),
            run_as: self.run_as(faults),
            deny_network: self.deny_network,
            self_confined: self.self_confined(faults),
        }
    }

    fn writable(&self, state: &Path, faults: &mut Vec<Found>) -> Option<Vec<PathBuf>> {
        let mut fault = |what| faults.push(("--writable", "SKILLYARD_WRITABLE", what));
        let mut writable = Vec::new();
        for text in names(given(self.writable.as_ref())?) {
            let path = match Path::new(text).canonicalize() {
                Ok(path) if Path::new(text).is_absolute() => path,
                Ok(_) => {
                    fault(format!("{text:?} is relative: write an absolute path"));
                    continue;
                }
                Err(error) => {
                    fault(format!("{text:?} cannot be used ({error}): make it first, or leave it out"));
                    continue;
                }
            };
            let state = real(state);
            if state.starts_with(&path) || path.starts_with(&state) {
                let what = "which no skill may write: name other directories, or move the state with --state-dir";
                fault(format!("{text:?} and the state directory {} overlap, {what}", state.display()));
                continue;
            }
            writable.push(path);
        }
        Some(writable)
    }

    fn run_as(&self, faults: &mut Vec<Found>) -> Option<RunAs> {
        let mut fault = |what| faults.push(("--run-as", "SKILLYARD_RUN_AS", what));
        let text = given(self.run_as.as_ref())?;
        let Ok(run_as) = text.parse() else {
            fault(format!("{text:?} is not a user: write its number, and its group's, as 65534:65534; neither is 0"));
            return None;
        };
        if !rustix::process::geteuid().is_root() {
            fault("only root can have skills run as another user: start the executor as root, or leave it out".into());
        }
        Some(run_as)
    }

    fn self_confined(&self, faults: &mut Vec<Found>) -> std::collections::BTreeSet<String> {
        let mut fault = |what| faults.push(("--self-confined", "SKILLYARD_SELF_CONFINED", what));
        let mut skills = std::collections::BTreeSet::new();
        for name in self.self_confined.iter().flat_map(|text| names(text)) {
            match SkillName::function(name) {
                Ok(_) => drop(skills.insert(name.to_owned())),
                Err(error) => fault(format!("{name:?} is no skill's name: {error}")),
            }
        }
        skills
    }
}

fn level(text: &str, flag: &'static str, variable: &'static str, faults: &mut Vec<Found>) -> Option<Level> {
    let level = text.parse().ok();
    if level.is_none() {
        let levels = Level::ALL.map(Level::as_str).join(", ");
        faults.push((flag, variable, format!("{text:?} is not a level: write one of {levels}")));
    }
    level
}

/// An empty variable is one that is not set.
fn given(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// Where a path will be that may not be there yet.
fn real(path: &Path) -> PathBuf {
    for known in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (known.canonicalize(), path.strip_prefix(known)) {
            return real.join(rest);
        }
    }
    path.to_owned()
}
