//! The journal: runs of mutating and dangerous skills, on disk before they start, so that neither a repeated call nor a
//! restart runs one twice. Safe runs are not in it.
//!
//! A record is written when its run has a slot, and gets its end when the run has ended. One thread writes; a write is
//! answered when it is on the disk, and writes that wait together share one sync. A journal that cannot be read keeps the
//! executor from starting: it never forgets by itself.

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use skillyard::{Digest, SkillName};
use tokio::sync::oneshot;

use self::database::{Database, Write, Written};
use crate::run::id::RunId;
use crate::run::outcome::Outcome;

mod database;
mod record;

/// The file, in the journal's directory.
const FILE: &str = "journal.redb";
/// A database that is being made.
const NEW_FILE: &str = "journal.redb.new";
/// Most writes that share a sync.
const MAX_BATCH: usize = 256;

/// How much is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long a run that has ended is remembered at the longest, from when it was accepted.
    pub age: Duration,
    /// How many runs are remembered; those that go on are never forgotten.
    pub runs: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { age: Duration::from_secs(7 * 86_400), runs: 100_000 }
    }
}

/// What the journal has of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The run.
    pub id: RunId,
    /// What was asked for, in all that makes a call the same call.
    pub request: Digest,
    /// Who asked; empty for a caller that is not known.
    pub caller: String,
    /// The approval that the run was to use.
    pub approval_id: String,
    /// The skill.
    pub skill: SkillName,
    /// The package.
    pub digest: Digest,
    /// On whose behalf; empty for no agent.
    pub agent: String,
    /// Of the argument bytes; the arguments themselves are not kept.
    pub args_sha256: Digest,
    /// When the run got its id.
    pub accepted_at: SystemTime,
    /// How it ended; `None` while it goes on.
    pub outcome: Option<Outcome>,
}

/// Why the journal cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refused.
    #[error("cannot {what} {}: {why}: give a state directory that this user may write, with room on its disk", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// The file is not what was written.
    #[error(
        "the journal {} cannot be read ({why}). It says which mutating and dangerous runs were made, and the executor does \
         not start without it: put back the file as it was; or, once it is clear which of these runs were made, move it \
         away, and repeat none of the run_ids in it",
        path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// The database refused to write, or to read what it wrote.
    #[error("the journal {} cannot be used: {why}; it is opened again when the executor is started again", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What the database said.
        why: String,
    },
    /// A run of this id was accepted before, and has ended.
    #[error("run {0} is in the journal, and has ended")]
    Known(RunId),
}

/// Cheap to clone; all clones are the same. The file is closed with the last one.
#[derive(Clone, Debug)]
pub struct Journal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Arc<Database>,
    ids: Arc<Ids>,
    writes: mpsc::Sender<Queued>,
}

/// A write, and who waits for it.
#[derive(Debug)]
struct Queued {
    write: Write,
    done: oneshot::Sender<Result<(), JournalError>>,
}

/// Hashes of the ids in the journal, so that a call whose id is not in it, as almost every one's, reads no file.
#[derive(Debug, Default)]
struct Ids {
    state: RandomState,
    hashes: Mutex<HashSet<u64>>,
}

impl Journal {
    /// Opens the journal in a directory that nobody else uses, or makes one. Runs in it that have no end went on when the
    /// executor died: they get [`Outcome::Lost`]. Reads all of the file, and blocks as long.
    ///
    /// # Errors
    /// [`JournalError`]: the directory cannot be used, or the file is not what was written.
    pub fn open(directory: &Path, bounds: Bounds) -> Result<Self, JournalError> {
        let (database, lost) = open(directory, bounds)?;
        for id in &lost {
            tracing::warn!(run_id = %id, "the run went on when the executor ended: it is LOST, and not run again");
        }
        let ids = Ids::default();
        database.each_id(|id| ids.add(id))?;
        tracing::info!(path = %database.path().display(), runs = ids.lock().len(), lost = lost.len(), "journal opened");
        let (database, ids) = (Arc::new(database), Arc::new(ids));
        let (writes, queue) = mpsc::channel();
        let thread = {
            let (database, ids) = (Arc::clone(&database), Arc::clone(&ids));
            std::thread::Builder::new().name("journal".to_owned()).spawn(move || write_all(&database, &ids, &queue))
        };
        thread.map_err(|error| JournalError::Io {
            what: "start a thread for",
            path: directory.to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self { inner: Arc::new(Inner { database, ids, writes }) })
    }

    /// 32 lower-case hex digits, made with the journal and kept in it: what was written into another is not known here,
    /// and the registry gives an approval to one journal.
    #[must_use]
    pub fn id(&self) -> &str {
        self.inner.database.id()
    }

    /// The run of this id, where it was accepted before.
    ///
    /// # Errors
    /// [`JournalError`]
    pub async fn find(&self, id: &RunId) -> Result<Option<Record>, JournalError> {
        if !self.inner.ids.may_have(id) {
            return Ok(None);
        }
        let (database, id) = (Arc::clone(&self.inner.database), id.clone());
        let found = tokio::task::spawn_blocking(move || database.find(&id)).await;
        found.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Writes down that a run was accepted; when this returns, it is on the disk. Dropped before, it may be or not; what
    /// is asked for afterwards comes after it.
    ///
    /// # Errors
    /// [`JournalError::Known`], or the record cannot be written; the run must not be started then.
    pub async fn accept(&self, record: Record) -> Result<(), JournalError> {
        self.write(Write::Accept(Box::new(record))).await
    }

    /// Writes down how a run ended; nothing where the run is not in the journal.
    ///
    /// # Errors
    /// The end cannot be written: after a restart the run is LOST.
    pub async fn end(&self, id: &RunId, outcome: Outcome) -> Result<(), JournalError> {
        self.write(Write::End(id.clone(), outcome)).await
    }

    /// Forgets a run that goes on and is not going to be started, so that its id can be used again.
    ///
    /// # Errors
    /// The record cannot be removed: after a restart the run is LOST.
    pub async fn forget(&self, id: &RunId) -> Result<(), JournalError> {
        self.write(Write::Forget(id.clone())).await
    }

    /// The newest moment of acceptance among the runs that were forgotten for want of room or by age; `None` while the
    /// journal has all that ever were in it.
    #[must_use]
    pub fn forgotten_until(&self) -> Option<SystemTime> {
        self.inner.database.forgotten_until()
    }

    async fn write(&self, write: Write) -> Result<(), JournalError> {
        let (done, answer) = oneshot::channel();
        self.inner.writes.send(Queued { write, done }).map_err(|_| self.ended())?;
        answer.await.unwrap_or_else(|_| Err(self.ended()))
    }

    fn ended(&self) -> JournalError {
        self.inner.database.broken("its thread ended")
    }
}

/// Writes until nobody can ask for more.
fn write_all(database: &Database, ids: &Ids, queue: &mpsc::Receiver<Queued>) {
    while let Ok(first) = queue.recv() {
        let mut waiting = vec![first];
        waiting.extend(queue.try_iter().take(MAX_BATCH - 1));
        let (writes, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().map(|queued| (queued.write, queued.done)).unzip();
        for write in &writes {
            if let Write::Accept(record) = write {
                // Before it is on the disk: an id too many costs a look at the file, one too few would cost a second run.
                ids.add(record.id.as_str());
            }
        }
        match database.write(&writes) {
            Ok(Written { answers, gone }) => {
                ids.remove(&gone);
                waiting.into_iter().zip(answers).for_each(|(done, answer)| drop(done.send(answer)));
            }
            Err(error) => {
                tracing::error!(%error, "the journal was not written");
                waiting.into_iter().for_each(|done| drop(done.send(Err(error.clone()))));
            }
        }
    }
}

impl Ids {
    fn lock(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: &str) {
        self.lock().insert(self.state.hash_one(id));
    }

    /// An id that is taken for another by its hash is found again by [`Journal::accept`], before its run starts.
    fn remove(&self, gone: &[String]) {
        let mut hashes = self.lock();
        for id in gone {
            hashes.remove(&self.state.hash_one(id.as_str()));
        }
    }

    fn may_have(&self, id: &RunId) -> bool {
        self.lock().contains(&self.state.hash_one(id.as_str()))
    }
}

/// A journal is made beside and renamed into place, so that a file in place is never a half-made one.
fn open(directory: &Path, bounds: Bounds) -> Result<(Database, Vec<RunId>), JournalError> {
    let io = |what, path: &Path| {
        let path = path.to_owned();
        move |error: std::io::Error| JournalError::Io { what, path, why: error.to_string() }
    };
    let path = directory.join(FILE);
    fs::create_dir_all(directory).map_err(io("create", directory))?;
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(directory, closed).map_err(io("use", directory))?;
    if !path.try_exists().map_err(io("look for", &path))? {
        let new = directory.join(NEW_FILE);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io("remove", &new)(error)),
            _ => {}
        }
        database::create(&new)?;
        fs::rename(&new, &path).map_err(io("rename", &new))?;
        for synced in [Some(directory), directory.parent()].into_iter().flatten() {
            File::open(synced).and_then(|directory| directory.sync_all()).map_err(io("sync", synced))?;
        }
    }
    // On a thread of its own, because the database may panic over bytes that it did not write.
    let opened = std::thread::scope(|scope| scope.spawn(|| Database::open(path.clone(), bounds)).join());
    opened.unwrap_or_else(|_| Err(JournalError::Corrupt { path, why: "the database gave up over it".to_owned() }))
}

#[cfg(test)]
mod tests;
