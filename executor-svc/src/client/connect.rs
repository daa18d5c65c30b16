//! Which executor a command asks, and what it shows it.

use std::path::PathBuf;

use skillyard::service::dial::{DialFlag, DialOptions, Dialer};

use super::endpoint;

/// The executor, and who asks.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ConnectArgs {
    /// The executor to ask.
    #[arg(long, env = "SKILLYARD_EXECUTOR", value_name = "URL", default_value = "http://127.0.0.1:50052")]
    executor: String,
    /// A file with the token to show.
    #[arg(long, env = "SKILLYARD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Who signs the executor's certificate, PEM; for an https:// executor.
    #[arg(long, env = "SKILLYARD_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate chain to show, PEM.
    #[arg(long, env = "SKILLYARD_CERT", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its key, PEM.
    #[arg(long, env = "SKILLYARD_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Why nobody can be asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct DialError(String);

impl ConnectArgs {
    /// An empty variable is one that is not set.
    pub(super) fn dialer(&self) -> Result<Dialer, DialError> {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let options = DialOptions {
            token_file: given(&self.token_file),
            ca: given(&self.ca),
            cert: given(&self.cert),
            key: given(&self.key),
        };
        Dialer::check(&self.executor, &options).map(|dialer| dialer.configured(endpoint)).map_err(|faults| {
            let faults = faults.iter().map(|fault| {
                let flag = match fault.flag {
                    DialFlag::Url => "--executor",
                    DialFlag::TokenFile => "--token-file",
                    DialFlag::Ca => "--ca",
                    DialFlag::Cert => "--cert",
                    DialFlag::Key => "--key",
                };
                format!("{flag}: {}", fault.what)
            });
            DialError(faults.collect::<Vec<_>>().join("; "))
        })
    }
}
