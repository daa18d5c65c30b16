//! Progress lines: how a skill says how far it is.

use serde::Deserialize;

/// What a line begins with that tells progress.
const PREFIX: &str = "::progress ";

/// How far a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What is done, in the skill's own unit.
    pub progress: f64,
    /// What there is to do, where the skill knows it.
    pub total: Option<f64>,
    /// What it is at.
    pub message: String,
}

#[derive(Deserialize)]
struct Raw {
    progress: f64,
    #[serde(default)]
    total: Option<f64>,
    #[serde(default)]
    message: String,
}

/// What the lines of a text tell, in order; a malformed line tells nothing.
pub fn all_in(text: &str) -> impl Iterator<Item = Progress> {
    // Most output tells nothing: one search is cheaper than cutting it into lines.
    let lines = if text.contains(PREFIX) { text } else { "" }.lines();
    lines.filter_map(parse)
}

fn parse(line: &str) -> Option<Progress> {
    let raw: Raw = serde_json::from_str(line.strip_prefix(PREFIX)?).ok()?;
    let finite = raw.progress.is_finite() && raw.total.is_none_or(f64::is_finite);
    finite.then_some(Progress { progress: raw.progress, total: raw.total, message: raw.message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_tell_progress() {
        let text =
            "a\n::progress {\"progress\": 1}\n::progress {\"progress\": 3, \"total\": 10, \"message\": \"m\"}\r\nb\n";
        let told = |progress, total, message: &str| Progress { progress, total, message: message.into() };
        assert_eq!(all_in(text).collect::<Vec<_>>(), [told(1.0, None, ""), told(3.0, Some(10.0), "m")]);
        for none in ["", "x ::progress {\"progress\": 1}\n", "::progress {\"progress\": \"1\"}\n", "::progress \n"] {
            assert_eq!(all_in(none).next(), None, "{none:?}");
        }
    }
}
