//! From values to a snapshot: what was found becomes one immutable catalog with a version, and the next one when the
//! files change. Knows no wire.

pub mod fingerprint;
pub mod load;
pub mod log;
pub mod read;
pub mod reload;
pub mod report;
mod scanner;
pub mod snapshot;
mod watch;

pub use reload::Catalogs;
pub use snapshot::Catalog;
