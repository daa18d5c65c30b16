//! The mirror against a peer that says what a registry must not: over a real socket, with a real server, whose every
//! message is the test's.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use executor_svc::mirror::{Mirror, MirrorError};
use executor_svc::registry::Registry;
use prost::Message as _;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::package_service_server::{PackageService, PackageServiceServer};
use skillyard::service::error::{Reason, Refusal};
use skillyard::skill::Kind;
use skillyard::watch::state_sha256;
use skillyard::{Agent, Class, Digest, PermissionMode, Skill, wire};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

#[path = "support/peer.rs"]
mod peer;

use peer::{Answer, data, header, package, within};

const DAY: Duration = Duration::from_secs(86400);

/// What a stream says, and whether it ends after it.
#[derive(Clone, Debug)]
struct Script<T> {
    messages: Vec<Result<T, Status>>,
    ends: bool,
}

impl<T: Send + 'static> Script<T> {
    fn open(messages: impl IntoIterator<Item = T>) -> Self {
        Self { messages: messages.into_iter().map(Ok).collect(), ends: false }
    }

    fn whole(messages: impl IntoIterator<Item = T>) -> Self {
        Self { ends: true, ..Self::open(messages) }
    }

    fn refusal(status: impl Into<Status>) -> Self {
        Self { messages: vec![Err(status.into())], ends: true }
    }

    fn play(self) -> Answer<T> {
        let said = tokio_stream::iter(self.messages);
        if self.ends { Box::pin(said) } else { Box::pin(said.chain(tokio_stream::pending())) }
    }
}

/// The peer. Every change of `catalog` is said to whoever watches.
#[derive(Clone, Debug)]
struct Peer {
    catalog: watch::Sender<Script<pb::WatchCatalogResponse>>,
    packages: Arc<Mutex<HashMap<String, Script<pb::FetchPackageResponse>>>>,
    /// The versions that watchers knew.
    known: Arc<Mutex<Vec<String>>>,
    /// What the last of them said that it has.
    digests: Arc<Mutex<HashMap<String, String>>>,
    fetched: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl PackageService for Peer {
    type WatchCatalogStream = Answer<pb::WatchCatalogResponse>;
    type FetchPackageStream = Answer<pb::FetchPackageResponse>;

    async fn watch_catalog(
        &self,
        request: Request<pb::WatchCatalogRequest>,
    ) -> Result<Response<Self::WatchCatalogStream>, Status> {
        let pb::WatchCatalogRequest { catalog_version, digests } = request.into_inner();
        *self.digests.lock().unwrap() = digests;
        self.known.lock().unwrap().push(catalog_version);
        let mut catalog = self.catalog.subscribe();
        catalog.mark_changed();
        let (messages, answer) = mpsc::channel(1);
        tokio::spawn(async move {
            while catalog.changed().await.is_ok() {
                let script = catalog.borrow_and_update().clone();
                for message in script.messages {
                    if messages.send(message).await.is_err() {
                        return;
                    }
                }
                if script.ends {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answer))))
    }

    async fn fetch_package(
        &self,
        request: Request<pb::FetchPackageRequest>,
    ) -> Result<Response<Self::FetchPackageStream>, Status> {
        let digest = request.into_inner().digest;
        let script = self.packages.lock().unwrap().get(&digest).cloned();
        self.fetched.lock().unwrap().push(digest);
        let script = script.ok_or_else(|| Refusal::new(Reason::UnknownSkill, "no such package"))?;
        Ok(Response::new(script.play()))
    }
}

/// A peer, where it listens, and the task that serves.
struct World {
    peer: Peer,
    address: SocketAddr,
    server: JoinHandle<()>,
    state: TempDir,
}

impl World {
    async fn new() -> Self {
        let peer = Peer {
            catalog: watch::Sender::new(Script::open([])),
            packages: Arc::default(),
            known: Arc::default(),
            digests: Arc::default(),
            fetched: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = serve(&peer, listener);
        Self { peer, address, server, state: TempDir::new().unwrap() }
    }

    fn open(&self, max_age: Duration) -> Mirror {
        Mirror::open(self.state.path(), max_age).unwrap()
    }

    fn follow(&self, mirror: &Mirror) -> Following {
        let registry = Registry::new(format!("http://{}", self.address).parse().unwrap());
        let registry = registry.with_silence(Duration::from_millis(400));
        let stop = CancellationToken::new();
        let (mirror, token) = (mirror.clone(), stop.clone());
        Following { task: tokio::spawn(async move { mirror.follow(registry, token).await }), stop }
    }

    fn say(&self, messages: impl IntoIterator<Item = pb::WatchCatalogResponse>) {
        self.peer.catalog.send_replace(Script::open(messages));
    }

    fn package(&self, digest: &Digest, script: Script<pb::FetchPackageResponse>) {
        self.peer.packages.lock().unwrap().insert(digest.to_string(), script);
    }

    /// The peer goes away, with every connection.
    async fn gone(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }
}

fn serve(peer: &Peer, listener: TcpListener) -> JoinHandle<()> {
    let service = PackageServiceServer::new(peer.clone());
    tokio::spawn(async move {
        let server = tonic::transport::Server::builder().add_service(service);
        server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    })
}

impl Drop for World {
    fn drop(&mut self) {
        peer::release(&self.state.path().join("store"));
    }
}

struct Following {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Following {
    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// Waits for a condition.
async fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn skill(name: &str, digest: Digest) -> Skill {
    peer::skill(name, Class::Safe, r#"{"type":"object","required":["a"]}"#, digest)
}

fn agent() -> Agent {
    peer::agent("ops", PermissionMode::MutatingWithConfirm, &["a"])
}

fn state(version: &str, skills: &[Skill]) -> pb::WatchCatalogResponse {
    peer::state(version, skills, &[agent()])
}

/// The same, with what a registry of this version adds: its checksum.
fn checked(version: &str, skills: &[Skill]) -> pb::WatchCatalogResponse {
    let state = state(version, skills);
    let digests = state.changed.iter().map(|skill| Digest::of(&skill.encode_to_vec()));
    let agents: Vec<_> = state.agents.iter().flat_map(|set| &set.agents).map(prost::Message::encode_to_vec).collect();
    let state_sha256 = state_sha256(digests, agents.iter().map(AsRef::as_ref)).to_string();
    pb::WatchCatalogResponse { state_sha256, ..state }
}

/// What leads to such a state.
fn change(to: pb::WatchCatalogResponse, changed: &[&str], removed: &[&str]) -> pb::WatchCatalogResponse {
    let mut change = pb::WatchCatalogResponse { full: false, ..to };
    change.changed.retain(|skill| changed.contains(&&*skill.name));
    change.removed = removed.iter().map(ToString::to_string).collect();
    change
}

fn confirmation(version: &str) -> pb::WatchCatalogResponse {
    pb::WatchCatalogResponse { catalog_version: version.to_owned(), ..pb::WatchCatalogResponse::default() }
}

#[tokio::test]
async fn a_state_is_mirrored_changed_and_let_go_of() {
    let world = World::new().await;
    let (mirror, (old, of_old), (new, of_new)) = (world.open(DAY), package("old"), package(&"new".repeat(500_000)));
    world.package(&old, Script::whole(of_old));
    world.package(&new, Script::whole(of_new));
    let mut ready = mirror.ready();
    assert!(!*ready.borrow() && mirror.catalog().is_none());
    let following = world.follow(&mirror);
    world.say([state("1", &[skill("a", old)])]);
    within(ready.wait_for(|ready| *ready)).await.unwrap();
    let held = eventually("the first package", || mirror.hold(&old)).await;
    assert_eq!(fs::read_to_string(held.path().join("run.sh")).unwrap(), "old");
    let catalog = mirror.catalog().unwrap();
    assert_eq!((catalog.version.as_str(), &catalog.agents["ops"]), ("1", &agent()));
    let first = catalog.skill("a").unwrap().clone();
    let schema = first.schema.clone().unwrap();
    let validator = schema.validator();
    assert!(validator.is_valid(&serde_json::json!({"a": 1})) && !validator.is_valid(&serde_json::json!({})));

    world.say([state("2", &[skill("a", new)])]);
    let second = eventually("the second package", || mirror.hold(&new)).await;
    assert_eq!(fs::read_to_string(second.path().join("run.sh")).unwrap(), "new".repeat(500_000));
    let catalog = mirror.catalog().unwrap();
    assert_eq!((catalog.version.as_str(), catalog.skill("a").unwrap().skill.digest), ("2", new));
    assert!(Arc::ptr_eq(&schema, catalog.skill("a").unwrap().schema.as_ref().unwrap()), "compiled once");
    // A run that goes on keeps its package, and it goes with the run.
    assert!(held.path().join("run.sh").exists());
    let path = held.path().to_owned();
    drop(held);
    eventually("the old package goes", || (!path.exists()).then_some(())).await;
    let status = mirror.status();
    assert_eq!((status.catalog_version.as_str(), status.connected, status.missing.len()), ("2", true, 0));
    following.end().await;
    assert!(!mirror.status().connected);
}

#[tokio::test]
async fn a_state_in_parts_is_applied_when_it_is_complete() {
    let world = World::new().await;
    let (mirror, (digest, messages)) = (world.open(DAY), package("x"));
    world.package(&digest, Script::whole(messages));
    let _following = world.follow(&mirror);
    let playbook = Skill { kind: Kind::Playbook(Box::default()), ..skill("p", Digest::of(b"never fetched")) };
    let first = pb::WatchCatalogResponse { more: true, ..state("1", &[skill("a", digest)]) };
    let mut second = state("1", &[playbook, skill("a", Digest::of(b"a second a"))]);
    second.agents = None;
    let mut broken = wire::skill_to_wire(&skill("c", digest));
    broken.digest = "abc".to_owned();
    let mut schema = wire::skill_to_wire(&skill("d", digest));
    schema.subprocess.as_mut().unwrap().schema_json = r#"{"$ref":"http://127.0.0.1:1/x"}"#.to_owned();
    second.changed.extend([broken, schema]);
    world.say([first, second]);
    let catalog = eventually("a catalog", || mirror.catalog()).await;
    assert_eq!(catalog.skills.keys().map(ToString::to_string).collect::<Vec<_>>(), ["a", "p"]);
    assert_eq!(catalog.agents.len(), 1);
    eventually("the package", || mirror.hold(&digest)).await;
    let missing = mirror.status().missing;
    assert!(missing["a"].contains("two skills"), "{missing:?}");
    assert!(missing["c"].contains("\"abc\" is not a digest"), "{missing:?}");
    assert!(missing["d"].contains("schema"), "{missing:?}");
    assert_eq!((missing.len(), world.peer.fetched.lock().unwrap().len()), (3, 1));
}

#[tokio::test]
async fn changes_are_applied_to_what_is_there() {
    let world = World::new().await;
    let (mirror, (old, of_old), (new, of_new)) = (world.open(DAY), package("old"), package("new"));
    world.package(&old, Script::whole(of_old));
    world.package(&new, Script::whole(of_new));
    let following = world.follow(&mirror);
    world.say([checked("1", &[skill("a", old), skill("b", old), skill("c", old)])]);
    let at = async |mirror: &Mirror, version: &str| {
        eventually(version, || mirror.catalog().filter(|catalog| catalog.version == version)).await
    };
    let first = at(&mirror, "1").await;
    let second = [skill("b", old), skill("c", new), skill("d", old)];
    world.say([change(checked("2", &second), &["c", "d"], &["a"])]);
    let catalog = at(&mirror, "2").await;
    let digests = |catalog: &executor_svc::mirror::MirroredCatalog| -> Vec<_> {
        catalog.skills.values().map(|known| (known.skill.name.to_string(), known.skill.digest)).collect()
    };
    let expected = [("b", old), ("c", new), ("d", old)].map(|(name, digest)| (name.to_owned(), digest));
    assert_eq!((digests(&catalog), &catalog.agents["ops"]), (expected.to_vec(), &agent()));
    assert!(Arc::ptr_eq(first.skill("b").unwrap(), catalog.skill("b").unwrap()), "it was not touched");
    eventually("the new package", || mirror.hold(&new)).await;

    // In parts, to nothing but an agent that is gone.
    let mut none = checked("3", &[]);
    none.agents = Some(pb::AgentSet::default());
    none.state_sha256 = state_sha256([], []).to_string();
    let first =
        change(pb::WatchCatalogResponse { more: true, state_sha256: String::new(), ..none.clone() }, &[], &["b", "c"]);
    let last = pb::WatchCatalogResponse { agents: None, ..change(none, &[], &["d"]) };
    world.say([first, last]);
    let catalog = at(&mirror, "3").await;
    assert!(catalog.skills.is_empty() && catalog.agents.is_empty());

    // One that leads elsewhere: the whole is asked for, and taken.
    world.peer.known.lock().unwrap().clear();
    let mut wrong = change(checked("4", &[skill("a", old)]), &["a"], &[]);
    wrong.changed[0].description.push('!');
    world.say([wrong]);
    eventually("asked anew", || world.peer.known.lock().unwrap().iter().any(String::is_empty).then_some(())).await;
    assert_eq!(mirror.catalog().unwrap().version, "3", "it is not taken");
    world.say([checked("4", &[skill("a", old)])]);
    at(&mirror, "4").await;
    following.end().await;
    drop(mirror);

    // Started again, it says what it has.
    world.peer.known.lock().unwrap().clear();
    let mirror = world.open(DAY);
    world.say([change(checked("5", &[skill("a", old), skill("e", new)]), &["e"], &[])]);
    let following = world.follow(&mirror);
    assert_eq!(at(&mirror, "5").await.skills.len(), 2);
    assert_eq!(world.peer.known.lock().unwrap().first().unwrap(), "4");
    assert_eq!(*world.peer.digests.lock().unwrap(), HashMap::from([("a".to_owned(), old.to_string())]));
    following.end().await;
}

#[tokio::test]
async fn no_wrong_package_is_taken_and_the_others_are() {
    let world = World::new().await;
    let mirror = world.open(DAY);
    let (good, of_good) = package("good");
    let content = "x".repeat(300_000);
    let bytes = content.as_bytes();
    let (mut skills, mut causes) = (vec![skill("good", good)], Vec::new());
    let wrong = |messages: Vec<pb::FetchPackageResponse>| Script::whole(messages);
    let changed = Refusal::new(Reason::PackageChanged, "its files are others now");
    let mut late = Script::whole([header("run.sh", bytes), data(&bytes[..100_000])]);
    late.messages.push(Err(changed.clone().into()));
    let mut huge = header("run.sh", bytes);
    if let Some(pb::fetch_package_response::Part::File(file)) = &mut huge.part {
        file.size = u64::MAX;
    }
    let cases = [
        ("other_content", wrong(vec![header("run.sh", bytes), data(&vec![b'y'; bytes.len()])]), "content"),
        ("other_digest", wrong(vec![header("run.sh", b"other"), data(b"other")]), "digest"),
        ("cut_off", wrong(vec![header("run.sh", bytes), data(&bytes[..100_000])]), "size"),
        ("too_much", wrong(vec![header("run.sh", bytes), data(bytes), data(b"more")]), "size"),
        ("data_first", wrong(vec![data(bytes)]), "before the first file"),
        ("empty", wrong(vec![]), "digest"),
        ("above", wrong(vec![header("../run.sh", bytes), data(bytes)]), "bad path"),
        ("absolute", wrong(vec![header("/tmp/run.sh", bytes), data(bytes)]), "bad path"),
        ("huge", wrong(vec![huge]), "more than 67108864 bytes"),
        ("large_piece", wrong(vec![header("run.sh", bytes), data(&vec![b'x'; 2 << 20])]), "OutOfRange"),
        ("changed", Script::refusal(changed), "changed at the registry"),
        ("changed_late", late, "changed at the registry"),
        ("silent", Script::open([header("run.sh", bytes)]), "said nothing"),
    ];
    for (name, script, cause) in cases {
        let (digest, _) = package(&format!("{name} {content}"));
        world.package(&digest, script);
        skills.push(skill(name, digest));
        causes.push((name, cause));
    }
    world.package(&good, Script::whole(of_good));
    skills.push(skill("unknown", Digest::of(b"nobody has it")));
    causes.push(("unknown", "UNKNOWN_SKILL"));
    world.say([state("1", &skills)]);
    let following = world.follow(&mirror);
    eventually("the good one", || mirror.hold(&good)).await;
    for (name, cause) in causes {
        let seen = Mutex::new(String::new());
        let found = || {
            let now = mirror.status().missing.get(name).cloned().unwrap_or_default();
            let found = now.contains(cause);
            *seen.lock().unwrap() = now;
            found.then_some(())
        };
        eventually(&format!("{name}: {cause}"), found).await;
    }
    following.end().await;
    let left = || {
        let names = fs::read_dir(world.state.path().join("store")).unwrap().map(|entry| entry.unwrap().file_name());
        (names.collect::<Vec<_>>() == [good.to_string().as_str()]).then_some(())
    };
    eventually("nothing but the good one is left", left).await;
    assert!(!world.state.path().join("run.sh").exists() && !world.state.path().join("store/run.sh").exists());
}

#[tokio::test]
async fn a_package_that_failed_is_fetched_when_it_is_whole_again() {
    let world = World::new().await;
    let (mirror, (digest, messages)) = (world.open(DAY), package("x"));
    world.package(&digest, Script::refusal(Refusal::new(Reason::PackageChanged, "its files are others now")));
    world.say([state("1", &[skill("a", digest)])]);
    let _following = world.follow(&mirror);
    eventually("tried twice", || (world.peer.fetched.lock().unwrap().len() >= 2).then_some(())).await;
    assert!(mirror.hold(&digest).is_none() && mirror.cause_of_missing(&digest).contains("changed"));
    world.package(&digest, Script::whole(messages));
    eventually("the package", || mirror.hold(&digest)).await;
    eventually("nothing is missing", || mirror.status().missing.is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_silent_or_wrong_registry_is_asked_again() {
    let world = World::new().await;
    let mirror = world.open(DAY);
    let no_agents = pb::WatchCatalogResponse { agents: None, ..state("2", &[]) };
    let unchecked = pb::WatchCatalogResponse { full: false, ..state("2", &[]) };
    let other =
        pb::WatchCatalogResponse { state_sha256: Digest::of(b"another state").to_string(), ..unchecked.clone() };
    let part = pb::WatchCatalogResponse { more: true, ..state("2", &[]) };
    let (refused, silent) = (Script::refusal(Status::unavailable("going away")), Script::open([]));
    // What it says after a good state, and the version that it is asked with then: none where it said what it must not.
    let cases = [
        (silent, "1"),
        (Script::whole([]), "1"),
        (Script::whole([part.clone()]), "1"),
        (refused, "1"),
        (Script::whole([no_agents]), ""),
        (Script::whole([unchecked]), ""),
        (Script::whole([other]), ""),
        (Script::whole([part, state("3", &[])]), ""),
        (Script::whole([confirmation("2")]), ""),
        (Script::whole([state("", &[])]), ""),
    ];
    let following = world.follow(&mirror);
    for (mut script, known) in cases {
        script.messages.insert(0, Ok(state("1", &[])));
        world.peer.catalog.send_replace(script);
        eventually("a catalog", || mirror.catalog()).await;
        // The first to come may have been sent to an earlier script.
        world.peer.known.lock().unwrap().clear();
        let again = || (world.peer.known.lock().unwrap().len() >= 2).then_some(());
        eventually("asked again", again).await;
        let asked = || (world.peer.known.lock().unwrap().last()? == known).then_some(());
        eventually(&format!("asked with {known:?}"), asked).await;
        assert_eq!(mirror.catalog().unwrap().version, "1");
    }
    world.say([state("1", &[]), confirmation("1")]);
    eventually("connected", || mirror.status().connected.then_some(())).await;
    following.end().await;
}

#[tokio::test]
async fn it_works_on_without_the_registry_until_the_catalog_is_too_old() {
    let mut world = World::new().await;
    let ((digest, messages), max_age) = (package("x"), Duration::from_millis(1500));
    world.package(&digest, Script::whole(messages));
    world.say([state("1", &[skill("a", digest)])]);
    let mirror = world.open(max_age);
    let following = world.follow(&mirror);
    eventually("the package", || mirror.hold(&digest)).await;
    following.end().await;
    drop(mirror);
    world.gone().await;

    // Started without it.
    let mirror = world.open(max_age);
    let mut ready = mirror.ready();
    assert!(*ready.borrow());
    assert_eq!(mirror.catalog().unwrap().skill("a").unwrap().skill, skill("a", digest));
    assert!(mirror.hold(&digest).is_some());
    let following = world.follow(&mirror);
    within(ready.wait_for(|ready| !*ready)).await.unwrap();
    assert!(mirror.status().age.unwrap() > max_age);
    assert!(mirror.catalog().is_some() && !mirror.status().connected);
    following.end().await;
    drop(mirror);
    let mirror = world.open(max_age);
    assert!(!*mirror.ready().borrow(), "its age is kept");

    // It is back, at the same address.
    let listener = TcpListener::bind(world.address).await.unwrap();
    world.server = serve(&world.peer, listener);
    let following = world.follow(&mirror);
    within(mirror.ready().wait_for(|ready| *ready)).await.unwrap();
    following.end().await;
}

#[tokio::test]
async fn what_is_broken_on_disk_is_fetched_again() {
    let world = World::new().await;
    let (digest, messages) = package("x");
    world.package(&digest, Script::whole(messages));
    world.say([state("1", &[skill("a", digest)])]);
    let mirror = world.open(DAY);
    let following = world.follow(&mirror);
    let path = eventually("the package", || mirror.hold(&digest)).await.path().to_owned();
    following.end().await;
    drop(mirror);
    fs::remove_file(path.join("run.sh")).unwrap_or_else(|_| {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_file(path.join("run.sh")).unwrap();
    });
    let mirror = world.open(DAY);
    assert!(mirror.hold(&digest).is_none());
    assert!(mirror.status().missing["a"].contains("not fetched yet"));
    let following = world.follow(&mirror);
    eventually("the package", || mirror.hold(&digest)).await;
    following.end().await;
    drop(mirror);

    // A catalog that was cut off or changed is not used.
    let state = world.state.path().join("catalog/state");
    let whole = fs::read(&state).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for broken in [&whole[..whole.len() - 1], &whole[..30], b"", &flipped] {
        fs::write(&state, broken).unwrap();
        let mirror = world.open(DAY);
        assert!(mirror.catalog().is_none() && !*mirror.ready().borrow());
        assert!(mirror.hold(&digest).is_some(), "its packages are kept for the next one");
    }
    // Nor is one whose age nobody knows taken for fresh.
    fs::write(&state, &whole).unwrap();
    assert!(*world.open(DAY).ready().borrow());
    fs::write(world.state.path().join("catalog/age"), "").unwrap();
    let mirror = world.open(DAY);
    assert!(mirror.catalog().is_some() && !*mirror.ready().borrow());
}

#[tokio::test]
async fn a_clock_set_back_loses_nothing_that_was_written_down() {
    let world = World::new().await;
    world.say([state("1", &[])]);
    let mirror = world.open(DAY);
    let following = world.follow(&mirror);
    eventually("a catalog", || mirror.catalog()).await;
    following.end().await;
    drop(mirror);
    let age = world.state.path().join("catalog/age");
    let hour = 3_600_000_u64;
    // Written down in the far future, when it was an hour old; and an hour ago, when it was new.
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    for written in [format!("{} {hour}\n", u64::MAX / 2), format!("{} 0\n", now - u128::from(hour))] {
        fs::write(&age, written).unwrap();
        let age = world.open(DAY).status().age.unwrap();
        assert!(age >= Duration::from_millis(hour) && age < Duration::from_millis(2 * hour), "{age:?}");
    }
}

#[test]
fn a_state_directory_is_one_executors() {
    let dir = TempDir::new().unwrap();
    let first = Mirror::open(dir.path(), DAY).unwrap();
    let error = Mirror::open(dir.path(), DAY).unwrap_err();
    let MirrorError::Locked { holder, .. } = &error else { panic!("{error}") };
    assert_eq!(*holder, std::process::id().to_string());
    assert!(error.to_string().contains("one of its own"));
    drop(first);
    Mirror::open(dir.path(), DAY).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(Mirror::open(&file, DAY), Err(MirrorError::Io { .. })));
}
