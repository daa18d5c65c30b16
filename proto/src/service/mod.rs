//! How both services serve: the listener, health, reflection, errors and logs.

pub mod access;
pub mod access_log;
pub mod caller;
mod callers;
pub mod dial;
pub mod error;
pub mod page;
pub mod rotated;
pub mod serve;
pub mod shell;
pub mod telemetry;
mod tls;
pub mod token;
