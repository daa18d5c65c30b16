//! Text to words, the same for what is found and for what is asked. Scripts that are written without blanks become pairs
//! of characters, identifiers their parts. It knows no language.

use std::collections::BTreeSet;

use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

/// A word longer than that is cut: nobody asks for the rest.
const MOST_CHARS: usize = 40;
/// A question has at most so many different words; those that follow are not asked for.
pub(super) const MOST_WORDS: usize = 64;

/// Gives every word of a text, in order, those that come more than once as often as they come.
pub(super) fn each_word(text: &str, mut word: impl FnMut(&str)) {
    let folded;
    let text = if text.is_ascii() {
        text
    } else {
        folded = fold(text);
        &folded
    };
    let mut buffer = String::new();
    let mut run = Run::default();
    for (at, c) in text.char_indices() {
        let kind = Kind::of(c);
        if run.kind != kind {
            run.end(&text[run.start..at], &mut buffer, &mut word);
            run = Run { start: at, kind };
        }
    }
    run.end(&text[run.start..], &mut buffer, &mut word);
}

/// The different words of a question.
pub(super) fn words_of_question(text: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut words = Vec::new();
    each_word(text, |word| {
        if words.len() < MOST_WORDS && seen.insert(word.to_owned()) {
            words.push(word.to_owned());
        }
    });
    words
}

/// Whether it is a single character of a script without blanks: it is found wherever it stands.
pub(super) fn is_lone_character(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(is_unspaced) && chars.next().is_none()
}

/// With what a word must begin to be another form of this one, where a form can be told by its letters: `cleaning` asks
/// for `clean` and `cleaner` too. `None` where even the word itself is too short to say.
pub(super) fn beginning(word: &str) -> Option<&str> {
    const SHORTEST: usize = 3;
    if !word.bytes().all(|b| b.is_ascii_alphabetic()) {
        return (word.chars().count() >= SHORTEST && !word.chars().any(is_unspaced)).then_some(word);
    }
    // What is left must still say something; `ss` is no ending.
    let stem = [("ies", 4), ("ing", 4), ("ers", 4), ("ed", 4), ("er", 4), ("es", 4), ("s", 3), ("y", 4), ("e", 4)]
        .into_iter()
        .find_map(|(ending, shortest)| word.strip_suffix(ending).filter(|stem| stem.len() >= shortest))
        .filter(|stem| !(stem.ends_with('s') && word.ends_with("ss")));
    stem.or((word.len() >= SHORTEST).then_some(word))
}

/// One form for what looks alike: no ligatures, widths or accents.
fn fold(text: &str) -> String {
    text.nfkd().filter(|c| !matches!(c, '\u{300}'..='\u{36f}')).nfc().collect()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Between,
    Spaced,
    Unspaced,
}

impl Kind {
    fn of(c: char) -> Self {
        if is_unspaced(c) {
            Self::Unspaced
        } else if c.is_alphanumeric() || is_combining_mark(c) {
            Self::Spaced
        } else {
            Self::Between
        }
    }
}

/// Characters of one kind that stand together.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    start: usize,
    kind: Kind,
}

impl Run {
    fn end(self, run: &str, buffer: &mut String, word: &mut impl FnMut(&str)) {
        match self.kind {
            Kind::Between => {}
            Kind::Spaced => spaced(run, buffer, word),
            Kind::Unspaced => unspaced(run, word),
        }
    }
}

/// `GitHub` is github, git and hub: people write it either way.
fn spaced(run: &str, buffer: &mut String, word: &mut impl FnMut(&str)) {
    let mut lower = |part: &str| {
        buffer.clear();
        buffer.extend(part.chars().flat_map(char::to_lowercase).take(MOST_CHARS));
        word(buffer);
    };
    lower(run);
    if !run.bytes().any(|b| b.is_ascii_uppercase()) {
        return;
    }
    let mut start = 0;
    let chars: Vec<_> = run.char_indices().collect();
    for pair in 1..chars.len() {
        let ((_, before), (at, c)) = (chars[pair - 1], chars[pair]);
        let next_is_lower = chars.get(pair + 1).is_some_and(|(_, next)| next.is_lowercase());
        if c.is_uppercase() && (before.is_lowercase() || (before.is_uppercase() && next_is_lower)) {
            lower(&run[start..at]);
            start = at;
        }
    }
    if start > 0 {
        lower(&run[start..]);
    }
}

fn unspaced(run: &str, word: &mut impl FnMut(&str)) {
    let ends = || run.char_indices().map(|(at, c)| at + c.len_utf8());
    if ends().nth(1).is_none() {
        return word(run);
    }
    for ((start, _), end) in run.char_indices().zip(ends().skip(1)) {
        word(&run[start..end]);
    }
}

/// Scripts that put no blanks between words, and Hangul, whose words carry their particles.
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c),
        0x0e00..=0x0eff // Thai, Lao
        | 0x0f00..=0x0fff // Tibetan
        | 0x1000..=0x109f // Myanmar
        | 0x1780..=0x17ff // Khmer
        | 0x3040..=0x30ff // Hiragana, Katakana
        | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x3ffff // Han
        | 0xac00..=0xd7a3 // Hangul
    ) && (c.is_alphanumeric() || is_combining_mark(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> String {
        let mut words = Vec::new();
        each_word(text, |word| words.push(word.to_owned()));
        words.join(" ")
    }

    #[test]
    fn what_is_a_word() {
        for (text, expected) in [
            ("disk_cleaner", "disk cleaner"),
            ("incident-triage v2", "incident triage v2"),
            ("Finds GitHub's HTTPServer, e.g. k8s.", "finds github git hub s httpserver http server e g k8s"),
            ("Café ﬁle ＡＢＣ naïve", "cafe file abc naive"),
            ("Ärger über ЁЖ", "arger uber еж"),
            ("数据清洗 tool", "数据 据清 清洗 tool"),
            ("清", "清"),
            ("ログを読む", "ログ グを を読 読む"),
            ("ﾛｸﾞ", "ログ"),
            ("디스크 정리", "디스 스크 정리"),
            ("ไทย", "ไท ทย"),
            ("日志log分析", "日志 log 分析"),
            ("。、！ ---", ""),
            ("", ""),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
        assert_eq!(words(&"x".repeat(500)), "x".repeat(MOST_CHARS));
    }

    #[test]
    fn forms_of_a_word() {
        for (word, expected) in [
            ("cleaning", Some("clean")),
            ("cleaner", Some("clean")),
            ("queries", Some("quer")),
            ("query", Some("quer")),
            ("databases", Some("databas")),
            ("process", Some("process")),
            ("processes", Some("process")),
            ("logs", Some("log")),
            ("files", Some("file")),
            ("log", Some("log")),
            ("up", None),
            ("清洗", None),
            ("очистка", Some("очистка")),
            ("s3", None),
        ] {
            assert_eq!(beginning(word), expected, "{word}");
        }
        assert!(is_lone_character("清") && !is_lone_character("清洗") && !is_lone_character("a"));
    }

    proptest! {
        #[test]
        fn any_text_has_words_that_are_found_again(text in any::<String>()) {
            each_word(&text, |word| {
                assert!(!word.is_empty() && word.chars().count() <= MOST_CHARS);
            });
            prop_assert!(words_of_question(&text).len() <= MOST_WORDS);
        }
    }
}
