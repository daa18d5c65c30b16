//! Playbooks that one registry publishes, another mirrors, and an executor of that one follows.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use skillyard::pb::registry::v1::GetSkillRequest;
use skillyard_tests::pack::Playbook;
use skillyard_tests::{World, eventually};

const EDITS: usize = 3;

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn edition(number: usize) -> Playbook {
    Playbook::new("disk-full", &format!("Edition {number}."), "Look at the biggest files first.")
}

/// The description that a registry has of the playbook.
async fn description(world: &mut World) -> Option<String> {
    let request = GetSkillRequest { name: "disk-full".into(), ..GetSkillRequest::default() };
    Some(world.catalog().get_skill(request).await.ok()?.into_inner().skill?.description)
}

#[tokio::test]
async fn an_edit_goes_from_one_registry_over_the_next_to_its_executors() {
    let published = free();
    let upstream = World::builder().registry_flag("--publish-listen", published).playbook(&edition(0));
    let mut upstream = upstream.start_registry().await;
    let downstream = World::builder()
        .registry_flag("--admin-url", format!("http://{published}"))
        .registry_flag("--admin-interval", "1s");
    let mut downstream = downstream.start().await;
    for number in 0..EDITS {
        if number > 0 {
            edition(number).write(&upstream.path("playbooks"));
        }
        let expected = Some(format!("Edition {number}."));
        eventually("the first has the edit", async || description(&mut upstream).await == expected).await;
        eventually("the second has the edit", async || description(&mut downstream).await == expected).await;
        let began = Instant::now();
        eventually("the executor has what its registry has", async || {
            downstream.status().await.catalog_version == downstream.report().await.catalog_version
        })
        .await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?} after the sync", began.elapsed());
    }
    // What is no longer published goes the same way.
    std::fs::remove_dir_all(upstream.path("playbooks/disk-full")).unwrap();
    Playbook::new("other", "Another one.", "Nothing.").write(&upstream.path("playbooks"));
    eventually("it is gone", async || description(&mut downstream).await.is_none()).await;
}
