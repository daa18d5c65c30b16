//! The file system under the executor's state: nothing in it may be executed, or it is full.

use std::time::Duration;

use skillyard::pb::executor::v1::Outcome;
use skillyard_tests::run::{ended, succeeded};
use skillyard_tests::world::Builder;
use skillyard_tests::{Refused, Skill, World, call, eventually, pack};

use crate::history::records;

/// A world whose executor has its state on such a file system, where that can be had.
async fn world(options: &str, builder: Builder) -> Option<World> {
    match builder.state_on(options) {
        Ok(builder) => Some(builder.start().await),
        Err(why) => {
            eprintln!("not tried: {why}");
            None
        }
    }
}

#[tokio::test]
async fn where_nothing_may_be_executed_the_run_says_so() {
    let builder = World::builder().skill(Skill::sh("script", "echo '{}'")).skill(Skill::tiny("program"));
    let Some(mut world) = world("noexec", builder).await else { return };
    for skill in ["script", "program", "script"] {
        let run = world.run(skill).await;
        assert_eq!(run, ended(Outcome::SpawnFailed), "{skill}");
        let message = &run.finished.message;
        assert!(message.contains("mounted noexec") && message.contains("--state-dir"), "{skill}: {message}");
    }
}

/// A skill that writes until nothing more can be written has its error; those beside it, and those that come after it, are
/// served, and its room is free when it has ended.
#[tokio::test]
async fn a_skill_that_fills_the_disk_harms_itself_alone() {
    let fills = "/bin/dd if=/dev/zero of=\"$TMPDIR/all\" bs=64k 2>&1 | /usr/bin/tail -n 1 >&2; echo full >&2; /bin/sleep 1; exit 3";
    let writes = "echo kept >\"$TMPDIR/file\" && read -r word <\"$TMPDIR/file\" && echo \"{\\\"$word\\\":1}\"";
    let builder = World::builder()
        .slots(4, 64)
        .skill(Skill::sh("fills", fills).set("env_allow", vec!["TMPDIR"]))
        .skill(Skill::sh("writes", writes).set("env_allow", vec!["TMPDIR"]))
        .skill(Skill::tiny("tiny"));
    let Some(mut world) = world("size=48m", builder).await else { return };
    for round in 0..3 {
        let mut live = world.open("fills").await;
        live.logged("full").await;
        // There is no room on the disk, and the journal waits for it.
        for n in 0..20 {
            let run = world.run(call("tiny").run_id(&format!("beside-{round}-{n}"))).await;
            assert_eq!(run, succeeded(pack::TINY_RESULT), "{round}");
        }
        assert_eq!(live.rest().await.finished.exit_code, Some(3));
        eventually("there is room again", async || {
            let live = world.try_open("writes").await;
            let result = match live {
                Ok(live) => live.end().await,
                Err(status) => Err(status),
            };
            match result {
                Ok(run) => run == succeeded("{\"kept\":1}\n"),
                Err(status) => panic!("{:?}", Refused::of(&status)),
            }
        })
        .await;
    }
    world.quiet(Duration::from_secs(30)).await;
    // What could not be written down then is written now.
    let mut recorded = Vec::new();
    let all = eventually("all of them are recorded", async || {
        recorded = records(world.history()).await.into_keys().filter(|id| id.starts_with("beside-")).collect();
        recorded.len() == 60
    });
    all.await;
    assert_eq!(world.run(call("tiny").run_id("after")).await, succeeded(pack::TINY_RESULT));
    eventually("what runs now is recorded", async || records(world.history()).await.contains_key("after")).await;
}
