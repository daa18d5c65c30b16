//! Where the database is, and a pool of connections to it. SQLite is a file of the state directory, which is locked;
//! PostgreSQL is somewhere else, and may be away.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Executor as _, SqlStr};

use super::error::StoreError;

const FILE: &str = "registry.db";
/// A database that does not answer in this time is away.
const PATIENCE: Duration = Duration::from_secs(4);
/// SQLite has one writer at a time; each connection is a thread.
const SQLITE_CONNECTIONS: u32 = 4;
const POSTGRES_CONNECTIONS: u32 = 8;
const IDLE: Duration = Duration::from_secs(60);
/// `secure_delete`: what is cleared is overwritten. 512 KiB of cache is plenty for approvals. `temp_store`: where the root of
/// the file system is read-only, there is no directory for the temporary files of a statement.
const SQLITE: &str = "PRAGMA busy_timeout = 4000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                      PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON; PRAGMA cache_size = -512; \
                      PRAGMA temp_store = MEMORY;";
/// A registry that is lost in the middle of a transaction holds up the others no longer than this.
/// The one join, of labels with their records, is for a page of them: a plan that joins all of them first is never better.
const POSTGRES: &str = "SET statement_timeout = '4s'; SET idle_in_transaction_session_timeout = '4s'; \
                        SET enable_hashjoin = off; SET enable_mergejoin = off;";
const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "approvals", include_str!("migrations/0001_approvals.sql")),
    (2, "journal", include_str!("migrations/0002_journal.sql")),
    (3, "history", include_str!("migrations/0003_history.sql")),
];

/// Where the state is kept.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// In a SQLite file of this directory.
    Directory(PathBuf),
    /// In the database that this URL names.
    Url(DatabaseUrl),
}

/// `postgres://…` or `sqlite:…`. It may hold a password: it is never printed whole.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

/// A text that is no such URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the URL of a database: write postgres://USER:PASSWORD@HOST/DATABASE or sqlite:///ABSOLUTE/PATH")]
pub struct DatabaseUrlError;

impl FromStr for DatabaseUrl {
    type Err = DatabaseUrlError;

    fn from_str(text: &str) -> Result<Self, DatabaseUrlError> {
        let known = ["postgres://", "postgresql://", "sqlite:///"].iter().any(|scheme| text.starts_with(scheme));
        match AnyConnectOptions::from_str(text) {
            Ok(_) if known => Ok(Self(text.to_owned())),
            _ => Err(DatabaseUrlError),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.split_once(':').map_or("", |(scheme, _)| scheme);
        write!(f, "{scheme}:…")
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => directory.fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

/// A pool, and what is held as long as it is used.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) pool: AnyPool,
    /// The descriptor is the lock.
    pub(super) lock: Option<File>,
    /// Whether it is a file of this host, so that a failure at the start is one for good.
    pub(super) is_local: bool,
}

/// Makes a pool; connects to nothing yet.
pub(super) fn open(database: &Database) -> Result<Opened, StoreError> {
    sqlx::any::install_default_drivers();
    let (url, lock) = match database {
        Database::Directory(directory) => {
            let lock = prepare(directory)?;
            (sqlite_url(&directory.join(FILE))?, Some(lock))
        }
        Database::Url(url) => (url.0.clone(), None),
    };
    let is_local = url.starts_with("sqlite");
    let options = AnyConnectOptions::from_str(&url)?.disable_statement_logging();
    let connections = if is_local { SQLITE_CONNECTIONS } else { POSTGRES_CONNECTIONS };
    let pool = AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(PATIENCE)
        .idle_timeout(IDLE)
        .after_connect(move |connection, _| {
            Box::pin(async move {
                connection.execute(if is_local { SQLITE } else { POSTGRES }).await?;
                Ok(())
            })
        })
        .connect_lazy_with(options);
    Ok(Opened { pool, lock, is_local })
}

/// Brings the tables to what this version knows.
pub(super) async fn migrate(connection: &mut AnyConnection) -> Result<(), StoreError> {
    let migrations = MIGRATIONS.iter().map(|(version, description, sql)| {
        let sql = SqlStr::from_static(sql);
        Migration::new(*version, (*description).into(), MigrationType::Simple, sql, false)
    });
    // `run` would take any kind of connection, and is for that not Send.
    Ok(Migrator::with_migrations(migrations.collect()).run_direct(None, connection, false).await?)
}

/// The directory and the file, for nobody else to read, and the lock.
fn prepare(directory: &Path) -> Result<File, StoreError> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| StoreError::Directory { what, path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed("create", directory))?;
    let metadata = directory.metadata().map_err(failed("read", directory))?;
    let (owner, ours) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != ours || metadata.mode() & 0o002 != 0 {
        return Err(StoreError::NotOurs(directory.to_owned()));
    }
    let path = directory.join("lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut lock = options.open(&path).map_err(failed("open", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Only for the message: it says less where this cannot be read.
            let _ = lock.take(20).read_to_string(&mut holder);
            return Err(StoreError::Locked { path: directory.to_owned(), holder: holder.trim().to_owned() });
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
    }
    lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(failed("write", &path))?;
    let path = directory.join(FILE);
    // SQLite gives its other files the same mode.
    options.open(&path).map_err(failed("open", &path))?;
    Ok(lock)
}

fn sqlite_url(path: &Path) -> Result<String, StoreError> {
    let path = path.to_str().ok_or_else(|| StoreError::NotUtf8(path.to_owned()))?;
    let mut url = "sqlite://".to_owned();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => url.push(char::from(byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(url)
}
