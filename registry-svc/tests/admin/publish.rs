//! The registry as an admin server, asked by a plain HTTP client.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use axum::http::Method;
use axum::http::header::{ALLOW, AUTHORIZATION, CONTENT_LENGTH, ETAG, IF_NONE_MATCH, WWW_AUTHENTICATE};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use skillyard::service::token::Token;

use crate::world::{Registry, World, eventually};

/// A registry that publishes.
pub(crate) struct Publisher {
    _registry: Registry,
    pub(crate) url: String,
    http: Client,
}

impl Publisher {
    pub(crate) async fn start(world: &World, more: &[&str]) -> Self {
        let registry = world.serve(&[&["--publish-listen", "127.0.0.1:0"], more].concat()).await;
        let url = format!("http://{}", registry.logs("publishing")["address"].as_str().unwrap());
        Self { _registry: registry, url, http: Client::builder().no_proxy().build().unwrap() }
    }

    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    async fn get(&self, path: &str) -> Response {
        self.ask(Method::GET, path).send().await.unwrap()
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!((response.status().as_u16(), path), (200, path));
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
    }

    /// The hashes of the manifest, by id.
    async fn hashes(&self) -> Vec<(String, String)> {
        let manifest = self.json("/api/public/skills/manifest").await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        manifest["skills"].as_array().unwrap().iter().map(|skill| (text(&skill["id"]), text(&skill["hash"]))).collect()
    }
}

#[tokio::test]
async fn the_protocol() {
    let world = World::new();
    world.skill("run_me", "");
    world.playbook("disk-full");
    world.write("playbooks/disk-full/logo.png", b"\x89PNG\xff");
    world.write("playbooks/disk-full/refs/ü.md", "text\n");
    world.write("playbooks/disk-full/fix.sh", "#!/bin/sh\n");
    world.write("playbooks/disk-full/.hidden", "not published");
    world.write("playbooks/Zwei Wörter/SKILL.md", "---\nname: x\ndescription: with a blank\n---\n");
    let publisher = Publisher::start(&world, &[]).await;
    let manifest = publisher.json("/api/public/skills/manifest").await;
    let ids: Vec<_> =
        manifest["skills"].as_array().unwrap().iter().map(|skill| skill["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["Zwei Wörter", "disk-full"], "playbooks alone");
    let entry = &manifest["skills"][1];
    assert_eq!((&entry["tier"], &entry["dirname"]), (&json!("free"), &json!("disk-full")));
    let keys: Vec<_> = entry.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["dirname", "hash", "id", "tier", "updated_at"]);
    let list = publisher.json("/api/public/skills").await;
    assert_eq!(
        (&list["version"], &list["skills"][1]["description"]),
        (&manifest["version"], &json!("about disk-full"))
    );

    let without = publisher.json("/api/public/skills/disk-full").await;
    let raw_md = fs::read_to_string(world.path("playbooks/disk-full/SKILL.md")).unwrap();
    assert_eq!(
        (&without["raw_md"], &without["files"], &without["hash"]),
        (&json!(raw_md), &Value::Null, &entry["hash"])
    );
    let with = publisher.json("/api/public/skills/disk-full?include_files=1").await;
    let files = json!([
        {"path": "fix.sh", "size": 10, "executable": true, "content": "#!/bin/sh\n"},
        {"path": "logo.png", "size": 5, "executable": false, "content_b64": "iVBOR/8="},
        {"path": "refs/ü.md", "size": 5, "executable": false, "content": "text\n"},
    ]);
    assert_eq!(with["files"], files);
    assert_eq!(publisher.json("/api/public/skills/Zwei%20W%C3%B6rter").await["id"], "Zwei Wörter");

    for (method, path, status) in [
        (Method::GET, "/api/public/skills/none", 404),
        (Method::GET, "/api/public/skills/run_me", 404),
        (Method::GET, "/api/public/skills/", 404),
        (Method::GET, "/api/public/skills/disk-full/", 404),
        (Method::GET, "/api/public/skills/..%2f..%2fetc", 404),
        (Method::GET, "/", 404),
        (Method::HEAD, "/api/public/skills/none", 404),
        (Method::POST, "/api/public/skills/manifest", 405),
        (Method::DELETE, "/api/public/skills/disk-full", 405),
        (Method::PUT, "/api/public/skills", 405),
    ] {
        let response = publisher.ask(method.clone(), path).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{method} {path}");
        assert_eq!(response.headers().get(ALLOW).is_some(), status == 405);
        let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default();
        assert!(method == Method::HEAD || body["error"].is_string(), "{method} {path}: {body}");
    }
}

#[tokio::test]
async fn versions_are_asked_for_conditionally() {
    let world = World::new();
    world.playbook("a");
    let publisher = Publisher::start(&world, &[]).await;
    for path in ["", "/manifest", "/a", "/a?include_files=1"] {
        let path = format!("/api/public/skills{path}");
        let first = publisher.get(&path).await;
        let etag = first.headers()[ETAG].clone();
        let length = first.headers().get(CONTENT_LENGTH).cloned();
        assert!(length.is_some());
        let again = publisher.ask(Method::GET, &path).header(IF_NONE_MATCH, &etag).send().await.unwrap();
        assert_eq!((again.status().as_u16(), again.headers()[ETAG].clone()), (304, etag.clone()), "{path}");
        assert!(again.bytes().await.unwrap().is_empty());
        let head = publisher.ask(Method::HEAD, &path).send().await.unwrap();
        assert_eq!((head.status().as_u16(), head.headers()[ETAG].clone()), (200, etag.clone()), "{path}");
        // A length is that of the answer to GET, or not said.
        assert!(head.headers().get(CONTENT_LENGTH).is_none_or(|told| Some(told) == length.as_ref()), "{path}");
        assert!(head.bytes().await.unwrap().is_empty());
        let other = publisher.ask(Method::GET, &path).header(IF_NONE_MATCH, "\"x\"").send().await.unwrap();
        assert_eq!(other.status().as_u16(), 200);
    }
    let etag = publisher.get("/api/public/skills/manifest").await.headers()[ETAG].clone();
    world.write("playbooks/a/new.md", "new");
    eventually(async || {
        let path = "/api/public/skills/manifest";
        let response = publisher.ask(Method::GET, path).header(IF_NONE_MATCH, &etag).send().await.unwrap();
        (response.status().as_u16() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_token_opens_its_tier_and_those_below() {
    let world = World::new();
    for (id, tier) in
        [("a", None), ("b", Some("community")), ("c", Some("pro")), ("d", Some("ent")), ("e", Some("gold"))]
    {
        let tier = tier.map(|tier| format!("tier: {tier}\n")).unwrap_or_default();
        world.write(&format!("playbooks/{id}/SKILL.md"), format!("---\nname: {id}\ndescription: d\n{tier}---\n"));
    }
    let tokens = ["free", "pro", "enterprise"].map(|tier| (tier, Token::random().unwrap()));
    let lines: Vec<_> = tokens.iter().map(|(tier, token)| token.line(tier).unwrap()).collect();
    world.write("publish-tokens", lines.join("\n"));
    let file = world.path("publish-tokens");
    let publisher = Publisher::start(&world, &["--publish-tokens-file", file.to_str().unwrap()]).await;
    for ((_, token), seen) in tokens.iter().zip(["ab", "abc", "abcd"]) {
        let show = |path: &str| {
            let header = format!("Bearer {}", token.expose());
            publisher.ask(Method::GET, &format!("/api/public/skills{path}")).header(AUTHORIZATION, header)
        };
        for path in ["", "/manifest"] {
            let page: Value = serde_json::from_slice(&show(path).send().await.unwrap().bytes().await.unwrap()).unwrap();
            let ids: String =
                page["skills"].as_array().unwrap().iter().map(|skill| skill["id"].as_str().unwrap()).collect();
            assert_eq!(ids, seen);
        }
        for id in ["a", "b", "c", "d", "e"] {
            let status = show(&format!("/{id}")).send().await.unwrap().status().as_u16();
            assert_eq!(status, if seen.contains(id) { 200 } else { 404 }, "{id}");
        }
    }
    let unknown = format!("Bearer {}", Token::random().unwrap().expose());
    for header in [None, Some(unknown.as_str()), Some("Bearer x"), Some("Basic eDp4")] {
        let mut request = publisher.ask(Method::GET, "/api/public/skills/manifest");
        if let Some(header) = header {
            request = request.header(AUTHORIZATION, header);
        }
        let response = request.send().await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[WWW_AUTHENTICATE]),
            (401, &"Bearer".parse().unwrap())
        );
    }
}

#[tokio::test]
async fn a_hash_is_of_the_whole_directory_and_of_nothing_else() {
    let fill = || {
        let world = World::new();
        world.playbook("a");
        world.write("playbooks/a/reference.md", "1");
        world.write("playbooks/a/tool", "#!/bin/sh\n");
        world
    };
    let (one, other) = (fill(), fill());
    let (first, second) = (Publisher::start(&one, &[]).await, Publisher::start(&other, &[]).await);
    let mut before = first.hashes().await;
    assert_eq!(second.hashes().await, before, "two registries agree");
    let executable = fs::Permissions::from_mode(0o755);
    let changes: [&dyn Fn(); 4] = [
        &|| one.write("playbooks/a/reference.md", "2"),
        &|| one.write("playbooks/a/templates/new.md", "new"),
        &|| fs::set_permissions(one.path("playbooks/a/tool"), executable.clone()).unwrap(),
        &|| fs::set_permissions(one.path("playbooks/a/SKILL.md"), executable.clone()).unwrap(),
    ];
    for change in changes {
        change();
        let now = eventually(async || Some(first.hashes().await).filter(|now| *now != before)).await;
        assert_eq!(now[0].0, "a");
        before = now;
    }
}
