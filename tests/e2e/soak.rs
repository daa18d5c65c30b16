//! Many runs of every kind, which their callers leave alone, cancel, leave, come back to and repeat in an order that a seed
//! decides: each ends once, as what it does says, and all of them together leave nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::{CancelRunRequest, Finished, Outcome};
use skillyard_tests::random::{Random, seed};
use skillyard_tests::run::{Live, in_short};
use skillyard_tests::world::endpoint;
use skillyard_tests::{Call, PATIENCE, Refused, RunSeen, Skill, World, call, pack, process, remains, within};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::history::records;

/// Clients at once.
const CLIENTS: usize = 16;
const SLOTS: usize = 8;

/// A kind of skill.
#[derive(Debug)]
struct Kind {
    skill: &'static str,
    /// How often, beside the others.
    weight: u64,
    script: &'static str,
    /// How it ends where nobody ends it.
    fits: Outcome,
    /// What it answers where it succeeds; a long answer is told by its length.
    result: &'static str,
}

const fn kind(skill: &'static str, weight: u64, fits: Outcome, script: &'static str) -> Kind {
    Kind { skill, weight, script, fits, result: "{}\n" }
}

const KINDS: [Kind; 14] = [
    Kind { result: pack::TINY_RESULT, ..kind("tiny", 30, Outcome::Succeeded, "") },
    kind("says", 10, Outcome::Succeeded, "echo one >&2; echo two >&2; printf three >&2; echo '{}'"),
    kind(
        "progress",
        5,
        Outcome::Succeeded,
        "for i in 1 2 3; do echo \"::progress {\\\"progress\\\": $i, \\\"total\\\": 3}\" >&2; /bin/sleep 0.02; done; echo '{}'",
    ),
    Kind {
        result: "",
        ..kind(
            "large",
            5,
            Outcome::Succeeded,
            "printf '\"'; /usr/bin/head -c 2000000 /dev/zero | /usr/bin/tr '\\0' x; printf '\"'",
        )
    },
    kind("floods", 3, Outcome::Succeeded, "/usr/bin/seq 200000 >&2; echo '{}'"),
    kind("fails", 10, Outcome::Failed, "echo why >&2; exit 3"),
    kind("nonsense", 3, Outcome::InvalidResult, "echo '{} {}'"),
    kind("dies", 5, Outcome::Signaled, "kill -SEGV $$"),
    kind(
        "family",
        8,
        Outcome::Succeeded,
        "( /bin/sleep 600 & ) ; ( setsid /bin/sleep 600 >/dev/null 2>&1 & ) ; /bin/sleep 600 >/dev/null 2>&1 & echo '{}'",
    ),
    kind(
        "scratch",
        5,
        Outcome::Succeeded,
        "cd \"$TMPDIR\" && /bin/mkdir -p a/b && echo x >a/b/c && /bin/ln -s / a/root && /bin/chmod 0 a/b && echo '{}'",
    ),
    kind("naps", 5, Outcome::TimedOut, "echo up >&2; /bin/sleep 600"),
    kind("deaf", 2, Outcome::TimedOut, "trap '' TERM; while :; do /bin/sleep 0.1; done"),
    kind("kills", 2, Outcome::Lost, "( setsid /bin/sleep 600 & ) ; kill -9 $PPID; /bin/sleep 600"),
    kind("stops", 2, Outcome::Lost, "kill -STOP $PPID; /bin/sleep 600"),
];

/// What a caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Reads to the end.
    Alone,
    /// Cancels after a while.
    Cancels,
    /// Gives the call so long, queue included.
    Deadline,
    /// Reads a little, and goes.
    Leaves,
    /// Likewise, and its whole connection goes with it.
    Disconnects,
    /// Reads a little, goes, and makes the same call again.
    Repeats,
    /// Makes the same call twice at once.
    Twice,
}

const WAYS: [(Way, u64); 7] = [
    (Way::Alone, 60),
    (Way::Cancels, 12),
    (Way::Deadline, 6),
    (Way::Leaves, 8),
    (Way::Disconnects, 4),
    (Way::Repeats, 5),
    (Way::Twice, 5),
];

/// A run, as the seed has it.
#[derive(Debug)]
struct Plan {
    n: usize,
    seed: u64,
    kind: &'static Kind,
    way: Way,
    /// Whether the caller chooses the run's id.
    named: bool,
    /// How many events are read before the caller does what it does.
    events: u64,
    /// How long it then waits.
    pause: Duration,
}

impl Plan {
    fn of(seed: u64, n: usize) -> Self {
        let mut random = Random::of(seed, n as u64);
        let kind = random.pick(&KINDS, |kind| kind.weight);
        let way = random.pick(&WAYS, |way| way.1).0;
        let named = matches!(way, Way::Repeats | Way::Twice | Way::Deadline) || random.below(5) == 0;
        let (events, pause) = (random.below(4), random.time_below(Duration::from_millis(60)));
        Self { n, seed, kind, way, named, events, pause }
    }

    fn call(&self) -> Call {
        let mut asked = call(self.kind.skill).label("n", &self.n.to_string());
        if self.named {
            asked = asked.run_id(&format!("soak-{}-{}", self.seed, self.n));
        }
        if self.way == Way::Deadline {
            asked = asked.deadline(self.pause * 5 + Duration::from_millis(1));
        }
        match self.kind.skill {
            "deaf" => asked.timeout(Duration::from_millis(300)),
            "naps" => asked.timeout(Duration::from_millis(500)),
            _ => asked,
        }
    }

    /// Whether a run may end so.
    fn fits(&self, finished: &Finished) -> bool {
        let (outcome, reason) = (finished.outcome(), finished.reason.as_str());
        let ended = match self.way {
            Way::Alone | Way::Twice => false,
            Way::Cancels => (outcome, reason) == (Outcome::Cancelled, "CANCEL_REQUESTED"),
            Way::Deadline => (outcome, reason) == (Outcome::TimedOut, "DEADLINE"),
            Way::Leaves | Way::Disconnects | Way::Repeats => (outcome, reason) == (Outcome::Cancelled, "CALLER_GONE"),
        };
        ended || outcome == self.kind.fits
    }

    /// What a caller saw to the end.
    fn check(&self, seen: &RunSeen) {
        assert!(self.fits(&seen.finished), "{self:?}: {:?}", seen.finished);
        if seen.finished.outcome() == Outcome::Succeeded {
            let whole = if self.kind.result.is_empty() {
                seen.result.len() == 2_000_002
            } else {
                seen.result == self.kind.result
            };
            assert!(whole, "{self:?}: {} bytes of result", seen.result.len());
        }
    }
}

/// Reads so many events at the most, and then waits.
async fn a_little(live: &mut Live, plan: &Plan) {
    for _ in 0..plan.events {
        if live.next().await.unwrap_or_else(|status| panic!("{plan:?}: {status:?}")).is_none() {
            break;
        }
    }
    tokio::time::sleep(plan.pause).await;
}

/// Makes one run, and returns what its caller saw of its end.
async fn make(world: &Doors, plan: &Plan) -> Option<RunSeen> {
    let try_open = async |client: &ExecutorServiceClient<Channel>| Live::open(client.clone(), plan.call()).await;
    let open = async |client| try_open(client).await.unwrap_or_else(|status| panic!("{plan:?}: {status:?}"));
    match plan.way {
        Way::Alone => Some(open(&world.shared).await.rest().await),
        Way::Twice => {
            let (one, other) = (open(&world.shared).await, open(&world.shared).await);
            let (one, other) = tokio::join!(one.rest(), other.rest());
            assert_eq!((&one.finished, &one.result), (&other.finished, &other.result), "{plan:?}");
            Some(one)
        }
        Way::Cancels => {
            let mut live = open(&world.shared).await;
            let run_id = live.accepted().await.run_id;
            a_little(&mut live, plan).await;
            let request = CancelRunRequest { run_id, reason: "soak".to_owned() };
            if let Err(status) = world.shared.clone().cancel_run(request).await {
                // It ended, and longer ago than ended runs are kept.
                assert!(is_gone(&status), "{plan:?}: {status:?}");
            }
            Some(live.rest().await)
        }
        Way::Deadline => {
            let result = match try_open(&world.shared).await {
                Ok(live) => live.end().await,
                Err(status) => Err(status),
            };
            // The client's own clock may be the first, and says so in one of two ways.
            let by_itself = |code| matches!(code, Code::DeadlineExceeded | Code::Cancelled);
            assert!(
                result.as_ref().err().is_none_or(|status| by_itself(status.code())),
                "{plan:?}: {}",
                in_short(&result)
            );
            result.ok()
        }
        Way::Leaves => {
            a_little(&mut open(&world.shared).await, plan).await;
            None
        }
        Way::Disconnects => {
            let own = endpoint(world.address).connect().await.unwrap();
            a_little(&mut open(&ExecutorServiceClient::new(own)).await, plan).await;
            None
        }
        Way::Repeats => {
            a_little(&mut open(&world.shared).await, plan).await;
            match try_open(&world.shared).await {
                Ok(live) => Some(live.rest().await),
                Err(status) => {
                    assert!(is_gone(&status), "{plan:?}: {status:?}");
                    None
                }
            }
        }
    }
}

/// Whether a run is not known any more because it ended long ago.
fn is_gone(status: &Status) -> bool {
    let refused = Refused::of(status);
    matches!(refused.short(), (Code::FailedPrecondition, "RESULT_EXPIRED") | (Code::NotFound, "UNKNOWN_RUN"))
}

/// Ways to the executor.
#[derive(Clone, Debug)]
struct Doors {
    shared: ExecutorServiceClient<Channel>,
    address: std::net::SocketAddr,
}

/// The runs of these numbers, and what was seen of each.
async fn runs(world: &mut World, seed: u64, numbers: std::ops::Range<usize>) -> BTreeMap<usize, Option<Finished>> {
    let doors = Doors { shared: world.executor(), address: world.executor_address() };
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (doors, next, end) = (doors.clone(), Arc::clone(&next), numbers.end);
        clients.spawn(async move {
            let mut seen = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= end {
                    return seen;
                }
                let plan = Plan::of(seed, n);
                let run = make(&doors, &plan).await;
                run.iter().for_each(|run| plan.check(run));
                seen.push((n, run.map(|run| run.finished)));
            }
        });
    }
    let mut seen = BTreeMap::new();
    while let Some(done) = clients.join_next().await {
        seen.extend(done.unwrap());
    }
    seen
}

/// How many runs: `SKILLYARD_TEST_SOAK_RUNS`, which is bounded by patience alone.
fn wanted() -> usize {
    let given = std::env::var("SKILLYARD_TEST_SOAK_RUNS").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(if skillyard_tests::long() { 20_000 } else { 600 })
}

#[tokio::test]
async fn mixed_runs_end_once_each_and_leave_nothing() {
    let seed = seed();
    let count = wanted();
    // What ended runs are kept for is not what this is about, and they are soon gone.
    let builder = World::builder().slots(SLOTS as u32, 1000).flag("--keep-finished", "3s").skill(Skill::tiny("tiny"));
    let scripts = KINDS.iter().filter(|kind| !kind.script.is_empty());
    let skills = scripts.map(|kind| Skill::sh(kind.skill, kind.script).set("env_allow", vec!["TMPDIR"]));
    let mut world = skills.fold(builder, skillyard_tests::world::Builder::skill).start().await;
    let pids = [world.executor_server().pid(), world.registry_server().pid()];

    let mut seen = runs(&mut world, seed, 0..count / 10).await;
    let slots = remains::only_slots(&mut world, SLOTS).await.len();
    let before = pids.map(remains::Held::of);
    seen.extend(runs(&mut world, seed, count / 10..count).await);
    let left = remains::only_slots(&mut world, SLOTS).await;
    for slot in &left {
        let files = process::open_files(slot.pid);
        assert!(files < 16, "{files} descriptors in {slot:?}");
    }
    for (name, (pid, before)) in ["executor", "registry"].into_iter().zip(pids.into_iter().zip(&before)) {
        // The registry's database grows, and some of its pages are in memory.
        let of_long = if name == "executor" { before.memory / 10 } else { 24 << 20 };
        let most = if skillyard_tests::long() { of_long } else { 64 << 20 };
        let now = before.no_more_is_held(pid, most, left.len().saturating_sub(slots)).await;
        eprintln!("{name}, {count} runs: {} MiB before, {} MiB now", before.memory >> 20, now.memory >> 20);
    }

    let began = Instant::now();
    // Each is in the record, once, with the end that its caller saw.
    let mut records = Vec::new();
    let (missing, _) = {
        // Where the deadline came first, there may have been no run.
        let known = |n: &usize| seen[n].is_some() || Plan::of(seed, *n).way != Way::Deadline;
        let look = async || {
            records = all_records(&mut world).await;
            let recorded: BTreeSet<_> = records.iter().map(|(n, _)| *n).collect();
            let missing: Vec<_> = (0..count).filter(|n| known(n) && !recorded.contains(n)).collect();
            (missing.is_empty() || began.elapsed() > PATIENCE).then_some(missing)
        };
        within(2 * PATIENCE, "all runs are recorded", look).await
    };
    assert!(
        missing.is_empty(),
        "without a record: {:#?}",
        missing.iter().map(|n| Plan::of(seed, *n)).collect::<Vec<_>>()
    );
    let mut recorded = BTreeSet::new();
    for (n, finished) in records {
        let plan = Plan::of(seed, n);
        assert!(plan.fits(&finished), "{plan:?}: {finished:?}");
        assert!(
            seen[&n].as_ref().is_none_or(|seen| *seen == finished),
            "{plan:?}: {finished:?}, and not {:?}",
            seen[&n]
        );
        assert!(recorded.insert(n), "{plan:?} has two records");
    }
}

/// The ends that are recorded, by the numbers of their runs.
async fn all_records(world: &mut World) -> Vec<(usize, Finished)> {
    let found = records(world.history()).await.into_values().map(|record| record.run.unwrap());
    found.map(|run| (run.labels["n"].parse().unwrap(), run.finished.unwrap())).collect()
}
