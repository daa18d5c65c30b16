//! What runs came to since this executor was started, for metrics: counted where it happens, by atomics alone; a run looks
//! its row up once, when it is accepted. Rows are bounded: skills beyond the first [`MAX_SKILLS`] share one.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use skillyard::service::error::Reason;
use skillyard::service::histogram::Histogram;
use skillyard::{Class, SkillName};

use crate::run::outcome::{Finished, Outcome};

/// Most skills that have rows of their own.
pub const MAX_SKILLS: usize = 500;
/// The skill of the row that all others share: no skill can have this name.
pub const OTHERS: &str = "(others)";

/// In seconds. A run that finds a free slot waits for some microseconds.
const WAITED: &[f64] = &[0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// A spawn in a slot that is there takes under a millisecond, the start of a slot some of them.
const SPAWNED: &[f64] = &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];
/// From sh to an hour of work.
const RAN: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// Reasons that are told from the start, so that the first refusal is seen as one more.
const COMMON: [Reason; 8] = [
    Reason::ExecutorFull,
    Reason::Draining,
    Reason::NotReady,
    Reason::PackageNotMirrored,
    Reason::RegistryUnavailable,
    Reason::UnknownSkill,
    Reason::InvalidArguments,
    Reason::Internal,
];

/// All of it. Clones are the same.
#[derive(Clone, Debug)]
pub struct Tally {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    skills: RwLock<HashMap<(SkillName, Class), Arc<OfSkill>>>,
    others: [Arc<OfSkill>; 3],
    waited: Histogram,
    spawned: Histogram,
    ran: Histogram,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    dropped_lines: AtomicU64,
    stdout_bytes: AtomicU64,
    stderr_bytes: AtomicU64,
}

/// The row of a skill in one class.
#[derive(Debug, Default)]
struct OfSkill {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    run_nanoseconds: AtomicU64,
    cpu_nanoseconds: AtomicU64,
}

/// The runs of a skill.
#[derive(Clone, Debug, PartialEq)]
pub struct SkillRuns {
    /// Its name, or [`OTHERS`].
    pub skill: String,
    /// The class that they had.
    pub class: Class,
    /// How many ended so, of those outcomes that there were.
    pub outcomes: Vec<(Outcome, u64)>,
    /// What they took together.
    pub ran: Duration,
    /// Processor time of their processes.
    pub cpu: Duration,
}

impl Default for Tally {
    fn default() -> Self {
        let refused = COMMON.into_iter().map(|reason| (reason.as_str(), 0)).collect();
        Self {
            inner: Arc::new(Inner {
                skills: RwLock::default(),
                others: Default::default(),
                waited: Histogram::new(WAITED),
                spawned: Histogram::new(SPAWNED),
                ran: Histogram::new(RAN),
                refused: Mutex::new(refused),
                dropped_lines: AtomicU64::new(0),
                stdout_bytes: AtomicU64::new(0),
                stderr_bytes: AtomicU64::new(0),
            }),
        }
    }
}

impl Tally {
    /// Where a run of this skill, which is in the catalog, is counted.
    #[must_use]
    pub fn run_of(&self, skill: &SkillName, class: Class) -> RunTally {
        let key = (skill.clone(), class);
        let known = self.inner.skills.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let row = known.unwrap_or_else(|| {
            let mut skills = self.inner.skills.write().unwrap_or_else(PoisonError::into_inner);
            let has_room = skills.len() < MAX_SKILLS;
            match skills.entry(key) {
                std::collections::hash_map::Entry::Occupied(known) => Arc::clone(known.get()),
                std::collections::hash_map::Entry::Vacant(place) if has_room => {
                    Arc::clone(place.insert(Arc::default()))
                }
                std::collections::hash_map::Entry::Vacant(_) => Arc::clone(&self.inner.others[place(class)]),
            }
        });
        RunTally { tally: self.clone(), row }
    }

    /// A call to run a skill was refused, before or after it was accepted.
    pub fn refused(&self, reason: Reason) {
        *self.inner.refused.lock().unwrap_or_else(PoisonError::into_inner).entry(reason.as_str()).or_default() += 1;
    }

    /// A reader was told that it missed so many lines.
    pub fn dropped(&self, lines: u64) {
        if lines > 0 {
            self.inner.dropped_lines.fetch_add(lines, Ordering::Relaxed);
        }
    }

    /// Each skill that ran, in order.
    #[must_use]
    pub fn skills(&self) -> Vec<SkillRuns> {
        let named = self.inner.skills.read().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<_> = named.iter().map(|((skill, class), row)| row.told(skill.as_str(), *class)).collect();
        drop(named);
        rows.sort_unstable_by(|a, b| (&a.skill, a.class.as_str()).cmp(&(&b.skill, b.class.as_str())));
        let others = CLASSES.into_iter().map(|class| self.inner.others[place(class)].told(OTHERS, class));
        rows.extend(others);
        rows.retain(|row| !row.outcomes.is_empty());
        rows
    }

    /// Calls that were refused, by `ErrorInfo.reason`.
    #[must_use]
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        let refused = self.inner.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().map(|(reason, n)| (*reason, *n)).collect()
    }

    /// How long runs waited for a slot.
    #[must_use]
    pub fn waited(&self) -> &Histogram {
        &self.inner.waited
    }

    /// How long it took from having a slot, and an approval where one is needed, to a process.
    #[must_use]
    pub fn spawned(&self) -> &Histogram {
        &self.inner.spawned
    }

    /// How long processes lived.
    #[must_use]
    pub fn ran(&self) -> &Histogram {
        &self.inner.ran
    }

    /// Lines that readers were told they missed.
    #[must_use]
    pub fn dropped_lines(&self) -> u64 {
        self.inner.dropped_lines.load(Ordering::Relaxed)
    }

    /// What skills wrote to stdout and to stderr, in bytes.
    #[must_use]
    pub fn output_bytes(&self) -> [(&'static str, u64); 2] {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        [("stdout", load(&self.inner.stdout_bytes)), ("stderr", load(&self.inner.stderr_bytes))]
    }
}

/// Where one run is counted.
#[derive(Clone, Debug)]
pub struct RunTally {
    tally: Tally,
    row: Arc<OfSkill>,
}

impl RunTally {
    /// It has its slot, after this time.
    pub fn waited(&self, time: Duration) {
        self.tally.inner.waited.observe(time);
    }

    /// Its process was started, this long after it could have been.
    pub fn spawned(&self, time: Duration) {
        self.tally.inner.spawned.observe(time);
    }

    /// It has ended; `started` is whether it had a process.
    pub fn ended(&self, finished: &Finished, started: bool) {
        let (inner, row, figures) = (&self.tally.inner, &self.row, &finished.figures);
        row.outcomes[finished.outcome as usize].fetch_add(1, Ordering::Relaxed);
        inner.stdout_bytes.fetch_add(figures.stdout_bytes, Ordering::Relaxed);
        inner.stderr_bytes.fetch_add(figures.stderr_bytes, Ordering::Relaxed);
        if started {
            inner.ran.observe(figures.usage.wall);
            add(&row.run_nanoseconds, figures.usage.wall);
            add(&row.cpu_nanoseconds, figures.usage.cpu_user + figures.usage.cpu_system);
        }
    }

    /// It was accepted and then refused.
    pub fn refused(&self, reason: Reason) {
        self.tally.refused(reason);
    }
}

impl OfSkill {
    fn told(&self, skill: &str, class: Class) -> SkillRuns {
        let counted = self.outcomes.iter().map(|n| n.load(Ordering::Relaxed));
        let outcomes = Outcome::ALL.into_iter().zip(counted).filter(|(_, n)| *n > 0).collect();
        let time = |nanoseconds: &AtomicU64| Duration::from_nanos(nanoseconds.load(Ordering::Relaxed));
        let (ran, cpu) = (time(&self.run_nanoseconds), time(&self.cpu_nanoseconds));
        SkillRuns { skill: skill.to_owned(), class, outcomes, ran, cpu }
    }
}

const CLASSES: [Class; 3] = [Class::Safe, Class::Mutating, Class::Dangerous];

fn place(class: Class) -> usize {
    CLASSES.iter().position(|of| *of == class).unwrap_or_default()
}

fn add(sum: &AtomicU64, time: Duration) {
    sum.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skills_beyond_the_bound_share_a_row_of_their_class() {
        let (tally, ended) = (Tally::default(), Finished::for_tests());
        for i in 0..MAX_SKILLS + 3 {
            tally.run_of(&format!("s{i:04}").parse().unwrap(), Class::Safe).ended(&ended, false);
        }
        tally.run_of(&"s0000".parse().unwrap(), Class::Mutating).ended(&ended, false);
        tally.run_of(&"s0000".parse().unwrap(), Class::Safe).ended(&ended, false);
        let rows = tally.skills();
        assert_eq!(rows.len(), MAX_SKILLS + 2);
        let told: Vec<_> = rows.iter().map(|row| (row.skill.as_str(), row.class, row.outcomes[0].1)).collect();
        assert_eq!(told[..2], [("s0000", Class::Safe, 2), ("s0001", Class::Safe, 1)]);
        assert_eq!(told[MAX_SKILLS..], [(OTHERS, Class::Safe, 3), (OTHERS, Class::Mutating, 1)]);
    }
}
