//! Errors as callers get them: a code, a sentence that says what to do next, and an `ErrorInfo` that a program can act
//! on. One table says which reason has which code.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

/// `ErrorInfo.domain` of every error that is ours.
pub const DOMAIN: &str = "skillyard";
/// A status goes into HTTP/2 headers, which peers limit: messages and violations are cut to fit.
const MAX_STATUS_BYTES: usize = 3 << 10;

/// `ErrorInfo.reason`: why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No such skill, or not for this agent.
    UnknownSkill,
    /// No such agent.
    UnknownAgent,
    /// No such run.
    UnknownRun,
    /// The arguments are not JSON, not an object, or break the schema.
    InvalidArguments,
    /// The arguments are too large.
    ArgumentsTooLarge,
    /// Another field of the request has a value that it cannot have.
    InvalidRequest,
    /// The class is not for this permission mode.
    ClassNotPermitted,
    /// No such approval, or not for this caller.
    UnknownApproval,
    /// An approval is missing.
    ApprovalRequired,
    /// An approval has not all its signatures yet.
    ApprovalPending,
    /// An approval was rejected, has expired, was used, or is for another call.
    ApprovalInvalid,
    /// The skill runs without one.
    ApprovalNotNeeded,
    /// Nobody signs twice.
    AlreadySigned,
    /// Too many approvals of one caller are pending.
    TooManyApprovals,
    /// The `request_id` belongs to another request.
    RequestIdReused,
    /// The registry's database is away.
    StoreUnavailable,
    /// A playbook was asked to run.
    NotRunnable,
    /// A subprocess skill was asked for its text.
    NotLoadable,
    /// No such file of a playbook, for a model.
    UnknownResource,
    /// The answer would be larger than clients take.
    AnswerTooLarge,
    /// The digest is not the expected one.
    DigestMismatch,
    /// The `run_id` belongs to another request.
    RunIdReused,
    /// The run ended so long ago that its events are gone.
    ResultExpired,
    /// No slot is free and the queue has no room.
    ExecutorFull,
    /// The executor is going away.
    Draining,
    /// There is no catalog yet, or it is too old.
    NotReady,
    /// The registry is needed, and does not answer.
    RegistryUnavailable,
    /// The skill's package is not here yet.
    PackageNotMirrored,
    /// The files on disk are no longer those of the digest.
    PackageChanged,
    /// Nobody knows who called.
    CallerUnknown,
    /// The caller is known, and may not do this.
    CallerNotAllowed,
    /// A fault of ours.
    Internal,
}

impl Reason {
    /// As it stands in `ErrorInfo.reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// The gRPC code that goes with it.
    #[must_use]
    pub fn code(self) -> Code {
        self.row().0
    }

    fn row(self) -> (Code, &'static str) {
        match self {
            Self::UnknownSkill => (Code::NotFound, "UNKNOWN_SKILL"),
            Self::UnknownAgent => (Code::NotFound, "UNKNOWN_AGENT"),
            Self::UnknownRun => (Code::NotFound, "UNKNOWN_RUN"),
            Self::InvalidArguments => (Code::InvalidArgument, "INVALID_ARGUMENTS"),
            Self::ArgumentsTooLarge => (Code::InvalidArgument, "ARGUMENTS_TOO_LARGE"),
            Self::InvalidRequest => (Code::InvalidArgument, "INVALID_REQUEST"),
            Self::ClassNotPermitted => (Code::PermissionDenied, "CLASS_NOT_PERMITTED"),
            Self::UnknownApproval => (Code::NotFound, "UNKNOWN_APPROVAL"),
            Self::ApprovalRequired => (Code::FailedPrecondition, "APPROVAL_REQUIRED"),
            Self::ApprovalPending => (Code::FailedPrecondition, "APPROVAL_PENDING"),
            Self::ApprovalInvalid => (Code::FailedPrecondition, "APPROVAL_INVALID"),
            Self::ApprovalNotNeeded => (Code::FailedPrecondition, "APPROVAL_NOT_NEEDED"),
            Self::AlreadySigned => (Code::AlreadyExists, "ALREADY_SIGNED"),
            Self::TooManyApprovals => (Code::ResourceExhausted, "TOO_MANY_APPROVALS"),
            Self::RequestIdReused => (Code::AlreadyExists, "REQUEST_ID_REUSED"),
            Self::StoreUnavailable => (Code::Unavailable, "STORE_UNAVAILABLE"),
            Self::NotRunnable => (Code::FailedPrecondition, "NOT_RUNNABLE"),
            Self::NotLoadable => (Code::FailedPrecondition, "NOT_LOADABLE"),
            Self::UnknownResource => (Code::NotFound, "UNKNOWN_RESOURCE"),
            Self::AnswerTooLarge => (Code::FailedPrecondition, "ANSWER_TOO_LARGE"),
            Self::DigestMismatch => (Code::FailedPrecondition, "DIGEST_MISMATCH"),
            Self::RunIdReused => (Code::AlreadyExists, "RUN_ID_REUSED"),
            Self::ResultExpired => (Code::FailedPrecondition, "RESULT_EXPIRED"),
            Self::ExecutorFull => (Code::ResourceExhausted, "EXECUTOR_FULL"),
            Self::Draining => (Code::Unavailable, "DRAINING"),
            Self::NotReady => (Code::Unavailable, "NOT_READY"),
            Self::RegistryUnavailable => (Code::Unavailable, "REGISTRY_UNAVAILABLE"),
            Self::PackageNotMirrored => (Code::Unavailable, "PACKAGE_NOT_MIRRORED"),
            Self::PackageChanged => (Code::Aborted, "PACKAGE_CHANGED"),
            Self::CallerUnknown => (Code::Unauthenticated, "CALLER_UNKNOWN"),
            Self::CallerNotAllowed => (Code::PermissionDenied, "CALLER_NOT_ALLOWED"),
            Self::Internal => (Code::Internal, "INTERNAL"),
        }
    }
}

/// A refused call: what a service answers instead of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    reason: Reason,
    message: String,
    metadata: HashMap<String, String>,
    violations: Vec<(String, String)>,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// With a sentence that says what was wrong and what to do.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), metadata: HashMap::new(), violations: Vec::new(), retry_after: None }
    }

    /// The same text for whoever asks: what an agent may not see does not exist for it.
    #[must_use]
    pub fn unknown_skill(name: &str) -> Self {
        Self::new(Reason::UnknownSkill, format!("unknown skill {name:?}")).with("skill", name)
    }

    /// No agent of that name.
    #[must_use]
    pub fn unknown_agent(name: &str) -> Self {
        let message = format!("unknown agent {name:?}: AgentService.ListAgents names those that there are");
        Self::new(Reason::UnknownAgent, message).with("agent", name)
    }

    /// Adds `ErrorInfo.metadata`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.metadata.insert(key.to_owned(), cut(value.into(), 256));
        self
    }

    /// Adds a `BadRequest.FieldViolation`.
    #[must_use]
    pub fn violation(mut self, field: impl Into<String>, description: impl Into<String>) -> Self {
        self.violations.push((field.into(), description.into()));
        self
    }

    /// Adds a `RetryInfo`: the same call may succeed after this time.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut room = MAX_STATUS_BYTES;
        let message = cut(refusal.message, 1 << 10);
        // The message goes twice: as grpc-message and in the details.
        room = room.saturating_sub(2 * message.len());
        let mut details = ErrorDetails::new();
        details.set_error_info(refusal.reason.as_str(), DOMAIN, refusal.metadata);
        if let Some(after) = refusal.retry_after {
            details.set_retry_info(Some(after));
        }
        let mut violations = Vec::new();
        for (field, description) in refusal.violations {
            let (field, description) = (cut(field, 256), cut(description, 512));
            let size = field.len() + description.len() + 16;
            if size > room {
                break;
            }
            room -= size;
            violations.push(FieldViolation::new(field, description));
        }
        if !violations.is_empty() {
            details.set_bad_request(violations);
        }
        Status::with_error_details(refusal.reason.code(), message, details)
    }
}

/// At most `max` bytes, cut at a character, with a mark where something is missing.
fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let mut end = max.saturating_sub('…'.len_utf8());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_as_a_status() {
        let status = Status::from(
            Refusal::new(Reason::ExecutorFull, "full: try again")
                .with("slots", "4")
                .violation("/a", "no")
                .retry_after(Duration::from_secs(1)),
        );
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "full: try again"));
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("EXECUTOR_FULL", "skillyard"));
        assert_eq!(info.metadata["slots"], "4");
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_secs(1)));
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "/a");
    }

    #[test]
    fn a_status_fits_into_headers() {
        let mut refusal = Refusal::new(Reason::InvalidArguments, "é".repeat(5000)).with("k", "v".repeat(5000));
        for i in 0..1000 {
            refusal = refusal.violation(format!("/{i}/{}", "f".repeat(i)), "d".repeat(i));
        }
        let status = Status::from(refusal);
        assert!(status.details().len() + status.message().len() < 4 << 10, "{}", status.details().len());
        assert!(status.message().ends_with('…'));
        assert!(!status.get_error_details().bad_request().unwrap().field_violations.is_empty());
    }
}
