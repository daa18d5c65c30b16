//! What a skill may do in a run, and what becomes of it.

use std::time::Duration;

use skillyard::pb::executor::v1::Outcome;
use skillyard_tests::run::{ended, failed, succeeded};
use skillyard_tests::{Skill, World, call, pack};

const SECOND: Duration = Duration::from_secs(1);
/// From SIGTERM to SIGKILL, and half a second to find out.
pub(crate) const GRACE: Duration = Duration::from_millis(2500);

#[tokio::test]
async fn arguments_come_in_and_a_result_goes_out_byte_for_byte() {
    let mut world = World::of([Skill::c("echo", pack::ECHO), Skill::tiny("tiny")]).await;
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
    assert_eq!(world.run("echo").await, succeeded("{}"));
    for args in
        [r#"{"a":1}"#, r#" { "b" : 1.0 , "a" : [ 1e3 , "\u00e9é" ] } "#, "{\n\t\"x\": null\r\n}", r#"{"":{"":{}}}"#]
    {
        assert_eq!(world.run(call("echo").args(args)).await, succeeded(args));
    }
}

#[tokio::test]
async fn large_arguments_do_not_block_anyone() {
    let flood = "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo >&2; cat >/dev/null; echo '{\"ok\":1}'";
    let mut world = World::of([
        Skill::c("echo", pack::ECHO),
        // Both write before they have read everything.
        Skill::sh("cat", "exec cat"),
        Skill::sh("flood_first", flood),
        Skill::sh("closes_stdin", "exec <&-; printf '{\"ok\":1}'"),
        Skill::sh("ignores_stdin", "printf '{\"ok\":1}'"),
    ])
    .await;
    let megabyte = format!(r#"{{"x":"{}"}}"#, "é".repeat(1 << 19));
    let largest = format!(r#"{{"x":"{}"}}"#, "a".repeat((8 << 20) - 8));
    assert_eq!(largest.len(), 8 << 20);
    for args in [&megabyte, &largest] {
        assert!(world.run(call("echo").args(args)).await == succeeded(args));
        assert!(world.run(call("cat").args(args)).await == succeeded(args));
    }
    let flood = world.run(call("flood_first").args(&megabyte)).await;
    assert_eq!((flood.finished.outcome(), flood.result.trim_end()), (Outcome::Succeeded, r#"{"ok":1}"#));
    assert_eq!((flood.stderr.len(), flood.dropped), (1_000_001, 0));
    // A broken pipe is no failure: the exit decides.
    for skill in ["closes_stdin", "ignores_stdin"] {
        assert_eq!(world.run(call(skill).args(&largest)).await, succeeded(r#"{"ok":1}"#), "{skill}");
    }
}

#[tokio::test]
async fn exits_as_they_are() {
    let mut world = World::of([
        Skill::sh("fails", "echo why >&2; echo '{}'; exit 3"),
        Skill::sh("kills_itself", "kill -9 $$"),
        Skill::sh("crashes", "kill -SEGV $$"),
        Skill::sh("two_results", "echo '{\"a\":1}'; echo '{\"b\":2}'"),
        Skill::sh("nothing", "exit 0"),
        Skill::sh("no_json", "echo hello"),
        Skill::sh("not_text", "printf '\"\\377\"'"),
        Skill::sh("a_number", "printf 42"),
    ])
    .await;
    let fails = world.run("fails").await;
    assert_eq!(fails, failed(3).stderr("why\n"));
    assert_eq!((&*fails.finished.stderr_tail, &*fails.finished.stdout_head), ("why\n", "{}\n"));
    assert_eq!(world.run("kills_itself").await, ended(Outcome::Signaled).by("SIGKILL"));
    assert_eq!(world.run("crashes").await, ended(Outcome::Signaled).by("SIGSEGV"));
    let two = world.run("two_results").await;
    assert_eq!(two, ended(Outcome::InvalidResult).code(0));
    assert_eq!(two.finished.stdout_head, "{\"a\":1}\n{\"b\":2}\n");
    for skill in ["nothing", "no_json", "not_text"] {
        assert_eq!(world.run(skill).await, ended(Outcome::InvalidResult).code(0), "{skill}");
    }
    assert_eq!(world.run("a_number").await, succeeded("42"));
}

#[tokio::test]
async fn what_a_run_used_is_told() {
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 0.3; echo '{}'; echo e >&2";
    let mut world = World::of([Skill::sh("busy", busy)]).await;
    let usage = world.run("busy").await.finished.usage.expect("usage");
    let time = |duration: Option<prost_types::Duration>| Duration::try_from(duration.expect("a time")).unwrap();
    assert!(time(usage.wall) >= Duration::from_millis(300), "{usage:?}");
    assert!(time(usage.cpu_user) + time(usage.cpu_system) > Duration::from_millis(5), "{usage:?}");
    assert!(time(usage.queued) < SECOND, "{usage:?}");
    assert!((100 << 10..64 << 20).contains(&usage.max_rss_bytes), "{usage:?}");
    assert_eq!((usage.stdout_bytes, usage.stderr_bytes), (3, 2));
}

#[tokio::test]
async fn a_grandchild_that_holds_stdout_holds_nobody_up() {
    let mut world = World::of([Skill::sh("leaves", "sleep 300 & echo '{\"ok\":1}'")]).await;
    let run = world.run("leaves").await;
    assert_eq!((run.finished.outcome(), run.result.trim_end()), (Outcome::Succeeded, r#"{"ok":1}"#));
    assert!(run.ran.unwrap() < Duration::from_millis(600), "{:?}", run.ran);
    world.quiet(Duration::from_millis(500)).await;
}

#[tokio::test]
async fn what_a_run_leaves_behind_ends_with_it() {
    // Each has left the process group, the session, or both, and some do not hear SIGTERM.
    let mut world = World::of([
        Skill::sh("new_session", "setsid sleep 300 >/dev/null 2>&1 </dev/null & echo '{}'"),
        Skill::sh("twice", "( setsid sh -c 'setsid sleep 300 & sleep 300' >/dev/null 2>&1 & ) ; echo '{}'"),
        Skill::sh("deaf", "( trap '' TERM HUP INT; sleep 300; sleep 300 ) >/dev/null 2>&1 & echo '{}'"),
        Skill::sh("stopped", "sleep 300 >/dev/null 2>&1 & kill -STOP $! ; echo '{}'"),
        Skill::sh("chain", "f() { ( sleep 0.01; f ) >/dev/null 2>&1 & }; f; f; f; echo '{}'"),
    ])
    .await;
    for skill in ["new_session", "twice", "deaf", "stopped", "chain"] {
        let run = world.run(skill).await;
        assert_eq!((run.finished.outcome(), run.result.trim_end()), (Outcome::Succeeded, "{}"), "{skill}");
        assert!(run.ran.unwrap() < SECOND, "{skill}: {:?}", run.ran);
        world.quiet(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn the_environment_is_what_was_allowed_and_nothing_else() {
    let allow = |name: &str, names: &[&str]| Skill::c(name, pack::ENVIRONMENT).set("env_allow", names.to_vec());
    let mut world = World::builder()
        .skill(allow("none", &[]))
        .skill(allow("path", &["PATH"]))
        .skill(allow("unset", &["NOT_SET", "GREETING", "greeting", "EMPTY"]))
        .skill(Skill::c("missing", pack::ENVIRONMENT))
        .skill(Skill::sh("shell", "/usr/bin/env >&2; echo '{}'"))
        .variable("SECRET", "s3cr3t")
        .variable("GREETING", "good day=1")
        .variable("EMPTY", "")
        .variable("TMPDIR", "/tmp")
        .start()
        .await;
    assert_eq!(world.run("none").await, succeeded("{}\n"));
    assert_eq!(world.run("missing").await, succeeded("{}\n"));
    assert_eq!(world.run("path").await, succeeded("{}\n").stderr("PATH=/usr/local/bin:/usr/bin:/bin\n"));
    let mut lines: Vec<_> = world.run("unset").await.stderr.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["EMPTY=", "GREETING=good day=1"]);
    assert!(!world.run("shell").await.stderr.contains("s3cr3t"));
}

#[tokio::test]
async fn a_run_is_in_its_package_and_may_read_it() {
    let script = "pwd -P >&2; cat data/words.txt >&2; ls -a >&2; echo '{}'";
    let mut world = World::of([Skill::sh("reads", script).file("data/words.txt", "two words\n", 0o644)]).await;
    let run = world.run("reads").await;
    let mut lines = run.stderr.lines();
    let directory = lines.next().unwrap();
    assert!(directory.ends_with(&run.accepted.digest), "{directory} of {}", run.accepted.digest);
    assert_eq!(lines.collect::<Vec<_>>(), ["two words", ".", "..", "data", "run.sh", "skill.json"]);
}

#[tokio::test]
async fn a_program_only_path_would_find_is_explained() {
    let elsewhere = "#!/usr/bin/env skillyard-interpreter\n";
    let mut world = World::builder();
    let tools = world.path("tools");
    pack::place(&tools.join("skillyard-interpreter"), b"#!/bin/sh\necho '{}'\n", 0o755);
    let path = format!("{}:/usr/bin:/bin", tools.display());
    world = world.variable("PATH", path);
    let mut world = world
        .skill(Skill::script("without", elsewhere))
        .skill(Skill::script("with", elsewhere).set("env_allow", ["PATH"].to_vec()))
        .start()
        .await;
    let without = world.run("without").await;
    assert_eq!((without.finished.outcome(), without.finished.exit_code), (Outcome::Failed, Some(127)));
    let message = &without.finished.message;
    assert!(message.contains("PATH") && message.contains("env_allow"), "{message}");
    assert_eq!(world.run("with").await, succeeded("{}\n"));
    let warned: Vec<_> = world.report().await.candidates.into_iter().filter(|c| !c.diagnostics.is_empty()).collect();
    assert_eq!(warned.iter().map(|c| &*c.name).collect::<Vec<_>>(), ["without"], "{warned:?}");
    assert!(warned[0].registered && warned[0].diagnostics[0].message.contains("PATH"), "{warned:?}");
}

#[tokio::test]
async fn an_entry_that_cannot_run_is_a_load_error_that_says_why() {
    let script = "#!/bin/sh\necho '{}'\n";
    let mut world = World::of([
        Skill::new("no_shebang", "run").file("run", "echo '{}'\n", 0o755),
        Skill::new("missing", "run"),
        Skill::new("not_executable", "run").file("run", script, 0o644),
        Skill::new("a_directory", "run").file("run/inside", script, 0o755),
        Skill::new("no_interpreter", "run").file("run", "#!/nowhere/sh\n", 0o755),
        Skill::new("other_line_ends", "run").file("run", "#!/bin/sh\r\necho '{}'\r\n", 0o755),
        Skill::new("escapes", "/bin/sh"),
        Skill::sh("good", "echo '{}'"),
    ])
    .await;
    let report = world.report().await;
    let mut messages = std::collections::BTreeSet::new();
    let wrong = ["no_shebang", "missing", "not_executable", "a_directory", "other_line_ends", "escapes"];
    for name in wrong {
        let found = report.candidates.iter().find(|candidate| candidate.name == name);
        let candidate = found.unwrap_or_else(|| panic!("{name} is not in {report:?}"));
        assert!(!candidate.registered, "{name}");
        messages.insert(candidate.diagnostics[0].message.replace(name, ""));
        assert_eq!(world.refusal(name).await.short().1, "UNKNOWN_SKILL");
    }
    assert_eq!(messages.len(), wrong.len(), "each fault has its own words: {messages:#?}");
    // An interpreter may be missing here and be there on an executor; where it is not, the run says so.
    let found = report.candidates.iter().find(|candidate| candidate.name == "no_interpreter").unwrap();
    assert!(found.registered && found.diagnostics[0].message.contains("/nowhere/sh"), "{found:?}");
    let run = world.run("no_interpreter").await;
    assert_eq!(run, ended(Outcome::SpawnFailed));
    assert!(run.finished.message.contains("/nowhere/sh"), "{}", run.finished.message);
    assert_eq!(world.run("good").await, succeeded("{}\n"));
}

#[tokio::test]
async fn an_entry_that_stops_being_runnable_fails_at_once_and_says_why() {
    let world = World::builder();
    let interpreter = world.path("tools").join("interpreter");
    std::fs::create_dir_all(interpreter.parent().unwrap()).unwrap();
    std::fs::copy("/bin/sh", &interpreter).unwrap();
    let skill = Skill::script("orphaned", &format!("#!{}\necho '{{}}'\n", interpreter.display()));
    let mut world = world.skill(skill).start().await;
    assert_eq!(world.run("orphaned").await, succeeded("{}\n"));
    std::fs::remove_file(&interpreter).unwrap();
    let run = world.run("orphaned").await;
    assert_eq!(run, ended(Outcome::SpawnFailed));
    assert!(run.finished.message.contains("interpreter"), "{}", run.finished.message);
    assert!(run.took < SECOND, "{:?}", run.took);
}

#[tokio::test]
async fn a_silent_run_is_kept_alive_by_heartbeats() {
    let seconds = if skillyard_tests::long() { 90 } else { 17 };
    let mut world = World::of([Skill::sh("silent", &format!("sleep {seconds}; echo '{{}}'")).timeout(120)]).await;
    let run = world.run("silent").await;
    assert_eq!(run, succeeded("{}\n"));
    assert_eq!(run.heartbeats, seconds / 15);
}

#[tokio::test]
async fn a_skill_that_kills_or_stops_its_slot_ends_itself_and_nobody_else() {
    let mut world = World::builder()
        .slots(3, 10)
        .skill(Skill::sh("kills", "kill -9 $PPID; sleep 300"))
        .skill(Skill::sh("stops", "( setsid sleep 300 & ) ; kill -STOP $PPID; sleep 300"))
        .skill(Skill::sh("steady", "echo up >&2; sleep 3; echo '{}'"))
        .start()
        .await;
    let mut steady = world.open("steady").await;
    steady.logged("up").await;
    let mut lost = ended(Outcome::Lost);
    "SLOT_LOST".clone_into(&mut lost.reason);
    for skill in ["kills", "stops", "kills", "stops", "stops", "kills"] {
        let run = world.run(skill).await;
        assert_eq!(run, lost, "{skill}");
        // The slot may be gone before it can say that it started something.
        assert!(run.took < SECOND, "{skill}: {:?}", run.took);
    }
    assert_eq!(steady.rest().await, succeeded("{}\n").stderr("up\n"));
    world.quiet(SECOND).await;
}

#[tokio::test]
async fn a_slot_killed_from_outside_comes_back() {
    let mut world = World::builder()
        .slots(1, 10)
        .skill(Skill::sh("naps", "( setsid sleep 300 & ) ; echo up >&2; sleep 300"))
        .skill(Skill::tiny("tiny"))
        .start()
        .await;
    let mut run = world.open("naps").await;
    let pid = run.started().await;
    run.logged("up").await;
    let slot = skillyard_tests::process::read(pid).unwrap().parent;
    assert_ne!(slot, world.executor_server().pid());
    skillyard_tests::process::read(slot).unwrap().kill();
    let run = run.rest().await;
    assert_eq!((run.finished.outcome(), &*run.finished.reason), (Outcome::Lost, "SLOT_LOST"));
    world.quiet(SECOND).await;
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
}
