//! Which records, and in which order: newest first, from a place on. Where labels are asked for, their index leads.

use std::time::SystemTime;

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};
use tokio_stream::StreamExt as _;

use super::key::{column, label, to_nanos};
use crate::store::{Store, StoreError};

/// Conditions that must all be met; what is `None` or empty is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The run.
    pub run_id: Option<String>,
    /// The skill.
    pub skill: Option<String>,
    /// The agent.
    pub agent: Option<String>,
    /// The name of the executor.
    pub executor: Option<String>,
    /// Whose run it is.
    pub caller: Option<String>,
    /// How it ended, as the API counts.
    pub outcome: Option<i32>,
    /// Accepted then or later.
    pub since: Option<SystemTime>,
    /// Accepted before.
    pub until: Option<SystemTime>,
    /// With all of these.
    pub labels: Vec<(String, String)>,
}

/// A record's place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    accepted_at: i64,
    run_id: String,
    journal_id: String,
}

/// A record that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its place.
    pub position: Position,
    /// Who handed it in.
    pub identity: String,
    /// As it was handed in.
    pub bytes: Vec<u8>,
}

impl Position {
    /// For a token.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.accepted_at.to_be_bytes().to_vec();
        // Neither id has a blank.
        bytes.extend(format!("{} {}", self.run_id, self.journal_id).into_bytes());
        bytes
    }

    /// Of a token; `None` of one that was made up.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (accepted_at, ids) = bytes.split_first_chunk()?;
        let (run_id, journal_id) = std::str::from_utf8(ids).ok()?.split_once(' ')?;
        let (run_id, journal_id) = (run_id.to_owned(), journal_id.to_owned());
        let whole = !run_id.contains('\0') && !journal_id.contains('\0');
        whole.then(|| Self { accepted_at: i64::from_be_bytes(*accepted_at), run_id, journal_id })
    }
}

impl Store {
    /// Records after a place, newest first: as many as `limit`, and no more once they have `max_bytes`.
    ///
    /// # Errors
    /// The database failed.
    pub async fn records(
        &self,
        filter: &Filter,
        after: Option<&Position>,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        let Select { sql, binds } = Select::new(filter, after, limit, self.inner.is_local);
        // Made of texts of ours alone; values are bound.
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for bind in binds {
            query = match bind {
                Bind::Text(text) => query.bind(text),
                Bind::Number(number) => query.bind(number),
            };
        }
        let mut connection = self.pool().await?.acquire().await?;
        let mut rows = query.fetch(&mut *connection);
        let (mut found, mut bytes) = (Vec::new(), 0);
        while bytes <= max_bytes
            && let Some(row) = rows.next().await
        {
            let stored = stored(&row?)?;
            bytes += stored.bytes.len();
            found.push(stored);
        }
        Ok(found)
    }
}

fn stored(row: &AnyRow) -> Result<Stored, StoreError> {
    let (accepted_at, run_id, journal_id) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let position = Position { accepted_at, run_id, journal_id };
    Ok(Stored { position, identity: row.try_get(3)?, bytes: row.try_get(4)? })
}

struct Select {
    sql: String,
    binds: Vec<Bind>,
}

#[derive(Debug, PartialEq, Eq)]
enum Bind {
    Text(String),
    Number(i64),
}

impl Select {
    /// `is_local`: for SQLite, which goes through the left side of a CROSS JOIN first, in the order of its index, and stops
    /// with the page. PostgreSQL takes the places of too many labels for few, and joins them all: it is given the places of
    /// one label in their order, and no more than the page has where nothing else is asked of a record.
    fn new(filter: &Filter, after: Option<&Position>, limit: usize, is_local: bool) -> Self {
        let mut select = Self { sql: String::new(), binds: Vec::new() };
        let columns = "SELECT r.accepted_at, r.run_id, r.journal_id, r.identity, r.record FROM";
        let same = |a: &str, b: &str| {
            format!("{a}.accepted_at = {b}.accepted_at AND {a}.run_id = {b}.run_id AND {a}.journal_id = {b}.journal_id")
        };
        let lead = if filter.labels.is_empty() { "r" } else { "l" };
        let order = format!(" ORDER BY {lead}.accepted_at DESC, {lead}.run_id DESC, {lead}.journal_id DESC");
        let places = select.places(filter, after, lead, &same);
        let more = select.conditions(filter);
        let limit = select.place(Bind::Number(limit.try_into().unwrap_or(i64::MAX)));
        let from = match (lead, is_local) {
            ("r", _) => format!("run_records r WHERE 1 = 1{places}{more}"),
            (_, true) => format!("run_labels l CROSS JOIN run_records r WHERE {}{places}{more}", same("l", "r")),
            (_, false) => {
                let fence = if more.is_empty() { format!("LIMIT {limit}") } else { "OFFSET 0".to_owned() };
                format!(
                    "(SELECT l.accepted_at, l.run_id, l.journal_id FROM run_labels l WHERE 1 = 1{places}{order} {fence}) l \
                     CROSS JOIN run_records r WHERE {}{more}",
                    same("l", "r")
                )
            }
        };
        select.sql = format!("{columns} {from}{order} LIMIT {limit}");
        select
    }

    /// What is asked of a place in the order: its labels, its time, and that it comes after another.
    fn places(
        &mut self,
        filter: &Filter,
        after: Option<&Position>,
        lead: &str,
        same: &impl Fn(&str, &str) -> String,
    ) -> String {
        let mut sql = String::new();
        let mut labels = filter.labels.iter().map(|(name, value)| label(name, value));
        if let Some(first) = labels.next() {
            sql += &format!(" AND l.label = {}", self.place(Bind::Text(first)));
        }
        for other in labels {
            let place = self.place(Bind::Text(other));
            let same = same("o", lead);
            sql += &format!(" AND EXISTS (SELECT 1 FROM run_labels o WHERE o.label = {place} AND {same})");
        }
        for (sign, time) in [(">=", filter.since), ("<", filter.until)] {
            if let Some(time) = time {
                sql += &format!(" AND {lead}.accepted_at {sign} {}", self.place(Bind::Number(to_nanos(time))));
            }
        }
        if let Some(Position { accepted_at, run_id, journal_id }) = after {
            let at = self.place(Bind::Number(*accepted_at));
            let run = self.place(Bind::Text(run_id.clone()));
            let journal = self.place(Bind::Text(journal_id.clone()));
            sql += &format!(
                " AND {lead}.accepted_at <= {at} AND ({lead}.accepted_at < {at} OR {lead}.run_id < {run} \
                 OR ({lead}.run_id = {run} AND {lead}.journal_id < {journal}))"
            );
        }
        sql
    }

    /// What is asked of the record.
    fn conditions(&mut self, filter: &Filter) -> String {
        let mut sql = String::new();
        for (name, value) in [
            ("run_id", &filter.run_id),
            ("skill", &filter.skill),
            ("agent", &filter.agent),
            ("executor", &filter.executor),
            ("caller", &filter.caller),
        ] {
            if let Some(value) = value {
                sql += &format!(" AND r.{name} = {}", self.place(Bind::Text(column(value).into_owned())));
            }
        }
        if let Some(outcome) = filter.outcome {
            sql += &format!(" AND r.outcome = {}", self.place(Bind::Number(outcome.into())));
        }
        sql
    }

    fn place(&mut self, bind: Bind) -> String {
        self.binds.push(bind);
        format!("${}", self.binds.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_a_token_holds(bytes in any::<Vec<u8>>()) {
            if let Some(position) = Position::from_bytes(&bytes) {
                prop_assert_eq!(position.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_place_comes_back() {
        let position =
            Position { accepted_at: 1_700_000_000_123_456_789, run_id: "r-1".into(), journal_id: "j".into() };
        assert_eq!(Position::from_bytes(&position.to_bytes()), Some(position));
        assert_eq!(Position::from_bytes(b"short"), None);
    }
}
