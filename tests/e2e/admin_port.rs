//! The admin port: what probes and Prometheus are told, by plain HTTP.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};

use rustix::process::Signal;
use skillyard_tests::{Skill, World, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PAGE: &str = include_str!("../../docs/metrics.md");

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

/// The names in an answer, and those that the page has of the same service.
fn names(answer: &str, service: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let told = answer.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned));
    let written = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(str::to_owned));
    (told.collect(), written.filter(|name| name.starts_with(service) && !name.contains("_sync_")).collect())
}

#[tokio::test]
async fn probes_and_prometheus_are_told() {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (registry, executor) = (free(), free());
    let mut world = World::builder()
        .registry_flag("--admin-listen", registry)
        .flag("--admin-listen", executor)
        .slots(3, 7)
        .skill(Skill::sh("waits", "echo up >&2; sleep 300"))
        .start()
        .await;
    for address in [registry, executor] {
        for (path, code) in [("/livez", 200), ("/readyz", 200), ("/metrics", 200), ("/else", 404)] {
            assert_eq!(get(address, path).await.0, code, "{path}");
        }
    }
    let mut live = world.open("waits").await;
    live.logged("up").await;
    let (_, told) = get(executor, "/metrics").await;
    for line in ["slots 3.0", "queue_limit 7.0", "runs_running 1.0", "runs_queued 0.0", "registry_connected 1.0"] {
        assert!(told.contains(&format!("\nskillyard_executor_{line}\n")), "{line}: {told}");
    }
    let (names_told, written) = names(&told, "skillyard_executor_");
    assert_eq!(names_told, written);
    let (_, told) = get(registry, "/metrics").await;
    assert!(told.contains("\nskillyard_registry_candidates_registered 1.0\n"), "{told}");
    let (names_told, written) = names(&told, "skillyard_registry_");
    assert_eq!(names_told, written);
    world.executor_server().signal(Signal::TERM);
    eventually("it says that it drains", async || {
        let (code, answer) = get(executor, "/readyz").await;
        code == 503 && answer.contains("draining")
    })
    .await;
    assert_eq!(get(executor, "/livez").await.0, 200);
}
