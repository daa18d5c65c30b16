//! stub
pub mod source;
