//! The flags about admin servers: from where the mirror is synced, and where the own playbooks are published.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;
use reqwest::Url;
use skillyard::service::serve::is_loopback;

use super::{Checker, Fault, Given, Name, TIER, cloud_dir_of};
use crate::admin::publish::Readers;
use crate::admin::{Limits, Puller, Server};
use crate::source::Tier;

const DEFAULT_INTERVAL: &str = "5m";
const INTERVAL: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 60 * 60);

const ADMIN_URL: Name = Name("--admin-url", "SKILLYARD_ADMIN_URL");
const ADMIN_INTERVAL: Name = Name("--admin-interval", "SKILLYARD_ADMIN_INTERVAL");
const ADMIN_TOKEN_FILE: Name = Name("--admin-token-file", "SKILLYARD_ADMIN_TOKEN_FILE");
const ADMIN_CA: Name = Name("--admin-ca", "SKILLYARD_ADMIN_CA");
const CLOUD_DIR: Name = Name("--cloud-dir", "OMICOS_SKILLS_CACHE_DIR");
const PUBLISH_LISTEN: Name = Name("--publish-listen", "SKILLYARD_PUBLISH_LISTEN");
const PUBLISH_TOKENS_FILE: Name = Name("--publish-tokens-file", "SKILLYARD_PUBLISH_TOKENS_FILE");

/// From where the mirror is synced.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct PullArgs {
    /// The admin server whose playbooks are mirrored into --cloud-dir: http(s)://HOST[:PORT][/PATH]
    #[arg(long, env = "SKILLYARD_ADMIN_URL", value_name = "URL")]
    pub(super) admin_url: Option<OsString>,
    /// A file with the token that the admin server is shown; read again for every sync
    #[arg(long, env = "SKILLYARD_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub(super) admin_token_file: Option<OsString>,
    /// Who signs the admin server's certificate, PEM [default: those that the system trusts]
    #[arg(long, env = "SKILLYARD_ADMIN_CA", value_name = "FILE")]
    pub(super) admin_ca: Option<OsString>,
    /// Fetch nothing and remove nothing: what is mirrored stays as it is
    #[arg(long, env = "OMICOS_AGENTS_OFFLINE", value_parser = FalseyValueParser::new())]
    pub(super) offline: bool,
    /// Believe an admin server that has changed its version and publishes nothing, and empty the mirror
    #[arg(long, env = "SKILLYARD_ALLOW_EMPTY", value_parser = FalseyValueParser::new())]
    pub(super) allow_empty: bool,
}

/// What only a registry that serves is told.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    pub(super) pull: PullArgs,
    /// Between two syncs, 1s to 24h [default: 5m]
    #[arg(long, env = "SKILLYARD_ADMIN_INTERVAL", value_name = "TIME")]
    pub(super) admin_interval: Option<OsString>,
    /// Address to publish the own playbooks on, as an admin server does (HTTP); with --tls-cert by TLS
    #[arg(long, env = "SKILLYARD_PUBLISH_LISTEN", value_name = "IP:PORT")]
    pub(super) publish_listen: Option<OsString>,
    /// Who may read what is published: lines `TIER sha256:HEX`; followed when it changes
    #[arg(long, env = "SKILLYARD_PUBLISH_TOKENS_FILE", value_name = "FILE")]
    pub(super) publish_tokens_file: Option<OsString>,
}

/// What `registry-svc sync` is told.
#[derive(Clone, Debug, Default, Args)]
pub struct SyncArgs {
    #[command(flatten)]
    pull: PullArgs,
    /// Where the mirror is [default: ~/.omicos/cloud-skills]
    #[arg(long, env = "OMICOS_SKILLS_CACHE_DIR", value_name = "DIR")]
    cloud_dir: Option<OsString>,
    /// The entitlement: community = free < plus < pro < lab < ent = enterprise [default: free]
    #[arg(long, env = "SKILLYARD_TIER", value_name = "TIER")]
    tier: Option<OsString>,
    /// Where the default of --cloud-dir lies.
    #[arg(skip = std::env::var_os("HOME"))]
    home: Option<OsString>,
}

/// Syncs while serving.
#[derive(Clone, Debug)]
pub struct Pull {
    /// What is synced.
    pub puller: Puller,
    /// Between two syncs.
    pub interval: Duration,
}

/// Publishes while serving.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Who may read.
    pub readers: Readers,
}

impl SyncArgs {
    /// Checks everything that was given; `None` where it is offline, so that there is nothing to do.
    ///
    /// # Errors
    /// All faults.
    pub fn check(&self) -> Result<Option<Puller>, Vec<Fault>> {
        let mut checker = Checker::default();
        let tier = checker.tier(TIER.or(&self.tier, super::DEFAULT_TIER));
        let cloud_dir = cloud_dir_of(&self.cloud_dir, &self.home);
        if ADMIN_URL.of(&self.pull.admin_url).is_none() && !self.pull.offline {
            let given = ADMIN_URL.or(&self.pull.admin_url, "");
            checker.fault::<()>(given, "there is nothing to sync from: give the URL of the admin server");
        }
        let puller = checker.puller(&self.pull, cloud_dir, tier);
        if checker.faults.is_empty() { Ok(puller) } else { Err(checker.faults) }
    }
}

impl Checker {
    /// When and from where is synced; `None` also where that is switched off.
    pub(super) fn pull(&mut self, args: &ServeArgs, cloud_dir: Option<PathBuf>, tier: Option<Tier>) -> Option<Pull> {
        let given = ADMIN_INTERVAL.or(&args.admin_interval, DEFAULT_INTERVAL);
        let interval = self.time(given, &INTERVAL);
        let puller = self.puller(&args.pull, cloud_dir, tier);
        Some(Pull { puller: puller?, interval: interval? })
    }

    fn puller(&mut self, args: &PullArgs, cloud_dir: Option<PathBuf>, tier: Option<Tier>) -> Option<Puller> {
        let given = ADMIN_URL.of(&args.admin_url)?;
        let Some(url) = self.text(given)?.parse::<Url>().ok().filter(is_plain) else {
            // It may hold a password.
            let advice =
                "write http(s)://HOST[:PORT][/PATH], without a user, ? and #; a token goes into --admin-token-file";
            return self.fault(Given { value: "…".as_ref(), ..given }, advice);
        };
        let token_file = self.readable(ADMIN_TOKEN_FILE, &args.admin_token_file);
        let ca = self.readable(ADMIN_CA, &args.admin_ca);
        if url.scheme() == "http" && ca.is_some() {
            let advice = "the admin server's URL is not encrypted: write https://, or leave this out";
            self.fault::<()>(ADMIN_CA.or(&args.admin_ca, ""), advice);
        }
        let given = CLOUD_DIR.or(&None, "");
        let Some(cloud_dir) = cloud_dir else {
            return self.fault(given, "there is no place for the mirror: give its directory");
        };
        if !cloud_dir.is_absolute() {
            let given = Given { value: cloud_dir.as_os_str(), ..given };
            return self.fault(given, "it is relative; write an absolute path");
        }
        let server = Server { url, token_file, ca, limits: Limits::default() };
        let puller = Puller { server, cloud_dir, tier: tier?, allow_empty: args.allow_empty };
        (!args.offline).then_some(puller)
    }

    /// A file that is read later.
    fn readable(&mut self, name: Name, value: &Option<OsString>) -> Option<PathBuf> {
        let given = name.of(value)?;
        match std::fs::File::open(given.value) {
            Ok(_) => Some(PathBuf::from(given.value)),
            Err(error) => self.fault(given, format!("it cannot be read: {error}")),
        }
    }

    /// Where and to whom is published.
    pub(super) fn publish(&mut self, args: &ServeArgs, insecure: bool) -> Option<Publish> {
        let file = PUBLISH_TOKENS_FILE.of(&args.publish_tokens_file);
        let readers = match file {
            None => Some(Readers::Anybody),
            Some(given) => match Readers::of_file(given.value.as_ref()) {
                Ok(readers) => Some(readers),
                Err(error) => self.fault(given, error.to_string()),
            },
        };
        let Some(given) = PUBLISH_LISTEN.of(&args.publish_listen) else {
            if let Some(given) = file {
                self.fault::<()>(given, "nothing is published without --publish-listen: give it too");
            }
            return None;
        };
        let listen = match self.text(given)?.parse::<SocketAddr>() {
            Ok(address) => address,
            Err(_) => return self.fault(given, "write an IP address and a port, as in 127.0.0.1:8080 or [::1]:8080"),
        };
        if !is_loopback(&listen) && file.is_none() && !insecure {
            return self.fault(
                given,
                "it is reached from other hosts: give --publish-tokens-file, or a loopback address; --insecure \
                 publishes what is for tier free to everybody who reaches it",
            );
        }
        Some(Publish { listen, readers: readers? })
    }
}

fn is_plain(url: &Url) -> bool {
    let bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    matches!(url.scheme(), "http" | "https") && url.has_host() && bare && url.fragment().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(text: &str) -> Option<OsString> {
        Some(text.into())
    }

    fn check(args: &SyncArgs) -> Result<Option<Puller>, Vec<String>> {
        args.check().map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn where_to_sync_from() {
        let args = |url: &str| SyncArgs {
            pull: PullArgs { admin_url: some(url), ..PullArgs::default() },
            home: some("/home/u"),
            ..SyncArgs::default()
        };
        let puller = check(&args("https://admin.example/base/")).unwrap().unwrap();
        assert_eq!((puller.cloud_dir, puller.tier), ("/home/u/.omicos/cloud-skills".into(), Tier::Free));
        for bad in ["admin.example", "ftp://x", "https://u:secret@x", "https://x/?a=b", "https://x/#y", "http://"] {
            let faults = check(&args(bad)).unwrap_err();
            assert!(faults.len() == 1 && !faults[0].contains("secret"), "{bad}: {faults:?}");
        }
        let pull =
            PullArgs { admin_token_file: some("/nowhere/x"), admin_ca: some("/nowhere/y"), ..args("https://x").pull };
        let faults = check(&SyncArgs { pull, cloud_dir: some("here"), tier: some("gold"), home: None }).unwrap_err();
        assert_eq!(faults.len(), 4, "{faults:?}");
        assert!(check(&SyncArgs::default()).unwrap_err()[0].contains("nothing to sync from"));
    }

    #[test]
    fn offline_is_nothing_to_do() {
        let pull = PullArgs { offline: true, ..PullArgs::default() };
        assert!(check(&SyncArgs { pull: pull.clone(), ..SyncArgs::default() }).unwrap().is_none());
        let pull = PullArgs { admin_url: some("http://x"), ..pull };
        assert!(check(&SyncArgs { pull, home: some("/h"), ..SyncArgs::default() }).unwrap().is_none());
    }

    #[test]
    fn where_to_publish() {
        let check = |listen: &str, insecure| {
            let mut checker = Checker::default();
            let args = ServeArgs { publish_listen: some(listen), ..ServeArgs::default() };
            let publish = checker.publish(&args, insecure);
            (publish.is_some(), checker.faults.len())
        };
        assert_eq!(check("127.0.0.1:0", false), (true, 0));
        assert_eq!(check("0.0.0.0:1", true), (true, 0));
        assert_eq!((check("0.0.0.0:1", false), check("x", false)), ((false, 1), (false, 1)));
    }
}
