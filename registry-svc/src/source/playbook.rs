//! `SKILL.md`: what a playbook's frontmatter says, as people write it. Looks at no other file.

use serde_json::{Map, Value};
use skillyard::skill::{Card, Playbook, PlaybookTool, Requirements};
use skillyard::{Class, SkillName};
use unicode_normalization::UnicodeNormalization as _;

use super::codes;
use super::findings::Findings;
use super::frontmatter;
use super::manifest::class_of;
use super::node::{Data, Fields, Node, list};
use super::specification;
use super::text::Text;

/// A playbook whose frontmatter is right.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sheet {
    pub(crate) name: SkillName,
    pub(crate) description: String,
    pub(crate) playbook: Playbook,
    /// Where it says what it needs of the host.
    pub(crate) requires_at: (u32, u32),
    pub(crate) card: Card,
    pub(crate) extra: Map<String, Value>,
}

/// What a playbook is called whatever its file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// By its directory.
    Directory(String),
    /// By the id under which an admin server published it.
    Cloud(String),
}

impl Identity {
    /// The name, composed: a file system that decomposes what was typed does not make another name of it.
    pub(crate) fn name(&self) -> String {
        let (Self::Directory(name) | Self::Cloud(name)) = self;
        if name.is_ascii() { name.clone() } else { name.nfc().collect() }
    }
}

/// The playbook, unless something is wrong with it.
///
/// `strict`: what the Agent Skills specification refuses and Skillyard asks for is a warning too.
pub(crate) fn read(text: &Text, identity: &Identity, strict: bool, findings: &mut Findings) -> Option<Sheet> {
    let found = match frontmatter::read(text) {
        Ok(found) => found,
        Err(fault) => {
            findings.fault(fault);
            return None;
        }
    };
    specification::check(&found.text, &found.members, &identity.name(), strict, findings);
    let mut fields = Fields::new(&found.text, found.members);
    let name = name(&mut fields, identity, findings);
    let description = required(&mut fields, "description", findings).and_then(|(description, at)| {
        if description.trim().is_empty() {
            let message = "the description is blank: say what the skill does and when to use it";
            findings.build(codes::E_DESCRIPTION_BLANK, at, message);
            return None;
        }
        Some(description)
    });
    let card = Card {
        category: fields.text("category", findings).unwrap_or_default(),
        category_order: fields.integer("category_order", findings),
        summary: fields.text("summary", findings).unwrap_or_default(),
        use_when: fields.text("use_when", findings).unwrap_or_default(),
        example_prompts: fields.list("example_prompts", findings, one),
    };
    let requires_at = fields.position_of("metadata").unwrap_or_default();
    let playbook = Playbook {
        when_to_use: fields.text("when_to_use", findings).unwrap_or_default(),
        license: fields.text("license", findings).unwrap_or_default(),
        compatibility: fields.text("compatibility", findings).unwrap_or_default(),
        allowed_tools: fields.list("allowed-tools", findings, tools_of_text),
        tools: tools(&mut fields, findings),
        requires: requires(&mut fields, findings),
        activation: activation(&mut fields, findings),
    };
    let sheet = Sheet { name: name?, description: description?, playbook, requires_at, card, extra: fields.rest() };
    findings.failed().is_none().then_some(sheet)
}

/// The text of a `SKILL.md` behind its frontmatter, byte for byte; nothing where the file is no playbook.
#[must_use]
pub fn body(file: &[u8]) -> Option<String> {
    let text = Text::of_file(file).ok()?;
    frontmatter::body(&text).map(ToOwned::to_owned)
}

fn name(fields: &mut Fields<'_>, identity: &Identity, findings: &mut Findings) -> Option<SkillName> {
    let (written, at) = required(fields, "name", findings)?;
    if written.trim().is_empty() {
        let message = format!("the name is empty: write `name: {}`", identity.name());
        findings.build(codes::E_NAME_INVALID, at, message);
        return None;
    }
    let name = match identity.name().parse::<SkillName>() {
        Ok(name) => name,
        Err(error) => {
            let what = match identity {
                Identity::Directory(name) => format!("the directory {name:?} cannot name a skill: {error}: rename it"),
                Identity::Cloud(id) => {
                    format!("the id {id:?} in the cloud's manifest.json cannot name a skill: {error}")
                }
            };
            findings.build(codes::E_NAME_INVALID, (0, 0), what);
            return None;
        }
    };
    if written.trim() != name.as_str() && !written.trim().nfkc().eq(name.as_str().nfkc()) {
        let (code, what) = match identity {
            Identity::Directory(_) => (codes::W_NAME_NOT_DIRECTORY, "its directory's name"),
            Identity::Cloud(_) => (codes::W_NAME_NOT_ID, "the id it was published under"),
        };
        let message = format!("the name is {written:?}, and counts as {name}, {what}: write `name: {name}`");
        findings.warn(code, at, message);
    }
    Some(name)
}

fn required(fields: &mut Fields<'_>, key: &str, findings: &mut Findings) -> Option<(String, (u32, u32))> {
    let Some(node) = fields.take(key) else {
        findings.build(codes::E_KEY_MISSING, (0, 0), format!("{key} is missing: add a line `{key}: …`"));
        return None;
    };
    let at = fields.source().position(node.span.start);
    let Some(text) = node.as_text() else {
        findings.parse(codes::E_TYPE, at, format!("{key} is {}: write text, in quotes", node.kind()));
        return None;
    };
    Some((text.to_owned(), at))
}

/// One text is one item.
fn one(text: &str) -> Vec<String> {
    vec![text.trim().to_owned()]
}

/// Words at commas and blanks, but not within parentheses: `Read, Bash(git add:*)`.
fn tools_of_text(text: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let parts = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && (c == ',' || c.is_whitespace())
    });
    parts.filter(|part| !part.is_empty()).map(ToOwned::to_owned).collect()
}

fn tools(fields: &mut Fields<'_>, findings: &mut Findings) -> Vec<PlaybookTool> {
    let source = fields.source();
    let mut unknown = Vec::new();
    let tools = fields.typed("tools", "a list of tools, each with a name", findings, |node| {
        let Data::List(items) = &node.data else {
            return Some(list(node, tools_of_text)?.into_iter().map(tool_of_name).collect());
        };
        items.iter().map(|item| tool(item, &mut unknown)).collect::<Option<Vec<_>>>()
    });
    for (class, offset) in unknown.into_iter().filter(|_| tools.is_some()) {
        let message = format!("the class {class:?} is none: write safe (or read), mutating or dangerous");
        findings.warn(codes::W_TOOL_CLASS, source.position(offset), message);
    }
    tools.unwrap_or_default()
}

fn tool(node: &Node, unknown: &mut Vec<(String, usize)>) -> Option<PlaybookTool> {
    let Data::Map(members) = &node.data else { return node.as_text().map(|name| tool_of_name(name.to_owned())) };
    let value = |key: &str| members.iter().find(|member| member.key == key).map(|member| &member.value);
    let text = |key: &str| match value(key) {
        None | Some(Node { data: Data::Null, .. }) => Some(String::new()),
        Some(node) => node.as_text().map(ToOwned::to_owned),
    };
    let class = match text("class")?.as_str() {
        "" | "read" => Some(Class::Safe),
        word => {
            let class = class_of(word);
            if class.is_none() {
                unknown.push((word.to_owned(), value("class").map_or(node.span.start, |node| node.span.start)));
            }
            class
        }
    };
    let name = text("name").filter(|name| !name.trim().is_empty())?;
    Some(PlaybookTool { name, implementation: text("impl")?, class, description: text("description")? })
}

fn tool_of_name(name: String) -> PlaybookTool {
    PlaybookTool { name, implementation: String::new(), class: Some(Class::Safe), description: String::new() }
}

/// `metadata.os` and `metadata.requires`; what else `metadata` holds stays among the unknown keys.
fn requires(fields: &mut Fields<'_>, findings: &mut Findings) -> Requirements {
    let Some((mut metadata, at)) = fields.map("metadata", findings) else { return Requirements::default() };
    let os = metadata.list("os", findings, tools_of_text);
    let (mut bins, mut config) = (Vec::new(), Vec::new());
    if let Some((mut requires, at)) = metadata.map("requires", findings) {
        bins = requires.list("bins", findings, tools_of_text);
        config = requires.list("config", findings, tools_of_text);
        metadata.put_back("requires", (requires, at));
    }
    fields.put_back("metadata", (metadata, at));
    Requirements { os, bins, config }
}

fn activation(fields: &mut Fields<'_>, findings: &mut Findings) -> String {
    let Some((mut activation, at)) = fields.map("activation", findings) else { return String::new() };
    let mode = activation.typed("mode", "always or on_demand", findings, |node| {
        node.as_text().filter(|mode| matches!(*mode, "always" | "on_demand")).map(ToOwned::to_owned)
    });
    fields.put_back("activation", (activation, at));
    mode.unwrap_or_default()
}
