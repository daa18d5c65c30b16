//! JSON with positions and without mercy: no comment, no trailing comma, no key twice, at any depth. Knows no manifest.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::findings::Fault;
use super::node::{Data, Member, Node, duplicate_key};
use super::text::Text;
use super::{Stage, codes};

/// Deepest nesting; what serde_json reads as a value too.
const MAX_DEPTH: usize = 100;

/// The one value of a text.
pub(crate) fn parse(text: &Text) -> Result<Node, Fault> {
    let raw = serde_json::from_str::<&RawValue>(text.as_str()).map_err(|error| syntax(text, &error))?;
    node(text, raw, 0)
}

fn node(text: &Text, raw: &RawValue, depth: usize) -> Result<Node, Fault> {
    let json = raw.get();
    let start = offset(text, raw);
    let at = |error: serde_json::Error| {
        let message = format!("{}: mend it", bare(&error));
        Fault::at(codes::E_JSON, Stage::Parse, text.position(start), message)
    };
    if depth > MAX_DEPTH {
        let message = format!("values are nested more than {MAX_DEPTH} deep: flatten them");
        return Err(Fault::at(codes::E_TOO_DEEP, Stage::Parse, text.position(start), message));
    }
    let data = match json.as_bytes().first() {
        Some(b'{') => {
            let raw: Members<'_> = serde_json::from_str(json).map_err(at)?;
            let mut members = Vec::with_capacity(raw.0.len());
            for (key, value) in &raw.0 {
                let key = node(text, key, depth)?;
                let value = Node { data: Data::Null, span: offset(text, value)..offset(text, value) };
                members.push(Member { key: key.as_text().unwrap_or_default().to_owned(), key_span: key.span, value });
            }
            if let Some(fault) = duplicate_key(&members, text) {
                return Err(fault);
            }
            for (member, (_, value)) in members.iter_mut().zip(raw.0) {
                member.value = node(text, value, depth + 1)?;
            }
            Data::Map(members)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(json).map_err(at)?;
            Data::List(items.into_iter().map(|item| node(text, item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Some(b'"') => Data::Text(serde_json::from_str::<Cow<'_, str>>(json).map_err(at)?.into_owned()),
        Some(b'n') => Data::Null,
        _ => Data::Plain(serde_json::from_str::<Value>(json).map_err(at)?, json.to_owned()),
    };
    Ok(Node { data, span: start..start + json.len() })
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

/// An error in the syntax, at the character that does not fit, with what most likely was meant.
fn syntax(text: &Text, error: &serde_json::Error) -> Fault {
    let line = u32::try_from(error.line()).unwrap_or(u32::MAX).max(1);
    let column = text.column_of_bytes(line, error.column().max(1));
    let rest = text.line(line).trim_start();
    let message = bare(error);
    let hint = if text.as_str().trim().is_empty() {
        ": the file is empty"
    } else if message.contains("trailing comma") {
        ": remove the comma"
    } else if message.contains("trailing characters") {
        ": remove what follows the object"
    } else if rest.starts_with("//") || rest.starts_with('#') || rest.contains("/*") || rest.contains(" //") {
        ": JSON has no comments, remove it"
    } else {
        ""
    };
    Fault::at(codes::E_JSON, Stage::Parse, (line, column), format!("{message}{hint}"))
}

/// The message without its position, which would be counted in bytes, and within a part of the text.
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
            ("{\"a\":\"\\ud800\"}", codes::E_JSON, 1, 6),
            ("{\"a\":1e999}", codes::E_JSON, 1, 6),
            ("{\"a\":01}", codes::E_JSON, 1, 7),
        ] {
            assert_eq!(fault(json), (code, line, column), "{json}");
        }
        assert_eq!(fault(&format!("{}{}", "[".repeat(5000), "]".repeat(5000))).0, codes::E_TOO_DEEP);
    }

    proptest! {
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
