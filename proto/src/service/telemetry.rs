//! Logs: one line an event on stderr, as text or as JSON, with the fields of the spans around it.

use std::io::IsTerminal as _;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use super::log_queue::LogQueue;

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged where nothing else was asked for.
pub const DEFAULT_FILTER: &str = "info";

/// The library that watches directories says at INFO what is normal, such as that a directory it watched is gone.
const QUIETER: &str = "notify=warn";

/// A filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a log filter: write off, error, warn, info, debug or trace, or target=level between commas")]
pub struct FilterError(String);

/// Checks a filter: a level, or `target=level` between commas.
///
/// # Errors
/// Says what to write instead.
pub fn filter(text: &str) -> Result<EnvFilter, FilterError> {
    let error = || FilterError(text.to_owned());
    // A word alone could be a target, of which all would be logged; it is a level that was misspelt.
    let is_good =
        |part: &str| part.contains('=') || (!part.trim().is_empty() && part.trim().parse::<LevelFilter>().is_ok());
    if text.split(',').all(is_good) { EnvFilter::try_new(text).map_err(|_| error()) } else { Err(error()) }
}

/// Starts logging for the whole process; a second call changes nothing. A filter that cannot be read is the default.
pub fn init(format: LogFormat, text: &str) {
    let mut filter = filter(text).unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    if let Ok(quieter) = QUIETER.parse()
        && filter.max_level_hint() >= Some(LevelFilter::INFO)
        && !text.contains("notify")
    {
        filter = filter.add_directive(quieter);
    }
    let queue = QUEUE.get_or_init(|| {
        let lost = match format {
            LogFormat::Text => |lost| format!(" WARN {lost} log lines were dropped: stderr was not read\n"),
            LogFormat::Json => |lost| {
                let message = "log lines were dropped: stderr was not read";
                format!("{}\n", serde_json::json!({"level": "WARN", "message": message, "dropped": lost}))
            },
        };
        LogQueue::to(std::io::stderr(), lost)
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(queue.clone())
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

/// Lines on their way to stderr.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Waits until what was logged is written, for a second at most: before the process ends.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_no_filter() {
        for good in ["info", "WARN", "off", "warn,skillyard=debug", "h2=off,trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["", "inf", "bogus", "info,bogus", "a=b=c", "skillyard=loud"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
