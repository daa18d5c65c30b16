//! Approvals as messages, and refusals of the store as those of the service.

use skillyard::pb::registry::v1 as pb;
use skillyard::service::error::{Reason, Refusal};
use skillyard::wire::class_to_wire;

use super::{store_failed, unknown_approval};
use crate::store::approval::{Approval, SignRefusal, Signature, State, UseRefusal};
use crate::store::approvals::{ConsumeError, RequestError, SHORT_ARGS, SignError};

/// With arguments that are short alone: lists and watches hold many, and clients take 4 MiB.
pub(super) fn short(mut approval: Approval) -> pb::Approval {
    approval.args_json = approval.args_json.filter(|args| args.len() as u64 <= SHORT_ARGS.unsigned_abs());
    whole(approval)
}

pub(super) fn whole(approval: Approval) -> pb::Approval {
    pb::Approval {
        id: approval.id.to_string(),
        agent: approval.call.agent,
        skill: approval.call.skill,
        digest: approval.call.digest.to_string(),
        args_json: approval.args_json.unwrap_or_default(),
        args_sha256: approval.call.args_sha256.to_string(),
        reason: approval.reason,
        requested_by: approval.requested_by,
        requested_for: approval.requested_for,
        signatures_required: approval.signatures_required,
        signatures: approval.signatures.into_iter().map(signature).collect(),
        state: state_to_wire(approval.state).into(),
        created_at: Some(approval.created_at.into()),
        expires_at: Some(approval.expires_at.into()),
        run_id: approval.used_by.map(|by| by.run_id).unwrap_or_default(),
        class: class_to_wire(approval.class).into(),
    }
}

fn signature(signature: Signature) -> pb::Signature {
    let Signature { signer, approve, comment, time } = signature;
    pb::Signature { signer, approve, comment, time: Some(time.into()) }
}

fn state_to_wire(state: State) -> pb::ApprovalState {
    match state {
        State::Pending => pb::ApprovalState::Pending,
        State::Approved => pb::ApprovalState::Approved,
        State::Rejected => pb::ApprovalState::Rejected,
        State::Expired => pb::ApprovalState::Expired,
        State::Consumed => pb::ApprovalState::Consumed,
    }
}

/// `None` for any.
pub(super) fn state_from_wire(state: i32) -> Result<Option<State>, Refusal> {
    match pb::ApprovalState::try_from(state) {
        Ok(pb::ApprovalState::Unspecified) => Ok(None),
        Ok(known) => Ok(State::ALL.into_iter().find(|state| state_to_wire(*state) == known)),
        Err(_) => {
            let message = format!("state {state} is none that this registry knows: leave it out for all of them");
            Err(Refusal::new(Reason::InvalidRequest, &message).violation("state", message))
        }
    }
}

pub(super) fn request_refused(error: RequestError) -> Refusal {
    match error {
        RequestError::Reused => Refusal::new(Reason::RequestIdReused, error.to_string()),
        RequestError::TooMany => Refusal::new(Reason::TooManyApprovals, error.to_string()),
        RequestError::Store(error) => store_failed(error),
    }
}

pub(super) fn sign_refused(error: SignError, id: &str) -> Refusal {
    let refusal = match error {
        SignError::Unknown => return unknown_approval(id),
        SignError::Store(error) => return store_failed(error),
        SignError::Refused(refusal) => refusal,
    };
    let reason = match refusal {
        SignRefusal::Requester(_) | SignRefusal::Beneficiary(_) | SignRefusal::NotASigner { .. } => {
            Reason::CallerNotAllowed
        }
        SignRefusal::Twice(_) => Reason::AlreadySigned,
        SignRefusal::Closed(_) => Reason::ApprovalInvalid,
    };
    Refusal::new(reason, refusal.to_string()).with("approval", id)
}

pub(super) fn use_refused(error: ConsumeError, id: &str) -> Refusal {
    let refusal = match error {
        ConsumeError::Unknown => return unknown_approval(id),
        ConsumeError::Store(error) => return store_failed(error),
        ConsumeError::Refused(refusal) => refusal,
    };
    let reason = match refusal {
        UseRefusal::Pending { .. } => Reason::ApprovalPending,
        UseRefusal::Ended(_) | UseRefusal::Used | UseRefusal::OtherCall(_) => Reason::ApprovalInvalid,
    };
    Refusal::new(reason, refusal.to_string()).with("approval", id)
}
