//! The catalog under a tree that never rests, with readers that never rest: whenever the tree does, it is what a registry
//! that was started just now finds, and no reader was ever shown anything but a version that there was, whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use skillyard::pb::registry::v1 as pb;
use skillyard::pb::skill::v1::Skill;
use tonic::Code;

use crate::world::{Registry, World, eventually};
use crate::{catalog, watch};

/// Times that the tree comes to rest.
const ROUNDS: usize = 8;
/// Skills and playbooks in the tree beside those that change.
const OTHERS: usize = 40;

/// What readers were shown, by version.
#[derive(Default)]
struct Shown {
    lists: BTreeMap<String, Vec<Skill>>,
    rosters: BTreeMap<String, String>,
    /// Version, digest and body of a playbook.
    loaded: BTreeSet<(String, String, String)>,
    watched: BTreeSet<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_it_ends_as_a_cold_load() {
    let world = World::new();
    for i in 0..OTHERS {
        world.skill(&format!("other_{i}"), "");
        world.playbook(&format!("other-{i}"));
    }
    mount(&world, 0);
    change(&world, 0);
    let registry = Arc::new(world.serve(&[]).await);
    let (stop, shown) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Shown::default())));
    let mut readers = tokio::task::JoinSet::new();
    let more = || (Arc::clone(&registry), Arc::clone(&stop), Arc::clone(&shown));
    for _ in 0..2 {
        let (registry, stop, shown) = more();
        readers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                list(&registry, &shown).await;
            }
        });
        let (registry, stop, shown) = more();
        readers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                load(&registry, &shown).await;
            }
        });
    }
    let (mut watched, into) = (watch(&registry, "").await, Arc::clone(&shown));
    let watching = tokio::spawn(async move {
        while let Ok(Some(message)) = watched.message().await {
            into.lock().unwrap().watched.insert(message.catalog_version);
        }
    });
    for round in 1..=ROUNDS {
        change(&world, round);
        mount(&world, round);
        let cold = world.serve_beside(&format!("-cold-{round}"), &[]).await;
        let expected = everything(&cold).await;
        // Nobody asks for a look.
        eventually(async || (everything(&registry).await == expected).then_some(())).await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(read) = readers.join_next().await {
        read.unwrap();
    }
    watching.abort();

    let shown = shown.lock().unwrap();
    let lines = registry.all("the catalog is that of the files");
    let were: BTreeSet<_> = lines.iter().map(|line| line["version"].as_str().unwrap().to_owned()).collect();
    let loaded: BTreeSet<_> = shown.loaded.iter().map(|(version, ..)| version.clone()).collect();
    let seen =
        [shown.lists.keys().cloned().collect(), shown.rosters.keys().cloned().collect(), loaded, shown.watched.clone()];
    for seen in &seen {
        assert!(seen.len() > 1, "readers saw it change: {seen:?}");
        assert!(seen.is_subset(&were), "{seen:#?} {were:#?}");
    }
    // What was never touched was never missing.
    for (version, list) in &shown.lists {
        let others = list.iter().filter(|skill| skill.name.starts_with("other")).count();
        assert_eq!(others, 2 * OTHERS, "{version}");
        let roster = shown.rosters.get(version).into_iter();
        let names = list.iter().filter(|skill| skill.playbook.is_some()).map(|skill| format!("`{}`", skill.name));
        let names: Vec<_> = names.collect();
        assert!(roster.clone().all(|text| names.iter().all(|name| text.contains(name))), "{version}: one catalog");
    }
    // A digest is one body, and the one of the list of its version.
    let bodies: BTreeMap<_, _> = shown.loaded.iter().map(|(_, digest, body)| (digest, body)).collect();
    for (version, digest, body) in &shown.loaded {
        assert_eq!(bodies[digest], body);
        let listed = shown.lists.get(version).and_then(|list| list.iter().find(|skill| skill.name == "guide"));
        assert!(listed.is_none_or(|skill| skill.digest == *digest), "{version}");
    }
}

async fn list(registry: &Registry, shown: &Mutex<Shown>) {
    let request = pb::ListSkillsRequest { page_size: 1000, ..Default::default() };
    let page = catalog(registry).list_skills(request).await.unwrap().into_inner();
    assert_eq!((page.skills.len(), page.next_page_token.as_str()), (page.total_size as usize, ""));
    let roster = catalog(registry).get_roster(pb::GetRosterRequest::default()).await.unwrap().into_inner();
    let mut shown = shown.lock().unwrap();
    let before = shown.lists.entry(page.catalog_version).or_insert_with(|| timeless(page.skills.clone()));
    assert_eq!(*before, timeless(page.skills), "a version is one list");
    let before = shown.rosters.entry(roster.catalog_version).or_insert_with(|| roster.text.clone());
    assert_eq!(*before, roster.text, "a version is one roster");
}

async fn load(registry: &Registry, shown: &Mutex<Shown>) {
    let request = pb::LoadSkillRequest { name: "guide".into(), ..Default::default() };
    match catalog(registry).load_skill(request).await {
        Ok(loaded) => {
            let loaded = loaded.into_inner();
            shown.lock().unwrap().loaded.insert((loaded.catalog_version, loaded.digest, loaded.body));
        }
        // It is gone for a while, or was just written.
        Err(status) => assert!(matches!(status.code(), Code::NotFound | Code::Aborted), "{status:?}"),
    }
}

/// The version has no times, and neither has what is compared.
fn timeless(skills: Vec<Skill>) -> Vec<Skill> {
    skills.into_iter().map(|skill| Skill { modified_at: None, ..skill }).collect()
}

/// All that a registry says of its catalog.
async fn everything(registry: &Registry) -> (String, Vec<Skill>, Vec<pb::Root>, Vec<pb::Candidate>) {
    // Of one catalog: where it changed in between, it is asked again.
    eventually(async || {
        let mut client = catalog(registry);
        let request = pb::ListSkillsRequest { page_size: 1000, ..Default::default() };
        let page = client.list_skills(request).await.unwrap().into_inner();
        let request = pb::GetLoadReportRequest { page_size: 1000, ..Default::default() };
        let report = client.get_load_report(request).await.unwrap().into_inner();
        assert_eq!(report.next_page_token, "");
        let is_one = page.catalog_version == report.catalog_version;
        is_one.then_some((page.catalog_version, page.skills, report.roots, report.candidates))
    })
    .await
}

/// Edits, renames, deletions, mistakes and their correction: others in every round.
fn change(world: &World, round: usize) {
    // In place, with the same length.
    let manifest =
        |name: &str, text: &str| format!(r#"{{"name":"{name}","description":"{text} {round}","entry":"run.sh"}}"#);
    world.skill("in_place", "");
    fs::write(world.path("ext/in_place/skill.json"), manifest("in_place", "edited")).unwrap();
    // Over it.
    world.skill("over", &format!(r#","timeout_seconds":{}"#, round + 1));
    world.write("ext/over/run.sh", format!("#!/bin/sh\necho {round}\n"));
    // A skill moves from directory to directory, and another gets another name where it is.
    world.skill(&format!("moves_{round}"), "");
    let _ = fs::remove_dir_all(world.path("ext/moves_0"));
    if round > 1 {
        fs::rename(world.path(&format!("ext/moves_{}", round - 1)), world.path(&format!("ext/moved_{round}"))).unwrap();
    }
    world.write("ext/renamed/run.sh", "#!/bin/sh\n");
    world.write("ext/renamed/skill.json", manifest(&format!("name_{round}"), "renamed"));
    // Gone, wrong, and taken by another in turn.
    match round % 3 {
        0 => world.skill("comes_and_goes", ""),
        1 => world.write("ext/comes_and_goes/skill.json", "{\"name\": \"comes_and_goes\",}"),
        _ => fs::remove_dir_all(world.path("ext/comes_and_goes")).unwrap_or_default(),
    }
    world
        .write("ext/taken/skill.json", manifest(if round.is_multiple_of(2) { "over" } else { "taken" }, "of one name"));
    world.write("ext/taken/run.sh", "#!/bin/sh\n");
    // A playbook: its text, a file beside it, and itself.
    let _ = fs::remove_dir_all(world.path("playbooks/guide"));
    world
        .write("playbooks/guide/SKILL.md", format!("---\nname: guide\ndescription: about {round}\n---\nDo {round}.\n"));
    world.write(&format!("playbooks/guide/more-{round}.md"), "more");
    fs::write(
        world.path("playbooks/other-0/SKILL.md"),
        format!("---\nname: other-0\ndescription: {round}\n---\nDo.\n"),
    )
    .unwrap();
    // Agents, one of whom names what there is now and then.
    world.agent("me", &format!("skills: [name_{round}, over]\ndisallowed_skills: [name_{}]", round / 2));
    match round % 2 {
        0 => world.agent("you", ""),
        _ => fs::remove_file(world.path("agents/you.md")).unwrap_or_default(),
    }
}

/// How Kubernetes updates a mounted volume: all of it with the swap of one link.
fn mount(world: &World, round: usize) {
    let version = format!("ext/mounted/..v{round}");
    for name in ["one", "two", "three"] {
        let manifest = format!(r#"{{"name":"mounted_{name}","description":"of {round}","entry":"run.sh"}}"#);
        world.write(&format!("{version}/{name}/skill.json"), manifest);
        world.write(&format!("{version}/{name}/run.sh"), format!("#!/bin/sh\necho {round}\n"));
    }
    swap(&format!("..v{round}"), &world.path("ext/mounted/..data"));
    for name in ["one", "two", "three"] {
        if round == 0 {
            symlink(format!("..data/{name}"), world.path(&format!("ext/mounted/{name}"))).unwrap();
        }
    }
    if round > 0 {
        fs::remove_dir_all(world.path(&format!("ext/mounted/..v{}", round - 1))).unwrap();
    }
}

fn swap(target: &str, link: &Path) {
    let beside = link.with_file_name("..data_tmp");
    symlink(target, &beside).unwrap();
    fs::rename(&beside, link).unwrap();
}
