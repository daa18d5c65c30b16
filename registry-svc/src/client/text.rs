//! Texts of others on a terminal. What they hold can neither move the cursor, nor hide, nor change the order of what is
//! read.

use std::fmt::Write as _;

/// Longer texts are cut.
const MAX_CHARS: usize = 200;

/// Every character that would not be seen is written out; lines stay lines.
pub(super) fn visible(text: &str) -> String {
    written(text, |c| c == '\n')
}

/// The same on one line, and no longer than a line should be.
pub(super) fn line(text: &str, max_chars: usize) -> String {
    let count = text.chars().count();
    if count <= max_chars {
        return written(text, |_| false);
    }
    let head: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    written(&head, |_| false) + "…"
}

/// JSON over several lines, with all that a signer is to see: numbers as they are written, keys in their order, texts as
/// they are meant, with what would not be seen written out. Long texts are cut, with a note, unless `full`. What is no
/// JSON comes as it is.
pub(super) fn json(text: &str, full: bool) -> String {
    let mut shown = String::new();
    let (mut depth, mut rest) = (0_usize, text.trim());
    while let Some(c) = rest.chars().next() {
        match c {
            '"' => {
                let Some(end) = string_end(rest) else { return visible(text) };
                let Ok(value) = serde_json::from_str::<String>(&rest[..end]) else { return visible(text) };
                quoted(&mut shown, &value, full);
                rest = &rest[end..];
                continue;
            }
            '{' | '[' => {
                let inside = rest[1..].trim_start();
                if inside.starts_with(['}', ']']) {
                    shown.push_str(if c == '{' { "{}" } else { "[]" });
                    rest = &inside[1..];
                    continue;
                }
                depth += 1;
                shown.push(c);
                new_line(&mut shown, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut shown, depth);
                shown.push(c);
            }
            ',' => {
                shown.push(c);
                new_line(&mut shown, depth);
            }
            ':' => shown.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => shown.push_str(&written(c.encode_utf8(&mut [0; 4]), |_| false)),
        }
        rest = &rest[c.len_utf8()..];
    }
    shown
}

fn new_line(shown: &mut String, depth: usize) {
    shown.push('\n');
    shown.push_str(&"  ".repeat(depth));
}

/// Where the string at the beginning ends, its quotes included.
fn string_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn quoted(shown: &mut String, value: &str, full: bool) {
    let count = value.chars().count();
    let max = if full { usize::MAX } else { MAX_CHARS };
    shown.push('"');
    for c in value.chars().take(max) {
        match c {
            '"' => shown.push_str("\\\""),
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            c => shown.push_str(&written(c.encode_utf8(&mut [0; 4]), |_| false)),
        }
    }
    shown.push('"');
    if count > max {
        // No failure of a String.
        let _ = write!(shown, " … and {} more characters: --full shows them", count - max);
    }
}

fn written(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) && !keep(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Control characters, those that turn the direction of reading, and those that are not seen at all.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arguments_as_a_person_reads_them() {
        let text = r#"{"path":"/srv","n":12345678901234567890123,"z":[],"a":[1.50,{"b":null}],"o":{ }}"#;
        let shown = "{\n  \"path\": \"/srv\",\n  \"n\": 12345678901234567890123,\n  \"z\": [],\n  \"a\": [\n    1.50,\n    \
                     {\n      \"b\": null\n    }\n  ],\n  \"o\": {}\n}";
        assert_eq!(json(text, false), shown);
        assert_eq!(json("{}", false), "{}");
        assert_eq!(json("", false), "");
    }

    #[test]
    fn nothing_hides() {
        let sneaky = "{\"a\":\"\\u001b[2J\\u202etxt\\u200b\\u0072m -rf\u{202d}\\\"\\n}\"}";
        let shown = json(sneaky, false);
        assert_eq!(shown, "{\n  \"a\": \"\\u{1b}[2J\\u{202e}txt\\u{200b}rm -rf\\u{202d}\\\"\\n}\"\n}");
        assert_eq!(visible("a\u{1b}\nb\r"), "a\\u{1b}\nb\\u{d}");
        assert_eq!(line("a\nb", 9), "a\\u{a}b");
        assert_eq!(line("abcdef", 4), "abc…");
    }

    #[test]
    fn long_texts_are_cut_with_a_note() {
        let text = format!(r#"{{"a":"{}"}}"#, "é".repeat(250));
        let shown = json(&text, false);
        assert!(shown.contains(&format!("{}\" … and 50 more characters", "é".repeat(200))), "{shown}");
        assert!(json(&text, true).contains(&"é".repeat(250)));
    }

    proptest! {
        #[test]
        fn whatever_it_is_no_control_character_comes_through(text in any::<String>()) {
            for shown in [json(&text, true), json(&serde_json::json!({ &text: &text }).to_string(), false)] {
                prop_assert!(!shown.contains(|c| is_hidden(c) && c != '\n'), "{:?}", shown);
            }
        }
    }
}
