//! Where skills and agents are looked for, in order of precedence, and which of these places are open to it. Touches no
//! disk.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use skillyard::Source;

use super::{Root, RootKind, RootState};

/// The directories of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Of subprocess skills.
    pub external_dirs: Vec<PathBuf>,
    /// Of playbooks, for tests and development; beat the other playbook roots.
    pub skill_roots: Vec<PathBuf>,
    /// The mirror of an admin server.
    pub cloud_dir: Option<PathBuf>,
    /// The workspace.
    pub workspace: Option<PathBuf>,
    /// Workspaces have skills with tier lab or above only.
    pub tier: Tier,
    /// Of agent files.
    pub agents_dir: Option<PathBuf>,
}

/// What an installation is entitled to, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// `free` or `community`.
    #[default]
    Free,
    /// `plus`
    Plus,
    /// `pro`
    Pro,
    /// `lab`
    Lab,
    /// `ent` or `enterprise`.
    Enterprise,
}

/// A text that is no tier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a tier: write free (or community), plus, pro, lab or ent (or enterprise)")]
pub struct TierError(String);

/// All roots of a layout, in order of precedence, the directory of agents last.
#[must_use]
pub fn roots(layout: &Layout) -> Vec<Root> {
    let skills = |path: PathBuf, source: Source| Root {
        state: state(&path, source.is_workspace() && layout.tier < Tier::Lab),
        path,
        kind: RootKind::Skills(source),
    };
    let mut roots: Vec<Root> = Vec::new();
    roots.extend(layout.external_dirs.iter().map(|path| skills(path.clone(), Source::External)));
    roots.extend(layout.skill_roots.iter().map(|path| skills(path.clone(), Source::Override)));
    roots.extend(layout.cloud_dir.iter().map(|path| skills(path.join("skills"), Source::Cloud)));
    if let Some(workspace) = &layout.workspace {
        roots.push(skills(workspace.join("skills"), Source::Project));
        roots.push(skills(workspace.join(".omicos/skills"), Source::ProjectLegacy));
    }
    roots.extend(layout.agents_dir.iter().map(|path| Root {
        path: path.clone(),
        kind: RootKind::Agents,
        state: state(path, false),
    }));
    roots
}

/// The directories of ONGRID_SKILLS_EXTERNAL_DIRS: `:` or `,` between them.
#[must_use]
pub fn split_dirs(text: &str) -> Vec<PathBuf> {
    split(text, &[':', ','])
}

/// The directories of OMICOS_SKILL_ROOTS: `:` between them.
#[must_use]
pub fn split_roots(text: &str) -> Vec<PathBuf> {
    split(text, &[':'])
}

fn split(text: &str, separators: &[char]) -> Vec<PathBuf> {
    text.split(separators).map(str::trim).filter(|part| !part.is_empty()).map(PathBuf::from).collect()
}

fn state(path: &Path, not_entitled: bool) -> RootState {
    match (path.is_absolute(), not_entitled) {
        (false, _) => RootState::NotAbsolute,
        (true, true) => RootState::NotEntitled,
        (true, false) => RootState::Registered,
    }
}

impl FromStr for Tier {
    type Err = TierError;

    fn from_str(text: &str) -> Result<Self, TierError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "free" | "community" => Ok(Self::Free),
            "plus" => Ok(Self::Plus),
            "pro" => Ok(Self::Pro),
            "lab" => Ok(Self::Lab),
            "ent" | "enterprise" => Ok(Self::Enterprise),
            _ => Err(TierError(text.to_owned())),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "free",
            Self::Plus => "plus",
            Self::Pro => "pro",
            Self::Lab => "lab",
            Self::Enterprise => "enterprise",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precedence_and_states() {
        let layout = Layout {
            external_dirs: split_dirs("/x:rel, /y,"),
            skill_roots: split_roots("/o,1:/o2"),
            cloud_dir: Some("/c".into()),
            workspace: Some("/w".into()),
            tier: Tier::Pro,
            agents_dir: Some("/a".into()),
        };
        let seen = |layout: &Layout| -> Vec<(String, RootState)> {
            roots(layout).into_iter().map(|root| (root.path.display().to_string(), root.state)).collect()
        };
        let expected = |workspace: RootState| {
            [
                ("/x", RootState::Registered),
                ("rel", RootState::NotAbsolute),
                ("/y", RootState::Registered),
                ("/o,1", RootState::Registered),
                ("/o2", RootState::Registered),
                ("/c/skills", RootState::Registered),
                ("/w/skills", workspace),
                ("/w/.omicos/skills", workspace),
                ("/a", RootState::Registered),
            ]
            .map(|(path, state)| (path.to_owned(), state))
            .to_vec()
        };
        assert_eq!(seen(&layout), expected(RootState::NotEntitled));
        assert_eq!(seen(&Layout { tier: Tier::Lab, ..layout }), expected(RootState::Registered));
    }

    #[test]
    fn tiers() {
        let order = ["free", "plus", "pro", "lab", "enterprise"].map(|t| t.parse::<Tier>().unwrap());
        assert!(order.is_sorted());
        assert_eq!("community".parse(), Ok(Tier::Free));
        assert_eq!("ent".parse(), Ok(Tier::Enterprise));
        assert_eq!(order.map(|t| t.to_string()), ["free", "plus", "pro", "lab", "enterprise"]);
        assert!("gold".parse::<Tier>().is_err());
    }
}
