//! What the registry tells Prometheus: its catalog, its sync, approvals and records, and calls, read when it is asked.
//! docs/metrics.md says what each figure means.

use std::fmt;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use skillyard::service::calls::Calls;
use skillyard::service::certificates::Certificates;
use skillyard::service::figures::{Figures, StartTime, count, metric};
use tokio::sync::watch;

use crate::admin::follow::Status;
use crate::catalog::Catalogs;
use crate::source::RootState;
use crate::store::Store;

/// All figures of a registry.
pub(crate) fn registry(
    catalogs: &Catalogs,
    sync: Option<&watch::Receiver<Status>>,
    store: &Store,
    calls: &Calls,
    certificates: Certificates,
) -> Registry {
    let mut registry = Registry::with_prefix("skillyard_registry");
    registry.register_collector(Box::new(OfCatalog { catalogs: catalogs.clone() }));
    if let Some(status) = sync {
        registry.register_collector(Box::new(OfSync { status: status.clone() }));
    }
    registry.register_collector(Box::new(OfStore { store: store.clone() }));
    registry.register_collector(Box::new(StartTime::now()));
    registry.register_collector(Box::new(calls.clone()));
    registry.register_collector(Box::new(certificates));
    registry
}

/// The figures of the current catalog.
#[derive(Debug)]
struct OfCatalog {
    catalogs: Catalogs,
}

impl Collector for OfCatalog {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures::from(encoder);
        let catalog = self.catalogs.current();
        figures.gauge(metric("ready", "1 when it has a catalog"), flag(catalog.is_ok()))?;
        let Ok(catalog) = catalog else { return Ok(()) };
        let report = catalog.report();
        let (registered, refused) = report.counts();
        let help = "Skills and agents in the catalog";
        figures.gauge(metric("candidates_registered", help), registered.into())?;
        let help = "Files that could be a skill or an agent and are not";
        figures.gauge(metric("candidates_refused", help), refused.into())?;
        let states = [
            ("registered", RootState::Registered),
            ("missing", RootState::Missing),
            ("not_absolute", RootState::NotAbsolute),
            ("not_entitled", RootState::NotEntitled),
            ("unreadable", RootState::Unreadable),
        ];
        let roots = states.into_iter().map(|(word, state)| {
            let n = report.roots.iter().filter(|root| root.root.state == state).count();
            ([("state", word)], count(n))
        });
        figures.gauges(metric("roots", "Roots that are looked at, by what became of them"), roots)?;
        let unnotified = self.catalogs.unnotified().iter().flatten().count();
        let help = "Roots whose changes may be seen at the next rescan only";
        figures.gauge(metric("roots_unnotified", help), count(unnotified))?;
        let help = "When the look at the roots began that made the current catalog, in Unix time";
        time(&mut figures, "catalog_loaded_time", help, Some(report.loaded_at))
    }
}

/// The figures of the sync from an admin server.
#[derive(Debug)]
struct OfSync {
    status: watch::Receiver<Status>,
}

impl Collector for OfSync {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures::from(encoder);
        let Status { attempted_at, succeeded_at, skills, failed, ref error, .. } = *self.status.borrow();
        time(&mut figures, "sync_attempted_time", "When the last sync ended, in Unix time", attempted_at)?;
        let help = "When the last sync ended that asked to the end, in Unix time";
        time(&mut figures, "sync_succeeded_time", help, succeeded_at)?;
        figures.gauge(metric("sync_skills", "Skills that are mirrored"), count(skills))?;
        figures.gauge(metric("sync_skills_failed", "Skills that the last sync could not bring"), count(failed))?;
        let help = "1 when the last sync had no answer that can be used";
        figures.gauge(metric("sync_failing", help), flag(!error.is_empty()))
    }
}

/// The figures of the database: approvals, and records of runs.
#[derive(Debug)]
struct OfStore {
    store: Store,
}

impl Collector for OfStore {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures::from(encoder);
        let tally = self.store.tally();
        figures.gauge(metric("database_ready", "1 when the database answers"), flag(tally.is_answering()))?;
        let open = tally.open().map(|(state, n)| ([("state", state)], n as f64));
        figures.gauges(metric("approvals_open", "Approvals that may still be signed or used, by state"), open)?;
        let help = "When the oldest approval was asked for whose signatures are missing, in Unix time";
        time(&mut figures, "approvals_oldest_pending_time", help, tally.oldest_pending())?;
        let events = tally.events().map(|(event, n)| ([("event", event)], n));
        figures.counters(metric("approvals", "What became of approvals, by event"), events)?;
        let records = tally.records().map(|(result, n)| ([("result", result)], n));
        figures.counters(metric("history_records", "Records of runs that were handed in, by result"), records)
    }
}

/// A moment, where there is one.
fn time(figures: &mut Figures<'_>, name: &str, help: &str, at: Option<SystemTime>) -> fmt::Result {
    match at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()) {
        Some(since) => figures.gauge(metric(name, help).seconds(), since.as_secs_f64()),
        None => Ok(()),
    }
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}
