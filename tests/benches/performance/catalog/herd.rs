//! Many skills on a disk: half of them programs, in groups, half of them playbooks. The same number makes the same files.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const WORDS: [&str; 64] = [
    "clean",
    "old",
    "files",
    "disk",
    "log",
    "summary",
    "report",
    "check",
    "certificate",
    "expires",
    "host",
    "cluster",
    "node",
    "restart",
    "service",
    "deploy",
    "release",
    "rollback",
    "database",
    "query",
    "index",
    "backup",
    "restore",
    "user",
    "account",
    "password",
    "rotate",
    "secret",
    "network",
    "latency",
    "trace",
    "metric",
    "alert",
    "incident",
    "triage",
    "page",
    "oncall",
    "queue",
    "message",
    "topic",
    "stream",
    "cache",
    "memory",
    "leak",
    "process",
    "kill",
    "container",
    "image",
    "registry",
    "volume",
    "mount",
    "snapshot",
    "billing",
    "invoice",
    "customer",
    "ticket",
    "email",
    "calendar",
    "schedule",
    "translate",
    "summarise",
    "数据",
    "日志",
    "清洗",
];

/// As random as it need be.
struct Dice(u64);

impl Dice {
    fn word(&mut self) -> &'static str {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let high = (self.0 >> 33) as usize;
        // Some words are common, as in any language.
        WORDS[high % WORDS.len().min(4 + (self.0 >> 59) as usize * 2 + 1)]
    }

    fn text(&mut self, words: usize) -> String {
        let mut text = String::from("Use it to");
        for _ in 0..words {
            write!(text, " {}", self.word()).unwrap();
        }
        text
    }
}

/// Writes so many skills under `ext` and `playbooks` of this directory.
pub(crate) fn write(root: &Path, skills: usize) {
    for number in 0..skills {
        if number % 2 == 0 { program(root, number, 0) } else { playbook(root, number) }
    }
}

/// Changes one of them.
pub(crate) fn edit(root: &Path, round: usize) {
    program(root, 0, round + 1);
}

fn program(root: &Path, number: usize, edition: usize) {
    let mut dice = Dice(number as u64);
    let name = format!("{}_{}_{number}", dice.word(), dice.word().replace(|c: char| !c.is_ascii(), "x"));
    let name = name.replace(|c: char| !c.is_ascii(), "x");
    let directory = root.join(format!("ext/group-{}/{name}", number / 200));
    fs::create_dir_all(&directory).unwrap();
    let description = dice.text(18);
    let manifest = format!(
        r#"{{"name":"{name}","description":"{description}, edition {edition}.","entry":"run.sh","env_allow":["HOME"],"schema":{{"type":"object","properties":{{"path":{{"type":"string","description":"where"}},"days":{{"type":"integer","minimum":0}}}},"required":["path"]}}}}"#
    );
    fs::write(directory.join("skill.json"), manifest).unwrap();
    let script = directory.join("run.sh");
    if !script.exists() {
        fs::write(&script, format!("#!/bin/sh\n# {number}\n{}echo '{{}}'\n", "cat >/dev/null\n".repeat(20))).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn playbook(root: &Path, number: usize) {
    let mut dice = Dice(number as u64);
    let name = format!("{}-{}-{number}", dice.word(), dice.word());
    let directory = root.join(format!("playbooks/{name}"));
    fs::create_dir_all(&directory).unwrap();
    let (description, body) = (dice.text(20), dice.text(150));
    let category = dice.word();
    let text = format!(
        "---\nname: {name}\ndescription: {description}\ncategory: {category}\ncategory_order: {}\n---\n# Steps\n\n{body}\n",
        number % 50
    );
    fs::write(directory.join("SKILL.md"), text).unwrap();
}
