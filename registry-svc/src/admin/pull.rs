//! One sync: asks the server what there is, fetches what differs, and makes the mirror the next one. Whatever goes wrong,
//! the mirror is as it was or as it is to be.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::{JoinError, spawn_blocking};

use super::client::{AdminClient, Answer};
use super::fetch;
use super::mirror::{Found, Mirror, MirrorError, State};
use super::next::Work;
use super::plan;
use super::protocol::{MANIFEST, Manifest};
use super::server::{FetchError, Server};
use crate::source::mirror::Report;
use crate::source::{MAX_MANIFEST_BYTES, Tier};

/// What is synced, from where to where.
#[derive(Clone, Debug)]
pub struct Puller {
    /// From where.
    pub server: Server,
    /// The mirror.
    pub cloud_dir: PathBuf,
    /// Skills above it are left out.
    pub tier: Tier,
    /// A server that has nothing left is believed.
    pub allow_empty: bool,
}

/// What a sync came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Of what is mirrored now; the server's, where all of it could be synced.
    pub version: String,
    /// Skills in the mirror.
    pub skills: usize,
    /// Of these, new or changed ones.
    pub fetched: usize,
    /// Skills that were removed.
    pub removed: usize,
    /// Ids that could not be synced, and why.
    pub failed: Vec<(String, String)>,
    /// Ids that are for a higher tier.
    pub above: usize,
    /// Something in the mirror is not as it was before.
    pub changed: bool,
    /// The load report has something new to say.
    pub reported: bool,
}

/// Why nothing was synced.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// No answer.
    #[error("{0}; what is mirrored stays as it is")]
    Fetch(#[from] FetchError),
    /// An answer that is none.
    #[error("the manifest cannot be used: {0}; what is mirrored stays as it is")]
    Manifest(String),
    /// An answer that would wipe the mirror.
    #[error(
        "the server publishes nothing, and {0} skills are mirrored: they stay; if that is meant, sync with --allow-empty when \
         the server's version has changed"
    )]
    Empty(usize),
    /// The mirror.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The disk.
    #[error("the mirror cannot be written: {0}")]
    Disk(String),
    /// A fault of ours.
    #[error("a task of the sync has ended: {0}")]
    Task(#[from] JoinError),
}

impl From<io::Error> for SyncError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error.to_string())
    }
}

impl Puller {
    /// Syncs once.
    ///
    /// # Errors
    /// See [`SyncError`]: nothing has changed then. What is wrong with single skills is no error.
    pub async fn sync(&self) -> Result<Synced, SyncError> {
        let cloud_dir = self.cloud_dir.clone();
        let mirror = Arc::new(spawn_blocking(move || Mirror::open(&cloud_dir)).await??);
        let synced = self.sync_into(&mirror).await;
        let outcome = match &synced {
            // It is in the report already.
            Ok(_) | Err(SyncError::Task(_)) => return synced,
            Err(error) => error.to_string(),
        };
        let reported = spawn_blocking(move || {
            // What was wrong with single skills before is so still.
            let before = Report::read(&mirror.cloud_dir());
            mirror.report(&Report { failed: outcome, ..before })
        });
        if let Err(error) = reported.await? {
            tracing::warn!(%error, "the load report cannot say that the sync failed");
        }
        synced
    }

    async fn sync_into(&self, mirror: &Arc<Mirror>) -> Result<Synced, SyncError> {
        let looked = Arc::clone(mirror);
        let found = spawn_blocking(move || looked.look()).await??;
        let server = self.server.clone();
        let client = spawn_blocking(move || AdminClient::new(&server)).await??;
        let scope = format!("{} {}", self.server.url, self.tier);
        let whole = found.state.scope == scope && found.here.intact.len() == found.here.entries.len();
        // Nothing was lost since, or the manifest would have to say so again.
        let complete = whole && found.listed && found.state.skills.len() == found.here.entries.len();
        let etag = found.state.etag.as_deref().filter(|_| complete);
        let (manifest, etag) = match client.get(MANIFEST, "", etag, MAX_MANIFEST_BYTES).await? {
            Answer::NotModified => return self.unchanged(mirror, found).await,
            Answer::Body(body) => {
                let etag = body.etag;
                let bytes = body.bytes;
                let read = spawn_blocking(move || Manifest::read(&bytes)).await?;
                (read.map_err(|error| SyncError::Manifest(error.to_string()))?, etag)
            }
        };
        self.believe(&manifest, &found)?;
        let plan = plan::plan(&manifest, &found.here, self.tier);
        let known = if found.state.scope == scope { found.state.clone() } else { State::default() };
        let (fetched, failed) = fetch::fetch(&client, mirror, &plan, &found, &known).await?;
        let work = Work { mirror: Arc::clone(mirror), found, manifest, etag, scope, plan, fetched, failed };
        spawn_blocking(move || work.finish()).await?
    }

    /// Nothing is new on either side.
    async fn unchanged(&self, mirror: &Arc<Mirror>, found: Found) -> Result<Synced, SyncError> {
        let mirror = Arc::clone(mirror);
        let (above, reported) = spawn_blocking(move || {
            let before = Report::read(&mirror.cloud_dir());
            let above = before.refused.len();
            mirror.report(&Report { failed: String::new(), ..before }).map(|reported| (above, reported))
        })
        .await??;
        let skills = found.here.entries.len();
        Ok(Synced { version: found.version, skills, above, reported, ..Synced::default() })
    }

    /// A server that has nothing is not believed at its first word.
    fn believe(&self, manifest: &Manifest, found: &Found) -> Result<(), SyncError> {
        let mirrored = found.here.entries.len();
        if !manifest.entries.is_empty() || !manifest.unreadable.is_empty() || mirrored == 0 {
            return Ok(());
        }
        let meant = self.allow_empty && !manifest.version.is_empty() && manifest.version != found.version;
        if meant { Ok(()) } else { Err(SyncError::Empty(mirrored)) }
    }
}
