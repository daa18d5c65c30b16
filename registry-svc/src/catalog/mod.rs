//! From values to a snapshot: what was found becomes one immutable catalog with a version, and the next one when the
//! files change. Knows no wire.

pub mod categories;
pub mod changes;
pub mod fingerprint;
#[cfg(test)]
pub(crate) mod fixture;
pub mod load;
pub mod log;
pub mod read;
pub mod reload;
pub mod report;
mod scanner;
mod search;
mod segment;
pub mod snapshot;
mod visible;
mod watch;
mod words;

pub use reload::Catalogs;
pub use snapshot::Catalog;
pub use watch::Unnotified;
