//! What the registry tells Prometheus: its catalog and its sync, read when it is asked. docs/metrics.md says what each figure means.

use std::fmt;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

use crate::admin::follow::Status;
use crate::catalog::Catalogs;

/// All figures of a registry.
pub(crate) fn registry(catalogs: &Catalogs, sync: Option<&watch::Receiver<Status>>) -> Registry {
    let mut registry = Registry::with_prefix("skillyard_registry");
    registry.register_collector(Box::new(OfCatalog { catalogs: catalogs.clone() }));
    if let Some(status) = sync {
        registry.register_collector(Box::new(OfSync { status: status.clone() }));
    }
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
        let help = "Skills and agents in the catalog";
        gauge(&mut encoder, "candidates_registered", help, None, registered.into())?;
        let help = "Files that could be a skill or an agent and are not";
        gauge(&mut encoder, "candidates_refused", help, None, refused.into())?;
        let unnotified = self.catalogs.unnotified().iter().flatten().count();
        let help = "Roots whose changes may be seen at the next rescan only";
        gauge(&mut encoder, "roots_unnotified", help, None, f64::from(u32::try_from(unnotified).unwrap_or(u32::MAX)))
    }
}

/// The figures of the sync from an admin server.
#[derive(Debug)]
struct OfSync {
    status: watch::Receiver<Status>,
}

impl Collector for OfSync {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Status { attempted_at, succeeded_at, skills, failed, ref error, .. } = *self.status.borrow();
        let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
        for (name, help, at) in [
            ("sync_attempted_time", "When the last sync ended, in Unix time", attempted_at),
            ("sync_succeeded_time", "When the last sync ended that asked to the end, in Unix time", succeeded_at),
        ] {
            if let Some(since) = at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()) {
                gauge(&mut encoder, name, help, Some(&Unit::Seconds), since.as_secs_f64())?;
            }
        }
        gauge(&mut encoder, "sync_skills", "Skills that are mirrored", None, count(skills))?;
        gauge(&mut encoder, "sync_skills_failed", "Skills that the last sync could not bring", None, count(failed))?;
        let failing = f64::from(u8::from(!error.is_empty()));
        gauge(&mut encoder, "sync_failing", "1 when the last sync had no answer that can be used", None, failing)
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, unit: Option<&Unit>, value: f64) -> fmt::Result {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
}
