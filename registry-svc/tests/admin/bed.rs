//! An admin server of the tests' own, and a mirror to sync it into.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use registry_svc::admin::{Limits, Puller, Server, SyncError, Synced};
use serde_json::{Value, json};
use skillyard::Digest;

/// An admin server that runs; it ends with the value.
pub(crate) struct Admin {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    shop: Mutex<Shop>,
    going: AtomicUsize,
    most: AtomicUsize,
}

/// What it publishes, and how it behaves.
#[derive(Default)]
pub(crate) struct Shop {
    pub(crate) skills: BTreeMap<String, Skill>,
    /// Entries of the manifest as they are, behind those of the skills.
    pub(crate) entries: Vec<Value>,
    pub(crate) version: u32,
    pub(crate) etags: bool,
    /// By the last part of the path: what the next requests get.
    pub(crate) tricks: BTreeMap<String, VecDeque<Trick>>,
    /// What every request about a skill waits for.
    pub(crate) pause: Duration,
    pub(crate) requests: Vec<Asked>,
}

/// A request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
}

/// A skill that is published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skill {
    pub(crate) raw_md: String,
    pub(crate) files: Vec<Value>,
    pub(crate) dirname: Option<String>,
    pub(crate) tier: Option<String>,
    /// Instead of that of the content.
    pub(crate) hash: Option<String>,
}

/// A misbehaviour.
#[derive(Clone, Debug)]
pub(crate) enum Trick {
    Status(u16),
    Wait(u16, &'static str),
    Text(String),
    /// A length that does not come.
    CutOff,
    /// The head, and then nothing.
    Stall,
    Redirect(String),
    Encoded,
    /// So many bytes.
    Huge(u64, bool),
}

impl Skill {
    pub(crate) fn new(id: &str, text: &str) -> Self {
        Self { raw_md: format!("---\nname: {id}\ndescription: about {id}\n---\n{text}\n"), ..Self::default() }
    }

    pub(crate) fn file(mut self, path: &str, content: &str) -> Self {
        self.files.push(json!({"path": path, "content": content, "size": content.len()}));
        self
    }

    pub(crate) fn in_dir(mut self, dirname: &str) -> Self {
        self.dirname = Some(dirname.to_owned());
        self
    }

    pub(crate) fn for_tier(mut self, tier: &str) -> Self {
        self.tier = Some(tier.to_owned());
        self
    }

    fn hash(&self) -> String {
        let of_content = || Digest::of(format!("{}{}", self.raw_md, json!(self.files)).as_bytes()).to_string();
        self.hash.clone().unwrap_or_else(of_content)
    }
}

impl Admin {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { port, shared, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Changes what is published, as a new version.
    pub(crate) fn publish<T>(&self, change: impl FnOnce(&mut Shop) -> T) -> T {
        let mut shop = self.shared.shop.lock().unwrap();
        shop.version += 1;
        change(&mut shop)
    }

    pub(crate) fn put(&self, id: &str, skill: Skill) {
        self.publish(|shop| shop.skills.insert(id.to_owned(), skill));
    }

    pub(crate) fn trick(&self, what: &str, tricks: impl IntoIterator<Item = Trick>) {
        let mut shop = self.shared.shop.lock().unwrap();
        shop.tricks.entry(what.to_owned()).or_default().extend(tricks);
    }

    /// The paths that were asked for since this was asked.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.requests().into_iter().map(|asked| asked.path).collect()
    }

    pub(crate) fn requests(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.shop.lock().unwrap().requests)
    }

    /// Requests that were answered at the same time.
    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.most.load(Ordering::SeqCst)
    }

    /// The folders, and their files, that a mirror is to have.
    pub(crate) fn tree(&self) -> BTreeMap<String, Vec<u8>> {
        use base64::Engine as _;
        let shop = self.shared.shop.lock().unwrap();
        let mut tree = BTreeMap::new();
        for (id, skill) in &shop.skills {
            let folder = skill.dirname.as_ref().unwrap_or(id);
            tree.insert(format!("{folder}/SKILL.md"), skill.raw_md.clone().into_bytes());
            for file in skill.files.iter().filter(|file| file["truncated"] != true) {
                let content = match &file["content_b64"] {
                    Value::String(coded) => base64::engine::general_purpose::STANDARD.decode(coded).unwrap(),
                    _ => file["content"].as_str().unwrap().as_bytes().to_vec(),
                };
                tree.insert(format!("{folder}/{}", file["path"].as_str().unwrap()), content);
            }
        }
        tree
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let going = shared.going.fetch_add(1, Ordering::SeqCst) + 1;
    shared.most.fetch_max(going, Ordering::SeqCst);
    let (request, _) = request.into_parts();
    let response = answered(&shared, &request).await;
    shared.going.fetch_sub(1, Ordering::SeqCst);
    response
}

async fn answered(shared: &Shared, request: &Parts) -> Response {
    let path = request.uri.path().to_owned();
    let what = path.rsplit('/').next().unwrap().to_owned();
    let (trick, pause) = {
        let mut shop = shared.shop.lock().unwrap();
        let path = request.uri.to_string();
        shop.requests.push(Asked { path, headers: request.headers.clone() });
        (shop.tricks.get_mut(&what).and_then(VecDeque::pop_front), shop.pause)
    };
    match trick {
        Some(trick) => return misbehave(trick).await,
        None if what != "manifest" && !pause.is_zero() => tokio::time::sleep(pause).await,
        None => {}
    }
    let shop = shared.shop.lock().unwrap();
    let Some(rest) = path.strip_prefix("/api/public/skills/") else { return StatusCode::NOT_FOUND.into_response() };
    let (etag, body) = if rest == "manifest" {
        let mut skills: Vec<_> = shop.skills.iter().map(|(id, skill)| entry(id, skill)).collect();
        skills.extend(shop.entries.clone());
        (format!("\"v{}\"", shop.version), json!({"skills": skills, "version": format!("v{}", shop.version)}))
    } else if let Some(skill) = shop.skills.get(rest) {
        assert_eq!(request.uri.query(), Some("include_files=1"));
        let body = json!({"id": rest, "name": rest, "raw_md": skill.raw_md, "files": skill.files});
        (format!("\"{}\"", skill.hash()), body)
    } else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if !shop.etags {
        return body.to_string().into_response();
    }
    if request.headers.get(header::IF_NONE_MATCH).is_some_and(|value| *value == *etag) {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    ([(header::ETAG, etag)], body.to_string()).into_response()
}

pub(crate) fn entry(id: &str, skill: &Skill) -> Value {
    let mut entry = json!({"id": id, "hash": skill.hash(), "updated_at": "2026-01-01T00:00:00Z"});
    for (key, value) in [("dirname", &skill.dirname), ("tier", &skill.tier)] {
        if let Some(value) = value {
            entry[key] = value.as_str().into();
        }
    }
    entry
}

async fn misbehave(trick: Trick) -> Response {
    let piece = Bytes::from(vec![b' '; 1 << 20]);
    match trick {
        Trick::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Trick::Wait(status, after) => {
            (StatusCode::from_u16(status).unwrap(), [(header::RETRY_AFTER, after)]).into_response()
        }
        Trick::Text(text) => text.into_response(),
        Trick::CutOff => {
            let pieces = [Ok(Bytes::from("{\"id\":")), Err(std::io::Error::other("gone"))];
            Body::from_stream(tokio_stream::iter(pieces)).into_response()
        }
        Trick::Stall => {
            use tokio_stream::StreamExt as _;
            let head = tokio_stream::once(Ok::<_, Infallible>(Bytes::from("{")));
            Body::from_stream(head.chain(tokio_stream::pending())).into_response()
        }
        Trick::Redirect(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Trick::Encoded => ([(header::CONTENT_ENCODING, "gzip")], "\u{1f}").into_response(),
        Trick::Huge(bytes, told) => {
            let pieces = (0..bytes >> 20).map(move |_| Ok::<_, Infallible>(piece.clone()));
            let body = Body::from_stream(tokio_stream::iter(pieces));
            if told {
                ([(header::CONTENT_LENGTH, bytes.to_string())], body).into_response()
            } else {
                body.into_response()
            }
        }
    }
}

/// A mirror to sync into.
pub(crate) struct Bed {
    pub(crate) admin: Admin,
    dir: tempfile::TempDir,
    pub(crate) puller: Puller,
}

/// Times that tests can wait for.
pub(crate) const LIMITS: Limits = Limits {
    connect: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    total: Duration::from_secs(120),
    retries: 2,
    pause: Duration::from_millis(1),
    longest_pause: Duration::from_secs(2),
};

impl Bed {
    pub(crate) async fn new() -> Self {
        let admin = Admin::start().await;
        let dir = tempfile::tempdir().unwrap();
        let server = Server { url: admin.url().parse().unwrap(), token_file: None, ca: None, limits: LIMITS };
        let cloud_dir = dir.path().join("cloud");
        let puller = Puller { server, cloud_dir, tier: "free".parse().unwrap(), allow_empty: false };
        Self { admin, dir, puller }
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.puller.cloud_dir.join(relative)
    }

    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) async fn try_sync(&self) -> Result<Synced, SyncError> {
        self.puller.sync().await
    }

    /// Syncs, and everything is as the server has it.
    pub(crate) async fn sync(&self) -> Synced {
        let synced = self.try_sync().await.unwrap();
        assert_eq!(synced.failed, []);
        assert_eq!(self.tree(), self.admin.tree());
        synced
    }

    /// All files of the mirror.
    pub(crate) fn tree(&self) -> BTreeMap<String, Vec<u8>> {
        tree(&self.path("skills"))
    }

    /// Ids that the load report names, with their codes, and `file folder` for files that are missing.
    pub(crate) fn reported(&self) -> Vec<String> {
        let report = fs::read(self.path(".sync/report.json")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let refused = report["refused"].as_array().unwrap().iter();
        let mut all: Vec<_> =
            refused.map(|refused| format!("{} {}", text(&refused["code"]), text(&refused["id"]))).collect();
        for (folder, paths) in report["missing"].as_object().unwrap() {
            all.extend(paths.as_array().unwrap().iter().map(|path| format!("{} {folder}", text(path))));
        }
        all
    }

    pub(crate) fn manifest(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("manifest.json")).unwrap()).unwrap()
    }
}

/// All files below a directory.
pub(crate) fn tree(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory_now) = left.pop() {
        // What is looked at while it changes may go.
        for path in fs::read_dir(directory_now).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())) {
            let relative = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            match metadata.file_type() {
                kind if kind.is_dir() => left.push(path),
                kind if kind.is_symlink() => drop(found.insert(relative, Vec::new())),
                _ => drop(fs::read(path).map(|content| found.insert(relative, content))),
            }
        }
    }
    found
}
