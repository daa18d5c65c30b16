//! Spreads runs over all executors behind a name, as an orchestrator does:
//! `cargo run -p skillyard --example spread_runs -- log_summary '{"path": "sample.log"}' 20`.
//!
//! SKILLYARD_EXECUTOR is the URL of a headless Service, or several with commas between them. Each run goes to the next
//! executor; to another one when that one is full, drains, or is gone before it accepted; and after `accepted` only to the
//! one that did.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, io};

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::run_skill_request::Arguments;
use skillyard::pb::executor::v1::{Accepted, Finished, RunSkillRequest};
use skillyard::service::dial::{DialOptions, Dialer};
use skillyard::service::error::DOMAIN;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::{Code, ConnectError, Status};
use tonic_types::StatusExt as _;

/// These started nothing, and another executor may.
const ELSEWHERE: [&str; 4] = ["EXECUTOR_FULL", "DRAINING", "NOT_READY", "PACKAGE_NOT_MIRRORED"];
/// How long one that does not answer may have the run still: it ends a run whose reader is gone for 5 s.
const GONE_AFTER: Duration = Duration::from_secs(8);
/// The connection, a proxy or a deadline spoke, and said nothing about the run.
const LOST: [Code; 5] = [Code::Unavailable, Code::Unknown, Code::Internal, Code::Cancelled, Code::ResourceExhausted];
const PAUSE: Duration = Duration::from_millis(500);
/// A run in all, with its waiting.
const LIMIT: Duration = Duration::from_secs(120);

type Failure = Box<dyn Error + Send + Sync>;

/// The executors behind some URLs, with a connection each.
struct Executors {
    urls: Vec<(String, Dialer)>,
    known: Mutex<HashMap<String, Dialer>>,
    turn: AtomicUsize,
}

impl Executors {
    fn new(urls: &str, options: &DialOptions) -> Result<Self, Failure> {
        let dial = |url: &str| match Dialer::check(url, options) {
            Ok(dialer) => Ok((url.to_owned(), dialer.configured(|endpoint| endpoint.connect_timeout(PAUSE * 4)))),
            Err(faults) => Err(format!("{url}: {faults:?}")),
        };
        let urls = urls.split(',').map(dial).collect::<Result<_, _>>()?;
        Ok(Self { urls, known: Mutex::default(), turn: AtomicUsize::new(0) })
    }

    /// The next of all that the names have now, and how many there are.
    async fn next(&self) -> Result<(String, usize), Failure> {
        let mut every = Vec::new();
        for (url, dialer) in &self.urls {
            let authority = url.rsplit("://").next().unwrap_or(url).trim_end_matches('/');
            for address in tokio::net::lookup_host(authority).await? {
                every.push(address.to_string());
                if let Entry::Vacant(unknown) = self.known().entry(address.to_string()) {
                    let found = dialer.elsewhere(unknown.key());
                    unknown.insert(found.map_err(|faults| format!("{url}: {faults:?}"))?);
                }
            }
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let next = every.get(turn % every.len().max(1)).cloned().ok_or("the names lead nowhere")?;
        Ok((next, every.len()))
    }

    /// The one at this address, which a name had or an executor told.
    fn at(&self, address: &str) -> Result<ExecutorServiceClient<Dialer>, Failure> {
        let known = self.known().get(address).cloned();
        let told = || self.urls[0].1.elsewhere(address).map_err(|faults| format!("{address}: {faults:?}"));
        Ok(ExecutorServiceClient::new(known.map_or_else(told, Ok)?))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Dialer>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One run, in however many calls; all carry one `run_id`.
async fn run(executors: &Executors, request: RunSkillRequest) -> Result<(Accepted, Finished), Failure> {
    let (mut address, mut every) = executors.next().await?;
    // Whether it may have the run, since when it cannot be connected to, and how many would not have it.
    let (mut reached, mut silent, mut refused) = (false, None, 0);
    let mut accepted = None;
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let status = match follow(executors.at(&address)?, request.clone(), &mut accepted).await {
            Ok(finished) => return Ok((accepted.unwrap_or_default(), finished)),
            Err(status) => status,
        };
        let connected = !is_connect(&status);
        silent = if connected { None } else { silent.or_else(|| Some(Instant::now())) };
        let gone = silent.is_some_and(|since| since.elapsed() > GONE_AFTER);
        let details = status.get_error_details();
        let elsewhere = match details.error_info().filter(|info| info.domain == DOMAIN) {
            Some(info) if ELSEWHERE.contains(&info.reason.as_str()) => true,
            None if LOST.contains(&status.code()) => match &accepted {
                None => gone || !(connected || reached),
                Some(Accepted { endpoint, run_id, .. }) if gone => {
                    return Err(format!("{endpoint} is gone: how {run_id} ended is in the registry's history").into());
                }
                Some(Accepted { endpoint, .. }) => {
                    address.clone_from(endpoint);
                    false
                }
            },
            // No attempt will do better.
            _ => return Err(Box::new(status)),
        };
        reached = connected && !elsewhere;
        if elsewhere {
            (address, every) = executors.next().await?;
            (accepted, silent, refused) = (None, None, refused + 1);
        }
        if !elsewhere || refused % every == 0 {
            sleep(details.retry_info().and_then(|retry| retry.retry_delay).unwrap_or(PAUSE)).await;
        }
    }
    Err(format!("run {} had not ended after {LIMIT:?}", request.run_id).into())
}

/// One call, to the run's end.
async fn follow(
    mut executor: ExecutorServiceClient<Dialer>,
    request: RunSkillRequest,
    accepted: &mut Option<Accepted>,
) -> Result<Finished, Status> {
    let mut events = executor.run_skill(request).await?.into_inner();
    while let Some(message) = events.message().await? {
        match message.event.and_then(|event| event.event) {
            Some(Event::Accepted(told)) => *accepted = Some(told),
            Some(Event::Finished(finished)) => return Ok(finished),
            _ => {}
        }
    }
    Err(Status::unavailable("the stream ended before the run did"))
}

/// Whether there was no connection, so that nothing was sent.
fn is_connect(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

async fn spread(skill: String, arguments: String, count: usize) -> Result<BTreeMap<String, usize>, Failure> {
    let urls = env::var("SKILLYARD_EXECUTOR").unwrap_or_else(|_| "http://127.0.0.1:50052".to_owned());
    let path = |name: &str| env::var_os(name).map(Into::into);
    let options =
        DialOptions { token_file: path("SKILLYARD_TOKEN_FILE"), ca: path("SKILLYARD_CA"), ..Default::default() };
    let executors = Arc::new(Executors::new(&urls, &options)?);
    let mut runs = JoinSet::new();
    for _ in 0..count {
        let executors = Arc::clone(&executors);
        let run_id = uuid::Uuid::new_v4().to_string();
        let arguments = Some(Arguments::ArgsJson(arguments.clone()));
        let request = RunSkillRequest { skill: skill.clone(), arguments, run_id, ..RunSkillRequest::default() };
        runs.spawn(async move { run(&executors, request).await });
    }
    let mut ended = BTreeMap::new();
    while let Some(run) = runs.join_next().await {
        let (accepted, finished) = run??;
        *ended.entry(format!("{} {}", accepted.executor, finished.outcome().as_str_name())).or_default() += 1;
    }
    Ok(ended)
}

fn main() -> Result<(), Failure> {
    let mut words = env::args().skip(1);
    let (skill, arguments) = (words.next().ok_or("which skill?")?, words.next().unwrap_or_else(|| "{}".to_owned()));
    let count = words.next().map_or(Ok(10), |word| word.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (what, runs) in runtime.block_on(spread(skill, arguments, count))? {
        writeln!(io::stdout(), "{runs} {what}")?;
    }
    Ok(())
}
