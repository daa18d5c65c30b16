//! Values to messages and back. The services keep wire types at their edges: a registry turns values into messages here,
//! an executor turns messages into values, and neither trusts the other to have checked.

use std::time::{Duration, SystemTime};

use prost_types::value::Kind as PbValueKind;
use serde_json::{Map, Number, Value};

use crate::agent::{Agent, PermissionMode};
use crate::digest::DigestError;
use crate::name::NameError;
use crate::package::PathError;
use crate::pb::registry::v1 as registry;
use crate::pb::skill::v1 as pb;
use crate::skill::{Card, Class, Kind, Playbook, PlaybookTool, Requirements, Skill, Source, Subprocess};

/// Why a message is no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The digest is none.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The entry is no path within a package.
    #[error("entry: {0}")]
    Entry(#[from] PathError),
    /// A field that must be set is not, or has a value that this version does not know.
    #[error("the field {0} is missing or has an unknown value")]
    Field(&'static str),
}

/// A skill as a message.
#[must_use]
pub fn skill_to_wire(skill: &Skill) -> pb::Skill {
    let (kind, subprocess, playbook) = match &skill.kind {
        Kind::Subprocess(s) => (pb::SkillKind::Subprocess, Some(subprocess_to_wire(s)), None),
        Kind::Playbook(p) => (pb::SkillKind::Playbook, None, Some(playbook_to_wire(p))),
    };
    pb::Skill {
        name: skill.name.to_string(),
        kind: kind.into(),
        description: skill.description.clone(),
        source: source_to_wire(skill.source).into(),
        digest: skill.digest.to_string(),
        path: skill.path.clone(),
        subprocess,
        playbook,
        card: Some(pb::Card {
            category: skill.card.category.clone(),
            category_order: skill.card.category_order,
            summary: skill.card.summary.clone(),
            use_when: skill.card.use_when.clone(),
            example_prompts: skill.card.example_prompts.clone(),
        }),
        extra: (!skill.extra.is_empty()).then(|| struct_to_wire(&skill.extra)),
        modified_at: Some(skill.modified_at.into()),
    }
}

/// A message as a skill.
///
/// # Errors
/// [`WireError`] says which field is wrong. Fields that an executor is not sent (a playbook's text, a card) may be
/// missing.
pub fn skill_from_wire(message: pb::Skill) -> Result<Skill, WireError> {
    let source = match message.source() {
        pb::SkillSource::Override => Source::Override,
        pb::SkillSource::Cloud => Source::Cloud,
        pb::SkillSource::Project => Source::Project,
        pb::SkillSource::ProjectLegacy => Source::ProjectLegacy,
        pb::SkillSource::External => Source::External,
        pb::SkillSource::Unspecified => return Err(WireError::Field("source")),
    };
    let kind = match message.kind() {
        pb::SkillKind::Subprocess => {
            let subprocess = message.subprocess.ok_or(WireError::Field("subprocess"))?;
            Kind::Subprocess(Subprocess {
                class: class_from_wire(subprocess.class()).ok_or(WireError::Field("subprocess.class"))?,
                schema_json: subprocess.schema_json,
                entry: subprocess.entry.parse()?,
                env_allow: subprocess.env_allow,
                timeout_seconds: subprocess.timeout_seconds,
            })
        }
        pb::SkillKind::Playbook => {
            Kind::Playbook(Box::new(message.playbook.map(playbook_from_wire).unwrap_or_default()))
        }
        pb::SkillKind::Unspecified => return Err(WireError::Field("kind")),
    };
    let card = message.card.unwrap_or_default();
    Ok(Skill {
        name: message.name.parse()?,
        description: message.description,
        source,
        digest: message.digest.parse()?,
        path: message.path,
        kind,
        card: Card {
            category: card.category,
            category_order: card.category_order,
            summary: card.summary,
            use_when: card.use_when,
            example_prompts: card.example_prompts,
        },
        extra: message.extra.map(struct_from_wire).unwrap_or_default(),
        modified_at: message.modified_at.and_then(|t| t.try_into().ok()).unwrap_or(SystemTime::UNIX_EPOCH),
    })
}

fn subprocess_to_wire(subprocess: &Subprocess) -> pb::Subprocess {
    pb::Subprocess {
        schema_json: subprocess.schema_json.clone(),
        entry: subprocess.entry.to_string(),
        env_allow: subprocess.env_allow.clone(),
        timeout_seconds: subprocess.timeout_seconds,
        class: class_to_wire(subprocess.class).into(),
    }
}

fn playbook_to_wire(playbook: &Playbook) -> pb::Playbook {
    pb::Playbook {
        when_to_use: playbook.when_to_use.clone(),
        license: playbook.license.clone(),
        compatibility: playbook.compatibility.clone(),
        allowed_tools: playbook.allowed_tools.clone(),
        tools: playbook
            .tools
            .iter()
            .map(|tool| pb::PlaybookTool {
                name: tool.name.clone(),
                r#impl: tool.implementation.clone(),
                class: tool.class.map_or(pb::SkillClass::Unspecified, class_to_wire).into(),
                description: tool.description.clone(),
            })
            .collect(),
        requires: Some(pb::Requirements {
            os: playbook.requires.os.clone(),
            bins: playbook.requires.bins.clone(),
            config: playbook.requires.config.clone(),
        }),
        activation: playbook.activation.clone(),
    }
}

fn playbook_from_wire(message: pb::Playbook) -> Playbook {
    let requires = message.requires.unwrap_or_default();
    Playbook {
        when_to_use: message.when_to_use,
        license: message.license,
        compatibility: message.compatibility,
        allowed_tools: message.allowed_tools,
        tools: message
            .tools
            .into_iter()
            .map(|tool| PlaybookTool {
                class: class_from_wire(tool.class()),
                name: tool.name,
                implementation: tool.r#impl,
                description: tool.description,
            })
            .collect(),
        requires: Requirements { os: requires.os, bins: requires.bins, config: requires.config },
        activation: message.activation,
    }
}

/// A class as its enum value.
#[must_use]
pub fn class_to_wire(class: Class) -> pb::SkillClass {
    match class {
        Class::Safe => pb::SkillClass::Safe,
        Class::Mutating => pb::SkillClass::Mutating,
        Class::Dangerous => pb::SkillClass::Dangerous,
    }
}

/// An enum value as a class; `None` for UNSPECIFIED.
#[must_use]
pub fn class_from_wire(class: pb::SkillClass) -> Option<Class> {
    match class {
        pb::SkillClass::Safe => Some(Class::Safe),
        pb::SkillClass::Mutating => Some(Class::Mutating),
        pb::SkillClass::Dangerous => Some(Class::Dangerous),
        pb::SkillClass::Unspecified => None,
    }
}

/// A source as its enum value.
#[must_use]
pub fn source_to_wire(source: Source) -> pb::SkillSource {
    match source {
        Source::Override => pb::SkillSource::Override,
        Source::Cloud => pb::SkillSource::Cloud,
        Source::Project => pb::SkillSource::Project,
        Source::ProjectLegacy => pb::SkillSource::ProjectLegacy,
        Source::External => pb::SkillSource::External,
    }
}

/// An agent as a message.
#[must_use]
pub fn agent_to_wire(agent: &Agent) -> registry::Agent {
    let mode = match agent.permission_mode {
        PermissionMode::ReadOnly => registry::PermissionMode::ReadOnly,
        PermissionMode::MutatingWithConfirm => registry::PermissionMode::MutatingWithConfirm,
        PermissionMode::DualSignRequired => registry::PermissionMode::DualSignRequired,
    };
    registry::Agent {
        name: agent.name.clone(),
        description: agent.description.clone(),
        skills: agent.skills.iter().cloned().collect(),
        disallowed_skills: agent.disallowed_skills.iter().cloned().collect(),
        permission_mode: mode.into(),
    }
}

/// A message as an agent. A mode that this version does not know permits the least.
#[must_use]
pub fn agent_from_wire(message: registry::Agent) -> Agent {
    let permission_mode = match message.permission_mode() {
        registry::PermissionMode::MutatingWithConfirm => PermissionMode::MutatingWithConfirm,
        registry::PermissionMode::DualSignRequired => PermissionMode::DualSignRequired,
        registry::PermissionMode::ReadOnly | registry::PermissionMode::Unspecified => PermissionMode::ReadOnly,
    };
    Agent {
        name: message.name,
        description: message.description,
        skills: message.skills.into_iter().collect(),
        disallowed_skills: message.disallowed_skills.into_iter().collect(),
        permission_mode,
    }
}

/// JSON as a Struct. Numbers become doubles.
#[must_use]
pub fn struct_to_wire(map: &Map<String, Value>) -> prost_types::Struct {
    prost_types::Struct { fields: map.iter().map(|(k, v)| (k.clone(), value_to_wire(v))).collect() }
}

fn value_to_wire(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => PbValueKind::NullValue(0),
        Value::Bool(b) => PbValueKind::BoolValue(*b),
        Value::Number(n) => PbValueKind::NumberValue(n.as_f64().unwrap_or_default()),
        Value::String(s) => PbValueKind::StringValue(s.clone()),
        Value::Array(items) => {
            PbValueKind::ListValue(prost_types::ListValue { values: items.iter().map(value_to_wire).collect() })
        }
        Value::Object(map) => PbValueKind::StructValue(struct_to_wire(map)),
    };
    prost_types::Value { kind: Some(kind) }
}

/// A Struct as JSON, keys sorted, whole numbers without a fraction. What JSON cannot say (NaN, infinity) becomes null.
#[must_use]
pub fn struct_from_wire(message: prost_types::Struct) -> Map<String, Value> {
    message.fields.into_iter().map(|(k, v)| (k, value_from_wire(v))).collect()
}

/// Whether every number of a Struct can be said in JSON, which has no NaN and no infinity.
#[must_use]
pub fn is_finite(args: &prost_types::Struct) -> bool {
    args.fields.values().all(value_is_finite)
}

fn value_is_finite(value: &prost_types::Value) -> bool {
    match &value.kind {
        Some(PbValueKind::NumberValue(n)) => n.is_finite(),
        Some(PbValueKind::ListValue(list)) => list.values.iter().all(value_is_finite),
        Some(PbValueKind::StructValue(map)) => is_finite(map),
        _ => true,
    }
}

fn value_from_wire(message: prost_types::Value) -> Value {
    match message.kind {
        None | Some(PbValueKind::NullValue(_)) => Value::Null,
        Some(PbValueKind::BoolValue(b)) => Value::Bool(b),
        Some(PbValueKind::NumberValue(n)) => number(n),
        Some(PbValueKind::StringValue(s)) => Value::String(s),
        Some(PbValueKind::ListValue(list)) => Value::Array(list.values.into_iter().map(value_from_wire).collect()),
        Some(PbValueKind::StructValue(map)) => Value::Object(struct_from_wire(map)),
    }
}

/// Doubles are exact for whole numbers up to 2^53.
fn number(n: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if n.fract() == 0.0 && n.abs() <= EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 2^53")]
        return Value::Number(Number::from(n as i64));
    }
    Number::from_f64(n).map_or(Value::Null, Value::Number)
}

/// A duration as a message.
#[must_use]
pub fn duration_to_wire(duration: Duration) -> prost_types::Duration {
    duration.try_into().unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use serde_json::json;

    fn skill(kind: Kind) -> Skill {
        Skill {
            name: "x".parse().unwrap(),
            description: "does x".into(),
            source: Source::External,
            digest: Digest::of(b"x"),
            path: "a/x".into(),
            kind,
            card: Card { category: "c".into(), category_order: Some(0), ..Card::default() },
            extra: json!({"version": 3, "deep": {"a": [1.5, null, true, "s"]}}).as_object().unwrap().clone(),
            modified_at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        }
    }

    #[test]
    fn there_and_back() {
        let subprocess = skill(Kind::Subprocess(Subprocess {
            schema_json: crate::skill::EMPTY_SCHEMA.into(),
            entry: "bin/run".parse().unwrap(),
            env_allow: vec!["PATH".into()],
            timeout_seconds: 30,
            class: Class::Dangerous,
        }));
        assert_eq!(skill_from_wire(skill_to_wire(&subprocess)).unwrap(), subprocess);
        let playbook = skill(Kind::Playbook(Box::new(Playbook {
            tools: vec![PlaybookTool {
                name: "t".into(),
                implementation: "i".into(),
                class: None,
                description: "d".into(),
            }],
            requires: Requirements { os: vec!["linux".into()], bins: vec!["jq".into()], config: vec![] },
            activation: "always".into(),
            ..Playbook::default()
        })));
        assert_eq!(skill_from_wire(skill_to_wire(&playbook)).unwrap(), playbook);
        for permission_mode in PermissionMode::ALL {
            let agent = Agent {
                name: "a".into(),
                description: "d".into(),
                skills: ["x".to_owned()].into(),
                disallowed_skills: ["y".to_owned()].into(),
                permission_mode,
            };
            assert_eq!(agent_from_wire(agent_to_wire(&agent)), agent);
        }
    }

    #[test]
    fn a_message_that_is_no_skill() {
        let good = skill_to_wire(&skill(Kind::Playbook(Box::default())));
        let broken = |change: fn(&mut pb::Skill)| {
            let mut message = good.clone();
            change(&mut message);
            skill_from_wire(message).unwrap_err()
        };
        assert_eq!(broken(|m| m.kind = 0), WireError::Field("kind"));
        assert_eq!(broken(|m| m.kind = 77), WireError::Field("kind"));
        assert_eq!(broken(|m| m.kind = 1), WireError::Field("subprocess"));
        assert_eq!(broken(|m| m.source = 0), WireError::Field("source"));
        assert!(matches!(broken(|m| m.name = "../x".into()), WireError::Name(_)));
        assert!(matches!(broken(|m| m.digest = "x".into()), WireError::Digest(_)));
    }

    #[test]
    fn numbers_of_a_struct() {
        let text = |n: f64| {
            let value = prost_types::Value { kind: Some(PbValueKind::NumberValue(n)) };
            value_from_wire(value).to_string()
        };
        assert_eq!(text(3.0), "3");
        assert_eq!(text(-0.5), "-0.5");
        assert_eq!(text(1e300), "1e+300");
        assert_eq!(text(f64::NAN), "null");
    }
}
