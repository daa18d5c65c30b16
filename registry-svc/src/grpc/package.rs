//! PackageService: what executors mirror, the whole state whenever its version differs, and packages file by file.

use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::fetch_package_response::Part as PbPart;
use skillyard::pb::skill::v1::Skill as SkillMessage;
use skillyard::service::caller::{Caller, Role};
use skillyard::service::error::{Reason, Refusal};
use skillyard::skill::Kind;
use skillyard::{Digest, Skill, View, wire};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tracing::Instrument as _;

use super::unavailable;
use crate::catalog::read::{Changed, PackageReader, Part};
use crate::catalog::reload::Unavailable;
use crate::catalog::{Catalog, Catalogs};
use crate::source::FoundSkill;

/// Between two messages of a watch.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A message of a watch is full at that, and holds one skill at least.
const STATE_BYTES: usize = 1 << 20;
/// Threads that read packages at once. A root may hang and hold them: others are left to look at the other roots.
const READERS: usize = 64;
/// Messages that wait for a slow client: the next is made when one of them is taken.
const AHEAD: usize = 2;

/// Who may have everything that is there, whatever the agent.
const MIRRORS: [Role; 2] = [Role::Executor, Role::Operator];

type Sender<T> = mpsc::Sender<Result<T, Status>>;
type Messages<T> = ReceiverStream<Result<T, Status>>;

/// Answers from the catalogs as they come.
#[derive(Debug)]
pub(super) struct Service {
    catalogs: Catalogs,
    readers: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(catalogs: Catalogs) -> Self {
        Self { catalogs, readers: Arc::new(Semaphore::new(READERS)) }
    }
}

#[tonic::async_trait]
impl pb::package_service_server::PackageService for Service {
    type WatchCatalogStream = Messages<pb::WatchCatalogResponse>;
    type FetchPackageStream = Messages<pb::FetchPackageResponse>;

    async fn watch_catalog(
        &self,
        request: Request<pb::WatchCatalogRequest>,
    ) -> Result<Response<Self::WatchCatalogStream>, Status> {
        Caller::of(&request).allow(&MIRRORS)?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        let catalogs = self.catalogs.subscribe();
        let known = request.into_inner().catalog_version;
        let watching = async move {
            tokio::select! {
                // An error means that the client has gone.
                _ = watch(catalogs, known, &sender) => {}
                () = sender.closed() => {}
            }
        };
        tokio::spawn(watching.in_current_span());
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn fetch_package(
        &self,
        request: Request<pb::FetchPackageRequest>,
    ) -> Result<Response<Self::FetchPackageStream>, Status> {
        Caller::of(&request).allow(&MIRRORS)?;
        let digest = request.into_inner().digest;
        let parsed: Digest = digest.parse().map_err(|error| {
            let message = format!("{error}");
            Refusal::new(Reason::InvalidRequest, &message).violation("digest", message)
        })?;
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let found = catalog.package(&parsed).ok_or_else(|| {
            let message =
                format!("no skill of the catalog has the digest {digest}: WatchCatalog gives those that there are");
            Refusal::new(Reason::UnknownSkill, message).with("digest", &digest)
        })?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        let (found, catalogs, readers) = (Arc::clone(found), self.catalogs.clone(), Arc::clone(&self.readers));
        let fetching = async move {
            tokio::select! {
                // An error means that the client has gone.
                _ = fetch(found, catalogs, readers, &sender) => {}
                () = sender.closed() => {}
            }
        };
        tokio::spawn(fetching.in_current_span());
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

type Gone<T> = mpsc::error::SendError<Result<T, Status>>;

/// Sends the state whenever it is not the one that the client has, and word in between that it still is.
async fn watch(
    mut catalogs: tokio::sync::watch::Receiver<Option<Arc<Catalog>>>,
    mut known: String,
    sender: &Sender<pb::WatchCatalogResponse>,
) -> Result<(), Gone<pb::WatchCatalogResponse>> {
    // None until the client has had a first message.
    let mut heartbeat_at: Option<Instant> = None;
    loop {
        let current = catalogs.borrow_and_update().clone();
        if let Some(catalog) = current {
            let version = catalog.version().to_string();
            if version != known {
                for message in state(&catalog) {
                    sender.send(Ok(message)).await?;
                }
                known = version;
                heartbeat_at = Some(Instant::now() + HEARTBEAT);
            } else if heartbeat_at.is_none_or(|at| at <= Instant::now()) {
                sender.send(Ok(pb::WatchCatalogResponse { catalog_version: version, ..Default::default() })).await?;
                heartbeat_at = Some(Instant::now() + HEARTBEAT);
            }
        }
        tokio::select! {
            changed = catalogs.changed() => if changed.is_err() {
                return sender.send(Err(unavailable(Unavailable::Stopping).into())).await;
            },
            () = sleep_until(heartbeat_at.unwrap_or_else(|| Instant::now() + HEARTBEAT)) => {}
            () = sender.closed() => return Ok(()),
        }
    }
}

/// All that a catalog holds for an executor, in messages that peers accept: the agents, and then the skills.
fn state(catalog: &Catalog) -> impl Iterator<Item = pb::WatchCatalogResponse> {
    let catalog_version = catalog.version().to_string();
    let mut agents = catalog.agents(None).map(wire::agent_to_wire).peekable();
    let mut skills = catalog.skills(View::unfiltered(), None).map(|found| mirrored(&found.skill)).peekable();
    let (mut first, mut more) = (true, true);
    std::iter::from_fn(move || {
        if !more {
            return None;
        }
        let mut room = STATE_BYTES;
        let set = fill(&mut room, &mut agents);
        let changed = if agents.peek().is_none() { fill(&mut room, &mut skills) } else { Vec::new() };
        // A state has its agents even where there is none.
        let agents_now = (first || !set.is_empty()).then_some(pb::AgentSet { agents: set });
        more = agents.peek().is_some() || skills.peek().is_some();
        first = false;
        let catalog_version = catalog_version.clone();
        Some(pb::WatchCatalogResponse { catalog_version, full: true, more, changed, agents: agents_now })
    })
}

/// As many items as there is room for; an item that no message has room for is alone in one.
fn fill<M: prost::Message>(room: &mut usize, items: &mut Peekable<impl Iterator<Item = M>>) -> Vec<M> {
    let mut taken = Vec::new();
    while let Some(item) = items.peek() {
        // Beside its bytes an item has a tag and a length.
        let bytes = item.encoded_len() + 8;
        if bytes > *room && *room < STATE_BYTES {
            break;
        }
        *room = room.saturating_sub(bytes);
        taken.extend(items.next());
    }
    taken
}

/// A skill as an executor needs it: all that decides about a run; of a playbook, that there is one.
fn mirrored(skill: &Skill) -> SkillMessage {
    let message = wire::skill_to_wire(skill);
    match skill.kind {
        Kind::Subprocess(_) => SkillMessage { card: None, extra: None, modified_at: None, ..message },
        Kind::Playbook(_) => SkillMessage {
            name: message.name,
            kind: message.kind,
            source: message.source,
            digest: message.digest,
            ..Default::default()
        },
    }
}

/// Sends a package. Each batch is read on a thread that may block, and none waits for the client.
async fn fetch(
    found: Arc<FoundSkill>,
    catalogs: Catalogs,
    readers: Arc<Semaphore>,
    sender: &Sender<pb::FetchPackageResponse>,
) -> Result<(), Gone<pb::FetchPackageResponse>> {
    let (name, digest) = (found.skill.name.clone(), found.skill.digest);
    let mut reader = PackageReader::new(found);
    loop {
        // It is never closed.
        let Ok(permit) = Arc::clone(&readers).acquire_owned().await else { return Ok(()) };
        let read = tokio::task::spawn_blocking(move || {
            let batch = reader.next_batch();
            drop(permit);
            (reader, batch)
        });
        let status = match read.await {
            Ok((_, Ok(parts))) if parts.is_empty() => return Ok(()),
            Ok((same, Ok(parts))) => {
                reader = same;
                for part in parts {
                    sender.send(Ok(pb::FetchPackageResponse { part: Some(part_to_wire(part)) })).await?;
                }
                continue;
            }
            Ok((_, Err(changed))) => {
                tracing::info!(skill = %name, %digest, %changed, "the package that is fetched is no longer on disk");
                catalogs.hint();
                package_changed(&digest, &changed).into()
            }
            Err(error) => {
                tracing::error!(skill = %name, %digest, %error, "reading the package failed");
                Refusal::new(Reason::Internal, "reading the package failed: the registry's log says why").into()
            }
        };
        return sender.send(Err(status)).await;
    }
}

fn package_changed(digest: &Digest, changed: &Changed) -> Refusal {
    let message = format!(
        "the files on disk are no longer those of {digest}: {changed}. The registry looks at them again; fetch the \
         digest that WatchCatalog gives then"
    );
    Refusal::new(Reason::PackageChanged, message).with("digest", digest.to_string())
}

fn part_to_wire(part: Part) -> PbPart {
    match part {
        Part::Data(bytes) => PbPart::Data(bytes),
        Part::File(file) => PbPart::File(pb::FileHeader {
            path: file.path.to_string(),
            size: file.size,
            executable: file.executable,
            sha256: file.sha256.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixture;

    fn names(messages: &[pb::WatchCatalogResponse]) -> (Vec<&str>, Vec<&str>) {
        let agents =
            messages.iter().flat_map(|m| &m.agents).flat_map(|set| &set.agents).map(|agent| agent.name.as_str());
        let skills = messages.iter().flat_map(|m| &m.changed).map(|skill| skill.name.as_str());
        (agents.collect(), skills.collect())
    }

    #[test]
    fn a_large_state_comes_in_several_messages() {
        let listed: Vec<_> = (0..2000).map(|i| format!("skill_{i:0100}")).collect();
        let agents: Vec<_> = (0..10).map(|i| fixture::agent(&format!("a{i}"), &listed)).collect();
        let skills: Vec<_> = (0..20).map(|i| fixture::described(&format!("s{i:02}"), "x".repeat(i * 20_000))).collect();
        let catalog = fixture::catalog(skills, agents);
        let messages: Vec<_> = state(&catalog).collect();
        assert!(messages.len() > 4, "{}", messages.len());
        assert!(messages.iter().all(|message| prost::Message::encoded_len(message) <= STATE_BYTES + 256));
        assert!(
            messages.iter().all(|message| message.full && message.catalog_version == catalog.version().to_string())
        );
        let more: Vec<_> = messages.iter().map(|message| message.more).collect();
        assert_eq!(more.iter().position(|more| !more), Some(messages.len() - 1));
        let (agents, skills) = names(&messages);
        assert_eq!(agents, catalog.agents(None).map(|agent| agent.name.as_str()).collect::<Vec<_>>());
        let all = catalog.skills(View::unfiltered(), None).map(|found| found.skill.name.as_str());
        assert_eq!(skills, all.collect::<Vec<_>>());
    }

    #[test]
    fn a_state_of_nothing_is_one_message() {
        let catalog = fixture::catalog(Vec::new(), Vec::new());
        let catalog_version = catalog.version().to_string();
        let agents = Some(pb::AgentSet::default());
        let message = pb::WatchCatalogResponse { catalog_version, full: true, agents, ..Default::default() };
        assert_eq!(state(&catalog).collect::<Vec<_>>(), [message]);
    }

    #[test]
    fn a_skill_that_no_message_has_room_for_is_alone_in_one() {
        let skills =
            ["a", "b", "c"].map(|name| fixture::described(name, "x".repeat(if name == "b" { 2 << 20 } else { 1 })));
        let catalog = fixture::catalog(skills.to_vec(), Vec::new());
        let messages: Vec<_> = state(&catalog).collect();
        assert_eq!(messages.iter().map(|message| message.changed.len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[tokio::test]
    async fn a_client_that_has_the_state_gets_word_at_once_and_every_15_s() {
        tokio::time::pause();
        let catalog = Arc::new(fixture::catalog(Vec::new(), Vec::new()));
        let version = catalog.version().to_string();
        let (publish, catalogs) = tokio::sync::watch::channel(None);
        let (sender, mut messages) = mpsc::channel(AHEAD);
        let known = version.clone();
        let watching = tokio::spawn(async move { watch(catalogs, known, &sender).await.is_ok() });
        let begun = Instant::now();
        let word = pb::WatchCatalogResponse { catalog_version: version, ..Default::default() };
        tokio::time::sleep(HEARTBEAT * 2).await;
        assert!(messages.try_recv().is_err(), "there is nothing to give word of before the first catalog");
        publish.send_replace(Some(Arc::clone(&catalog)));
        assert_eq!(messages.recv().await.unwrap().unwrap(), word);
        for i in 1..4 {
            // Catalogs of the same version come in between, and are no news.
            tokio::time::sleep(HEARTBEAT / 3).await;
            publish.send_replace(Some(Arc::clone(&catalog)));
            assert_eq!(messages.recv().await.unwrap().unwrap(), word);
            assert_eq!(begun.elapsed().as_secs(), HEARTBEAT.as_secs() * (2 + i));
        }
        drop(publish);
        assert_eq!(messages.recv().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(watching.await.unwrap());
    }
}
