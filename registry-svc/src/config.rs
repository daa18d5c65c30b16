//! What the registry is told: flags and environment variables, checked once, every fault at once. Nothing else reads the
//! environment.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use skillyard::service::access::{Access, AccessOptions};
use skillyard::service::export::Export;
use skillyard::service::telemetry::{self, LogFormat};

use crate::check::{self, CheckArgs};
use crate::client::ApprovalsArgs;
use crate::client::runs::RunsArgs;
use crate::source::{self, Host, Layout, Tier};
use crate::store::Database;
use crate::store::approval::Signers;
use crate::store::history::Retention;
use crate::token::TokenCommand;

/// The exit code for a command line that cannot be used.
const USAGE: u8 = 64;
const DEFAULT_LISTEN: &str = "127.0.0.1:50051";
const DEFAULT_TIER: &str = "free";
const DEFAULT_RESCAN: &str = "30s";
const DEFAULT_APPROVALS_KEEP: &str = "30d";
const DEFAULT_LOG: &str = "info";
const DEFAULT_LOG_FORMAT: &str = "text";
const DEFAULT_OTLP_SERVICE_NAME: &str = "skillyard-registry";
const DEFAULT_HISTORY_AGE: &str = "30d";
const DEFAULT_HISTORY_RECORDS: &str = "1000000";
/// How long records of runs are kept.
const HISTORY_AGE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// How long approvals that have ended are kept.
const KEEP: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60 * 60)..=Duration::from_secs(3650 * 24 * 60 * 60);
/// Between two rescans: a rescan of many skills takes a part of a second.
const RESCAN: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 60 * 60);

mod admin;

pub use admin::{Publish, Pull, SyncArgs};

/// A configuration that can be served.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Who may call.
    pub access: Access,
    /// Where skills and agents are.
    pub layout: Layout,
    /// What playbooks' requirements are held against.
    pub host: Host,
    /// On whose behalf a call without an agent is answered.
    pub default_agent: Option<String>,
    /// Between two looks at files that nothing was heard of.
    pub rescan_interval: Duration,
    /// Where approvals are kept.
    pub database: Database,
    /// How long those that have ended are kept, from when they were asked for.
    pub approvals_keep: Duration,
    /// Who may sign them.
    pub signers: Signers,
    /// Where the admin port is.
    pub admin_listen: Option<SocketAddr>,
    /// How long records of runs are kept, and how many.
    pub history: Retention,
    /// From where playbooks come, if from anywhere.
    pub pull: Option<Pull>,
    /// Where the own ones are published, if anywhere.
    pub publish: Option<Publish>,
    /// Where spans go.
    pub export: Export,
}

/// Finds the skills of LLM agents, decides who may see and run which, and tells everyone else.
///
/// Without a subcommand it serves.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "registry-svc", version, args_override_self = true, args_conflicts_with_subcommands = true)]
pub struct Raw {
    /// What else it does.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Address to listen on; without identities a loopback address [default: 127.0.0.1:50051]
    #[arg(long, env = "SKILLYARD_REGISTRY_LISTEN", value_name = "IP:PORT")]
    listen: Option<OsString>,
    /// Roots of subprocess skills (skill.json), absolute, separated by ':' or ','
    #[arg(long, env = "ONGRID_SKILLS_EXTERNAL_DIRS", value_name = "DIRS")]
    external_dirs: Option<OsString>,
    /// Roots of playbooks (SKILL.md) that beat all others, absolute, separated by ':'; for tests and development
    #[arg(long, env = "OMICOS_SKILL_ROOTS", value_name = "DIRS")]
    skill_roots: Option<OsString>,
    /// The mirror of an admin server, whose playbooks are in skills/ [default: ~/.omicos/cloud-skills]
    #[arg(long, env = "OMICOS_SKILLS_CACHE_DIR", value_name = "DIR")]
    cloud_dir: Option<OsString>,
    /// The workspace, whose playbooks are in skills/ and .omicos/skills/; from tier lab on
    #[arg(long, env = "SKILLYARD_WORKSPACE", value_name = "DIR")]
    workspace: Option<OsString>,
    /// The entitlement: community = free < plus < pro < lab < ent = enterprise [default: free]
    #[arg(long, env = "SKILLYARD_TIER", value_name = "TIER")]
    tier: Option<OsString>,
    /// The agents' files, Markdown with frontmatter
    #[arg(long, env = "SKILLYARD_AGENTS_DIR", value_name = "DIR")]
    agents_dir: Option<OsString>,
    /// The agent of a call that names none; without it, such a call sees every skill and runs safe ones
    #[arg(long, env = "SKILLYARD_DEFAULT_AGENT", value_name = "AGENT")]
    default_agent: Option<OsString>,
    /// Between two looks at all files, 1s to 24h; most changes are seen at once [default: 30s]
    #[arg(long, env = "SKILLYARD_RESCAN_INTERVAL", value_name = "TIME")]
    rescan_interval: Option<OsString>,
    /// Whose tokens are known: lines `IDENTITY sha256:HEX`; followed when it changes
    #[arg(long, env = "SKILLYARD_REGISTRY_TOKENS_FILE", value_name = "FILE")]
    tokens_file: Option<OsString>,
    /// What each caller may do (YAML or JSON); needed with --tokens-file and --client-ca, followed like them
    #[arg(long, env = "SKILLYARD_REGISTRY_CALLERS_FILE", value_name = "FILE")]
    callers_file: Option<OsString>,
    /// The certificate chain to serve TLS with, PEM; followed when it is rotated
    #[arg(long, env = "SKILLYARD_REGISTRY_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<OsString>,
    /// Its key, PEM
    #[arg(long, env = "SKILLYARD_REGISTRY_TLS_KEY", value_name = "FILE")]
    tls_key: Option<OsString>,
    /// Who signs the certificates of clients, PEM: their URI and DNS names are looked up in the callers file
    #[arg(long, env = "SKILLYARD_REGISTRY_CLIENT_CA", value_name = "FILE")]
    client_ca: Option<OsString>,
    /// Serve whoever reaches the address, without identities
    #[arg(long, env = "SKILLYARD_REGISTRY_INSECURE", value_parser = clap::builder::FalseyValueParser::new())]
    insecure: bool,
    /// Where the database is kept; locked [default: /var/lib/skillyard/registry if writable, else
    /// /var/tmp/skillyard-UID/registry]
    #[arg(long, env = "SKILLYARD_REGISTRY_STATE", value_name = "DIR")]
    state_dir: Option<OsString>,
    /// postgres://USER:PASSWORD@HOST/DATABASE, for several registries [default: SQLite in the state directory]
    #[arg(long, env = "SKILLYARD_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: Option<OsString>,
    /// How long approvals that have ended are kept, from when they were asked for; 1h to 3650d [default: 30d]
    #[arg(long, env = "SKILLYARD_APPROVALS_KEEP", value_name = "TIME")]
    approvals_keep: Option<OsString>,
    /// The approvers who may sign for mutating skills, separated by ',' [default: all of them]
    #[arg(long, env = "SKILLYARD_SIGNERS_MUTATING", value_name = "NAMES")]
    signers_mutating: Option<OsString>,
    /// The approvers who may sign for dangerous skills, separated by ',' [default: all of them]
    #[arg(long, env = "SKILLYARD_SIGNERS_DANGEROUS", value_name = "NAMES")]
    signers_dangerous: Option<OsString>,
    /// Address of the admin port, /livez, /readyz and /metrics over plain HTTP [default: none]
    #[arg(long, env = "SKILLYARD_REGISTRY_ADMIN_LISTEN", value_name = "ADDRESS")]
    admin_listen: Option<OsString>,
    /// How long records of runs are kept, from 1m on [default: 30d]
    #[arg(long, env = "SKILLYARD_HISTORY_MAX_AGE", value_name = "TIME")]
    history_max_age: Option<OsString>,
    /// How many records of runs are kept; the oldest go first [default: 1000000]
    #[arg(long, env = "SKILLYARD_HISTORY_MAX_RECORDS", value_name = "N")]
    history_max_records: Option<OsString>,
    #[command(flatten)]
    admin: admin::ServeArgs,
    /// What is logged: error, warn, info, debug, trace, or target=level between commas [default: info]
    #[arg(long, env = "SKILLYARD_LOG", value_name = "FILTER")]
    log: Option<OsString>,
    /// How it is logged: text or json [default: text]
    #[arg(long, env = "SKILLYARD_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<OsString>,
    /// Where spans are exported to: a collector that takes OTLP by gRPC; in programs built with the feature otlp [default: none]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<OsString>,
    /// The name of the service in spans [default: skillyard-registry]
    #[arg(long, env = "OTEL_SERVICE_NAME", value_name = "NAME")]
    otlp_service_name: Option<OsString>,
    /// Where the default of --cloud-dir lies.
    #[arg(skip = std::env::var_os("HOME"))]
    home: Option<OsString>,
    /// Where playbooks' programs are looked for.
    #[arg(skip = std::env::var_os("PATH"))]
    path: Option<OsString>,
    /// What is set, without the values: settings that playbooks need.
    #[arg(skip = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect::<Vec<_>>())]
    variables: Vec<String>,
}

/// What the binary does but serve.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Makes and hashes bearer tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Says what is wrong with skills before a registry does
    Check(CheckArgs),
    /// Asks for, lists, shows and signs approvals
    Approvals(Box<ApprovalsArgs>),
    /// Lists and shows what ran
    Runs(Box<RunsArgs>),
    /// Mirrors the playbooks of an admin server once
    Sync(SyncArgs),
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} ({variable}) is {value:?}: {advice}")]
pub struct Fault {
    flag: &'static str,
    variable: &'static str,
    value: String,
    advice: String,
}

impl Raw {
    /// What the command line and the environment say.
    ///
    /// # Errors
    /// They cannot be used, or ask for help: the answer is written, and this is the exit code.
    pub fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            let is_check = std::env::args_os().nth(1).is_some_and(|first| first == "check");
            let code = match error.use_stderr() {
                false => 0,
                true if is_check => check::USAGE,
                true => USAGE,
            };
            error.print().map_or(ExitCode::FAILURE, |()| ExitCode::from(code))
        })
    }

    /// The host that skills are looked at on.
    #[must_use]
    pub fn host(&self) -> Host {
        Host::new(self.path.as_deref().unwrap_or_default(), self.variables.iter().cloned())
    }

    /// How faults are told.
    #[must_use]
    pub fn log_format(&self) -> LogFormat {
        Checker::default().log_format(self).unwrap_or_default()
    }

    /// Starts logging, once [`Config::check`] has found nothing wrong.
    pub fn start_logging(&self) {
        let mut checker = Checker::default();
        telemetry::init(self.log_format(), checker.log_filter(self).unwrap_or(DEFAULT_LOG));
    }
}

impl Config {
    /// Checks everything that was given.
    ///
    /// # Errors
    /// All faults, in the order of the flags.
    pub fn check(raw: &Raw) -> Result<Self, Vec<Fault>> {
        let mut checker = Checker::default();
        let listen = checker.listen(raw);
        let access = checker.access(raw, listen.as_ref());
        let external_dirs = checker.directories(EXTERNAL_DIRS.of(&raw.external_dirs), source::split_dirs);
        let skill_roots = checker.directories(SKILL_ROOTS.of(&raw.skill_roots), source::split_roots);
        let workspace = checker.directory(WORKSPACE.of(&raw.workspace));
        let tier = checker.tier(TIER.or(&raw.tier, DEFAULT_TIER));
        let agents_dir = checker.directory(AGENTS_DIR.of(&raw.agents_dir));
        let default_agent = checker.default_agent(raw);
        let rescan_interval = checker.rescan_interval(raw);
        let database = checker.database(raw);
        let approvals_keep = checker.approvals_keep(raw);
        let mutating = checker.signers(SIGNERS_MUTATING.of(&raw.signers_mutating));
        let dangerous = checker.signers(SIGNERS_DANGEROUS.of(&raw.signers_dangerous));
        let admin_listen = ADMIN_LISTEN.of(&raw.admin_listen).and_then(|given| checker.address(given));
        let history = checker.history(raw);
        let cloud_dir = cloud_dir_of(&raw.cloud_dir, &raw.home);
        let pull = checker.pull(&raw.admin, cloud_dir.clone(), tier);
        let publish = checker.publish(&raw.admin, raw.insecure);
        checker.log_filter(raw);
        checker.log_format(raw);
        let export = checker.export(raw);
        let kept = approvals_keep.zip(history);
        match (listen, tier, rescan_interval, access, database, kept) {
            (Some(listen), Some(tier), Some(rescan_interval), Some(access), Some(database), Some(kept))
                if checker.faults.is_empty() =>
            {
                let layout = Layout { external_dirs, skill_roots, cloud_dir, workspace, tier, agents_dir };
                let signers = Signers { mutating, dangerous };
                let host = raw.host();
                let (approvals_keep, history) = kept;
                Ok(Self {
                    listen,
                    access,
                    layout,
                    host,
                    default_agent,
                    rescan_interval,
                    database,
                    approvals_keep,
                    signers,
                    admin_listen,
                    history,
                    pull,
                    publish,
                    export,
                })
            }
            _ => Err(checker.faults),
        }
    }
}

/// Other programs use it too: where it is wrong it is a root that is skipped, not a fault.
fn cloud_dir_of(cloud_dir: &Option<OsString>, home: &Option<OsString>) -> Option<PathBuf> {
    let given = cloud_dir.as_ref().filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = home.as_ref().filter(|value| !value.is_empty()).map(PathBuf::from);
    given.or_else(|| Some(home?.join(".omicos/cloud-skills")))
}

/// Beside what an executor of this host keeps there.
fn default_state_dir() -> PathBuf {
    let system = Path::new("/var/lib/skillyard");
    let parent_or_self = if system.exists() { system } else { Path::new("/var/lib") };
    let directory = if rustix::fs::access(parent_or_self, rustix::fs::Access::WRITE_OK).is_ok() {
        system.to_owned()
    } else {
        PathBuf::from(format!("/var/tmp/skillyard-{}", rustix::process::geteuid().as_raw()))
    };
    directory.join("registry")
}

/// A flag and its variable.
#[derive(Clone, Copy)]
struct Name(&'static str, &'static str);

const LISTEN: Name = Name("--listen", "SKILLYARD_REGISTRY_LISTEN");
const EXTERNAL_DIRS: Name = Name("--external-dirs", "ONGRID_SKILLS_EXTERNAL_DIRS");
const SKILL_ROOTS: Name = Name("--skill-roots", "OMICOS_SKILL_ROOTS");
const WORKSPACE: Name = Name("--workspace", "SKILLYARD_WORKSPACE");
const TIER: Name = Name("--tier", "SKILLYARD_TIER");
const AGENTS_DIR: Name = Name("--agents-dir", "SKILLYARD_AGENTS_DIR");
const DEFAULT_AGENT: Name = Name("--default-agent", "SKILLYARD_DEFAULT_AGENT");
const RESCAN_INTERVAL: Name = Name("--rescan-interval", "SKILLYARD_RESCAN_INTERVAL");
const TOKENS_FILE: Name = Name("--tokens-file", "SKILLYARD_REGISTRY_TOKENS_FILE");
const CALLERS_FILE: Name = Name("--callers-file", "SKILLYARD_REGISTRY_CALLERS_FILE");
const TLS_CERT: Name = Name("--tls-cert", "SKILLYARD_REGISTRY_TLS_CERT");
const TLS_KEY: Name = Name("--tls-key", "SKILLYARD_REGISTRY_TLS_KEY");
const CLIENT_CA: Name = Name("--client-ca", "SKILLYARD_REGISTRY_CLIENT_CA");
const STATE_DIR: Name = Name("--state-dir", "SKILLYARD_REGISTRY_STATE");
const DATABASE_URL: Name = Name("--database-url", "SKILLYARD_DATABASE_URL");
const APPROVALS_KEEP: Name = Name("--approvals-keep", "SKILLYARD_APPROVALS_KEEP");
const SIGNERS_MUTATING: Name = Name("--signers-mutating", "SKILLYARD_SIGNERS_MUTATING");
const SIGNERS_DANGEROUS: Name = Name("--signers-dangerous", "SKILLYARD_SIGNERS_DANGEROUS");
const ADMIN_LISTEN: Name = Name("--admin-listen", "SKILLYARD_REGISTRY_ADMIN_LISTEN");
const HISTORY_MAX_AGE: Name = Name("--history-max-age", "SKILLYARD_HISTORY_MAX_AGE");
const HISTORY_MAX_RECORDS: Name = Name("--history-max-records", "SKILLYARD_HISTORY_MAX_RECORDS");
const LOG: Name = Name("--log", "SKILLYARD_LOG");
const LOG_FORMAT: Name = Name("--log-format", "SKILLYARD_LOG_FORMAT");
const OTLP_ENDPOINT: Name = Name("--otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT");
const OTLP_SERVICE_NAME: Name = Name("--otlp-service-name", "OTEL_SERVICE_NAME");

/// What stands behind a flag or in its variable.
#[derive(Clone, Copy)]
struct Given<'a> {
    name: Name,
    value: &'a OsStr,
}

impl Name {
    /// An empty variable is one that is not set.
    fn of(self, value: &Option<OsString>) -> Option<Given<'_>> {
        let value = value.as_deref().filter(|value| !value.is_empty())?;
        Some(Given { name: self, value })
    }

    fn or<'a>(self, value: &'a Option<OsString>, default: &'static str) -> Given<'a> {
        self.of(value).unwrap_or(Given { name: self, value: OsStr::new(default) })
    }
}

/// Each check gives a value, or adds a fault.
#[derive(Default)]
struct Checker {
    faults: Vec<Fault>,
}

impl Checker {
    fn listen(&mut self, raw: &Raw) -> Option<SocketAddr> {
        self.address(LISTEN.or(&raw.listen, DEFAULT_LISTEN))
    }

    fn address(&mut self, given: Given<'_>) -> Option<SocketAddr> {
        match self.text(given)?.parse() {
            Ok(address) => Some(address),
            Err(_) => self.fault(given, "write an IP address and a port, as in 127.0.0.1:50051 or [::1]:50051"),
        }
    }

    /// Who may call: the files that say so are read here, and followed from now on.
    fn access(&mut self, raw: &Raw, listen: Option<&SocketAddr>) -> Option<Access> {
        let path = |name: Name, value| name.of(value).map(|given| PathBuf::from(given.value));
        let options = AccessOptions {
            tokens_file: path(TOKENS_FILE, &raw.tokens_file),
            callers_file: path(CALLERS_FILE, &raw.callers_file),
            tls_cert: path(TLS_CERT, &raw.tls_cert),
            tls_key: path(TLS_KEY, &raw.tls_key),
            client_ca: path(CLIENT_CA, &raw.client_ca),
            insecure: raw.insecure,
        };
        let faults = match Access::check(&options, listen) {
            Ok(access) => return Some(access),
            Err(faults) => faults,
        };
        for fault in faults {
            let (name, value) = match fault.flag {
                "--tokens-file" => (TOKENS_FILE, &raw.tokens_file),
                "--callers-file" => (CALLERS_FILE, &raw.callers_file),
                "--tls-cert" => (TLS_CERT, &raw.tls_cert),
                "--tls-key" => (TLS_KEY, &raw.tls_key),
                "--client-ca" => (CLIENT_CA, &raw.client_ca),
                _ => (LISTEN, &raw.listen),
            };
            self.fault::<()>(name.or(value, ""), fault.what);
        }
        None
    }

    fn tier(&mut self, given: Given<'_>) -> Option<Tier> {
        match self.text(given)?.parse() {
            Ok(tier) => Some(tier),
            Err(_) => self.fault(given, "write community, free, plus, pro, lab, ent or enterprise"),
        }
    }

    /// What is wrong with one of several roots is said in the load report.
    fn directories(&mut self, given: Option<Given<'_>>, split: fn(&str) -> Vec<PathBuf>) -> Vec<PathBuf> {
        let text = given.and_then(|given| self.text(given)).unwrap_or_default();
        split(text)
    }

    fn directory(&mut self, given: Option<Given<'_>>) -> Option<PathBuf> {
        let given = given?;
        let path = PathBuf::from(given.value);
        if path.is_absolute() { Some(path) } else { self.fault(given, "it is relative; write an absolute path") }
    }

    fn default_agent(&mut self, raw: &Raw) -> Option<String> {
        let given = DEFAULT_AGENT.of(&raw.default_agent)?;
        if AGENTS_DIR.of(&raw.agents_dir).is_none() {
            return self.fault(
                given,
                "there is no agent without --agents-dir (SKILLYARD_AGENTS_DIR); give the directory of its file",
            );
        }
        self.text(given).map(ToOwned::to_owned)
    }

    fn rescan_interval(&mut self, raw: &Raw) -> Option<Duration> {
        self.time(RESCAN_INTERVAL.or(&raw.rescan_interval, DEFAULT_RESCAN), &RESCAN)
    }

    fn time(&mut self, given: Given<'_>, allowed: &std::ops::RangeInclusive<Duration>) -> Option<Duration> {
        match humantime::parse_duration(self.text(given)?) {
            Ok(interval) if allowed.contains(&interval) => Some(interval),
            Ok(_) => self.fault(given, "write a time from 1s to 24h"),
            Err(error) => self.fault(given, format!("{error}; write a time from 1s to 24h, as in 30s or 5m")),
        }
    }

    fn database(&mut self, raw: &Raw) -> Option<Database> {
        let directory = match STATE_DIR.of(&raw.state_dir) {
            None => Some(default_state_dir()),
            Some(given) => self.directory(Some(given)),
        };
        match DATABASE_URL.of(&raw.database_url) {
            None => directory.map(Database::Directory),
            Some(given) => match self.text(given)?.parse() {
                Ok(url) => Some(Database::Url(url)),
                // It may hold a password.
                Err(error) => self.fault(Given { value: OsStr::new("…"), ..given }, format!("{error}")),
            },
        }
    }

    fn approvals_keep(&mut self, raw: &Raw) -> Option<Duration> {
        let given = APPROVALS_KEEP.or(&raw.approvals_keep, DEFAULT_APPROVALS_KEEP);
        match humantime::parse_duration(self.text(given)?) {
            Ok(keep) if KEEP.contains(&keep) => Some(keep),
            Ok(_) => self.fault(given, "write a time from 1h to 3650d"),
            Err(error) => self.fault(given, format!("{error}; write a time from 1h to 3650d, as in 30d")),
        }
    }

    fn signers(&mut self, given: Option<Given<'_>>) -> Option<BTreeSet<String>> {
        let given = given?;
        let names: BTreeSet<_> =
            self.text(given)?.split(',').map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect();
        if names.is_empty() {
            self.fault(given, "it names nobody; write identities, separated by ','")
        } else {
            Some(names)
        }
    }

    fn history(&mut self, raw: &Raw) -> Option<Retention> {
        let given = HISTORY_MAX_AGE.or(&raw.history_max_age, DEFAULT_HISTORY_AGE);
        let max_age = match self.text(given).map(humantime::parse_duration) {
            None => None,
            Some(Ok(age)) if HISTORY_AGE.contains(&age) => Some(age),
            Some(Ok(_)) => self.fault(given, "write a time from 1m to 100years"),
            Some(Err(error)) => self.fault(given, format!("{error}; write a time from 1m on, as in 30d or 12h")),
        };
        let given = HISTORY_MAX_RECORDS.or(&raw.history_max_records, DEFAULT_HISTORY_RECORDS);
        let max_records = match self.text(given).map(str::parse) {
            None => None,
            Some(Ok(records)) if records > 0 => Some(records),
            Some(_) => self.fault(given, "write a whole number above 0"),
        };
        Some(Retention { max_age: max_age?, max_records: max_records? })
    }

    fn log_filter<'a>(&mut self, raw: &'a Raw) -> Option<&'a str> {
        let given = LOG.or(&raw.log, DEFAULT_LOG);
        let text = self.text(given)?;
        match telemetry::filter(text) {
            Ok(_) => Some(text),
            Err(error) => self.fault(given, error.to_string()),
        }
    }

    fn log_format(&mut self, raw: &Raw) -> Option<LogFormat> {
        let given = LOG_FORMAT.or(&raw.log_format, DEFAULT_LOG_FORMAT);
        match self.text(given)? {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => self.fault(given, "write text or json"),
        }
    }

    fn export(&mut self, raw: &Raw) -> Export {
        let service = OTLP_SERVICE_NAME.or(&raw.otlp_service_name, DEFAULT_OTLP_SERVICE_NAME);
        let (Some(given), Some(service)) = (OTLP_ENDPOINT.of(&raw.otlp_endpoint), self.text(service)) else {
            return Export::default();
        };
        let export = self.text(given).map(|url| Export::check(Some(url), service));
        match export {
            Some(Ok(export)) => export,
            Some(Err(advice)) => self.fault(given, advice).unwrap_or_default(),
            None => Export::default(),
        }
    }

    fn text<'a>(&mut self, given: Given<'a>) -> Option<&'a str> {
        given.value.to_str().or_else(|| self.fault(given, "it is not UTF-8; write it in UTF-8"))
    }

    fn fault<T>(&mut self, given: Given<'_>, advice: impl Into<String>) -> Option<T> {
        let Given { name: Name(flag, variable), value } = given;
        let value = value.to_string_lossy().into_owned();
        self.faults.push(Fault { flag, variable, value, advice: advice.into() });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    fn some(text: &str) -> Option<OsString> {
        Some(text.into())
    }

    #[test]
    fn defaults() {
        let config = Config::check(&Raw { home: some("/home/u"), tier: some(""), ..Raw::default() }).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:50051");
        assert_eq!(config.layout.cloud_dir, Some("/home/u/.omicos/cloud-skills".into()));
        assert_eq!(config.layout.tier.to_string(), "free");
        assert_eq!((config.layout.external_dirs.len(), config.layout.skill_roots.len()), (0, 0));
        assert_eq!((config.layout.workspace, config.layout.agents_dir, config.default_agent), (None, None, None));
        assert_eq!(config.rescan_interval, Duration::from_secs(30));
        assert_eq!(config.history, Retention::default());
        assert_eq!(Config::check(&Raw::default()).unwrap().layout.cloud_dir, None, "there is no home to look into");
    }

    #[test]
    fn every_fault_at_once_with_what_to_write() {
        let faults = Config::check(&Raw {
            listen: some("0.0.0.0:50051"),
            external_dirs: Some(OsString::from_vec(b"/a\xff".to_vec())),
            workspace: some("here"),
            tier: some("gold"),
            agents_dir: some("agents"),
            rescan_interval: some("0s"),
            state_dir: some("state"),
            database_url: some("mysql://root:secret@host/db"),
            approvals_keep: some("1s"),
            signers_mutating: some(" , "),
            history_max_age: some("30"),
            history_max_records: some("-1"),
            log: some("a=b=c"),
            log_format: some("xml"),
            ..Raw::default()
        })
        .unwrap_err();
        let flags: Vec<_> = faults.iter().map(|fault| fault.flag).collect();
        let all = [
            "--listen",
            "--external-dirs",
            "--workspace",
            "--tier",
            "--agents-dir",
            "--rescan-interval",
            "--state-dir",
            "--database-url",
            "--approvals-keep",
            "--signers-mutating",
            "--history-max-age",
            "--history-max-records",
            "--log",
            "--log-format",
        ];
        assert_eq!(flags, all);
        assert_eq!(
            faults[2].to_string(),
            r#"--workspace (SKILLYARD_WORKSPACE) is "here": it is relative; write an absolute path"#
        );
        assert!(!faults.iter().any(|fault| fault.to_string().contains("secret")));
    }

    #[test]
    fn where_it_may_listen() {
        let check = |listen| Config::check(&Raw { listen: some(listen), ..Raw::default() });
        for good in ["127.0.0.1:0", "127.8.0.1:1", "[::1]:50051", "[::ffff:127.0.0.1]:1"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "localhost:1", "127.0.0.1", ":50051", "127.0.0.1:70000"] {
            assert_eq!(check(bad).unwrap_err().len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_default_agent_needs_agents() {
        let alone = Raw { default_agent: some("a"), ..Raw::default() };
        assert_eq!(Config::check(&alone).unwrap_err()[0].flag, "--default-agent");
        let config = Config::check(&Raw { agents_dir: some("/agents"), ..alone }).unwrap();
        assert_eq!(config.default_agent.as_deref(), Some("a"));
    }

    #[test]
    fn where_approvals_are_kept_and_who_signs() {
        let config = Config::check(&Raw::default()).unwrap();
        assert!(matches!(config.database, Database::Directory(directory) if directory.ends_with("registry")));
        assert_eq!(config.signers, Signers::default());
        let url = "postgres://user:secret@db.example/skillyard";
        let raw = Raw { database_url: some(url), signers_dangerous: some("ann, bob,"), ..Raw::default() };
        let config = Config::check(&raw).unwrap();
        assert_eq!(config.database, Database::Url(url.parse().unwrap()));
        assert!(!format!("{config:?}").contains("secret"));
        assert_eq!(config.signers.dangerous, Some(["ann", "bob"].map(String::from).into()));
        for bad in ["postgres", "sqlite:relative.db", "http://host/", "/var/lib/x.db"] {
            assert!(bad.parse::<crate::store::DatabaseUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn roots_as_they_are_separated() {
        let raw = Raw { external_dirs: some("/a:/b,/c"), skill_roots: some("/d:/e,f"), ..Raw::default() };
        let layout = Config::check(&raw).unwrap().layout;
        assert_eq!(layout.external_dirs, ["/a", "/b", "/c"].map(PathBuf::from));
        assert_eq!(layout.skill_roots, ["/d", "/e,f"].map(PathBuf::from));
    }
}
