//! What the executor tells Prometheus: its runs and refusals, slots and queue, journal, mirror, and calls, read when it is
//! asked. docs/metrics.md says what each figure means.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use skillyard::service::calls::Calls;
use skillyard::service::certificates::Certificates;
use skillyard::service::figures::{Figures, StartTime, count, metric};

use crate::history::Shipper;
use crate::run::Runner;
use crate::run::outcome::Outcome;

/// All figures of an executor.
pub(crate) fn registry(runner: &Runner, shipper: &Shipper, calls: &Calls, certificates: Certificates) -> Registry {
    let mut registry = Registry::with_prefix("skillyard_executor");
    registry.register_collector(Box::new(OfRuns { runner: runner.clone() }));
    registry.register_collector(Box::new(OfNow { runner: runner.clone() }));
    registry.register_collector(Box::new(OfJournal { runner: runner.clone(), shipper: shipper.clone() }));
    registry.register_collector(Box::new(StartTime::now()));
    registry.register_collector(Box::new(calls.clone()));
    registry.register_collector(Box::new(certificates));
    registry
}

/// What runs came to.
#[derive(Debug)]
struct OfRuns {
    runner: Runner,
}

impl Collector for OfRuns {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures::from(encoder);
        let tally = self.runner.tally();
        let skills = tally.skills();
        let labels = |skill: &str, class: &'static str| [("skill", skill.to_owned()), ("class", class.to_owned())];
        let ended = skills.iter().flat_map(|row| {
            let [skill, class] = labels(&row.skill, row.class.as_str());
            let outcomes = row.outcomes.iter();
            outcomes
                .map(move |(outcome, n)| ([skill.clone(), class.clone(), ("outcome", outcome.as_str().to_owned())], *n))
        });
        figures.counters(metric("runs", "Runs that have ended, by skill, class and outcome"), ended)?;
        let lost = skills.iter().flat_map(|row| &row.outcomes).filter(|(outcome, _)| *outcome == Outcome::Lost);
        let lost = lost.map(|(_, n)| n).sum();
        let help = "Runs that were LOST with their slot; those of a process before are in runs_lost_at_start";
        figures.counter(metric("runs_lost", help), lost)?;
        let time = |of: fn(&crate::run::tally::SkillRuns) -> std::time::Duration| {
            skills.iter().map(move |row| (labels(&row.skill, row.class.as_str()), of(row).as_secs_f64()))
        };
        figures.sums(metric("skill_run", "Lifetime of the processes of ended runs").seconds(), time(|row| row.ran))?;
        figures.sums(metric("skill_cpu", "Processor time of ended runs").seconds(), time(|row| row.cpu))?;
        let refused = tally.refusals().into_iter().map(|(reason, n)| ([("reason", reason)], n));
        figures.counters(metric("refusals", "Calls of RunSkill that were refused, by reason"), refused)?;
        let help = "From Accepted to a slot, of runs that got one";
        figures.histogram(metric("run_queue_duration", help), tally.waited())?;
        let help = "From a slot, and an approval where one is needed, to Started";
        figures.histogram(metric("run_spawn_duration", help), tally.spawned())?;
        figures.histogram(metric("run_duration", "From Started to the exit"), tally.ran())?;
        figures.counter(
            metric("log_lines_dropped", "Lines of stderr that readers were told they missed"),
            tally.dropped_lines(),
        )?;
        let output = tally.output_bytes().into_iter().map(|(stream, n)| ([("stream", stream)], n));
        figures.counters(metric("output", "What ended runs wrote").bytes(), output)
    }
}

/// The figures of this moment.
#[derive(Debug)]
struct OfNow {
    runner: Runner,
}

impl Collector for OfNow {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures::from(encoder);
        let admission = self.runner.admission();
        let mirror = self.runner.mirror().status();
        let (idle, taken) = self.runner.pool().counts();
        let flag = |is: bool| f64::from(u8::from(is));
        figures.gauge(metric("slots", "Runs that it can have at once"), count(admission.slots()))?;
        figures.gauge(metric("runs_running", "Runs that hold a slot"), count(admission.running()))?;
        figures.gauge(metric("runs_queued", "Runs that wait for a slot"), count(admission.queued()))?;
        figures.gauge(metric("queue_limit", "Runs that may wait"), count(admission.queue_limit()))?;
        let processes = [([("state", "idle")], count(idle)), ([("state", "taken")], count(taken))];
        figures.gauges(metric("slot_processes", "Slot processes that there are, by state"), processes)?;
        figures.gauge(metric("draining", "1 when it takes no new runs"), flag(admission.is_closed()))?;
        figures.gauge(
            metric("ready", "1 when it has a catalog that it may use"),
            flag(*self.runner.mirror().ready().borrow()),
        )?;
        figures.gauge(metric("registry_connected", "1 when the registry answers"), flag(mirror.connected))?;
        figures.gauge(
            metric("packages_missing", "Skills of the catalog that cannot be run here"),
            count(mirror.missing.len()),
        )?;
        // Of a catalog whose age nobody knows, as at a start with an old disk, there is none to tell.
        if let Some(age) = mirror.age.filter(|age| *age != std::time::Duration::MAX) {
            let help = "Since the registry last confirmed the mirrored catalog";
            figures.gauge(metric("catalog_age", help).seconds(), age.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Records of runs on their way to the registry.
#[derive(Debug)]
struct OfJournal {
    runner: Runner,
    shipper: Shipper,
}

impl Collector for OfJournal {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures::from(encoder);
        let journal = self.runner.journal().figures();
        let help = "Records of runs that are not handed in";
        figures.gauge(metric("journal_records_unshipped", help), journal.unshipped as f64)?;
        figures.gauge(metric("journal_unshipped", help).bytes(), journal.unshipped_bytes as f64)?;
        let help = "Records of runs that will never be handed in: too old, too much, without room, or not written";
        figures.counter(metric("journal_records_dropped", help), journal.dropped)?;
        let help = "Records of runs that the registry can never store";
        figures.counter(metric("journal_records_rejected", help), self.shipper.rejected())?;
        figures.counter(metric("journal_write_failures", "Writes of the journal that failed"), journal.failures)?;
        let help = "1 when the last batch of records could not be handed in";
        figures.gauge(metric("journal_shipping_failing", help), f64::from(u8::from(self.shipper.is_failing())))?;
        let help = "Runs that went on when the executor before ended, found LOST at this start";
        figures.gauge(metric("runs_lost_at_start", help), journal.lost_at_start as f64)
    }
}
