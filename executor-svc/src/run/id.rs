//! The id of a run: the caller's choice, or the executor's.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Most characters of an id.
const MAX_ID_CHARS: usize = 128;

/// The id of a run: 1 to 128 printable ASCII characters without blanks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId(Arc<str>);

/// A text that is no id of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run_id is not 1 to {MAX_ID_CHARS} printable ASCII characters without blanks: a UUID does well")]
pub struct RunIdError;

impl RunId {
    /// A new one, which sorts by time.
    #[must_use]
    pub fn random() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, RunIdError> {
        let good = (1..=MAX_ID_CHARS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        if good { Ok(Self(text.into())) } else { Err(RunIdError) }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        for bad in ["", " ", "a b", "a\n", "é", &"x".repeat(129)] {
            assert!(bad.parse::<RunId>().is_err(), "{bad:?}");
        }
        assert_ne!(RunId::random(), RunId::random());
    }
}
