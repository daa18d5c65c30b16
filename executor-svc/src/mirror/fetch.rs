//! Fetches the packages that the catalog names and the store lacks: a few at once, each tried again until it is here or no
//! longer named.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use skillyard::Digest;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;

use super::package::PackageError;
use super::store::Store;
use super::{Inner, blocking};
use crate::backoff::Backoff;
use crate::registry::{Piece, Registry, RegistryError};

/// Packages at once.
const CONCURRENCY: usize = 4;
/// Pieces between the line and the disk.
const PIECES: usize = 8;
/// The largest package over a slow line; one that takes longer gives its place to the others.
const MAX_DURATION: Duration = Duration::from_secs(600);
/// Longest pause before a package is asked for again, when asking may help.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The same, when what came was wrong.
const MAX_PAUSE_MALFORMED: Duration = Duration::from_secs(60);

/// Why a package could not be fetched.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("its package could not be fetched: {0}")]
    Registry(#[from] RegistryError),
    #[error("its package is not taken: {0}")]
    Package(#[from] PackageError),
    #[error("its package did not come within {MAX_DURATION:?}")]
    Slow,
    #[error("its package could not be written: see the log")]
    Panicked,
}

impl FetchError {
    fn max_pause(&self) -> Duration {
        match self {
            Self::Registry(error) if !error.is_malformed() => MAX_PAUSE,
            _ => MAX_PAUSE_MALFORMED,
        }
    }
}

struct Retry {
    backoff: Backoff,
    at: Instant,
}

/// Fetches, for ever.
pub(super) async fn fetch(inner: &Arc<Inner>, registry: &Registry) -> Infallible {
    let mut tasks: JoinSet<Result<(), FetchError>> = JoinSet::new();
    let mut active: HashMap<Id, (Digest, AbortHandle)> = HashMap::new();
    let mut retries: BTreeMap<Digest, Retry> = BTreeMap::new();
    let mut complete = None;
    loop {
        let wanted = wanted(inner);
        if wanted.is_empty() {
            note_complete(inner, &mut complete);
        }
        let among: HashSet<&Digest> = wanted.iter().collect();
        retries.retain(|digest, _| among.contains(digest));
        active.values().filter(|(digest, _)| !among.contains(digest)).for_each(|(_, task)| task.abort());
        let now = Instant::now();
        let mut next = None;
        for digest in wanted {
            if active.values().any(|(other, _)| *other == digest) {
                continue;
            }
            if let Some(retry) = retries.get(&digest).filter(|retry| retry.at > now) {
                next = Some(next.map_or(retry.at, |at: Instant| at.min(retry.at)));
            } else if tasks.len() < CONCURRENCY {
                let task = tasks.spawn(package(Arc::clone(&inner.store), registry.clone(), digest));
                active.insert(task.id(), (digest, task));
            }
        }
        let wait = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let (id, result) = tokio::select! {
            () = inner.changed.notified() => {
                // Another state, or the registry is back: nothing that failed before says that it fails now.
                retries.values_mut().for_each(|retry| retry.at = now);
                continue;
            }
            () = wait => continue,
            () = inner.store.broke() => continue,
            Some(done) = tasks.join_next_with_id() => match done {
                Ok(done) => done,
                Err(error) if error.is_cancelled() => {
                    active.remove(&error.id());
                    continue;
                }
                Err(error) => (error.id(), Err(FetchError::Panicked)),
            },
        };
        let Some((digest, _)) = active.remove(&id) else { continue };
        match result {
            Ok(()) => {
                tracing::info!(%digest, "package mirrored");
                retries.remove(&digest);
                inner.live().failures.remove(&digest);
            }
            Err(error) => {
                let retry = retries.entry(digest).or_insert_with(|| Retry { backoff: Backoff::default(), at: now });
                retry.at = Instant::now() + retry.backoff.next(error.max_pause());
                note(inner, digest, &error);
            }
        }
    }
}

/// In the order of the skills' names, each once.
fn wanted(inner: &Inner) -> Vec<Digest> {
    let Some(catalog) = inner.live().catalog.clone() else { return Vec::new() };
    let mut seen = HashSet::new();
    let digests = catalog.subprocesses().map(|skill| skill.digest);
    digests.filter(|digest| seen.insert(*digest) && !inner.store.has(digest)).collect()
}

/// Logs once of every catalog that nothing of it is missing: whoever started the executor may wait for this line. Nothing
/// is said of one that was taken up from disk until the registry has confirmed it.
fn note_complete(inner: &Inner, said: &mut Option<String>) {
    let version = {
        let live = inner.live();
        live.catalog.as_ref().filter(|_| live.connected).map(|catalog| catalog.version.clone())
    };
    if let Some(version) = version.filter(|version| said.as_ref() != Some(version)) {
        tracing::info!(%version, "all packages mirrored");
        *said = Some(version);
    }
}

/// Logs a cause once, however often it comes.
fn note(inner: &Inner, digest: Digest, error: &FetchError) {
    let cause = match error {
        FetchError::Registry(error) if error.is_package_changed() => {
            "its files changed at the registry while they were fetched: the next catalog names them anew".to_owned()
        }
        other => other.to_string(),
    };
    let before = inner.live().failures.insert(digest, cause.clone());
    if before.as_ref() == Some(&cause) {
        tracing::debug!(%digest, %cause, "a package is missing still");
    } else {
        tracing::warn!(%digest, %cause, "a package is missing, and will be asked for again");
    }
}

/// One package: what comes from the line goes through a short queue to a thread that may wait for the disk.
async fn package(store: Arc<Store>, registry: Registry, digest: Digest) -> Result<(), FetchError> {
    let (pieces, queue) = mpsc::channel(PIECES);
    let written = blocking(move || write(&store, digest, queue));
    let sent = tokio::time::timeout(MAX_DURATION, send(&registry, &digest, pieces));
    let (written, sent) = tokio::join!(written, sent);
    // A writer that gave up made the sender stop: its word comes first.
    if !written.ok_or(FetchError::Panicked)?? {
        sent.map_err(|_| FetchError::Slow)??;
    }
    Ok(())
}

/// Sends the pieces, then `None`; nothing after an error.
async fn send(registry: &Registry, digest: &Digest, pieces: mpsc::Sender<Option<Piece>>) -> Result<(), RegistryError> {
    let mut fetch = registry.fetch(digest).await?;
    loop {
        let piece = tokio::select! {
            piece = fetch.next() => piece?,
            // The writer gave up, and says why.
            () = pieces.closed() => return Ok(()),
        };
        let last = piece.is_none();
        if pieces.send(piece).await.is_err() || last {
            return Ok(());
        }
    }
}

/// Whether the package came to its end and is in place.
fn write(store: &Store, digest: Digest, mut queue: mpsc::Receiver<Option<Piece>>) -> Result<bool, PackageError> {
    // Nothing is made before the registry has answered.
    let mut writer = None;
    while let Some(piece) = queue.blocking_recv() {
        let mut current = match writer.take() {
            Some(writer) => writer,
            None => store.writer(digest)?,
        };
        match piece {
            Some(Piece::File(file)) => current.file(file)?,
            Some(Piece::Data(bytes)) => current.data(&bytes)?,
            None => {
                store.publish(current)?;
                return Ok(true);
            }
        }
        writer = Some(current);
    }
    Ok(false)
}
