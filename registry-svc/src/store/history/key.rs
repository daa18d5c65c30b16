//! What stands in the columns that records are found by: short enough for an index of either database, and the same for
//! the same text.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use skillyard::Digest;

/// PostgreSQL takes index entries of at most 2,704 bytes, and no U+0000.
const MAX_BYTES: usize = 256;
/// Of a hash: 128 bits tell all labels apart that there will ever be.
const LABEL_CHARS: usize = 32;

/// A text as a column has it.
pub(super) fn column(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_BYTES && !text.contains('\0') {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("sha256:{}", Digest::of(text.as_bytes())))
    }
}

/// A label as a column has it.
pub(super) fn label(name: &str, value: &str) -> String {
    let mut bytes = (name.len() as u64).to_le_bytes().to_vec();
    bytes.extend(name.as_bytes());
    bytes.extend(value.as_bytes());
    let mut hash = Digest::of(&bytes).to_string();
    hash.truncate(LABEL_CHARS);
    hash
}

/// Nanoseconds since 1970: until 2262.
pub(super) fn to_nanos(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// So long before a moment, as a column has it.
pub(super) fn nanos_before(time: SystemTime, age: Duration) -> i64 {
    to_nanos(time.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_short_and_differ() {
        assert_eq!(column("disk_cleaner"), "disk_cleaner");
        let (long, nul) = ("x".repeat(257), "a\0b");
        for text in [long.as_str(), nul] {
            assert!(column(text).len() < 80 && !column(text).contains('\0'), "{text:?}");
            assert_ne!(column(text), column(&format!("{text}x")));
        }
        assert_ne!(label("a", "bc"), label("ab", "c"));
        assert_eq!(label("a", &"b".repeat(5000)).len(), 32);
    }

    #[test]
    fn moments() {
        assert_eq!(to_nanos(SystemTime::UNIX_EPOCH + Duration::new(1, 5)), 1_000_000_005);
        assert_eq!(to_nanos(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), 0);
        assert_eq!(nanos_before(SystemTime::UNIX_EPOCH + Duration::from_secs(1), Duration::MAX), 0);
    }
}
