//! What a peer says that stands in for a registry: skills, agents, states and packages as messages.

#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use skillyard::pb::registry::v1 as pb;
use skillyard::skill::{Card, Kind, Subprocess};
use skillyard::{Agent, Class, Digest, PackageFile, PermissionMode, Skill, Source, wire};
use tokio_stream::Stream;
use tonic::Status;

/// A stream of messages.
pub(crate) type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A skill whose package has the one file `run.sh`.
pub(crate) fn skill(name: &str, class: Class, schema_json: &str, digest: Digest) -> Skill {
    Skill {
        name: name.parse().unwrap(),
        description: "does it".to_owned(),
        source: Source::External,
        digest,
        path: name.to_owned(),
        kind: Kind::Subprocess(Subprocess {
            schema_json: schema_json.to_owned(),
            entry: "run.sh".parse().unwrap(),
            env_allow: Vec::new(),
            timeout_seconds: 30,
            class,
        }),
        card: Card::default(),
        extra: serde_json::Map::new(),
        modified_at: std::time::UNIX_EPOCH,
    }
}

pub(crate) fn agent(name: &str, permission_mode: PermissionMode, skills: &[&str]) -> Agent {
    Agent {
        name: name.to_owned(),
        description: String::new(),
        skills: skills.iter().map(|skill| (*skill).to_owned()).collect(),
        disallowed_skills: [].into(),
        permission_mode,
    }
}

/// A catalog's whole state.
pub(crate) fn state(version: &str, skills: &[Skill], agents: &[Agent]) -> pb::WatchCatalogResponse {
    pb::WatchCatalogResponse {
        catalog_version: version.to_owned(),
        full: true,
        more: false,
        changed: skills.iter().map(wire::skill_to_wire).collect(),
        agents: Some(pb::AgentSet { agents: agents.iter().map(wire::agent_to_wire).collect() }),
        ..Default::default()
    }
}

pub(crate) fn header(path: &str, content: &[u8]) -> pb::FetchPackageResponse {
    pb::FetchPackageResponse {
        part: Some(pb::fetch_package_response::Part::File(pb::FileHeader {
            path: path.to_owned(),
            size: content.len() as u64,
            executable: true,
            sha256: Digest::of(content).to_string(),
        })),
    }
}

pub(crate) fn data(bytes: &[u8]) -> pb::FetchPackageResponse {
    pb::FetchPackageResponse { part: Some(pb::fetch_package_response::Part::Data(bytes.to_vec())) }
}

/// A package of one file, `run.sh`, and what a good peer says of it.
pub(crate) fn package(content: &str) -> (Digest, Vec<pb::FetchPackageResponse>) {
    let content = content.as_bytes();
    let path = "run.sh".parse().unwrap();
    let file = PackageFile { path, size: content.len() as u64, executable: true, sha256: Digest::of(content) };
    let mut messages = vec![header("run.sh", content)];
    messages.extend(content.chunks(100_000).map(data));
    (Digest::of_package(&[file]), messages)
}

/// The future's value, or a failure if it takes unreasonably long.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.unwrap()
}

/// Makes the packages of a store removable: read-only directories are removed by nobody but root.
pub(crate) fn release(store: &Path) {
    for package in fs::read_dir(store).into_iter().flatten().flatten() {
        let _ = fs::set_permissions(package.path(), fs::Permissions::from_mode(0o755));
    }
}
