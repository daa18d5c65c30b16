//! Why the database could not do what was asked.

use std::io;
use std::path::PathBuf;

/// The state cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state directory cannot be used.
    #[error("the state directory: cannot {what} {}: {source}; give another with --state-dir", .path.display())]
    Directory {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another registry uses the state directory.
    #[error("the state directory {} is used by another registry (process {holder}): stop it, or give another with --state-dir", .path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Its process.
        holder: String,
    },
    /// Others could put approvals of their own there.
    #[error("the state directory {} belongs to another user, or others may write to it: chown and chmod 700 it, or give another with --state-dir", .0.display())]
    NotOurs(PathBuf),
    /// SQLite wants UTF-8.
    #[error("the path {} is not UTF-8: give another with --state-dir", .0.display())]
    NotUtf8(PathBuf),
    /// The tables cannot be made, or are those of a newer version.
    #[error("the database cannot be brought to this version: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// The tables have not been looked at yet.
    #[error("the database has not answered yet")]
    NotReady,
    /// It answers with an error, or not at all.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// What it holds is nothing that this version writes.
    #[error("the database holds {value:?} as {column}")]
    Value {
        /// Where.
        column: &'static str,
        /// What.
        value: String,
    },
}
