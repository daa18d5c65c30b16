//! YAML with positions, as people write it: the core schema of YAML 1.2, no key twice, bounds on everything. Knows no
//! fence and no key.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Options, Spanned};

use super::findings::Fault;
use super::node::{Data, Member, Node};
use super::text::Text;
use super::{Stage, codes};

mod plain;

/// Most bytes of a text.
pub(crate) const MAX_BYTES: usize = 64 << 10;

/// The keys of a frontmatter's text.
pub(crate) fn parse(text: &Text) -> Result<Vec<Member>, Fault> {
    plain::read(text).map_or_else(|| parse_fully(text), Ok)
}

fn parse_fully(text: &Text) -> Result<Vec<Member>, Fault> {
    let empty = || {
        let message = "the frontmatter is empty: write `name:` and `description:` between the two `---`";
        Fault::at(codes::E_FRONTMATTER_EMPTY, Stage::Parse, (1, 1), message)
    };
    if text.as_str().lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Err(empty());
    }
    let yaml: Spanned<Yaml> =
        serde_saphyr::from_str_with_options(text.as_str(), options()).map_err(|error| yaml_fault(text, &error))?;
    let node = node(text, yaml);
    match node.data {
        Data::Map(members) if members.is_empty() => Err(empty()),
        Data::Null => Err(empty()),
        Data::Map(members) => Ok(members),
        _ => {
            let message =
                format!("the frontmatter is {}, not keys and values: write `name: …`, a line each", node.kind());
            Err(Fault::at(codes::E_YAML, Stage::Parse, text.position(node.span.start), message))
        }
    }
}

/// YAML 1.2's core schema, no habits of 1.1, and bounds on everything.
fn options() -> Options {
    let budget = serde_saphyr::budget! {
        max_nodes: 4096,
        max_events: 16384,
        max_aliases: 64,
        max_anchors: 32,
        max_depth: 32,
        max_documents: 1,
        max_total_scalar_bytes: MAX_BYTES,
        flow_nesting_limit: 32,
        max_inclusion_depth: 0,
    };
    let alias_limits = serde_saphyr::alias_limits! {
        max_total_replayed_events: 16384,
        max_replay_stack_depth: 8,
        max_alias_expansions_per_anchor: 64,
    };
    serde_saphyr::options! {
        budget: budget,
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        alias_limits: alias_limits,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        null_as_string: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    }
}

/// What YAML cannot be read as, where, and what to do about it.
fn yaml_fault(text: &Text, error: &serde_saphyr::Error) -> Fault {
    let position = error.location().map_or((0, 0), |at| {
        let line = u32::try_from(at.line()).unwrap_or(u32::MAX);
        (line.saturating_add(1), u32::try_from(at.column()).unwrap_or(u32::MAX))
    });
    let (code, message) = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("?");
            (codes::E_DUPLICATE_KEY, format!("the key {key:?} stands twice: remove one"))
        }
        serde_saphyr::Error::MergeKeyNotAllowed { .. } => {
            (codes::E_YAML, "`<<` does not merge here: write the keys themselves".to_owned())
        }
        serde_saphyr::Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            (codes::E_YAML, "a second YAML document begins here: the frontmatter is one".to_owned())
        }
        _ if bare(error) == "recursion limit exceeded" => {
            (codes::E_TOO_DEEP, "values are nested deeper than a frontmatter may: flatten them".to_owned())
        }
        serde_saphyr::Error::Budget { .. } => {
            (codes::E_TOO_DEEP, format!("more than a frontmatter may hold ({}): make it smaller", bare(error)))
        }
        _ => match hint(text, position.0) {
            Some(hint) => (codes::E_YAML, format!("{}; {hint}", bare(error))),
            None => (codes::E_YAML, bare(error)),
        },
    };
    Fault::at(code, Stage::Parse, position, message)
}

/// The library's message without its position, which counts from the fence.
fn bare(error: &serde_saphyr::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

/// A value near the fault that ought to have been quoted, as it should be written.
fn hint(text: &Text, line: u32) -> Option<String> {
    (line.saturating_sub(1)..=line).rev().filter(|line| *line >= 2).find_map(|line| {
        let written = text.line(line);
        if written.trim_start().starts_with('\t') || written.starts_with('\t') {
            return Some(format!("line {line} is indented with a tab: use spaces"));
        }
        let (key, value) = written.split_once(": ")?;
        let value = value.trim();
        let (first, quoted) = (value.chars().next()?, value.replace('\\', "\\\\").replace('"', "\\\""));
        let plain = !matches!(first, '"' | '\'' | '|' | '>' | '{' | '[' | '&' | '*' | '!' | '%' | '@' | '`' | '?');
        let reason = if plain && (value.contains(": ") || value.ends_with(':')) {
            "a value with `: ` in it must be quoted"
        } else if !plain && !matches!(first, '|' | '>' | '"' | '\'') {
            "a value that begins like this must be quoted"
        } else {
            return None;
        };
        let shown: String = quoted.chars().take(60).collect();
        let rest = if quoted.chars().count() > 60 { "…" } else { "" };
        Some(format!("{reason}: {}: \"{shown}{rest}\"", key.trim()))
    })
}

/// Any YAML value, with positions.
#[derive(Debug)]
enum Yaml {
    Null,
    Bool(bool),
    Number(Option<Number>),
    Text(String),
    List(Vec<Spanned<Yaml>>),
    Map(Vec<(Spanned<String>, Spanned<Yaml>)>),
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyYaml)
    }
}

struct AnyYaml;

impl<'de> Visitor<'de> for AnyYaml {
    type Value = Yaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_none<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
        Yaml::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Yaml, E> {
        Ok(Yaml::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Yaml, E> {
        Ok(Yaml::Number(Some(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Yaml, E> {
        Ok(Yaml::Number(Some(value.into())))
    }

    /// JSON has no number for it: it stays as it was written.
    fn visit_i128<E>(self, _value: i128) -> Result<Yaml, E> {
        Ok(Yaml::Number(None))
    }

    fn visit_u128<E>(self, _value: u128) -> Result<Yaml, E> {
        Ok(Yaml::Number(None))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Yaml, E> {
        Ok(Yaml::Number(Number::from_f64(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Yaml, E> {
        Ok(Yaml::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Yaml, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Yaml::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Yaml, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Yaml::Map(members))
    }
}

fn node(text: &Text, yaml: Spanned<Yaml>) -> Node {
    let span = span(text, &yaml);
    let literal = || text.as_str().get(span.clone()).unwrap_or_default().trim().to_owned();
    let data = match yaml.value {
        Yaml::Null => Data::Null,
        Yaml::Bool(value) => Data::Plain(Value::Bool(value), literal()),
        // An integer that no integer of JSON holds would lose digits: it stays as it was written.
        Yaml::Number(Some(value))
            if value.is_f64() && literal().trim_start_matches(['-', '+']).bytes().all(|b| b.is_ascii_digit()) =>
        {
            Data::Text(literal())
        }
        Yaml::Number(Some(value)) => Data::Plain(Value::Number(value), literal()),
        Yaml::Number(None) => Data::Text(literal()),
        Yaml::Text(value) => Data::Text(value),
        Yaml::List(items) => Data::List(items.into_iter().map(|item| node(text, item)).collect()),
        Yaml::Map(members) => Data::Map(
            members
                .into_iter()
                .map(|(key, value)| Member {
                    key_span: self::span(text, &key),
                    key: key.value,
                    value: node(text, value),
                })
                .collect(),
        ),
    };
    Node { data, span }
}

/// Where a value was written, in bytes.
fn span<T>(text: &Text, spanned: &Spanned<T>) -> std::ops::Range<usize> {
    let span = spanned.defined.span();
    let (start, length) = match (span.byte_offset(), span.byte_len()) {
        (Some(start), Some(length)) => (start, length),
        _ => (0, 0),
    };
    let end = text.as_str().len();
    let start = usize::try_from(start).unwrap_or(end).min(end);
    start..start.saturating_add(usize::try_from(length).unwrap_or(0)).min(end)
}
