//! The journal's file, open: what is read from it, and how writes get to the disk. A disk that failed once, as a full one
//! does, closes it; it is opened again with a later write. Every call blocks.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use redb::{Builder, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _};

use super::raw::{entry_from_bytes, from_ns};
use super::record::{Entry, RunRecord};
use super::tables::{
    FACTS, FORGOTTEN_UNTIL, FORMAT, ID, LAST_RECORD, RECORD_BYTES, RECORDS, RUNS, SHIPPED, Tables, read_records,
};
use super::{Bounds, JournalError};
use crate::run::id::RunId;

/// Memory for pages.
const CACHE_BYTES: usize = 4 << 20;

/// How often it is opened again at the most while the disk fails.
const REOPEN_EVERY: Duration = Duration::from_secs(1);

/// A change of the journal.
#[derive(Debug)]
pub(super) enum Write {
    /// A run with an approval was accepted.
    Accept(Box<Entry>),
    /// A safe run was accepted.
    Note(Box<Entry>),
    /// A run's approval was used.
    Approved(RunId),
    /// A run was started.
    Started(RunId, SystemTime),
    /// A run ended.
    End(Box<RunRecord>),
    /// A run was not started.
    Forget(RunId),
    /// The records up to this one are with the registry.
    Shipped(u64),
    /// Waits for what was asked for before.
    Nothing,
}

impl Write {
    /// Whether nobody's run depends on when it is written.
    pub(super) fn can_wait(&self) -> bool {
        match self {
            Self::Note(_) | Self::Started(..) | Self::End(_) | Self::Forget(_) => true,
            // Whoever asked for these does without, or asks again.
            Self::Accept(_) | Self::Approved(_) | Self::Shipped(_) | Self::Nothing => false,
        }
    }
}

/// The file, open.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    /// `None` while it cannot be opened again.
    database: RwLock<Option<redb::Database>>,
    /// When it was opened again, or that was tried.
    reopened: Mutex<Option<Instant>>,
    bounds: Bounds,
    id: String,
    forgotten_until: AtomicU64,
}

/// What became of some writes.
#[derive(Debug)]
pub(super) struct Written {
    /// One each, in their order.
    pub(super) answers: Vec<Result<(), JournalError>>,
    /// The runs that are no longer in the file.
    pub(super) gone: Vec<String>,
    /// The number of the last record.
    pub(super) last_record: u64,
    /// Records that were dropped before they were shipped.
    pub(super) dropped: u64,
    /// What waits to be shipped now.
    pub(super) waiting: Waiting,
}

/// Records that are not shipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

/// Makes an empty one.
pub(super) fn create(path: &Path) -> Result<(), JournalError> {
    let make = || -> Result<(), Fault> {
        let database = builder().create(path).map_err(redb::Error::from)?;
        let write = database.begin_write()?;
        drop(Tables::open(&write)?);
        {
            let mut facts = write.open_table(FACTS)?;
            facts.insert(FORMAT.0, FORMAT.1)?;
            let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
            facts.insert(ID[0], high)?;
            facts.insert(ID[1], low)?;
        }
        Ok(write.commit()?)
    };
    make().map_err(|error| JournalError::Io { what: "create", path: path.to_owned(), why: error.to_string() })
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

impl Database {
    /// Opens one that is there, checks every page of it, and ends the runs that have no end as LOST: these.
    pub(super) fn open(path: PathBuf, bounds: Bounds) -> Result<(Self, Vec<Entry>), JournalError> {
        let corrupt = |why: String| JournalError::Corrupt { path: path.clone(), why };
        let database = builder().set_check_integrity_on_open(true).open(&path).map_err(|error| match error {
            redb::DatabaseError::Storage(redb::StorageError::Io(source))
                if !matches!(
                    source.kind(),
                    std::io::ErrorKind::InvalidData
                        | std::io::ErrorKind::UnexpectedEof
                        | std::io::ErrorKind::InvalidInput
                ) =>
            {
                JournalError::Io { what: "open", path: path.clone(), why: source.to_string() }
            }
            redb::DatabaseError::DatabaseAlreadyOpen => {
                let why = "another process, or another executor in this one, has it open".to_owned();
                JournalError::Io { what: "open", path: path.clone(), why }
            }
            other => corrupt(other.to_string()),
        })?;
        let (id, forgotten_until, lost) = take_over(&database, bounds).map_err(|error| corrupt(error.to_string()))?;
        let forgotten_until = AtomicU64::new(forgotten_until);
        let (database, reopened) = (RwLock::new(Some(database)), Mutex::default());
        Ok((Self { path, database, reopened, bounds, id, forgotten_until }, lost))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn forgotten_until(&self) -> Option<SystemTime> {
        match self.forgotten_until.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(from_ns(ns)),
        }
    }

    pub(super) fn broken(&self, why: impl ToString) -> JournalError {
        JournalError::Broken { path: self.path.clone(), why: why.to_string() }
    }

    pub(super) fn each_id(&self, mut each: impl FnMut(&str)) -> Result<(), JournalError> {
        self.read(|database| {
            let read = database.begin_read()?;
            for run in read.open_table(RUNS)?.iter()? {
                each(run?.0.value());
            }
            Ok(())
        })
    }

    pub(super) fn last_record(&self) -> Result<u64, JournalError> {
        self.read(|database| {
            let read = database.begin_read()?;
            Ok(read.open_table(FACTS)?.get(LAST_RECORD)?.map_or(0, |value| value.value()))
        })
    }

    pub(super) fn waiting(&self) -> Result<Waiting, JournalError> {
        self.read(|database| {
            let read = database.begin_read()?;
            let bytes = read.open_table(FACTS)?.get(RECORD_BYTES)?.map_or(0, |value| value.value());
            Ok(Waiting { records: read.open_table(RECORDS)?.len()?, bytes })
        })
    }

    pub(super) fn find(&self, id: &RunId) -> Result<Option<Entry>, JournalError> {
        self.read(|database| {
            let read = database.begin_read()?;
            let bytes = read.open_table(RUNS)?.get(id.as_str())?;
            bytes.map(|bytes| entry_from_bytes(id.as_str(), bytes.value()).map_err(Fault::Record)).transpose()
        })
    }

    pub(super) fn unshipped(
        &self,
        max_bytes: usize,
        max_records: usize,
    ) -> Result<(Vec<RunRecord>, u64), JournalError> {
        self.read(|database| {
            let read = database.begin_read()?;
            let shipped = read.open_table(FACTS)?.get(SHIPPED)?.map_or(0, |value| value.value());
            read_records(&read.open_table(RECORDS)?, shipped, max_bytes, max_records)
        })
    }

    fn read<T>(&self, read: impl FnOnce(&redb::Database) -> Result<T, Fault>) -> Result<T, JournalError> {
        let open = self.database.read().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().ok_or(Fault::Closed).and_then(read).map_err(|error| self.broken(error))
    }

    /// All of them in one step, on the disk when this returns.
    ///
    /// After an error of the disk they may be there or not, and the database takes no more: it is opened again, and they
    /// are written again. Twice they do as once; only a record may then have two numbers, and the registry keeps one.
    pub(super) fn write(&self, writes: &[Write]) -> Result<Written, NotWritten> {
        let written = match self.apply(writes) {
            Err(fault) if fault.is_of_the_disk() && self.reopen() => self.apply(writes),
            written => written,
        };
        written.map_err(|fault| NotWritten { may_pass: fault.is_of_the_disk(), error: self.broken(fault) })
    }

    fn apply(&self, writes: &[Write]) -> Result<Written, Fault> {
        let open = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let transaction = open.as_ref().ok_or(Fault::Closed)?.begin_write()?;
        let (written, forgotten) = {
            let mut tables = Tables::open(&transaction)?;
            let answers = writes.iter().map(|write| tables.apply(write)).collect::<Result<Vec<_>, _>>()?;
            let forgotten = tables.bound(self.bounds, self.forgotten_until.load(Ordering::Relaxed))?;
            let waiting = tables.waiting()?;
            let (gone, last_record, dropped) = (tables.gone, tables.last_record, tables.dropped);
            (Written { answers, gone, last_record, dropped, waiting }, forgotten)
        };
        // Before the commit: a run that is forgotten after all is one that is asked about too much.
        self.forgotten_until.store(forgotten, Ordering::Relaxed);
        transaction.commit()?;
        Ok(written)
    }

    /// Whether it could be opened again. Runs go on: none of them is LOST by this.
    fn reopen(&self) -> bool {
        let mut reopened = self.reopened.lock().unwrap_or_else(PoisonError::into_inner);
        if reopened.is_some_and(|at| at.elapsed() < REOPEN_EVERY) {
            return false;
        }
        *reopened = Some(Instant::now());
        let mut open = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // It holds a lock on the file.
        *open = None;
        let again = std::thread::scope(|scope| scope.spawn(|| builder().open(&self.path)).join());
        match again {
            Ok(Ok(database)) => {
                tracing::info!(path = %self.path.display(), "the journal's disk failed; it is opened again");
                *open = Some(database);
            }
            Ok(Err(error)) => {
                tracing::error!(%error, path = %self.path.display(), "the journal cannot be opened again")
            }
            Err(_) => tracing::error!(path = %self.path.display(), "the database gave up over the journal"),
        }
        open.is_some()
    }
}

/// The journal's id, until when runs are forgotten, and those that had no end and are LOST now.
fn take_over(database: &redb::Database, bounds: Bounds) -> Result<(String, u64, Vec<Entry>), Fault> {
    let write = database.begin_write()?;
    let (id, forgotten_until) = {
        let facts = write.open_table(FACTS)?;
        let fact = |name| Ok::<_, Fault>(facts.get(name)?.map(|value| value.value()));
        let format = fact(FORMAT.0)?;
        if format != Some(FORMAT.1) {
            return Err(Fault::Format { found: format.unwrap_or_default(), expected: FORMAT.1 });
        }
        let id = (fact(ID[0])?, fact(ID[1])?);
        let (Some(high), Some(low)) = id else { return Err(Fault::Record("it has no id".to_owned())) };
        (format!("{high:016x}{low:016x}"), fact(FORGOTTEN_UNTIL)?.unwrap_or_default())
    };
    let (lost, forgotten_until) = {
        let mut tables = Tables::open(&write)?;
        let lost = tables.close_the_open()?;
        // Some is forgotten here; what is left is forgotten by the writes that follow.
        let forgotten_until = tables.bound(bounds, forgotten_until)?;
        (lost, forgotten_until)
    };
    write.commit()?;
    Ok((id, forgotten_until, lost))
}

/// Why writes are not on the disk.
#[derive(Debug)]
pub(super) struct NotWritten {
    /// For people.
    pub(super) error: JournalError,
    /// Whether the same may be written later.
    pub(super) may_pass: bool,
}

/// What goes wrong in the database.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Database(#[from] redb::Error),
    #[error("{0}")]
    Record(String),
    #[error("its disk failed, and it could not be opened again yet")]
    Closed,
    #[error("it has format {found}, and this version reads format {expected}: use the version that wrote it")]
    Format { found: u64, expected: u64 },
}

impl Fault {
    /// Whether the disk failed, and not what is on it.
    fn is_of_the_disk(&self) -> bool {
        matches!(self, Self::Closed | Self::Database(redb::Error::Io(_) | redb::Error::PreviousIo))
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for Fault {
            fn from(error: redb::$error) -> Self {
                Self::Database(error.into())
            }
        }
    )*};
}

from_redb!(TransactionError, TableError, StorageError, CommitError);
