//! The callers file: who there is, what each may do, the agents that it may name, and the names in its certificates.
//! YAML, and so JSON too. Knows no token.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Location, Options, Spanned};

use super::caller::{Agents, Known, Role, RoleError};
use super::rotated::{Content, FileError};
use super::token::check_identity;

/// In a list of agents: any, and none.
const ANY: &str = "*";

/// The callers that there are.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    known: BTreeMap<String, Known>,
    /// Names in certificates, and whose they are.
    certificates: HashMap<String, String>,
}

impl Callers {
    /// A caller by its identity.
    pub(crate) fn get(&self, identity: &str) -> Option<&Known> {
        self.known.get(identity)
    }

    /// The caller that the names of a certificate belong to; none where they belong to several.
    pub(crate) fn by_certificate(&self, names: &[String]) -> Option<&Known> {
        let mut identities = names.iter().filter_map(|name| self.certificates.get(name));
        let first = identities.next()?;
        if identities.all(|identity| identity == first) { self.get(first) } else { None }
    }

    /// Reads the file.
    pub(crate) fn of_file(content: &Content) -> Result<Self, FileError> {
        let raw: Raw = serde_saphyr::from_str_with_options(content.text()?, options())
            .map_err(|error| FileError::content(&content.path, unreadable(&error)))?;
        let mut callers = Self::default();
        for (identity, raw) in raw.callers {
            callers.add(identity, &raw.value, &raw.referenced).map_err(|(at, what)| {
                let what = format!("line {} column {}: {what}", at.line(), at.column());
                FileError::content(&content.path, what)
            })?;
        }
        Ok(callers)
    }

    fn add(&mut self, identity: String, raw: &RawCaller, at: &Location) -> Result<(), (Location, String)> {
        check_identity(&identity).map_err(|error| (*at, error.to_string()))?;
        let mut roles = BTreeSet::new();
        for role in &raw.roles {
            let parsed = role.value.parse();
            roles.insert(parsed.map_err(|error: RoleError| (role.referenced, error.to_string()))?);
        }
        let agents = match &raw.agents {
            Some(agents) if agents.iter().any(|agent| agent == ANY) => Agents::All,
            Some(agents) => Agents::Only(agents.iter().cloned().collect()),
            None if roles.contains(&Role::Orchestrator) => {
                let what = format!(
                    "{identity:?} is an orchestrator without agents: write `agents: [NAME, …]` for those that it may act for \
                     (\"\" for none), or `agents: [\"*\"]` for all"
                );
                return Err((*at, what));
            }
            // The others act for no agent; they look.
            None => Agents::All,
        };
        for name in &raw.certificates {
            let known = certificate_name(&name.value);
            let other = self.certificates.insert(known, identity.clone());
            if let Some(other) = other.filter(|other| *other != identity) {
                let what = format!(
                    "the certificate name {:?} is {other:?}'s and {identity:?}'s: leave it with one",
                    name.value
                );
                return Err((name.referenced, what));
            }
        }
        self.known.insert(identity.clone(), Known { identity, roles, agents });
        Ok(())
    }
}

/// What it cannot be read as, and where.
fn unreadable(error: &serde_saphyr::Error) -> String {
    match (error.without_snippet(), error.location()) {
        (serde_saphyr::Error::DuplicateMappingKey { key, .. }, Some(at)) => {
            let key = key.as_deref().unwrap_or("?");
            format!("line {} column {}: {key:?} stands there a second time: remove one", at.line(), at.column())
        }
        (error, _) => error.to_string(),
    }
}

/// As names are compared: host names without regard to case, URIs exactly.
pub(crate) fn certificate_name(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { name.to_ascii_lowercase() }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    callers: BTreeMap<String, Spanned<RawCaller>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCaller {
    roles: Vec<Spanned<String>>,
    agents: Option<Vec<String>>,
    #[serde(default)]
    certificates: Vec<Spanned<String>>,
}

/// YAML 1.2 without surprises: no key twice, no merging, bounds on everything.
fn options() -> Options {
    let budget = serde_saphyr::budget! {
        max_nodes: 262_144,
        max_events: 1_048_576,
        max_aliases: 64,
        max_anchors: 32,
        max_depth: 16,
        max_documents: 1,
        max_total_scalar_bytes: 4 << 20,
        flow_nesting_limit: 16,
        max_inclusion_depth: 0,
    };
    serde_saphyr::options! {
        budget: budget,
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers(text: &str) -> Result<Callers, String> {
        Callers::of_file(&Content { path: "callers".into(), bytes: text.into() }).map_err(|error| error.to_string())
    }

    #[test]
    fn callers_as_they_are_written() {
        let yaml = "callers:\n  planner:\n    roles: [orchestrator]\n    agents: [ops, \"\"]\n    certificates: [spiffe://x/Planner, Planner.Example]\n  \
                    ann: {roles: [approver, operator]}\n  e1:\n    roles: [executor]\n    certificates: [e1.example]\n";
        let json = r#"{"callers": {"planner": {"roles": ["orchestrator"], "agents": ["ops", ""],
            "certificates": ["spiffe://x/Planner", "Planner.Example"]},
            "ann": {"roles": ["approver", "operator"]},
            "e1": {"roles": ["executor"], "certificates": ["e1.example"]}}}"#;
        for text in [yaml, json] {
            let callers = callers(text).unwrap();
            let planner = callers.get("planner").unwrap();
            assert_eq!(planner.roles, [Role::Orchestrator].into());
            assert_eq!(planner.agents, Agents::Only(["ops".to_owned(), String::new()].into()));
            assert_eq!(callers.get("ann").unwrap().agents, Agents::All);
            let by = |names: &[&str]| {
                let names: Vec<_> = names.iter().map(|name| certificate_name(name)).collect();
                callers.by_certificate(&names).map(|known| known.identity.clone())
            };
            assert_eq!(by(&["other", "PLANNER.example"]).as_deref(), Some("planner"));
            assert_eq!(by(&["spiffe://x/Planner"]).as_deref(), Some("planner"));
            assert_eq!(by(&["spiffe://x/planner"]), None);
            assert_eq!(by(&["planner.example", "e1.example"]), None, "it cannot be both");
        }
        assert!(callers("callers: {}").is_ok());
    }

    #[test]
    fn faults_with_their_place() {
        for (text, words) in [
            ("callers:\n  a:\n    roles: [admin]", "line 3 column 13: \"admin\" is not a role: write orchestrator"),
            ("callers:\n  a: {roles: [orchestrator]}", "line 2 column 6: \"a\" is an orchestrator without agents"),
            ("callers:\n  a: {roles: [], agent: []}", "unknown field `agent`"),
            ("callers:\n  a: {roles: []}\n  a: {roles: []}", "line 3 column 3: \"a\" stands there a second time"),
            ("callers:\n  a b: {roles: []}", "is no identity"),
            (
                "callers:\n  a: {roles: [], certificates: [x]}\n  b: {roles: [], certificates: [X]}",
                "line 3 column 33: the certificate name \"X\" is \"a\"'s and \"b\"'s",
            ),
            ("callers:\n  a: {}", "missing field `roles`"),
            ("", "callers"),
            ("{\"callers\": {", "line 1"),
        ] {
            let error = callers(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
