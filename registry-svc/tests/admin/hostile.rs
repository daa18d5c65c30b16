//! A server that is slow, breaks off, lies, or wants more than it is to have.

use std::fs;
use std::time::Duration;

use crate::bed::{Admin, Bed, LIMITS, Skill, Trick};

#[tokio::test]
async fn what_can_pass_is_tried_again() {
    let bed = Bed::new().await;
    bed.admin.put("a", Skill::new("a", "1"));
    for (what, trick) in [
        ("manifest", Trick::Status(500)),
        ("manifest", Trick::Wait(429, "1")),
        ("a", Trick::Wait(503, "0")),
        ("a", Trick::CutOff),
        ("manifest", Trick::CutOff),
    ] {
        bed.admin.put("a", Skill::new("a", &format!("{what} {trick:?}")));
        bed.admin.asked();
        bed.admin.trick(what, [trick.clone()]);
        bed.sync().await;
        assert_eq!(bed.admin.asked().len(), 3, "{trick:?}");
    }
    // It goes on, but not for ever.
    bed.admin.trick("manifest", (0..3).map(|_| Trick::Status(503)));
    bed.try_sync().await.unwrap_err();
    assert_eq!(bed.admin.asked().len(), 1 + LIMITS.retries);
}

#[tokio::test]
async fn what_cannot_pass_is_not() {
    let bed = Bed::new().await;
    for trick in [
        Trick::Status(400),
        Trick::Status(401),
        Trick::Status(403),
        Trick::Status(204),
        Trick::Wait(429, "3600"),
        Trick::Text("{".to_owned()),
        Trick::Encoded,
    ] {
        bed.admin.trick("manifest", [trick.clone()]);
        bed.try_sync().await.unwrap_err();
        assert_eq!(bed.admin.asked().len(), 1, "{trick:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_silent_is_not_waited_for() {
    let mut bed = Bed::new().await;
    bed.puller.server.limits.idle = Duration::from_millis(100);
    bed.puller.server.limits.retries = 0;
    bed.admin.trick("manifest", [Trick::Stall]);
    let error = bed.try_sync().await.unwrap_err().to_string();
    assert!(error.contains("in time"), "{error}");
    // Nor one that is not there.
    bed.puller.server.url = "http://127.0.0.1:1".parse().unwrap();
    let error = bed.try_sync().await.unwrap_err().to_string();
    assert!(error.contains("does not answer"), "{error}");
}

#[tokio::test]
async fn a_token_is_shown_to_this_server_alone() {
    let mut bed = Bed::new().await;
    let other = Admin::start().await;
    let file = bed.beside("token");
    fs::write(&file, "secret\n").unwrap();
    bed.puller.server.token_file = Some(file.clone());
    bed.admin.put("a", Skill::new("a", "1"));
    for to in [format!("{}/api/public/skills/manifest", other.url()), "https://127.0.0.1/x".to_owned()] {
        bed.admin.trick("manifest", [Trick::Redirect(to)]);
        let error = bed.try_sync().await.unwrap_err().to_string();
        assert!(error.contains("--admin-url"), "{error}");
    }
    assert!(other.requests().is_empty());
    bed.admin.trick("manifest", [Trick::Redirect("/api/public/skills/manifest?again".to_owned())]);
    bed.admin.requests();
    bed.sync().await;
    let requests = bed.admin.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|asked| asked.headers["authorization"] == "Bearer secret"));
    // It goes round in circles.
    bed.admin.trick("manifest", (0..10).map(|_| Trick::Redirect("/api/public/skills/manifest".to_owned())));
    bed.try_sync().await.unwrap_err();
    assert!(bed.admin.requests().len() < 10);
    fs::write(&file, "two\nlines").unwrap();
    let error = bed.try_sync().await.unwrap_err().to_string();
    assert!(error.contains("token file") && !error.contains("lines\n"), "{error}");
    assert!(bed.admin.requests().is_empty());
}

#[tokio::test]
async fn at_most_eight_at_once() {
    let bed = Bed::new().await;
    bed.admin.publish(|shop| {
        shop.pause = Duration::from_millis(50);
        for i in 0..40 {
            shop.skills.insert(format!("s{i}"), Skill::new("s", "1"));
        }
    });
    bed.sync().await;
    assert_eq!(bed.admin.most_at_once(), 8);
}

#[tokio::test]
async fn a_server_that_fails_everywhere_is_left_alone() {
    let bed = Bed::new().await;
    for i in 0..200 {
        let id = format!("s{i}");
        bed.admin.put(&id, Skill::new(&id, "1"));
        bed.admin.trick(&id, (0..9).map(|_| Trick::Status(500)));
    }
    let synced = bed.try_sync().await.unwrap();
    assert_eq!(synced.failed.len(), 200);
    let asked = bed.admin.asked().len();
    assert!(asked < 100, "{asked}");
}

#[tokio::test]
async fn a_large_skill_comes_and_a_larger_one_does_not() {
    let bed = Bed::new().await;
    let (mib, byte) = (1 << 20, "x");
    let large = |id: &str| {
        let skill = Skill::new(id, "1").file("a", &byte.repeat(40 * mib));
        Skill { hash: Some("h".to_owned()), ..skill }
    };
    bed.admin.put("large", large("large"));
    bed.admin.put("larger", large("larger").file("b", &byte.repeat(25 * mib)));
    bed.admin.put("small", Skill::new("small", "1"));
    let synced = bed.try_sync().await.unwrap();
    assert_eq!(synced.failed.len(), 1);
    assert!(synced.failed[0].1.contains("67108864 bytes"), "{:?}", synced.failed);
    assert_eq!(synced.fetched, 2);
}

/// In a process of its own, so that its memory can be looked at.
#[tokio::test]
async fn a_body_of_a_gigabyte_is_refused_within_bounds() {
    use crate::kill::Sync;
    let bed = Bed::new().await;
    for (what, told) in [("manifest", true), ("manifest", false), ("a", true), ("a", false)] {
        bed.admin.put("a", Skill::new("a", "1"));
        bed.admin.put("b", Skill::new("b", what));
        bed.admin.trick(what, [Trick::Huge(1 << 30, told)]);
        let sync = Sync::start(&bed, &[]);
        let (code, most) = sync.ended_with_memory().await;
        assert_eq!(code, if what == "manifest" { 9 } else { 1 }, "{what}");
        assert!(most < 400 << 10, "{what} took {most} KiB");
        assert_eq!(bed.tree().contains_key("b/SKILL.md"), what == "a");
        std::fs::remove_dir_all(bed.path("skills")).unwrap();
    }
}
