//! Skills that mean harm to the executor, its files, and each other: those of `tests/hostile`, each contained at the level
//! that says so, while others are served, and those that may write.

use std::process::Stdio;
use std::time::Instant;

use skillyard::pb::executor::v1::GetStatusRequest;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard_tests::hostile::{self, Hostile};
use skillyard_tests::run::in_short;
use skillyard_tests::world::Builder;
use skillyard_tests::{AgentFile, Live, Refused, Skill, World, binaries, call, process, remains};
use tokio::sync::Mutex;

use crate::approvals::{AGENT, signed};

/// More than any skill that multiplies is allowed, and as many as it may make where nobody ends it.
const MOST_PROCESSES: u32 = 2500;
/// Process ids of a world with such skills, where it has its own.
const PROCESS_IDS: u32 = 4000;
/// Where they would go off together they would end each other.
static ONE_FOLDER: Mutex<()> = Mutex::const_new(());

/// A world with the whole folder.
fn folder() -> Builder {
    let companions = ["victim", "bystander"].map(hostile::skill);
    let skills = companions.into_iter().chain(hostile::all().into_iter().map(|hostile| hostile.skill));
    let builder = World::builder().slots(4, 8).flag("--max-memory", "100MiB").flag("--max-processes", 64);
    skills.fold(builder, Builder::skill)
}

/// Runs one beside a victim, while the bystander is served, and says what it wrote to stderr.
async fn beside_a_victim(world: &mut World, hostile: &Hostile) -> String {
    let name = hostile.skill.name();
    let mut victim = world.open("victim").await;
    let id = victim.accepted().await.run_id;
    let log = |event: &Event| if let Event::Log(log) = event { Some(log.text.trim().to_owned()) } else { None };
    let place = victim.until("its place", log).await;
    let attack = call(name).args(hostile::arguments(world, &place, MOST_PROCESSES));
    let attack = tokio::spawn(world.open(attack).await.end());
    let began = Instant::now();
    loop {
        let over = attack.is_finished();
        let beside = in_short(&Ok(world.run("bystander").await));
        assert!(beside == "SUCCEEDED" || (hostile.crowds && !over), "beside {name}: {beside}");
        assert!(began.elapsed() < skillyard_tests::PATIENCE, "{name} is not ended");
        if over {
            break;
        }
    }
    let attack = attack.await.unwrap();
    assert!(hostile.ends.contains(&in_short(&attack)), "{name} is right with {:?}: {attack:#?}", hostile.ends);
    world.cancel(&id, "it was not harmed").await.unwrap();
    let victim = victim.rest().await;
    assert_eq!(in_short(&Ok(victim.clone())), "CANCELLED CANCEL_REQUESTED", "after {name}: {victim:?}");
    remains::only_slots(world, 8).await;
    format!("{}{}", attack.unwrap().stderr, victim.stderr)
}

/// The whole folder, twice in a row.
async fn all_are_contained(builder: Builder) {
    let mut world = builder.process_ids(PROCESS_IDS).start().await;
    let isolation = world.status().await.isolation;
    for round in 0..2 {
        for hostile in hostile::all() {
            let name = hostile.skill.name();
            if hostile.isolation.as_ref().is_some_and(|level| !isolation.contains(level)) {
                eprintln!("not tried: {name}: only {isolation:?} is to be had here");
                continue;
            }
            let began = Instant::now();
            let stderr = beside_a_victim(&mut world, &hostile).await;
            eprintln!("{round} {name}: {:?}", began.elapsed());
            assert!(!stderr.lines().any(|line| line.starts_with("done: ")), "{name}, round {round}: {stderr}");
            stderr.lines().filter(|line| line.starts_with("not tried: ")).for_each(|line| eprintln!("{name}: {line}"));
        }
    }
}

#[tokio::test]
async fn they_are_contained_as_an_ordinary_user() {
    let _one = ONE_FOLDER.lock().await;
    match folder().as_nobody() {
        Ok(builder) => all_are_contained(builder).await,
        Err(why) => eprintln!("not tried: {why}"),
    }
}

#[tokio::test]
async fn they_are_contained_as_another_user_than_the_executors() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: only root can have skills run as another user");
    }
    let _one = ONE_FOLDER.lock().await;
    let builder = folder().flag("--run-as", "65534:65534");
    // Who runs them must get at the packages.
    std::fs::set_permissions(builder.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    all_are_contained(builder).await;
}

#[tokio::test]
async fn they_are_contained_as_root() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: this is not root");
    }
    let _one = ONE_FOLDER.lock().await;
    all_are_contained(folder()).await;
}

/// Else it would not be isolation that holds them, but that they do not know how.
#[tokio::test]
async fn without_isolation_they_do_what_they_try() {
    let mut world = folder().flag("--isolation-at-most", "none").start().await;
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let traces = rustix::process::geteuid().is_root() || scope.trim().is_empty() || scope.trim() == "0";
    for hostile in hostile::all().into_iter().filter(|hostile| hostile.isolation.is_some()) {
        let name = hostile.skill.name();
        if name == "traces" && !traces {
            eprintln!("not tried: {name}: kernel.yama.ptrace_scope is {}", scope.trim());
            continue;
        }
        let stderr = beside_a_victim(&mut world, &hostile).await;
        assert!(stderr.lines().any(|line| line.starts_with("done: ")), "{name}: {stderr}");
    }
}

/// A writing skill of the executor's own user takes rights away from what is in the store, and tries to write it. What it
/// cannot do is change what others run; where it could make it unusable, that is found, and it is fetched again.
async fn the_store_stays_as_it_is(builder: Builder, run_as: bool) {
    let builder = builder.known_callers().agent(&AgentFile::new(AGENT).mode(AGENT));
    let store = builder.path("state/store");
    let vandal = format!(
        "for f in $(find {0} -type f); do chmod 777 $f; chmod 777 $(dirname $f); echo evil >>$f; cp /bin/true $f; rm -f $f; \
         mv $f $f.old; ln -sf /bin/true $f; truncate -s 0 $f; done 2>/dev/null; chmod -R 000 {0}; echo '{{}}'",
        store.display()
    );
    let vandal = Skill::sh("vandal", &vandal).set("class", "mutating").set("env_allow", vec!["PATH"]);
    let builder = builder.skill(vandal).skill(Skill::sh("works", "echo '{\"works\":1}'"));
    let mut world = builder.start().await;
    let status = world.executor_as("operator").get_status(GetStatusRequest {}).await.unwrap().into_inner();
    if !status.isolation.iter().any(|name| name == "files") {
        return eprintln!("not tried: only {:?} is to be had here", status.isolation);
    }
    let works = async |world: &mut World| {
        let live = Live::open(world.executor_as("orchestrator"), call("works").agent(AGENT)).await;
        match live {
            Ok(live) => live.end().await,
            Err(status) => Err(status),
        }
    };
    let before = works(&mut world).await.unwrap();
    for round in 0..2 {
        let approval = signed(&mut world, AGENT, "vandal", "{}", &["ann"]).await;
        let vandal = call("vandal").agent(AGENT).args("{}").approval(&approval).run_id(&format!("vandal-{round}"));
        // What it did to its own package, the last time, is mended too.
        let ran = skillyard_tests::within(skillyard_tests::PATIENCE, "it runs", async || {
            let live = Live::open(world.executor_as("orchestrator"), vandal.clone()).await.ok()?;
            live.end().await.ok()
        });
        assert_eq!(ran.await.0.result, "{}\n");
        let mut refusals = Vec::new();
        let after = skillyard_tests::within(skillyard_tests::PATIENCE, "it works again", async || {
            match works(&mut world).await {
                Ok(run) => Some(run),
                Err(status) => {
                    refusals.push(Refused::of(&status).reason);
                    None
                }
            }
        });
        let after = after.await.0;
        assert_eq!((after.ended(), &after.accepted.digest), (before.ended(), &before.accepted.digest));
        assert!(
            refusals.iter().all(|reason| reason == "PACKAGE_CHANGED" || reason == "PACKAGE_NOT_MIRRORED"),
            "{refusals:?}"
        );
        assert!(!run_as || refusals.is_empty(), "another user cannot even do that: {refusals:?}");
    }
}

#[tokio::test]
async fn the_store_stays_as_it_is_whoever_runs_skills() {
    the_store_stays_as_it_is(World::builder(), false).await;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried as others: this is not root");
    }
    let builder = World::builder().flag("--run-as", "65534:65534");
    std::fs::set_permissions(builder.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    the_store_stays_as_it_is(builder, true).await;
}

#[tokio::test]
async fn less_is_told_as_less() {
    let mut world = World::builder().flag("--isolation-at-most", "seccomp").skill(Skill::tiny("tiny")).start().await;
    let isolation = world.status().await.isolation;
    assert_eq!(isolation[..2], ["no_new_privs", "seccomp"].map(str::to_owned));
    assert!(!isolation.iter().any(|name| name.starts_with("files")), "{isolation:?}");
}

#[test]
fn what_is_required_and_cannot_be_had_keeps_it_from_starting() {
    let state = tempfile::tempdir().unwrap();
    let mut executor = process::command(&binaries::executor());
    executor.args(["--listen", "127.0.0.1:0", "--isolation-at-most", "seccomp", "--require-isolation=files"]);
    let output = executor.arg("--state-dir").arg(state.path()).env_clear().stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("isolation files is required"), "{stderr}");
}
