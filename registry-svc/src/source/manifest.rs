//! `skill.json`: what a subprocess skill's author writes, with every rule that its values have. Looks at no other file.

use std::collections::HashSet;

use serde_json::{Map, Value};
use skillyard::skill::{DEFAULT_CATEGORY, DEFAULT_TIMEOUT_SECONDS, EMPTY_SCHEMA};
use skillyard::{Class, SkillName};

use super::codes;
use super::findings::Findings;
use super::json;
use super::near;
use super::node::{Data, Member, Node, into_map};
use super::schema::{self, Unusable};
use super::text::Text;
use super::tool;

/// A manifest whose values are right.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) name: SkillName,
    pub(crate) description: String,
    /// Byte for byte as in the file.
    pub(crate) schema_json: String,
    pub(crate) entry: Entry,
    pub(crate) env_allow: Vec<String>,
    pub(crate) timeout_seconds: u32,
    pub(crate) class: Class,
    pub(crate) category: String,
    pub(crate) extra: Map<String, Value>,
}

/// The entry as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) position: (u32, u32),
}

/// A manifest's name, as far as it is known, and the manifest, unless something is wrong with it.
pub(crate) fn read(text: &Text, findings: &mut Findings) -> (String, Option<Manifest>) {
    let root = match json::parse(text) {
        Ok(root) => root,
        Err(fault) => {
            findings.fault(fault);
            return (String::new(), None);
        }
    };
    let position = text.position(root.span.start);
    let Node { data: Data::Map(members), .. } = root else {
        let message = format!("the manifest is {}, not an object: write {{\"name\": …}}", root.kind());
        findings.parse(codes::E_TYPE, position, message);
        return (String::new(), None);
    };
    let mut keys = Keys { text, members, findings };

    let name = keys.required("name", "a string", text_of);
    let known_name = name.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
    let name = name.and_then(|(name, at)| keys.name(&name, at));
    let description = keys.required("description", "a string", text_of);
    let description_at = description.as_ref().map(|(_, at)| *at).unwrap_or_default();
    let description = description.and_then(|(text, at)| keys.not_blank(text, at));
    let schema_json = keys.schema();
    let entry = keys.required("entry", "a string", text_of).and_then(|(path, at)| keys.entry(path, at));
    let env_allow = keys.env_allow();
    let timeout_seconds = keys.timeout();
    let class = keys.class();
    if let Some(description) = &description {
        tool::check_description(description, class, description_at, keys.findings);
    }
    let category = keys.optional("category", "a string", text_of).map(|(text, _)| text);
    keys.look_for_slips();
    let extra = into_map(std::mem::take(&mut keys.members));

    if findings.failed().is_some() {
        return (known_name, None);
    }
    let manifest =
        name.zip(description).zip(entry).zip(schema_json).map(|(((name, description), entry), schema_json)| Manifest {
            name,
            description,
            schema_json,
            entry,
            env_allow,
            timeout_seconds,
            class,
            category: category.filter(|c| !c.trim().is_empty()).unwrap_or_else(|| DEFAULT_CATEGORY.to_owned()),
            extra,
        });
    (known_name, manifest)
}

type Position = (u32, u32);

/// The keys that count.
const KEYS: [&str; 8] = ["name", "description", "schema", "entry", "env_allow", "timeout_seconds", "class", "category"];
/// What other systems call them, in lower case and without punctuation.
const SYNONYMS: [(&str, &str); 8] = [
    ("timeout", "timeout_seconds"),
    ("timeouts", "timeout_seconds"),
    ("env", "env_allow"),
    ("environment", "env_allow"),
    ("parameters", "schema"),
    ("inputschema", "schema"),
    ("command", "entry"),
    ("entrypoint", "entry"),
];

/// The manifest's keys, taken one by one; what is left in the end is unknown.
struct Keys<'a> {
    text: &'a Text,
    members: Vec<Member>,
    findings: &'a mut Findings,
}

impl Keys<'_> {
    fn take(&mut self, key: &str) -> Option<(Node, Position)> {
        let index = self.members.iter().position(|member| member.key == key)?;
        let value = self.members.remove(index).value;
        let position = self.text.position(value.span.start);
        Some((value, position))
    }

    /// Unknown keys are kept; one that is nearly known is more likely a slip, and with `class` a dangerous one.
    fn look_for_slips(&mut self) {
        for member in &self.members {
            let key = member.key.as_str();
            let Some(meant) = near::meant(key, &KEYS, &SYNONYMS) else { continue };
            let at = self.text.position(member.key_span.start);
            if meant == "class" {
                let message = format!(
                    "the key {key:?} is not \"class\", and without one the skill counts as safe: write \"class\""
                );
                self.findings.build(codes::E_CLASS_MISSPELT, at, message);
            } else {
                let message = format!("the key {key:?} counts for nothing: write {meant:?} if that is meant");
                self.findings.warn(codes::W_KEY_NEARLY, at, message);
            }
        }
    }

    /// Null is how some programs write a key that is missing.
    fn optional<T>(&mut self, key: &str, wanted: &str, make: fn(&Node) -> Option<T>) -> Option<(T, Position)> {
        let (node, position) = self.take(key).filter(|(node, _)| node.data != Data::Null)?;
        let made = make(&node);
        if made.is_none() {
            let message = format!("{key} is {}: write {wanted}", node.describe());
            self.findings.parse(codes::E_TYPE, position, message);
        }
        made.map(|made| (made, position))
    }

    fn required<T>(&mut self, key: &str, wanted: &str, make: fn(&Node) -> Option<T>) -> Option<(T, Position)> {
        let present = self.members.iter().any(|member| member.key == key && member.value.data != Data::Null);
        if !present {
            self.findings.build(codes::E_KEY_MISSING, (0, 0), format!("{key} is missing: add \"{key}\" with {wanted}"));
        }
        self.optional(key, wanted, make)
    }

    fn name(&mut self, name: &str, position: Position) -> Option<SkillName> {
        let made = SkillName::function(name);
        match &made {
            Ok(name) => tool::check_name(name, position, self.findings),
            Err(error) => self.findings.build(codes::E_NAME_INVALID, position, error.to_string()),
        }
        made.ok()
    }

    fn not_blank(&mut self, text: String, position: Position) -> Option<String> {
        if text.trim().is_empty() {
            let message = "the description is blank: say what the skill does and when to use it";
            self.findings.build(codes::E_DESCRIPTION_BLANK, position, message);
            return None;
        }
        Some(text)
    }

    fn entry(&mut self, path: String, position: Position) -> Option<Entry> {
        if path.trim().is_empty() || path.contains('\0') {
            let message = "entry names no file: write the program's path, relative to this manifest's directory";
            self.findings.build(codes::E_ENTRY_MISSING, position, message);
            return None;
        }
        Some(Entry { path, position })
    }

    fn env_allow(&mut self) -> Vec<String> {
        let Some((node, _)) = self.take("env_allow").filter(|(node, _)| node.data != Data::Null) else {
            return Vec::new();
        };
        let position = self.text.position(node.span.start);
        let Data::List(items) = node.data else {
            let message = format!("env_allow is {}: write a list of names, as in [\"PATH\"]", node.describe());
            self.findings.parse(codes::E_TYPE, position, message);
            return Vec::new();
        };
        let (mut names, mut known) = (Vec::new(), HashSet::new());
        for item in items {
            if self.findings.is_full() {
                break;
            }
            let position = || self.text.position(item.span.start);
            match item.data {
                Data::Text(name) if name.is_empty() || name.contains(['=', '\0']) => {
                    let message =
                        format!("{name:?} is no variable's name: write the name alone, without `=` and a value");
                    self.findings.build(codes::E_ENV_NAME, position(), message);
                }
                Data::Text(name) if known.contains(&name) => {}
                Data::Text(name) => {
                    known.insert(name.clone());
                    names.push(name);
                }
                _ => {
                    let message = format!("env_allow has {}: write names as strings", item.describe());
                    self.findings.parse(codes::E_TYPE, position(), message);
                }
            }
        }
        names
    }

    fn timeout(&mut self) -> u32 {
        let wanted = "a whole number of seconds, 0 for the default";
        let number = self.optional("timeout_seconds", wanted, |node| match &node.data {
            Data::Plain(Value::Number(number), literal) if !literal.contains(['.', 'e', 'E']) => {
                Some((number.as_u64(), literal.clone()))
            }
            _ => None,
        });
        match number {
            None => DEFAULT_TIMEOUT_SECONDS,
            Some(((Some(0), _), _)) => DEFAULT_TIMEOUT_SECONDS,
            Some(((seconds, literal), position)) => {
                seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or_else(|| {
                    let message = format!("timeout_seconds is {literal}: write {wanted}, at most {}", u32::MAX);
                    self.findings.build(codes::E_TIMEOUT_INVALID, position, message);
                    DEFAULT_TIMEOUT_SECONDS
                })
            }
        }
    }

    fn class(&mut self) -> Class {
        let Some((class, position)) = self.optional("class", "\"safe\", \"mutating\" or \"dangerous\"", text_of) else {
            return Class::Safe;
        };
        class_of(&class).unwrap_or_else(|| {
            let message = format!("class is {class:?}: write \"safe\", \"mutating\" or \"dangerous\", in lower case");
            self.findings.build(codes::E_CLASS_UNKNOWN, position, message);
            Class::Dangerous
        })
    }

    /// The schema's own characters, once it is known to compile on its own.
    fn schema(&mut self) -> Option<String> {
        let Some((node, position)) = self.take("schema") else { return Some(EMPTY_SCHEMA.to_owned()) };
        if !matches!(node.data, Data::Map(_)) {
            let message = format!(
                "schema is {}, not an object: write the arguments' JSON Schema, as in {EMPTY_SCHEMA}",
                node.describe()
            );
            self.findings.parse(codes::E_SCHEMA_NOT_OBJECT, position, message);
            return None;
        }
        let written = self.text.as_str()[node.span.clone()].to_owned();
        let value = node.into_value();
        match schema::check(&value) {
            Ok(()) => {
                tool::check_schema(&value, position, self.findings);
                Some(written)
            }
            Err(Unusable { code, message }) => {
                self.findings.build(code, position, message);
                None
            }
        }
    }
}

/// A class by its word.
pub(crate) fn class_of(word: &str) -> Option<Class> {
    [Class::Safe, Class::Mutating, Class::Dangerous].into_iter().find(|class| class.as_str() == word)
}

fn text_of(node: &Node) -> Option<String> {
    match &node.data {
        Data::Text(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(json: &str) -> (Option<Manifest>, Vec<super::super::Diagnostic>) {
        let mut findings = Findings::default();
        let (_, manifest) = read(&Text::of_file(json.as_bytes()).unwrap(), &mut findings);
        (manifest, findings.into_diagnostics())
    }

    fn with(key: &str, value: &str) -> String {
        format!("{{\"name\":\"x\",\"description\":\"d\",\"entry\":\"run\",\n\"{key}\":{value}}}")
    }

    #[test]
    fn one_fault_is_one_diagnostic_with_its_place() {
        for (key, value, code) in [
            ("timeout_seconds", "1.5", codes::E_TYPE),
            ("timeout_seconds", "-1", codes::E_TIMEOUT_INVALID),
            ("class", "\"Safe\"", codes::E_CLASS_UNKNOWN),
            ("schema", "[]", codes::E_SCHEMA_NOT_OBJECT),
            ("schema", "{\"$ref\":\"https://example.com/x\"}", codes::E_SCHEMA_REF),
            ("schema", "{\"type\":\"thing\"}", codes::E_SCHEMA_INVALID),
            ("env_allow", "[\"A=B\"]", codes::E_ENV_NAME),
            ("category", "7", codes::E_TYPE),
            ("name", "\"y\"", codes::E_DUPLICATE_KEY),
        ] {
            let (manifest, diagnostics) = of(&with(key, value));
            assert_eq!(manifest, None);
            assert_eq!(diagnostics.iter().map(|d| (d.code, d.line)).collect::<Vec<_>>(), [(code, 2)], "{key} {value}");
            assert!(diagnostics[0].column > 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_schema_is_kept_byte_for_byte(blank in "[ \n\t\r]{0,3}", minimum in "-?[1-9][0-9]{0,4}(\\.[0-9]{1,3})?", key in "[a-zé]{1,5}") {
            let schema = format!("{{{blank}\"properties\"{blank}:{{\"{key}\":{{\"minimum\":{minimum}{blank}}}}}}}");
            let (manifest, diagnostics) = of(&with("schema", &schema));
            prop_assert!(diagnostics.iter().all(|d| d.code.starts_with("W_TOOL_")), "{:?}", diagnostics);
            prop_assert_eq!(manifest.unwrap().schema_json, schema);
        }

        #[test]
        fn any_value_of_any_key_is_read_or_refused(
            key in "name|description|schema|entry|env_allow|timeout_seconds|class|category|other",
            value in "null|true|-?[0-9]{1,25}(\\.5)?(e9)?|\"[a-z=\\\\0/. ]{0,8}\"|\\[(1|\"a\"|null)?\\]|\\{(\"type\":(1|\"object\"|null))?\\}",
        ) {
            let (manifest, diagnostics) = of(&with(&key, &value));
            prop_assert_eq!(manifest.is_none(), diagnostics.iter().any(|d| d.code.starts_with("E_")));
        }
    }
}
