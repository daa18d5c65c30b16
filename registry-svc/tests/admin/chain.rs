//! One registry feeds the next: what arrives at the end is what was there at the beginning.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use registry_svc::admin::publish::{self, Readers};
use registry_svc::catalog::reload;
use registry_svc::source::{Layout, roots};
use serde_json::Value;
use skillyard::Digest;
use skillyard::service::access::{Access, AccessOptions};
use skillyard::service::serve;

use crate::bed::{Bed, tree};
use crate::publish::Publisher;
use crate::world::{World, eventually};

/// Paths, modes and contents, as one hash.
fn tree_hash(directory: &Path) -> Digest {
    let mut all = Vec::new();
    for (path, content) in tree(directory) {
        // It may go while it is looked at.
        let Ok(metadata) = fs::metadata(directory.join(&path)) else { continue };
        let executable = metadata.permissions().mode() & 0o100 != 0;
        all.extend(format!("{path} {executable} {}\n", Digest::of(&content)).into_bytes());
    }
    Digest::of(&all)
}

fn fill(world: &World) {
    world.playbook("plain");
    world.write(
        "playbooks/Zwei Wörter/SKILL.md",
        "\u{feff}---\r\nname: other\r\ndescription: d\r\nx: 1\r\n---\r\n\u{1}\r\n",
    );
    world.write("playbooks/tools/SKILL.md", "---\nname: tools\ndescription: d\n---\n");
    world.write("playbooks/tools/bin/run.sh", "#!/bin/sh\n");
    world.write("playbooks/tools/control", [1_u8; 3000]);
    world.write("playbooks/tools/quotes", "\"\\\n".repeat(100_000));
    let noise: Vec<u8> = (0..5_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    world.write("playbooks/tools/noise.bin", noise);
    world.write("playbooks/tools/long.txt", "long lines ".repeat(300_000));
    world.write("playbooks/tools/empty", "");
}

#[tokio::test]
async fn byte_for_byte_through_two_registries() {
    let (first, second, third) = (World::new(), World::new(), Bed::new().await);
    fill(&first);
    let source = Publisher::start(&first, &[]).await;
    let cloud = second.path("cloud");
    let args = ["--cloud-dir", cloud.to_str().unwrap(), "--admin-url", &source.url, "--admin-interval", "1s"];
    let relay = Publisher::start(&second, &args).await;
    let manifest = "/api/public/skills/manifest";
    let same = async || {
        let (one, other) = (source.json(manifest).await, relay.json(manifest).await);
        let hashes = |page: &Value| -> BTreeMap<String, String> {
            let skills = page["skills"].as_array().unwrap().iter();
            skills.map(|skill| (skill["id"].to_string(), format!("{} {}", skill["hash"], skill["dirname"]))).collect()
        };
        (hashes(&one) == hashes(&other) && one["version"] == other["version"]).then_some(())
    };
    let mut bed = third;
    bed.puller.server.url = relay.url.parse().unwrap();
    for round in 0..2 {
        let expected = tree_hash(&first.path("playbooks"));
        eventually(async || (tree_hash(&cloud.join("skills")) == expected).then_some(())).await;
        eventually(same).await;
        assert_eq!(bed.try_sync().await.unwrap().failed, []);
        assert_eq!(tree_hash(&bed.path("skills")), expected, "round {round}");
        assert!(!bed.try_sync().await.unwrap().changed, "every registry says the same of the same");
        first.write("playbooks/tools/later.md", "later");
        fs::set_permissions(first.path("playbooks/tools/empty"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_dir_all(first.path("playbooks/plain")).ok();
    }
}

#[tokio::test]
async fn by_tls_with_a_certificate_that_is_trusted() {
    let world = World::new();
    world.playbook("a");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (world.path("cert.pem"), world.path("key.pem"));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let options = AccessOptions { tls_cert: Some(cert.clone()), tls_key: Some(key), ..AccessOptions::default() };
    let access = Access::check(&options, None).unwrap();
    let layout = Layout { skill_roots: vec![world.path("playbooks")], ..Layout::default() };
    let (catalogs, loader) = reload::start(roots(&layout), Duration::from_secs(3600));
    let loader = tokio::spawn(loader);
    catalogs.subscribe().wait_for(Option::is_some).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let routes = publish::routes(catalogs, Readers::Anybody).into();
    let server = tokio::spawn(async move {
        serve::serve_http(listener, routes, &access, std::future::pending(), Duration::ZERO).await
    });
    let mut bed = Bed::new().await;
    bed.puller.server.url = format!("https://localhost:{port}").parse().unwrap();
    let error = bed.try_sync().await.unwrap_err().to_string();
    assert!(error.contains("ertificate"), "{error}");
    bed.puller.server.ca = Some(cert);
    assert_eq!(bed.try_sync().await.unwrap().fetched, 1);
    loader.abort();
    server.abort();
}
