//! Which executor a command asks, and what it shows it.

use std::path::PathBuf;

use skillyard::service::dial::{DialOptions, Dialer, FlagsError};

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

impl ConnectArgs {
    /// What clients are made over.
    pub(super) fn dialer(&self) -> Result<Dialer, FlagsError> {
        let Self { executor, token_file, ca, cert, key } = self.clone();
        let options = DialOptions { token_file, ca, cert, key };
        Ok(Dialer::of_flags("--executor", &executor, options)?.configured(endpoint))
    }
}
