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
        let Select { sql, binds } = Select::new(filter, after, limit);
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
    fn new(filter: &Filter, after: Option<&Position>, limit: usize) -> Self {
        let columns = "SELECT r.accepted_at, r.run_id, r.journal_id, r.identity, r.record FROM";
        let same = |table: &str| {
            format!(
                "{table}.accepted_at = r.accepted_at AND {table}.run_id = r.run_id AND {table}.journal_id = r.journal_id"
            )
        };
        let mut labels = filter.labels.iter().map(|(name, value)| label(name, value));
        let (mut select, leader) = match labels.next() {
            None => (Self { sql: format!("{columns} run_records r WHERE 1 = 1"), binds: Vec::new() }, "r"),
            Some(first) => {
                // A CROSS JOIN is one to PostgreSQL that it may turn; SQLite goes through its left side first.
                let sql = format!("{columns} run_labels l CROSS JOIN run_records r WHERE {}", same("l"));
                let mut select = Self { sql, binds: Vec::new() };
                select.and("l.label =", Bind::Text(first));
                (select, "l")
            }
        };
        for other in labels {
            let place = select.place(Bind::Text(other));
            select.sql +=
                &format!(" AND EXISTS (SELECT 1 FROM run_labels o WHERE o.label = {place} AND {})", same("o"));
        }
        for (condition, value) in [
            ("r.run_id =", &filter.run_id),
            ("r.skill =", &filter.skill),
            ("r.agent =", &filter.agent),
            ("r.executor =", &filter.executor),
            ("r.caller =", &filter.caller),
        ] {
            if let Some(value) = value {
                select.and(condition, Bind::Text(column(value).into_owned()));
            }
        }
        if let Some(outcome) = filter.outcome {
            select.and("r.outcome =", Bind::Number(outcome.into()));
        }
        for (sign, time) in [(">=", filter.since), ("<", filter.until)] {
            if let Some(time) = time {
                select.and(&format!("{leader}.accepted_at {sign}"), Bind::Number(to_nanos(time)));
            }
        }
        if let Some(Position { accepted_at, run_id, journal_id }) = after {
            let at = select.place(Bind::Number(*accepted_at));
            let run = select.place(Bind::Text(run_id.clone()));
            let journal = select.place(Bind::Text(journal_id.clone()));
            select.sql += &format!(
                " AND {leader}.accepted_at <= {at} AND ({leader}.accepted_at < {at} OR {leader}.run_id < {run} \
                 OR ({leader}.run_id = {run} AND {leader}.journal_id < {journal}))"
            );
        }
        let limit = select.place(Bind::Number(limit.try_into().unwrap_or(i64::MAX)));
        select.sql += &format!(
            " ORDER BY {leader}.accepted_at DESC, {leader}.run_id DESC, {leader}.journal_id DESC LIMIT {limit}"
        );
        select
    }

    fn place(&mut self, bind: Bind) -> String {
        self.binds.push(bind);
        format!("${}", self.binds.len())
    }

    fn and(&mut self, condition: &str, value: Bind) {
        let place = self.place(value);
        self.sql += &format!(" AND {condition} {place}");
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
