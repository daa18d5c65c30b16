//! A frontmatter of nothing but plain lines, `key: words` and `key: 12`, as most are: what the library would make of it, in
//! a tenth of the time. Says nothing to whatever it does not know.

use serde_json::Value;

use super::super::node::{Data, Member, Node};
use super::super::text::Text;

/// More are for the library.
const MAX_LINES: usize = 64;
const MAX_KEY_BYTES: usize = 64;
const MAX_DIGITS: usize = 9;
/// What is not text, in one version of YAML or another.
const NOT_TEXT: [&str; 11] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"];

/// The keys and values, where every line is a plain one.
pub(super) fn read(text: &Text) -> Option<Vec<Member>> {
    let (mut members, mut start) = (Vec::<Member>::new(), 0);
    for line in text.as_str().split_inclusive('\n') {
        let member = member(line.strip_suffix('\n').unwrap_or(line), start)?;
        if members.len() == MAX_LINES || members.iter().any(|other| other.key == member.key) {
            return None;
        }
        members.push(member);
        start += line.len();
    }
    (!members.is_empty()).then_some(members)
}

fn member(line: &str, start: usize) -> Option<Member> {
    let (key, value) = line.split_once(": ")?;
    let is_key = key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.len() <= MAX_KEY_BYTES
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'));
    if !is_key || is_typed(key) {
        return None;
    }
    let value_start = start + key.len() + 2;
    let value = Node { data: scalar(value)?, span: value_start..value_start + value.len() };
    Some(Member { key: key.to_owned(), key_span: start..start + key.len(), value })
}

fn scalar(value: &str) -> Option<Data> {
    if value.bytes().all(|b| b.is_ascii_digit()) {
        let is_plain = value == "0" || (!value.is_empty() && !value.starts_with('0') && value.len() <= MAX_DIGITS);
        let number: u64 = value.parse().ok().filter(|_| is_plain)?;
        return Some(Data::Plain(Value::from(number), value.to_owned()));
    }
    let is_text = value.starts_with(|c: char| c.is_ascii_alphabetic())
        && !value.ends_with([' ', ':'])
        && !value.contains(": ")
        && !value.contains(" #")
        && value.chars().all(|c| matches!(c, ' '..='~') || c.is_alphanumeric())
        && !is_typed(value);
    is_text.then(|| Data::Text(value.to_owned()))
}

fn is_typed(word: &str) -> bool {
    NOT_TEXT.iter().any(|typed| word.eq_ignore_ascii_case(typed))
}

#[cfg(test)]
mod tests {
    use super::super::parse_fully;
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Text {
        Text::part(text.to_owned(), 2)
    }

    #[test]
    fn what_most_people_write_is_plain() {
        let text = of(
            "name: disk-full\ndescription: Frees space, e.g. of /var: it's \"safe\" (mostly) & 快 #1\ncategory_order: 12\n",
        );
        assert!(read(&text).is_none(), "a colon and a blank");
        let text = of(
            "name: disk-full\ndescription: Frees space, e.g. of /var; it's \"safe\" (mostly) & 快#1\ncategory_order: 12\n",
        );
        let members = read(&text).unwrap();
        assert_eq!(
            members.iter().map(|member| member.key.as_str()).collect::<Vec<_>>(),
            ["name", "description", "category_order"]
        );
        assert_eq!(members, parse_fully(&text).unwrap());
    }

    #[test]
    fn what_may_mean_something_else_is_not() {
        for text in [
            "",
            "\n",
            "name:\n",
            "name: \n",
            "name: x\n\n",
            "name: x\n  y\n",
            "name: x\nname: y\n",
            "name: x # y\n",
            "name: true\n",
            "name: Null\n",
            "name: 012\n",
            "name: 1.5\n",
            "name: -1\n",
            "name: 'x'\n",
            "name: [x]\n",
            "name: x:\n",
            "name: x \n",
            "name:  x\n",
            "Name: x\n",
            "- name: x\n",
            "no: x\n",
            "name: x\ty\n",
            "name: x\u{85}y\n",
            "name: x\u{2028}y\n",
            "name: *x\n",
            "name: >\n",
            "---\nname: x\n",
        ] {
            assert_eq!(read(&of(text)), None, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4096, ..ProptestConfig::default() })]

        #[test]
        fn it_is_what_the_library_makes_of_it(
            lines in proptest::collection::vec(
                ("[a-c_0-9-]{0,3}", ":|: |:  ", "[a-zA-Z0-9éß快²\u{a0}\u{2028} ,:#'\"&*!|>%@`?{}\\[\\]()~.\\\\-]{0,12}|true|no|[0-9]{1,10}"),
                0..5,
            ),
        ) {
            let text: String = lines.into_iter().map(|(key, colon, value)| format!("{key}{colon}{value}\n")).collect();
            let text = of(&text);
            if let Some(members) = read(&text) {
                prop_assert_eq!(parse_fully(&text), Ok(members));
            }
        }
    }
}
