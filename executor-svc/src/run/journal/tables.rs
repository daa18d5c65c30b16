//! The journal's tables, and what one write does to them.

use std::time::SystemTime;

use redb::{ReadableTable as _, ReadableTableMetadata as _, TableDefinition, WriteTransaction};

use super::database::{Fault, Waiting, Write};
use super::raw::{entry_from_bytes, entry_to_bytes, record_from_bytes, record_to_bytes, to_ns};
use super::record::{Entry, RunRecord};
use super::{Bounds, JournalError};
use crate::run::call::Step;
use crate::run::id::RunId;
use crate::run::outcome::Outcome;

/// What is remembered of runs, by the run's id: of those that go on, and of those whose id may come again.
pub(super) const RUNS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("runs");
/// Ids of the runs that have no end.
pub(super) const OPEN: TableDefinition<'_, &str, ()> = TableDefinition::new("open");
/// Ids of ended runs that needed an approval, by when they were accepted: the oldest are forgotten first.
const APPROVED_BY_AGE: TableDefinition<'_, (u64, &str), ()> = TableDefinition::new("approved_by_age");
/// The same of safe runs, which push out no others.
const SAFE_BY_AGE: TableDefinition<'_, (u64, &str), ()> = TableDefinition::new("safe_by_age");
/// The records that are to be shipped, numbered in the order in which their runs ended, with when that was.
pub(super) const RECORDS: TableDefinition<'_, u64, (u64, &[u8])> = TableDefinition::new("records");
/// Facts about the journal.
pub(super) const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");

/// The version of these tables.
pub(super) const FORMAT: (&str, u64) = ("format", 2);
/// The two halves of the journal's id.
pub(super) const ID: [&str; 2] = ["id_high", "id_low"];
/// When the newest run with an approval was accepted that was forgotten; 0 for none.
pub(super) const FORGOTTEN_UNTIL: &str = "forgotten_until";
/// The number of the last record that was made, and of the last that was shipped.
pub(super) const LAST_RECORD: &str = "last_record";
pub(super) const SHIPPED: &str = "shipped";
/// What the records take.
pub(super) const RECORD_BYTES: &str = "record_bytes";
/// Most things that one write looks at to forget some.
const MAX_FORGET: usize = 512;

type ByAge<'a> = redb::Table<'a, (u64, &'static str), ()>;

/// All tables, in one transaction.
pub(super) struct Tables<'a> {
    runs: redb::Table<'a, &'static str, &'static [u8]>,
    open: redb::Table<'a, &'static str, ()>,
    approved_by_age: ByAge<'a>,
    safe_by_age: ByAge<'a>,
    records: redb::Table<'a, u64, (u64, &'static [u8])>,
    facts: redb::Table<'a, &'static str, u64>,
    pub(super) last_record: u64,
    record_bytes: u64,
    /// Runs that are no longer in the file.
    pub(super) gone: Vec<String>,
    /// Records that were dropped before they were shipped.
    pub(super) dropped: u64,
}

impl<'a> Tables<'a> {
    /// Opens them, and makes those that are missing.
    pub(super) fn open(transaction: &'a WriteTransaction) -> Result<Self, Fault> {
        let facts = transaction.open_table(FACTS)?;
        let fact = |name| Ok::<_, Fault>(facts.get(name)?.map_or(0, |value| value.value()));
        Ok(Self {
            runs: transaction.open_table(RUNS)?,
            open: transaction.open_table(OPEN)?,
            approved_by_age: transaction.open_table(APPROVED_BY_AGE)?,
            safe_by_age: transaction.open_table(SAFE_BY_AGE)?,
            records: transaction.open_table(RECORDS)?,
            last_record: fact(LAST_RECORD)?,
            record_bytes: fact(RECORD_BYTES)?,
            facts,
            gone: Vec::new(),
            dropped: 0,
        })
    }

    /// Ends every run that has no end as LOST.
    pub(super) fn close_the_open(&mut self) -> Result<Vec<Entry>, Fault> {
        let ids = self.open.iter()?.map(|id| Ok(id?.0.value().to_owned())).collect::<Result<Vec<_>, Fault>>()?;
        let mut lost = Vec::new();
        for id in ids {
            let entry = self.entry(&id)?.ok_or_else(|| Fault::Record(format!("run {id} has no record")))?;
            self.end(&RunRecord {
                call: entry.call.clone(),
                started_at: entry.started_at,
                finished_at: SystemTime::now(),
                finished: entry.lost().into(),
                stderr: String::new(),
            })?;
            lost.push(entry);
        }
        Ok(lost)
    }

    /// An entry without an end is of a run that was not started, when another of its id is accepted: the run table has one
    /// run of an id at a time. One with an end stays as it is.
    pub(super) fn apply(&mut self, write: &Write) -> Result<Result<(), JournalError>, Fault> {
        match write {
            Write::Accept(entry) | Write::Note(entry) => {
                let id = &entry.call.id;
                if self.entry(id.as_str())?.is_some_and(|before| before.outcome.is_some()) {
                    return Ok(Err(JournalError::Known(id.clone())));
                }
                self.put(entry)?;
                self.open.insert(id.as_str(), ())?;
                self.gone.retain(|gone| gone != id.as_str());
            }
            Write::Approved(id) => self.step(id, Step::Approved, None)?,
            Write::Started(id, at) => self.step(id, Step::Started, Some(*at))?,
            Write::End(record) => self.end(record)?,
            Write::Forget(id) => {
                if self.open.remove(id.as_str())?.is_some() {
                    self.runs.remove(id.as_str())?;
                    self.gone.push(id.to_string());
                }
            }
            Write::Shipped(cursor) => self.shipped(*cursor)?,
            Write::Nothing => {}
        }
        Ok(Ok(()))
    }

    /// Forgets what is too old or too much, and writes down the facts; returns until when runs with an approval are
    /// forgotten.
    pub(super) fn bound(&mut self, bounds: Bounds, forgotten_until: u64) -> Result<u64, Fault> {
        let too_old = SystemTime::now().checked_sub(bounds.age).map_or(0, to_ns);
        let (approved, safe) = (&mut self.approved_by_age, &mut self.safe_by_age);
        let newest = forget(&mut self.runs, approved, too_old, bounds.runs, &mut self.gone)?;
        forget(&mut self.runs, safe, too_old, bounds.runs, &mut self.gone)?;
        let forgotten_until = forgotten_until.max(newest);
        for _ in 0..MAX_FORGET {
            let Some(first) = self.records.first()? else { break };
            let (seq, ended, bytes) = (first.0.value(), first.1.value().0, first.1.value().1.len() as u64);
            drop(first);
            if ended >= too_old && self.record_bytes <= bounds.record_bytes {
                break;
            }
            self.records.remove(seq)?;
            self.record_bytes = self.record_bytes.saturating_sub(bytes);
            self.dropped += 1;
        }
        self.facts.insert(FORGOTTEN_UNTIL, forgotten_until)?;
        self.facts.insert(LAST_RECORD, self.last_record)?;
        self.facts.insert(RECORD_BYTES, self.record_bytes)?;
        Ok(forgotten_until)
    }

    /// What is not shipped.
    pub(super) fn waiting(&self) -> Result<Waiting, Fault> {
        Ok(Waiting { records: self.records.len()?, bytes: self.record_bytes })
    }

    fn entry(&self, id: &str) -> Result<Option<Entry>, Fault> {
        let bytes = self.runs.get(id)?;
        bytes.map(|bytes| entry_from_bytes(id, bytes.value()).map_err(Fault::Record)).transpose()
    }

    fn put(&mut self, entry: &Entry) -> Result<(), Fault> {
        self.runs.insert(entry.call.id.as_str(), entry_to_bytes(entry).map_err(Fault::Record)?.as_slice())?;
        Ok(())
    }

    fn step(&mut self, id: &RunId, step: Step, started_at: Option<SystemTime>) -> Result<(), Fault> {
        if let Some(entry @ Entry { outcome: None, .. }) = self.entry(id.as_str())? {
            self.put(&Entry { step, started_at, ..entry })?;
        }
        Ok(())
    }

    fn end(&mut self, record: &RunRecord) -> Result<(), Fault> {
        let call = &record.call;
        let was_open = self.open.remove(call.id.as_str())?.is_some();
        if Entry::is_remembered(call) {
            let before = if was_open { None } else { self.runs.get(call.id.as_str())? };
            if before.is_none() {
                drop(before);
                let step = match (record.started_at, record.finished.outcome) {
                    (Some(_), _) => Step::Started,
                    // What is remembered of one that was LOST tells what it may have done.
                    (None, Outcome::Lost) => self.entry(call.id.as_str())?.map_or(Step::Accepted, |entry| entry.step),
                    (None, _) => Step::Accepted,
                };
                let outcome = Some(record.finished.outcome);
                self.put(&Entry { call: call.clone(), step, started_at: record.started_at, outcome })?;
                let by_age = if call.needs_approval { &mut self.approved_by_age } else { &mut self.safe_by_age };
                by_age.insert((to_ns(call.accepted_at), call.id.as_str()), ())?;
                self.gone.retain(|gone| gone != call.id.as_str());
            }
        } else if was_open {
            self.runs.remove(call.id.as_str())?;
            self.gone.push(call.id.to_string());
        }
        let bytes = record_to_bytes(record).map_err(Fault::Record)?;
        self.last_record += 1;
        self.record_bytes += bytes.len() as u64;
        self.records.insert(self.last_record, (to_ns(record.finished_at), bytes.as_slice()))?;
        Ok(())
    }

    fn shipped(&mut self, cursor: u64) -> Result<(), Fault> {
        let cursor = cursor.min(self.last_record);
        if cursor <= self.facts.get(SHIPPED)?.map_or(0, |value| value.value()) {
            return Ok(());
        }
        self.facts.insert(SHIPPED, cursor)?;
        let mut freed = 0;
        for shipped in self.records.extract_from_if(..=cursor, |_, _| true)? {
            freed += shipped?.1.value().1.len() as u64;
        }
        self.record_bytes = self.record_bytes.saturating_sub(freed);
        Ok(())
    }
}

/// Forgets the oldest runs that have ended, and says when the newest of them was accepted.
fn forget(
    runs: &mut redb::Table<'_, &'static str, &'static [u8]>,
    by_age: &mut ByAge<'_>,
    too_old: u64,
    most: u64,
    gone: &mut Vec<String>,
) -> Result<u64, Fault> {
    let mut too_many = by_age.len()?.saturating_sub(most);
    let (mut newest, mut oldest) = (0, Vec::new());
    for entry in by_age.iter()?.take(MAX_FORGET) {
        let key = entry?.0;
        let (accepted, id) = key.value();
        if accepted >= too_old && too_many == 0 {
            break;
        }
        too_many = too_many.saturating_sub(1);
        newest = accepted;
        oldest.push((accepted, id.to_owned()));
    }
    for (accepted, id) in oldest {
        runs.remove(id.as_str())?;
        by_age.remove((accepted, id.as_str()))?;
        gone.push(id);
    }
    Ok(newest)
}

/// Reads records from after one on: as many as fit, and one at least where there is one.
pub(super) fn read_records(
    records: &impl redb::ReadableTable<u64, (u64, &'static [u8])>,
    after: u64,
    max_bytes: usize,
    max_records: usize,
) -> Result<(Vec<RunRecord>, u64), Fault> {
    let (mut found, mut cursor, mut bytes) = (Vec::new(), after, 0);
    for entry in records.range(after + 1..)?.take(max_records.max(1)) {
        let (seq, value) = entry?;
        bytes += value.value().1.len();
        if bytes > max_bytes && !found.is_empty() {
            break;
        }
        cursor = seq.value();
        found.push(record_from_bytes(cursor, value.value().1).map_err(Fault::Record)?);
    }
    Ok((found, cursor))
}
