//! PackageService: what executors mirror, the whole state whenever its version differs, and packages file by file.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::fetch_package_response::Part as PbPart;
use skillyard::pb::skill::v1::Skill as SkillMessage;
use skillyard::service::error::{Reason, Refusal};
use skillyard::skill::Kind;
use skillyard::{Digest, Skill, View, wire};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::unavailable;
use crate::catalog::read::{Changed, PackageReader, Part};
use crate::catalog::reload::Unavailable;
use crate::catalog::{Catalog, Catalogs};
use crate::source::FoundSkill;

/// Between two messages of a watch.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A message of a watch is full at that, and holds one skill at least.
const STATE_BYTES: usize = 1 << 20;
/// Messages that wait for a slow client: the next is made when one of them is taken.
const AHEAD: usize = 2;

type Sender<T> = mpsc::Sender<Result<T, Status>>;
type Messages<T> = ReceiverStream<Result<T, Status>>;

/// Answers from the catalogs as they come.
#[derive(Debug)]
pub(super) struct Service {
    catalogs: Catalogs,
}

impl Service {
    pub(super) fn new(catalogs: Catalogs) -> Self {
        Self { catalogs }
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
        let (sender, receiver) = mpsc::channel(AHEAD);
        let catalogs = self.catalogs.subscribe();
        let known = request.into_inner().catalog_version;
        tokio::spawn(async move {
            // An error means that the client has gone.
            let _ = watch(catalogs, known, &sender).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn fetch_package(
        &self,
        request: Request<pb::FetchPackageRequest>,
    ) -> Result<Response<Self::FetchPackageStream>, Status> {
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
        let (found, catalogs) = (Arc::clone(found), self.catalogs.clone());
        tokio::spawn(async move {
            // An error means that the client has gone.
            let _ = fetch(found, catalogs, &sender).await;
        });
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

/// All that a catalog holds for an executor, in messages that peers accept; the first has the agents.
fn state(catalog: &Catalog) -> impl Iterator<Item = pb::WatchCatalogResponse> {
    let catalog_version = catalog.version().to_string();
    let mut skills = catalog.skills(View::unfiltered(), None).map(|found| mirrored(&found.skill)).peekable();
    let mut agents = Some(pb::AgentSet { agents: catalog.agents(None).map(wire::agent_to_wire).collect() });
    let mut more = true;
    std::iter::from_fn(move || {
        if !more {
            return None;
        }
        let agents = agents.take();
        let mut bytes = agents.as_ref().map_or(0, pb::AgentSet::encoded_len);
        let mut changed = Vec::new();
        while let Some(skill) = skills.peek() {
            // Beside its bytes a skill has a tag and a length.
            bytes += skill.encoded_len() + 8;
            if bytes > STATE_BYTES && !(changed.is_empty() && agents.is_none()) {
                break;
            }
            changed.extend(skills.next());
        }
        more = skills.peek().is_some();
        Some(pb::WatchCatalogResponse { catalog_version: catalog_version.clone(), full: true, more, changed, agents })
    })
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
    sender: &Sender<pb::FetchPackageResponse>,
) -> Result<(), Gone<pb::FetchPackageResponse>> {
    let (name, digest) = (found.skill.name.clone(), found.skill.digest);
    let mut reader = PackageReader::new(found);
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let batch = reader.next_batch();
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
