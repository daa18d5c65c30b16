//! What one run may use: memory, open files, the length of a file. What takes more is ended, and says why; the executor
//! serves others meanwhile, and nothing is left over. Those that multiply are among the hostile skills.

use std::time::{Duration, Instant};

use rstest::rstest;
use skillyard::pb::executor::v1::Outcome;
use skillyard_tests::run::{Ended, ended, succeeded};
use skillyard_tests::world::Builder;
use skillyard_tests::{Skill, World, call, hostile, pack};

/// 60 MiB, which eight children share with it for a while.
const SHARES: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    memset(malloc(60 << 20), 1, 60 << 20);
    for (int i = 0; i < 8; i++)
        if (fork() == 0) {
            usleep(600000);
            _exit(0);
        }
    while (wait(0) > 0) { }
    puts("{}");
}
"#;

/// Says how many files it can have open.
const FILES: &str = r#"
#include <fcntl.h>
#include <stdio.h>
int main(void) {
    int last = 2;
    for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;) last = fd;
    printf("%d", last + 1);
}
"#;

/// The world, as it is started by whoever runs the tests, and, by root, as somebody else too.
async fn world(builder: Builder, nobody: bool) -> Option<World> {
    if !nobody {
        return Some(builder.start().await);
    }
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    match builder.as_nobody() {
        Ok(builder) => Some(builder.start().await),
        Err(why) => {
            eprintln!("not tried: {why}");
            None
        }
    }
}

/// Runs one, and another skill all the while, which is not disturbed.
async fn beside_others(world: &mut World, skill: &str) -> Ended {
    let live = world.open(skill).await;
    let attack = tokio::spawn(live.rest());
    let began = Instant::now();
    loop {
        assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
        assert!(began.elapsed() < skillyard_tests::PATIENCE, "it is not ended");
        if attack.is_finished() {
            break;
        }
    }
    let seen = attack.await.unwrap();
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
    world.quiet(Duration::from_secs(5)).await;
    assert!(!seen.finished.message.is_empty());
    seen.ended()
}

#[rstest]
#[tokio::test]
async fn memory_is_the_whole_trees(#[values(false, true)] nobody: bool) {
    let builder = World::builder()
        .flag("--max-memory", "100MiB")
        .slots(2, 8)
        .skill(hostile::skill("fills_memory"))
        .skill(hostile::skill("fills_memory_by_children"))
        .skill(Skill::c("shares", SHARES))
        .skill(Skill::script("at_once", "#!/usr/bin/python3\nx=bytearray(8<<30); print('{}')\n"))
        .skill(Skill::tiny("tiny"));
    let Some(mut world) = world(builder, nobody).await else { return };
    for skill in ["fills_memory", "fills_memory_by_children"] {
        let mut expected = ended(Outcome::OutOfMemory).by("SIGKILL");
        expected.reason = "MEMORY_LIMIT".to_owned();
        assert_eq!(beside_others(&mut world, skill).await, expected, "{skill}");
    }
    let seen = world.run("fills_memory_by_children").await;
    assert!(seen.finished.message.contains("may take 100 MiB"), "{}", seen.finished.message);
    // What is shared is counted once.
    assert_eq!(world.run("shares").await, succeeded("{}\n"));
    // What nobody measured is not guessed: the system refused it, and the skill said so.
    let seen = world.run("at_once").await;
    assert_eq!(seen.finished.outcome(), Outcome::Failed);
    assert!(seen.finished.message.contains("MemoryError"), "{}", seen.finished.message);
}

#[rstest]
#[tokio::test]
async fn what_the_kernel_limits(#[values(false, true)] nobody: bool) {
    let skills = |builder: Builder| {
        builder
            .skill(Skill::c("files", FILES))
            .skill(Skill::sh("core", "ulimit -c; ulimit -H -c >&2"))
            .skill(Skill::sh("soft", "ulimit -n"))
            .skill(Skill::sh("hard", "ulimit -H -n"))
    };
    let builder = skills(World::builder()).flag("--max-open-files", 100);
    let Some(mut limited) = world(builder, nobody).await else { return };
    assert_eq!(limited.run("files").await, succeeded("100"));
    for skill in ["soft", "hard"] {
        assert_eq!(limited.run(skill).await, succeeded("100\n"));
    }
    assert_eq!(limited.run("core").await, succeeded("0\n").stderr("0\n"));
    // Without the flag a skill starts with what the executor was started with, which has made more of it for itself.
    let Some(mut free) = world(skills(World::builder()).soft_open_files(200), nobody).await else { return };
    assert_eq!(free.run("soft").await, succeeded("200\n"));
    let hard: u64 = free.run("hard").await.result.trim().parse().unwrap();
    assert!(hard > 200, "{hard}");
    let executor = free.executor_pid();
    let own = std::fs::read_to_string(format!("/proc/{executor}/limits")).unwrap();
    let line = own.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_ascii_whitespace().nth(3).unwrap(), hard.to_string(), "{line}");
}

#[tokio::test]
async fn a_long_run_within_its_limits_is_left_alone() {
    let mut world = World::builder()
        .flag("--max-memory", "100MiB")
        .flag("--max-processes", 10)
        .skill(Skill::sh("works", "for i in $(seq 12); do sleep 0.1; done; echo '{}'"))
        .start()
        .await;
    assert_eq!(world.run(call("works")).await, succeeded("{}\n"));
}

#[tokio::test]
async fn what_one_run_may_use_is_told() {
    let flags = [
        ("--max-memory", "200MiB"),
        ("--max-processes", "none"),
        ("--max-open-files", "100"),
        ("--max-timeout", "90s"),
    ];
    let builder = flags.into_iter().fold(World::builder(), |builder, (flag, value)| builder.flag(flag, value));
    let mut world = builder.skill(Skill::tiny("tiny")).start().await;
    let limits = world.status().await.limits.unwrap();
    assert_eq!((limits.memory_bytes, limits.processes, limits.open_files), (Some(200 << 20), None, Some(100)));
    assert_eq!((limits.file_size_bytes, limits.max_timeout.map(|limit| limit.seconds)), (None, Some(90)));
}
