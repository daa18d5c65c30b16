//! Logs: one line an event on stderr, as text or as JSON, with the fields of the spans around it.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{filter:?} is not a log filter ({source}): write a level (error, warn, info, debug, trace) or target=level,…")]
pub struct FilterError {
    filter: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Checks a filter: a level, or `target=level` between commas.
///
/// # Errors
/// Says what to write instead.
pub fn filter(text: &str) -> Result<EnvFilter, FilterError> {
    EnvFilter::try_new(text).map_err(|source| FilterError { filter: text.to_owned(), source })
}

/// Starts logging for the whole process; a second call changes nothing.
pub fn init(format: LogFormat, filter: EnvFilter) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A line that cannot be written, to a full disk or to a reader that left, is lost. To say so on the same stderr
        // would be a panic.
        .log_internal_errors(false)
        .with_span_events(FmtSpan::NONE)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging was started already");
    }
}
