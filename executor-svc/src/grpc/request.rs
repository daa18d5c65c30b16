//! What callers send, as requests: every field checked, each refusal naming its field.

use std::time::{Duration, Instant};

use prost::Message as _;
use skillyard::arguments::RawArguments;
use skillyard::pb::executor::v1 as pb;
use skillyard::service::caller::Caller;
use skillyard::service::error::{Reason, Refusal};
use skillyard::service::trace::TraceContext;
use skillyard::wire::{is_finite, struct_from_wire};
use tonic::metadata::MetadataMap;

use crate::run::RunRequest;

/// Labels: how many, and how many bytes together.
const MAX_LABELS: usize = 64;
const MAX_LABEL_BYTES: usize = 4 << 10;
/// Most characters of the id of an approval.
const MAX_APPROVAL_ID: usize = 128;

/// A RunSkill message as a request.
///
/// # Errors
/// INVALID_REQUEST or INVALID_ARGUMENTS, by field.
pub(super) fn run_request(
    caller: Caller,
    message: pb::RunSkillRequest,
    deadline: Option<Instant>,
    trace: TraceContext,
) -> Result<RunRequest, Refusal> {
    let label_bytes: usize = message.labels.iter().map(|(k, v)| k.len() + v.len()).sum();
    if message.labels.len() > MAX_LABELS || label_bytes > MAX_LABEL_BYTES {
        return Err(invalid("labels", format!("at most {MAX_LABELS} with {MAX_LABEL_BYTES} bytes together are taken")));
    }
    let run_id = match message.run_id.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| invalid("run_id", format!("{error}")))?),
    };
    let approval_id = match message.approval_id.as_str() {
        "" => None,
        text if text.len() <= MAX_APPROVAL_ID && text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Some(text.to_owned())
        }
        _ => {
            let what = format!("it is not 1 to {MAX_APPROVAL_ID} printable ASCII characters without blanks");
            return Err(invalid("approval_id", what));
        }
    };
    let expected_digest = match message.expected_digest.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| invalid("expected_digest", format!("{error}")))?),
    };
    let timeout = match message.timeout {
        None => None,
        Some(timeout) => match Duration::try_from(timeout) {
            Ok(timeout) if !timeout.is_zero() => Some(timeout),
            _ => {
                return Err(invalid(
                    "timeout",
                    "it is not positive: leave it out for the skill's own limit".to_owned(),
                ));
            }
        },
    };
    let arguments = match message.arguments {
        None => RawArguments::None,
        Some(pb::run_skill_request::Arguments::ArgsJson(text)) => RawArguments::Json(text),
        Some(pb::run_skill_request::Arguments::Args(args)) => {
            if !is_finite(&args) {
                return Err(Refusal::new(
                    Reason::InvalidArguments,
                    "the arguments hold a number that JSON cannot say (NaN or an infinity): send null or a string",
                ));
            }
            let size = args.encoded_len();
            RawArguments::Object(struct_from_wire(args), size)
        }
    };
    Ok(RunRequest {
        caller,
        skill: message.skill,
        arguments,
        agent: message.agent,
        agent_by_default: false,
        run_id,
        timeout,
        deadline,
        expected_digest,
        approval_id,
        detach: message.detach,
        labels: message.labels,
        trace,
    })
}

/// A refusal of one field.
pub(super) fn invalid(field: &str, what: String) -> Refusal {
    Refusal::new(Reason::InvalidRequest, format!("{field}: {what}")).violation(field, what)
}

/// `grpc-timeout` bounds only the head of the answer in the transport; here it bounds the run.
pub(super) fn deadline(metadata: &MetadataMap) -> Result<Option<Instant>, Refusal> {
    let Some(value) = metadata.get("grpc-timeout") else { return Ok(None) };
    let timeout = value
        .to_str()
        .ok()
        .and_then(parse_timeout)
        .ok_or_else(|| invalid("grpc-timeout", "it is not 1 to 8 digits and one of H, M, S, m, u, n".to_owned()))?;
    Ok(Instant::now().checked_add(timeout))
}

/// As the gRPC over HTTP/2 protocol has it: at most 8 digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_of_the_protocol() {
        assert_eq!(parse_timeout("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_timeout("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(parse_timeout("250m"), Some(Duration::from_millis(250)));
        for bad in ["", "S", "1", "123456789S", "-1S", "1.5S", "1X", "1é"] {
            assert_eq!(parse_timeout(bad), None, "{bad:?}");
        }
    }
}
