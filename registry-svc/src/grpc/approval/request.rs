//! What callers send, checked: every field, each refusal naming its field.

use std::time::Duration;

use prost::Message as _;
use skillyard::Digest;
use skillyard::arguments::{Arguments, RawArguments};
use skillyard::pb::registry::v1 as pb;
use skillyard::service::error::{Reason, Refusal};
use skillyard::wire::{is_finite, struct_from_wire};

const DEFAULT_TTL: Duration = Duration::from_secs(15 * 60);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_PROSE_BYTES: usize = 4 << 10;
const MAX_PERSON_BYTES: usize = 256;
/// As an executor takes them.
const MAX_ID_BYTES: usize = 128;

/// A request whose fields are good, its arguments not yet parsed.
pub(super) struct Asked {
    pub(super) agent: String,
    pub(super) skill: String,
    raw: RawArguments,
    pub(super) reason: String,
    pub(super) requested_for: String,
    pub(super) request_id: Option<String>,
    pub(super) ttl: Duration,
}

impl Asked {
    pub(super) fn of(message: pb::RequestApprovalRequest) -> Result<Self, Refusal> {
        prose("reason", &message.reason)?;
        let person = &message.requested_for;
        if person.len() > MAX_PERSON_BYTES || person.chars().any(char::is_control) {
            return Err(invalid("requested_for", "write at most 256 bytes without control characters"));
        }
        let request_id = match message.request_id.as_str() {
            "" => None,
            text => Some(id("request_id", text)?),
        };
        let ttl = match message.ttl {
            None => DEFAULT_TTL,
            Some(ttl) => match Duration::try_from(ttl) {
                Ok(Duration::ZERO) => DEFAULT_TTL,
                Ok(ttl) if ttl <= MAX_TTL => ttl,
                _ => return Err(invalid("ttl", "write a time of at most 24 hours, or 0 for 15 minutes")),
            },
        };
        let raw = match message.arguments {
            None => RawArguments::None,
            Some(pb::request_approval_request::Arguments::ArgsJson(text)) => RawArguments::Json(text),
            Some(pb::request_approval_request::Arguments::Args(args)) => {
                if !is_finite(&args) {
                    let message = "the arguments hold a number that JSON cannot say (NaN or an infinity): send null or \
                                   a string";
                    return Err(Refusal::new(Reason::InvalidArguments, message));
                }
                let size = args.encoded_len();
                RawArguments::Object(struct_from_wire(args), size)
            }
        };
        let pb::RequestApprovalRequest { agent, skill, reason, requested_for, .. } = message;
        Ok(Self { agent, skill, raw, reason, requested_for, request_id, ttl })
    }

    /// Parses the arguments, which takes its time where they are large.
    pub(super) fn arguments(mut self) -> Result<(Self, Arguments), Refusal> {
        let arguments = Arguments::parse(std::mem::replace(&mut self.raw, RawArguments::None))?;
        Ok((self, arguments))
    }

    /// Of all that was asked for, so that an id is known to be another request's.
    pub(super) fn fingerprint(&self, arguments: &Arguments) -> Digest {
        let (sha256, ttl) = (arguments.sha256().to_string(), self.ttl.as_nanos().to_string());
        let mut bytes = Vec::new();
        for field in [&self.agent, &self.skill, &sha256, &self.reason, &self.requested_for, &ttl] {
            bytes.extend((field.len() as u64).to_le_bytes());
            bytes.extend(field.as_bytes());
        }
        Digest::of(&bytes)
    }
}

/// What a person says: some lines of text.
pub(super) fn prose(field: &str, text: &str) -> Result<(), Refusal> {
    if text.len() > MAX_PROSE_BYTES {
        return Err(invalid(field, "at most 4 KiB are taken"));
    }
    if text.contains('\0') {
        return Err(invalid(field, "it has the character U+0000: leave it out"));
    }
    Ok(())
}

pub(super) fn run_id(text: &str) -> Result<String, Refusal> {
    id("run_id", text)
}

/// Executors from before there were journals' ids name none.
pub(super) fn journal_id(text: &str) -> Result<String, Refusal> {
    if text.is_empty() { Ok(String::new()) } else { id("journal_id", text) }
}

pub(super) fn digest(field: &str, text: &str) -> Result<Digest, Refusal> {
    text.parse().map_err(|error| invalid(field, &format!("{error}")))
}

fn id(field: &str, text: &str) -> Result<String, Refusal> {
    if (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(invalid(field, "write 1 to 128 printable ASCII characters without blanks"))
    }
}

fn invalid(field: &str, what: &str) -> Refusal {
    Refusal::new(Reason::InvalidRequest, format!("{field}: {what}")).violation(field, what)
}
