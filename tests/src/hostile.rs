//! The skills of `tests/hostile`, which mean harm, and what is right for each. `README.md` there says what is what.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::World;
use crate::binaries::workspace;
use crate::pack::Skill;

/// One of them, and what is right for it.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// The skill.
    pub skill: Skill,
    /// How it may end, as [`crate::run::in_short`] says it.
    pub ends: Vec<String>,
    /// The level of isolation without which it would do what it tries.
    pub isolation: Option<String>,
    /// Whether the system may have no room for others while it lasts.
    pub crowds: bool,
}

/// All of them, by name.
///
/// # Panics
/// When one cannot be read.
#[must_use]
pub fn all() -> Vec<Hostile> {
    let read = |entry: fs::DirEntry| {
        let expected = fs::read(entry.path().join("expect.json")).ok()?;
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let ends = expected["ends"].as_array().unwrap().iter().map(|end| end.as_str().unwrap().to_owned());
        Some(Hostile {
            skill: Skill::read(&entry.path()),
            ends: ends.collect(),
            isolation: expected["isolation"].as_str().map(str::to_owned),
            crowds: expected["crowds"].as_bool().unwrap_or_default(),
        })
    };
    let mut found: Vec<_> = fs::read_dir(folder()).unwrap().map(Result::unwrap).filter_map(read).collect();
    assert!(!found.is_empty());
    found.sort_by(|a, b| a.skill.name().cmp(b.skill.name()));
    found
}

/// One skill of the folder, those that mean no harm included.
///
/// # Panics
/// When there is no such skill.
#[must_use]
pub fn skill(name: &str) -> Skill {
    Skill::read(&folder().join(name))
}

/// The arguments that all of them are called with.
///
/// # Panics
/// When `victim` is not what the victim says.
#[must_use]
pub fn arguments(world: &World, victim: &str, most_processes: u32) -> String {
    let mut arguments: Map<String, Value> = serde_json::from_str(victim).unwrap();
    let state = world.path("state").canonicalize().unwrap();
    arguments.insert("state".into(), state.to_str().unwrap().into());
    arguments.insert("token".into(), world.identities.token_file("executor").to_str().unwrap().into());
    arguments.insert("most".into(), most_processes.to_string().into());
    serde_json::to_string(&arguments).unwrap()
}

fn folder() -> PathBuf {
    workspace().join("tests/hostile")
}
