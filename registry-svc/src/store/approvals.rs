//! Approvals in the database. Every change is one transaction that begins by taking the clock's row, so that changes
//! come one after the other, also of several registries; the rules are those of `approval.rs`.

use std::time::{Duration, SystemTime};

use skillyard::{Class, Digest};
use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Row as _, Transaction};
use uuid::Uuid;

use super::Store;
use super::approval::{
    Approval, Call, SignRefusal, Signature, Signers, State, Use, UseRefusal, Used, from_millis, to_millis,
};
use super::error::StoreError;
use super::row;
use super::tally::Event;

/// Arguments of more than that are read for one approval at a time.
pub const SHORT_ARGS: i64 = 4 << 10;
/// Most approvals of one requester that are pending at once.
pub const MAX_PENDING: i64 = 200;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct NewApproval {
    /// The run that it is for.
    pub call: Call,
    /// Of the skill.
    pub class: Class,
    /// The argument bytes.
    pub args_json: String,
    /// Why it is wanted.
    pub reason: String,
    /// The person on whose behalf; may be empty.
    pub requested_for: String,
    /// How many must sign for it.
    pub signatures_required: u32,
    /// How long it is good.
    pub ttl: Duration,
}

/// A request's name: who asked, the id that they chose, and a hash of all they asked for.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The identity that asks.
    pub requested_by: String,
    /// Theirs; `None` where every call is a request of its own.
    pub request_id: Option<String>,
    /// Of the request.
    pub request_sha256: Digest,
}

/// Why there is no new approval.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The id is another request's.
    #[error("the request_id belongs to another request: choose a new one for each")]
    Reused,
    /// Too many are pending.
    #[error("{MAX_PENDING} approvals that you asked for are pending: wait until some are signed or have expired")]
    TooMany,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why there is no signature.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// There is no such approval.
    #[error("unknown approval")]
    Unknown,
    /// The rules.
    #[error(transparent)]
    Refused(#[from] SignRefusal),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a run may not start.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// There is no such approval.
    #[error("unknown approval")]
    Unknown,
    /// The rules.
    #[error(transparent)]
    Refused(#[from] UseRefusal),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Which approvals.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only those that this identity asked for.
    pub requested_by: Option<String>,
    /// Only this one.
    pub id: Option<Uuid>,
    /// Only those in one of these states; empty for all.
    pub states: Vec<State>,
}

/// How far a watch has come: the number of a change, and which of the approvals with this number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(i64, String);

impl Store {
    /// The approval of this request, if it was asked for before.
    ///
    /// # Errors
    /// [`RequestError::Reused`] where the id is another request's.
    pub async fn requested(&self, key: &RequestKey) -> Result<Option<Approval>, RequestError> {
        let Some(request_id) = &key.request_id else { return Ok(None) };
        self.expire().await?;
        let mut connection = self.pool().await?.acquire().await.map_err(StoreError::from)?;
        find_request(&mut connection, &key.requested_by, request_id, key.request_sha256).await
    }

    /// Asks for signatures. The same request again is the same approval.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn request(&self, key: &RequestKey, new: NewApproval) -> Result<Approval, RequestError> {
        self.expire().await?;
        let (mut tx, changed) = self.change().await?;
        if let Some(request_id) = &key.request_id
            && let Some(there) = find_request(&mut tx, &key.requested_by, request_id, key.request_sha256).await?
        {
            return Ok(there);
        }
        let count = sqlx::query("SELECT count(*) FROM approvals WHERE requested_by = $1 AND state = 'pending'")
            .bind(&key.requested_by)
            .fetch_one(&mut *tx)
            .await
            .and_then(|row| row.try_get::<i64, _>(0))
            .map_err(StoreError::from)?;
        if count >= MAX_PENDING {
            return Err(RequestError::TooMany);
        }
        let created_at = SystemTime::now();
        let approval = Approval {
            id: Uuid::now_v7(),
            changed,
            call: new.call,
            class: new.class,
            args_json: Some(new.args_json),
            reason: new.reason,
            requested_by: key.requested_by.clone(),
            requested_for: new.requested_for,
            signatures_required: new.signatures_required,
            signatures: Vec::new(),
            state: State::Pending,
            created_at: from_millis(to_millis(created_at)),
            expires_at: from_millis(to_millis(created_at + new.ttl)),
            used_by: None,
        };
        insert(&mut tx, &approval, key).await?;
        self.commit(tx).await?;
        self.tally().count(Event::Requested, 1);
        Ok(approval)
    }

    /// Adds a signature. The answer has short arguments.
    ///
    /// # Errors
    /// See [`SignError`].
    pub async fn sign(
        &self,
        id: Uuid,
        signer: &str,
        approve: bool,
        comment: &str,
        signers: &Signers,
    ) -> Result<Approval, SignError> {
        self.expire().await?;
        let (mut tx, changed) = self.change().await?;
        let mut approval = load(&mut tx, id, SHORT_ARGS).await?.ok_or(SignError::Unknown)?;
        let now = SystemTime::now();
        approval.expire(now);
        let time = from_millis(to_millis(now));
        let signature = Signature { signer: signer.to_owned(), approve, comment: comment.to_owned(), time };
        approval.sign(signature.clone(), signers)?;
        approval.changed = changed;
        sqlx::query(
            "INSERT INTO approval_signatures (approval_id, signer, approve, comment, signed_at) \
             VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(id.to_string())
        .bind(signature.signer)
        .bind(i64::from(approve))
        .bind(signature.comment)
        .bind(to_millis(time))
        .execute(&mut *tx)
        .await
        .map_err(StoreError::from)?;
        update(&mut tx, &approval).await?;
        self.commit(tx).await?;
        self.tally().count(if approve { Event::SignedFor } else { Event::SignedAgainst }, 1);
        Ok(approval)
    }

    /// Uses an approval up for this run, or says again that this run has.
    ///
    /// # Errors
    /// See [`ConsumeError`].
    pub async fn consume(&self, id: Uuid, call: &Call, by: &Use) -> Result<Approval, ConsumeError> {
        self.expire().await?;
        let (mut tx, changed) = self.change().await?;
        let mut approval = load(&mut tx, id, 0).await?.ok_or(ConsumeError::Unknown)?;
        approval.expire(SystemTime::now());
        if approval.consume(call, by)? == Used::First {
            approval.changed = changed;
            update(&mut tx, &approval).await?;
            self.commit(tx).await?;
            self.tally().count(Event::Consumed, 1);
        }
        Ok(approval)
    }

    /// One approval, with all its arguments.
    ///
    /// # Errors
    /// The database failed.
    pub async fn approval(&self, id: Uuid) -> Result<Option<Approval>, StoreError> {
        self.expire().await?;
        let mut connection = self.pool().await?.acquire().await?;
        load(&mut connection, id, i64::MAX).await
    }

    /// Approvals, newest first, those after `after` only, with short arguments.
    ///
    /// # Errors
    /// The database failed.
    pub async fn approvals(
        &self,
        filter: &Filter,
        after: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<Approval>, StoreError> {
        self.expire().await?;
        let mut query = Select::new(filter);
        if let Some(after) = after {
            query.and("id < ", after.to_string());
        }
        query.rows(self, "ORDER BY id DESC", limit).await
    }

    /// Where a watch begins that has seen all until now.
    ///
    /// # Errors
    /// The database failed.
    pub async fn cursor(&self) -> Result<Cursor, StoreError> {
        Ok(Cursor(self.clock().await?, "~".to_owned()))
    }

    /// Approvals that have changed since, in the order of their last change, with short arguments; and where the next
    /// look begins.
    ///
    /// # Errors
    /// The database failed.
    pub async fn changes(
        &self,
        filter: &Filter,
        since: &Cursor,
        limit: usize,
    ) -> Result<(Vec<Approval>, Cursor), StoreError> {
        // What others commit from here on has a higher number than this, or is in the rows.
        let seen = self.clock().await?;
        let mut query = Select::new(filter);
        query.after(since);
        let rows = query.rows(self, "ORDER BY changed, id", limit).await?;
        let cursor = match rows.last() {
            Some(last) if rows.len() >= limit => Cursor(last.changed, last.id.to_string()),
            last => Cursor(last.map_or(seen, |last| last.changed.max(seen)), "~".to_owned()),
        };
        Ok((rows, cursor))
    }

    /// Writes down what has expired, and forgets its arguments.
    pub(super) async fn expire(&self) -> Result<(), StoreError> {
        let pool = self.pool().await?;
        let overdue = "SELECT 1 FROM approvals WHERE state IN ('pending', 'approved') AND expires_at <= $1 LIMIT 1";
        let now = to_millis(SystemTime::now());
        if sqlx::query(overdue).bind(now).fetch_optional(pool).await?.is_none() {
            return Ok(());
        }
        let (mut tx, changed) = self.change().await?;
        let expired = sqlx::query(
            "UPDATE approvals SET state = 'expired', args_json = NULL, changed = $1 \
             WHERE state IN ('pending', 'approved') AND expires_at <= $2",
        )
        .bind(changed)
        .bind(now)
        .execute(&mut *tx)
        .await?;
        self.commit(tx).await?;
        self.tally().count(Event::Expired, expired.rows_affected());
        Ok(())
    }

    /// The number of the last change.
    pub(super) async fn clock(&self) -> Result<i64, StoreError> {
        let row = sqlx::query("SELECT value FROM approval_clock").fetch_one(self.pool().await?).await?;
        Ok(row.try_get(0)?)
    }

    /// Begins a change, and holds all others up until its end.
    pub(super) async fn change(&self) -> Result<(Transaction<'static, Any>, i64), StoreError> {
        let mut tx = self.pool().await?.begin().await?;
        let row =
            sqlx::query("UPDATE approval_clock SET value = value + 1 RETURNING value").fetch_one(&mut *tx).await?;
        Ok((tx, row.try_get(0)?))
    }

    pub(super) async fn commit(&self, tx: Transaction<'static, Any>) -> Result<(), StoreError> {
        tx.commit().await?;
        self.poke();
        Ok(())
    }
}

/// A query for approvals: conditions are joined by AND, and values bound by their place.
struct Select {
    sql: String,
    binds: Vec<Bind>,
}

enum Bind {
    Text(String),
    Number(i64),
}

impl Select {
    fn new(filter: &Filter) -> Self {
        let sql = format!("SELECT {} FROM approvals WHERE 1 = 1", row::COLUMNS);
        let mut select = Self { sql, binds: vec![Bind::Number(SHORT_ARGS)] };
        if let Some(id) = filter.id {
            select.and("id = ", id.to_string());
        }
        if let Some(requested_by) = &filter.requested_by {
            select.and("requested_by = ", requested_by.clone());
        }
        if !filter.states.is_empty() {
            let places: Vec<_> =
                filter.states.iter().map(|state| select.place(Bind::Text(state.as_str().to_owned()))).collect();
            select.sql.push_str(&format!(" AND state IN ({})", places.join(", ")));
        }
        select
    }

    fn place(&mut self, bind: Bind) -> String {
        self.binds.push(bind);
        format!("${}", self.binds.len())
    }

    fn and(&mut self, condition: &'static str, value: String) {
        let place = self.place(Bind::Text(value));
        self.sql.push_str(&format!(" AND {condition}{place}"));
    }

    fn after(&mut self, Cursor(changed, id): &Cursor) {
        let (changed, id) = (self.place(Bind::Number(*changed)), self.place(Bind::Text(id.clone())));
        self.sql.push_str(&format!(" AND changed >= {changed} AND (changed > {changed} OR id > {id})"));
    }

    async fn rows(mut self, store: &Store, order: &'static str, limit: usize) -> Result<Vec<Approval>, StoreError> {
        let limit = self.place(Bind::Number(limit.try_into().unwrap_or(i64::MAX)));
        self.sql.push_str(&format!(" {order} LIMIT {limit}"));
        let mut connection = store.pool().await?.acquire().await?;
        // Made of texts of ours alone; values are bound.
        let mut query = sqlx::query(AssertSqlSafe(self.sql));
        for bind in self.binds {
            query = match bind {
                Bind::Text(text) => query.bind(text),
                Bind::Number(number) => query.bind(number),
            };
        }
        let rows = query.fetch_all(&mut *connection).await?;
        let mut approvals = rows.iter().map(row::approval).collect::<Result<Vec<_>, _>>()?;
        add_signatures(&mut connection, &mut approvals).await?;
        let now = SystemTime::now();
        approvals.iter_mut().for_each(|approval| approval.expire(now));
        Ok(approvals)
    }
}

/// One approval, with arguments of at most this many bytes.
async fn load(connection: &mut sqlx::AnyConnection, id: Uuid, args: i64) -> Result<Option<Approval>, StoreError> {
    let sql = format!("SELECT {} FROM approvals WHERE id = $2", row::COLUMNS);
    let query = sqlx::query(AssertSqlSafe(sql)).bind(args).bind(id.to_string());
    let row = query.fetch_optional(&mut *connection).await?;
    one(connection, row).await
}

async fn find_request(
    connection: &mut sqlx::AnyConnection,
    requested_by: &str,
    request_id: &str,
    request_sha256: Digest,
) -> Result<Option<Approval>, RequestError> {
    let sql =
        format!("SELECT {}, request_sha256 FROM approvals WHERE requested_by = $2 AND request_id = $3", row::COLUMNS);
    let query = sqlx::query(AssertSqlSafe(sql)).bind(SHORT_ARGS).bind(requested_by).bind(request_id);
    let row = query.fetch_optional(&mut *connection).await.map_err(StoreError::from)?;
    if let Some(row) = &row
        && row.try_get::<String, _>("request_sha256").map_err(StoreError::from)? != request_sha256.to_string()
    {
        return Err(RequestError::Reused);
    }
    Ok(one(connection, row).await?)
}

async fn one(connection: &mut sqlx::AnyConnection, row: Option<AnyRow>) -> Result<Option<Approval>, StoreError> {
    let Some(row) = row else { return Ok(None) };
    let mut approvals = [row::approval(&row)?];
    add_signatures(connection, &mut approvals).await?;
    let [mut approval] = approvals;
    approval.expire(SystemTime::now());
    Ok(Some(approval))
}

async fn add_signatures(connection: &mut sqlx::AnyConnection, approvals: &mut [Approval]) -> Result<(), StoreError> {
    if approvals.is_empty() {
        return Ok(());
    }
    let places: Vec<_> = (1..=approvals.len()).map(|place| format!("${place}")).collect();
    let sql = format!(
        "SELECT approval_id, signer, approve, comment, signed_at FROM approval_signatures \
         WHERE approval_id IN ({}) ORDER BY signed_at, signer",
        places.join(", ")
    );
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for approval in &*approvals {
        query = query.bind(approval.id.to_string());
    }
    for row in query.fetch_all(&mut *connection).await? {
        let (id, signature) = row::signature(&row)?;
        if let Some(approval) = approvals.iter_mut().find(|approval| approval.id == id) {
            approval.signatures.push(signature);
        }
    }
    Ok(())
}

async fn insert(tx: &mut Transaction<'static, Any>, approval: &Approval, key: &RequestKey) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO approvals (id, changed, agent, skill, class, digest, args_json, args_sha256, reason, \
         requested_by, requested_for, request_id, request_sha256, signatures_required, state, created_at, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
    )
    .bind(approval.id.to_string())
    .bind(approval.changed)
    .bind(approval.call.agent.as_str())
    .bind(approval.call.skill.as_str())
    .bind(approval.class.as_str())
    .bind(approval.call.digest.to_string())
    .bind(approval.args_json.as_deref())
    .bind(approval.call.args_sha256.to_string())
    .bind(approval.reason.as_str())
    .bind(approval.requested_by.as_str())
    .bind(approval.requested_for.as_str())
    .bind(key.request_id.as_deref())
    .bind(key.request_sha256.to_string())
    .bind(i64::from(approval.signatures_required))
    .bind(approval.state.as_str())
    .bind(to_millis(approval.created_at))
    .bind(to_millis(approval.expires_at))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Writes what can change. The arguments go with the last moment at which it was pending.
async fn update(tx: &mut Transaction<'static, Any>, approval: &Approval) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE approvals SET changed = $1, state = $2, run_id = $3, executor = $4, journal = $5, \
         args_json = CASE WHEN $2 = 'pending' THEN args_json END WHERE id = $6",
    )
    .bind(approval.changed)
    .bind(approval.state.as_str())
    .bind(approval.used_by.as_ref().map(|by| by.run_id.as_str()))
    .bind(approval.used_by.as_ref().map(|by| by.executor.as_str()))
    .bind(approval.used_by.as_ref().map(|by| by.journal.as_str()))
    .bind(approval.id.to_string())
    .execute(&mut **tx)
    .await?;
    Ok(())
}
