//! What should not happen, and does: skills, callers and surroundings that mean no good. Nothing that one of them does
//! is felt by another run.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use skillyard_tests::run::succeeded;
use skillyard_tests::{Skill, World, call, eventually};
use tonic::Code;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn nobody_need_read_the_log() {
    let kills = Skill::sh("kills_its_slot", "kill -9 $PPID; sleep 60");
    let mut world = World::builder().log_breaks().skill(Skill::sh("works", "echo '{}'")).skill(kills).start().await;
    for _ in 0..3 {
        assert_eq!(world.run("works").await, succeeded("{}\n"));
        // The thread that waits for children has something to say, too.
        assert_eq!(world.run("kills_its_slot").await.finished.reason, "SLOT_LOST");
    }
    world.executor_server().signal(Signal::TERM);
    let (status, _) = world.executor_server().ended(6 * SECOND).await;
    assert!(status.success(), "{status:?}");
}

#[tokio::test]
async fn what_ended_in_time_is_not_late_because_the_executor_was() {
    let mut world = World::of([Skill::sh("naps", "echo up >&2; sleep 0.3; echo '{}'").timeout(1)]).await;
    let mut live = world.open("naps").await;
    live.logged("up").await;
    world.executor_server().signal(Signal::STOP);
    world.quiet(SECOND).await;
    // The limit passes, counted from a start that is known to be past.
    tokio::time::sleep(SECOND).await;
    world.executor_server().signal(Signal::CONT);
    assert_eq!(live.rest().await, succeeded("{}\n").stderr("up\n"));
}

#[tokio::test]
async fn a_schema_that_takes_for_ever_takes_nobody_elses_time() {
    let node = |required| json!({"properties": {"a": {"$ref": "#/$defs/node"}}, "required": [required]});
    let schema = json!({"type": "object", "allOf": [{"$ref": "#/$defs/node"}], "$defs": {"node": {"anyOf": [node("y"), node("z")]}}});
    let circle = json!({"type": "object", "allOf": [{"$ref": "#"}]});
    let bomb = Skill::sh("bomb", "echo '{}'").set("schema", schema);
    let mut world =
        World::of([bomb, Skill::sh("circle", "echo '{}'").set("schema", circle), Skill::sh("works", "echo '{}'")])
            .await;
    let nested = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    let refused = world.refusal(call("bomb").args(nested(2))).await;
    assert!(refused.message.contains("break the schema"), "{refused:?}");
    for hostile in [call("bomb").args(nested(60)), call("circle")] {
        let refused = world.refusal(hostile).await;
        assert_eq!(refused.short(), (Code::InvalidArgument, "INVALID_ARGUMENTS"));
        assert!(refused.message.contains("steps"), "{refused:?}");
        assert_eq!(world.run("works").await, succeeded("{}\n"));
    }
}

#[tokio::test]
async fn progress_is_told_to_a_reader_that_moves() {
    const LINES: u32 = 30_000;
    let script = format!(
        "i=0; while [ $i -lt {LINES} ]; do echo '::progress {{\"progress\":1}}'; i=$((i+1)); done >&2; echo '{{}}'"
    );
    let mut world = World::of([Skill::sh("tells", &script)]).await;
    let run = world.run("tells").await;
    assert_eq!((run.dropped, run.progress.len()), (0, LINES as usize));
}

#[tokio::test]
async fn a_store_that_somebody_removes_is_fetched_again() {
    let mut world =
        World::of([Skill::sh("works", "echo '{}'"), Skill::sh("naps", "echo up >&2; sleep 1; echo '{}'")]).await;
    assert_eq!(world.run("works").await, succeeded("{}\n"));
    let mut running = world.open("naps").await;
    running.logged("up").await;
    let digest = world.run("works").await.accepted.digest;
    for gone in [world.path("state").join("store").join(digest), world.path("state").join("store")] {
        for path in skillyard_tests::world::tree(&gone).iter().chain([&gone]).filter(|path| path.is_dir()) {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::remove_dir_all(&gone).unwrap();
        // Not a word that it ran and failed: nothing ran.
        let refused = world.refusal(call("works").run_id("again")).await;
        assert_eq!(refused.short(), (Code::Aborted, "PACKAGE_CHANGED"));
        assert!(refused.retry_after.is_some());
        let mut run = None;
        eventually("the package is here again", async || {
            let live = world.try_open(call("works").run_id(&format!("again-{}", gone.ends_with("store")))).await;
            run = live.ok();
            run.is_some()
        })
        .await;
        assert_eq!(run.unwrap().rest().await, succeeded("{}\n"));
    }
    assert_eq!(running.rest().await, succeeded("{}\n").stderr("up\n"));
}
