//! What a model reads: the roster, the tools, the text of a playbook, and the files beside it. From a snapshot to values;
//! knows no wire.

pub mod load_text;
mod markdown;
pub mod resource;
pub mod roster;
pub mod tools;
mod verified;

pub use verified::ReadError;
