//! How both services serve: the listener, health, reflection, errors and logs.

pub mod access;
pub mod caller;
pub mod error;
pub mod serve;
pub mod shell;
pub mod telemetry;
