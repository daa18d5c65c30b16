//! Slots, the registry and the executor are killed at random while clients run skills; afterwards the record of what ran is
//! compared with what the clients saw, and with what the skills did.
//!
//! What must hold: a run that a client saw end has one record, with that end; one that was cut off has one at most; a run
//! with an approval is made once at most. A safe run is written down about 100 ms after it happened, so that of one that
//! ended just before the executor was killed the record may miss the end, or all of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::{Finished, Outcome};
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard::pb::registry::v1::request_approval_request::Arguments;
use skillyard::pb::registry::v1::{RequestApprovalRequest, SignApprovalRequest};
use skillyard_tests::access::Door;
use skillyard_tests::random::{Random, seed};
use skillyard_tests::run::{Live, in_short};
use skillyard_tests::{AgentFile, Call, PATIENCE, Refused, RunSeen, Skill, World, call, process, remains, within};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Status;

use crate::approvals::AGENT;
use crate::history::records;

/// Clients that repeat a call until they know what became of it, such that do not, and such that want approvals.
const PATIENT: usize = 3;
const HASTY: usize = 2;
const APPROVED: usize = 3;
const SLOTS: usize = 6;
/// In which what happened to a safe run is surely written down, on a machine that has much to do.
const WRITTEN_WITHIN: Duration = Duration::from_secs(3);

/// The ways to the services, which change as these are started again.
#[derive(Clone, Debug)]
struct Doors {
    executor: watch::Receiver<ExecutorServiceClient<Door>>,
    planner: ApprovalServiceClient<Door>,
    approver: ApprovalServiceClient<Door>,
    /// Numbers for runs.
    next: Arc<AtomicUsize>,
    /// Whether clients are to begin nothing new.
    over: Arc<AtomicBool>,
    seed: u64,
}

/// What a client knows of a run in the end.
#[derive(Debug)]
enum Fate {
    /// It saw it end, then.
    Ended(Box<Finished>, Instant),
    /// It was told that it ended so; its events are gone.
    Expired(Outcome),
    /// It was refused: nothing was started.
    Refused,
    /// The connection broke, and it did not ask again.
    CutOff,
}

/// A run, and what became of it.
#[derive(Debug)]
struct Known {
    skill: &'static str,
    fate: Fate,
}

/// One attempt.
#[derive(Debug)]
enum Attempt {
    Ended(Box<RunSeen>),
    Refused(Refused, Status),
    Broken,
}

async fn attempt(doors: &Doors, call: Call) -> Attempt {
    let client = doors.executor.borrow().clone();
    let result = match Live::open(client, call).await {
        Ok(live) => live.end().await,
        Err(status) => Err(status),
    };
    match result {
        Ok(seen) => Attempt::Ended(Box::new(seen)),
        Err(status) if Refused::of(&status).domain == "skillyard" => Attempt::Refused(Refused::of(&status), status),
        Err(_) => Attempt::Broken,
    }
}

/// Whether the same call may do better later, as the README's table says.
fn comes_again(reason: &str) -> bool {
    ["EXECUTOR_FULL", "NOT_READY", "PACKAGE_NOT_MIRRORED", "REGISTRY_UNAVAILABLE"].contains(&reason)
}

/// Calls until it is known what became of the run.
async fn to_the_end(doors: &Doors, call: &Call) -> Fate {
    let began = Instant::now();
    loop {
        match attempt(doors, call.clone()).await {
            Attempt::Ended(seen) => return Fate::Ended(Box::new(seen.finished), Instant::now()),
            Attempt::Refused(refused, status) if refused.reason == "RESULT_EXPIRED" => {
                return Fate::Expired(outcome_of(&status));
            }
            Attempt::Refused(refused, _) => assert!(comes_again(&refused.reason), "{call:?}: {refused:?}"),
            Attempt::Broken => {}
        }
        assert!(began.elapsed() < PATIENCE, "{call:?} comes to no end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What `outcome` in the metadata of a refusal says.
fn outcome_of(status: &Status) -> Outcome {
    use tonic_types::StatusExt as _;
    let info = status.get_error_details().error_info().unwrap().clone();
    Outcome::from_str_name(&format!("OUTCOME_{}", info.metadata["outcome"])).unwrap()
}

/// A signed approval for a call of this skill; the registry may be away.
async fn approval(doors: &Doors, skill: &str, args: &str) -> String {
    let began = Instant::now();
    let mut id = None;
    loop {
        let answer = match &id {
            None => {
                let request = RequestApprovalRequest {
                    agent: AGENT.into(),
                    skill: skill.into(),
                    arguments: Some(Arguments::ArgsJson(args.into())),
                    ..Default::default()
                };
                let answer = doors.planner.clone().request_approval(request).await;
                answer.map(|answer| id = answer.into_inner().approval.map(|approval| approval.id)).map(|()| false)
            }
            Some(id) => {
                let request = SignApprovalRequest { id: id.clone(), approve: true, comment: String::new() };
                doors.approver.clone().sign_approval(request).await.map(|_| true)
            }
        };
        match (answer.map_err(|status| (Refused::of(&status).reason, status)), id.clone()) {
            (Ok(true), Some(id)) => return id,
            // The answer to the signature was lost.
            (Err((reason, _)), Some(id)) if reason == "ALREADY_SIGNED" || reason == "APPROVAL_INVALID" => return id,
            (Ok(_), _) => {}
            (Err((reason, status)), _) => {
                assert!(["", "NOT_READY", "STORE_UNAVAILABLE"].contains(&&*reason), "{skill} {args}: {status:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        assert!(began.elapsed() < PATIENCE, "the registry does not come back");
    }
}

/// Makes runs, one after the other, until it is over.
async fn client(doors: Doors, kind: usize) -> Vec<(usize, Known)> {
    let mut known = Vec::new();
    while !doors.over.load(Ordering::Relaxed) {
        let n = doors.next.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::of(doors.seed, n as u64);
        let skill = *random.pick(&["quick", "slow", "family", "fails"], |_| 1);
        let label = |call: Call| call.agent(AGENT).label("n", &n.to_string());
        let run_id = format!("chaos-{}-{n}", doors.seed);
        let (skill, fate) = if kind < PATIENT {
            (skill, to_the_end(&doors, &label(call(skill)).run_id(&run_id)).await)
        } else if kind < PATIENT + HASTY {
            let named = random.below(2) == 0;
            let asked = label(call(skill)).run_id(if named { &run_id } else { "" });
            let fate = match attempt(&doors, asked).await {
                Attempt::Ended(seen) => Fate::Ended(Box::new(seen.finished), Instant::now()),
                Attempt::Refused(refused, _) => {
                    assert!(comes_again(&refused.reason), "{n}: {refused:?}");
                    Fate::Refused
                }
                Attempt::Broken => {
                    // Nobody may listen just now.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    Fate::CutOff
                }
            };
            (skill, fate)
        } else {
            let args = format!("{{\"n\":{n}}}");
            let id = approval(&doors, "changes", &args).await;
            let asked = label(call("changes")).args(args).approval(&id).run_id(&run_id);
            ("changes", to_the_end(&doors, &asked).await)
        };
        known.push((n, Known { skill, fate }));
    }
    known
}

/// What chaos did, in numbers, and when it killed the executor.
#[derive(Debug, Default)]
struct Done {
    slots: usize,
    registry: usize,
    executor: Vec<Instant>,
}

/// Kills for so long.
async fn chaos(
    world: &mut World,
    doors: &watch::Sender<ExecutorServiceClient<Door>>,
    seed: u64,
    long: Duration,
) -> Done {
    // Numbers that no run has.
    let mut random = Random::of(seed, u64::MAX);
    let (began, mut done) = (Instant::now(), Done::default());
    for act in 0.. {
        // The first ones are of each kind, however short it is.
        let what = match act {
            0..4 => [0, 8, 0, 9][act],
            _ if began.elapsed() > long => break,
            _ => random.below(10),
        };
        tokio::time::sleep(random.time_below(Duration::from_millis(800))).await;
        match what {
            0..8 => {
                let slots: Vec<_> =
                    process::descendants(world.executor_server().pid()).into_iter().filter(remains::is_slot).collect();
                if slots.is_empty() {
                    continue;
                }
                for _ in 0..=random.below(2) {
                    let slot = random.pick(&slots, |_| 1);
                    let signal = *random.pick(&[Signal::KILL, Signal::STOP], |_| 1);
                    // It may have ended meanwhile.
                    let _ = kill_process(Pid::from_raw(slot.pid).unwrap(), signal);
                    done.slots += 1;
                }
            }
            8 => {
                world.kill_registry();
                tokio::time::sleep(random.time_below(Duration::from_millis(1500))).await;
                world.start_registry().await;
                done.registry += 1;
            }
            _ => {
                // Now and then again, before it is up.
                for _ in 0..=random.below(4) / 3 {
                    world.kill_executor();
                    done.executor.push(Instant::now());
                    world.launch_executor();
                }
                doors.send_replace(world.executor_as("orchestrator"));
                world.executor_serves().await;
            }
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_recorded_is_what_was_seen_whoever_is_killed() {
    let seed = seed();
    let long = Duration::from_secs(if skillyard_tests::long() { 600 } else { 10 });
    let builder = World::builder().known_callers().slots(SLOTS as u32, 100).agent(&AgentFile::new(AGENT).mode(AGENT));
    // In a directory of its own: skills make nothing new in one that leads to the state.
    std::fs::create_dir(builder.path("effects")).unwrap();
    let effects = builder.path("effects/lines");
    let mut world = builder
        .skill(Skill::sh("quick", "echo '{}'"))
        .skill(Skill::sh("slow", "echo here >&2; /bin/sleep 0.3; echo there >&2; echo '{}'"))
        .skill(Skill::sh("family", "( setsid /bin/sleep 600 & ) ; /bin/sleep 0.1; echo '{}'"))
        .skill(Skill::sh("fails", "/bin/sleep 0.05; exit 3"))
        .skill(
            Skill::sh(
                "changes",
                &format!("read -r line; echo \"$line\" >>{}; /bin/sleep 0.1; echo '{{}}'", effects.display()),
            )
            .set("class", "mutating"),
        )
        .start()
        .await;
    let (sender, executor) = watch::channel(world.executor_as("orchestrator"));
    let doors = Doors {
        executor,
        planner: ApprovalServiceClient::new(world.registry_as("orchestrator")),
        approver: ApprovalServiceClient::new(world.registry_as("ann")),
        next: Arc::default(),
        over: Arc::default(),
        seed,
    };
    let mut clients: JoinSet<_> = (0..PATIENT + HASTY + APPROVED).map(|kind| client(doors.clone(), kind)).collect();
    let done = chaos(&mut world, &sender, seed, long).await;
    doors.over.store(true, Ordering::Relaxed);
    let mut known = BTreeMap::new();
    while let Some(of_one) = clients.join_next().await {
        known.extend(of_one.unwrap());
    }
    remains::only_slots(&mut world, SLOTS).await;

    let lines = std::fs::read_to_string(&effects).unwrap_or_default();
    let (recorded, excused) = compare(&mut world, &known, &done).await;
    for (n, Known { skill, fate }) in known.iter().filter(|(_, known)| known.skill == "changes") {
        let made = lines.lines().filter(|line| *line == format!("{{\"n\":{n}}}")).count();
        let succeeded = matches!(fate, Fate::Ended(finished, _) if finished.outcome() == Outcome::Succeeded)
            || matches!(fate, Fate::Expired(Outcome::Succeeded));
        assert!(made <= 1 && (made == 1 || !succeeded), "{skill} {n} was made {made} times: {fate:?}");
    }
    let lost = |known: &&Known| matches!(&known.fate, Fate::Ended(finished, _) if finished.outcome() == Outcome::Lost);
    eprintln!(
        "{} runs, {recorded} records, {excused} written too late; {} saw LOST, {} RESULT_EXPIRED, {} cut off; killed: {} slots, the registry {} times, the executor {} times",
        known.len(),
        known.values().filter(lost).count(),
        known.values().filter(|known| matches!(known.fate, Fate::Expired(_))).count(),
        known.values().filter(|known| matches!(known.fate, Fate::CutOff)).count(),
        done.slots,
        done.registry,
        done.executor.len(),
    );
    // All is as it was before.
    let asked = call("quick").agent(AGENT);
    let last = Live::open(world.executor_as("orchestrator"), asked).await.unwrap().end().await;
    assert_eq!(in_short(&last), "SUCCEEDED");
}

/// Compares the record with what was seen, once all of it has arrived; how many there are, and how many are not as they
/// were seen, because the executor was killed just after.
async fn compare(world: &mut World, known: &BTreeMap<usize, Known>, done: &Done) -> (usize, usize) {
    let killed_just_after = |seen: Instant| {
        done.executor.iter().any(|kill| kill.checked_duration_since(seen).is_some_and(|then| then < WRITTEN_WITHIN))
    };
    let mut excused = 0;
    let mut look = |records: &BTreeMap<usize, Vec<Finished>>| -> Result<(), String> {
        excused = 0;
        for (n, Known { skill, fate }) in known {
            let of_run = records.get(n).map(Vec::as_slice).unwrap_or_default();
            let is_right = match (fate, of_run) {
                (Fate::Ended(seen, _), [record]) if **seen == *record => true,
                (Fate::Ended(_, at), [] | [_]) if *skill != "changes" && killed_just_after(*at) => {
                    excused += 1;
                    of_run.iter().all(|record| record.reason == "EXECUTOR_LOST")
                }
                (Fate::Expired(outcome), [record]) => record.outcome() == *outcome,
                (Fate::Refused, []) => true,
                (Fate::CutOff, [] | [_]) => true,
                _ => false,
            };
            if !is_right {
                return Err(format!("{skill} {n} is recorded as {of_run:?}, and was seen as {fate:?}"));
            }
        }
        Ok(())
    };
    let began = Instant::now();
    let (right, _) = within(2 * PATIENCE, "the record is complete", async || {
        let mut found: BTreeMap<usize, Vec<Finished>> = BTreeMap::new();
        for record in records(world.history()).await.into_values() {
            let run = record.run.unwrap();
            found.entry(run.labels["n"].parse().unwrap()).or_default().push(run.finished.unwrap());
        }
        match look(&found) {
            Ok(()) => Some(Ok(found.len())),
            Err(why) if began.elapsed() > PATIENCE / 2 => Some(Err(why)),
            Err(_) => None,
        }
    })
    .await;
    (right.unwrap(), excused)
}
