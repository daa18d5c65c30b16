//! The admin port: what probes are told, by plain HTTP.

use rustix::process::Signal;
use skillyard_tests::metrics::get;
use skillyard_tests::{Skill, World, eventually};

#[tokio::test]
async fn probes_are_told() {
    let mut world = World::builder()
        .registry_flag("--admin-listen", "127.0.0.1:0")
        .flag("--admin-listen", "127.0.0.1:0")
        .skill(Skill::sh("waits", "echo up >&2; sleep 300"))
        .start()
        .await;
    let (registry, executor) = (world.registry_server().admin_address(), world.executor_server().admin_address());
    for address in [registry, executor] {
        for (path, code) in [("/livez", 200), ("/readyz", 200), ("/metrics", 200), ("/else", 404)] {
            assert_eq!(get(address, path).await.0, code, "{path}");
        }
    }
    let mut live = world.open("waits").await;
    live.logged("up").await;
    world.executor_server().signal(Signal::TERM);
    eventually("it says that it drains", async || {
        let (code, answer) = get(executor, "/readyz").await;
        code == 503 && answer.contains("draining")
    })
    .await;
    assert_eq!(get(executor, "/livez").await.0, 200);
}
