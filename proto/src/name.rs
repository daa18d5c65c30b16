//! Names of skills: unique in a catalog, and safe to print, to log and to use as one part of a path.

use std::fmt;
use std::str::FromStr;

/// The name of a skill, of either kind.
///
/// 1 to 128 characters, none of them a control character or a slash, no blank at either end, neither `.` nor `..`.
/// A subprocess skill's name is narrower: [`SkillName::function`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkillName(String);

/// Most characters of a name.
pub const MAX_CHARS: usize = 128;
/// Most characters of a subprocess skill's name.
pub const MAX_FUNCTION_CHARS: usize = 64;

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty.
    #[error("the name is empty")]
    Empty,
    /// It is too long.
    #[error("the name has {0} characters, at most {1} are allowed")]
    TooLong(usize, usize),
    /// It begins or ends with a blank.
    #[error("the name begins or ends with a blank")]
    OuterBlank,
    /// It has a character that no name has.
    #[error("the name has the character {0:?}, which is not allowed")]
    Character(char),
    /// `.` and `..` are directories, not names.
    #[error("{0:?} is not a name")]
    Dots(String),
    /// A subprocess skill's name is a function name.
    #[error("the name {0:?} is not a function name: write lower-case letters a-z, digits and _ only, as in {1:?}")]
    NotAFunction(String, String),
}

impl SkillName {
    /// The name of a subprocess skill, which the model sees as a function: `[a-z0-9_]+`, at most 64.
    ///
    /// # Errors
    /// [`NameError`], with a name that would do where one can be made.
    pub fn function(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !text.chars().all(allowed) {
            let better = text.to_lowercase().chars().map(|c| if allowed(c) { c } else { '_' }).collect();
            return Err(NameError::NotAFunction(text.to_owned(), better));
        }
        if text.len() > MAX_FUNCTION_CHARS {
            return Err(NameError::TooLong(text.len(), MAX_FUNCTION_CHARS));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SkillName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let chars = text.chars().count();
        if chars == 0 {
            return Err(NameError::Empty);
        }
        if chars > MAX_CHARS {
            return Err(NameError::TooLong(chars, MAX_CHARS));
        }
        if let Some(c) = text.chars().find(|c| c.is_control() || *c == '/') {
            return Err(NameError::Character(c));
        }
        if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
            return Err(NameError::OuterBlank);
        }
        if text == "." || text == ".." {
            return Err(NameError::Dots(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SkillName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for SkillName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for SkillName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_kinds() {
        assert_eq!("disk_cleaner".parse::<SkillName>().unwrap(), SkillName::function("disk_cleaner").unwrap());
        assert_eq!("数据 清洗".parse::<SkillName>().unwrap().as_str(), "数据 清洗");
        assert_eq!(
            SkillName::function("Disk-Cleaner"),
            Err(NameError::NotAFunction("Disk-Cleaner".into(), "disk_cleaner".into()))
        );
        assert_eq!(SkillName::function(&"a".repeat(65)), Err(NameError::TooLong(65, 64)));
    }

    #[test]
    fn what_is_no_name() {
        for (text, error) in [
            ("", NameError::Empty),
            ("a/b", NameError::Character('/')),
            ("a\nb", NameError::Character('\n')),
            ("a\0", NameError::Character('\0')),
            (" a", NameError::OuterBlank),
            ("..", NameError::Dots("..".into())),
        ] {
            assert_eq!(text.parse::<SkillName>(), Err(error));
        }
        assert_eq!("é".repeat(129).parse::<SkillName>(), Err(NameError::TooLong(129, 128)));
        assert!("é".repeat(128).parse::<SkillName>().is_ok());
    }
}
