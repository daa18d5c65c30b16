//! A registry that serves and syncs: what its callers see, and when.

use std::fs;

use serde_json::json;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::catalog_service_client::CatalogServiceClient;
use skillyard::pb::registry::v1::package_service_client::PackageServiceClient;
use skillyard_tests::metrics::Scrape;

use crate::bed::{Admin, Bed, Skill, Trick};
use crate::world::{PATIENCE, Registry, World, eventually};

async fn serve(world: &World, admin: &Admin, more: &[&str]) -> Registry {
    let cloud = world.path("cloud");
    let cloud = ["--cloud-dir", cloud.to_str().unwrap(), "--admin-url", &admin.url(), "--admin-interval", "1s"];
    world.serve(&[&cloud, more].concat()).await
}

async fn names(registry: &Registry, agent: &str) -> Vec<String> {
    let request = pb::ListSkillsRequest { agent: agent.to_owned(), ..Default::default() };
    let skills = CatalogServiceClient::new(registry.channel.clone()).list_skills(request).await.unwrap().into_inner();
    skills.skills.into_iter().map(|skill| skill.name).collect()
}

async fn report(registry: &Registry) -> pb::GetLoadReportResponse {
    let request = pb::GetLoadReportRequest { problems_only: true, ..Default::default() };
    CatalogServiceClient::new(registry.channel.clone()).get_load_report(request).await.unwrap().into_inner()
}

/// `code name` of what is wrong or doubtful.
fn codes(report: &pb::GetLoadReportResponse) -> Vec<String> {
    let of = |candidate: &pb::Candidate| -> Vec<String> {
        candidate.diagnostics.iter().map(|diagnostic| format!("{} {}", diagnostic.code, candidate.name)).collect()
    };
    report.candidates.iter().flat_map(of).collect()
}

async fn until<T>(registry: &Registry, mut found: impl FnMut(&pb::GetLoadReportResponse) -> Option<T>) -> T {
    eventually(async || found(&report(registry).await)).await
}

#[tokio::test]
async fn the_id_is_the_name_whatever_the_folder_is_called() {
    let (world, admin) = (World::new(), Admin::start().await);
    admin.put("one", Skill::new("one", "1").in_dir("Folder One"));
    admin.put("two", Skill::new("other name", "1"));
    world.agent("reader", "skills: [one]");
    let registry = serve(&world, &admin, &[]).await;
    eventually(async || (names(&registry, "").await == ["one", "two"]).then_some(())).await;
    assert_eq!(names(&registry, "reader").await, ["one"]);
    admin.put("one", Skill::new("one", "1").in_dir("Folder Two"));
    eventually(async || world.path("cloud/skills/Folder Two").exists().then_some(())).await;
    eventually(async || (names(&registry, "").await == ["one", "two"]).then_some(())).await;
}

#[tokio::test]
async fn a_sync_is_one_new_catalog_and_watchers_have_it() {
    let (world, admin) = (World::new(), Admin::start().await);
    let fill = |text: &str| {
        admin.publish(|shop| {
            for i in 0..200 {
                let id = format!("s{i}");
                shop.skills.insert(id.clone(), Skill::new(&id, text).in_dir(&format!("dir {i}")).file("x.md", text));
            }
        });
    };
    fill("1");
    let registry = serve(&world, &admin, &[]).await;
    let mut watch = PackageServiceClient::new(registry.channel.clone())
        .watch_catalog(pb::WatchCatalogRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut next = async || {
        let message = tokio::time::timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
        message.catalog_version
    };
    let mut seen = vec![next().await];
    let settled = async |seen: &mut Vec<String>, wanted: u32| {
        let of = |report: &pb::GetLoadReportResponse| {
            let sync = report.sync.as_ref().unwrap();
            (sync.version == format!("v{wanted}")).then(|| report.catalog_version.clone())
        };
        until(&registry, of).await.clone_into(seen.last_mut().unwrap());
    };
    let mut synced = vec![String::new()];
    settled(&mut synced, 1).await;
    while *seen.last().unwrap() != synced[0] {
        seen.push(next().await);
    }
    assert!(seen.len() <= 2, "{seen:?}");
    fill("2");
    settled(&mut synced, 2).await;
    assert_eq!(next().await, synced[0], "the next catalog is that of the whole sync");
    assert_eq!(names(&registry, "").await.len(), 100);
}

#[tokio::test]
async fn the_report_says_what_is_not_there_and_why() {
    let (world, admin) = (World::new(), Admin::start().await);
    admin.put("good", Skill::new("good", "1"));
    admin.put("bad", Skill::new("bad", "1").file("../x", ""));
    admin.put("lab", Skill::new("lab", "1").for_tier("lab"));
    let mut cut = Skill::new("cut", "1");
    cut.files.push(json!({"path": "big.bin", "truncated": true, "size": 9}));
    admin.put("cut", cut);
    let registry = serve(&world, &admin, &["--admin-listen", "127.0.0.1:0"]).await;
    let wanted = ["W_SYNC_TIER lab", "E_SYNC_SKILL bad", "W_SYNC_FILE_MISSING cut"];
    let found = until(&registry, |report| Some(report.clone()).filter(|report| codes(report) == wanted)).await;
    let sync = found.sync.unwrap();
    assert_eq!((sync.skills, sync.failed, sync.error.as_str()), (2, 1, ""));
    assert!(sync.succeeded_at.is_some() && sync.url.starts_with("http://127.0.0.1"));
    let first = sync.succeeded_at;
    let told = Scrape::of(registry.admin_address()).await;
    let figure = |told: &Scrape, name: &str| told.value(&format!("skillyard_registry_sync_{name}"));
    assert_eq!((figure(&told, "skills"), figure(&told, "skills_failed"), figure(&told, "failing")), (2.0, 1.0, 0.0));
    let (attempted, succeeded) = (figure(&told, "attempted_time_seconds"), figure(&told, "succeeded_time_seconds"));
    assert!(succeeded > 0.0 && attempted >= succeeded, "{attempted} {succeeded}");
    // A server that is away changes nothing but the report, and is asked again.
    admin.trick("manifest", (0..5).map(|_| Trick::Status(403)));
    let away = |report: &pb::GetLoadReportResponse| codes(report).iter().any(|code| code == "E_SYNC_SERVER ");
    let found = until(&registry, |report| Some(report.clone()).filter(|report| away(report))).await;
    assert!(found.sync.unwrap().error.contains("403"));
    assert!(figure(&Scrape::of(registry.admin_address()).await, "attempted_time_seconds") > attempted);
    assert_eq!(names(&registry, "").await, ["cut", "good"]);
    until(&registry, |report| (!away(report) && report.sync.as_ref().unwrap().succeeded_at != first).then_some(()))
        .await;
    admin.publish(|shop| {
        shop.skills.remove("bad");
        shop.skills.remove("lab");
        shop.skills.remove("cut");
    });
    until(&registry, |report| codes(report).is_empty().then_some(())).await;
    let said = registry.log().iter().filter(|line| line.contains("sync: a skill is not synced")).count();
    assert!(said <= 2, "at first, and when the server is back: not at every sync");
}

#[tokio::test]
async fn offline_nothing_is_asked_and_nothing_goes() {
    let (world, bed) = (World::new(), Bed::new().await);
    bed.admin.put("a", Skill::new("a", "1"));
    bed.sync().await;
    bed.admin.publish(|shop| shop.skills.clear());
    bed.admin.asked();
    let cloud = bed.path("");
    let args = [
        "--cloud-dir",
        cloud.to_str().unwrap(),
        "--admin-url",
        &bed.admin.url(),
        "--admin-interval",
        "1s",
        "--offline",
    ];
    let registry = world.serve(&args).await;
    assert_eq!(names(&registry, "").await, ["a"]);
    assert!(report(&registry).await.sync.is_none());
    assert!(bed.admin.asked().is_empty());
}

#[tokio::test]
async fn a_change_that_was_cut_off_is_not_looked_at() {
    let (world, bed) = (World::new(), Bed::new().await);
    bed.admin.put("a", Skill::new("a", "1"));
    bed.sync().await;
    let cloud = bed.path("");
    let registry = world.serve(&["--cloud-dir", cloud.to_str().unwrap()]).await;
    fs::write(bed.path(".sync/commit.json"), "{}").unwrap();
    fs::remove_dir_all(bed.path("skills/a")).unwrap();
    let mut catalogs = CatalogServiceClient::new(registry.channel.clone());
    catalogs.reload(pb::ReloadRequest {}).await.unwrap();
    assert_eq!(names(&registry, "").await, ["a"], "what was known is kept");
    assert!(codes(&report(&registry).await).iter().any(|code| code.starts_with("E_UNREADABLE")));
    bed.sync().await;
    catalogs.reload(pb::ReloadRequest {}).await.unwrap();
    assert_eq!(names(&registry, "").await, ["a"]);
    assert_eq!(codes(&report(&registry).await), Vec::<String>::new());
    // At the start it is finished, or thrown away where nobody understands it.
    fs::write(bed.path(".sync/commit.json"), "{}").unwrap();
    let again = World::new();
    let registry = again.serve(&["--cloud-dir", cloud.to_str().unwrap()]).await;
    assert_eq!(names(&registry, "").await, ["a"]);
}
