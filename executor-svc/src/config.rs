//! Configuration: flags and variables, checked once, all faults at once. Nobody else reads the environment.

mod isolation;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use skillyard::service::access::{Access, AccessOptions};
use skillyard::service::dial::{DialFlag, DialOptions, Dialer};
use skillyard::service::export::Export;
use skillyard::service::telemetry::{self, LogFormat};

/// Most slots.
const MAX_SLOTS: usize = 4096;
/// Records of a few runs whose skills said much.
const MIN_JOURNAL_BYTES: usize = 1 << 20;
/// Most places in the queue.
const MAX_QUEUE: usize = 1_000_000;

use self::isolation::IsolationFlags;
use crate::client::{AttachArgs, CancelArgs, RunArgs, RunsArgs};
use crate::isolation::Isolation;
use crate::limit_flags::{LimitFlags, RunLimits};

/// Runs skills for agents: a worker that mirrors a registry
#[derive(Debug, Parser)]
#[command(name = "executor-svc", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Of serving, which is what it does without a subcommand.
    #[command(flatten)]
    pub flags: Flags,
    /// What else it does.
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Cli {
    /// Reads the command line. What cannot be read, and what only asks for help, is answered here.
    ///
    /// # Errors
    /// The exit code to go with: 64 for a command line that cannot be used, 0 for help.
    pub fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            let code = if error.use_stderr() { 64 } else { 0 };
            error.print().map_or(ExitCode::FAILURE, |()| ExitCode::from(code))
        })
    }
}

/// What the binary does but serve.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs one skill on an executor: its result on stdout, its log lines and progress on stderr
    Run(RunArgs),
    /// Follows a run that goes on or ended a while ago, like `run`
    Attach(AttachArgs),
    /// Lists the runs that an executor has in memory, newest first
    Runs(RunsArgs),
    /// Ends a run
    Cancel(CancelArgs),
}

/// The flags as they were written.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// Address to serve on; a loopback address unless callers have identities
    #[arg(long, env = "SKILLYARD_EXECUTOR_LISTEN", default_value = "127.0.0.1:50052", value_name = "HOST:PORT")]
    pub listen: String,
    /// Where clients reach this executor, for Accepted.endpoint [default: the listen address]
    #[arg(long, env = "SKILLYARD_EXECUTOR_ADVERTISE", value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Who may call.
    #[command(flatten)]
    pub access: AccessFlags,
    /// The registry to mirror
    #[arg(long, env = "SKILLYARD_REGISTRY", default_value = "http://127.0.0.1:50051", value_name = "URL")]
    pub registry: String,
    /// A file with the token that this executor shows to the registry; followed when it changes
    #[arg(long, env = "SKILLYARD_EXECUTOR_REGISTRY_TOKEN_FILE", value_name = "FILE")]
    pub registry_token_file: Option<PathBuf>,
    /// Who signs the registry's certificate, PEM; for an https:// registry
    #[arg(long, env = "SKILLYARD_EXECUTOR_REGISTRY_CA", value_name = "FILE")]
    pub registry_ca: Option<PathBuf>,
    /// The certificate chain that this executor shows to the registry, PEM; followed when it is rotated
    #[arg(long, env = "SKILLYARD_EXECUTOR_REGISTRY_CERT", value_name = "FILE")]
    pub registry_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, env = "SKILLYARD_EXECUTOR_REGISTRY_KEY", value_name = "FILE")]
    pub registry_key: Option<PathBuf>,
    /// Name of this executor [default: the host's name]
    #[arg(long, env = "SKILLYARD_EXECUTOR_NAME")]
    pub name: Option<String>,
    /// Packages, the last catalog, the journal and scratch directories; locked [default: /var/lib/skillyard if writable, else /var/tmp/skillyard-UID]
    #[arg(long, env = "SKILLYARD_EXECUTOR_STATE", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Runs at once [default: 4 a core]
    #[arg(long, env = "SKILLYARD_SLOTS", value_name = "N")]
    pub slots: Option<String>,
    /// Runs that may wait for a slot [default: 16 a slot]
    #[arg(long, env = "SKILLYARD_QUEUE", value_name = "N")]
    pub queue: Option<String>,
    /// Longest limit of one run, whatever its manifest says
    #[arg(long, env = "SKILLYARD_MAX_TIMEOUT", default_value = "1h", value_name = "DURATION")]
    pub max_timeout: String,
    /// How long running skills may go on after SIGTERM
    #[arg(long, env = "SKILLYARD_DRAIN_TIMEOUT", default_value = "30s", value_name = "DURATION")]
    pub drain_timeout: String,
    /// How long an ended run is known, so that the same call again gets its result
    #[arg(long, env = "SKILLYARD_KEEP_FINISHED", default_value = "5m", value_name = "DURATION")]
    pub keep_finished: String,
    /// How old the mirrored catalog may become while the registry does not answer
    #[arg(long, env = "SKILLYARD_MAX_CATALOG_AGE", default_value = "24h", value_name = "DURATION")]
    pub max_catalog_age: String,
    /// How long an id of an ended run is remembered, and how long its record waits for the registry, at the longest
    #[arg(long, env = "SKILLYARD_JOURNAL_MAX_AGE", default_value = "7d", value_name = "DURATION")]
    pub journal_max_age: String,
    /// How many bytes of records wait for the registry at the most; the oldest are dropped
    #[arg(long, env = "SKILLYARD_JOURNAL_MAX_BYTES", default_value = "1073741824", value_name = "BYTES")]
    pub journal_max_bytes: String,
    /// Agent of calls that name none [default: no agent, read-only]
    #[arg(long, env = "SKILLYARD_DEFAULT_AGENT", value_name = "AGENT")]
    pub default_agent: Option<String>,
    /// What skills are confined by.
    #[command(flatten)]
    pub isolation: IsolationFlags,
    /// Address of the admin port, /livez, /readyz and /metrics over plain HTTP [default: none]
    #[arg(long, env = "SKILLYARD_EXECUTOR_ADMIN_LISTEN", value_name = "HOST:PORT")]
    pub admin_listen: Option<String>,
    /// What one run may use.
    #[command(flatten)]
    pub limits: LimitFlags,
    /// What is logged: error, warn, info, debug, trace, or target=level between commas
    #[arg(long, env = "SKILLYARD_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// How it is logged: text or json
    #[arg(long, env = "SKILLYARD_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: String,
    /// Where spans are exported to: a collector that takes OTLP by gRPC; in programs built with the feature otlp [default: none]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// The name of the service in spans
    #[arg(long, env = "OTEL_SERVICE_NAME", default_value = "skillyard-executor", value_name = "NAME")]
    pub otlp_service_name: String,
    /// The program that slots run; this one
    #[arg(long, hide = true, default_value = "/proc/self/exe")]
    pub slot_program: PathBuf,
}

/// Who may call, as it was written.
#[derive(Args, Clone, Debug)]
pub struct AccessFlags {
    /// Whose tokens are known: lines `IDENTITY sha256:HEX`; followed when it changes
    #[arg(long, env = "SKILLYARD_EXECUTOR_TOKENS_FILE", value_name = "FILE")]
    pub tokens_file: Option<PathBuf>,
    /// What each caller may do (YAML or JSON); needed with --tokens-file and --client-ca, followed like them
    #[arg(long, env = "SKILLYARD_EXECUTOR_CALLERS_FILE", value_name = "FILE")]
    pub callers_file: Option<PathBuf>,
    /// The certificate chain to serve TLS with, PEM; followed when it is rotated
    #[arg(long, env = "SKILLYARD_EXECUTOR_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, env = "SKILLYARD_EXECUTOR_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Who signs the certificates of clients, PEM: their URI and DNS names are looked up in the callers file
    #[arg(long, env = "SKILLYARD_EXECUTOR_CLIENT_CA", value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Serve whoever reaches the address, without identities
    #[arg(long, env = "SKILLYARD_EXECUTOR_INSECURE", value_parser = clap::builder::FalseyValueParser::new())]
    pub insecure: bool,
}

/// The configuration of an executor.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to serve on.
    pub listen: SocketAddr,
    /// Where clients reach this executor; `None` for the address that was bound.
    pub advertise: Option<String>,
    /// Who may call.
    pub access: Access,
    /// The registry to mirror.
    pub registry: Dialer,
    /// Name of this executor.
    pub name: String,
    /// Packages and the last catalog.
    pub state_dir: PathBuf,
    /// Runs at once.
    pub slots: usize,
    /// Runs that may wait.
    pub queue: usize,
    /// Longest limit of one run.
    pub max_timeout: Duration,
    /// How long running skills may go on after SIGTERM.
    pub drain_timeout: Duration,
    /// How long an ended run is known.
    pub keep_finished: Duration,
    /// How old the catalog may become.
    pub max_catalog_age: Duration,
    /// What one run may use, and what all may.
    pub limits: RunLimits,
    /// How long ended runs are remembered and their records wait for the registry.
    pub journal_max_age: Duration,
    /// How many bytes of records wait for the registry.
    pub journal_max_bytes: usize,
    /// Agent of calls that name none; empty for no agent.
    pub default_agent: String,
    /// Address of the admin port.
    pub admin_listen: Option<SocketAddr>,
    /// What is logged.
    pub log: String,
    /// How it is logged.
    pub log_format: LogFormat,
    /// Where spans go.
    pub export: Export,
    /// The program that slots run.
    pub slot_program: PathBuf,
    /// What skills are confined by.
    pub isolation: Isolation,
    /// What manifests can allow skills to have.
    pub environment: BTreeMap<String, String>,
}

/// One thing that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    flag: &'static str,
    variable: &'static str,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.flag, self.variable, self.what)
    }
}

/// Everything that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Faults(pub Vec<Fault>);

impl Flags {
    /// How faults are told.
    #[must_use]
    pub fn log_format(&self) -> LogFormat {
        if self.log_format == "json" { LogFormat::Json } else { LogFormat::Text }
    }

    /// Checks them all.
    ///
    /// # Errors
    /// Every fault, with what to write instead.
    pub fn check(self) -> Result<Config, Faults> {
        let mut faults = Vec::new();
        let mut fault = |flag, variable, what| faults.push(Fault { flag, variable, what });

        let mut address = |text: &str, flag, variable| match text.parse::<SocketAddr>() {
            Ok(address) => Some(address),
            Err(_) => {
                fault(flag, variable, format!("{text:?} is not an address: write IP:PORT, such as 127.0.0.1:50052"));
                None
            }
        };
        let listen = address(&self.listen, "--listen", "SKILLYARD_EXECUTOR_LISTEN");
        let admin_listen = self.admin_listen.as_deref().filter(|text| !text.is_empty());
        let admin_listen =
            admin_listen.and_then(|text| address(text, "--admin-listen", "SKILLYARD_EXECUTOR_ADMIN_LISTEN"));
        let access = Access::check(&self.access.options(), listen.as_ref());
        for found in access.as_ref().err().into_iter().flatten() {
            fault(found.flag, access_variable(found.flag), found.what.clone());
        }
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let options = DialOptions {
            token_file: given(&self.registry_token_file),
            ca: given(&self.registry_ca),
            cert: given(&self.registry_cert),
            key: given(&self.registry_key),
        };
        let registry = Dialer::check(&self.registry, &options);
        for found in registry.as_ref().err().into_iter().flatten() {
            let (flag, variable) = match found.flag {
                DialFlag::Url => ("--registry", "SKILLYARD_REGISTRY"),
                DialFlag::TokenFile => ("--registry-token-file", "SKILLYARD_EXECUTOR_REGISTRY_TOKEN_FILE"),
                DialFlag::Ca => ("--registry-ca", "SKILLYARD_EXECUTOR_REGISTRY_CA"),
                DialFlag::Cert => ("--registry-cert", "SKILLYARD_EXECUTOR_REGISTRY_CERT"),
                DialFlag::Key => ("--registry-key", "SKILLYARD_EXECUTOR_REGISTRY_KEY"),
            };
            fault(flag, variable, found.what.clone());
        }
        let mut duration = |text: &str, flag, variable, least| match humantime::parse_duration(text) {
            Ok(duration) if duration >= least => duration,
            Ok(_) => {
                fault(flag, variable, format!("{text:?} is too short: write at least {least:?}"));
                least
            }
            Err(error) => {
                fault(
                    flag,
                    variable,
                    format!("{text:?} is not a duration ({error}): write a number and a unit, such as 30s, 5m or 1h"),
                );
                least
            }
        };
        let second = Duration::from_secs(1);
        let max_timeout = duration(&self.max_timeout, "--max-timeout", "SKILLYARD_MAX_TIMEOUT", second);
        let drain_timeout = duration(&self.drain_timeout, "--drain-timeout", "SKILLYARD_DRAIN_TIMEOUT", Duration::ZERO);
        let keep_finished = duration(&self.keep_finished, "--keep-finished", "SKILLYARD_KEEP_FINISHED", Duration::ZERO);
        let max_catalog_age = duration(&self.max_catalog_age, "--max-catalog-age", "SKILLYARD_MAX_CATALOG_AGE", second);
        let journal_max_age = duration(&self.journal_max_age, "--journal-max-age", "SKILLYARD_JOURNAL_MAX_AGE", second);
        let mut number =
            |text: Option<&String>, flag, variable, range: std::ops::RangeInclusive<usize>, otherwise| match text
                .map(|text| (text, text.parse::<usize>()))
            {
                None => otherwise,
                Some((_, Ok(n))) if range.contains(&n) => n,
                Some((text, _)) => {
                    fault(
                        flag,
                        variable,
                        format!("{text:?} is not a number from {} to {}", range.start(), range.end()),
                    );
                    otherwise
                }
            };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let slots = number(self.slots.as_ref(), "--slots", "SKILLYARD_SLOTS", 1..=MAX_SLOTS, 4 * cores);
        let queue = number(self.queue.as_ref(), "--queue", "SKILLYARD_QUEUE", 0..=MAX_QUEUE, 16 * slots);
        let journal_max_bytes = number(
            Some(&self.journal_max_bytes),
            "--journal-max-bytes",
            "SKILLYARD_JOURNAL_MAX_BYTES",
            MIN_JOURNAL_BYTES..=usize::MAX,
            MIN_JOURNAL_BYTES,
        );
        let limits = self.limits.check(&mut fault);
        let log_format = match self.log_format.as_str() {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            other => {
                fault("--log-format", "SKILLYARD_LOG_FORMAT", format!("{other:?} is not a format: write text or json"));
                LogFormat::Text
            }
        };
        if let Err(error) = telemetry::filter(&self.log) {
            fault("--log", "SKILLYARD_LOG", error.to_string());
        }
        let export = Export::check(self.otlp_endpoint.as_deref(), &self.otlp_service_name).unwrap_or_else(|what| {
            fault("--otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", what);
            Export::default()
        });
        let state_dir = self.state_dir.unwrap_or_else(default_state_dir);
        if !state_dir.is_absolute() {
            fault(
                "--state-dir",
                "SKILLYARD_EXECUTOR_STATE",
                format!("{} is relative: write an absolute path", state_dir.display()),
            );
        }
        let secrets = [given(&self.access.tls_key), options.token_file.clone(), options.key.clone()];
        let mut found = Vec::new();
        let isolation = self.isolation.check(&state_dir, secrets.into_iter().flatten().collect(), &mut found);
        found.into_iter().for_each(|(flag, variable, what)| fault(flag, variable, what));
        match (listen, access, registry) {
            (Some(listen), Ok(access), Ok(registry)) if faults.is_empty() => Ok(Config {
                listen,
                access,
                advertise: self.advertise.filter(|text| !text.is_empty()),
                registry,
                name: self.name.filter(|text| !text.is_empty()).unwrap_or_else(host_name),
                state_dir,
                slots,
                queue,
                max_timeout,
                drain_timeout,
                keep_finished,
                max_catalog_age,
                limits,
                journal_max_age,
                journal_max_bytes,
                default_agent: self.default_agent.unwrap_or_default(),
                admin_listen,
                log: self.log,
                log_format,
                export,
                slot_program: self.slot_program,
                isolation,
                environment: std::env::vars_os()
                    .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                    .collect(),
            }),
            _ => Err(Faults(faults)),
        }
    }
}

impl AccessFlags {
    /// An empty variable is one that is not set.
    fn options(&self) -> AccessOptions {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        AccessOptions {
            tokens_file: given(&self.tokens_file),
            callers_file: given(&self.callers_file),
            tls_cert: given(&self.tls_cert),
            tls_key: given(&self.tls_key),
            client_ca: given(&self.client_ca),
            insecure: self.insecure,
        }
    }
}

fn access_variable(flag: &str) -> &'static str {
    match flag {
        "--tokens-file" => "SKILLYARD_EXECUTOR_TOKENS_FILE",
        "--callers-file" => "SKILLYARD_EXECUTOR_CALLERS_FILE",
        "--tls-cert" => "SKILLYARD_EXECUTOR_TLS_CERT",
        "--tls-key" => "SKILLYARD_EXECUTOR_TLS_KEY",
        "--client-ca" => "SKILLYARD_EXECUTOR_CLIENT_CA",
        _ => "SKILLYARD_EXECUTOR_LISTEN",
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn default_state_dir() -> PathBuf {
    let system = PathBuf::from("/var/lib/skillyard");
    let parent_or_self = if system.exists() { system.as_path() } else { std::path::Path::new("/var/lib") };
    if rustix::fs::access(parent_or_self, rustix::fs::Access::WRITE_OK).is_ok() {
        return system;
    }
    PathBuf::from(format!("/var/tmp/skillyard-{}", rustix::process::geteuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flags: &[&str]) -> Result<Config, Faults> {
        Cli::parse_from(std::iter::once(&"executor-svc").chain(flags)).flags.check()
    }

    #[test]
    fn defaults() {
        let config = check(&["--slots", "3"]).unwrap();
        assert_eq!((config.slots, config.queue, config.drain_timeout), (3, 48, Duration::from_secs(30)));
        assert!(!config.name.is_empty());
    }

    #[test]
    fn every_fault_at_once() {
        let Faults(faults) = check(&[
            "--listen",
            "0.0.0.0:1",
            "--registry",
            "ftp://x",
            "--slots",
            "0",
            "--queue=-1",
            "--max-timeout",
            "1",
            "--drain-timeout",
            "x",
            "--log-format",
            "xml",
            "--log",
            "a=b=c",
            "--state-dir",
            "here",
        ])
        .unwrap_err();
        let flags: Vec<_> = faults.iter().map(|fault| fault.flag).collect();
        assert_eq!(
            flags,
            [
                "--listen",
                "--registry",
                "--max-timeout",
                "--drain-timeout",
                "--slots",
                "--queue",
                "--log-format",
                "--log",
                "--state-dir",
            ]
        );
        assert!(faults.iter().all(|fault| fault.variable.starts_with("SKILLYARD_")));
    }
}
