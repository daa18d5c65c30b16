//! Golden packs: each directory of `tests/packs` is a root (`root/`, of the kind that `kind` names) and all that a scan is
//! to say about it (`expected.json`). `SKILLYARD_WRITE_PACKS=1` writes what is seen instead of comparing it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use registry_svc::source::{
    AgentScan, Candidate, Diagnostic, FoundSkill, Root, RootKind, RootState, Scan, Severity, SkillScan, Stage,
    scan_agents, scan_skills,
};
use serde_json::{Map, Value, json};
use skillyard::skill::{Card, Kind, Playbook};
use skillyard::{Agent, Source};

#[rstest::rstest]
#[case("subprocess")]
#[case("manifest-faults")]
#[case("entry-faults")]
#[case("subprocess-links")]
#[case("mounted-volume")]
#[case("playbooks")]
#[case("playbook-faults")]
#[case("playbook-places")]
#[case("cloud")]
#[case("agents")]
fn a_pack_is_seen_as_expected(#[case] name: &str) {
    let pack = packs().join(name);
    // The cloud's manifest lies beside a root called `skills`; every other root can have any name.
    let (seen, again) = match std::fs::read_to_string(pack.join("kind")).unwrap().trim() {
        "agents" => {
            let root = root(&pack, "root", RootKind::Agents);
            let scan = scan_agents(&root, None);
            (agents(&scan, &pack), scan == scan_agents(&root, Some(&scan)))
        }
        kind => {
            let source = match kind {
                "external" => Source::External,
                "override" => Source::Override,
                "cloud" => Source::Cloud,
                "project" => Source::Project,
                other => panic!("the kind {other} is none"),
            };
            let root = root(&pack, "root", RootKind::Skills(source));
            let scan = scan_skills(&root, None);
            (skills(&scan, &pack), scan == scan_skills(&root, Some(&scan)))
        }
    };
    assert!(again, "a scan that remembers sees the same");
    let expected = pack.join("expected.json");
    if std::env::var_os("SKILLYARD_WRITE_PACKS").is_some() {
        std::fs::write(&expected, format!("{:#}\n", Value::Object(seen))).unwrap();
        return;
    }
    let expected: Map<String, Value> = serde_json::from_slice(&std::fs::read(expected).unwrap()).unwrap();
    // One by one, so that a difference is readable.
    for (path, seen) in &seen {
        assert_eq!(Some(seen), expected.get(path), "{path}");
    }
    assert_eq!(seen.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
}

#[test]
fn every_pack_is_tested() {
    let text = include_str!("packs.rs");
    for entry in std::fs::read_dir(packs()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert!(!entry.path().is_dir() || text.contains(&format!("#[case(\"{name}\")]")), "{name}");
    }
}

fn packs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/packs").canonicalize().unwrap()
}

fn root(pack: &Path, name: &str, kind: RootKind) -> Root {
    Root { path: pack.join(name), kind, state: RootState::Registered }
}

fn skills(scan: &SkillScan, pack: &Path) -> Map<String, Value> {
    seen(scan, pack, skill)
}

fn agents(scan: &AgentScan, pack: &Path) -> Map<String, Value> {
    seen(scan, pack, agent)
}

/// Every candidate by its path in the pack.
fn seen<T>(scan: &Scan<T>, pack: &Path, value: impl Fn(&T) -> Value) -> Map<String, Value> {
    assert_eq!(scan.root.state, RootState::Registered);
    assert!(scan.candidates.is_sorted_by(|a, b| a.path < b.path), "sorted, and each once");
    let candidates = scan.candidates.iter().map(|candidate| {
        assert_eq!(candidate.failed.is_some(), candidate.diagnostics.iter().any(|d| d.severity == Severity::Error));
        let path = candidate.path.strip_prefix(pack).unwrap().to_string_lossy().into_owned();
        (path, one(candidate, pack, &value))
    });
    candidates.collect()
}

fn one<T>(candidate: &Candidate<T>, pack: &Path, value: impl Fn(&T) -> Value) -> Value {
    let mut seen = Map::new();
    let mut put = |key: &str, value: Value| {
        if !matches!(&value, Value::Null) && value != json!("") && value != json!([]) {
            seen.insert(key.to_owned(), value);
        }
    };
    put("name", json!(&*candidate.name));
    put("value", candidate.value.as_deref().map(value).unwrap_or_default());
    put(
        "failed",
        match candidate.failed {
            None => Value::Null,
            Some(Stage::Parse) => json!("parse"),
            Some(Stage::Build) => json!("build"),
        },
    );
    put("diagnostics", candidate.diagnostics.iter().map(|d| diagnostic(d, pack)).collect());
    Value::Object(seen)
}

fn diagnostic(diagnostic: &Diagnostic, pack: &Path) -> Value {
    let Diagnostic { code, message, line, column, severity } = diagnostic;
    assert_eq!(*severity == Severity::Error, code.starts_with("E_"), "{code}");
    json!(format!("{line}:{column} {code} {}", message.replace(&pack.display().to_string(), "PACK")))
}

fn skill(found: &FoundSkill) -> Value {
    let skill = &found.skill;
    let files: Vec<_> = found
        .package
        .files
        .iter()
        .map(|file| format!("{} {}", if file.file.executable { "x" } else { "-" }, file.file.path))
        .collect();
    let mut value = json!({
        "name": skill.name.as_str(),
        "description": skill.description,
        "path": skill.path,
        "digest": skill.digest.to_string(),
        "files": files,
    });
    let mut put = |key: &str, other: Value| {
        if other != Value::Null && other != json!("") && other != json!([]) && other != json!({}) {
            value[key] = other;
        }
    };
    let Card { category, category_order, summary, use_when, example_prompts } = &skill.card;
    put("category", json!(category));
    put("category_order", json!(category_order));
    put("summary", json!(summary));
    put("use_when", json!(use_when));
    put("example_prompts", json!(example_prompts));
    put("extra", json!(skill.extra));
    match &skill.kind {
        Kind::Subprocess(s) => {
            put("schema", json!(s.schema_json));
            put("entry", json!(s.entry.as_str()));
            put("env_allow", json!(s.env_allow));
            put("timeout_seconds", json!(s.timeout_seconds));
            put("class", json!(s.class.as_str()));
        }
        Kind::Playbook(playbook) => {
            let Playbook { when_to_use, license, compatibility, allowed_tools, tools, requires, activation } =
                &**playbook;
            put("when_to_use", json!(when_to_use));
            put("license", json!(license));
            put("compatibility", json!(compatibility));
            put("allowed_tools", json!(allowed_tools));
            let tool = |t: &skillyard::skill::PlaybookTool| {
                json!([t.name, t.implementation, t.class.map(skillyard::Class::as_str), t.description])
            };
            put("tools", tools.iter().map(tool).collect());
            put("os", json!(requires.os));
            put("bins", json!(requires.bins));
            put("config", json!(requires.config));
            put("activation", json!(activation));
        }
    }
    value
}

fn agent(agent: &Agent) -> Value {
    json!({
        "name": agent.name,
        "description": agent.description,
        "skills": agent.skills,
        "disallowed_skills": agent.disallowed_skills,
        "permission_mode": agent.permission_mode.as_str(),
    })
}
