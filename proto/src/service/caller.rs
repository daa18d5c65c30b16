//! Who called: an identity, what it may do, and on whose behalf. Put into every request by the listener, and asked here
//! by every service.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::service::error::{Reason, Refusal};

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// May run skills and ask for approvals.
    Orchestrator,
    /// May sign approvals.
    Approver,
    /// May watch the catalog, fetch packages, consume approvals and append to the history.
    Executor,
    /// May reload, and read everything.
    Operator,
}

/// The agents that a caller may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agents {
    /// Any, and none.
    All,
    /// These alone.
    Only(BTreeSet<String>),
}

/// Who called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    known: Option<Known>,
}

/// A caller that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// One person or program, under however many tokens and certificates.
    pub identity: String,
    /// What it may do.
    pub roles: BTreeSet<Role>,
    /// The agents that it may name.
    pub agents: Agents,
}

impl Caller {
    /// On a loopback listener without identities: may read, and run safe skills.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { known: None }
    }

    /// One that showed a token or a certificate.
    #[must_use]
    pub fn known(known: Known) -> Self {
        Self { known: Some(known) }
    }

    /// The one that the listener put into a request; anonymous where it put none.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_else(Self::anonymous)
    }

    /// Who it is, for records and logs; empty for an anonymous one.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.known.as_ref().map_or("", |known| &known.identity)
    }

    /// Whether it may do what needs no identity: an anonymous one may, a known one needs one of these roles.
    ///
    /// # Errors
    /// CALLER_NOT_ALLOWED.
    pub fn allow(&self, roles: &[Role]) -> Result<(), Refusal> {
        match &self.known {
            Some(known) if !roles.iter().any(|role| known.roles.contains(role)) => Err(not_allowed(known, roles)),
            _ => Ok(()),
        }
    }

    /// Who it is, for what needs an identity everywhere, and one of these roles.
    ///
    /// # Errors
    /// CALLER_UNKNOWN or CALLER_NOT_ALLOWED.
    pub fn require(&self, roles: &[Role]) -> Result<&str, Refusal> {
        match &self.known {
            None => Err(unknown("this call needs an identity, and the caller showed none")),
            Some(_) => self.allow(roles).map(|()| self.identity()),
        }
    }

    /// Whether it may act for this agent (empty: for none).
    ///
    /// # Errors
    /// CALLER_NOT_ALLOWED.
    pub fn may_name(&self, agent: &str) -> Result<(), Refusal> {
        match &self.known {
            Some(Known { identity, agents: Agents::Only(agents), .. }) if !agents.contains(agent) => {
                let which =
                    if agent.is_empty() { "a call without an agent".to_owned() } else { format!("agent {agent:?}") };
                let message = format!(
                    "caller {identity:?} may not act for {which}: name one of {}, or have the callers file changed",
                    agents.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
                );
                Err(Refusal::new(Reason::CallerNotAllowed, message).with("caller", identity.as_str()))
            }
            _ => Ok(()),
        }
    }
}

/// A refusal of one whose identity is not known.
#[must_use]
pub fn unknown(what: &str) -> Refusal {
    let message = format!("{what}: send `authorization: Bearer TOKEN`, or connect with a client certificate");
    Refusal::new(Reason::CallerUnknown, message)
}

fn not_allowed(known: &Known, roles: &[Role]) -> Refusal {
    let wanted = roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
    let message = format!(
        "caller {:?} has not the role {wanted}: use another identity, or have the callers file changed",
        known.identity
    );
    Refusal::new(Reason::CallerNotAllowed, message).with("caller", known.identity.as_str()).with("role", wanted)
}

/// A word that is no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a role: write orchestrator, approver, executor or operator")]
pub struct RoleError(String);

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Orchestrator, Self::Approver, Self::Executor, Self::Operator];

    /// As the callers file writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Orchestrator => "orchestrator",
            Self::Approver => "approver",
            Self::Executor => "executor",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| RoleError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(roles: &[Role], agents: Agents) -> Caller {
        Caller::known(Known { identity: "ann".into(), roles: roles.iter().copied().collect(), agents })
    }

    #[test]
    fn roles_and_agents() {
        let ann = caller(&[Role::Approver], Agents::Only(["ops".to_owned()].into()));
        assert_eq!(ann.require(&[Role::Approver, Role::Operator]).unwrap(), "ann");
        assert_eq!(ann.require(&[Role::Operator]).unwrap_err().reason(), Reason::CallerNotAllowed);
        assert_eq!(ann.allow(&[Role::Operator]).unwrap_err().reason(), Reason::CallerNotAllowed);
        ann.may_name("ops").unwrap();
        assert_eq!(ann.may_name("").unwrap_err().reason(), Reason::CallerNotAllowed);
        let nobody = Caller::anonymous();
        nobody.allow(&[Role::Operator]).unwrap();
        nobody.may_name("ops").unwrap();
        assert_eq!(nobody.require(&Role::ALL).unwrap_err().reason(), Reason::CallerUnknown);
        caller(&[], Agents::All).may_name("").unwrap();
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
    }
}
