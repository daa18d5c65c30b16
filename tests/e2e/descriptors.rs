//! A service that has no descriptor left: whoever is connected already is served, nobody waits for ever, and all is as
//! before when there are some again.

use std::net::SocketAddr;

use skillyard::pb::registry::v1::{ListSkillsRequest, ReloadRequest};
use skillyard_tests::run::{in_short, succeeded};
use skillyard_tests::world::endpoint;
use skillyard_tests::{Live, Skill, World, pack};
use tokio::net::TcpStream;

const LIMIT: u32 = 128;

/// Connections that say nothing, more than there are descriptors for.
async fn idle(address: SocketAddr) -> Vec<TcpStream> {
    let mut held = Vec::new();
    // The kernel takes them in for a service that does not.
    for _ in 0..LIMIT + 32 {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    held
}

#[tokio::test]
async fn an_executor_without_descriptors_serves_who_is_connected_and_then_all() {
    let mut world = World::builder()
        .slots(2, 8)
        .open_files(LIMIT)
        .skill(Skill::tiny("tiny"))
        .skill(Skill::sh("waits", "echo up >&2; read -r _; /bin/sleep 3; echo '{}'"))
        .start()
        .await;
    let mut running = world.open("waits").await;
    running.logged("up").await;
    let held = idle(world.executor_address()).await;
    let words = "no connection can be accepted";
    world.executor_server().logs(words).await;
    // Pipes cannot be had either: a call waits, or is sent away to come again.
    let result = match world.try_open("tiny").await {
        Ok(live) => live.end().await,
        Err(status) => Err(status),
    };
    let short = in_short(&result);
    assert!(["SUCCEEDED", "ResourceExhausted EXECUTOR_FULL"].contains(&&*short), "{short}");
    assert_eq!(running.rest().await, succeeded("{}\n").stderr("up\n"));
    drop(held);
    world.executor_server().logs("connections are accepted again").await;
    let fresh = endpoint(world.executor_address()).connect().await.unwrap();
    let client = skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient::new(fresh);
    assert_eq!(Live::open(client, "tiny").await.unwrap().rest().await, succeeded(pack::TINY_RESULT));
}

#[tokio::test]
async fn a_registry_without_descriptors_forgets_no_skill() {
    let mut world = World::builder()
        .registry_open_files(LIMIT)
        .registry_flag("--rescan-interval", "1s")
        .skill(Skill::tiny("tiny"))
        .skill(Skill::sh("other", "echo '{}'"))
        .start()
        .await;
    let names = async |world: &mut World| {
        let skills = world.catalog().list_skills(ListSkillsRequest::default()).await.unwrap().into_inner().skills;
        skills.into_iter().map(|skill| skill.name).collect::<Vec<_>>()
    };
    let before = names(&mut world).await;
    let held = idle(world.registry_address()).await;
    let words = "no connection can be accepted";
    world.registry_server().logs(words).await;
    // It looks at its files all the while, and now: what it cannot look at is not gone.
    for _ in 0..3 {
        let _ = world.catalog().reload(ReloadRequest {}).await;
        assert_eq!(names(&mut world).await, before);
    }
    assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
    drop(held);
    world.registry_server().logs("connections are accepted again").await;
    world.write(&Skill::sh("new", "echo '{}'"));
    world.settle().await;
    assert_eq!(names(&mut world).await.len(), before.len() + 1);
}
