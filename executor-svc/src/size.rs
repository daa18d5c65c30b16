//! Sizes as people write them.

use std::num::ParseIntError;

/// Text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// It does not begin with a whole number.
    #[error("{0:?} does not begin with a whole number ({1}): write one and a unit, such as 512MiB or 2GiB")]
    Number(String, ParseIntError),
    /// Nobody knows the unit.
    #[error("{0:?} has no unit of a size: write KiB, MiB, GiB or TiB (of 1,024), or KB, MB, GB or TB (of 1,000)")]
    Unit(String),
    /// It is beyond 64 bits.
    #[error("{0:?} is more than any machine has")]
    TooLarge(String),
}

/// Bytes of a text such as `512MiB`, `2Gi`, `100MB` or `4096`.
///
/// # Errors
/// What to write instead.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().map_err(|error| SizeError::Number(text.to_owned(), error))?;
    let unit = unit.trim_start();
    let factor = match unit.strip_suffix('B').unwrap_or(unit) {
        "" => 1,
        "K" | "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return Err(SizeError::Unit(text.to_owned())),
    };
    number.checked_mul(factor).ok_or_else(|| SizeError::TooLarge(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0", 0),
            ("12B", 12),
            ("512MiB", 512 << 20),
            ("2 GiB", 2 << 30),
            ("2Gi", 2 << 30),
            ("100MB", 100_000_000),
            ("3k", 3000),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "MiB", "-1", "1.5GiB", "1 mib", "1GiBB", "1e9", "99999999999999999999", "99999999TiB"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
