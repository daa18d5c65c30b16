//! Skills that mean harm to the executor, its files, and each other; each contained at the level that says so, while
//! others are served.

use std::process::Stdio;
use std::time::Duration;

use skillyard_tests::run::succeeded;
use skillyard_tests::{Skill, World, binaries, process};

/// One thing a line: what must fail, and does it quietly.
fn attack(world: &str) -> String {
    format!(
        r#"
try() {{ if sh -c "$1" >/dev/null 2>&1; then echo "done: $1" >&2; fi; }}
executor=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status)
try "cat /proc/$executor/environ"
try "ls /proc/$executor/fd/"
try "cat /proc/$executor/maps"
try "cat {world}/state/catalog/*"
try "cat {world}/state/journal/journal.redb"
try "cat {world}/state/lock"
try "cat {world}/access/executor.token"
try "ls {world}/state/scratch/2/ && cat {world}/state/scratch/*/run"
try "kill -0 $executor"
try "kill -STOP $executor"
try "renice -n 5 -p $executor"
try "renice -n 5 -p $PPID"
try "prlimit --pid $executor --nofile=5"
try "prlimit --pid $PPID --nofile=5"
try "taskset -p 1 $executor"
try "echo x >>$0"
try "echo x >$(dirname $0)/new"
try "rm -f $0"
try "mv $0 $0.old"
try "ln $0 {world}/linked"
try "mkdir {world}/state/store/mine"
chmod 777 $0 $(dirname $0) {world}/state/store {world}/state/catalog
touch -d 2001-01-01 $0
[ "$(stat -c %a $0)" = 555 ] || echo "chmod $(stat -c %a $0)" >&2
[ "$(stat -c %Y $0)" -gt 1000000000 ] || echo touched >&2
try "echo x >/tmp/skillyard-hostile-$$"
try "echo x >/dev/shm/skillyard-hostile-$$"
echo fine >/dev/null || echo "no /dev/null" >&2
echo '{{}}'
"#
    )
}

/// A world with the skill that tries everything.
fn world_with_attack() -> skillyard_tests::world::Builder {
    world_with(|attack| attack)
}

fn world_with(change: impl FnOnce(String) -> String) -> skillyard_tests::world::Builder {
    let builder = World::builder();
    let script = attack(builder.path("").display().to_string().trim_end_matches('/'));
    let hostile = Skill::sh("hostile", &change(script)).set("env_allow", vec!["PATH"]);
    builder.skill(hostile).skill(Skill::sh("works", "echo '{}'"))
}

async fn contained(builder: skillyard_tests::world::Builder) {
    let mut world = builder.start().await;
    let isolation = world.status().await.isolation;
    if !isolation.iter().any(|name| name == "files+signals") {
        return eprintln!("not tried: only {isolation:?} is to be had here");
    }
    for _ in 0..2 {
        assert_eq!(world.run("hostile").await, succeeded("{}\n"));
        assert_eq!(world.run("works").await, succeeded("{}\n"));
    }
    world.quiet(Duration::from_secs(30)).await;
}

#[tokio::test]
async fn they_are_contained_as_the_executors_user() {
    // Root alone is whom little holds.
    match world_with_attack().as_nobody() {
        Ok(builder) => contained(builder).await,
        Err(why) => eprintln!("not tried: {why}"),
    }
}

#[tokio::test]
async fn they_are_contained_as_another_user() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: only root can have skills run as another user");
    }
    let builder = world_with_attack().flag("--run-as", "65534:65534");
    // Who runs them must get at the packages.
    std::fs::set_permissions(builder.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    contained(builder).await;
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

#[tokio::test]
async fn they_are_contained_as_root() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tried: this is not root");
    }
    // Root lists the numbers of its descriptors, and learns nothing of what they are.
    let (from, to) = ("ls /proc/$executor/fd/", "readlink /proc/$executor/fd/* /proc/$executor/exe");
    contained(world_with(|attack| attack.replace(from, to))).await;
}
