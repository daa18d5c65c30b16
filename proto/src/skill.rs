//! What a skill is, as a value: what a catalog holds and a model, a person or an executor asks about.

use std::time::SystemTime;

use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::name::SkillName;
use crate::package::PackagePath;

/// One skill of a catalog, without the text of its body.
#[derive(Clone, Debug, PartialEq)]
pub struct Skill {
    /// Unique in a catalog.
    pub name: SkillName,
    /// The only text by which a model discovers the skill.
    pub description: String,
    /// Which kind of root it was found under.
    pub source: Source,
    /// Of its package.
    pub digest: Digest,
    /// The directory of its manifest, relative to its root; empty for the root itself.
    pub path: String,
    /// How it is used, with what belongs to that.
    pub kind: Kind,
    /// What people see; never shown to a model.
    pub card: Card,
    /// Every other key of the frontmatter or manifest.
    pub extra: Map<String, Value>,
    /// The newest modification time among the files of the package.
    pub modified_at: SystemTime,
}

/// How a skill is used.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `skill.json`: a program, run by an executor.
    Subprocess(Subprocess),
    /// `SKILL.md`: instructions, loaded into the model's turn.
    Playbook(Box<Playbook>),
}

/// How a subprocess skill is called.
#[derive(Clone, Debug, PartialEq)]
pub struct Subprocess {
    /// JSON Schema of the arguments, byte for byte as in the manifest.
    pub schema_json: String,
    /// The executable, in the package.
    pub entry: PackagePath,
    /// Names of the environment variables passed on.
    pub env_allow: Vec<String>,
    /// Limit of one run, after defaults.
    pub timeout_seconds: u32,
    /// What a run may do to the world.
    pub class: Class,
}

/// The schema of a manifest that has none.
pub const EMPTY_SCHEMA: &str = r#"{"type":"object","properties":{}}"#;
/// The limit of a manifest that has none, in seconds.
pub const DEFAULT_TIMEOUT_SECONDS: u32 = 30;
/// The category of a manifest that has none.
pub const DEFAULT_CATEGORY: &str = "external";

/// What is known of a playbook before it is loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Playbook {
    /// When a model should reach for it.
    pub when_to_use: String,
    /// The licence's name, or the file that holds it.
    pub license: String,
    /// What it needs around it.
    pub compatibility: String,
    /// Tools that it may use.
    pub allowed_tools: Vec<String>,
    /// Tools that it declares.
    pub tools: Vec<PlaybookTool>,
    /// What it needs of the host.
    pub requires: Requirements,
    /// `activation.mode`; empty where the file names none.
    pub activation: String,
}

/// A tool that a playbook declares.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaybookTool {
    /// The tool's name.
    pub name: String,
    /// What implements it.
    pub implementation: String,
    /// What it may do; `None` for a class that nobody knows.
    pub class: Option<Class>,
    /// What it does.
    pub description: String,
}

/// What a playbook needs of the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// Operating systems, any of them.
    pub os: Vec<String>,
    /// Programs on the path, all of them.
    pub bins: Vec<String>,
    /// Settings, all of them.
    pub config: Vec<String>,
}

/// For people choosing a skill.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Card {
    /// The group it is shown in.
    pub category: String,
    /// Its order there; none last.
    pub category_order: Option<i32>,
    /// One line for a person.
    pub summary: String,
    /// When a person would choose it.
    pub use_when: String,
    /// What a person might write to reach it.
    pub example_prompts: Vec<String>,
}

/// What a run of a skill may do to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Read-only.
    Safe,
    /// Creates or updates state; reversible.
    Mutating,
    /// Irreversible.
    Dangerous,
}

impl Class {
    /// As a manifest writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Mutating => "mutating",
            Self::Dangerous => "dangerous",
        }
    }
}

/// Which kind of root a skill was found under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A root given for tests and development.
    Override,
    /// The local mirror of an admin server.
    Cloud,
    /// The workspace's `skills/` folder.
    Project,
    /// The workspace's `.omicos/skills/` folder.
    ProjectLegacy,
    /// A root of subprocess skills.
    External,
}

impl Source {
    /// The word for it in logs and rosters.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Override => "override",
            Self::Cloud => "cloud",
            Self::Project => "project",
            Self::ProjectLegacy => "project_legacy",
            Self::External => "external",
        }
    }

    /// Whether it belongs to the workspace, whose skills every agent sees.
    #[must_use]
    pub fn is_workspace(self) -> bool {
        matches!(self, Self::Project | Self::ProjectLegacy)
    }
}
