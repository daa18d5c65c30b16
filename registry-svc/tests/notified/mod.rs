//! What happens where the system does not notify of every change: the registry runs with a limit of its own, which a user
//! namespace gives it.

#![expect(clippy::disallowed_methods, reason = "tests start programs")]

use std::fs;
use std::process::{Command, Stdio};

use skillyard::pb::registry::v1 as pb;

use crate::world::{Registry, World, eventually};
use crate::{catalog, get};

/// In a namespace in which a limit is another, becomes the program that follows.
fn limited(limit: &str) -> Vec<String> {
    let script = format!(r#"echo {limit} && exec "$0" "$@""#);
    ["unshare", "--user", "--map-root-user", "sh", "-c", &script].map(str::to_owned).to_vec()
}

/// Whether this host lets a test have a namespace; where it does not, there is no limit to be had that is the test's own.
fn can_limit() -> bool {
    let limited = limited("1 > /proc/sys/user/max_inotify_watches");
    let tried = Command::new(&limited[0]).args(&limited[1..]).arg("true").stderr(Stdio::null()).status();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!("not tested: this host gives no user namespaces, or no unshare");
    }
    can
}

async fn roots(registry: &Registry) -> Vec<pb::Root> {
    let report = catalog(registry).get_load_report(pb::GetLoadReportRequest::default()).await;
    report.unwrap().into_inner().roots
}

fn warnings(registry: &Registry, of: &str) -> usize {
    registry.log().iter().filter(|line| line.starts_with("WARN") && line.contains(of)).count()
}

async fn until_described(registry: &Registry, name: &str, text: &str) {
    eventually(async || (get(registry, name, "").await.ok()?.description == text).then_some(())).await;
}

fn edit(world: &World, name: &str, text: &str) {
    let manifest = format!(r#"{{"name":"{name}","description":"{text}","entry":"run.sh"}}"#);
    fs::write(world.path(&format!("ext/{name}/skill.json")), manifest).unwrap();
}

#[tokio::test]
async fn beyond_the_limit_of_watches_the_rescan_sees_it_until_there_is_room() {
    if !can_limit() {
        return;
    }
    let world = World::new();
    for i in 0..20 {
        world.skill(&format!("s{i}"), "");
    }
    let wrapper = limited("12 > /proc/sys/user/max_inotify_watches");
    let registry = world.serve_wrapped(&wrapper, &["--rescan-interval", "1s"]).await;
    eventually(async || (warnings(&registry, "fs.inotify.max_user_watches") > 0).then_some(())).await;
    let lacking = roots(&registry).await;
    assert!(lacking[0].unnotified.contains("max_user_watches") && lacking[0].state == "registered", "{lacking:?}");
    // Wherever they lie, all are seen.
    for i in 0..20 {
        edit(&world, &format!("s{i}"), "edited");
    }
    for i in 0..20 {
        until_described(&registry, &format!("s{i}"), "edited").await;
    }
    world.skill("new", "");
    until_described(&registry, "new", "does new").await;
    assert_eq!(warnings(&registry, "fs.inotify.max_user_watches"), 1, "it is said once");

    let raise = "echo 10000 > /proc/sys/user/max_inotify_watches";
    let pid = registry.pid().to_string();
    let raised = Command::new("nsenter").args(["--user", "--target", &pid, "sh", "-c", raise]).status().unwrap();
    assert!(raised.success());
    eventually(async || (roots(&registry).await.iter().all(|root| root.unnotified.is_empty())).then_some(())).await;
    registry.logs("every change of a file is notified again");
    edit(&world, "new", "edited");
    until_described(&registry, "new", "edited").await;
}

#[tokio::test]
async fn without_any_notification_the_rescan_sees_it() {
    if !can_limit() {
        return;
    }
    let world = World::new();
    world.skill("a", "");
    let wrapper = limited("0 > /proc/sys/user/max_inotify_instances");
    let registry = world.serve_wrapped(&wrapper, &["--rescan-interval", "1s"]).await;
    eventually(async || (warnings(&registry, "fs.inotify.max_user_instances") > 0).then_some(())).await;
    assert!(roots(&registry).await.iter().take(2).all(|root| root.unnotified.contains("max_user_instances")));
    edit(&world, "a", "edited");
    until_described(&registry, "a", "edited").await;
    assert_eq!(warnings(&registry, "not every change"), 1, "one line, for all roots");
}
