//! PackageService: what executors mirror, the catalog as it changes and packages file by file.

use std::pin::Pin;
use std::sync::Arc;

use skillyard::Digest;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::fetch_package_response::Part as PbPart;
use skillyard::service::caller::{Caller, Role};
use skillyard::service::error::{Reason, Refusal};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use tracing::Instrument as _;

use super::states::States;
use super::unavailable;
use super::watch::{self, Encoded, Known};
use crate::catalog::Catalogs;
use crate::catalog::read::{Changed, PackageReader, Part};
use crate::source::FoundSkill;

/// Threads that read packages at once. A root may hang and hold them: others are left to look at the other roots.
const READERS: usize = 64;
/// Messages that wait for a slow client: the next is made when one of them is taken.
const AHEAD: usize = 2;

/// Who may have everything that is there, whatever the agent.
const MIRRORS: [Role; 2] = [Role::Executor, Role::Operator];

type Sender<T> = mpsc::Sender<Result<T, Status>>;
pub(super) type Messages<T> = ReceiverStream<Result<T, Status>>;

/// Answers from the catalogs as they come.
#[derive(Debug)]
pub(super) struct Service {
    catalogs: Catalogs,
    states: States,
    readers: Arc<Semaphore>,
}

impl Service {
    /// Follows the catalogs on a task of its own.
    pub(super) fn new(catalogs: Catalogs) -> Self {
        let states = States::follow(catalogs.subscribe());
        Self { catalogs, states, readers: Arc::new(Semaphore::new(READERS)) }
    }

    /// The catalog and its changes, encoded.
    pub(super) fn watch(
        &self,
        request: Request<pb::WatchCatalogRequest>,
    ) -> Result<Response<Messages<Encoded>>, Status> {
        Caller::of(&request).allow(&MIRRORS)?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        let states = self.states.subscribe();
        let pb::WatchCatalogRequest { catalog_version, digests } = request.into_inner();
        let known = Known { version: catalog_version, digests: Arc::new(digests) };
        let watching = async move {
            tokio::select! {
                // An error means that the client has gone.
                _ = watch::watch(states, known, &sender) => {}
                () = sender.closed() => {}
            }
        };
        tokio::spawn(watching.in_current_span());
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[tonic::async_trait]
impl pb::package_service_server::PackageService for Service {
    type WatchCatalogStream = Pin<Box<dyn Stream<Item = Result<pb::WatchCatalogResponse, Status>> + Send>>;
    type FetchPackageStream = Messages<pb::FetchPackageResponse>;

    async fn watch_catalog(
        &self,
        request: Request<pb::WatchCatalogRequest>,
    ) -> Result<Response<Self::WatchCatalogStream>, Status> {
        let messages = self.watch(request)?.into_inner();
        Ok(Response::new(Box::pin(messages.map(|message| message.map(Encoded::decoded)))))
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
