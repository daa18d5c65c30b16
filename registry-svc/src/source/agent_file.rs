//! Agent files: Markdown whose frontmatter says which skills an agent sees and which classes it may run.

use std::collections::BTreeSet;

use skillyard::{Agent, PermissionMode, SkillName};
use unicode_normalization::UnicodeNormalization as _;

use super::codes;
use super::findings::Findings;
use super::frontmatter;
use super::near;
use super::node::{Fields, list};
use super::text::Text;

/// The keys that count.
const KEYS: [&str; 5] = ["name", "description", "skills", "disallowed_skills", "permission_mode"];

/// What people write and mean one of the keys: a list that is not read means all skills.
const SYNONYMS: [(&str, &str); 14] = [
    ("allowedskills", "skills"),
    ("allowskills", "skills"),
    ("skillsallowed", "skills"),
    ("enabledskills", "skills"),
    ("skilllist", "skills"),
    ("deniedskills", "disallowed_skills"),
    ("denyskills", "disallowed_skills"),
    ("blockedskills", "disallowed_skills"),
    ("forbiddenskills", "disallowed_skills"),
    ("disabledskills", "disallowed_skills"),
    ("excludedskills", "disallowed_skills"),
    ("permission", "permission_mode"),
    ("permissions", "permission_mode"),
    ("mode", "permission_mode"),
];

/// An agent's name, as far as it is known, and the agent, unless something is wrong with it.
pub(crate) fn read(text: &Text, findings: &mut Findings) -> (String, Option<Agent>) {
    let found = match frontmatter::read(text) {
        Ok(found) => found,
        Err(fault) => {
            findings.fault(fault);
            return (String::new(), None);
        }
    };
    let mut fields = Fields::new(&found.text, found.members);
    let name = name(&mut fields, findings);
    let description = fields.text("description", findings).unwrap_or_default();
    let skills_at = fields.position_of("skills");
    let skills = names(&mut fields, "skills", findings);
    if let Some(at) = skills_at
        && skills.as_ref().is_some_and(BTreeSet::is_empty)
    {
        let message = "skills lists nothing, which means all skills: write [\"*\"] if that is meant";
        findings.warn(codes::W_AGENT_SKILLS_EMPTY, at, message);
    }
    let disallowed_skills = names(&mut fields, "disallowed_skills", findings);
    let permission_mode = permission_mode(&mut fields, findings);
    for (key, at) in fields.rest_keys() {
        if let Some(meant) = near::meant(key, &KEYS, &SYNONYMS) {
            let message = format!("the key {key:?} counts for nothing: write {meant:?} if that is meant");
            findings.warn(codes::W_AGENT_KEY_NEARLY, at, message);
        }
    }
    if findings.failed().is_some() {
        return (name.unwrap_or_default(), None);
    }
    let agent = name.clone().zip(skills).zip(disallowed_skills).map(|((name, skills), disallowed_skills)| Agent {
        name,
        description,
        skills,
        disallowed_skills,
        permission_mode,
    });
    (name.unwrap_or_default(), agent)
}

fn name(fields: &mut Fields<'_>, findings: &mut Findings) -> Option<String> {
    let Some(node) = fields.take("name") else {
        findings.build(
            codes::E_KEY_MISSING,
            (0, 0),
            "name is missing: add a line `name: …`, by which callers name the agent",
        );
        return None;
    };
    let at = fields.source().position(node.span.start);
    let Some(name) = node.as_text().map(|name| name.trim().nfc().collect::<String>()) else {
        findings.parse(codes::E_TYPE, at, format!("name is {}: write text, in quotes", node.kind()));
        return None;
    };
    if let Err(error) = name.parse::<SkillName>() {
        findings.build(codes::E_NAME_INVALID, at, error.to_string());
        return None;
    }
    Some(name)
}

/// A list of names; a list of another type is an error, for it decides what the agent may see.
fn names(fields: &mut Fields<'_>, key: &str, findings: &mut Findings) -> Option<BTreeSet<String>> {
    let Some(node) = fields.take(key) else { return Some(BTreeSet::new()) };
    let Some(names) = list(&node, split) else {
        let at = fields.source().position(node.span.start);
        findings.parse(codes::E_TYPE, at, format!("{key} is not a list of names: write {key}: [\"a\", \"b\"]"));
        return None;
    };
    Some(names.into_iter().filter(|name| !name.is_empty()).map(|name| name.nfc().collect()).collect())
}

/// At commas only: a playbook's name may have blanks.
fn split(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_owned()).collect()
}

fn permission_mode(fields: &mut Fields<'_>, findings: &mut Findings) -> PermissionMode {
    let Some(node) = fields.take("permission_mode") else { return PermissionMode::default() };
    let mode = node.as_text().and_then(|word| PermissionMode::ALL.into_iter().find(|mode| mode.as_str() == word));
    mode.unwrap_or_else(|| {
        let words = PermissionMode::ALL.map(PermissionMode::as_str).join(", ");
        let written = node.as_text().map_or_else(|| node.kind().to_owned(), |word| format!("{word:?}"));
        let at = fields.source().position(node.span.start);
        findings.build(codes::E_PERMISSION_MODE, at, format!("permission_mode is {written}: write one of {words}"));
        PermissionMode::default()
    })
}
