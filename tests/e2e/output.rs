//! What comes out of a run while it goes on, and how much of it.

use std::time::Duration;

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::{Outcome, Progress};
use skillyard_tests::run::{ended, succeeded};
use skillyard_tests::world::endpoint;
use skillyard_tests::{Live, Skill, World, eventually, process};

/// The most that a result may have.
const LIMIT: usize = 16 << 20;

#[tokio::test]
async fn stderr_comes_while_the_skill_runs() {
    let mut world = World::builder();
    let gate = world.path("gate");
    let script =
        format!("echo first >&2; while ! [ -e {} ]; do sleep 0.01; done; echo second >&2; echo '{{}}'", gate.display());
    world = world.skill(Skill::sh("waits", &script));
    let mut world = world.start().await;
    let mut run = world.open("waits").await;
    // The gate opens only once the first line has been seen.
    run.logged("first\n").await;
    std::fs::write(&gate, "").unwrap();
    assert_eq!(run.rest().await, succeeded("{}\n").stderr("first\nsecond\n"));
}

#[tokio::test]
async fn an_unfinished_line_comes_too() {
    let mut world = World::builder();
    let gate = world.path("gate");
    let script = format!(
        "printf 'continue? ' >&2; while ! [ -e {} ]; do sleep 0.01; done; echo yes >&2; echo '{{}}'",
        gate.display()
    );
    world = world.skill(Skill::sh("asks", &script));
    let mut world = world.start().await;
    let mut run = world.open("asks").await;
    run.logged("continue? ").await;
    std::fs::write(&gate, "").unwrap();
    let run = run.rest().await;
    assert_eq!(run, succeeded("{}\n").stderr("continue? yes\n"));
    let pieces: Vec<_> = run.logs.iter().map(|log| (&*log.text, log.partial)).collect();
    assert_eq!(pieces, [("continue? ", true), ("yes\n", false)]);
}

#[tokio::test]
async fn lines_keep_their_order_and_the_last_ones_are_not_lost() {
    let mut world = World::of([
        Skill::sh("order", "i=0; while [ $i -lt 200 ]; do echo e$i >&2; i=$((i+1)); done; echo '{}'"),
        Skill::sh("tail", "seq 1 100000 >&2; echo '{\"n\":100000}'"),
    ])
    .await;
    let expected: String = (0..200).map(|i| format!("e{i}\n")).collect();
    assert_eq!(world.run("order").await, succeeded("{}\n").stderr(&expected));
    let expected: String = (1..=100_000).map(|i| format!("{i}\n")).collect();
    for round in 0..if skillyard_tests::long() { 50 } else { 12 } {
        let run = world.run("tail").await;
        assert!(
            run == succeeded("{\"n\":100000}\n").stderr(&expected),
            "round {round}: {} bytes, {} dropped",
            run.stderr.len(),
            run.dropped
        );
    }
}

#[tokio::test]
async fn a_long_line_comes_in_pieces() {
    let script = "head -c 200000 /dev/zero | tr '\\0' a >&2; echo >&2; echo after >&2; printf 'no newline at the end' >&2; echo '{}'";
    let mut world = World::of([Skill::sh("long_line", script)]).await;
    let run = world.run("long_line").await;
    let expected = format!("{}\nafter\nno newline at the end", "a".repeat(200_000));
    assert!(run == succeeded("{}\n").stderr(&expected), "{} bytes", run.stderr.len());
    assert!(run.logs[0].partial && run.logs.len() > 2, "{} pieces", run.logs.len());
    // A piece is partial when its line goes on: the last one's does not.
    for log in &run.logs[..run.logs.len() - 1] {
        assert_eq!(log.partial, !log.text.ends_with('\n'), "{:?}", &log.text[log.text.len() - 10..]);
    }
    assert!(!run.logs.last().unwrap().partial);
}

#[tokio::test]
async fn bytes_that_are_no_text_are_shown_as_such() {
    let mut world = World::of([
        Skill::sh("latin", "printf 'caf\\351\\n' >&2; printf 'caf\\303\\251\\n' >&2; sleep 0.05; echo '{}'"),
        Skill::sh("halves", "printf 'caf\\303' >&2; sleep 0.05; printf '\\251\\n' >&2; printf '\"caf\\303'; sleep 0.05; printf '\\251\"'"),
    ])
    .await;
    let run = world.run("latin").await;
    assert_eq!(run, succeeded("{}\n").stderr("caf\u{fffd}\ncafé\n"));
    assert!(run.logs[0].lossy);
    // A character that comes in two reads is one character.
    let run = world.run("halves").await;
    assert_eq!(run, succeeded("\"café\"").stderr("café\n"));
    assert!(run.logs.iter().all(|log| !log.lossy));
}

#[tokio::test]
async fn progress_is_an_event_and_a_line() {
    let script = r#"
echo '::progress {"progress": 1, "total": 4, "message": "listing"}' >&2
echo '::progress {"progress": 2.5}' >&2
echo '::progress half' >&2
echo 'not ::progress {"progress": 3}' >&2
echo '::progress {"progress": 4, "total": 4, "message": "done"}' >&2
echo '{}'"#;
    let mut world = World::of([Skill::sh("works", script)]).await;
    let run = world.run("works").await;
    let progress = |progress, total, message: &str| Progress { progress, total, message: message.to_owned() };
    assert_eq!(
        run.progress,
        [progress(1.0, Some(4.0), "listing"), progress(2.5, None, ""), progress(4.0, Some(4.0), "done")]
    );
    let lines: Vec<_> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(lines[2], "::progress half");
}

#[tokio::test]
async fn a_large_result_comes_in_pieces_up_to_the_limit() {
    let text = |bytes: usize| format!("printf '\"'; head -c {} /dev/zero | tr '\\0' a; printf '\"'", bytes - 2);
    let mut world = World::of([
        Skill::sh("large", &text(5_000_000)),
        Skill::sh("largest", &text(LIMIT)),
        Skill::sh("too_large", &text(LIMIT + 1)),
        Skill::sh("accents", "printf '\"'; i=0; while [ $i -lt 20 ]; do printf 'x'; head -c 100000 /dev/zero | sed 's/\\x00/\\xe2\\x82\\xac/g'; i=$((i+1)); done; printf '\"'"),
    ])
    .await;
    for (skill, bytes) in [("large", 5_000_000), ("largest", LIMIT)] {
        let run = world.run(skill).await;
        assert!(run == succeeded(&format!("\"{}\"", "a".repeat(bytes - 2))), "{skill}: {:?}", run.finished);
        assert!(run.chunks.len() >= bytes >> 20, "{:?}", run.chunks);
    }
    // Pieces end at characters: each is a string by itself.
    let run = world.run("accents").await;
    let expected = format!("\"{}\"", format!("x{}", "€".repeat(100_000)).repeat(20));
    assert!(run == succeeded(&expected), "{:?}", run.finished);
    let run = world.run("too_large").await;
    let mut expected = ended(Outcome::ResultTooLarge);
    "OUTPUT_LIMIT".clone_into(&mut expected.reason);
    assert_eq!((run.finished.outcome(), &*run.finished.reason), (expected.outcome, &*expected.reason));
}

#[tokio::test]
async fn endless_output_is_ended_and_costs_no_memory() {
    let mut world = World::of([Skill::sh("yes", "exec yes")]).await;
    let executor = world.executor_server().pid();
    let before = process::memory(executor, "VmHWM");
    for _ in 0..3 {
        let run = world.run("yes").await;
        assert_eq!((run.finished.outcome(), &*run.finished.reason), (Outcome::ResultTooLarge, "OUTPUT_LIMIT"));
        assert!(run.finished.stdout_head.starts_with("y\ny\n"), "{:?}", run.finished.stdout_head);
    }
    world.quiet(Duration::from_millis(100)).await;
    let after = process::memory(executor, "VmHWM");
    assert!(after < before + (96 << 20), "{before} before, {after} after");
}

/// A reader that does not read costs lines that are counted: never the child's time, the executor's memory or the result.
#[tokio::test]
async fn a_slow_reader_is_told_what_it_missed() {
    const LINES: u64 = 400_000;
    let script =
        format!("yes 'a line of some fifty characters, as programs write' | head -n {LINES} >&2; echo '{{\"ok\":1}}'");
    let mut world = World::of([Skill::sh("floods", &script)]).await;
    let executor = world.executor_server().pid();
    let before = process::memory(executor, "VmRSS");
    let narrow = endpoint(world.executor_address())
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535)
        .connect()
        .await
        .unwrap();
    let mut run = Live::open(ExecutorServiceClient::new(narrow), "floods").await.unwrap();
    run.started().await;
    // Nothing is read until the skill has ended, which it does although nobody reads.
    eventually("the skill has ended without its reader", async || world.skill_processes().is_empty()).await;
    let during = process::memory(executor, "VmRSS");
    assert!(during < before + (32 << 20), "{before} before, {during} with a reader that does not read");
    let run = run.rest().await;
    assert_eq!((run.finished.outcome(), run.result.trim_end()), (Outcome::Succeeded, r#"{"ok":1}"#));
    assert!(run.dropped > 0);
    assert_eq!(run.stderr.lines().count() as u64 + run.dropped, LINES);
    assert_eq!(run.finished.usage.unwrap().stderr_bytes, 51 * LINES);
}

#[tokio::test]
async fn a_flood_comes_whole_or_counted() {
    const LINES: u64 = 500_000;
    let script = format!("yes 'a line of some fifty characters, as programs write' | head -n {LINES} >&2; echo '{{}}'");
    let mut world = World::of([Skill::sh("floods", &script)]).await;
    let run = world.run("floods").await;
    assert_eq!((run.finished.outcome(), run.result.trim_end()), (Outcome::Succeeded, "{}"));
    assert_eq!(run.stderr.lines().count() as u64 + run.dropped, LINES);
    assert!(run.stderr.lines().all(|line| line == "a line of some fifty characters, as programs write"));
}
