//! From the registry's files to the executor's runs: one filter everywhere, edits that arrive, and work that goes on
//! without the registry.

use std::collections::BTreeSet;
use std::time::Duration;

use skillyard::pb::registry::v1::{GetSkillRequest, ListSkillsRequest};
use skillyard_tests::run::succeeded;
use skillyard_tests::{AgentFile, Playbook, Refused, Skill, World, call, eventually, pack, within};
use tonic::Code;

const SECOND: Duration = Duration::from_secs(1);

/// Answers with a text that makes one version of it tell from another.
fn version(text: &str) -> Skill {
    Skill::sh("versioned", &format!("printf '\"{text}\"'"))
}

async fn listed(world: &mut World, agent: &str) -> BTreeSet<String> {
    let (mut names, mut page_token) = (BTreeSet::new(), String::new());
    loop {
        let request = ListSkillsRequest { agent: agent.to_owned(), page_size: 2, page_token, ..Default::default() };
        let page = world.catalog().list_skills(request).await.unwrap().into_inner();
        names.extend(page.skills.into_iter().map(|skill| skill.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return names;
        }
    }
}

#[tokio::test]
async fn one_filter_in_every_call() {
    let mut world = World::builder()
        .skill(Skill::tiny("alpha"))
        .skill(Skill::tiny("beta"))
        .skill(Skill::tiny("gamma"))
        .playbook(&Playbook::new("guide", "How to use alpha.", "# Guide"))
        .workspace_playbook(&Playbook::new("house-rules", "Of this workspace.", "# Rules"))
        .agent(&AgentFile::new("all"))
        .agent(&AgentFile::new("star").skills(&["*"]))
        .agent(&AgentFile::new("listed").skills(&["alpha", "guide", "no_such"]))
        .agent(&AgentFile::new("without").disallowed(&["alpha", "house-rules"]))
        .agent(&AgentFile::new("both").skills(&["alpha", "beta"]).disallowed(&["beta"]))
        .agent(&AgentFile::new("nothing").disallowed(&["*"]))
        .start()
        .await;
    let everything = ["alpha", "beta", "gamma", "guide", "house-rules"];
    for (agent, sees) in [
        ("", &everything[..]),
        ("all", &everything),
        ("star", &everything),
        ("listed", &["alpha", "guide", "house-rules"]),
        ("without", &["beta", "gamma", "guide", "house-rules"]),
        ("both", &["alpha", "house-rules"]),
        ("nothing", &["house-rules"]),
    ] {
        let expected: BTreeSet<String> = sees.iter().map(ToString::to_string).collect();
        assert_eq!(listed(&mut world, agent).await, expected, "ListSkills for {agent:?}");
        for name in everything {
            let request = GetSkillRequest { name: name.to_owned(), agent: agent.to_owned() };
            let get = world.catalog().get_skill(request).await.map_err(|status| Refused::of(&status));
            let run = match world.try_open(call(name).agent(agent)).await {
                Ok(live) => live.end().await,
                Err(status) => Err(status),
            };
            let run = run.map_err(|status| Refused::of(&status));
            if expected.contains(name) {
                assert_eq!(get.unwrap().into_inner().skill.unwrap().name, name);
                match run {
                    Ok(run) => assert_eq!(run, succeeded(pack::TINY_RESULT)),
                    Err(refused) => assert_eq!(refused.short().1, "NOT_RUNNABLE", "{name} for {agent:?}"),
                }
            } else {
                let (get, run) = (get.unwrap_err(), run.unwrap_err());
                assert_eq!(get.short(), (Code::NotFound, "UNKNOWN_SKILL"), "{name} for {agent:?}");
                assert_eq!(get.message, format!("unknown skill {name:?}"));
                // Word for word: what an agent may not see does not exist for it.
                assert_eq!(run, get, "{name} for {agent:?}");
            }
        }
    }
    let request = ListSkillsRequest { agent: "stranger".into(), ..Default::default() };
    let refused = Refused::of(&world.catalog().list_skills(request).await.unwrap_err());
    assert_eq!(refused.short(), (Code::NotFound, "UNKNOWN_AGENT"));
}

#[tokio::test]
async fn the_default_agent_is_meant_where_none_is_named() {
    let mut world = World::builder()
        .flag("--default-agent", "narrow")
        .registry_flag("--default-agent", "narrow")
        .skill(Skill::tiny("alpha"))
        .skill(Skill::tiny("beta"))
        .agent(&AgentFile::new("narrow").skills(&["alpha"]))
        .agent(&AgentFile::new("wide"))
        .start()
        .await;
    assert_eq!(listed(&mut world, "").await, BTreeSet::from(["alpha".to_owned()]));
    assert_eq!(world.run("alpha").await, succeeded(pack::TINY_RESULT));
    assert_eq!(world.refusal("beta").await.short(), (Code::NotFound, "UNKNOWN_SKILL"));
    assert_eq!(world.run(call("beta").agent("wide")).await, succeeded(pack::TINY_RESULT));
}

#[tokio::test]
async fn an_edit_reaches_the_executor_by_itself() {
    let mut world = World::of([version("one")]).await;
    assert_eq!(world.run("versioned").await, succeeded("\"one\""));
    world.write(&version("two"));
    let (_, took) = within(5 * SECOND, "the edit has arrived", async || {
        let run = world.try_open("versioned").await.ok()?.end().await.ok()?;
        (run.result == "\"two\"").then_some(())
    })
    .await;
    assert!(took < 3 * SECOND, "{took:?}");
    // A new skill, and one that goes.
    world.write(&Skill::tiny("newcomer"));
    within(5 * SECOND, "the new skill has arrived", async || world.try_open("newcomer").await.ok()?.end().await.ok())
        .await;
    std::fs::remove_dir_all(world.path("external").join("versioned")).unwrap();
    within(5 * SECOND, "the deleted one is unknown", async || match world.try_open("versioned").await {
        Ok(live) => live.end().await.err(),
        Err(status) => Some(status),
    })
    .await;
    assert_eq!(world.refusal("versioned").await.short(), (Code::NotFound, "UNKNOWN_SKILL"));
}

#[tokio::test]
async fn an_agent_that_is_edited_is_another_one_at_once() {
    let mut world =
        World::builder().skill(Skill::tiny("alpha")).agent(&AgentFile::new("reader").skills(&["alpha"])).start().await;
    assert_eq!(world.run(call("alpha").agent("reader")).await, succeeded(pack::TINY_RESULT));
    AgentFile::new("reader").skills(&["beta"]).write(&world.path("agents"));
    world.settle().await;
    assert_eq!(world.refusal(call("alpha").agent("reader")).await.short(), (Code::NotFound, "UNKNOWN_SKILL"));
}

#[tokio::test]
async fn a_run_keeps_the_version_that_it_began_with() {
    let builder = World::builder();
    let gate = builder.path("gate");
    let skill = |word: &str| {
        let wait = format!("echo up >&2; while ! [ -e {} ]; do sleep 0.01; done; cat word", gate.display());
        Skill::sh("reads_late", &wait).file("word", format!("\"{word}\""), 0o644)
    };
    let mut world = builder.skill(skill("old")).start().await;
    let mut old = world.open("reads_late").await;
    old.logged("up").await;
    world.write(&skill("new"));
    world.settle().await;
    std::fs::write(&gate, "").unwrap();
    assert_eq!(world.run("reads_late").await, succeeded("\"new\"").stderr("up\n"));
    assert_eq!(old.rest().await, succeeded("\"old\"").stderr("up\n"));
}

#[tokio::test]
async fn a_skill_edited_all_the_time_always_runs_whole() {
    // The version stands at both ends of a file that is read as it runs, and in a program that is executed.
    let skill = |n: usize| {
        let padding = format!("# {}\n", "x".repeat(100)).repeat(200);
        let script = format!("first={n}\n{padding}last={n}\nprintf '[%s,%s]' $first $last");
        Skill::sh("edited", &script)
    };
    let program = std::fs::read(skillyard_tests::binaries::compiled(pack::TINY)).unwrap();
    let tiny = |n: usize| {
        // What follows an executable's end changes its digest and nothing that it does.
        let mut bytes = program.clone();
        bytes.extend_from_slice(n.to_string().as_bytes());
        Skill::new("edited_program", "program").file("program", bytes, 0o755)
    };
    let mut world = World::of([skill(0), tiny(0)]).await;
    let mut versions = BTreeSet::new();
    for n in 1..=100 {
        world.write(&skill(n));
        world.write(&tiny(n));
        for name in ["edited", "edited_program"] {
            let run = match world.try_open(name).await {
                Ok(live) => live.end().await,
                Err(status) => Err(status),
            };
            // A version that is not here yet is asked for again; nothing else is wrong with it.
            match run {
                Err(status) => assert_eq!(Refused::of(&status).short().1, "PACKAGE_NOT_MIRRORED"),
                Ok(run) if name == "edited_program" => assert_eq!(run, succeeded(pack::TINY_RESULT)),
                Ok(run) => {
                    let (first, last) = run.result.trim_matches(['[', ']']).split_once(',').expect("two numbers");
                    assert_eq!(first, last, "{:?}", run.finished);
                    versions.insert(first.to_owned());
                }
            }
        }
        tokio::task::yield_now().await;
    }
    world.settle().await;
    assert_eq!(world.run("edited").await, succeeded("[100,100]"));
    assert!(!versions.is_empty());
}

#[tokio::test]
async fn safe_runs_go_on_without_the_registry() {
    let mut world = World::of([Skill::tiny("tiny"), Skill::tiny("mutates").set("class", "mutating")]).await;
    world.kill_registry();
    eventually("the executor has noticed", async || !world.status().await.registry_connected).await;
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
    assert_eq!(world.refusal("mutates").await.short(), (Code::PermissionDenied, "CLASS_NOT_PERMITTED"));

    // Restarted, it works from what it kept.
    world.kill_executor();
    world.start_executor().await;
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
    let status = world.status().await;
    assert!(!status.registry_connected && !status.catalog_version.is_empty(), "{status:?}");

    // And it finds the registry again.
    world.write(&version("three"));
    world.start_registry().await;
    eventually("the executor is connected again", async || world.status().await.registry_connected).await;
    world.settle().await;
    assert_eq!(world.run("versioned").await, succeeded("\"three\""));
}

#[tokio::test]
async fn what_was_tampered_with_in_the_store_is_not_run_after_a_restart() {
    let mut world = World::of([version("good")]).await;
    world.run("versioned").await;
    world.kill_executor();
    let files = skillyard_tests::world::tree(&world.path("state"));
    let copies: Vec<_> = files.iter().filter(|path| path.ends_with("run.sh")).collect();
    assert_eq!(copies.len(), 1, "{files:#?}");
    pack::place_over(copies[0], b"#!/bin/sh\nprintf '\"evil\"'\n");
    world.start_executor().await;
    world.settle().await;
    assert_eq!(world.run("versioned").await, succeeded("\"good\""));
}

#[tokio::test]
async fn old_versions_are_collected() {
    let mut world = World::of([version("0")]).await;
    for n in 1..6 {
        world.write(&version(&n.to_string()));
        world.settle().await;
        assert_eq!(world.run("versioned").await, succeeded(&format!("\"{n}\"")));
    }
    eventually("one copy is left", async || {
        let files = skillyard_tests::world::tree(&world.path("state"));
        files.iter().filter(|path| path.ends_with("run.sh")).count() == 1
    })
    .await;
}

#[tokio::test]
async fn one_bad_package_never_stops_another() {
    let world = World::builder();
    for (name, text) in [("typo", "{\"name\": \"typo\",}"), ("empty", ""), ("list", "[]")] {
        pack::place(&world.path("external").join(name).join("skill.json"), text.as_bytes(), 0o644);
    }
    let mut world = world
        .skill(Skill::sh("good", "echo '{}'"))
        .skill(Skill::sh("bad_schema", "echo '{}'").set("schema", serde_json::json!({"type": "no-such-type"})))
        .skill(
            Skill::sh("refers_outside", "echo '{}'").set("schema", serde_json::json!({"$ref": "http://127.0.0.1/x"})),
        )
        .start()
        .await;
    assert_eq!(listed(&mut world, "").await, BTreeSet::from(["good".to_owned()]));
    assert_eq!(world.run("good").await, succeeded("{}\n"));
    let report = world.report().await;
    let refused = report.candidates.iter().filter(|candidate| !candidate.registered);
    assert_eq!(refused.count(), 5, "{report:#?}");
    let external = world.path("external");
    let line = format!("skill loader: parse {}/typo/skill.json: ", external.display());
    world.registry_server().logs(&line).await;
}

#[tokio::test]
async fn an_edit_in_place_of_the_same_length_is_seen_at_once_after_a_reload() {
    let mut world = World::builder().playbook(&Playbook::new("guide", "Says one.", "# one")).start().await;
    let described = async |world: &mut World| {
        let request = GetSkillRequest { name: "guide".into(), agent: String::new() };
        world.catalog().get_skill(request).await.unwrap().into_inner().skill.unwrap().description
    };
    let file = world.path("playbooks").join("guide").join("SKILL.md");
    for word in ["two", "six", "ten"] {
        let text = std::fs::read_to_string(&file).unwrap();
        let old = described(&mut world).await;
        std::fs::write(&file, text.replace(&old, &format!("Says {word}."))).unwrap();
        world.catalog().reload(skillyard::pb::registry::v1::ReloadRequest {}).await.unwrap();
        assert_eq!(described(&mut world).await, format!("Says {word}."));
    }
}
