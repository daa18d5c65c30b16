//! Texts of people within a line of Markdown that is ours: what they say stays, and none breaks the line.

use std::borrow::Cow;

/// Line breaks of every kind, and control characters, each run of them with the blanks around it, as one blank.
pub(crate) fn on_one_line(text: &str) -> Cow<'_, str> {
    let text = text.trim_matches(is_blank);
    if !text.contains(breaks) {
        return text.into();
    }
    let mut folded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(breaks) {
        folded.push_str(rest[..at].trim_end_matches(is_blank));
        folded.push(' ');
        rest = rest[at..].trim_start_matches(is_blank);
    }
    folded.push_str(rest);
    folded.into()
}

/// As code: between more backticks than stand side by side in it.
pub(crate) fn code(text: &str) -> String {
    let text = on_one_line(text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    if longest == 0 {
        return format!("`{text}`");
    }
    let fence = "`".repeat(longest + 1);
    format!("{fence} {text} {fence}")
}

fn breaks(c: char) -> bool {
    (c.is_control() && c != '\t') || matches!(c, '\u{2028}' | '\u{2029}')
}

fn is_blank(c: char) -> bool {
    breaks(c) || c.is_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn breaks_are_folded_and_nothing_else() {
        for (text, line) in [
            ("  Use when:  x\u{3000}y ", "Use when:  x\u{3000}y"),
            ("a\n\n  b\r\nc\u{2028}d\u{85}e\x0bf", "a b c d e f"),
            ("a\x1b[2Kb\0c", "a [2Kb c"),
            ("\n\n", ""),
            ("数据\n清洗", "数据 清洗"),
            ("\u{202e}abc \u{200b}d", "\u{202e}abc \u{200b}d"),
        ] {
            assert_eq!(on_one_line(text), line, "{text:?}");
        }
    }

    #[test]
    fn a_name_is_code_whatever_is_in_it() {
        for (name, shown) in [("a-b", "`a-b`"), ("a`b", "`` a`b ``"), ("``` x", "```` ``` x ````")] {
            assert_eq!(code(name), shown);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_one_line(text in "(?s).{0,40}") {
            let line = on_one_line(&text);
            prop_assert!(line.lines().count() <= 1 && !line.contains(breaks) && line.trim() == line);
            prop_assert_eq!(on_one_line(&line), line.clone());
        }
    }
}
