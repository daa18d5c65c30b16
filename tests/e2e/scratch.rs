//! Scratch directories: TMPDIR of a run that is allowed it, and what is left of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use skillyard::pb::executor::v1::Outcome;
use skillyard_tests::run::{ended, succeeded};
use skillyard_tests::world::tree;
use skillyard_tests::{PATIENCE, Skill, World, eventually, within};

fn allowed(skill: Skill) -> Skill {
    skill.set("env_allow", vec!["TMPDIR", "PATH"])
}

/// All that there is of scratch directories but the directories that hold them.
fn left(world: &World) -> Vec<PathBuf> {
    let directories = ["state/scratch", "state/discarded"].map(|name| world.path(name));
    let slots = |path: &PathBuf| path.parent() == Some(directories[0].as_path()) && !name_of(path).starts_with("run-");
    directories.iter().flat_map(|directory| tree(directory)).filter(|path| !slots(path)).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

async fn nothing_is_left(world: &World) {
    eventually("nothing is left of scratch directories", async || left(world).is_empty()).await;
}

#[tokio::test]
async fn a_run_that_is_allowed_it_has_its_own() {
    let own = "cd \"$TMPDIR\" && ls -A && stat -c %a . >&2 && echo x >file && printf '\"%s\"' \"$TMPDIR\"";
    let hard = r#"cd "$TMPDIR"; mkdir -p a/b/c; echo x >a/b/c/f; ln -s / root; ln -s "$PWD" a/self; mkfifo a/p
        chmod 000 a/b/c; chmod 000 a/b a; rm -rf nothing; echo '{}'"#;
    let deep = "cd \"$TMPDIR\"; i=0; while [ $i -lt 300 ]; do mkdir d; cd -P d; i=$((i+1)); done; echo '{}'";
    let mut world = World::builder()
        .variable("TMPDIR", "/nonsense")
        .skill(allowed(Skill::sh("own", own)))
        .skill(allowed(Skill::sh("hard", hard)))
        .skill(allowed(Skill::sh("deep", deep)))
        .skill(allowed(Skill::sh("removes", "rm -rf \"$TMPDIR\"; echo '{}'")))
        .skill(Skill::sh("none", "printf '\"%s\"' \"$TMPDIR\""))
        .start()
        .await;
    assert_eq!(world.run("none").await, succeeded("\"\""));
    assert_eq!(left(&world), Vec::<PathBuf>::new());
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let run = world.run("own").await;
        assert_eq!((run.finished.outcome(), run.stderr.as_str()), (Outcome::Succeeded, "700\n"));
        let path = PathBuf::from(run.result.trim_matches('"'));
        assert!(path.starts_with(world.path("state/scratch").canonicalize().unwrap()), "{}", path.display());
        assert!(!path.exists(), "it is out of reach with the run's end");
        assert!(seen.insert(path), "it is a new one each time");
    }
    for skill in ["hard", "deep", "removes"] {
        assert_eq!(world.run(skill).await, succeeded("{}\n"), "{skill}");
        nothing_is_left(&world).await;
    }
}

#[tokio::test]
async fn it_is_gone_however_the_run_ends_and_after_a_crash_of_the_executor() {
    let fill = "dd if=/dev/zero of=\"$TMPDIR/f\" bs=1M count=5 2>/dev/null; echo filled >&2; ";
    let mut world = World::builder()
        .skill(allowed(Skill::sh("stays", &format!("{fill} sleep 300"))))
        .skill(allowed(Skill::sh("killed", &format!("{fill} kill -9 $$"))))
        .skill(allowed(Skill::sh("slot", &format!("{fill} kill -9 $PPID; sleep 300"))))
        .skill(allowed(Skill::sh("late", &format!("{fill} sleep 300")).timeout(1)))
        .start()
        .await;
    for (skill, outcome) in [("killed", Outcome::Signaled), ("slot", Outcome::Lost), ("late", Outcome::TimedOut)] {
        assert_eq!(world.run(skill).await.finished.outcome(), outcome, "{skill}");
        nothing_is_left(&world).await;
    }
    let mut live = world.open("stays").await;
    live.logged("filled").await;
    assert!(left(&world).iter().any(|path| path.ends_with("f")));
    world.kill_executor();
    drop(live);
    world.quiet(Duration::from_secs(1)).await;
    world.start_executor().await;
    within(PATIENCE, "the scratch directory is gone after the restart", async || left(&world).is_empty().then_some(()))
        .await;
}

#[tokio::test]
async fn a_file_has_a_longest_length() {
    let mut world = World::builder()
        .flag("--max-file-size", "1MiB")
        .skill(allowed(Skill::sh("writes", "exec head -c 3000000 /dev/zero >\"$TMPDIR/f\"")))
        .start()
        .await;
    let seen = world.run("writes").await;
    assert_eq!(seen, ended(Outcome::Signaled).by("SIGXFSZ"));
    assert!(seen.finished.message.contains("--max-file-size"), "{}", seen.finished.message);
}
