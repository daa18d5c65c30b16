//! What becomes of the mirror when a server that behaves publishes, changes, renames and withdraws skills.

use std::fs;

use serde_json::json;

use crate::bed::{Bed, Skill, Trick};

#[tokio::test]
async fn orphans_go_and_nothing_is_wiped() {
    let bed = Bed::new().await;
    bed.admin.put("a", Skill::new("a", "1"));
    bed.admin.put("b", Skill::new("b", "1").file("reference.md", "read").file("more/x.md", "x"));
    let synced = bed.sync().await;
    assert_eq!((synced.skills, synced.fetched, synced.removed, synced.changed), (2, 2, 0, true));
    bed.admin.publish(|shop| shop.skills.remove("b"));
    assert_eq!(bed.sync().await.removed, 1);
    let before = (bed.tree(), bed.manifest());
    let bad = ["", "null", "[]", "{\"skills\":null}", "{\"skills\":[", "<html>", r#"{"skills":[],"version":"v9"}"#];
    for trick in bad.map(|text| Trick::Text(text.to_owned())).into_iter().chain([Trick::Status(404)]) {
        bed.admin.trick("manifest", [trick.clone()]);
        let error = bed.try_sync().await.unwrap_err().to_string();
        assert!(error.contains("stay"), "{trick:?}: {error}");
        assert_eq!((bed.tree(), bed.manifest()), before, "{trick:?}");
    }
    bed.admin.put("b", Skill::new("b", "1").file("more/x.md", "x"));
    bed.sync().await;
    assert!(!bed.path("skills/b/reference.md").exists());
}

#[tokio::test]
async fn only_what_changed_is_asked_for() {
    for etags in [true, false] {
        let bed = Bed::new().await;
        bed.admin.publish(|shop| {
            shop.etags = etags;
            for i in 0..1000 {
                let id = format!("s{i:04}");
                shop.skills.insert(id.clone(), Skill::new(&id, "1").file("references/more.md", "more"));
            }
        });
        assert_eq!(bed.sync().await.fetched, 1000);
        assert_eq!(bed.admin.asked().len(), 1001);
        assert!(bed.admin.most_at_once() <= 8);
        let synced = bed.sync().await;
        assert_eq!((synced.skills, synced.changed, synced.reported), (1000, false, false));
        assert_eq!(bed.admin.asked().len(), 1, "nothing is new");
        bed.admin.put("s0500", Skill::new("s0500", "2"));
        assert_eq!(bed.sync().await.fetched, 1);
        let asked = ["/api/public/skills/manifest", "/api/public/skills/s0500?include_files=1"];
        assert_eq!(bed.admin.asked(), asked);
        // Another hash of the same content, as a server has that is installed anew.
        bed.admin.publish(|shop| shop.skills.get_mut("s0001").unwrap().hash = Some("other".to_owned()));
        bed.sync().await;
        assert_eq!(bed.manifest()["skills"][1]["hash"], "other");
    }
}

#[tokio::test]
async fn byte_for_byte() {
    let bed = Bed::new().await;
    let raw_md =
        "\u{feff}---\r\nname: a\r\ndescription: \"Über: x\"\r\nunknown: {deep: [1, 2]}\r\n---\r\nbody\u{0}\n\n";
    let files = vec![
        json!({"path": "logo.png", "content_b64": "iVBORw0KGgoA/w==", "size": 10}),
        json!({"path": "Ünï/read me.md", "content": "tab\t\r\n", "size": 6}),
        json!({"path": "empty", "content": "", "size": 0}),
        json!({"path": "big.iso", "truncated": true, "size": 1_000_000_000, "content": "head"}),
    ];
    bed.admin.put("a", Skill { raw_md: raw_md.to_owned(), files, ..Skill::default() });
    bed.sync().await;
    assert_eq!(bed.reported(), ["big.iso a"]);
    assert!(!bed.sync().await.changed, "a file that is missing is no reason to ask again");
    assert_eq!(bed.reported(), ["big.iso a"]);
}

#[tokio::test]
async fn folders_are_renamed_and_swapped_and_the_id_stays() {
    let bed = Bed::new().await;
    for (id, folder) in [("a", "A dir"), ("b", "B dir"), ("c", "c"), ("d", "d")] {
        bed.admin.put(id, Skill::new(id, "1").in_dir(folder));
    }
    bed.sync().await;
    bed.admin.asked();
    bed.admin.publish(|shop| {
        for (id, folder) in [("a", "B dir"), ("b", "A dir"), ("c", "new")] {
            let skill = shop.skills.remove(id).unwrap();
            shop.skills.insert(id.to_owned(), skill.in_dir(folder));
        }
        shop.skills.insert("d".to_owned(), Skill::new("d", "2").in_dir("c"));
    });
    bed.sync().await;
    assert_eq!(bed.admin.asked().len(), 2, "what only moves is not fetched");
    assert!(!bed.path("skills/d").exists());
    assert_eq!(
        bed.manifest()["skills"][0],
        json!({"id": "a", "hash": bed.manifest()["skills"][0]["hash"],
        "updated_at": "2026-01-01T00:00:00Z", "dirname": "B dir"})
    );
}

#[tokio::test]
async fn what_is_unsafe_is_refused_and_the_rest_comes() {
    let bed = Bed::new().await;
    fs::create_dir_all(bed.path("skills/mine")).unwrap();
    fs::write(bed.path("skills/mine/SKILL.md"), "mine").unwrap();
    std::os::unix::fs::symlink(bed.beside("elsewhere"), bed.path("skills/link")).unwrap();
    fs::create_dir(bed.beside("elsewhere")).unwrap();
    bed.admin.put("good", Skill::new("good", "1"));
    let dirs = [
        ("d1", "../x"),
        ("d2", "/abs"),
        ("d3", "a/b"),
        ("d4", ".hidden"),
        ("d5", "a\\b"),
        ("d6", "good"),
        ("d7", ".."),
    ];
    for (id, dirname) in dirs {
        bed.admin.put(id, Skill::new(id, "1").in_dir(dirname));
    }
    for (id, path) in [("f1", "../x"), ("f2", "/etc/x"), ("f3", ".git/config"), ("f4", "a\\..\\b"), ("f5", "a//b")] {
        bed.admin.put(id, Skill::new(id, "1").file(path, ""));
    }
    bed.admin.put("g1", Skill::new("g1", "1").file("a", "").file("a/b", ""));
    for id in ["mine", "link", "manifest"] {
        bed.admin.put(id, Skill::new(id, "1"));
    }
    bed.admin.publish(|shop| shop.entries = vec![json!({"id": "good", "hash": "x"}), json!({"hash": "x"})]);
    let synced = bed.try_sync().await.unwrap();
    assert_eq!(synced.failed.len(), 18);
    assert_eq!(bed.tree().keys().collect::<Vec<_>>(), ["link", "mine/SKILL.md"].iter().collect::<Vec<_>>());
    bed.admin.publish(|shop| shop.entries.clear());
    bed.try_sync().await.unwrap();
    let mut there: Vec<_> = fs::read_dir(bed.path("skills")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    there.sort();
    assert_eq!(there, ["good", "link", "mine"]);
    assert_eq!(fs::read_to_string(bed.path("skills/mine/SKILL.md")).unwrap(), "mine");
    assert_eq!(fs::read_dir(bed.beside("elsewhere")).unwrap().count(), 0);
    let mut outside: Vec<_> = fs::read_dir(bed.beside("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    outside.sort();
    assert_eq!(outside, ["cloud", "elsewhere"]);
    assert_eq!(bed.reported().len(), 16);
    // What the server publishes no more goes; what is not the sync's stays.
    bed.admin.publish(|shop| {
        shop.skills.clear();
        shop.skills.insert("other".to_owned(), Skill::new("other", "1"));
    });
    bed.try_sync().await.unwrap();
    assert_eq!(
        bed.tree().keys().collect::<Vec<_>>(),
        ["link", "mine/SKILL.md", "other/SKILL.md"].iter().collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn one_that_fails_stays_as_it_was_and_is_tried_again() {
    let bed = Bed::new().await;
    bed.admin.publish(|shop| shop.etags = true);
    for id in ["a", "b", "c"] {
        bed.admin.put(id, Skill::new(id, "1"));
    }
    bed.sync().await;
    let version = bed.manifest()["version"].clone();
    for id in ["a", "b"] {
        bed.admin.put(id, Skill::new(id, "2"));
    }
    let before = bed.tree()["a/SKILL.md"].clone();
    bed.admin.trick("a", [Trick::Status(404)]);
    let synced = bed.try_sync().await.unwrap();
    assert_eq!((synced.failed.len(), synced.fetched), (1, 1));
    assert_eq!((bed.tree()["a/SKILL.md"].clone(), bed.reported()), (before, vec!["E_SYNC_SKILL a".to_owned()]));
    assert_eq!(bed.manifest()["version"], version, "other clients must not take it for the new version");
    bed.sync().await;
    assert_eq!(bed.reported(), Vec::<String>::new());
}

#[tokio::test]
async fn tiers() {
    let mut bed = Bed::new().await;
    for (id, tier) in [("a", "community"), ("b", "pro"), ("c", "ent"), ("d", "gold")] {
        bed.admin.put(id, Skill::new(id, "1").for_tier(tier));
    }
    let sync = async |bed: &Bed| {
        let synced = bed.try_sync().await.unwrap();
        assert_eq!(synced.failed, []);
        bed.tree().keys().map(|path| path.chars().next().unwrap()).collect::<String>()
    };
    assert_eq!(sync(&bed).await, "a");
    assert_eq!(bed.reported(), ["W_SYNC_TIER b", "W_SYNC_TIER c", "W_SYNC_TIER d"]);
    assert!(!bed.admin.asked().iter().any(|path| path.contains("/b")));
    bed.puller.tier = "enterprise".parse().unwrap();
    assert_eq!(sync(&bed).await, "abc");
    bed.puller.tier = "plus".parse().unwrap();
    assert_eq!(sync(&bed).await, "a");
}

#[tokio::test]
async fn a_server_that_really_has_nothing_left() {
    let mut bed = Bed::new().await;
    bed.sync().await;
    bed.admin.put("a", Skill::new("a", "1"));
    bed.sync().await;
    bed.puller.allow_empty = true;
    let same = format!(r#"{{"skills":[],"version":{}}}"#, bed.manifest()["version"]);
    bed.admin.trick("manifest", [Trick::Text(same), Trick::Text(r#"{"skills":[]}"#.to_owned())]);
    for _ in 0..2 {
        assert!(bed.try_sync().await.unwrap_err().to_string().contains("--allow-empty"));
    }
    bed.admin.publish(|shop| shop.skills.clear());
    bed.sync().await;
    assert_eq!(bed.manifest()["skills"], json!([]));
}

#[tokio::test]
async fn a_mirror_that_was_damaged_is_mended() {
    let bed = Bed::new().await;
    bed.admin.publish(|shop| shop.etags = true);
    for id in ["a", "b", "c"] {
        bed.admin.put(id, Skill::new(id, "1").file("x.md", "x"));
    }
    bed.sync().await;
    fs::write(bed.path("skills/a/SKILL.md"), "edited").unwrap();
    fs::write(bed.path("skills/b/new"), "added").unwrap();
    fs::remove_dir_all(bed.path("skills/c")).unwrap();
    bed.sync().await;
    for lost in ["manifest.json", ".sync/state.json"] {
        fs::remove_file(bed.path(lost)).unwrap();
        bed.sync().await;
        assert_eq!(bed.manifest()["skills"].as_array().unwrap().len(), 3, "{lost}");
    }
    // Also where one of them cannot be had just now.
    fs::remove_file(bed.path("manifest.json")).unwrap();
    bed.admin.trick("a", [Trick::Status(404)]);
    assert_eq!(bed.try_sync().await.unwrap().failed.len(), 1);
    assert!(bed.tree().contains_key("a/SKILL.md"));
    bed.sync().await;
    fs::write(bed.path("manifest.json"), "{").unwrap();
    bed.admin.publish(|shop| shop.skills.remove("b"));
    bed.sync().await;
}

#[tokio::test]
async fn a_mirror_of_another_program_is_taken_over() {
    let bed = Bed::new().await;
    bed.admin.put("a", Skill::new("a", "1"));
    bed.admin.put("b", Skill::new("b", "1").in_dir("B"));
    bed.sync().await;
    fs::remove_dir_all(bed.path(".sync")).unwrap();
    bed.admin.put("a", Skill::new("a", "2"));
    bed.admin.asked();
    bed.sync().await;
    assert_eq!(bed.admin.asked().len(), 2, "what its manifest lists with the same hash is not fetched");
}

#[tokio::test]
async fn two_at_once_are_one_after_the_other() {
    let bed = Bed::new().await;
    bed.admin.put("a", Skill::new("a", "1"));
    let (one, other) = tokio::join!(bed.try_sync(), bed.try_sync());
    let refused: Vec<_> = [one, other].into_iter().filter_map(Result::err).collect();
    assert!(refused.iter().all(|error| error.to_string().contains("another sync")), "{refused:?}");
    bed.sync().await;
}
