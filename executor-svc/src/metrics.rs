//! What the executor tells Prometheus: slots, queue and mirror, read when it is asked. docs/metrics.md says what each
//! figure means.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::run::Runner;

/// All figures of an executor.
pub(crate) fn registry(runner: &Runner) -> Registry {
    let mut registry = Registry::with_prefix("skillyard_executor");
    registry.register_collector(Box::new(OfNow { runner: runner.clone() }));
    registry
}

/// The figures of this moment.
#[derive(Debug)]
struct OfNow {
    runner: Runner,
}

impl Collector for OfNow {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let admission = self.runner.admission();
        let mirror = self.runner.mirror().status();
        let mut gauge = |name, help, unit: Option<&Unit>, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
        };
        gauge("slots", "Runs that it can have at once", None, count(admission.slots()))?;
        gauge("runs_running", "Runs that hold a slot", None, count(admission.running()))?;
        gauge("runs_queued", "Runs that wait for a slot", None, count(admission.queued()))?;
        gauge("queue_limit", "Runs that may wait", None, count(admission.queue_limit()))?;
        gauge("draining", "1 when it takes no new runs", None, f64::from(u8::from(admission.is_closed())))?;
        gauge("registry_connected", "1 when the registry answers", None, f64::from(u8::from(mirror.connected)))?;
        gauge("packages_missing", "Skills of the catalog that cannot be run here", None, count(mirror.missing.len()))?;
        if let Some(age) = mirror.age {
            let help = "Since the registry last confirmed the mirrored catalog";
            gauge("catalog_age", help, Some(&Unit::Seconds), age.as_secs_f64())?;
        }
        Ok(())
    }
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}
