//! Values with their positions: what JSON and YAML are read into before anything is made of them.

use std::ops::Range;

use serde_json::{Map, Value};

use super::findings::{Fault, Findings};
use super::text::Text;
use super::{Stage, codes};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) data: Data,
    /// In bytes of its text.
    pub(crate) span: Range<usize>,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Null,
    /// A number or a boolean, and the characters it was written with.
    Plain(Value, String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) key: String,
    pub(crate) key_span: Range<usize>,
    pub(crate) value: Node,
}

impl Node {
    /// What it is, for a sentence.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.data {
            Data::Null => "null",
            Data::Plain(Value::Bool(_), _) => "a boolean",
            Data::Plain(..) => "a number",
            Data::Text(_) => "a string",
            Data::List(_) => "a list",
            Data::Map(_) => "an object",
        }
    }

    /// The value itself where it is short, else what it is, for a sentence.
    pub(crate) fn describe(&self) -> String {
        match &self.data {
            Data::Plain(_, literal) if literal.len() <= 40 => literal.clone(),
            Data::Text(text) if text.len() <= 40 => format!("{text:?}"),
            _ => self.kind().to_owned(),
        }
    }

    /// A string, or what was written for a number or boolean: YAML types what people meant as text (`name: 42`).
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(text) | Data::Plain(_, text) => Some(text),
            _ => None,
        }
    }

    /// Without positions.
    pub(crate) fn into_value(self) -> Value {
        match self.data {
            Data::Null => Value::Null,
            Data::Plain(value, _) => value,
            Data::Text(text) => Value::String(text),
            Data::List(items) => Value::Array(items.into_iter().map(Self::into_value).collect()),
            Data::Map(members) => Value::Object(into_map(members)),
        }
    }
}

/// Without positions.
pub(crate) fn into_map(members: Vec<Member>) -> Map<String, Value> {
    members.into_iter().map(|member| (member.key, member.value.into_value())).collect()
}

/// The first key of an object that stands twice in it, at any depth.
pub(crate) fn duplicate_key(members: &[Member], text: &Text) -> Option<Fault> {
    let mut seen = std::collections::HashMap::new();
    members.iter().find_map(|member| {
        let first = seen.insert(member.key.as_str(), &member.key_span)?;
        let (line, _) = text.position(first.start);
        let message = format!("the key {:?} stands twice (first in line {line}): remove one", member.key);
        let position = text.position(member.key_span.start);
        Some(Fault::at(codes::E_DUPLICATE_KEY, Stage::Parse, position, message))
    })
}

/// The keys of a frontmatter, taken one by one; what is left in the end is unknown.
///
/// A key of a type that nobody expects is a warning and stays among the unknown: people's files are to be read.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    text: &'a Text,
    prefix: String,
    members: Vec<Member>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(text: &'a Text, members: Vec<Member>) -> Self {
        Self { text, prefix: String::new(), members }
    }

    /// A value that is there and not null.
    pub(crate) fn take(&mut self, key: &str) -> Option<Node> {
        let index = self.members.iter().position(|member| member.key == key)?;
        if self.members[index].value.data == Data::Null {
            self.members.remove(index);
            return None;
        }
        Some(self.members.remove(index).value)
    }

    /// Whether the key is there, null or not.
    pub(crate) fn position_of(&self, key: &str) -> Option<(u32, u32)> {
        let member = self.members.iter().find(|member| member.key == key)?;
        Some(self.text.position(member.key_span.start))
    }

    /// Text.
    pub(crate) fn text(&mut self, key: &str, findings: &mut Findings) -> Option<String> {
        self.typed(key, "text", findings, |node| node.as_text().map(ToOwned::to_owned))
    }

    /// A list of texts, or one text, which is `split`.
    pub(crate) fn list(&mut self, key: &str, findings: &mut Findings, split: fn(&str) -> Vec<String>) -> Vec<String> {
        self.typed(key, "a list of texts", findings, |node| list(node, split)).unwrap_or_default()
    }

    /// A whole number.
    pub(crate) fn integer(&mut self, key: &str, findings: &mut Findings) -> Option<i32> {
        self.typed(key, "a whole number", findings, |node| node.as_text()?.trim().parse().ok())
    }

    /// A mapping's own fields; [`Self::put_back`] what is left of them.
    pub(crate) fn map(&mut self, key: &str, findings: &mut Findings) -> Option<(Fields<'a>, Range<usize>)> {
        let index = self.members.iter().position(|member| member.key == key)?;
        let key_span = self.members[index].key_span.clone();
        let members = self.typed(key, "a mapping", findings, |node| match &node.data {
            Data::Map(members) => Some(members.clone()),
            _ => None,
        })?;
        Some((Fields { text: self.text, prefix: format!("{}{key}.", self.prefix), members }, key_span))
    }

    /// Keeps what is left of a mapping among the unknown keys.
    pub(crate) fn put_back(&mut self, key: &str, (fields, key_span): (Fields<'a>, Range<usize>)) {
        if !fields.members.is_empty() {
            let value = Node { data: Data::Map(fields.members), span: key_span.clone() };
            self.members.push(Member { key: key.to_owned(), key_span, value });
        }
    }

    /// A value made by a function, or a warning that names what it should be.
    pub(crate) fn typed<T>(
        &mut self,
        key: &str,
        wanted: &str,
        findings: &mut Findings,
        make: impl FnOnce(&Node) -> Option<T>,
    ) -> Option<T> {
        let index = self.members.iter().position(|member| member.key == key)?;
        let node = &self.members[index].value;
        if node.data == Data::Null {
            self.members.remove(index);
            return None;
        }
        let made = make(node);
        if made.is_some() {
            self.members.remove(index);
        } else {
            let message = format!("{}{key} is {}, and is ignored: write {wanted}", self.prefix, node.describe());
            findings.warn(codes::W_KEY_TYPE, self.text.position(node.span.start), message);
        }
        made
    }

    /// The text that positions are in.
    pub(crate) fn source(&self) -> &'a Text {
        self.text
    }

    /// Every other key.
    pub(crate) fn rest(self) -> Map<String, Value> {
        into_map(self.members)
    }

    /// Names and positions of every other key.
    pub(crate) fn rest_keys(&self) -> impl Iterator<Item = (&str, (u32, u32))> {
        self.members.iter().map(|member| (member.key.as_str(), self.text.position(member.key_span.start)))
    }
}

/// A list of texts, or one text, which is split; `None` for anything else.
pub(crate) fn list(node: &Node, split: fn(&str) -> Vec<String>) -> Option<Vec<String>> {
    match &node.data {
        Data::List(items) => items.iter().map(|item| item.as_text().map(|text| text.trim().to_owned())).collect(),
        _ => node.as_text().map(split),
    }
}
