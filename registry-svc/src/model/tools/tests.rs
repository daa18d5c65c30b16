use super::*;
use crate::catalog::fixture;
use crate::source::{Candidate, FoundSkill};
use serde_json::Value;
use skillyard::{Agent, PermissionMode, Source};
use std::sync::Arc;

/// Key order and blanks as nobody would write them by a program.
const SCHEMA: &str = r#"{ "type": "object", "required": ["b"], "properties": {"b": {"minimum": 1.0}, "a": {}} }"#;

fn program(name: &str, class: Class, schema: &str) -> Candidate<FoundSkill> {
    let mut candidate = fixture::described(name, format!("Does {name}.\n"));
    let found = Arc::make_mut(candidate.value.as_mut().unwrap());
    if let Kind::Subprocess(subprocess) = &mut found.skill.kind {
        (subprocess.class, subprocess.schema_json) = (class, schema.to_owned());
    }
    found.skill.card.summary = "for people alone".into();
    candidate
}

fn playbook(name: &str) -> Candidate<FoundSkill> {
    fixture::skill("/e", name, name, Source::Override, name)
}

fn agent(mode: PermissionMode) -> Candidate<Agent> {
    let mut candidate = fixture::agent("me", &["*"]);
    let agent = Arc::make_mut(candidate.value.as_mut().unwrap());
    (agent.permission_mode, agent.disallowed_skills) = (mode, ["hidden".to_owned()].into());
    candidate
}

fn tools(skills: Vec<Candidate<FoundSkill>>, mode: PermissionMode, format: Format) -> String {
    let catalog = fixture::catalog(skills, vec![agent(mode)]);
    super::tools(&catalog, catalog.view("me", None).unwrap(), format).unwrap()
}

fn names(tools: &str) -> Vec<String> {
    let tools: Vec<Value> = serde_json::from_str(tools).unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_formats() {
    let tool = |format| tools(vec![program("greet", Class::Safe, SCHEMA)], PermissionMode::ReadOnly, format);
    assert_eq!(
        tool(Format::JsonSchema),
        format!(r#"[{{"name":"greet","description":"Does greet.","parameters":{SCHEMA}}}]"#)
    );
    assert_eq!(
        tool(Format::OpenAi),
        format!(
            r#"[{{"type":"function","function":{{"name":"greet","description":"Does greet.","parameters":{SCHEMA}}}}}]"#
        )
    );
    assert_eq!(
        tool(Format::Anthropic),
        format!(r#"[{{"name":"greet","description":"Does greet.","input_schema":{SCHEMA}}}]"#)
    );
    assert_eq!(
        tool(Format::Mcp),
        format!(
            r#"[{{"name":"greet","description":"Does greet.","inputSchema":{SCHEMA},"annotations":{{"readOnlyHint":true,"destructiveHint":false}}}}]"#
        )
    );
    assert_eq!(tools(vec![], PermissionMode::ReadOnly, Format::Mcp), "[]");
}

#[test]
fn only_what_the_agent_may_call() {
    let skills = || {
        let classes = [("a", Class::Safe), ("b", Class::Mutating), ("c", Class::Dangerous), ("hidden", Class::Safe)];
        classes.map(|(name, class)| program(name, class, SCHEMA)).to_vec()
    };
    let offered = |mode| names(&tools(skills(), mode, Format::JsonSchema));
    assert_eq!(offered(PermissionMode::ReadOnly), ["a"]);
    assert_eq!(offered(PermissionMode::MutatingWithConfirm), ["a", "b"]);
    assert_eq!(offered(PermissionMode::DualSignRequired), ["a", "b", "c"]);
    let tools: Vec<Value> =
        serde_json::from_str(&tools(skills(), PermissionMode::DualSignRequired, Format::Mcp)).unwrap();
    let told: Vec<_> = tools
        .iter()
        .map(|tool| {
            let hint = |name: &str| tool["annotations"][name].as_bool().unwrap();
            (tool["description"].as_str().unwrap(), hint("readOnlyHint"), hint("destructiveHint"))
        })
        .collect();
    assert_eq!(
        told,
        [
            ("Does a.", true, false),
            ("Does b.\n\nEach call needs a person's approval before it runs.", false, false),
            ("Does c.\n\nEach call needs the approval of two people before it runs.", false, true),
        ]
    );
    let catalog = fixture::catalog(skills(), Vec::new());
    let unnamed = super::tools(&catalog, View::unfiltered(), Format::JsonSchema).unwrap();
    assert_eq!(names(&unnamed), ["a", "hidden"], "without an agent only safe skills run");
}

#[test]
fn playbooks_come_with_two_tools_of_their_own() {
    let skills = vec![
        playbook("guide"),
        playbook("hidden"),
        playbook("\"数据\" 清洗"),
        program("skill", Class::Safe, SCHEMA),
        program("greet", Class::Safe, SCHEMA),
    ];
    let made = tools(skills, PermissionMode::ReadOnly, Format::JsonSchema);
    assert_eq!(names(&made), ["greet", "skill", "skill_resource"]);
    let made: Vec<Value> = serde_json::from_str(&made).unwrap();
    for tool in &made[1..] {
        assert_eq!(tool["parameters"]["properties"]["name"]["enum"], json!(["\"数据\" 清洗", "guide"]));
    }
    assert_eq!(made[1]["parameters"]["required"], json!(["name"]));
    assert_eq!(made[2]["parameters"]["required"], json!(["name", "relpath"]));
    assert!(!made.iter().any(|tool| tool.to_string().contains("people alone")), "nothing of a card");
    let alone = vec![program("skill", Class::Safe, SCHEMA)];
    assert_eq!(names(&tools(alone, PermissionMode::ReadOnly, Format::Mcp)), ["skill"]);
    let mcp: Value =
        serde_json::from_str(&tools(vec![playbook("guide")], PermissionMode::ReadOnly, Format::Mcp)).unwrap();
    for tool in mcp.as_array().unwrap() {
        assert_eq!(tool["annotations"], json!({"readOnlyHint": true, "destructiveHint": false}));
    }
}

#[test]
fn what_an_api_refuses_is_not_sent_to_it() {
    let schema =
        r#"{"properties": {"b": {"minimum": 1.0}, "a": {}}, "oneOf": [{"required": ["a"]}], "$defs": {"x":1}}"#;
    let parameters = |format| parameters(schema, format).unwrap().get().to_owned();
    let mended = r#"{"$defs":{"x":1},"properties":{"b": {"minimum": 1.0}, "a": {}},"type":"object"}"#;
    assert_eq!(parameters(Format::JsonSchema), schema);
    assert_eq!(parameters(Format::OpenAi), mended);
    assert_eq!(parameters(Format::Anthropic), mended);
    let with_type = mended.replacen(r#""properties""#, r#""oneOf":[{"required": ["a"]}],"properties""#, 1);
    assert_eq!(parameters(Format::Mcp), with_type);
    let bare = super::parameters(r#"{"type":["object","null"]}"#, Format::OpenAi).unwrap();
    assert_eq!(bare.get(), r#"{"properties":{},"type":"object"}"#);

    let long = "é".repeat(2000);
    let note = "Each call needs the approval of two people before it runs.";
    for note in ["", note] {
        let cut = described(&long, note, Format::OpenAi);
        assert_eq!(cut.chars().count(), MAX_DESCRIPTION_CHARS);
        assert!(cut.ends_with(if note.is_empty() { "é…" } else { note }), "{cut}");
    }
    assert_eq!(described(&long, "", Format::Anthropic), long);
}
