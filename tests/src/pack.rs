//! What a test writes for the services to find: subprocess skills, playbooks and agents, as files. Written beside and
//! renamed into place, so that a registry that looks never sees half of one; files of one that is there are replaced one
//! by one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::binaries;

/// Reads its arguments to their end and answers: the smallest skill.
pub const TINY: &str = r#"
#include <unistd.h>
int main(void) {
    char b[4096];
    while (read(0, b, sizeof b) > 0) { }
    if (write(1, "{\"ok\":true,\"v\":1234}", 20) != 20) return 1;
    return 0;
}
"#;
/// What [`TINY`] answers.
pub const TINY_RESULT: &str = r#"{"ok":true,"v":1234}"#;

/// Writes its environment to stderr, a variable a line, as it was given: a shell adds some of its own.
pub const ENVIRONMENT: &str = r#"
#include <stdio.h>
extern char **environ;
int main(void) {
    for (char **v = environ; *v; v++) fprintf(stderr, "%s\n", *v);
    puts("{}");
    return 0;
}
"#;

/// Copies its arguments to its result.
pub const ECHO: &str = r#"
#include <unistd.h>
int main(void) {
    char b[65536];
    ssize_t n;
    while ((n = read(0, b, sizeof b)) > 0)
        for (char *p = b; n > 0;) {
            ssize_t w = write(1, p, n);
            if (w <= 0) return 1;
            p += w;
            n -= w;
        }
    return 0;
}
"#;

/// A subprocess skill.
#[derive(Clone, Debug)]
pub struct Skill {
    name: String,
    manifest: Map<String, Value>,
    files: Vec<(String, Vec<u8>, u32)>,
}

impl Skill {
    /// A shell script.
    #[must_use]
    pub fn sh(name: &str, script: &str) -> Self {
        Self::script(name, &format!("#!/bin/sh\n{script}\n"))
    }

    /// A script with an interpreter line of its own.
    #[must_use]
    pub fn script(name: &str, text: &str) -> Self {
        Self::new(name, "run.sh").file("run.sh", text, 0o755)
    }

    /// A C program, compiled to a static executable.
    ///
    /// # Panics
    /// When it does not compile.
    #[must_use]
    pub fn c(name: &str, source: &str) -> Self {
        let program = fs::read(binaries::compiled(source)).unwrap();
        Self::new(name, "program").file("program", program, 0o755)
    }

    /// The smallest one.
    #[must_use]
    pub fn tiny(name: &str) -> Self {
        Self::c(name, TINY)
    }

    /// With nothing but a manifest.
    #[must_use]
    pub fn new(name: &str, entry: &str) -> Self {
        let mut manifest = Map::new();
        manifest.insert("name".into(), name.into());
        manifest.insert("description".into(), format!("The skill {name} of a test.").into());
        manifest.insert("entry".into(), entry.into());
        Self { name: name.to_owned(), manifest, files: Vec::new() }
    }

    /// One that is in a directory; a C program in it is compiled to one of its name.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn read(directory: &Path) -> Self {
        let manifest: Map<String, Value> =
            serde_json::from_slice(&fs::read(directory.join("skill.json")).unwrap()).unwrap();
        let mut skill = Self { name: manifest["name"].as_str().unwrap().to_owned(), manifest, files: Vec::new() };
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            skill = match name.strip_suffix(".c") {
                _ if name == "skill.json" => skill,
                Some(program) => {
                    let source = fs::read_to_string(&path).unwrap();
                    skill.file(program, fs::read(binaries::compiled(&source)).unwrap(), 0o755)
                }
                None => skill.file(name, fs::read(&path).unwrap(), mode),
            };
        }
        skill
    }

    /// Sets a key of the manifest.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.manifest.insert(key.to_owned(), value.into());
        self
    }

    /// Its limit in seconds.
    #[must_use]
    pub fn timeout(self, seconds: u32) -> Self {
        self.set("timeout_seconds", seconds)
    }

    /// Adds a file.
    #[must_use]
    pub fn file(mut self, path: &str, content: impl AsRef<[u8]>, mode: u32) -> Self {
        self.files.push((path.to_owned(), content.as_ref().to_vec(), mode));
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes it under a root, in a directory of its name.
    ///
    /// # Panics
    /// When a file cannot be written.
    pub fn write(&self, root: &Path) {
        let directory = root.join(&self.name);
        for (path, content, mode) in &self.files {
            place(&directory.join(path), content, *mode);
        }
        let manifest = serde_json::to_vec_pretty(&self.manifest).unwrap();
        place(&directory.join("skill.json"), &manifest, 0o644);
    }
}

/// A playbook.
#[derive(Clone, Debug)]
pub struct Playbook {
    id: String,
    text: String,
}

impl Playbook {
    /// With a description and a body.
    #[must_use]
    pub fn new(id: &str, description: &str, body: &str) -> Self {
        let text = format!("---\nname: {id}\ndescription: {}\n---\n{body}\n", json!(description));
        Self { id: id.to_owned(), text }
    }

    /// Writes it under a root, in a directory of its id.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn write(&self, root: &Path) {
        place(&root.join(&self.id).join("SKILL.md"), self.text.as_bytes(), 0o644);
    }
}

/// An agent's file.
#[derive(Clone, Debug)]
pub struct AgentFile {
    name: String,
    frontmatter: Map<String, Value>,
}

impl AgentFile {
    /// With no lists: it sees every skill, and may run the safe ones.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut frontmatter = Map::new();
        frontmatter.insert("name".into(), name.into());
        frontmatter.insert("description".into(), format!("The agent {name} of a test.").into());
        Self { name: name.to_owned(), frontmatter }
    }

    /// The skills that it sees.
    #[must_use]
    pub fn skills(mut self, names: &[&str]) -> Self {
        self.frontmatter.insert("skills".into(), json!(names));
        self
    }

    /// The skills that it does not see.
    #[must_use]
    pub fn disallowed(mut self, names: &[&str]) -> Self {
        self.frontmatter.insert("disallowed_skills".into(), json!(names));
        self
    }

    /// How far it may go.
    #[must_use]
    pub fn mode(mut self, mode: &str) -> Self {
        self.frontmatter.insert("permission_mode".into(), mode.into());
        self
    }

    /// Writes it into a directory.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn write(&self, directory: &Path) {
        let mut text = "---\n".to_owned();
        for (key, value) in &self.frontmatter {
            // JSON is YAML.
            text.push_str(&format!("{key}: {value}\n"));
        }
        text.push_str("---\nAn agent of a test.\n");
        place(&directory.join(format!("{}.md", self.name)), text.as_bytes(), 0o644);
    }
}

/// Puts a file in place at once, directories and all.
///
/// # Panics
/// When it cannot be written.
pub fn place(path: &Path, content: &[u8], mode: u32) {
    let directory = path.parent().unwrap();
    fs::create_dir_all(directory).unwrap();
    let mut beside = PathBuf::from(directory);
    beside.push(format!(".{}.new", path.file_name().unwrap().to_string_lossy()));
    fs::write(&beside, content).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(&beside, path).unwrap();
}

/// Overwrites a file that is read-only, as somebody with the rights would.
///
/// # Panics
/// When it cannot be written.
pub fn place_over(path: &Path, content: &[u8]) {
    let directory = path.parent().unwrap();
    for (path, mode) in [(directory, 0o755), (path, 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(path, content).unwrap();
}
