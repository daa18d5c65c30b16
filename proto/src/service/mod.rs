//! How both services serve: the listener, health, reflection, the admin port, errors and logs.

pub mod access;
pub mod access_log;
pub mod admin;
pub mod caller;
mod callers;
pub mod calls;
pub mod certificates;
mod connection;
pub mod dial;
pub mod error;
mod explained;
pub mod export;
pub mod figures;
pub mod heap;
pub mod histogram;
mod log_queue;
#[cfg(feature = "otlp")]
mod otlp;
pub mod page;
pub mod readiness;
pub mod rotated;
pub mod serve;
pub mod shell;
pub mod signals;
pub mod span;
pub mod telemetry;
mod tls;
pub mod token;
pub mod trace;
