//! How a terminal client reaches a registry: the address, the token or certificate that it shows, and whom it trusts.

use std::path::PathBuf;
use std::time::Duration;

use skillyard::service::dial::{DialOptions, Dialer, FlagsError};
use tonic::transport::Endpoint;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(20);

/// The flags that say so.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Connection {
    /// The registry to ask.
    #[arg(
        long,
        global = true,
        env = "SKILLYARD_REGISTRY",
        value_name = "URL",
        default_value = "http://127.0.0.1:50051"
    )]
    registry: String,
    /// A file with the token to show.
    #[arg(long, global = true, env = "SKILLYARD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Who signs the registry's certificate, PEM; for an https:// registry
    #[arg(long, global = true, env = "SKILLYARD_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate chain to show, PEM
    #[arg(long, global = true, env = "SKILLYARD_CERT", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, global = true, env = "SKILLYARD_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
}

fn endpoint(endpoint: Endpoint) -> Endpoint {
    endpoint.connect_timeout(CONNECT_TIMEOUT).timeout(TIMEOUT)
}

impl Connection {
    /// What clients are made over.
    pub(super) fn dialer(&self) -> Result<Dialer, FlagsError> {
        let Self { registry, token_file, ca, cert, key } = self.clone();
        let options = DialOptions { token_file, ca, cert, key };
        Ok(Dialer::of_flags("--registry", &registry, options)?.configured(endpoint))
    }
}
