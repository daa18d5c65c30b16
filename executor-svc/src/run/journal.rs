//! The journal: every run, accepted to finished, in an embedded database that survives the process.
//!
//! It serves two ends. **Never twice:** a run of a mutating or dangerous skill is on the disk before it starts, so that
//! neither a repeated call nor a restart runs it again; whoever asks for such a write waits until it is synced. **The
//! record:** every run that ended, or was LOST with the process, is a [`RunRecord`], numbered in order and kept until it is
//! shipped, or too old, or too much. Safe runs only note what happens to them: the notes of about 100 ms share a write,
//! and no run ever waits for one (see `queue`). One thread writes. A journal that cannot be read keeps the executor from
//! starting: it never forgets by itself.

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{oneshot, watch};

use self::counts::Counts;
pub use self::counts::JournalFigures;
use self::database::{Database, NotWritten, Write, Written};
use self::queue::{Queue, Queued, settle};
pub use self::record::{Entry, RunRecord};
use crate::run::call::Call;
use crate::run::id::RunId;

mod counts;
mod database;
mod queue;
mod raw;
mod record;
mod tables;

/// The file, in the journal's directory.
const FILE: &str = "journal.redb";
/// A database that is being made.
const NEW_FILE: &str = "journal.redb.new";
/// How often it is said at the most that records were dropped.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// How much is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long a run that has ended is remembered at the longest, from when it was accepted, and how long its record
    /// waits to be shipped, from its end.
    pub age: Duration,
    /// How many ended runs with an approval are remembered, and how many safe ones; those that go on are never forgotten.
    pub runs: u64,
    /// How many bytes of records wait to be shipped.
    pub record_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { age: Duration::from_secs(7 * 86_400), runs: 100_000, record_bytes: 1 << 30 }
    }
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
    #[error("the journal {} cannot be used: {why}; give its disk room; it is tried again with every write", path.display())]
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

/// Cheap to clone; all clones are the same. The file is closed when the last one is dropped and all is written.
#[derive(Clone, Debug)]
pub struct Journal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Arc<Database>,
    ids: Arc<Ids>,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    changed: watch::Receiver<u64>,
}

/// Hashes of the ids in the journal, so that a call whose id is not in it, as almost every one's, reads no file.
#[derive(Debug, Default)]
struct Ids {
    state: RandomState,
    hashes: Mutex<HashSet<u64>>,
}

impl Journal {
    /// Opens the journal in a directory that nobody else uses, or makes one. Runs in it that have no end went on when the
    /// executor died: they are LOST, and have a record. Reads all of the file, and blocks as long.
    ///
    /// # Errors
    /// [`JournalError`]: the directory cannot be used, or the file is not what was written.
    pub fn open(directory: &Path, bounds: Bounds) -> Result<Self, JournalError> {
        let (database, lost) = open(directory, bounds)?;
        for entry in &lost {
            let (run_id, skill, step) = (&entry.call.id, &entry.call.skill, entry.step.as_str());
            tracing::warn!(%run_id, %skill, step, "the run went on when the executor ended: it is LOST");
        }
        let ids = Ids::default();
        database.each_id(|id| ids.add(id))?;
        let last_record = database.last_record()?;
        tracing::info!(path = %database.path().display(), runs = ids.lock().len(), lost = lost.len(), "journal opened");
        let (tell, changed) = watch::channel(last_record);
        let counts = Arc::new(Counts::new(lost.len(), database.waiting()?));
        let (database, ids, queue) = (Arc::new(database), Arc::new(ids), Arc::default());
        let inner = Inner { database, ids, queue, counts, changed };
        let thread = {
            let (database, ids) = (Arc::clone(&inner.database), Arc::clone(&inner.ids));
            let (queue, counts) = (Arc::clone(&inner.queue), Arc::clone(&inner.counts));
            let write_all = move || write_all(&database, &ids, &queue, &counts, &tell);
            std::thread::Builder::new().name("journal".to_owned()).spawn(write_all)
        };
        thread.map_err(|error| JournalError::Io {
            what: "start a thread for",
            path: directory.to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self { inner: Arc::new(inner) })
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
    pub async fn find(&self, id: &RunId) -> Result<Option<Entry>, JournalError> {
        if !self.inner.ids.may_have(id) {
            return Ok(None);
        }
        let id = id.clone();
        self.read(move |database| database.find(&id)).await
    }

    /// Writes down that a run was accepted; when this returns, it is on the disk. Dropped before, it may be or not; what
    /// is asked for afterwards comes after it.
    ///
    /// # Errors
    /// [`JournalError::Known`], or the entry cannot be written; the run must not be started then.
    pub async fn accept(&self, call: &Arc<Call>) -> Result<(), JournalError> {
        self.write(Write::Accept(Box::new(Entry::accepted(Arc::clone(call))))).await
    }

    /// Writes down that a run's approval is used and it starts next; when this returns, it is on the disk.
    ///
    /// # Errors
    /// It cannot be written; the run must not be started then.
    pub async fn approved(&self, id: &RunId) -> Result<(), JournalError> {
        self.write(Write::Approved(id.clone())).await
    }

    /// Writes down how a run ended, and its record; when this returns, it is on the disk.
    ///
    /// # Errors
    /// The end cannot be written: after a restart the run is LOST.
    pub async fn end(&self, record: RunRecord) -> Result<(), JournalError> {
        self.write(Write::End(Box::new(record))).await
    }

    /// Forgets a run that goes on and is not going to be started, so that its id can be used again.
    ///
    /// # Errors
    /// The entry cannot be removed: after a restart the run is LOST.
    pub async fn forget(&self, id: &RunId) -> Result<(), JournalError> {
        self.write(Write::Forget(id.clone())).await
    }

    /// Notes that a run was accepted, and returns whether there was room for it.
    #[must_use]
    pub fn note_accepted(&self, call: &Arc<Call>) -> bool {
        self.inner.queue.note(Write::Note(Box::new(Entry::accepted(Arc::clone(call)))))
    }

    /// Notes that a run was started.
    pub fn note_started(&self, id: &RunId, at: SystemTime) {
        self.inner.queue.note(Write::Started(id.clone(), at));
    }

    /// Notes how a run ended, and its record; `was_noted` is what [`Self::note_accepted`] returned.
    pub fn note_ended(&self, record: RunRecord, was_noted: bool) {
        self.inner.queue.record(record, was_noted);
    }

    /// Notes that a run that was noted is not going to be started.
    pub fn note_forgotten(&self, id: &RunId) {
        self.inner.queue.forget(id.clone());
    }

    /// Returns when all that was noted before is on the disk.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.write(Write::Nothing).await
    }

    /// The oldest records that are not shipped, in the order in which their runs ended, and the cursor behind them: at most
    /// so many, and so many bytes unless the first alone has more.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn unshipped(&self, max_bytes: usize, max_records: usize) -> Result<(Vec<RunRecord>, u64), JournalError> {
        self.read(move |database| database.unshipped(max_bytes, max_records)).await
    }

    /// Moves the cursor: the records up to it are shipped, and are deleted.
    ///
    /// # Errors
    /// It cannot be written: the same records are unshipped still.
    pub async fn shipped(&self, cursor: u64) -> Result<(), JournalError> {
        self.write(Write::Shipped(cursor)).await
    }

    /// The cursor behind the last record: changes when there are more to ship.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.inner.changed.clone()
    }

    /// The newest moment of acceptance among the runs with an approval that were forgotten for want of room or by age;
    /// `None` while the journal has all that ever were in it.
    #[must_use]
    pub fn forgotten_until(&self) -> Option<SystemTime> {
        self.inner.database.forgotten_until()
    }

    /// How it stands.
    #[must_use]
    pub fn figures(&self) -> JournalFigures {
        self.inner.counts.figures()
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let database = Arc::clone(&self.inner.database);
        let found = tokio::task::spawn_blocking(move || read(&database)).await;
        found.unwrap_or_else(|_| Err(self.ended()))
    }

    async fn write(&self, write: Write) -> Result<(), JournalError> {
        let (done, answer) = oneshot::channel();
        self.inner.queue.send(write, done);
        answer.await.unwrap_or_else(|_| Err(self.ended()))
    }

    fn ended(&self) -> JournalError {
        self.inner.database.broken("its thread ended")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Writes until nobody can ask for more.
fn write_all(database: &Database, ids: &Ids, queue: &Queue, counts: &Counts, tell: &watch::Sender<u64>) {
    let mut losses = Losses::default();
    while let Some(waiting) = queue.take() {
        let (writes, waiting): (Vec<_>, Vec<_>) =
            settle(waiting).into_iter().map(|Queued { write, done }| (write, done)).unzip();
        for write in &writes {
            // Before it is on the disk: an id too many costs a look at the file, one too few would cost a second run.
            match write {
                Write::Accept(entry) | Write::Note(entry) => ids.add(entry.call.id.as_str()),
                Write::End(record) if Entry::is_remembered(&record.call) => ids.add(record.call.id.as_str()),
                _ => {}
            }
        }
        match database.write(&writes) {
            Ok(Written { answers, gone, last_record, dropped, waiting: unshipped }) => {
                ids.remove(&gone);
                counts.written(unshipped, dropped);
                losses.too_old_or_much += dropped;
                tell.send_if_modified(|last| std::mem::replace(last, last_record) != last_record);
                let told = waiting.into_iter().zip(answers);
                told.for_each(|(done, answer)| drop(done.map(|done| done.send(answer))));
            }
            Err(NotWritten { error, may_pass }) => {
                // Whoever waits is told. What was noted, and how runs ended, is written when that can be done.
                waiting.into_iter().flatten().for_each(|done| drop(done.send(Err(error.clone()))));
                let not_written = if may_pass {
                    queue.put_back(writes.into_iter().filter(Write::can_wait).collect())
                } else {
                    writes.iter().filter(|write| matches!(write, Write::End(_))).count() as u64
                };
                counts.failed(not_written);
                losses.not_written += not_written;
                losses.why = Some(error);
            }
        }
        let no_room = queue.given_up();
        counts.dropped(no_room);
        losses.no_room += no_room;
        losses.say();
    }
}

/// Records that will never be shipped, until it is said.
#[derive(Debug, Default)]
struct Losses {
    too_old_or_much: u64,
    no_room: u64,
    not_written: u64,
    why: Option<JournalError>,
    said: Option<Instant>,
}

impl Losses {
    fn say(&mut self) {
        let (too_old_or_much, no_room, not_written) = (self.too_old_or_much, self.no_room, self.not_written);
        let any = too_old_or_much + no_room + not_written > 0 || self.why.is_some();
        if !any || self.said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            return;
        }
        let error = self.why.take().map(|error| error.to_string());
        if too_old_or_much + no_room + not_written == 0 {
            tracing::error!(error, "the journal cannot be written: what runs note waits in memory");
        } else {
            tracing::error!(
                error,
                too_old_or_much,
                no_room,
                not_written,
                "records of runs were dropped: the history lacks them"
            );
        }
        *self = Self { said: Some(Instant::now()), ..Self::default() };
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
fn open(directory: &Path, bounds: Bounds) -> Result<(Database, Vec<Entry>), JournalError> {
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
