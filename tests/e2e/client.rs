//! `executor-svc run`: the result alone on stdout, everything else on stderr, and an exit code that tells outcomes apart.

use std::io::Write as _;
use std::process::{Output, Stdio};
use std::time::Duration;

use skillyard_tests::{Skill, World, binaries, eventually, pack, process, within};

/// Runs the client to its end, with something on its stdin.
async fn client(world: &World, arguments: &[&str], stdin: &str) -> Output {
    let url = format!("http://{}", world.executor_address());
    let mut command = process::command(&binaries::executor());
    command.arg("run").args(arguments).args(["--executor", &url]).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut input, stdin) = (child.stdin.take().unwrap(), stdin.to_owned());
    // It blocks: beside the runtime's thread.
    tokio::task::spawn_blocking(move || {
        // A client that needs no input does not read it.
        let _ = input.write_all(stdin.as_bytes());
        drop(input);
        child.wait_with_output().unwrap()
    })
    .await
    .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

async fn world() -> World {
    World::of([
        Skill::c("echo", pack::ECHO),
        Skill::sh("works", "echo '::progress {\"progress\":1,\"total\":2,\"message\":\"half\"}' >&2; echo a line >&2; echo '{\"ok\":1}'"),
        Skill::sh("fails", "echo why >&2; exit 3"),
        Skill::sh("slow", "sleep 300").timeout(1),
        Skill::sh("invalid", "echo no json"),
        Skill::sh("killed", "kill -9 $$"),
        Skill::tiny("mutates").set("class", "mutating"),
    ])
    .await
}

#[tokio::test]
async fn the_result_alone_is_on_stdout() {
    let world = world().await;
    let output = client(&world, &["works"], "").await;
    assert_eq!((text(&output.stdout).trim_end(), output.status.code()), (r#"{"ok":1}"#, Some(0)), "{output:?}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("a line") && stderr.contains("half"), "{stderr}");

    let output = client(&world, &["echo", "--args", r#"{"a":1}"#], "").await;
    assert_eq!((text(&output.stdout).trim_end(), output.status.code()), (r#"{"a":1}"#, Some(0)), "{output:?}");
    let output = client(&world, &["echo", "-"], r#"{"from":"stdin"}"#).await;
    assert_eq!((text(&output.stdout).trim_end(), output.status.code()), (r#"{"from":"stdin"}"#, Some(0)), "{output:?}");
    let file = world.path("args.json");
    std::fs::write(&file, r#"{"from":"a file"}"#).unwrap();
    let output = client(&world, &["echo", "--args-file", file.to_str().unwrap()], "").await;
    assert_eq!(
        (text(&output.stdout).trim_end(), output.status.code()),
        (r#"{"from":"a file"}"#, Some(0)),
        "{output:?}"
    );
}

#[tokio::test]
async fn the_exit_code_tells_the_outcomes_apart() {
    let world = world().await;
    for (arguments, code) in [
        (&["works"][..], 0),
        (&["fails"], 1),
        (&["invalid"], 3),
        (&["killed"], 6),
        (&["nobody"], 8),
        (&["mutates"], 8),
        (&["works", "--args", "["], 8),
        (&["works", "--no-such-flag"], 64),
        (&["slow"], 124),
    ] {
        let output = client(&world, arguments, "").await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        if code != 0 {
            assert_eq!(text(&output.stdout), "", "{arguments:?}");
            assert!(!output.stderr.is_empty(), "{arguments:?} says why");
        }
    }
}

/// Ctrl-C once ends the run and waits for its end.
#[tokio::test]
async fn an_interrupt_cancels_the_run() {
    let world = World::of([Skill::sh("naps", "echo up >&2; sleep 300")]).await;
    let url = format!("http://{}", world.executor_address());
    let mut command = process::command(&binaries::executor());
    command.args(["run", "naps", "--executor", &url]).env_clear();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the skill runs", async || world.skill_processes().len() == 2).await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (status, took) =
        within(Duration::from_secs(3), "the client has ended", async || child.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(130), "after {took:?}");
    assert_eq!(world.skill_processes(), []);
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let world = world().await;
    let output = client(&world, &["mutates"], "").await;
    assert!(!output.status.success() && text(&output.stderr).contains("mutating"), "{output:?}");
    let output = client(&world, &["nobody"], "").await;
    assert!(text(&output.stderr).contains("unknown skill \"nobody\""), "{output:?}");
    let output = client(&world, &["echo", "--args", "["], "").await;
    assert!(!output.status.success(), "{output:?}");
}
