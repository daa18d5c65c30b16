//! Function definitions for a model's API: a tool for each subprocess skill that an agent may call, and the two by which it
//! reads playbooks. Nothing of a card.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use skillyard::policy::{Ruling, rule};
use skillyard::skill::{Kind, Subprocess};
use skillyard::{Class, Skill, View};

use crate::catalog::Catalog;
use crate::source::tool::{LOAD, MAX_DESCRIPTION_CHARS, READ, ROOT_KEYWORDS, is_reserved};

/// Whose API definitions are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `name`, `description`, `parameters`, as the manifest has them.
    JsonSchema,
    /// `OpenAI`'s function tools.
    OpenAi,
    /// Anthropic's client tools.
    Anthropic,
    /// Tools as MCP's `tools/list` has them.
    Mcp,
}

/// A JSON array of the tools of this view.
///
/// # Errors
/// The values cannot be written as JSON, which no catalog's are.
pub fn tools(catalog: &Catalog, view: View<'_>, format: Format) -> Result<String, serde_json::Error> {
    let (mut tools, mut playbooks) = (Vec::new(), Vec::new());
    for found in catalog.skills(view, None) {
        let skill = &found.skill;
        match &skill.kind {
            Kind::Playbook(_) => playbooks.push(skill.name.as_str()),
            Kind::Subprocess(subprocess) => tools.extend(tool(skill, subprocess, view, format)?),
        }
    }
    if !playbooks.is_empty() {
        // Two tools of one name are refused.
        tools.retain(|tool| !is_reserved(&tool.name));
        tools.extend(reading(&playbooks)?);
    }
    let definitions: Vec<_> = tools.into_iter().map(|tool| Definition::of(tool, format)).collect();
    serde_json::to_string(&definitions)
}

/// A tool, whoever it is for.
struct Tool<'a> {
    name: Cow<'a, str>,
    description: String,
    parameters: Box<RawValue>,
    class: Class,
}

/// The tool that a skill is, unless the agent can never run it.
fn tool<'a>(
    skill: &'a Skill,
    subprocess: &Subprocess,
    view: View<'_>,
    format: Format,
) -> Result<Option<Tool<'a>>, serde_json::Error> {
    let class = subprocess.class;
    let note = match rule(class, view.permission_mode()) {
        Ruling::Refused => return Ok(None),
        Ruling::Runs => "",
        Ruling::NeedsSignatures(1) => "Each call needs a person's approval before it runs.",
        Ruling::NeedsSignatures(_) => "Each call needs the approval of two people before it runs.",
    };
    Ok(Some(Tool {
        name: skill.name.as_str().into(),
        description: described(&skill.description, note, format),
        parameters: parameters(&subprocess.schema_json, format)?,
        class,
    }))
}

/// What the model chooses by. The note is never what is cut off.
fn described(description: &str, note: &str, format: Format) -> String {
    let description = description.trim();
    let note = if note.is_empty() { String::new() } else { format!("\n\n{note}") };
    let room = match format {
        Format::OpenAi => MAX_DESCRIPTION_CHARS - note.chars().count(),
        _ => usize::MAX,
    };
    match description.char_indices().nth(room) {
        None => format!("{description}{note}"),
        Some(_) => format!("{}…{note}", description.chars().take(room - 1).collect::<String>().trim_end()),
    }
}

/// A schema with which these APIs take a tool. The executor checks arguments against what the manifest says, whatever is
/// left out here.
fn parameters(schema_json: &str, format: Format) -> Result<Box<RawValue>, serde_json::Error> {
    let written: Box<RawValue> = serde_json::from_str(schema_json)?;
    if format == Format::JsonSchema {
        return Ok(written);
    }
    let mut root: BTreeMap<String, Box<RawValue>> = serde_json::from_str(schema_json)?;
    let mut mended = false;
    if matches!(format, Format::OpenAi | Format::Anthropic) {
        for keyword in ROOT_KEYWORDS {
            mended |= root.remove(keyword).is_some();
        }
        if !root.contains_key("properties") {
            root.insert("properties".to_owned(), to_raw_value(&json!({}))?);
            mended = true;
        }
    }
    // Arguments are an object, whatever the schema would take.
    if root.get("type").is_none_or(|written| written.get() != r#""object""#) {
        root.insert("type".to_owned(), to_raw_value("object")?);
        mended = true;
    }
    if mended { to_raw_value(&root) } else { Ok(written) }
}

/// The tools by which a model reads these playbooks.
fn reading(playbooks: &[&str]) -> Result<[Tool<'static>; 2], serde_json::Error> {
    let name = json!({"type": "string", "enum": playbooks, "description": "The skill's name, as the list of available skills has it."});
    let relpath = json!({"type": "string", "description": "The file's path in the skill, as in references/table.md."});
    let parameters = |properties: serde_json::Value, required: &[&str]| {
        to_raw_value(&json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false
        }))
    };
    Ok([
        Tool {
            name: LOAD.into(),
            description:
                "Loads one of the available skills: instructions for the rest of this turn. Load a skill before \
                          you do what its description is about."
                    .to_owned(),
            parameters: parameters(json!({"name": name}), &["name"])?,
            class: Class::Safe,
        },
        Tool {
            name: READ.into(),
            description: "Reads a file of a skill that was loaded, where its instructions name one.".to_owned(),
            parameters: parameters(json!({"name": name, "relpath": relpath}), &["name", "relpath"])?,
            class: Class::Safe,
        },
    ])
}

/// A tool as an API has it.
#[derive(Serialize)]
#[serde(untagged)]
enum Definition<'a> {
    Bare(Function<'a>),
    OpenAi {
        r#type: &'static str,
        function: Function<'a>,
    },
    Anthropic {
        name: Cow<'a, str>,
        description: String,
        input_schema: Box<RawValue>,
    },
    Mcp {
        name: Cow<'a, str>,
        description: String,
        #[serde(rename = "inputSchema")]
        input_schema: Box<RawValue>,
        annotations: Annotations,
    },
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    description: String,
    parameters: Box<RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    read_only_hint: bool,
    destructive_hint: bool,
}

impl<'a> Definition<'a> {
    fn of(tool: Tool<'a>, format: Format) -> Self {
        let Tool { name, description, parameters, class } = tool;
        match format {
            Format::JsonSchema => Self::Bare(Function { name, description, parameters }),
            Format::OpenAi => Self::OpenAi { r#type: "function", function: Function { name, description, parameters } },
            Format::Anthropic => Self::Anthropic { name, description, input_schema: parameters },
            Format::Mcp => {
                let annotations =
                    Annotations { read_only_hint: class == Class::Safe, destructive_hint: class == Class::Dangerous };
                Self::Mcp { name, description, input_schema: parameters, annotations }
            }
        }
    }
}

#[cfg(test)]
mod tests;
