//! Fetches skills, a few at a time, into directories beside the mirror.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet, spawn_blocking};

use super::client::{AdminClient, Answer};
use super::mirror::{Found, Mirror, State};
use super::plan::{Plan, Refused};
use super::protocol::Entry;
use super::pull::SyncError;
use super::server::FetchError;
use super::stage::{self, StageError, Staged};

/// Skills that are fetched at once.
const AT_ONCE: usize = 8;
/// Skills one after the other that the server fails to give: then the others are left for the next sync.
const FAILURES: usize = 16;
/// Largest answer with a skill: a package of 64 MiB in base64, and what is around it.
const MAX_SKILL_BYTES: u64 = 96 << 20;

/// What was fetched, by id.
pub(super) type Fetched = BTreeMap<String, Fresh>;

/// A skill that was asked for and is as the server has it.
pub(super) struct Fresh {
    pub(super) entry: Entry,
    pub(super) etag: Option<String>,
    /// `None` where what is in the mirror is so already.
    pub(super) staged: Option<(String, Staged)>,
}

/// Fetches what is planned; what fails is said, and a disk that refuses ends it.
pub(super) async fn fetch(
    client: &AdminClient,
    mirror: &Arc<Mirror>,
    plan: &Plan,
    found: &Found,
    known: &State,
) -> Result<(Fetched, Vec<Refused>), SyncError> {
    let (places, failures) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for (number, entry) in plan.fetch.iter().cloned().enumerate() {
        let intact = found.here.intact.contains(&entry.id);
        let etag = known.skills.get(&entry.id).filter(|_| intact).and_then(|kept| kept.etag.clone());
        let fetch = Fetch { client: client.clone(), mirror: Arc::clone(mirror), entry, etag };
        let (places, failures) = (Arc::clone(&places), Arc::clone(&failures));
        tasks.spawn(async move {
            // It is never closed.
            let _place = places.acquire_owned().await;
            let id = fetch.entry.id.clone();
            if failures.load(Ordering::Relaxed) >= FAILURES {
                return (id, Err(Failed::NotTried));
            }
            let fresh = fetch.run(format!("new-{number}")).await;
            match &fresh {
                Err(Failed::Fetch(error)) if error.passes() => failures.fetch_add(1, Ordering::Relaxed),
                _ => failures.swap(0, Ordering::Relaxed),
            };
            (id, fresh)
        });
    }
    let (mut fetched, mut failed) = (Fetched::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        match done? {
            (id, Ok(fresh)) => {
                fetched.insert(id, fresh);
            }
            (_, Err(Failed::Stage(error))) if error.is_fatal() => return Err(SyncError::Disk(error.to_string())),
            (_, Err(Failed::Task(error))) => return Err(error.into()),
            (id, Err(error)) => failed.push(Refused::failed(&id, error.to_string())),
        }
    }
    failed.sort_by(|a, b| a.id.cmp(&b.id));
    Ok((fetched, failed))
}

/// Why a skill was not fetched.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("{0}")]
    Fetch(#[from] FetchError),
    #[error("{0}")]
    Stage(#[from] StageError),
    #[error("it was not asked for: the admin server gave none of {FAILURES} others")]
    NotTried,
    #[error("{0}")]
    Task(#[from] JoinError),
}

/// One skill on its way.
struct Fetch {
    client: AdminClient,
    mirror: Arc<Mirror>,
    entry: Entry,
    etag: Option<String>,
}

impl Fetch {
    async fn run(self, stage: String) -> Result<Fresh, Failed> {
        let Self { client, mirror, entry, etag } = self;
        match client.get(&entry.id, "include_files=1", etag.as_deref(), MAX_SKILL_BYTES).await? {
            Answer::NotModified => Ok(Fresh { entry, etag, staged: None }),
            Answer::Body(body) => {
                let directory = mirror.paths.stage().join(&stage);
                let (id, hash, etag) = (entry.id.clone(), entry.hash.clone(), body.etag.clone());
                // The body is held as long as it is read, for there is one large one at a time.
                let staged = spawn_blocking(move || stage::stage(&id, &hash, &body.bytes, &directory)).await??;
                Ok(Fresh { entry, etag, staged: Some((stage, staged)) })
            }
        }
    }
}
