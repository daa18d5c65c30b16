//! What tests make catalogs of.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::skill::{Card, Class, EMPTY_SCHEMA, Kind, Subprocess};
use skillyard::{Agent, Digest, PermissionMode, Skill, Source};

use super::load::{self, Scanned};
use super::snapshot::Catalog;
use crate::source::{Candidate, FoundSkill, Package, Root, RootKind, RootState, Scan, Tier};

pub(crate) fn root(path: &str, kind: RootKind) -> Root {
    Root { path: path.into(), kind, state: RootState::Registered }
}

/// A skill in a directory under a root, whose digest is that of the content.
pub(crate) fn skill(root: &str, directory: &str, name: &str, source: Source, content: &str) -> Candidate<FoundSkill> {
    let kind = match source {
        Source::External => Kind::Subprocess(Subprocess {
            schema_json: EMPTY_SCHEMA.into(),
            entry: "run".parse().unwrap(),
            env_allow: Vec::new(),
            timeout_seconds: 30,
            class: Class::Safe,
        }),
        _ => Kind::Playbook(Box::default()),
    };
    let file = if source == Source::External { "skill.json" } else { "SKILL.md" };
    let directory_path: Arc<Path> = Path::new(root).join(directory).into();
    let path = directory_path.join(file).into();
    let skill = Skill {
        name: name.parse().unwrap(),
        description: "d".into(),
        source,
        digest: Digest::of(content.as_bytes()),
        path: directory.into(),
        kind,
        card: Card::default(),
        extra: serde_json::Map::new(),
        modified_at: SystemTime::UNIX_EPOCH,
    };
    let found =
        FoundSkill { skill, package: Package { directory: directory_path, files: Vec::new() }, tier: Some(Tier::Free) };
    Candidate { path, name: name.into(), value: Some(Arc::new(found)), diagnostics: Vec::new(), failed: None }
}

/// A subprocess skill with this description.
pub(crate) fn described(name: &str, description: String) -> Candidate<FoundSkill> {
    let mut candidate = skill("/e", name, name, Source::External, name);
    if let Some(found) = &mut candidate.value {
        Arc::make_mut(found).skill.description = description;
    }
    candidate
}

/// An agent that sees these skills.
pub(crate) fn agent<S: ToString>(name: &str, skills: &[S]) -> Candidate<Agent> {
    let agent = Agent {
        name: name.into(),
        description: String::new(),
        skills: skills.iter().map(ToString::to_string).collect(),
        disallowed_skills: ["*".to_owned()].into(),
        permission_mode: PermissionMode::ReadOnly,
    };
    let path = Path::new("/agents").join(format!("{name}.md")).into();
    Candidate { path, name: name.into(), value: Some(Arc::new(agent)), diagnostics: Vec::new(), failed: None }
}

/// Skills under a root: directory, name and content of each.
pub(crate) fn skills(path: &str, source: Source, found: &[(&str, &str, &str)]) -> Arc<Scanned> {
    let candidates = found.iter().map(|(dir, name, content)| skill(path, dir, name, source, content)).collect();
    Arc::new(Scanned::Skills(Scan::new(root(path, RootKind::Skills(source)), candidates)))
}

/// Agents of one directory.
pub(crate) fn agents(found: Vec<Candidate<Agent>>) -> Arc<Scanned> {
    Arc::new(Scanned::Agents(Scan::new(root("/agents", RootKind::Agents), found)))
}

/// A catalog of these.
pub(crate) fn catalog(found: Vec<Candidate<FoundSkill>>, of: Vec<Candidate<Agent>>) -> Catalog {
    let skills = Scan::new(root("/e", RootKind::Skills(Source::External)), found);
    load::load(&[Arc::new(Scanned::Skills(skills)), agents(of)], SystemTime::UNIX_EPOCH, None)
}
