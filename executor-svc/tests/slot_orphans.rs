//! What becomes of slots when their executor is killed, and what they inherit from one that was started oddly. The
//! executor is this test program, started again with the name of the job in its environment; so that this process can
//! start and wait for it, it has no pool of its own.

#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use executor_svc::slot::{Exit, Flavour};
use rstest::rstest;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, set_child_subreaper, wait, waitid,
};
use support::{World, eventually, marked};

/// Which part the started executor plays.
const ROLE: &str = "SLOT_TEST_ROLE";

/// Both tests wait for all that is below this process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[rstest]
#[case::scoped("busy")]
#[case::walking("busy without scope")]
#[tokio::test]
async fn a_killed_executor_takes_every_tree_along(#[case] role: &str) {
    let _alone = ALONE.lock().await;
    // What escapes from the executor's slots ends up here, and is found.
    set_child_subreaper(Some(Pid::INIT)).expect("a subreaper");
    let mut executor = executor(&[], role);
    let mark = first_line(&mut executor);
    assert_eq!(marked(&mark).len(), 20 * 4, "{:?}", marked(&mark));

    let start = Instant::now();
    kill_process(Pid::from_child(&executor), Signal::KILL).expect("killed");
    eventually(Duration::from_secs(1), || match marked(&mark) {
        left if left.is_empty() => Ok(()),
        left => Err(left),
    })
    .await;
    // Nobody else is left either: the slots are gone too.
    eventually(Duration::from_secs(1).saturating_sub(start.elapsed()), || {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::All, any).is_err() { Ok(()) } else { Err(support::children(std::process::id() as i32)) }
    })
    .await;
}

#[tokio::test]
async fn ignored_and_blocked_signals_do_not_reach_the_skill() {
    let _alone = ALONE.lock().await;
    let odd = ["--ignore-signal=HUP,INT,TERM,CHLD,USR1", "--block-signal=USR2,QUIT,TERM"];
    let mut executor = executor(&odd, "signals");
    // 32 and 33 are the C library's, which spawns with them ignored.
    assert_eq!(first_line(&mut executor), "SigBlk: 0000000000000000 SigIgn: 0000000180000000");
    assert!(executor.wait().expect("waited for").success());
}

#[tokio::test]
async fn a_process_that_was_there_before_is_none_of_the_executors_business() {
    let _alone = ALONE.lock().await;
    // The first one's end is waited for, and the second one outlives a lost slot and its orphans.
    let mut executor = executor(&["sh", "-c", "sleep .01 & sleep 300 & exec \"$@\"", "sh"], "elder");
    assert_eq!(first_line(&mut executor), "[\"skillyard-slot\", \"sleep\"]");
    assert!(executor.wait().expect("waited for").success());
}

/// The parts. Does nothing in an ordinary run of the tests.
#[tokio::test]
async fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let world = World::new(role != "busy without scope");
    if role == "signals" {
        let outcome = world.sh("grep -E 'Sig(Blk|Ign)' /proc/self/status").await;
        println!("\n> {}", outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" "));
        return;
    }
    if role == "elder" {
        let lost = world.sh("setsid sleep 300 & kill -KILL $PPID").await;
        assert_eq!(lost.events.last(), Some(&"lost"));
        assert_eq!(world.sh("exit 0").await.exit, Some(Exit::Code(0)));
        world.nothing_is_left().await;
        let me = i32::try_from(std::process::id()).expect("a pid");
        let name =
            |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned();
        let mut children = eventually(Duration::from_secs(1), || {
            let children: Vec<(String, i32)> = support::children(me).into_iter().map(|pid| (name(pid), pid)).collect();
            if children.len() == 2 { Ok(children) } else { Err(children) }
        })
        .await;
        children.sort_unstable();
        println!("\n> {:?}", children.iter().map(|(name, _)| name).collect::<Vec<_>>());
        for (_, elder) in children.iter().filter(|(name, _)| name == "sleep") {
            kill_process(Pid::from_raw(*elder).expect("a pid"), Signal::KILL).expect("the elder's end");
        }
        return;
    }
    // Four processes each, deaf, and spread over sessions.
    let program = world.script("trap '' TERM HUP; setsid sleep 300 & (setsid sh -c 'sleep 300; true' &) ; read -r _");
    let mut runs = Vec::new();
    for _ in 0..20 {
        let mut slot = world.pool.take(Flavour::Safe).await.expect("a slot");
        let pipes = world.start(&mut slot, &program);
        runs.push((slot, pipes));
    }
    eventually(Duration::from_secs(10), || match world.left() {
        // Those that will be `sleep` are `sh` or `setsid` for a moment, and there nevertheless.
        all if all.len() == 80 && all.iter().filter(|process| process.contains("sleep 300")).count() == 60 => Ok(()),
        all => Err(all),
    })
    .await;
    println!("\n> {}", world.mark);
    // Until the end comes, by the test's hand.
    std::future::pending::<()>().await;
}

#[expect(clippy::disallowed_methods, reason = "an executor to be killed has to be started")]
fn executor(env: &[&str], role: &str) -> Child {
    let this = std::env::current_exe().expect("this program");
    Command::new("env")
        .args(env)
        .arg(this)
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .expect("an executor")
}

/// The first line that is ours, not the test runner's. The pipe stays open for the runner's words.
fn first_line(executor: &mut Child) -> String {
    let mut stdout = BufReader::new(executor.stdout.take().expect("piped"));
    let mut line = String::new();
    let word = loop {
        line.clear();
        assert_ne!(stdout.read_line(&mut line).expect("a line"), 0, "the executor said nothing");
        if let Some(word) = line.strip_prefix("> ") {
            break word.trim_end().to_owned();
        }
    };
    executor.stdout = Some(stdout.into_inner());
    word
}
