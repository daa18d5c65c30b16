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

#[tokio::test]
async fn what_a_skill_does_to_its_slot_is_not_inherited() {
    const LIMITS: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
int main(void) {
    struct rlimit l;
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    fprintf(stderr, "nice %d, processors %d", getpriority(PRIO_PROCESS, 0), CPU_COUNT(&cpus));
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        getrlimit(i, &l);
        fprintf(stderr, ", %d: %lld %lld", i, (long long) l.rlim_cur, (long long) l.rlim_max);
    }
    fprintf(stderr, "\n");
    puts("{}");
    return 0;
}
"#;
    let harms = |name: &str, how: &str| {
        let head = "#define _GNU_SOURCE\n#include <sched.h>\n#include <stdio.h>\n#include <sys/resource.h>\n#include <unistd.h>\n";
        let body = format!(
            "int main(void) {{ int slot = getppid(); struct rlimit l = {{0, 0}}; cpu_set_t one; CPU_ZERO(&one); {how} puts(\"{{}}\"); return 0; }}\n"
        );
        Skill::c(name, &format!("{head}{body}"))
    };
    let hostile = [
        ("files", "prlimit(slot, RLIMIT_NOFILE, &l, 0);"),
        ("memory", "prlimit(slot, RLIMIT_DATA, &l, 0);"),
        ("size", "prlimit(slot, RLIMIT_FSIZE, &l, 0);"),
        ("nice", "setpriority(PRIO_PROCESS, slot, 7);"),
        (
            "processors",
            "sched_getaffinity(slot, sizeof one, &one); for (int i = 0, n = CPU_COUNT(&one); n > 1; i++) if (CPU_ISSET(i, &one)) { CPU_CLR(i, &one); n--; } sched_setaffinity(slot, sizeof one, &one);",
        ),
        ("with_a_child", "prlimit(slot, RLIMIT_NOFILE, &l, 0); if (fork() == 0) { close(1); close(2); sleep(60); }"),
    ];
    let mut builder = World::builder().slots(1, 10).skill(Skill::c("limits", LIMITS));
    for (name, how) in hostile {
        builder = builder.skill(harms(name, how));
    }
    let mut world = builder.start().await;
    let before = world.run("limits").await;
    for (name, _) in hostile {
        // It may be so fast that its own slot cannot watch it any more.
        let run = world.run(name).await;
        assert!(run == succeeded("{}\n") || run.finished.reason == "SLOT_LOST", "{name}: {run:?}");
        assert_eq!(world.run("limits").await.stderr, before.stderr, "{name}");
    }
    world.quiet(Duration::from_millis(100)).await;
}
