//! The run table: which runs there are, so that a repeated call finds its run instead of starting a second one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use skillyard::Digest;
use skillyard::service::error::{Reason, Refusal};

use crate::run::call::Call;
use crate::run::events::EventLog;
use crate::run::id::RunId;
use crate::run::outcome::{Cause, Finished, Outcome};
use crate::run::unread::{self, Unread};

/// Most ended runs whose ids callers chose, and most bytes of them: they may be asked for again.
const MAX_NAMED: (usize, usize) = (100_000, 64 << 20);
/// Most ended runs whose ids the executor chose, and most bytes of them.
const MAX_UNNAMED: (usize, usize) = (4096, 16 << 20);
/// Most ids chosen by callers that are remembered after their runs are gone.
const MAX_USED_IDS: usize = 100_000;
/// What a run costs beside its texts and its events.
const RUN_COST: usize = 1024;

/// One run, from accepted to a while after its end.
#[derive(Debug)]
pub struct Run {
    /// What was asked for.
    pub call: Arc<Call>,
    /// What happened.
    pub events: Arc<EventLog>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    stop: Option<Cause>,
    started_at: Option<SystemTime>,
    end: Option<(SystemTime, Arc<Finished>)>,
}

/// Ended runs, oldest first, with what their events hold.
#[derive(Debug, Default)]
struct Ended {
    runs: VecDeque<(Instant, Arc<Run>, usize)>,
    bytes: usize,
}

impl Run {
    /// A run that has not started.
    #[must_use]
    pub fn new(call: Call) -> Arc<Self> {
        Self::of(Arc::new(call))
    }

    /// The same, of a call that others hold too.
    #[must_use]
    pub fn of(call: Arc<Call>) -> Arc<Self> {
        Arc::new(Self { call, events: Arc::default(), progress: Mutex::default() })
    }

    /// What it holds, in bytes.
    fn bytes(&self) -> usize {
        let labels: usize = self.call.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        RUN_COST + labels + self.call.agent.len() + self.events.bytes()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for its end; the first cause counts.
    pub fn stop(&self, cause: Cause) {
        self.progress().stop.get_or_insert(cause);
        self.events.touch();
    }

    /// Whether its end was asked for, and why.
    #[must_use]
    pub fn stop_asked(&self) -> Option<Cause> {
        self.progress().stop.clone()
    }

    /// Notes its start.
    pub fn started(&self, at: SystemTime) {
        self.progress().started_at = Some(at);
    }

    /// Notes its end.
    pub fn finished(&self, at: SystemTime, finished: Arc<Finished>) {
        self.progress().end = Some((at, finished));
    }

    /// When its process was started.
    #[must_use]
    pub fn started_at(&self) -> Option<SystemTime> {
        self.progress().started_at
    }

    /// When and how it ended.
    #[must_use]
    pub fn end(&self) -> Option<(SystemTime, Arc<Finished>)> {
        self.progress().end.clone()
    }
}

/// The runs that are known.
#[derive(Debug)]
pub struct RunTable {
    keep: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    runs: HashMap<RunId, Arc<Run>>,
    named: Ended,
    unnamed: Ended,
    /// Ids chosen by callers whose runs are gone, oldest first.
    used: VecDeque<RunId>,
    used_requests: HashMap<RunId, (Digest, Option<Outcome>)>,
    unread: Unread,
}

impl RunTable {
    /// Ended runs are kept this long.
    #[must_use]
    pub fn new(keep: Duration) -> Self {
        Self { keep, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run that this call is for, if there is or was one.
    ///
    /// # Errors
    /// RUN_ID_REUSED where the id belongs to another request, RESULT_EXPIRED where the run's events are gone.
    pub fn find_same(&self, id: &RunId, request: &Digest) -> Result<Option<Arc<Run>>, Refusal> {
        let mut inner = self.lock();
        inner.expire(self.keep);
        let run = inner.runs.get(id).map(|run| (Arc::clone(run), run.call.request));
        match (run, inner.used_requests.get(id)) {
            (Some((run, known)), _) if known == *request => Ok(Some(run)),
            (None, Some((known, outcome))) if known == request => Err(expired(id, *outcome)),
            (None, None) => Ok(None),
            _ => Err(reused(id)),
        }
    }

    /// Adds a run whose id [`Self::find_same`] did not know.
    pub fn insert(&self, run: &Arc<Run>) {
        self.lock().runs.insert(run.call.id.clone(), Arc::clone(run));
    }

    /// A run by its id.
    #[must_use]
    pub fn get(&self, id: &RunId) -> Option<Arc<Run>> {
        self.lock().runs.get(id).cloned()
    }

    /// Forgets a run that was never started, so that its id can be used again.
    pub fn remove(&self, run: &Run) {
        self.lock().runs.remove(&run.call.id);
    }

    /// Notes that a run has ended.
    pub fn ended(&self, run: &Arc<Run>) {
        let mut inner = self.lock();
        let ended = if run.call.named_by_caller { &mut inner.named } else { &mut inner.unnamed };
        ended.push(run);
        if inner.unread.push(run) {
            inner.unread.bound(unread::MAX_BYTES, unread::STANDS_STILL);
        }
        inner.expire(self.keep);
    }

    /// Drops what has been kept long enough.
    pub fn expire(&self) {
        let mut inner = self.lock();
        inner.expire(self.keep);
        inner.unread.bound(unread::MAX_BYTES, unread::STANDS_STILL);
    }

    /// The runs that have not ended.
    #[must_use]
    pub fn active(&self) -> Vec<Arc<Run>> {
        self.lock().runs.values().filter(|run| run.end().is_none()).cloned().collect()
    }
}

impl Inner {
    fn expire(&mut self, keep: Duration) {
        while let Some(run) = self.unnamed.pop(keep, MAX_UNNAMED) {
            self.runs.remove(&run.call.id);
        }
        while let Some(run) = self.named.pop(keep, MAX_NAMED) {
            self.runs.remove(&run.call.id);
            self.used.push_back(run.call.id.clone());
            let outcome = run.end().map(|(_, finished)| finished.outcome);
            self.used_requests.insert(run.call.id.clone(), (run.call.request, outcome));
            if self.used.len() > MAX_USED_IDS
                && let Some(oldest) = self.used.pop_front()
            {
                self.used_requests.remove(&oldest);
            }
        }
    }
}

impl Ended {
    fn push(&mut self, run: &Arc<Run>) {
        let bytes = run.bytes();
        self.bytes += bytes;
        self.runs.push_back((Instant::now(), Arc::clone(run), bytes));
    }

    /// The oldest run, if it was kept long enough or there is too much.
    fn pop(&mut self, keep: Duration, (most_runs, most_bytes): (usize, usize)) -> Option<Arc<Run>> {
        let (ended, _, _) = self.runs.front()?;
        if self.runs.len() <= most_runs && self.bytes <= most_bytes && ended.elapsed() < keep {
            return None;
        }
        let (_, run, bytes) = self.runs.pop_front()?;
        self.bytes -= bytes;
        Some(run)
    }
}

/// What a call gets whose id belongs to another request.
#[must_use]
pub fn reused(id: &RunId) -> Refusal {
    let message = format!("run_id {id} belongs to another request: choose a new id for a new run");
    Refusal::new(Reason::RunIdReused, message).with("run_id", id.as_str())
}

/// What a call gets whose run's events are gone; `outcome` is how the run ended, where that is remembered.
#[must_use]
pub fn expired(id: &RunId, outcome: Option<Outcome>) -> Refusal {
    let ended = outcome.map_or_else(|| "ended".to_owned(), |outcome| format!("ended {}", outcome.as_str()));
    let message = format!(
        "run {id} {ended} so long ago that its events are gone; it is not run again: choose a new id for a new run"
    );
    let refusal = Refusal::new(Reason::ResultExpired, message).with("run_id", id.as_str());
    outcome.map_or_else(|| refusal.clone(), |outcome| refusal.clone().with("outcome", outcome.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::event::Event;

    fn run(id: Option<&str>, request: &[u8]) -> Arc<Run> {
        Run::new(Call::for_tests(id, request))
    }

    fn end(table: &RunTable, run: &Arc<Run>) {
        run.finished(SystemTime::now(), Arc::new(Finished::for_tests()));
        table.ended(run);
    }

    #[test]
    fn a_call_again_finds_its_run() {
        let table = RunTable::new(Duration::from_secs(300));
        let first = run(Some("a"), b"1");
        let (same, other) = (Digest::of(b"1"), Digest::of(b"2"));
        assert!(table.find_same(&first.call.id, &same).unwrap().is_none());
        table.insert(&first);
        for _ in 0..2 {
            assert!(Arc::ptr_eq(&table.find_same(&first.call.id, &same).unwrap().unwrap(), &first));
            assert_eq!(table.find_same(&first.call.id, &other).unwrap_err().reason(), Reason::RunIdReused);
            end(&table, &first);
        }
    }

    #[test]
    fn an_id_is_remembered_longer_than_its_run() {
        let table = RunTable::new(Duration::ZERO);
        let (first, unnamed) = (run(Some("a"), b"1"), run(None, b"1"));
        for run in [&first, &unnamed] {
            table.insert(run);
            end(&table, run);
        }
        assert_eq!(table.find_same(&first.call.id, &Digest::of(b"1")).unwrap_err().reason(), Reason::ResultExpired);
        assert_eq!(table.find_same(&first.call.id, &Digest::of(b"2")).unwrap_err().reason(), Reason::RunIdReused);
        assert!(table.get(&unnamed.call.id).is_none());
    }

    #[test]
    fn what_callers_and_skills_say_counts() {
        let table = RunTable::new(Duration::from_secs(300));
        let text = "x".repeat(4 << 10);
        let runs: Vec<_> = (0..MAX_NAMED.1 / (3 * text.len()))
            .map(|i| {
                let mut call = Call::for_tests(Some(&format!("run-{i}")), b"1");
                call.labels.insert("label".to_owned(), text.clone());
                let run = Run::new(call);
                let finished =
                    Finished { stderr_tail: text.clone(), stdout_head: text.clone(), ..Finished::for_tests() };
                run.events.finish(None, Event::Finished(Arc::new(finished)));
                table.insert(&run);
                end(&table, &run);
                run
            })
            .collect();
        assert!(table.get(&runs[0].call.id).is_none(), "64 MiB of texts are held, and the runs besides");
        assert!(table.get(&runs[runs.len() - 1].call.id).is_some());
    }

    #[test]
    fn runs_without_a_name_are_bounded() {
        let table = RunTable::new(Duration::from_secs(300));
        let named = run(Some("a"), b"1");
        table.insert(&named);
        end(&table, &named);
        let runs: Vec<_> = (0..=MAX_UNNAMED.0).map(|_| run(None, b"1")).collect();
        for run in &runs {
            table.insert(run);
            end(&table, run);
        }
        assert!(table.get(&runs[0].call.id).is_none());
        assert!(table.get(&runs[1].call.id).is_some());
        assert!(table.get(&named.call.id).is_some());
    }
}
