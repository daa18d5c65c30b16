//! What a run costs in system calls, which no load of the machine changes, against what is written down in `syscalls.txt`.
//! Skipped, and said so, where there is no strace.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use skillyard_tests::{Call, Live, Skill, World, call, eventually};

/// Runs that are counted; what happens now and then, as a new slot, is in few of them.
const RUNS: usize = 60;
/// Runs before, so that all is warm.
const BEFORE: usize = 10;
/// So many percent more than is written down are too many; by so many less, it is out of date.
const SLACK: usize = 10;
/// Calls that depend on what else happens at the moment; on how it was built, as checks of descriptors; and on the C
/// library, which sets one signal after the other before it starts a program.
const NOT_COUNTED: [&str; 6] = ["epoll_wait", "futex", "restart_syscall", "sched_yield", "fcntl", "rt_sigaction"];
const WRITTEN_DOWN: &str = include_str!("syscalls.txt");

/// Who makes them: the executor's one thread, a slot's own, and a process on its way from the slot to the skill.
const WHO: [&str; 3] = ["executor", "slot", "spawn"];

type Calls = [BTreeMap<String, usize>; WHO.len()];

#[tokio::test]
async fn a_run_makes_no_more_system_calls_than_is_written_down() {
    // Where nobody else comes and goes, for that costs new slots.
    let builder = World::builder_in(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let log = builder.path("strace.log");
    let builder = match builder.known_callers().slots(1, 4).skill(Skill::tiny("tiny")).traced(&log) {
        Ok(builder) => builder,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut world = builder.start().await;
    let client = world.executor_as("orchestrator");
    let tiny = || -> Call { call("tiny").args(r#"{"days":7}"#) };
    // One more ends the last.
    for _ in 0..=BEFORE + RUNS {
        Live::open(client.clone(), tiny()).await.unwrap().rest().await;
    }
    let mut runs = Vec::new();
    eventually("the log of all runs is written", async || {
        runs = by_run(&std::fs::read_to_string(&log).unwrap());
        runs.len() >= BEFORE + RUNS
    })
    .await;
    let runs = &runs[BEFORE..BEFORE + RUNS];
    for (i, who) in WHO.iter().enumerate() {
        let mut counts: Vec<_> = runs.iter().map(|run| run[i].values().sum::<usize>()).collect();
        counts.sort_unstable();
        let count = counts[RUNS / 2];
        let line = WRITTEN_DOWN.lines().find_map(|line| line.strip_prefix(who)).unwrap();
        let bound: usize = line.trim().parse().unwrap();
        let one = runs.iter().find(|run| run[i].values().sum::<usize>() == count);
        println!("{who}: {count} system calls a run, {bound} written down: {:?}", one.map(|run| &run[i]));
        assert!(
            count * 100 <= bound * (100 + SLACK),
            "the {who} makes {count} system calls a run, and {bound} are written down in tests/e2e/syscalls.txt: {one:?}"
        );
        assert!(
            count * 100 >= bound * (100 - SLACK),
            "the {who} makes {count} system calls a run, fewer than the {bound} in tests/e2e/syscalls.txt: write that down"
        );
    }
}

/// The calls between one job's handing over and the next one's, for each job. A call counts when it returns, unless it
/// found nothing.
fn by_run(log: &str) -> Vec<Calls> {
    let mut runs: Vec<Calls> = Vec::new();
    let mut who: HashMap<&str, Option<usize>> = HashMap::new();
    // A process between its birth and its first program: whether it becomes a skill is known then.
    let mut newborn: HashMap<&str, BTreeMap<String, usize>> = HashMap::new();
    for line in log.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        let first = who.is_empty();
        let role = *who.entry(pid).or_insert(first.then_some(0));
        let name =
            rest.strip_prefix("<... ").unwrap_or(rest).split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
        let Some(name) = name.filter(|name| !name.is_empty() && !NOT_COUNTED.contains(name)) else { continue };
        if rest.starts_with("sendmsg(") && role == Some(0) {
            runs.push(Calls::default());
        }
        if name == "execve" && role.is_none() && rest.contains("\"slot\"") {
            who.insert(pid, Some(1));
            continue;
        }
        if rest.contains("unfinished ...>") || rest.contains("EAGAIN") {
            if name == "execve" && rest.contains("/store/") {
                newborn.entry(pid).or_default();
            }
            if !(name == "execve" && role.is_none()) {
                continue;
            }
        }
        match (role, runs.last_mut()) {
            (Some(who), Some(run)) => *run[who].entry(name.to_owned()).or_default() += 1,
            (None, Some(run)) => {
                let calls = newborn.entry(pid).or_default();
                *calls.entry(name.to_owned()).or_default() += 1;
                if name == "execve" && rest.contains("/store/") {
                    run[2] = newborn.remove(pid).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    runs.pop();
    runs
}
