//! What the registry tells Prometheus: its catalog, read when it is asked. docs/metrics.md says what each figure means.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::catalog::Catalogs;

/// All figures of a registry.
pub(crate) fn registry(catalogs: &Catalogs) -> Registry {
    let mut registry = Registry::with_prefix("skillyard_registry");
    registry.register_collector(Box::new(OfCatalog { catalogs: catalogs.clone() }));
    registry
}

/// The figures of the current catalog.
#[derive(Debug)]
struct OfCatalog {
    catalogs: Catalogs,
}

impl Collector for OfCatalog {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(catalog) = self.catalogs.current() else { return Ok(()) };
        let report = catalog.report();
        let (registered, refused) = report.counts();
        let mut gauge = |name, help, unit: Option<&Unit>, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
        };
        gauge("candidates_registered", "Skills and agents in the catalog", None, registered.into())?;
        gauge("candidates_refused", "Files that could be a skill or an agent and are not", None, refused.into())
    }
}
