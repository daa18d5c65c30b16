//! The one filter: which skills an agent sees. Whatever lists, loads, searches, reads or runs asks here.

use crate::agent::{Agent, PermissionMode};
use crate::name::SkillName;
use crate::skill::Source;

/// What one agent sees, or what is seen without one.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    agent: Option<&'a Agent>,
}

impl<'a> View<'a> {
    /// Without an agent: everything is seen, and only safe skills run.
    #[must_use]
    pub fn unfiltered() -> Self {
        Self { agent: None }
    }

    /// What this agent sees.
    #[must_use]
    pub fn of(agent: &'a Agent) -> Self {
        Self { agent: Some(agent) }
    }

    /// Whether a skill exists for it. Skills of the workspace do whatever the lists say.
    #[must_use]
    pub fn sees(&self, name: &SkillName, source: Source) -> bool {
        let Some(agent) = self.agent else { return true };
        if source.is_workspace() {
            return true;
        }
        let listed = |names: &std::collections::BTreeSet<String>| names.contains(name.as_str()) || names.contains("*");
        (agent.skills.is_empty() || listed(&agent.skills)) && !listed(&agent.disallowed_skills)
    }

    /// Whose view it is; without an agent, nobody's.
    #[must_use]
    pub fn agent(&self) -> Option<&'a Agent> {
        self.agent
    }

    /// Which classes it may run.
    #[must_use]
    pub fn permission_mode(&self) -> PermissionMode {
        self.agent.map_or(PermissionMode::ReadOnly, |agent| agent.permission_mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(skills: &[&str], disallowed: &[&str]) -> Agent {
        Agent {
            name: "a".into(),
            description: String::new(),
            skills: skills.iter().map(ToString::to_string).collect(),
            disallowed_skills: disallowed.iter().map(ToString::to_string).collect(),
            permission_mode: PermissionMode::default(),
        }
    }

    #[test]
    fn the_lists() {
        let seen = |skills: &[&str], disallowed: &[&str], source| {
            View::of(&agent(skills, disallowed)).sees(&"x".parse().unwrap(), source)
        };
        for source in [Source::External, Source::Cloud, Source::Override] {
            assert!(seen(&[], &[], source));
            assert!(seen(&["*"], &[], source));
            assert!(seen(&["x", "y"], &[], source));
            assert!(!seen(&["y"], &[], source));
            assert!(!seen(&["xx", "X"], &[], source));
            assert!(!seen(&["x"], &["x"], source));
            assert!(!seen(&["*"], &["x"], source));
            assert!(!seen(&[], &["*"], source));
        }
        for source in [Source::Project, Source::ProjectLegacy] {
            assert!(seen(&["y"], &["x"], source));
        }
        assert!(View::unfiltered().sees(&"x".parse().unwrap(), Source::External));
        assert_eq!(View::unfiltered().permission_mode(), PermissionMode::ReadOnly);
    }
}
