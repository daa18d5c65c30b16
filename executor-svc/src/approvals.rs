//! The registry as the keeper of approvals: what it answers to a run that wants to use one, as a refusal or none.

use skillyard::service::error::{Reason, Refusal};
use tonic::Code;

use crate::registry::{ApprovalUse, Registry, RegistryError};
use crate::run::admission::RETRY_AFTER;
use crate::run::approval::{Approvals, Consumed, Consuming, Use};

impl Approvals for Registry {
    fn consume(&self, what: Use) -> Consuming<'_> {
        Box::pin(async move {
            let asked = ApprovalUse {
                id: what.approval_id.clone(),
                run_id: what.run_id,
                agent: what.agent,
                skill: what.skill,
                digest: what.digest,
                args_sha256: what.args_sha256,
                journal_id: what.journal_id,
            };
            match self.consume_approval(&asked).await {
                Ok(created_at) => Ok(Consumed { created_at }),
                Err(error) => Err(refusal(&error, &what.approval_id)),
            }
        })
    }
}

/// What is about the approval is for the caller; what is about this executor is not the caller's fault, and says so.
fn refusal(error: &RegistryError, approval_id: &str) -> Refusal {
    const OF_THE_APPROVAL: [Reason; 4] =
        [Reason::UnknownApproval, Reason::ApprovalPending, Reason::ApprovalInvalid, Reason::InvalidRequest];
    if let RegistryError::Call { reason, message, .. } = error
        && let Some(known) = OF_THE_APPROVAL.into_iter().find(|known| known.as_str() == reason)
    {
        return Refusal::new(known, message.clone()).with("approval_id", approval_id);
    }
    let not_allowed = matches!(error, RegistryError::Call { code: Code::Unauthenticated | Code::PermissionDenied, .. });
    tracing::warn!(%error, approval_id, "the registry did not say whether an approval is good");
    let message = if not_allowed {
        format!(
            "the registry does not let this executor use approvals ({error}); nothing was started: have its operator give it an identity with the role executor, or run it on another executor"
        )
    } else {
        format!(
            "the registry is needed for this run and does not answer ({error}); nothing was started: call again, with the same run_id and approval_id; safe skills run meanwhile"
        )
    };
    Refusal::new(Reason::RegistryUnavailable, message).with("approval_id", approval_id).retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: Code, reason: &str) -> RegistryError {
        RegistryError::Call { code, reason: reason.to_owned(), message: "so it is".to_owned() }
    }

    #[test]
    fn what_is_of_the_approval_is_passed_on() {
        for (reason, expected) in [
            ("UNKNOWN_APPROVAL", Reason::UnknownApproval),
            ("APPROVAL_PENDING", Reason::ApprovalPending),
            ("APPROVAL_INVALID", Reason::ApprovalInvalid),
        ] {
            let refused = refusal(&call(expected.code(), reason), "a1");
            assert_eq!(refused, Refusal::new(expected, "so it is").with("approval_id", "a1"));
        }
        for error in [
            call(Code::Unavailable, ""),
            call(Code::Unauthenticated, "CALLER_UNKNOWN"),
            call(Code::PermissionDenied, "CALLER_NOT_ALLOWED"),
            call(Code::FailedPrecondition, "SOMETHING_NEW"),
            call(Code::Unimplemented, ""),
            RegistryError::Silent(std::time::Duration::from_secs(3)),
        ] {
            assert_eq!(refusal(&error, "a1").reason(), Reason::RegistryUnavailable, "{error}");
        }
    }
}
