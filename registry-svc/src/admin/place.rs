//! Where things may lie in a mirror: folders of skills, and files in a package. Pure rules about texts.

use skillyard::{PackagePath, SkillName};
use unicode_normalization::UnicodeNormalization as _;

/// Longest name of a folder or file on the file systems there are.
const MAX_PART: usize = 255;

/// Why a text is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misplaced {
    #[error("{0:?} is not a plain name: a folder has no slash or backslash, is not hidden, and is not node_modules")]
    Folder(String),
    #[error("the path {0:?} leaves the package, is absolute or hidden, or has a backslash or a control character")]
    File(String),
    #[error("{0:?} has a part of more than {MAX_PART} bytes")]
    TooLong(String),
}

/// Whether a text can be the folder of a skill, so that the catalog finds it there and nowhere else.
pub(super) fn folder(text: &str) -> Result<(), Misplaced> {
    let named = text.parse::<SkillName>().is_ok();
    if !named || text.starts_with('.') || text.contains('\\') || text == "node_modules" {
        return Err(Misplaced::Folder(text.to_owned()));
    }
    if text.len() > MAX_PART { Err(Misplaced::TooLong(text.to_owned())) } else { Ok(()) }
}

/// A path of a file in a playbook's package.
pub(super) fn file(text: &str) -> Result<PackagePath, Misplaced> {
    let misplaced = || Misplaced::File(text.to_owned());
    let path: PackagePath = text.parse().map_err(|_| misplaced())?;
    if text.contains(|c: char| c == '\\' || c.is_control()) || path.parts().any(|part| part.starts_with('.')) {
        return Err(misplaced());
    }
    if path.parts().any(|part| part.len() > MAX_PART) {
        return Err(Misplaced::TooLong(text.to_owned()));
    }
    Ok(path)
}

/// What two names have in common that a file system of some people takes for one.
pub(super) fn folded(text: &str) -> String {
    text.nfc().flat_map(char::to_lowercase).nfc().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders() {
        for good in ["a", "Disk Full", "数据", "a.b", "CON", "a:b", "...a".trim_start_matches('.')] {
            assert_eq!(folder(good), Ok(()), "{good}");
        }
        let long = "a".repeat(129);
        for bad in
            ["", ".", "..", "../x", "a/b", "/a", "a\\b", "C:\\x", ".git", "a\0b", "a\n", " a", "node_modules", &long]
        {
            assert!(folder(bad).is_err(), "{bad:?}");
        }
        assert!(folder(&"数".repeat(128)).is_err(), "no file system has such names");
    }

    #[test]
    fn files() {
        for good in ["a.md", "references/a b.md", "Ä/ü.png", "a..b", "LPT1"] {
            assert_eq!(file(good).unwrap().as_str(), good);
        }
        let long = format!("a/{}", "b".repeat(256));
        for bad in ["", "/a", "../x", "a/../b", "./a", "a//b", "a/", ".git/x", "a/.b", "a\\b", "a\0", "a\r", &long] {
            assert!(file(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_taken_for_one() {
        assert_eq!(folded("Caf\u{e9}"), folded("cafe\u{301}"));
        assert_ne!(folded("a"), folded("b"));
    }
}
