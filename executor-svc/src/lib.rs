//! stub

pub mod client;
pub mod mirror;
pub mod registry;
