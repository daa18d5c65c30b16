//! The run table: which runs there are, so that a repeated call finds its run instead of starting a second one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use skillyard::service::error::{Reason, Refusal};
use skillyard::{Digest, SkillName};

use crate::run::events::EventLog;
use crate::run::id::RunId;
use crate::run::outcome::{Cause, Finished};
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
    /// Unique in the table.
    pub id: RunId,
    /// Whether the caller chose the id, and so may call again.
    pub named_by_caller: bool,
    /// What was asked for, in all that makes a call the same call.
    pub request: Digest,
    /// The skill.
    pub skill: SkillName,
    /// The package that runs.
    pub digest: Digest,
    /// On whose behalf; empty for no agent.
    pub agent: String,
    /// Whose call it was; empty for an anonymous one.
    pub caller: String,
    /// Of the argument bytes.
    pub args_sha256: Digest,
    /// The approval that it was asked for with.
    pub approval_id: Option<String>,
    /// As the request gave them.
    pub labels: HashMap<String, String>,
    /// When it got its id.
    pub accepted_at: SystemTime,
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

/// What [`Run::new`] takes.
#[derive(Debug)]
pub struct NewRun {
    /// The caller's choice, if it made one.
    pub id: Option<RunId>,
    /// See [`Run::request`].
    pub request: Digest,
    /// See [`Run::skill`].
    pub skill: SkillName,
    /// See [`Run::digest`].
    pub digest: Digest,
    /// See [`Run::agent`].
    pub agent: String,
    /// See [`Run::caller`].
    pub caller: String,
    /// See [`Run::args_sha256`].
    pub args_sha256: Digest,
    /// See [`Run::approval_id`].
    pub approval_id: Option<String>,
    /// See [`Run::labels`].
    pub labels: HashMap<String, String>,
    /// See [`Run::accepted_at`].
    pub accepted_at: SystemTime,
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
    pub fn new(new: NewRun) -> Arc<Self> {
        Arc::new(Self {
            named_by_caller: new.id.is_some(),
            id: new.id.unwrap_or_else(RunId::random),
            request: new.request,
            skill: new.skill,
            digest: new.digest,
            agent: new.agent,
            caller: new.caller,
            args_sha256: new.args_sha256,
            approval_id: new.approval_id,
            labels: new.labels,
            accepted_at: new.accepted_at,
            events: Arc::default(),
            progress: Mutex::default(),
        })
    }

    /// What it holds, in bytes.
    fn bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        RUN_COST + labels + self.agent.len() + self.events.bytes()
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
    pub fn started(&self) {
        self.progress().started_at = Some(SystemTime::now());
    }

    /// Notes its end.
    pub fn finished(&self, finished: Arc<Finished>) {
        self.progress().end = Some((SystemTime::now(), finished));
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
    used_requests: HashMap<RunId, Digest>,
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
        let known = inner.runs.get(id).map(|run| run.request).or_else(|| inner.used_requests.get(id).copied());
        match known {
            None => Ok(None),
            Some(known) if known != *request => Err(reused(id)),
            Some(_) => match inner.runs.get(id) {
                Some(run) => Ok(Some(Arc::clone(run))),
                None => Err(expired(id)),
            },
        }
    }

    /// Adds a run whose id [`Self::find_same`] did not know.
    pub fn insert(&self, run: &Arc<Run>) {
        self.lock().runs.insert(run.id.clone(), Arc::clone(run));
    }

    /// A run by its id.
    #[must_use]
    pub fn get(&self, id: &RunId) -> Option<Arc<Run>> {
        self.lock().runs.get(id).cloned()
    }

    /// Forgets a run that was never started, so that its id can be used again.
    pub fn remove(&self, run: &Run) {
        self.lock().runs.remove(&run.id);
    }

    /// Notes that a run has ended.
    pub fn ended(&self, run: &Arc<Run>) {
        let mut inner = self.lock();
        let ended = if run.named_by_caller { &mut inner.named } else { &mut inner.unnamed };
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
            self.runs.remove(&run.id);
        }
        while let Some(run) = self.named.pop(keep, MAX_NAMED) {
            self.runs.remove(&run.id);
            self.used.push_back(run.id.clone());
            self.used_requests.insert(run.id.clone(), run.request);
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

/// What a call gets whose run's events are gone.
#[must_use]
pub fn expired(id: &RunId) -> Refusal {
    let message = format!("run {id} ended so long ago that its events are gone; it is not run again: choose a new id");
    Refusal::new(Reason::ResultExpired, message).with("run_id", id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::event::Event;

    fn run(id: Option<&str>, request: &[u8]) -> Arc<Run> {
        Run::new(NewRun {
            id: id.map(|id| id.parse().unwrap()),
            request: Digest::of(request),
            skill: "x".parse().unwrap(),
            digest: Digest::of(b"x"),
            agent: String::new(),
            caller: String::new(),
            args_sha256: Digest::of(b"{}"),
            approval_id: None,
            labels: HashMap::new(),
            accepted_at: SystemTime::now(),
        })
    }

    fn end(table: &RunTable, run: &Arc<Run>) {
        run.finished(Arc::new(Finished::for_tests()));
        table.ended(run);
    }

    #[test]
    fn a_call_again_finds_its_run() {
        let table = RunTable::new(Duration::from_secs(300));
        let first = run(Some("a"), b"1");
        let (same, other) = (Digest::of(b"1"), Digest::of(b"2"));
        assert!(table.find_same(&first.id, &same).unwrap().is_none());
        table.insert(&first);
        for _ in 0..2 {
            assert!(Arc::ptr_eq(&table.find_same(&first.id, &same).unwrap().unwrap(), &first));
            assert_eq!(table.find_same(&first.id, &other).unwrap_err().reason(), Reason::RunIdReused);
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
        assert_eq!(table.find_same(&first.id, &Digest::of(b"1")).unwrap_err().reason(), Reason::ResultExpired);
        assert_eq!(table.find_same(&first.id, &Digest::of(b"2")).unwrap_err().reason(), Reason::RunIdReused);
        assert!(table.get(&unnamed.id).is_none());
    }

    #[test]
    fn what_callers_and_skills_say_counts() {
        let table = RunTable::new(Duration::from_secs(300));
        let text = "x".repeat(4 << 10);
        let runs: Vec<_> = (0..MAX_NAMED.1 / (3 * text.len()))
            .map(|i| {
                let labels = HashMap::from([("label".to_owned(), text.clone())]);
                let id = Some(format!("run-{i}").parse().unwrap());
                let base = run(None, b"1");
                let (request, skill, digest) = (base.request, base.skill.clone(), base.digest);
                let (agent, args_sha256) = (String::new(), digest);
                let run = Run::new(NewRun {
                    id,
                    request,
                    skill,
                    digest,
                    agent,
                    caller: String::new(),
                    approval_id: None,
                    args_sha256,
                    labels,
                    accepted_at: SystemTime::now(),
                });
                let finished =
                    Finished { stderr_tail: text.clone(), stdout_head: text.clone(), ..Finished::for_tests() };
                run.events.finish(None, Event::Finished(Arc::new(finished)));
                table.insert(&run);
                end(&table, &run);
                run
            })
            .collect();
        assert!(table.get(&runs[0].id).is_none(), "64 MiB of texts are held, and the runs besides");
        assert!(table.get(&runs[runs.len() - 1].id).is_some());
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
        assert!(table.get(&runs[0].id).is_none());
        assert!(table.get(&runs[1].id).is_some());
        assert!(table.get(&named.id).is_some());
    }
}
