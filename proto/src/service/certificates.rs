//! Until when the certificates of a service are good, for metrics. Renews none.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::figures::{Figures, metric};
use super::rotated::Content;
use super::tls::{Tls, not_after};

/// The certificates.
#[derive(Debug)]
pub struct Certificates {
    server: Option<Arc<Tls>>,
    client: Option<PathBuf>,
}

impl Certificates {
    pub(super) fn new(server: Option<Arc<Tls>>, client: Option<PathBuf>) -> Self {
        Self { server, client }
    }
}

impl Collector for Certificates {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let server = self.server.as_ref().and_then(|tls| tls.not_after());
        let client = self.client.as_ref().and_then(|path| not_after(&Content::read(path)?));
        let rows = [("server", server), ("client", client)].into_iter().filter_map(|(of, at)| {
            let since = at?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            Some(([("of", of)], since.as_secs_f64()))
        });
        let help = "When the certificate ends that it serves with, or shows to the registry, in Unix time";
        Figures::from(encoder).gauges(metric("certificate_not_after_time", help).seconds(), rows)
    }
}
