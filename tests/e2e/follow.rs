//! The catalog as it changes, from the registry's files to the executor: told by what changed alone, through restarts of
//! either, and asked for whole where that does not do.

use std::collections::BTreeMap;
use std::fs;

use skillyard::pb::registry::v1::{GetSkillRequest, WatchCatalogRequest, WatchCatalogResponse};
use skillyard_tests::run::succeeded;
use skillyard_tests::{AgentFile, Playbook, Skill, World, within};
use tonic::Streaming;

/// What an executor logs when what it was told does not make the state that it was to make.
const RESYNC: &str = "does not make the state";

/// Answers with a text that makes one version of it tell from another.
fn says(name: &str, text: &str) -> Skill {
    Skill::sh(name, &format!("printf '\"{text}\"'"))
}

async fn watch(world: &mut World, request: WatchCatalogRequest) -> Streaming<WatchCatalogResponse> {
    world.packages().watch_catalog(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<WatchCatalogResponse>) -> WatchCatalogResponse {
    let within = tokio::time::timeout(skillyard_tests::PATIENCE, stream.message());
    within.await.expect("a message").unwrap().unwrap()
}

/// Names of the skills that it tells of.
fn changed(message: &WatchCatalogResponse) -> Vec<&str> {
    message.changed.iter().map(|skill| skill.name.as_str()).collect()
}

#[tokio::test]
async fn a_watcher_is_told_what_changed_and_nothing_else() {
    let mut world = World::of([says("a", "1"), says("b", "1"), says("c", "1")]).await;
    let mut stream = watch(&mut world, WatchCatalogRequest::default()).await;
    let first = next(&mut stream).await;
    assert!(first.full && !first.more && first.agents.is_some() && !first.state_sha256.is_empty());
    assert_eq!(changed(&first), ["a", "b", "c"]);
    let had: BTreeMap<_, _> = first.changed.iter().map(|skill| (skill.name.clone(), skill.digest.clone())).collect();

    world.write(&says("b", "2"));
    world.settle().await;
    let second = next(&mut stream).await;
    assert_ne!(first.catalog_version, second.catalog_version);
    assert!(!second.full && second.agents.is_some() && second.removed.is_empty());
    assert_eq!(changed(&second), ["b"]);

    fs::remove_dir_all(world.path("external").join("c")).unwrap();
    world.settle().await;
    let third = next(&mut stream).await;
    assert_eq!((changed(&third), &third.removed[..]), (Vec::new(), &["c".to_owned()][..]));

    // Whoever has it already is told that it is still the one.
    let known = |version: &str| WatchCatalogRequest { catalog_version: version.to_owned(), ..Default::default() };
    let still = next(&mut watch(&mut world, known(&third.catalog_version)).await).await;
    assert_eq!(still, WatchCatalogResponse { catalog_version: third.catalog_version.clone(), ..Default::default() });
    // Whoever was away for a while gets all of it as one change, and leads to the same state.
    let missed = next(&mut watch(&mut world, known(&first.catalog_version)).await).await;
    assert_eq!((missed.full, changed(&missed), &missed.removed[..]), (false, vec!["b"], &["c".to_owned()][..]));
    assert_eq!((&missed.catalog_version, &missed.state_sha256), (&third.catalog_version, &third.state_sha256));

    // Another registry knows nothing of that version, but compares what there is.
    world.kill_registry();
    world.start_registry().await;
    let request = WatchCatalogRequest { digests: had.into_iter().collect(), ..known(&first.catalog_version) };
    let missed = next(&mut watch(&mut world, request).await).await;
    assert_eq!((missed.full, changed(&missed), &missed.removed[..]), (false, vec!["b"], &["c".to_owned()][..]));
    let whole = next(&mut watch(&mut world, known(&first.catalog_version)).await).await;
    assert_eq!((whole.full, changed(&whole)), (true, vec!["a", "b"]));
    assert_eq!(whole.state_sha256, third.state_sha256);
}

#[tokio::test]
async fn the_mirror_follows_edits_removals_renames_and_restarts() {
    let world = World::builder().playbook(&Playbook::new("guide", "Guides.", "Go."));
    let world = world.skill(says("kept", "kept")).skill(says("edited", "0")).skill(says("gone", "gone"));
    let mut world = world.agent(&AgentFile::new("me")).start().await;
    world.settle().await;
    let external = world.path("external");
    for edition in 1..4 {
        let text = edition.to_string();
        world.write(&says("edited", &text));
        world.write(&says(&format!("new_{text}"), &text));
        AgentFile::new("me").disallowed(&[&format!("new_{text}")]).write(&world.path("agents"));
        if edition == 2 {
            fs::remove_dir_all(external.join("gone")).unwrap();
            // It keeps its directory and gets another name, and the other way round.
            let manifest = external.join("new_1/skill.json");
            let renamed = fs::read_to_string(&manifest).unwrap().replace("new_1", "renamed");
            skillyard_tests::pack::place(&manifest, renamed.as_bytes(), 0o644);
            fs::rename(external.join("kept"), external.join("moved")).unwrap();
        }
        if edition == 3 {
            world.kill_registry();
            fs::remove_dir_all(external.join("new_2")).unwrap();
            world.start_registry().await;
        }
        world.settle().await;
        assert_eq!(world.run("edited").await, succeeded(&format!("\"{text}\"")));
        assert_eq!(world.run("kept").await, succeeded("\"kept\""));
    }
    assert_eq!(world.run("renamed").await, succeeded("\"1\""));
    for name in ["gone", "new_1", "new_2", "guide"] {
        let refused = world.refusal(name).await;
        assert_eq!(refused.reason, if name == "guide" { "NOT_RUNNABLE" } else { "UNKNOWN_SKILL" }, "{name}");
    }
    assert!(!world.executor_server().has_logged(RESYNC), "every change led where it should");

    // Started again it goes on from what it kept.
    world.kill_executor();
    world.write(&says("edited", "last"));
    world.start_executor().await;
    world.settle().await;
    assert_eq!(world.run("edited").await, succeeded("\"last\""));
    assert!(!world.executor_server().has_logged(RESYNC));
}

/// Between two registries nothing but the digests is compared, and these do not say where a skill lies.
#[tokio::test]
async fn where_a_change_does_not_do_the_whole_is_asked_for() {
    let mut world = World::of([says("a", "a"), says("b", "b")]).await;
    world.settle().await;
    world.kill_registry();
    let external = world.path("external");
    fs::create_dir(external.join("deeper")).unwrap();
    fs::rename(external.join("a"), external.join("deeper/a")).unwrap();
    world.start_registry().await;
    world.settle().await;
    let resync = async || world.executor_server().has_logged(RESYNC).then_some(());
    within(skillyard_tests::PATIENCE, "the executor notices", resync).await;
    assert_eq!(world.run("a").await, succeeded("\"a\""));
    // And from there on it is told what changes.
    world.write(&says("b", "c"));
    world.settle().await;
    assert_eq!(world.run("b").await, succeeded("\"c\""));
    let request = GetSkillRequest { name: "a".into(), ..Default::default() };
    assert_eq!(world.catalog().get_skill(request).await.unwrap().into_inner().skill.unwrap().path, "deeper/a");
}
