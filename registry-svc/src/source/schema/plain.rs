//! Whether a JSON Schema is one of the plain ones, which compile and refer to nothing: most are, and to see it takes a
//! tenth of the time of compiling it. Says no to whatever it does not know.

use serde_json::{Map, Value};

/// Deeper ones are compiled.
const MAX_DEPTH: usize = 32;

/// Whether it has nothing but keywords that mean the same in every draft, with values that every draft allows.
pub(super) fn is_plain(schema: &Value) -> bool {
    // What a draft changes of the rest, and what an id makes of references, is for the library.
    is_schema(schema, MAX_DEPTH)
}

fn is_schema(schema: &Value, depth: usize) -> bool {
    match schema {
        Value::Bool(_) => true,
        Value::Object(keywords) => {
            depth > 0 && keywords.iter().all(|(keyword, value)| is_keyword(keyword, value, depth - 1))
        }
        _ => false,
    }
}

fn is_keyword(keyword: &str, value: &Value, depth: usize) -> bool {
    match keyword {
        "type" => {
            is_type(value) || value.as_array().is_some_and(|types| types.iter().all(is_type) && are_unique(types))
        }
        "title" | "description" => value.is_string(),
        "default" => true,
        "examples" => value.is_array(),
        "enum" => value.as_array().is_some_and(|values| are_unique(values)),
        "required" => value.as_array().is_some_and(|names| names.iter().all(Value::is_string) && are_unique(names)),
        "minimum" | "maximum" => value.is_number(),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => value.is_u64(),
        "uniqueItems" => value.is_boolean(),
        "properties" => value.as_object().is_some_and(|properties| are_schemas(properties, depth)),
        "items" | "additionalProperties" => is_schema(value, depth),
        "anyOf" | "allOf" | "oneOf" => {
            let schemas = value.as_array().filter(|schemas| !schemas.is_empty());
            schemas.is_some_and(|schemas| schemas.iter().all(|schema| is_schema(schema, depth)))
        }
        _ => false,
    }
}

fn are_schemas(properties: &Map<String, Value>, depth: usize) -> bool {
    properties.values().all(|schema| is_schema(schema, depth))
}

fn is_type(value: &Value) -> bool {
    let types = ["string", "integer", "number", "boolean", "array", "object", "null"];
    value.as_str().is_some_and(|name| types.contains(&name))
}

/// Not empty, and no value twice. Long lists are for the library, which does not compare each with each.
fn are_unique(values: &[Value]) -> bool {
    const LONGEST: usize = 64;
    (1..=LONGEST).contains(&values.len())
        && values.iter().enumerate().all(|(index, value)| !values[..index].contains(value))
}

#[cfg(test)]
mod tests {
    use super::super::check_fully;
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_people_write_is_plain() {
        for schema in [
            json!({"type": "object", "properties": {}}),
            json!({"type": "object", "properties": {"path": {"type": ["string", "null"], "description": "where"},
                "days": {"type": "integer", "minimum": 0, "default": 3}, "how": {"enum": ["a", 1, null]},
                "list": {"type": "array", "items": {"type": "object", "additionalProperties": false}, "maxItems": 3}},
                "required": ["path"], "anyOf": [{"required": ["days"]}, true]}),
        ] {
            assert!(is_plain(&schema), "{schema}");
        }
    }

    #[test]
    fn what_a_draft_or_a_name_could_change_is_not() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#"}),
            json!({"$id": "https://example.com/a"}),
            json!({"properties": {"a": {"pattern": "("}}}),
            json!({"required": "a"}),
            json!({"required": ["a", "a"]}),
            json!({"type": "text"}),
            json!({"items": [{}]}),
            json!({"minLength": -1}),
            json!({"properties": {"$ref": {"type": 3}}}),
        ] {
            assert!(!is_plain(&schema), "{schema}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            (-2_i64..3).prop_map(Value::from),
            Just(json!(0.5)),
            Just(json!(1e300)),
            prop_oneof![Just("string"), Just("object"), Just("#"), Just("")].prop_map(Value::from),
        ];
        let keys = prop_oneof![
            Just("type"),
            Just("title"),
            Just("description"),
            Just("default"),
            Just("examples"),
            Just("enum"),
            Just("required"),
            Just("minimum"),
            Just("maximum"),
            Just("minLength"),
            Just("maxItems"),
            Just("minProperties"),
            Just("uniqueItems"),
            Just("properties"),
            Just("items"),
            Just("additionalProperties"),
            Just("anyOf"),
            Just("allOf"),
            Just("oneOf"),
            Just("$ref"),
            Just("$id"),
        ];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
                proptest::collection::vec((keys.clone().prop_map(str::to_owned), inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2048, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_plain_compiles(schema in value()) {
            if schema.is_object() && is_plain(&schema) {
                prop_assert_eq!(check_fully(&schema), Ok(()));
            }
        }
    }
}
