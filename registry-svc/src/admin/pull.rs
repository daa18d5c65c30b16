//! One sync: asks the server what there is, fetches what differs, and makes the mirror the next one. Whatever goes wrong,
//! the mirror is as it was or as it is to be.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet, spawn_blocking};

use super::client::{AdminClient, Answer, FetchError, Server};
use super::commit::{Commit, Target, steps};
use super::mirror::{Found, Kept, Mirror, MirrorError, State};
use super::plan::{self, Plan, Refused};
use super::protocol::{Entry, MANIFEST, Manifest};
use super::stage::{self, StageError, Staged};
use super::tree::Print;
use crate::source::mirror::Report;
use crate::source::{MAX_MANIFEST_BYTES, Tier};

/// Skills that are fetched at once.
const AT_ONCE: usize = 8;
/// Skills one after the other that the server fails to give: then the others are left for the next sync.
const FAILURES: usize = 16;
/// Largest answer with a skill: a package of 64 MiB in base64, and what is around it.
const MAX_SKILL_BYTES: u64 = 96 << 20;

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

/// What was fetched, by id.
type Fetched = BTreeMap<String, Fresh>;

/// A skill that was asked for and is as the server has it.
struct Fresh {
    entry: Entry,
    etag: Option<String>,
    /// `None` where what is in the mirror is so already.
    staged: Option<(String, Staged)>,
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
        let (fetched, failed) = self.fetch(&client, mirror, &plan, &found, &known).await?;
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

    async fn fetch(
        &self,
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
                let (id, etag) = (entry.id.clone(), body.etag.clone());
                // The body is held as long as it is read, for there is one large one at a time.
                let staged = spawn_blocking(move || stage::stage(&id, &body.bytes, &directory)).await??;
                Ok(Fresh { entry, etag, staged: Some((stage, staged)) })
            }
        }
    }
}

/// All that is known before the mirror is changed.
struct Work {
    mirror: Arc<Mirror>,
    found: Found,
    manifest: Manifest,
    etag: Option<String>,
    scope: String,
    plan: Plan,
    fetched: Fetched,
    failed: Vec<Refused>,
}

impl Work {
    /// Makes the mirror the next one.
    fn finish(mut self) -> Result<Synced, SyncError> {
        let entries = self.settle();
        let Found { here, folders, state, manifest: before, version, .. } = &self.found;
        let held = |id: &str| !entries.contains_key(id) && !self.plan.remove.iter().any(|gone| gone == id);
        let mut next = Manifest::default();
        // In the server's order, so that the same manifest makes the same file.
        let mut seen = HashSet::new();
        for entry in self.manifest.entries.iter().filter(|entry| seen.insert(entry.id.as_str())) {
            next.entries.extend(
                entries.get(&entry.id).or_else(|| here.entries.get(&entry.id).filter(|_| held(&entry.id))).cloned(),
            );
        }
        next.entries.extend(
            here.entries.values().filter(|entry| !seen.contains(entry.id.as_str()) && held(&entry.id)).cloned(),
        );
        let above = |refused: &&Refused| refused.code == crate::source::codes::W_SYNC_TIER;
        let refused: Vec<_> = self.plan.refused.iter().chain(&self.failed).cloned().collect();
        let complete = refused.iter().all(|refused| above(&refused));
        next.version = if complete { self.manifest.version.clone() } else { version.clone() };
        let mut targets = Vec::new();
        let mut kept =
            State { etag: self.etag.clone().filter(|_| complete), scope: self.scope.clone(), ..State::default() };
        for entry in &next.entries {
            let fresh = self.fetched.get(&entry.id).filter(|_| entries.contains_key(&entry.id));
            let old = state.skills.get(&entry.id);
            let folder = entry.directory().to_owned();
            let (stage, print, missing) = match fresh.and_then(|fresh| fresh.staged.as_ref()) {
                Some((stage, staged)) => (Some(stage.clone()), staged.print.clone(), staged.missing.clone()),
                None => {
                    let mark = folders.get(&entry.id).map(|folder| folder.mark.clone()).unwrap_or_default();
                    let shape = self.found.shapes.get(&entry.id).cloned().unwrap_or_default();
                    (None, Print { shape, mark }, old.map(|old| old.missing.clone()).unwrap_or_default())
                }
            };
            let etag = fresh.map_or_else(|| old.and_then(|old| old.etag.clone()), |fresh| fresh.etag.clone());
            // Of what was damaged and could not be fetched, it stays known that it is damaged.
            let intact = stage.is_some() || here.intact.contains(&entry.id);
            let shape = if intact { print.shape } else { String::new() };
            kept.skills.insert(entry.id.clone(), Kept { folder: folder.clone(), shape, etag, missing });
            targets.push(Target { id: entry.id.clone(), folder, stage, mark: print.mark });
        }
        let steps = steps(folders, &targets, &self.plan.remove);
        let text = next.write();
        let mut synced = Synced {
            version: next.version.clone(),
            skills: next.entries.len(),
            fetched: targets.iter().filter(|target| target.stage.is_some()).count(),
            removed: self.plan.remove.len(),
            above: refused.iter().filter(above).count(),
            changed: !steps.is_empty() || text != *before,
            ..Synced::default()
        };
        let mut report = Report::default();
        for Refused { id, code, message } in refused {
            report.refused.push((id.clone(), code, message.clone()));
            if code != crate::source::codes::W_SYNC_TIER {
                synced.failed.push((id, message));
            }
        }
        let missing = kept.skills.values().filter(|kept| !kept.missing.is_empty());
        report.missing = missing.map(|kept| (kept.folder.clone(), kept.missing.clone())).collect();
        if synced.changed {
            // What was fetched is on the disk before anything refers to it.
            super::tree::sync_all(&self.mirror.paths.work())?;
            let before = String::from_utf8_lossy(before).into_owned();
            let manifest = String::from_utf8(text).unwrap_or_default();
            for (id, error) in self.mirror.commit(Commit { steps, before, manifest, state: kept })? {
                let message = format!("it cannot be put into its folder: {error}");
                report.refused.push((id.clone(), crate::source::codes::E_SYNC_SKILL, message.clone()));
                synced.failed.push((id, message));
            }
            self.mirror.sweep()?;
        } else if kept != *state {
            self.mirror.remember(&kept)?;
        }
        synced.reported = self.mirror.report(&report)?;
        Ok(synced)
    }

    /// What is as the server has it, by id. What could not be fetched keeps its folder, so that another may not have it.
    fn settle(&mut self) -> BTreeMap<String, Entry> {
        let ready = self.fetched.values().map(|fresh| &fresh.entry).chain(&self.plan.keep);
        let ready: HashSet<&str> = ready.map(|entry| entry.id.as_str()).collect();
        // In the server's order: the first of two comes first.
        let mut seen = HashSet::new();
        let wanted =
            self.manifest.entries.iter().filter(|entry| ready.contains(entry.id.as_str()) && seen.insert(&entry.id));
        let removed = self.plan.remove.iter().map(String::as_str).collect();
        let (settled, refused) = plan::settle(wanted.collect(), &self.found.here, &removed);
        let settled = settled.into_iter().map(|entry| (entry.id.clone(), entry.clone())).collect();
        self.failed.extend(refused);
        settled
    }
}
