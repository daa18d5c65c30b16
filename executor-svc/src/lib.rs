//! stub

pub mod mirror;
pub mod registry;
