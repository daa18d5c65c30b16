//! `registry-svc check`, the real binary, as authors and their CI use it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A directory in which the command is given.
struct World(tempfile::TempDir);

/// What the command answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    code: i32,
    lines: Vec<String>,
    stderr: String,
}

impl World {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn program(&self, directory: &str, name: &str) {
        let manifest = format!(r#"{{"name":"{name}","description":"d","entry":"run.sh"}}"#);
        self.write(&format!("{directory}/skill.json"), manifest);
        self.write(&format!("{directory}/run.sh"), "#!/bin/sh\necho '{}'\n");
        let run = self.0.path().join(directory).join("run.sh");
        fs::set_permissions(run, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn playbook(&self, directory: &str) {
        let name = directory.rsplit('/').next().unwrap();
        self.write(&format!("{directory}/SKILL.md"), format!("---\nname: {name}\ndescription: d\n---\n"));
    }

    #[expect(clippy::disallowed_methods, reason = "it is the program under test")]
    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_registry-svc"));
        command.arg("check").args(line).current_dir(self.0.path());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/");
        command
    }

    fn check(&self, line: &[&str]) -> Answer {
        let output = self.command(line).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let lines = text(output.stdout).lines().map(ToOwned::to_owned).collect();
        Answer { code: output.status.code().unwrap(), lines, stderr: text(output.stderr) }
    }

    /// The JSON, and its paths with whether they are registered and their codes.
    fn json(&self, line: &[&str]) -> (i32, Value) {
        let output = self.command(&[&["--format", "json"], line].concat()).output().unwrap();
        (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
    }

    fn seen(&self, line: &[&str]) -> Vec<(String, bool, Vec<String>)> {
        let (_, found) = self.json(line);
        let one = |found: &Value| {
            let codes = found["diagnostics"].as_array().unwrap().iter().map(|d| d["code"].as_str().unwrap().to_owned());
            (found["path"].as_str().unwrap().to_owned(), found["registered"].as_bool().unwrap(), codes.collect())
        };
        found.as_array().unwrap().iter().map(one).collect()
    }
}

fn answer(code: i32, lines: &[&str]) -> Answer {
    Answer { code, lines: lines.iter().map(|line| (*line).to_owned()).collect(), stderr: String::new() }
}

fn row(path: &str, registered: bool, codes: &[&str]) -> (String, bool, Vec<String>) {
    (path.to_owned(), registered, codes.iter().map(|code| (*code).to_owned()).collect())
}

#[test]
fn a_line_a_problem_and_a_summary() {
    let world = World::new();
    world.program("skills/greet", "greet");
    world.playbook("skills/disk-full");
    assert_eq!(world.check(&["skills"]), answer(0, &["2 skills registered, 0 left out: 0 errors, 0 warnings"]));
    world.write("skills/colon/SKILL.md", "---\nname: colon\ndescription: Use when: x\n---\n");
    world.write("skills/class/skill.json", "{\"name\": \"class\",\n \"class\": \"Safe\"}");
    world.write("skills/files/SKILL.md", "---\nname: file\ndescription: d\n---\n");
    assert_eq!(
        world.check(&["skills/"]),
        answer(
            1,
            &[
                "skills/class/skill.json:0:0: error E_KEY_MISSING description is missing: add \"description\" with a string",
                "skills/class/skill.json:0:0: error E_KEY_MISSING entry is missing: add \"entry\" with a string",
                "skills/class/skill.json:2:11: error E_CLASS_UNKNOWN class is \"Safe\": write \"safe\", \"mutating\" or \
                 \"dangerous\", in lower case",
                "skills/colon/SKILL.md:3:22: error E_YAML mapping values are not allowed in this context; a value with \
                 `: ` in it must be quoted: description: \"Use when: x\"",
                "skills/files/SKILL.md:2:7: warning W_NAME_NOT_DIRECTORY the name is \"file\", and counts as files, its \
                 directory's name: write `name: files`",
                "3 skills registered, 2 left out: 4 errors, 1 warning",
            ]
        )
    );
}

#[test]
fn the_examples_are_without_a_fault() {
    let world = World::new();
    let local = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/local");
    let paths = ["skills", "playbooks"].map(|name| local.join(name).display().to_string());
    let answer = world.check(&paths.each_ref().map(String::as_str));
    assert_eq!(answer.code, 0, "{answer:?}");
    let summary = answer.lines.last().unwrap();
    assert!(summary.contains(" 0 left out: 0 errors,") && !summary.starts_with('0'), "{answer:?}");
}

#[test]
fn json_of_all_that_was_found() {
    let world = World::new();
    world.playbook("a/whole");
    world.write("a/broken/SKILL.md", "---\nname: broken\ndescription: d\nname: x\n---\n");
    let (code, found) = world.json(&["a"]);
    let expected = json!([
        {"path": "a/broken/SKILL.md", "name": "broken", "registered": false, "diagnostics": [{
            "severity": "error", "code": "E_DUPLICATE_KEY", "message": "the key \"name\" stands twice: remove one",
            "line": 4, "column": 1,
        }]},
        {"path": "a/whole/SKILL.md", "name": "whole", "registered": true, "diagnostics": []},
    ]);
    assert_eq!((code, found), (1, expected));
    fs::create_dir(world.0.path().join("empty")).unwrap();
    assert_eq!(world.json(&["empty"]), (0, json!([])));
    let bare = world.check(&["empty"]);
    assert_eq!((bare.code, bare.lines), (0, vec!["0 skills registered, 0 left out: 0 errors, 0 warnings".to_owned()]));
}

#[test]
fn strict_is_the_specification() {
    let world = World::new();
    world.write("a/x/SKILL.md", "---\nname: x\ndescription: d\nallowed-tools: [Read]\ncategory: c\n---\n");
    assert_eq!((world.check(&["a"]).code, world.check(&["--strict", "a"]).code), (0, 1));
    assert_eq!(world.seen(&["--strict", "a"]), [row("a/x/SKILL.md", true, &["W_SPEC_ALLOWED_TOOLS", "W_SPEC_KEY"])]);
    assert_eq!(world.seen(&["a"]), [row("a/x/SKILL.md", true, &[])]);
    world.write("b/x/SKILL.md", "---\nname: x\ndescription: d\nversion: 1\n---\n");
    assert_eq!((world.check(&["b"]).code, world.check(&["--strict", "b"]).code), (0, 1));
    world.playbook("c/x");
    assert_eq!(world.check(&["--strict", "c"]).code, 0);
}

#[test]
fn one_skill_in_each_way_that_it_can_be_named() {
    let world = World::new();
    world.playbook("root/disk-full");
    world.program("root/greet", "greet");
    world.playbook("root/other");
    let of = |path: &str, shown: &str| assert_eq!(world.seen(&[path]), [row(shown, true, &[])], "{path}");
    of("root/disk-full", "root/disk-full/SKILL.md");
    of("root/disk-full/", "root/disk-full/SKILL.md");
    of("root/disk-full/SKILL.md", "root/disk-full/SKILL.md");
    of("root/greet", "root/greet/skill.json");
    of("root/greet/skill.json", "root/greet/skill.json");
    of("root/other/../disk-full", "root/other/../disk-full/SKILL.md");
    let absolute = world.0.path().join("root/greet").display().to_string();
    of(&absolute, &format!("{absolute}/skill.json"));
    // From within, by a name that says nothing.
    let output = world.command(&["--format", "json", "."]).current_dir(world.0.path().join("root/disk-full")).output();
    let found: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert_eq!((&found[0]["path"], &found[0]["name"]), (&json!("./SKILL.md"), &json!("disk-full")));
    // Both manifests in one directory are two skills of it.
    world.playbook("root/greet");
    world.write("root/greet/SKILL.md", "---\nname: greet\ndescription: d\n---\n");
    assert_eq!(
        world.seen(&["root/greet"]),
        [row("root/greet/SKILL.md", false, &["E_NAME_TAKEN"]), row("root/greet/skill.json", true, &[])]
    );
    assert_eq!(world.seen(&["root/greet/SKILL.md"]), [row("root/greet/SKILL.md", true, &[])]);
    // An entry may lie beside the skill's directory, where its root is not known.
    world.program("root/bin", "unused");
    world.write("root/shared/skill.json", r#"{"name":"shared","description":"d","entry":"../bin/run.sh"}"#);
    assert_eq!(world.seen(&["root/shared"]), [row("root/shared/skill.json", true, &["W_ENTRY_OUTSIDE"])]);
}

#[test]
fn nearly_a_skill() {
    let world = World::new();
    for (path, code) in [
        ("lower/skill.md", "E_MANIFEST_NAME"),
        ("capital/Skill.md", "E_MANIFEST_NAME"),
        ("json/Skill.json", "E_MANIFEST_NAME"),
        ("group/deep/SKILL.md", "W_LEVEL"),
        ("group/nearly/skill.md", "W_LEVEL"),
        ("a/b/c/SKILL.md", "W_LEVEL"),
        (".hidden/SKILL.md", "W_NOT_ENTERED"),
        ("node_modules/skill.json", "W_NOT_ENTERED"),
        ("title/SKILL.md", "E_FRONTMATTER_MISSING"),
        ("fence/SKILL.md", "E_FRONTMATTER_MISSING"),
    ] {
        let text = match path {
            "title/SKILL.md" => "# Title\n\n---\nname: title\ndescription: d\n---\n",
            "fence/SKILL.md" => "name: fence\ndescription: d\n---\n",
            _ => "---\nname: deep\ndescription: d\n---\n",
        };
        let world = World::new();
        world.write(&format!("root/{path}"), text);
        assert_eq!(world.seen(&["root"]), [row(&format!("root/{path}"), false, &[code])]);
    }
    world.write("tab/SKILL.md", "---\nname: tab\ndescription: d\nmetadata:\n\ta: b\n---\n");
    let tab = world.check(&["tab"]).lines[0].clone();
    assert!(tab.contains("tab/SKILL.md:5:") && tab.contains("line 5 is indented with a tab: use spaces"), "{tab}");
    // In a package, it is a file as any other.
    world.playbook("root/book");
    world.playbook("root/book/examples/one");
    world.program("root/book/tool", "tool");
    assert_eq!(
        world.seen(&["root"]),
        [row("root/book/SKILL.md", true, &[]), row("root/book/tool/skill.json", true, &[])]
    );
    world.playbook("root");
    assert_eq!(
        world.seen(&["root"]),
        [
            row("root/SKILL.md", true, &["W_LEVEL"]),
            row("root/book/SKILL.md", true, &[]),
            row("root/book/tool/skill.json", true, &[])
        ]
    );
}

#[test]
fn both_name_spaces_and_several_paths() {
    let world = World::new();
    world.program("programs/a", "disk_full");
    world.playbook("books/disk-full");
    world.playbook("books/磁盘");
    world.playbook("books/disk_full");
    let expected = [
        row("books/disk-full/SKILL.md", true, &[]),
        row("books/disk_full/SKILL.md", false, &["W_SPEC_NAME", "E_NAME_TAKEN"]),
        row("books/磁盘/SKILL.md", true, &[]),
        row("programs/a/skill.json", true, &[]),
    ];
    // An executable skill beats a playbook wherever it stands; a path that leads to the same again adds nothing.
    assert_eq!(world.seen(&["books", "programs"]), expected);
    assert_eq!(world.seen(&["books", "books/disk-full", "./books/../books", "programs", "programs/a"]), expected);
    world.playbook("more/disk-full");
    let seen = world.seen(&["books", "more"]);
    assert_eq!(seen.last(), Some(&row("more/disk-full/SKILL.md", false, &["E_NAME_TAKEN"])));
    symlink("books", world.0.path().join("link")).unwrap();
    assert_eq!(world.seen(&["link"]).len(), 3);
}

#[test]
fn what_a_playbook_requires_of_this_host() {
    let world = World::new();
    let requires = "metadata:\n  os: [plan9]\n  requires: {bins: [sh, no-such-program], config: [home, no.such]}\n";
    world.write("a/x/SKILL.md", format!("---\nname: x\ndescription: d\n{requires}---\n"));
    let codes = ["W_REQUIRES_OS", "W_REQUIRES_BIN", "W_REQUIRES_CONFIG"];
    assert_eq!(world.seen(&["a"]), [row("a/x/SKILL.md", true, &codes)]);
    let lines = world.check(&["a"]).lines;
    assert!(lines[1].contains("\"no-such-program\"") && lines[2].contains("set NO_SUCH"), "{lines:?}");
}

#[test]
fn a_command_line_that_cannot_be_used() {
    let world = World::new();
    world.write("README.md", "");
    for line in
        [&[][..], &["nowhere"], &["README.md"], &["--format", "xml", "."], &["--nonsense", "."], &[".", "nowhere"]]
    {
        let answer = world.check(line);
        assert_eq!((answer.code, answer.lines.len()), (2, 0), "{line:?}");
        assert!(!answer.stderr.is_empty(), "{line:?}");
    }
    assert_eq!(world.check(&["--help"]).code, 0);
    let both = world.check(&["nowhere", "README.md"]).stderr;
    assert_eq!(both.lines().count(), 2, "every fault at once: {both}");
}

#[test]
fn a_path_without_any_skill_is_told() {
    let world = World::new();
    world.playbook("good/books/x");
    world.write("empty/skills.json", "{}");
    world.playbook("deep/more/books/x");
    let told = world.check(&["good/books", "empty", "deep"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert_eq!(world.check(&["--strict", "good/books", "empty"]).code, 1);
    let about: Vec<_> = told.stderr.lines().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(about, ["empty", "deep"], "{told:?}");
    assert_eq!(
        world.check(&["--strict", "good/books"]),
        answer(0, &["1 skill registered, 0 left out: 0 errors, 0 warnings"])
    );
    // What is wrong with it is said already.
    world.write("broken/x/SKILL.md", "");
    assert_eq!(world.check(&["broken"]).stderr, "");
}

#[test]
fn the_name_of_a_directory_does_nothing_to_a_terminal() {
    let world = World::new();
    world.write("a/x\n\u{1b}[2J/SKILL.md", "");
    let answer = world.check(&["a"]);
    assert_eq!(answer.lines.len(), 2, "{answer:?}");
    assert!(answer.lines[0].starts_with("a/x\\n\\u{1b}[2J/SKILL.md:1:1: error E_FRONTMATTER_MISSING"), "{answer:?}");
    assert_eq!(world.seen(&["a"])[0].0, "a/x\n\u{1b}[2J/SKILL.md");
}

#[test]
fn a_pipe_that_is_closed_is_no_fault() {
    let world = World::new();
    for i in 0..3000 {
        world.write(&format!("a/{i:04}/SKILL.md"), "");
    }
    let mut child = world.command(&["a"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut one = [0];
    child.stdout.take().unwrap().read_exact(&mut one).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(1), ""));
    if !Path::new("/dev/full").exists() {
        return;
    }
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = world.command(&["a"]).stdout(full).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("cannot be written"), "{stderr}");
}
