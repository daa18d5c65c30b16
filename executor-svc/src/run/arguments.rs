//! Arguments: from what a caller sent to the bytes that the skill gets, checked before anything starts.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use skillyard::Digest;
use skillyard::service::error::{Reason, Refusal};

use crate::mirror::Schema;

/// Most bytes of the arguments.
pub const MAX_BYTES: usize = 8 << 20;
/// From here on they are parsed and checked on a blocking thread, so that other runs do not wait for it.
pub const LARGE: usize = 256 << 10;
/// Steps of a check, as [`Schema::cost`] counts them, that are taken where the other runs wait for them.
const AT_ONCE: u64 = 10_000;
/// Steps of a check that are taken at all, and how many more for each byte of the arguments.
const MOST_STEPS: u64 = 1_000_000;
const STEPS_A_BYTE: u64 = 4;
/// Where a check takes more steps, the first violation is reported alone: each that is found is kept in memory.
const ALL_VIOLATIONS: u64 = 100_000;
/// Violations that are reported; more do not fit into a status.
const MAX_VIOLATIONS: usize = 16;

/// What a caller sent.
#[derive(Clone, Debug)]
pub enum RawArguments {
    /// Nothing: an empty object.
    None,
    /// A Struct, as JSON, and its size on the wire.
    Object(Map<String, Value>, usize),
    /// Text that is passed on byte for byte.
    Json(String),
}

/// Arguments that are one JSON object without duplicate keys, of an allowed size.
#[derive(Clone, Debug)]
pub struct Arguments {
    value: Value,
    bytes: Vec<u8>,
    sha256: Digest,
}

impl RawArguments {
    /// About how many bytes there are to look at.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Object(_, size) => *size,
            Self::Json(text) => text.len(),
        }
    }
}

impl Arguments {
    /// Parses and bounds them.
    ///
    /// # Errors
    /// INVALID_ARGUMENTS with line and column, or ARGUMENTS_TOO_LARGE.
    pub fn parse(raw: RawArguments) -> Result<Self, Refusal> {
        let (value, bytes) = match raw {
            RawArguments::None => (Value::Object(Map::new()), b"{}".to_vec()),
            RawArguments::Object(map, _) => {
                let value = Value::Object(map);
                // Keys are sorted, as serde_json's map is.
                let bytes = value.to_string().into_bytes();
                (value, bytes)
            }
            RawArguments::Json(text) => {
                if text.len() > MAX_BYTES {
                    return Err(too_large(text.len()));
                }
                (parse_object(&text)?, text.into_bytes())
            }
        };
        if bytes.len() > MAX_BYTES {
            return Err(too_large(bytes.len()));
        }
        let sha256 = Digest::of(&bytes);
        Ok(Self { value, bytes, sha256 })
    }

    /// Whether they are checked against the schema so fast that nobody else need be kept from it.
    #[must_use]
    pub fn are_checked_at_once(&self, schema: &Schema) -> bool {
        self.size() <= LARGE && schema.cost(&self.value, AT_ONCE).is_some()
    }

    /// Checks them against a skill's schema.
    ///
    /// # Errors
    /// INVALID_ARGUMENTS with a violation for each place that breaks it, by JSON pointer; or because the check would take
    /// too long.
    pub fn validate(&self, skill: &str, schema: &Schema) -> Result<(), Refusal> {
        let most = MOST_STEPS + STEPS_A_BYTE * self.size() as u64;
        let Some(cost) = schema.cost(&self.value, most) else {
            let message = format!(
                "the arguments are not checked against the schema of {skill:?}: it would take more than {most} steps; \
                 pass less deeply nested ones, or have the choices and references in the schema made simpler"
            );
            return Err(Refusal::new(Reason::InvalidArguments, message).violation("", "too costly to check"));
        };
        let schema = schema.validator();
        if cost > ALL_VIOLATIONS && schema.is_valid(&self.value) {
            return Ok(());
        }
        let most_violations = if cost > ALL_VIOLATIONS { 1 } else { usize::MAX };
        let mut errors = schema.iter_errors(&self.value).take(most_violations).peekable();
        if errors.peek().is_none() {
            return Ok(());
        }
        let mut refusal = None;
        let mut more = 0;
        for (i, error) in errors.enumerate() {
            if i >= MAX_VIOLATIONS {
                more += 1;
                continue;
            }
            let pointer = error.instance_path().to_string();
            let text = error.to_string();
            let refused = refusal.take().unwrap_or_else(|| {
                let at = if pointer.is_empty() { "at the top".to_owned() } else { format!("at {pointer}") };
                Refusal::new(
                    Reason::InvalidArguments,
                    format!("the arguments break the schema of {skill:?} {at}: {text}; CatalogService.GetSkill has the schema"),
                )
            });
            refusal = Some(refused.violation(pointer, text));
        }
        match refusal {
            Some(refused) if more > 0 => Err(refused.with("more_violations", more.to_string())),
            Some(refused) => Err(refused),
            None => Ok(()),
        }
    }

    /// How many bytes the skill gets.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that the skill gets.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Of the bytes.
    #[must_use]
    pub fn sha256(&self) -> Digest {
        self.sha256
    }
}

fn too_large(size: usize) -> Refusal {
    let message = format!(
        "the arguments have {size} bytes, at most {MAX_BYTES} (8 MiB) are taken: put large data into a file and pass its path"
    );
    Refusal::new(Reason::ArgumentsTooLarge, message)
        .with("size_bytes", size.to_string())
        .with("limit_bytes", MAX_BYTES.to_string())
}

fn parse_object(text: &str) -> Result<Value, Refusal> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = Unique.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    match parsed {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(other) => {
            let kind = match other {
                Value::Null => "null",
                Value::Bool(_) => "a boolean",
                Value::Number(_) => "a number",
                Value::String(_) => "a string",
                Value::Array(_) | Value::Object(_) => "an array",
            };
            let message = format!("the arguments are {kind}: write a JSON object, as in {{\"key\": \"value\"}}");
            Err(Refusal::new(Reason::InvalidArguments, message).violation("", "must be an object"))
        }
        Err(error) => {
            let message = format!("the arguments are not JSON: {error}; write one JSON object, {{}} for none");
            Err(Refusal::new(Reason::InvalidArguments, message).violation("", error.to_string()))
        }
    }
}

/// A JSON value in which no object, at any depth, has a key twice.
struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Unique)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key_seed(Key)? {
            let value = access.next_value_seed(Unique)?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        String::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(text: &str) -> (Reason, String) {
        let refusal = Arguments::parse(RawArguments::Json(text.into())).unwrap_err();
        (refusal.reason(), tonic::Status::from(refusal).message().to_owned())
    }

    #[test]
    fn text_is_passed_on_byte_for_byte() {
        let text = " {\"b\" : 1.0, \"a\":[{}, 1e400000000000]} ".replace("1e400000000000", "12345678901234567890123");
        let arguments = Arguments::parse(RawArguments::Json(text.clone())).unwrap();
        assert_eq!(arguments.sha256(), Digest::of(text.as_bytes()));
        assert_eq!(arguments.into_bytes(), text.as_bytes());
    }

    #[test]
    fn a_struct_has_one_form() {
        let map = json!({"z": 3, "a": {"y": 1.5, "b": "é"}}).as_object().unwrap().clone();
        let bytes = Arguments::parse(RawArguments::Object(map, 0)).unwrap().into_bytes();
        assert_eq!(String::from_utf8(bytes).unwrap(), r#"{"a":{"b":"é","y":1.5},"z":3}"#);
        assert_eq!(Arguments::parse(RawArguments::None).unwrap().into_bytes(), b"{}");
    }

    #[test]
    fn what_is_refused() {
        let (reason, message) = refused(r#"{"a": {"b": 1, "b": 2}}"#);
        assert_eq!(reason, Reason::InvalidArguments);
        assert!(message.contains(r#"duplicate key "b" at line 1 column"#), "{message}");
        assert!(refused(r#"{"a": [{"b": 1, "\u0062": 2}]}"#).1.contains("duplicate key"));
        assert!(refused("[1]").1.contains("an array"));
        assert!(refused("null").1.contains("null"));
        assert!(refused("").1.contains("not JSON"));
        assert!(refused("{} {}").1.contains("trailing"));
        assert!(refused(&"[".repeat(1_000_000)).1.contains("recursion"));
        assert_eq!(refused(&format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_BYTES))).0, Reason::ArgumentsTooLarge);
    }

    #[test]
    fn violations_have_pointers() {
        let schema = json!({"type": "object", "properties": {"path": {}, "n": {"type": "array", "items": {"type": "integer"}}},
                            "required": ["path"], "additionalProperties": false});
        let schema = Schema::compile(&schema.to_string()).unwrap();
        let arguments = Arguments::parse(RawArguments::Json(r#"{"n": [1, "x"], "y": 1}"#.into())).unwrap();
        let status = tonic::Status::from(arguments.validate("s", &schema).unwrap_err());
        let details = tonic_types::StatusExt::get_error_details(&status);
        let mut fields: Vec<_> =
            details.bad_request().unwrap().field_violations.iter().map(|v| v.field.clone()).collect();
        fields.sort();
        assert_eq!(fields, ["", "", "/n/1"]);
        let good = Arguments::parse(RawArguments::Json(r#"{"path": ""}"#.into())).unwrap();
        good.validate("s", &schema).unwrap();
    }
}
