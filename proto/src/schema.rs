//! A skill's schema, ready to check arguments, and what a check may cost. A schema is written by a skill's author and the
//! arguments by a model: together they can ask for more than there will ever be time for, as with choices within choices
//! that refer to each other. So the steps are counted before any is taken. Decides nothing about runs.

mod check;

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value};

pub use check::{LARGE, is_fast, validate};

/// How deep references and choices may go before it is taken for a circle: three for each level that arguments can have.
const MAX_DEPTH: usize = 512;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    document: Value,
    /// Where `$id` and the anchors point to; several of one name are all taken for it.
    named: HashMap<String, Vec<Place>>,
}

/// A subschema, as the keys and indices that lead to it.
type Place = Vec<String>;

impl Schema {
    /// Compiles it: nothing outside the schema is read, and patterns are matched in linear time.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn compile(text: &str) -> Result<Self, String> {
        let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let validator = jsonschema::options()
            .offline()
            .with_pattern_options(PatternOptions::regex())
            .build(&document)
            .map_err(|error| error.to_string())?;
        let mut named = HashMap::new();
        find_named(&document, &mut Vec::new(), &mut named);
        Ok(Self { validator, document, named })
    }

    /// Checks arguments whose cost is known to be bearable.
    #[must_use]
    pub fn validator(&self) -> &Validator {
        &self.validator
    }

    /// About how many steps a check of these arguments takes at the most; `None` when it is more than `most`. Takes no
    /// more steps itself.
    #[must_use]
    pub fn cost(&self, arguments: &Value, most: u64) -> Option<u64> {
        let mut walk = Walk { schema: self, left: most };
        walk.apply(&self.document, &self.document, arguments, 0).map(|()| most - walk.left)
    }
}

fn find_named(schema: &Value, at: &mut Place, named: &mut HashMap<String, Vec<Place>>) {
    match schema {
        Value::Object(map) => {
            for key in ["$id", "id", "$anchor", "$dynamicAnchor"] {
                if let Some(Value::String(name)) = map.get(key) {
                    named.entry(short(name).to_owned()).or_default().push(at.clone());
                }
            }
            for (key, value) in map {
                at.push(key.clone());
                find_named(value, at, named);
                at.pop();
            }
        }
        Value::Array(items) => {
            for (i, value) in items.iter().enumerate() {
                at.push(i.to_string());
                find_named(value, at, named);
                at.pop();
            }
        }
        _ => {}
    }
}

/// The last part of an address, by which the same place is found however it is addressed.
fn short(name: &str) -> &str {
    let name = name.trim_start_matches('#').trim_end_matches('#').trim_end_matches('/');
    name.rsplit('/').next().unwrap_or(name)
}

fn follow(from: &Value, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Option<&Value> {
    keys.into_iter().try_fold(from, |value, key| match value {
        Value::Object(map) => map.get(key.as_ref()),
        Value::Array(items) => items.get(key.as_ref().parse::<usize>().ok()?),
        _ => None,
    })
}

/// Applies every subschema that a check may have to apply, whatever is true of the arguments.
struct Walk<'s> {
    schema: &'s Schema,
    left: u64,
}

impl<'s> Walk<'s> {
    fn spend(&mut self, steps: usize) -> Option<()> {
        self.left = self.left.checked_sub(steps as u64)?;
        Some(())
    }

    /// `base` is the schema that a reference within `schema` starts at.
    fn apply(&mut self, base: &'s Value, schema: &'s Value, value: &Value, depth: usize) -> Option<()> {
        self.spend(1)?;
        let Value::Object(keywords) = schema else { return Some(()) };
        if depth > MAX_DEPTH {
            return None;
        }
        let base = if keywords.get("$id").is_some_and(Value::is_string) { schema } else { base };
        // Where it is asked what no other keyword has looked at, these are asked again.
        let again = keywords.contains_key("unevaluatedProperties") || keywords.contains_key("unevaluatedItems");
        for _ in 0..=usize::from(again) {
            for (keyword, content) in keywords {
                self.in_place(base, keyword, content, value, depth + 1)?;
            }
        }
        match value {
            Value::Object(members) => self.members(base, keywords, members, depth + 1),
            Value::Array(items) => self.items(base, keywords, items, depth + 1),
            Value::String(text) => self.spend(text.len() / 64),
            _ => Some(()),
        }
    }

    fn in_place(
        &mut self,
        base: &'s Value,
        keyword: &str,
        content: &'s Value,
        value: &Value,
        depth: usize,
    ) -> Option<()> {
        match (keyword, content) {
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                schemas.iter().try_for_each(|schema| self.apply(base, schema, value, depth))
            }
            ("not" | "if" | "then" | "else", schema) => self.apply(base, schema, value, depth),
            ("dependentSchemas" | "dependencies", Value::Object(schemas)) => {
                schemas.values().try_for_each(|schema| self.apply(base, schema, value, depth))
            }
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => {
                let targets = self.targets(base, target);
                if targets.is_empty() {
                    // One of the published schemas of schemas.
                    return self.spend(64 * nodes(value));
                }
                targets.into_iter().try_for_each(|(base, schema)| self.apply(base, schema, value, depth))
            }
            ("enum" | "required" | "type", Value::Array(listed)) => self.spend(listed.len()),
            ("properties" | "patternProperties", Value::Object(schemas)) => self.spend(schemas.len()),
            ("uniqueItems", _) => self.spend(nodes(value)),
            _ => self.spend(1),
        }
    }

    fn members(
        &mut self,
        base: &'s Value,
        keywords: &'s Map<String, Value>,
        members: &Map<String, Value>,
        depth: usize,
    ) -> Option<()> {
        let properties = keywords.get("properties").and_then(Value::as_object);
        let patterns = keywords.get("patternProperties").and_then(Value::as_object);
        for (name, member) in members {
            self.spend(1)?;
            let known = properties.and_then(|properties| properties.get(name));
            for schema in known.into_iter().chain(patterns.into_iter().flat_map(Map::values)) {
                self.apply(base, schema, member, depth)?;
            }
            if known.is_none()
                && let Some(schema) = keywords.get("additionalProperties")
            {
                self.apply(base, schema, member, depth)?;
            }
            if let Some(schema) = keywords.get("unevaluatedProperties") {
                self.apply(base, schema, member, depth)?;
            }
            if let Some(schema) = keywords.get("propertyNames") {
                self.apply(base, schema, &Value::Null, depth)?;
            }
        }
        Some(())
    }

    fn items(
        &mut self,
        base: &'s Value,
        keywords: &'s Map<String, Value>,
        items: &[Value],
        depth: usize,
    ) -> Option<()> {
        // By the draft, the first ones are listed under the one keyword or the other.
        let first = ["prefixItems", "items"].iter().find_map(|keyword| keywords.get(*keyword)?.as_array());
        let rest =
            keywords.get("items").filter(|schema| !schema.is_array()).or_else(|| keywords.get("additionalItems"));
        for (i, item) in items.iter().enumerate() {
            self.spend(1)?;
            if let Some(schema) = first.and_then(|first| first.get(i)).or(rest) {
                self.apply(base, schema, item, depth)?;
            }
            for keyword in ["contains", "unevaluatedItems"] {
                if let Some(schema) = keywords.get(keyword) {
                    self.apply(base, schema, item, depth)?;
                }
            }
        }
        Some(())
    }

    /// What a reference may point to, each with its base.
    fn targets(&self, base: &'s Value, target: &str) -> Vec<(&'s Value, &'s Value)> {
        let document = &self.schema.document;
        let named = |name: &str| {
            let places = self.schema.named.get(short(name)).into_iter().flatten();
            places.filter_map(|place| follow(document, place)).collect::<Vec<_>>()
        };
        let (address, fragment) = target.split_once('#').unwrap_or((target, ""));
        let bases = if address.is_empty() { vec![base] } else { named(address) };
        if fragment.is_empty() {
            return bases.into_iter().map(|base| (base, base)).collect();
        }
        let Some(pointer) = fragment.strip_prefix('/') else {
            return named(fragment).into_iter().map(|schema| (base, schema)).collect();
        };
        let keys: Vec<_> = pointer.split('/').map(unescape).collect();
        let from = bases.into_iter().chain([document]);
        from.filter_map(|base| Some((base, follow(base, &keys)?))).take(1).collect()
    }
}

/// A part of a JSON pointer in an address, RFC 6901 section 6.
fn unescape(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).replace("~1", "/").replace("~0", "~")
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(members) => members.values().map(nodes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    const MOST: u64 = 1_000_000;

    fn cost(schema: &Value, arguments: &Value) -> Option<u64> {
        Schema::compile(&schema.to_string()).unwrap().cost(arguments, MOST)
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!({}), |inner, _| json!({ "a": inner }))
    }

    /// A tree whose node is one of two kinds, and says so too late.
    fn tree(reference: &str) -> Value {
        let node = |required: &str| json!({"properties": {"a": {"$ref": reference}}, "required": [required]});
        json!({"anyOf": [node("y"), node("z"), {"type": "string"}]})
    }

    #[test]
    fn what_is_common_costs_little() {
        let schema = json!({"type": "object", "required": ["path"], "additionalProperties": false,
            "properties": {"path": {"type": "string"}, "n": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
            "$defs": {"n": {"type": "integer", "minimum": 0}}});
        assert!(cost(&schema, &json!({"path": "/", "n": [1, 2, 3]})).unwrap() < 100);
        let list = json!({"$ref": "#/$defs/list", "$defs": {"list": {"properties": {"a": {"$ref": "#/$defs/list"}},
            "additionalProperties": {"$ref": "#/$defs/list"}}}});
        assert!(cost(&list, &nested(100)).unwrap() < 10_000);
    }

    #[rstest]
    #[case::by_pointer(json!({"$ref": "#/$defs/t", "$defs": {"t": tree("#/$defs/t")}}))]
    #[case::by_escaped_pointer(json!({"$ref": "#/$defs/~1%74", "$defs": {"/t": tree("#/$defs/~1t")}}))]
    #[case::by_anchor(json!({"$ref": "#t", "$defs": {"t": {"$anchor": "t", "allOf": [tree("#t")]}}}))]
    #[case::by_dynamic_anchor(json!({"$dynamicAnchor": "t", "anyOf": [
        {"properties": {"a": {"$dynamicRef": "#t"}}}, {"properties": {"a": {"$dynamicRef": "#t"}}}]}))]
    #[case::by_id(json!({"$id": "http://x/root", "$ref": "t", "$defs": {"t": {"$id": "t", "allOf": [tree("t")]}}}))]
    #[case::by_absolute_id(json!({"$id": "http://x/root", "allOf": [tree("http://x/root")]}))]
    #[case::by_relative_pointer(json!({"$id": "http://x/root", "$ref": "t", "$defs": {"t": {"$id": "t",
        "$ref": "#/$defs/u", "$defs": {"u": tree("#/$defs/u")}}}}))]
    fn choices_within_choices_cost_too_much(#[case] schema: Value) {
        assert!(cost(&schema, &nested(3)).is_some());
        assert_eq!(cost(&schema, &nested(40)), None);
    }

    #[test]
    fn doubling_and_circles_cost_too_much() {
        let mut definitions = Map::new();
        definitions.insert("d40".into(), json!({}));
        for i in 0..40 {
            let next = format!("#/$defs/d{}", i + 1);
            definitions.insert(format!("d{i}"), json!({"allOf": [{"$ref": next}, {"$ref": next}]}));
        }
        assert_eq!(cost(&json!({"$ref": "#/$defs/d0", "$defs": definitions}), &json!({})), None);
        assert_eq!(cost(&json!({"allOf": [{"$ref": "#"}]}), &json!({})), None);
        let wide = json!({"properties": {"a": {"items": {"allOf": vec![json!({"minimum": 1}); 2000]}}}});
        assert_eq!(cost(&wide, &json!({"a": vec![1; 2000]})), None);
    }
}
