//! The journal's file: which tables it has, and what one write does to them. Every call blocks.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use redb::{Builder, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _, TableDefinition};
use uuid::Uuid;

use super::record::{from_bytes, from_ms, to_bytes, to_ms};
use super::{Bounds, JournalError, Record};
use crate::run::id::RunId;
use crate::run::outcome::Outcome;

/// Records by the run's id.
const RUNS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("runs");
/// Ids by when the run was accepted, in milliseconds: the oldest go first.
const BY_AGE: TableDefinition<'_, (u64, &str), ()> = TableDefinition::new("by_age");
/// Ids of the runs that have no end.
const OPEN: TableDefinition<'_, &str, ()> = TableDefinition::new("open");
/// Facts about the journal.
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
/// The version of these tables.
const FORMAT: (&str, u64) = ("format", 1);
/// When the newest run was accepted that was forgotten; 0 for none.
const FORGOTTEN_UNTIL: &str = "forgotten_until";
/// The two halves of the journal's id.
const ID: [&str; 2] = ["id_high", "id_low"];
/// Memory for pages.
const CACHE_BYTES: usize = 1 << 20;
/// Most records that one write looks at to forget some.
const MAX_FORGET: usize = 512;

/// A change of the journal.
#[derive(Debug)]
pub(super) enum Write {
    /// A run was accepted.
    Accept(Box<Record>),
    /// A run ended.
    End(RunId, Outcome),
    /// A run was not started.
    Forget(RunId),
}

/// The file, open.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    database: redb::Database,
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
}

/// Makes an empty one.
pub(super) fn create(path: &Path) -> Result<(), JournalError> {
    let make = || -> Result<(), redb::Error> {
        let database = builder().create(path)?;
        let write = database.begin_write()?;
        write.open_table(RUNS)?;
        write.open_table(BY_AGE)?;
        write.open_table(OPEN)?;
        write.open_table(FACTS)?.insert(FORMAT.0, FORMAT.1)?;
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
    /// Opens one that is there, checks every page of it, and notes what was lost: the ids of these runs.
    pub(super) fn open(path: PathBuf, bounds: Bounds) -> Result<(Self, Vec<RunId>), JournalError> {
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
        let mut this =
            Self { path: path.clone(), database, bounds, id: String::new(), forgotten_until: AtomicU64::new(0) };
        let (lost, id) = this.close_the_open().map_err(|error| corrupt(error.to_string()))?;
        this.id = id;
        // A write forgets some; what is left is forgotten by those that follow.
        this.write(&[])?;
        Ok((this, lost))
    }

    /// What is to be done once at the start, in one step: the runs that were lost, and the journal's id, which one that
    /// was made before there were ids gets now.
    fn close_the_open(&self) -> Result<(Vec<RunId>, String), Fault> {
        let write = self.database.begin_write()?;
        let mut lost = Vec::new();
        let id;
        {
            let mut facts = write.open_table(FACTS)?;
            let format = facts.get(FORMAT.0)?.map(|value| value.value());
            if format != Some(FORMAT.1) {
                return Err(Fault::Format { found: format.unwrap_or_default(), expected: FORMAT.1 });
            }
            let forgotten = facts.get(FORGOTTEN_UNTIL)?.map_or(0, |value| value.value());
            self.forgotten_until.store(forgotten, Ordering::Relaxed);
            let halves = ID.map(|half| facts.get(half).map(|value| value.map(|value| value.value())));
            id = match halves {
                [Ok(Some(high)), Ok(Some(low))] => Uuid::from_u64_pair(high, low),
                [Err(error), _] | [_, Err(error)] => return Err(error.into()),
                _ => {
                    let new = Uuid::new_v4();
                    let (high, low) = new.as_u64_pair();
                    facts.insert(ID[0], high)?;
                    facts.insert(ID[1], low)?;
                    new
                }
            };
            let (mut runs, mut open) = (write.open_table(RUNS)?, write.open_table(OPEN)?);
            for id in open.iter()? {
                lost.push(id_of(id?.0.value())?);
            }
            for id in &lost {
                let bytes = runs.get(id.as_str())?.map(|bytes| bytes.value().to_vec());
                let bytes = bytes.ok_or_else(|| Fault::Record(format!("run {id} has no record")))?;
                let mut record = from_bytes(id.clone(), &bytes).map_err(Fault::Record)?;
                record.outcome = Some(Outcome::Lost);
                runs.insert(id.as_str(), to_bytes(&record).map_err(Fault::Record)?.as_slice())?;
                open.remove(id.as_str())?;
            }
        }
        write.commit()?;
        Ok((lost, id.simple().to_string()))
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn forgotten_until(&self) -> Option<SystemTime> {
        match self.forgotten_until.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(from_ms(ms)),
        }
    }

    pub(super) fn broken(&self, why: impl ToString) -> JournalError {
        JournalError::Broken { path: self.path.clone(), why: why.to_string() }
    }

    pub(super) fn each_id(&self, mut each: impl FnMut(&str)) -> Result<(), JournalError> {
        let mut read = || -> Result<(), Fault> {
            let read = self.database.begin_read()?;
            for run in read.open_table(RUNS)?.iter()? {
                each(run?.0.value());
            }
            Ok(())
        };
        read().map_err(|error| self.broken(error))
    }

    pub(super) fn find(&self, id: &RunId) -> Result<Option<Record>, JournalError> {
        let read = || -> Result<Option<Record>, Fault> {
            let read = self.database.begin_read()?;
            let bytes = read.open_table(RUNS)?.get(id.as_str())?;
            bytes.map(|bytes| from_bytes(id.clone(), bytes.value()).map_err(Fault::Record)).transpose()
        };
        read().map_err(|error| self.broken(error))
    }

    /// All of them in one step, on the disk when this returns.
    pub(super) fn write(&self, writes: &[Write]) -> Result<Written, JournalError> {
        let apply = || -> Result<Written, Fault> {
            let transaction = self.database.begin_write()?;
            let (written, forgotten) = {
                let mut tables = Tables {
                    runs: transaction.open_table(RUNS)?,
                    by_age: transaction.open_table(BY_AGE)?,
                    open: transaction.open_table(OPEN)?,
                    gone: Vec::new(),
                };
                let answers = writes.iter().map(|write| tables.apply(write)).collect::<Result<Vec<_>, _>>()?;
                let forgotten =
                    tables.forget_the_oldest(self.bounds)?.max(self.forgotten_until.load(Ordering::Relaxed));
                transaction.open_table(FACTS)?.insert(FORGOTTEN_UNTIL, forgotten)?;
                (Written { answers, gone: tables.gone }, forgotten)
            };
            // Before the commit: a run that is forgotten after all is one that is asked about too much.
            self.forgotten_until.store(forgotten, Ordering::Relaxed);
            transaction.commit()?;
            Ok(written)
        };
        apply().map_err(|error| self.broken(error))
    }
}

struct Tables<'a> {
    runs: redb::Table<'a, &'static str, &'static [u8]>,
    by_age: redb::Table<'a, (u64, &'static str), ()>,
    open: redb::Table<'a, &'static str, ()>,
    gone: Vec<String>,
}

impl Tables<'_> {
    fn record(&self, id: &RunId) -> Result<Option<Record>, Fault> {
        let bytes = self.runs.get(id.as_str())?;
        bytes.map(|bytes| from_bytes(id.clone(), bytes.value()).map_err(Fault::Record)).transpose()
    }

    fn put(&mut self, record: &Record) -> Result<(), Fault> {
        self.runs.insert(record.id.as_str(), to_bytes(record).map_err(Fault::Record)?.as_slice())?;
        self.by_age.insert((to_ms(record.accepted_at), record.id.as_str()), ())?;
        match record.outcome {
            None => self.open.insert(record.id.as_str(), ())?,
            Some(_) => self.open.remove(record.id.as_str())?,
        };
        Ok(())
    }

    fn remove(&mut self, record: &Record) -> Result<(), Fault> {
        self.runs.remove(record.id.as_str())?;
        self.by_age.remove((to_ms(record.accepted_at), record.id.as_str()))?;
        self.open.remove(record.id.as_str())?;
        Ok(())
    }

    /// A record without an end is of a run that was not started, when another of its id is accepted: the run table has one
    /// run of an id at a time. One with an end stays as it is.
    fn apply(&mut self, write: &Write) -> Result<Result<(), JournalError>, Fault> {
        match write {
            Write::Accept(record) => match self.record(&record.id)? {
                Some(Record { outcome: Some(_), id, .. }) => return Ok(Err(JournalError::Known(id))),
                before => {
                    before.map_or(Ok(()), |before| self.remove(&before))?;
                    self.put(record)?;
                    self.gone.retain(|gone| gone != record.id.as_str());
                }
            },
            Write::End(id, outcome) => {
                if let Some(record @ Record { outcome: None, .. }) = self.record(id)? {
                    self.put(&Record { outcome: Some(*outcome), ..record })?;
                }
            }
            Write::Forget(id) => {
                if let Some(record @ Record { outcome: None, .. }) = self.record(id)? {
                    self.remove(&record)?;
                    self.gone.push(id.to_string());
                }
            }
        }
        Ok(Ok(()))
    }

    /// Forgets what is too old or too much, and says when the newest of it was accepted.
    fn forget_the_oldest(&mut self, bounds: Bounds) -> Result<u64, Fault> {
        let too_old = SystemTime::now().checked_sub(bounds.age).map_or(0, to_ms);
        let mut too_many = self.runs.len()?.saturating_sub(bounds.runs);
        let (mut newest, mut gone) = (0, Vec::new());
        for entry in self.by_age.iter()?.take(MAX_FORGET) {
            let key = entry?.0;
            let (accepted, id) = key.value();
            if accepted >= too_old && too_many == 0 {
                break;
            }
            if self.open.get(id)?.is_none() {
                too_many = too_many.saturating_sub(1);
                newest = accepted;
                gone.push((accepted, id.to_owned()));
            }
        }
        for (accepted, id) in gone {
            self.runs.remove(id.as_str())?;
            self.by_age.remove((accepted, id.as_str()))?;
            self.gone.push(id);
        }
        Ok(newest)
    }
}

fn id_of(text: &str) -> Result<RunId, Fault> {
    text.parse().map_err(|_| Fault::Record(format!("{text:?} is no id of a run")))
}

/// What goes wrong in the database.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Database(#[from] redb::Error),
    #[error("{0}")]
    Record(String),
    #[error("it has format {found}, and this version reads format {expected}: use the version that wrote it")]
    Format { found: u64, expected: u64 },
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

/// Makes a file what it was before journals had ids.
#[cfg(test)]
pub(super) fn forget_the_id(path: &Path) {
    let begun = std::time::Instant::now();
    let database = loop {
        match builder().open(path) {
            Ok(database) => break database,
            Err(error) => assert!(begun.elapsed().as_secs() < 30, "{error}"),
        }
        std::thread::yield_now();
    };
    let write = database.begin_write().unwrap();
    for half in ID {
        write.open_table(FACTS).unwrap().remove(half).unwrap().unwrap();
    }
    write.commit().unwrap();
}
