//! Whether a JSON Schema can stand alone: it compiles, and refers to nothing but itself. Fetches nothing.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions};
use serde_json::{Value, json};

use super::codes;
use super::findings::shortened;

mod plain;

/// The keywords of all drafts by which a schema refers to another.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Of a message that may quote a whole schema.
const MOST_CHARS: usize = 300;
const DRAFTS: [Draft; 5] = [Draft::Draft4, Draft::Draft6, Draft::Draft7, Draft::Draft201909, Draft::Draft202012];

/// Why a schema cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unusable {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// Whether it compiles as it does in an executor: all drafts, nothing fetched, patterns in linear time.
pub(crate) fn check(schema: &Value) -> Result<(), Unusable> {
    if plain::is_plain(schema) { Ok(()) } else { check_fully(schema) }
}

/// Compiles it.
fn check_fully(schema: &Value) -> Result<(), Unusable> {
    let built = jsonschema::options().offline().with_pattern_options(PatternOptions::regex()).build(schema);
    let Err(error) = built else {
        return match foreign_reference(schema, Draft::default().detect(schema)) {
            Some(reference) => Err(outside(format!("{reference} is another schema"))),
            None => Ok(()),
        };
    };
    if let ValidationErrorKind::Referencing(reference) = error.kind() {
        return Err(outside(reference.to_string()));
    }
    let place = error.instance_path().to_string();
    let place = if place.is_empty() { String::new() } else { format!(" at {place}") };
    let message = format!("the schema does not compile{place}: {}", shortened(error.to_string(), MOST_CHARS));
    Err(Unusable { code: codes::E_SCHEMA_INVALID, message })
}

fn outside(what: String) -> Unusable {
    let what = shortened(what, MOST_CHARS);
    let message = format!("the schema refers outside itself or to nothing: {what}: copy it into \"$defs\"");
    Unusable { code: codes::E_SCHEMA_REF, message }
}

/// A reference of a schema that compiles to one that the library knows by itself, as it does the drafts' own.
fn foreign_reference(schema: &Value, draft: Draft) -> Option<&str> {
    let draft = draft.detect(schema);
    let mut own = REFERENCES.into_iter().filter_map(|keyword| schema.get(keyword)?.as_str());
    own.find(|reference| is_known_without(reference))
        .or_else(|| draft.subresources_of(schema).find_map(|part| foreign_reference(part, draft)))
}

/// Whether a reference leads somewhere from a schema of any draft that has nothing else.
fn is_known_without(reference: &str) -> bool {
    let document = reference.split('#').next().unwrap_or_default();
    let alone = json!({ "$ref": document });
    // A schema's own parts need no document's name.
    !document.is_empty()
        && DRAFTS.into_iter().any(|draft| jsonschema::options().with_draft(draft).offline().build(&alone).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(schema: Value) -> Option<&'static str> {
        check(&schema).err().map(|unusable| unusable.code)
    }

    #[test]
    fn a_schema_of_any_draft_may_refer_to_itself() {
        let drafts = [
            "http://json-schema.org/draft-04/schema#",
            "http://json-schema.org/draft-06/schema#",
            "http://json-schema.org/draft-07/schema#",
            "https://json-schema.org/draft/2019-09/schema",
            "https://json-schema.org/draft/2020-12/schema",
        ];
        for draft in drafts {
            let id = if draft.contains("04") { "id" } else { "$id" };
            for reference in ["#", "#/definitions/a", "b.json", "https://example.com/b.json#"] {
                let schema = json!({
                    "$schema": draft, id: "https://example.com/a.json",
                    "definitions": {"a": {"type": "object"}, "b": {id: "b.json", "type": "object"}},
                    "properties": {"x": {"$ref": reference}},
                });
                assert_eq!(check(&schema), Ok(()), "{draft} {reference}");
            }
        }
        assert_eq!(check(&json!({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}})), Ok(()));
    }

    #[test]
    fn what_leads_out_is_refused_even_where_it_could_be_followed() {
        let draft_7 = "http://json-schema.org/draft-07/schema#";
        let draft_12 = "https://json-schema.org/draft/2020-12/schema";
        for schema in [
            json!({"$ref": draft_7}),
            json!({"$ref": "https://json-schema.org/draft/2020-12/meta/core#/$defs/anchorString"}),
            json!({"$dynamicRef": format!("{draft_12}#meta")}),
            json!({"$schema": draft_7, "definitions": {"a": {"items": [{"not": {"$ref": draft_7}}]}}}),
            json!({"properties": {"const": {"$ref": draft_12}}}),
            json!({"$ref": "https://example.com/x"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"$ref": "other.json"}),
            json!({"$ref": "#/$defs/nowhere"}),
        ] {
            assert_eq!(code(schema.clone()), Some(codes::E_SCHEMA_REF), "{schema}");
        }
    }

    #[test]
    fn a_value_is_no_reference() {
        let value = json!({"$ref": "http://json-schema.org/draft-07/schema#"});
        for schema in [
            json!({"const": value}),
            json!({"enum": [value]}),
            json!({"default": value, "examples": [value]}),
            json!({"properties": {"$ref": {"type": "string"}}}),
        ] {
            assert_eq!(code(schema.clone()), None, "{schema}");
        }
    }
}
