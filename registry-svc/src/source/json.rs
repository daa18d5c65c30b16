//! JSON with positions and without mercy: no comment, no trailing comma, no key twice, at any depth. Knows no manifest.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::findings::Fault;
use super::node::{Data, Member, Node};
use super::text::Text;
use super::{Stage, codes};

/// Values nested deeper than this have the position of the one around them: every level more is another pass.
const POSITIONED_DEPTH: usize = 3;

/// How an error begins that is a key's.
const TWICE: &str = "stands twice: ";

/// The one value of a text.
pub(crate) fn parse(text: &Text) -> Result<Node, Fault> {
    // One pass finds all that is wrong; the others find where the values are.
    serde_json::from_str::<Checked>(text.as_str()).map_err(|error| fault(text, &error))?;
    serde_json::from_str::<&RawValue>(text.as_str())
        .and_then(|raw| node(text, raw, 0))
        .map_err(|error| fault(text, &error))
}

fn node(text: &Text, raw: &RawValue, depth: usize) -> serde_json::Result<Node> {
    let json = raw.get();
    let start = offset(text, raw);
    let span = start..start + json.len();
    let data = match json.as_bytes().first() {
        Some(b'{') if depth < POSITIONED_DEPTH => {
            let members: Members<'_> = serde_json::from_str(json)?;
            let member = |(key, value): (&RawValue, &RawValue)| {
                let start = offset(text, key);
                let key_span = start..start + key.get().len();
                Ok(Member { key: serde_json::from_str(key.get())?, key_span, value: node(text, value, depth + 1)? })
            };
            Data::Map(members.0.into_iter().map(member).collect::<serde_json::Result<_>>()?)
        }
        Some(b'[') if depth < POSITIONED_DEPTH => {
            let items: Vec<&RawValue> = serde_json::from_str(json)?;
            Data::List(items.into_iter().map(|item| node(text, item, depth + 1)).collect::<serde_json::Result<_>>()?)
        }
        Some(b'{' | b'[') => return Ok(Node::of_value(serde_json::from_str(json)?, span)),
        Some(b'"') => Data::Text(serde_json::from_str(json)?),
        Some(b'n') => Data::Null,
        _ => Data::Plain(serde_json::from_str(json)?, json.to_owned()),
    };
    Ok(Node { data, span })
}

/// Where a piece of the text begins in it.
fn offset(text: &Text, raw: &RawValue) -> usize {
    raw.get().as_ptr().addr() - text.as_str().as_ptr().addr()
}

/// An object's keys and values as they are written, in their order.
struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keep;
        impl<'de> Visitor<'de> for Keep {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Keep)
    }
}

/// A value that was looked at and let go: no key stands twice, at any depth, and every text and number is one.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_bool<E>(self, _value: bool) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_i64<E>(self, _value: i64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_u64<E>(self, _value: u64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_f64<E>(self, _value: f64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_str<E>(self, _value: &str) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(Self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format_args!("{TWICE}{key:?}")));
            }
            keys.insert(key);
            map.next_value::<Self>()?;
        }
        Ok(Self)
    }
}

/// What is wrong, at the character that does not fit, with what most likely was meant.
fn fault(text: &Text, error: &serde_json::Error) -> Fault {
    let line = u32::try_from(error.line()).unwrap_or(u32::MAX).max(1);
    let column = text.column_of_bytes(line, error.column().max(1));
    let message = bare(error);
    let (before, rest) = around(text, line, column);
    if let Some(key) = message.strip_prefix(TWICE) {
        let position = text.position(string_start(before));
        let message = format!("the key {key} stands twice: remove one");
        return Fault::at(codes::E_DUPLICATE_KEY, Stage::Parse, position, message);
    }
    if message == "recursion limit exceeded" {
        let message = "values are nested more than 127 deep: flatten them";
        return Fault::at(codes::E_TOO_DEEP, Stage::Parse, (line, column), message);
    }
    let hint = match rest.chars().next() {
        None if text.as_str().trim().is_empty() => ": the file is empty",
        Some('/' | '#') => ": JSON has no comments, remove it",
        Some('\'') => ": JSON has double quotes only",
        Some('}' | ']') if before.trim_end().ends_with(',') => ": remove the comma before it",
        _ if message == "trailing characters" => ": remove what follows the object",
        _ => "",
    };
    Fault::at(codes::E_JSON, Stage::Parse, (line, column), format!("{message}{hint}"))
}

/// What stands before and from a position of a text.
fn around(text: &Text, line: u32, column: u32) -> (&str, &str) {
    let skipped: usize = text.as_str().split_inclusive('\n').take(line as usize - 1).map(str::len).sum();
    let within = text.as_str()[skipped..].char_indices().nth(column as usize - 1);
    text.as_str().split_at(within.map_or(text.as_str().len(), |(offset, _)| skipped + offset))
}

/// Where the string begins whose closing quote is the next character: at the last quote that no backslash escapes.
fn string_start(before: &str) -> usize {
    let quotes = before.rmatch_indices('"').map(|(offset, _)| offset);
    let escaped = |offset: usize| before[..offset].bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1;
    quotes.into_iter().find(|offset| !escaped(*offset)).unwrap_or_default()
}

/// The message without its position, which would be counted in bytes.
fn bare(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn fault(json: &str) -> (&'static str, u32, u32) {
        let fault = parse(&Text::of_file(json.as_bytes()).unwrap()).unwrap_err();
        (fault.code, fault.line, fault.column)
    }

    #[test]
    fn values_and_positions() {
        let text = Text::of_file(b"\xEF\xBB\xBF{\n  \"\xC3\xA9\": [1, 1.50, \"a\\n\"],\n \"n\": null}\n").unwrap();
        let node = parse(&text).unwrap();
        assert_eq!(node.clone().into_value(), json!({"é": [1, 1.5, "a\n"], "n": null}));
        let Data::Map(members) = &node.data else { panic!() };
        assert_eq!(text.position(members[0].value.span.start), (2, 8));
        assert_eq!(&text.as_str()[members[0].value.span.clone()], "[1, 1.50, \"a\\n\"]");
    }

    #[test]
    fn what_is_refused_and_where() {
        for (json, code, line, column) in [
            ("", codes::E_JSON, 1, 1),
            ("{\"a\":1,\n \"b\":{\"c\":[{\"d\":1,\"e\":2,\"d\":3}]}}", codes::E_DUPLICATE_KEY, 2, 25),
            ("{\"a\":1,\n \"\\u0061\":2}", codes::E_DUPLICATE_KEY, 2, 2),
            ("{\"a\":1, // one\n \"b\":2}", codes::E_JSON, 1, 9),
            ("{\"a\":1,\n}", codes::E_JSON, 2, 1),
            ("{\"a\":1}\n{}", codes::E_JSON, 2, 1),
            ("{\"é\":\"é\" x}", codes::E_JSON, 1, 10),
            ("{\"a\":\"\\ud800\"}", codes::E_JSON, 1, 13),
            ("{\"a\":1e999}", codes::E_JSON, 1, 10),
            ("{\"a\\\"\":1,\"b\":{\"\\\\\":1,\"\\\\\":2}}", codes::E_DUPLICATE_KEY, 1, 22),
            ("{\"a\":01}", codes::E_JSON, 1, 7),
        ] {
            assert_eq!(fault(json), (code, line, column), "{json}");
        }
        assert_eq!(fault(&format!("{}{}", "[".repeat(5000), "]".repeat(5000))).0, codes::E_TOO_DEEP);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_read_or_refused_with_a_position(json in "[\\[\\]{}\",:0-9a\\\\ué \n-]{0,40}") {
            let text = Text::of_file(json.as_bytes()).unwrap();
            match parse(&text) {
                Ok(node) => prop_assert_eq!(Some(node.into_value()), serde_json::from_str(&json).ok()),
                Err(fault) => prop_assert!(fault.line >= 1 && fault.column >= 1),
            }
        }
    }
}
