//! Policy: whether this agent may run this skill, in this version, here. The same view and the same table as in the
//! registry; what the caller says of the skill counts for nothing.

use std::sync::Arc;

use skillyard::View;
use skillyard::policy::{Ruling, rule};
use skillyard::service::error::{Reason, Refusal};
use skillyard::skill::{Kind, Subprocess};

use crate::mirror::{Held, Mirror, MirroredCatalog, MirroredSkill};
use crate::run::RunRequest;
use crate::run::admission::RETRY_AFTER;

/// A skill that may run, with what it needs.
#[derive(Debug)]
pub struct Permitted {
    /// The skill, as the catalog has it.
    pub skill: Arc<MirroredSkill>,
    /// How it is called.
    pub subprocess: Subprocess,
    /// Its files, kept until this is dropped.
    pub package: Held,
    /// Whether it starts only when the registry takes the request's approval.
    pub needs_approval: bool,
}

/// Applies the agent's view, the class and the version, and takes hold of the package.
///
/// # Errors
/// The first rule that refuses it.
pub fn permit(mirror: &Mirror, catalog: &MirroredCatalog, request: &RunRequest) -> Result<Permitted, Refusal> {
    let view = match request.agent.as_str() {
        "" => View::unfiltered(),
        name => View::of(catalog.agents.get(name).ok_or_else(|| unknown_agent(request))?),
    };
    let name = request.skill.as_str();
    let found = catalog.skill(name).filter(|found| view.sees(&found.skill.name, found.skill.source));
    let found = found.ok_or_else(|| Refusal::unknown_skill(name))?;
    let Kind::Subprocess(subprocess) = &found.skill.kind else { return Err(not_runnable(name)) };
    if let Some(expected) = request.expected_digest
        && expected != found.skill.digest
    {
        let message = format!(
            "skill {name:?} has digest {}, not the expected {expected}: it was changed; look at it again before running it",
            found.skill.digest
        );
        return Err(Refusal::new(Reason::DigestMismatch, message).with("digest", found.skill.digest.to_string()));
    }
    let (class, mode) = (subprocess.class.as_str(), view.permission_mode().as_str());
    let needs_approval = match rule(subprocess.class, view.permission_mode()) {
        Ruling::Runs => false,
        Ruling::Refused => {
            let who = if request.agent.is_empty() {
                "a call without an agent".to_owned()
            } else {
                format!("agent {:?}", request.agent)
            };
            let message = format!(
                "skill {name:?} is {class}, and {who} is {mode}: use an agent whose permission_mode allows the class"
            );
            return Err(Refusal::new(Reason::ClassNotPermitted, message)
                .with("class", class)
                .with("permission_mode", mode));
        }
        // Whether the approval is good is for the registry to say, when the run has a slot.
        Ruling::NeedsSignatures(_) if request.approval_id.is_some() => true,
        Ruling::NeedsSignatures(n) => {
            let message = format!(
                "skill {name:?} is {class}: it needs an approval with {n} signature{}: ask the registry for one (ApprovalService.RequestApproval, with the same agent, skill and arguments), and call again with its id as approval_id",
                if n == 1 { "" } else { "s" }
            );
            return Err(Refusal::new(Reason::ApprovalRequired, message)
                .with("class", class)
                .with("signatures", n.to_string()));
        }
    };
    let package = mirror.hold(&found.skill.digest).ok_or_else(|| {
        let message = format!(
            "the package of skill {name:?} is not on this executor yet: try again in {RETRY_AFTER:?}; GetStatus.missing has the cause if it lasts"
        );
        Refusal::new(Reason::PackageNotMirrored, message).with("digest", found.skill.digest.to_string()).retry_after(RETRY_AFTER)
    })?;
    Ok(Permitted { skill: Arc::clone(found), subprocess: subprocess.clone(), package, needs_approval })
}

/// A caller that named no agent learns where the name comes from.
fn unknown_agent(request: &RunRequest) -> Refusal {
    let name = request.agent.as_str();
    if !request.agent_by_default {
        return Refusal::unknown_agent(name);
    }
    let message = format!(
        "unknown agent {name:?}, which is this executor's --default-agent: name an agent, or give the executor one that the \
         registry knows"
    );
    Refusal::new(Reason::UnknownAgent, message).with("agent", name)
}

fn not_runnable(name: &str) -> Refusal {
    let message =
        format!("skill {name:?} is a playbook: it is read by the model, not run; run a skill of kind SUBPROCESS");
    Refusal::new(Reason::NotRunnable, message)
}
