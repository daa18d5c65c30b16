//! What a catalog costs: reading it, and telling others of it.

pub(crate) mod changes;
pub(crate) mod fetch;
mod herd;
pub(crate) mod list;
mod registry;
pub(crate) mod scan;
