//! Every example of docs/diagnostics.md is tried: what causes a code gives it, what mends it takes it away, and no code is
//! without an example.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use registry_svc::catalog::load::{Scanned, load};
use registry_svc::source::{Host, Look, Root, RootKind, RootState, scan_agents, scan_skills_with};
use skillyard::Source;

const PAGE: &str = include_str!("../../docs/diagnostics.md");
/// It would take a million files.
const NOT_TRIED: [&str; 1] = ["E_WALK_TOO_LARGE"];
/// Of what an admin server answers, which tests of the sync try with one: no text of an author's causes them.
const OF_A_SERVER: [&str; 4] = ["E_SYNC_SERVER", "E_SYNC_SKILL", "W_SYNC_TIER", "W_SYNC_FILE_MISSING"];

const SKILL_JSON: [(&str, &str); 3] =
    [("name", "\"greet\""), ("description", "\"Says hello to a person.\""), ("entry", "\"run.sh\"")];
const SKILL_MD: [(&str, &str); 2] = [("name", "disk-full"), ("description", "Frees space on a host.")];
const AGENT: [(&str, &str); 1] = [("name", "reader")];

/// A row of a table of examples.
#[derive(Clone, Debug)]
struct Example {
    section: &'static str,
    code: &'static str,
    causes: String,
    mends: String,
}

fn examples() -> Vec<Example> {
    let (_, page) = PAGE.split_once("\n## Examples\n").unwrap();
    let mut section = "";
    let mut examples = Vec::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            section = title;
        } else if let Some(row) = line.strip_prefix("| `").and_then(|row| row.strip_suffix("` |")) {
            let cells: Vec<_> = row.split("` | `").collect();
            let [code, causes, mends] = cells.as_slice() else { panic!("three cells: {line}") };
            let text = |cell: &str| cell.replace('⏎', "\n").replace("\\|", "|");
            examples.push(Example { section, code, causes: text(causes), mends: text(mends) });
        }
    }
    examples
}

/// All codes that the tables before the examples have.
fn codes() -> BTreeSet<&'static str> {
    let (page, _) = PAGE.split_once("\n## The Agent Skills specification\n").unwrap();
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

/// Skills, playbooks, a mirror and an agent, with nothing to say against them.
fn world() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("skills/greet/skill.json", &json(""));
    write("skills/greet/run.sh", "#!/bin/sh\necho '{}'\n");
    fs::set_permissions(dir.path().join("skills/greet/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    write("playbooks/disk-full/SKILL.md", &markdown(&SKILL_MD, ""));
    write("agents/reader.md", &markdown(&AGENT, ""));
    write("cloud/skills/cert-renewal/SKILL.md", "---\nname: cert-renewal\ndescription: Renews a certificate.\n---\n");
    write("cloud/manifest.json", r#"{"skills": []}"#);
    dir
}

/// The manifest with a key in place of the one of its name, or the whole text.
fn json(text: &str) -> String {
    if text.starts_with('{') {
        return text.to_owned();
    }
    let kept = SKILL_JSON.iter().filter(|(key, _)| !text.starts_with(&format!("\"{key}\":")));
    let mut lines: Vec<_> = kept.map(|(key, value)| format!("\"{key}\": {value}")).collect();
    lines.extend((!text.is_empty()).then(|| text.to_owned()));
    format!("{{\n  {}\n}}\n", lines.join(",\n  "))
}

fn markdown(keys: &[(&str, &str)], text: &str) -> String {
    if text.contains("---") {
        return text.to_owned();
    }
    let kept = keys.iter().filter(|(key, _)| !text.starts_with(&format!("{key}:")));
    let lines: String = kept.map(|(key, value)| format!("{key}: {value}\n")).collect();
    format!("---\n{lines}{text}\n---\n\n# Body\n")
}

/// Every code that anything below the directory has.
fn seen(dir: &Path) -> BTreeSet<String> {
    let root = |path: &str, kind| Root { path: dir.join(path), kind, state: RootState::Registered };
    let host = Host::new("/usr/bin:/bin".as_ref(), ["HOME".to_owned()]);
    let look = Look { host: Some(host), strict: true, within: None };
    let skills =
        |path, source| Arc::new(Scanned::Skills(scan_skills_with(&look, &root(path, RootKind::Skills(source)), None)));
    let scans = [
        skills("skills", Source::External),
        skills("playbooks", Source::Override),
        skills("cloud/skills", Source::Cloud),
        Arc::new(Scanned::Agents(scan_agents(&root("agents", RootKind::Agents), None))),
    ];
    let catalog = load(&scans, SystemTime::UNIX_EPOCH, None);
    catalog.report().candidates.iter().flat_map(|c| &c.diagnostics).map(|d| d.code.to_owned()).collect()
}

#[expect(clippy::disallowed_methods, reason = "the page shows commands, and they are tried")]
fn shell(dir: &Path, command: &str) {
    let output = std::process::Command::new("/bin/sh").arg("-ec").arg(command).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn put(dir: &Path, section: &str, text: &str) {
    match section {
        "In `skills/greet/skill.json`" => fs::write(dir.join("skills/greet/skill.json"), json(text)).unwrap(),
        "In `playbooks/disk-full/SKILL.md`" => {
            fs::write(dir.join("playbooks/disk-full/SKILL.md"), markdown(&SKILL_MD, text)).unwrap();
        }
        "In `agents/reader.md`" => fs::write(dir.join("agents/reader.md"), markdown(&AGENT, text)).unwrap(),
        "In the directories" => shell(dir, text),
        other => panic!("no such section: {other}"),
    }
}

#[test]
fn every_example_is_true() {
    assert_eq!(seen(world().path()), BTreeSet::new());
    let mut wrong = Vec::new();
    for Example { section, code, causes, mends } in examples() {
        if NOT_TRIED.contains(&code) {
            continue;
        }
        let world = world();
        put(world.path(), section, &causes);
        let caused = seen(world.path());
        put(world.path(), section, &mends);
        let mended = seen(world.path());
        if !caused.contains(code) || mended.contains(code) {
            wrong.push(format!("{code}: {causes:?} gives {caused:?}, {mends:?} gives {mended:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_code_has_one_example() {
    let examples = examples();
    let codes: Vec<_> = codes().into_iter().filter(|code| !OF_A_SERVER.contains(code)).collect();
    for code in &codes {
        let count = examples.iter().filter(|example| example.code == *code).count();
        assert_eq!(count, 1, "{code}: what causes it and what mends it belongs into docs/diagnostics.md, once");
    }
    assert_eq!(examples.len(), codes.len(), "an example of a code that is not in the tables");
}
