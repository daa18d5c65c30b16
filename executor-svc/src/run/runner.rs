//! From a call to a run: policy, arguments, the run table, admission, and the task that runs it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use skillyard::Digest;
use skillyard::arguments::{Arguments, RawArguments};
use skillyard::schema::{self, LARGE};
use skillyard::service::caller::{Caller, Role};
use skillyard::service::error::{Reason, Refusal};
use skillyard::service::trace::{self, TraceContext};
use skillyard::skill::{Class, Subprocess};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tracing::{Instrument as _, Span, error, info, info_span};

use crate::mirror::{Mirror, MirroredCatalog, MirroredSkill};
use crate::run::admission::{Admission, RETRY_AFTER, draining};
use crate::run::approval::{Gate, Guarded};
use crate::run::budget::{Budget, Share};
use crate::run::call::Call;
use crate::run::diary::Diary;
use crate::run::environment;
use crate::run::event::Event;
use crate::run::events::Reader;
use crate::run::fingerprint::Fingerprint;
use crate::run::id::RunId;
use crate::run::job::{Done, Job};
use crate::run::journal::{Journal, RunRecord};
use crate::run::outcome::Cause;
use crate::run::permit::permit;
use crate::run::scratch::Scratch;
use crate::run::table::{Run, RunTable, expired};
use crate::run::tally::Tally;
use crate::run::traced::Traced;
use crate::run::watch::GRACE;
use crate::slot::{self, Pool};

mod lookup;

pub use self::lookup::Filter;

/// Large or costly arguments that are looked at at once.
const CHECKS: usize = 4;

/// A call to run a skill.
#[derive(Debug)]
pub struct RunRequest {
    /// Who called.
    pub caller: Caller,
    /// The skill's name.
    pub skill: String,
    /// The arguments as they came.
    pub arguments: RawArguments,
    /// On whose behalf; empty for the default agent.
    pub agent: String,
    /// Whether the caller named none.
    pub agent_by_default: bool,
    /// The caller's choice, if it made one.
    pub run_id: Option<RunId>,
    /// Shortens the skill's own limit.
    pub timeout: Option<Duration>,
    /// When the call's deadline passes.
    pub deadline: Option<Instant>,
    /// Run only this version.
    pub expected_digest: Option<Digest>,
    /// The approval that a mutating or dangerous skill needs.
    pub approval_id: Option<String>,
    /// Whether the run goes on without a reader.
    pub detach: bool,
    /// Kept with the run.
    pub labels: HashMap<String, String>,
    /// The span of the call. The same call again may be of another trace.
    pub trace: TraceContext,
}

/// What a runner is made of.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Runs at once.
    pub slots: usize,
    /// Runs that may wait.
    pub queue: usize,
    /// The longest limit of one run.
    pub max_timeout: Duration,
    /// How long ended runs are kept.
    pub keep_finished: Duration,
    /// For calls that name no agent; empty for none.
    pub default_agent: String,
    /// Bytes of arguments and outputs of all runs together.
    pub output_memory: usize,
    /// The name of this executor.
    pub executor: Arc<str>,
}

/// Runs skills.
#[derive(Clone, Debug)]
pub struct Runner {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: Limits,
    environment: BTreeMap<String, String>,
    mirror: Mirror,
    pool: Pool,
    admission: Admission,
    table: RunTable,
    /// Large or costly arguments that are looked at.
    checks: Arc<Semaphore>,
    gate: Gate,
    scratch: Scratch,
    memory: Budget,
    tally: Tally,
    tasks: std::sync::Mutex<JoinSet<()>>,
}

impl Runner {
    /// Over a mirror and a pool of slots; `environment` is all that a manifest can allow, `gate` what runs need that are
    /// not safe.
    #[must_use]
    pub fn new(
        limits: Limits,
        environment: BTreeMap<String, String>,
        mirror: Mirror,
        pool: Pool,
        gate: Gate,
        scratch: Scratch,
    ) -> Self {
        let admission = Admission::new(limits.slots, limits.queue);
        let table = RunTable::new(limits.keep_finished);
        let checks = Arc::new(Semaphore::new(CHECKS));
        let tasks = Default::default();
        let memory = Budget::new(limits.output_memory);
        let tally = Tally::default();
        Self {
            inner: Arc::new(Inner {
                limits,
                environment,
                mirror,
                pool,
                admission,
                table,
                checks,
                gate,
                scratch,
                memory,
                tally,
                tasks,
            }),
        }
    }

    /// Starts a run, or finds the one that this call started before.
    ///
    /// # Errors
    /// A refusal says why nothing was started.
    pub async fn run(&self, mut request: RunRequest) -> Result<(Arc<Run>, Reader), Refusal> {
        let inner = &self.inner;
        if request.agent.is_empty() {
            request.agent.clone_from(&inner.limits.default_agent);
            request.agent_by_default = true;
        }
        let raw = std::mem::replace(&mut request.arguments, RawArguments::None);
        // Parsed, large ones take many times their size: so it is held until they are bytes again.
        let mut turn = None;
        let arguments = if raw.size() > LARGE {
            let turn = turn.insert(self.turn().await?);
            blocking(turn, move || Arguments::parse(raw)).await?
        } else {
            Arguments::parse(raw)
        }?;
        let fingerprint = Fingerprint {
            caller: request.caller.identity(),
            skill: &request.skill,
            agent: &request.agent,
            args_sha256: arguments.sha256(),
            timeout: request.timeout,
            expected_digest: request.expected_digest,
            approval_id: request.approval_id.as_deref(),
            detached: request.detach,
            labels: &request.labels,
        }
        .digest();
        if let Some(found) = self.find_same(&request, &fingerprint)? {
            return Ok(found);
        }
        if let Some(found) = self.find_earlier(&request, &fingerprint).await? {
            return Ok(found);
        }
        let catalog = self.catalog()?;
        let permitted = permit(&inner.mirror, &catalog, &request)?;
        if permitted.needs_approval {
            request.caller.require(&[Role::Orchestrator])?;
        }
        let MirroredSkill { skill, schema, .. } = &*permitted.skill;
        let subprocess = &permitted.subprocess;
        let arguments = match schema {
            Some(schema) if !schema::is_fast(&arguments, schema) => {
                let (schema, name) = (Arc::clone(schema), request.skill.clone());
                let turn = match &mut turn {
                    Some(turn) => turn,
                    none => none.insert(self.turn().await?),
                };
                blocking(turn, move || schema::validate(&arguments, &name, &schema).map(|()| arguments)).await??
            }
            Some(schema) => schema::validate(&arguments, &request.skill, schema).map(|()| arguments)?,
            None => arguments,
        };
        // Nothing is awaited from here to the entry in the table: two calls with one id cannot both pass.
        if let Some(found) = self.find_same(&request, &fingerprint)? {
            return Ok(found);
        }
        let ticket = inner.admission.enter()?;
        let args_sha256 = arguments.sha256();
        let arguments = arguments.into_bytes();
        let memory = inner.memory_for(&arguments)?;
        let run = Run::new(Call {
            named_by_caller: request.run_id.is_some(),
            id: request.run_id.take().unwrap_or_else(RunId::random),
            request: fingerprint,
            skill: skill.name.clone(),
            digest: skill.digest,
            agent: std::mem::take(&mut request.agent),
            caller: request.caller.identity().to_owned(),
            args_sha256,
            approval_id: request.approval_id.take(),
            needs_approval: permitted.needs_approval,
            detached: request.detach,
            labels: std::mem::take(&mut request.labels),
            executor: Arc::clone(&inner.limits.executor),
            accepted_at: SystemTime::now(),
        });
        let call = &run.call;
        let reader = run.events.read().ok_or_else(|| expired(&call.id, None))?;
        run.events.push(Event::Accepted { queue_position: ticket.position() });
        inner.table.insert(&run);
        let guarded = call.approval_id.as_deref().filter(|_| call.needs_approval);
        let guarded = guarded.map(|approval| Guarded::new(inner.gate.clone(), call, approval));
        let diary = Diary::new(inner.gate.journal.clone(), guarded.clone(), call);
        let traced = Traced::begin(&request.trace, call);
        let span = info_span!(
            "run",
            run_id = %call.id,
            skill = %call.skill,
            agent = %call.agent,
            caller = %call.caller,
            trace_id = %traced.trace_id(),
        );
        let job = Job {
            run: Arc::clone(&run),
            journal: inner.gate.journal.clone(),
            ticket,
            guarded,
            package: permitted.package,
            entry: subprocess.entry.to_string(),
            environment: environment::allowed(&subprocess.env_allow, |name| inner.environment.get(name).cloned()),
            env_allow: subprocess.env_allow.clone(),
            arguments,
            memory,
            limit: limit(subprocess, request.timeout, inner.limits.max_timeout),
            deadline: request.deadline,
            pool: inner.pool.clone(),
            flavour: inner.pool.flavour(skill.name.as_str(), subprocess.class != Class::Safe),
            tally: inner.tally.run_of(&skill.name, subprocess.class),
            scratch: inner.scratch.clone(),
        };
        self.spawn(job, diary, traced, span);
        Ok((run, reader))
    }

    /// Takes no more runs; lets those that hold a slot go on for `timeout` at most, or until `hastened`, then ends them,
    /// and returns when the last one has ended.
    pub async fn drain(&self, timeout: Duration, hastened: impl Future<Output = ()>) {
        let inner = &self.inner;
        inner.admission.close();
        let running = inner.admission.running();
        info!(running, ?timeout, "draining: no new runs are taken");
        let mut tasks = std::mem::take(&mut *inner.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let ended = async { while tasks.join_next().await.is_some() {} };
        tokio::pin!(ended);
        tokio::select! {
            biased;
            () = &mut ended => return,
            () = hastened => {}
            () = tokio::time::sleep(timeout) => {}
        }
        for run in inner.table.active() {
            info!(run_id = %run.call.id, skill = %run.call.skill, "the run is ended: the executor is shutting down");
            run.stop(Cause::Draining);
        }
        // A stop ends a run within its grace, and the slot is given up soon after it.
        if tokio::time::timeout(GRACE * 3, ended).await.is_err() {
            error!("some runs did not end in time; their processes end with this one");
        }
    }

    /// Forgets runs that ended long ago.
    pub fn expire(&self) {
        self.inner.table.expire();
    }

    /// Slots and queue.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.inner.admission
    }

    /// What runs came to.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.inner.tally
    }

    /// The slot processes.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// The journal of its runs.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.inner.gate.journal
    }

    /// The mirror that it runs from.
    #[must_use]
    pub fn mirror(&self) -> &Mirror {
        &self.inner.mirror
    }

    /// What is in force around every run.
    #[must_use]
    pub fn isolation(&self) -> Vec<String> {
        self.inner.pool.isolation()
    }

    /// What one run may use.
    #[must_use]
    pub fn each(&self) -> slot::Limits {
        self.inner.pool.limits()
    }

    /// The longest limit of time of one run.
    #[must_use]
    pub fn max_timeout(&self) -> Duration {
        self.inner.limits.max_timeout
    }

    /// Waits for a turn to look at large or costly arguments.
    async fn turn(&self) -> Result<Turn, Refusal> {
        Arc::clone(&self.inner.checks).acquire_owned().await.map(Arc::new).map_err(|error| unchecked(&error))
    }

    fn catalog(&self) -> Result<Arc<MirroredCatalog>, Refusal> {
        if self.inner.admission.is_closed() {
            return Err(draining());
        }
        let not_ready = |message: &str| Refusal::new(Reason::NotReady, message).retry_after(RETRY_AFTER);
        let catalog = self.inner.mirror.catalog().ok_or_else(|| {
            not_ready("this executor has no catalog yet: try again, or look at registry_connected in GetStatus")
        })?;
        if !*self.inner.mirror.ready().borrow() {
            return Err(not_ready(
                "the catalog of this executor is too old, and the registry does not answer: run it on another executor",
            ));
        }
        Ok(catalog)
    }

    fn spawn(&self, job: Job, diary: Diary, mut traced: Traced, span: Span) {
        let runner = self.clone();
        let (run, tally) = (Arc::clone(&job.run), job.tally.clone());
        let task = async move {
            match trace::within(traced.context().clone(), job.execute()).await {
                Ok(Done { finished, result, stderr }) => {
                    info!(
                        outcome = finished.outcome.as_str(),
                        reason = &*finished.reason,
                        queued_ms = finished.figures.queued.as_millis(),
                        wall_ms = finished.figures.usage.wall.as_millis(),
                        "run finished"
                    );
                    tally.ended(&finished, run.started_at().is_some());
                    let (finished, finished_at) = (Arc::new(finished), SystemTime::now());
                    traced.ended(run.started_at(), finished_at, &finished);
                    diary
                        .ended(RunRecord {
                            call: Arc::clone(&run.call),
                            started_at: run.started_at(),
                            finished_at,
                            finished: Arc::clone(&finished),
                            stderr,
                        })
                        .await;
                    run.finished(finished_at, Arc::clone(&finished));
                    run.events.finish(result.as_ref(), Event::Finished(finished));
                    runner.inner.table.ended(&run);
                }
                Err(refusal) => {
                    info!(reason = refusal.reason().as_str(), "run refused before it was started");
                    tally.refused(refusal.reason());
                    traced.refused(refusal.reason());
                    // From the journal first: once it is gone from the table, the same call may come again.
                    diary.refused().await;
                    runner.inner.table.remove(&run);
                    run.events.finish(None, Event::Refused(refusal));
                }
            }
        };
        let mut tasks = self.inner.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Tasks that have ended are let go of here, so that the set holds those that go on.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task.instrument(span));
    }
}

impl Inner {
    /// A share of the memory for all runs, with these arguments.
    fn memory_for(&self, arguments: &[u8]) -> Result<Share, Refusal> {
        let mut share = self.memory.share();
        if share.take(arguments.len()) {
            return Ok(share);
        }
        let message = format!(
            "the arguments and outputs of all runs together take the {} MiB that they may (--max-output-memory), and these \
             arguments find no room: try again in {RETRY_AFTER:?}, or on another executor",
            self.memory.limit() >> 20
        );
        Err(Refusal::new(Reason::ExecutorFull, message).retry_after(RETRY_AFTER))
    }
}

fn limit(subprocess: &Subprocess, asked: Option<Duration>, most: Duration) -> Duration {
    let own = Duration::from_secs(subprocess.timeout_seconds.into()).min(most);
    asked.map_or(own, |asked| asked.min(own))
}

/// Held while large or costly arguments are looked at.
type Turn = Arc<OwnedSemaphorePermit>;

/// Looks at arguments on another thread, which keeps the turn when the caller leaves.
async fn blocking<T: Send + 'static>(turn: &Turn, f: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    let turn = Arc::clone(turn);
    let work = move || {
        let result = f();
        drop(turn);
        result
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| unchecked(&error))
}

fn unchecked(error: &dyn std::error::Error) -> Refusal {
    error!(%error, "a check of arguments did not end");
    Refusal::new(Reason::Internal, "the arguments could not be checked; the executor's log says why")
}
