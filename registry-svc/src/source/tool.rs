//! What the APIs of model providers refuse in a function's definition: warnings at load. A skill is registered all the
//! same, since there are other ways to call it.

use serde_json::{Map, Value};
use skillyard::{Class, SkillName};

use super::codes;
use super::findings::Findings;

/// The tool that loads a playbook.
pub const LOAD: &str = "skill";
/// The tool that reads a file of one.
pub const READ: &str = "skill_resource";
/// What `OpenAI` and Anthropic refuse at a schema's root.
pub const ROOT_KEYWORDS: [&str; 5] = ["oneOf", "anyOf", "allOf", "not", "enum"];
/// Of a function's description (`OpenAI`).
pub const MAX_DESCRIPTION_CHARS: usize = 1024;

/// What a tool says of approvals takes at most so much of a description.
const APPROVAL_CHARS: usize = 64;
/// Levels of objects and arrays within one another (`OpenAI`).
const MAX_LEVELS: usize = 10;
/// Of a property's name (Anthropic).
const MAX_KEY_CHARS: usize = 64;

/// Whether playbooks are read by a tool of this name.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    name == LOAD || name == READ
}

/// A function's name, which is `[a-z0-9_]{1,64}` already.
pub(crate) fn check_name(name: &SkillName, at: (u32, u32), findings: &mut Findings) {
    if is_reserved(name.as_str()) {
        let message = format!(
            "{name} is the name of a tool by which playbooks are read: this skill is not offered to agents that see \
             playbooks; choose another name"
        );
        findings.warn(codes::W_TOOL_RESERVED, at, message);
    }
    if name.as_str().starts_with(|c: char| c.is_ascii_digit()) {
        let message = format!("the name {name} begins with a digit, which Gemini refuses: begin it with a letter");
        findings.warn(codes::W_TOOL_NAME, at, message);
    }
}

/// A function's description.
pub(crate) fn check_description(description: &str, class: Class, at: (u32, u32), findings: &mut Findings) {
    let most = if class == Class::Safe { MAX_DESCRIPTION_CHARS } else { MAX_DESCRIPTION_CHARS - APPROVAL_CHARS };
    let characters = description.trim().chars().count();
    if characters > most {
        let message = format!(
            "the description has {characters} characters, and what goes to OpenAI is cut after {most}: shorten it"
        );
        findings.warn(codes::W_TOOL_DESCRIPTION, at, message);
    }
}

/// A function's parameters.
pub(crate) fn check_schema(schema: &Value, at: (u32, u32), findings: &mut Findings) {
    let Some(root) = schema.as_object() else { return };
    if root.get("type").is_none_or(|kind| kind != "object") {
        let message = "the schema's root says not \"type\": \"object\", without which APIs refuse a tool, and so it is \
                       added to what they get: write it";
        findings.warn(codes::W_TOOL_SCHEMA_TYPE, at, message);
    }
    let refused: Vec<_> = ROOT_KEYWORDS.into_iter().filter(|keyword| root.contains_key(*keyword)).collect();
    if !refused.is_empty() {
        let message = format!(
            "OpenAI and Anthropic refuse {} at the schema's root: it is left out of what they get, and checked before a \
             run all the same; say it in the description, or write it below a property",
            refused.join(", ")
        );
        findings.warn(codes::W_TOOL_SCHEMA_ROOT, at, message);
    }
    if root.contains_key("$ref") {
        let message = "the schema's root is a $ref, which APIs refuse: write what it refers to in its place";
        findings.warn(codes::W_TOOL_SCHEMA_ROOT, at, message);
    }
    if root.contains_key("$schema") && !jsonschema::draft202012::meta::is_valid(schema) {
        let message = "the schema is none of draft 2020-12, and Anthropic refuses others: write what has changed since its \
                       draft (`exclusiveMinimum` is a number, a list of `items` is `prefixItems`)";
        findings.warn(codes::W_TOOL_SCHEMA_DRAFT, at, message);
    }
    let levels = levels(root);
    if levels > MAX_LEVELS {
        let message = format!(
            "the schema has {levels} levels of objects and arrays within one another, and OpenAI allows {MAX_LEVELS}: \
             flatten it"
        );
        findings.warn(codes::W_TOOL_SCHEMA_DEEP, at, message);
    }
    let keys = root.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    if let Some(key) = keys.into_iter().find(|key| !is_key(key)) {
        let message = format!(
            "Anthropic refuses the property {key:?}: write 1 to {MAX_KEY_CHARS} letters a-z, digits, `_`, `.` and `-`"
        );
        findings.warn(codes::W_TOOL_PROPERTY, at, message);
    }
}

fn is_key(key: &str) -> bool {
    (1..=MAX_KEY_CHARS).contains(&key.len())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// How many objects and arrays stand within one another, references not followed.
fn levels(schema: &Map<String, Value>) -> usize {
    let mut deepest = 0;
    for (keyword, value) in schema {
        let (inner, below) = match keyword.as_str() {
            "properties" | "patternProperties" => (values(value), 1),
            "items" | "prefixItems" | "additionalProperties" | "contains" => (one_or_many(value), 1),
            "oneOf" | "anyOf" | "allOf" | "not" | "if" | "then" | "else" => (one_or_many(value), 0),
            _ => continue,
        };
        deepest = inner.into_iter().map(|inner| levels(inner) + below).fold(deepest, usize::max);
    }
    deepest
}

fn values(value: &Value) -> Vec<&Map<String, Value>> {
    value.as_object().into_iter().flat_map(Map::values).filter_map(Value::as_object).collect()
}

fn one_or_many(value: &Value) -> Vec<&Map<String, Value>> {
    match value {
        Value::Array(items) => items.iter().filter_map(Value::as_object).collect(),
        one => one.as_object().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn warned(check: impl Fn(&mut Findings)) -> Vec<&'static str> {
        let mut findings = Findings::default();
        check(&mut findings);
        findings.into_diagnostics().into_iter().map(|diagnostic| diagnostic.code).collect()
    }

    #[test]
    fn names() {
        let codes = |name: &str| warned(|findings| check_name(&name.parse().unwrap(), (1, 1), findings));
        assert_eq!(codes("greet"), [""; 0]);
        assert_eq!(codes("_7zip"), [""; 0]);
        assert_eq!(codes("7zip"), [codes::W_TOOL_NAME]);
        assert_eq!(codes("skill"), [codes::W_TOOL_RESERVED]);
        assert_eq!(codes("skill_resource"), [codes::W_TOOL_RESERVED]);
    }

    #[test]
    fn descriptions() {
        let codes =
            |chars: usize, class| warned(|findings| check_description(&"é".repeat(chars), class, (1, 1), findings));
        assert_eq!(codes(1024, Class::Safe), [""; 0]);
        assert_eq!(codes(1025, Class::Safe), [codes::W_TOOL_DESCRIPTION]);
        assert_eq!(codes(960, Class::Dangerous), [""; 0]);
        assert_eq!(codes(961, Class::Dangerous), [codes::W_TOOL_DESCRIPTION]);
    }

    #[test]
    fn schemas() {
        let codes = |schema: Value| warned(|findings| check_schema(&schema, (1, 1), findings));
        let mut deep = json!({"type": "string"});
        for level in 0..11 {
            deep = match level % 2 {
                0 => json!({"type": "array", "items": deep}),
                _ => json!({"type": "object", "properties": {"a": deep}}),
            };
        }
        let draft_4 = "http://json-schema.org/draft-04/schema#";
        for (schema, expected) in [
            (json!({"type": "object", "properties": {}}), vec![]),
            (json!({"type": "object", "properties": {"a": {"oneOf": [{}]}}, "required": ["a"]}), vec![]),
            (json!({}), vec![codes::W_TOOL_SCHEMA_TYPE]),
            (json!({"type": ["object", "null"]}), vec![codes::W_TOOL_SCHEMA_TYPE]),
            (json!({"type": "object", "oneOf": [{}], "not": {}}), vec![codes::W_TOOL_SCHEMA_ROOT]),
            (json!({"$ref": "#/$defs/a"}), vec![codes::W_TOOL_SCHEMA_TYPE, codes::W_TOOL_SCHEMA_ROOT]),
            (json!({"$schema": draft_4, "type": "object", "properties": {"a": {"minimum": 1}}}), vec![]),
            (
                json!({"$schema": draft_4, "type": "object", "properties": {"a": {"minimum": 1, "exclusiveMinimum": true}}}),
                vec![codes::W_TOOL_SCHEMA_DRAFT],
            ),
            (json!({"type": "object", "properties": {"a": deep}}), vec![codes::W_TOOL_SCHEMA_DEEP]),
            (json!({"type": "object", "properties": {"größe": {}}}), vec![codes::W_TOOL_PROPERTY]),
            (json!({"type": "object", "properties": {"": {}, "a.b-c_D9": {}}}), vec![codes::W_TOOL_PROPERTY]),
        ] {
            assert_eq!(codes(schema.clone()), expected, "{schema}");
        }
    }
}
