//! How a terminal client reaches a registry: the address, the token or certificate that it shows, and whom it trusts.

use std::path::PathBuf;
use std::time::Duration;

use skillyard::service::dial::{DialFlag, DialOptions, Dialer};
use tonic::transport::Endpoint;

use super::Failure;

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
    /// What clients are made over. An empty variable is one that is not set.
    pub(super) fn dialer(&self) -> Result<Dialer, Failure> {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let options = DialOptions {
            token_file: given(&self.token_file),
            ca: given(&self.ca),
            cert: given(&self.cert),
            key: given(&self.key),
        };
        let dialer = Dialer::check(&self.registry, &options).map_err(|faults| {
            let faults = faults.iter().map(|fault| {
                let flag = match fault.flag {
                    DialFlag::Url => "--registry",
                    DialFlag::TokenFile => "--token-file",
                    DialFlag::Ca => "--ca",
                    DialFlag::Cert => "--cert",
                    DialFlag::Key => "--key",
                };
                format!("{flag}: {}", fault.what)
            });
            Failure::Dial(faults.collect::<Vec<_>>().join("; "))
        })?;
        Ok(dialer.configured(endpoint))
    }
}
