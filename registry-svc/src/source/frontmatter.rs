//! YAML frontmatter: finds the two fences and reads what stands between them, as people write it. Knows no key.

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

/// Most bytes between the fences.
pub(crate) const MAX_BYTES: usize = 64 << 10;

const FENCE: &str = "---";

/// Frontmatter that was found: its text, with positions of the file, and its keys.
#[derive(Debug)]
pub(crate) struct Frontmatter {
    pub(crate) text: Text,
    pub(crate) members: Vec<Member>,
}

/// The frontmatter of a file.
pub(crate) fn read(file: &Text) -> Result<Frontmatter, Fault> {
    let Some(between) = split(file.as_str()).map_err(|fence| fence_fault(fence, file.as_str()))? else {
        let message = "no frontmatter: begin the file with a line `---`, then `name:` and `description:`, then `---`";
        return Err(Fault::at(codes::E_FRONTMATTER_MISSING, Stage::Parse, (1, 1), with_late_fence(message, file)));
    };
    if between.len() > MAX_BYTES {
        let message = format!("the frontmatter has more than {MAX_BYTES} bytes: move text into the body");
        return Err(Fault::at(codes::E_FRONTMATTER_TOO_LARGE, Stage::Parse, (1, 1), message));
    }
    // However a line's end is written, it is LF to YAML, and no other CR ends a line; positions are the same.
    let text = Text::part(between.replace("\r\n", "\n").replace('\r', " "), 2);
    let members = parse(&text)?;
    Ok(Frontmatter { text, members })
}

/// Why there is an opening fence and no frontmatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceError {
    /// No closing fence.
    Unclosed,
}

/// What stands between the first line, if it is a fence, and the next fence. `Ok(None)` without an opening fence.
fn split(text: &str) -> Result<Option<&str>, FenceError> {
    let mut lines = text.split_inclusive('\n');
    let Some(opening) = lines.next().filter(|line| is_fence(line)) else { return Ok(None) };
    let mut end = opening.len();
    for line in lines {
        if is_fence(line) {
            return Ok(Some(&text[opening.len()..end]));
        }
        end += line.len();
    }
    Err(FenceError::Unclosed)
}

/// A line that is `---` at column 0, and blanks.
fn is_fence(line: &str) -> bool {
    line.strip_prefix(FENCE).is_some_and(|rest| rest.trim_matches([' ', '\t', '\r', '\n']).is_empty())
}

fn fence_fault(error: FenceError, text: &str) -> Fault {
    let FenceError::Unclosed = error;
    let indented = text.lines().position(|line| line.starts_with([' ', '\t']) && is_fence(line.trim_start()));
    let hint = match indented {
        Some(line) => format!("the `---` in line {} does not stand at the line's start", line + 1),
        None => "add a line `---` behind the last key".to_owned(),
    };
    let message = format!("the frontmatter is not closed: {hint}");
    Fault::at(codes::E_FRONTMATTER_UNCLOSED, Stage::Parse, (1, 1), message)
}

fn with_late_fence(message: &str, file: &Text) -> String {
    let late = file.as_str().lines().position(|line| !line.trim().is_empty());
    match late {
        Some(line) if line > 0 && file.as_str().lines().nth(line).is_some_and(is_fence) => {
            format!("{message}; the `---` in line {} must be the first line", line + 1)
        }
        _ => message.to_owned(),
    }
}

/// The keys of a frontmatter's text.
fn parse(text: &Text) -> Result<Vec<Member>, Fault> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Result<Frontmatter, Fault> {
        read(&Text::of_file(text.as_bytes()).unwrap())
    }

    fn value(text: &str, key: &str) -> Node {
        of(text).unwrap().members.into_iter().find(|member| member.key == key).unwrap().value
    }

    #[test]
    fn only_dashes_at_the_start_of_a_line_are_a_fence() {
        for fence in ["---\n", "--- \t\r\n", "---"] {
            assert_eq!(split(&format!("---\na: b\n{fence}")), Ok(Some("a: b\n")), "{fence:?}");
        }
        for other in ["----\n", " ---\n", "--- x\n", "--\n", "\u{a0}---\n", "---\u{a0}\n"] {
            assert_eq!(split(&format!("---\na: b\n{other}")), Err(FenceError::Unclosed), "{other:?}");
            assert_eq!(split(&format!("{other}a: b\n---\n")), Ok(None), "{other:?}");
        }
        assert_eq!(split("---\n---\n"), Ok(Some("")));
        assert_eq!(split("---\na\n---\nb\n---\n"), Ok(Some("a\n")));
    }

    #[test]
    fn values_are_what_yaml_1_2_says() {
        let text = "---\na: yes\nb: true\nc: 007\nd: 1_0\ne: 1.10\nf: .inf\ng: ~\nh: 2024-01-01\ni: 99999999999999999999\n---\n";
        let seen: Vec<_> = of(text).unwrap().members.into_iter().map(|member| member.value.into_value()).collect();
        assert_eq!(
            serde_json::json!(seen),
            serde_json::json!(["yes", true, "007", "1_0", 1.1, ".inf", null, "2024-01-01", "99999999999999999999"])
        );
        assert_eq!(value("---\nname: 1.10\n---\n", "name").as_text(), Some("1.10"));
        assert_eq!(value("---\nnull: a\n1: b\n---\n", "null").as_text(), Some("a"));
    }

    #[test]
    fn positions_are_the_files() {
        let found = of("\u{feff}---\r\n# é\r\né: x\r\nb:  y\r\n---\r\n").unwrap();
        let at = |i: usize| found.text.position(found.members[i].value.span.start);
        assert_eq!((at(0), at(1)), ((3, 4), (4, 5)));
    }

    #[test]
    fn an_expansion_is_bounded() {
        let mut bomb = "---\na0: &a0 [x]\n".to_owned();
        for i in 1..20 {
            bomb += &format!("a{i}: &a{i} [*a{0}, *a{0}]\n", i - 1);
        }
        assert!(of(&(bomb + "---\n")).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused_within_the_file(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(text) = Text::of_file(&bytes) {
                let _ = read(&text);
            }
        }

        #[test]
        fn any_frontmatter_is_read_or_refused_with_a_line_of_it(body in "[-a: \\[\\]{}&*!|>'\"#%@`,?é\t\r\n]{0,60}") {
            let file = format!("---\n{body}\n---\n");
            let lines = file.split('\n').count() as u32;
            match of(&file) {
                Ok(found) => for member in &found.members {
                    let (line, column) = found.text.position(member.value.span.start);
                    prop_assert!(line >= 2 && line <= lines && column >= 1);
                },
                Err(fault) => prop_assert!(fault.line <= lines, "{fault:?}"),
            }
        }

        #[test]
        fn what_stands_between_the_fences_is_found(
            lines in proptest::collection::vec("[ a-z:]{1,12}|-{1,2}|-{4,6}| ---|--- x", 0..6), body in "[-a\n]{0,20}",
            end in "\r?\n", blanks in "[ \t]{0,3}",
        ) {
            let between: String = lines.iter().map(|line| format!("{line}{end}")).collect();
            let file = format!("---{blanks}{end}{between}---{blanks}{end}{body}");
            prop_assert_eq!(split(&file), Ok(Some(between.as_str())));
        }
    }
}
