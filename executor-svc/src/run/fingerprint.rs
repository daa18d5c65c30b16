//! What makes two calls the same call, as a digest that is the same in every version and after a restart: of bytes that
//! are written down here, never of how a value happens to be printed.

use std::collections::HashMap;
use std::time::Duration;

use skillyard::Digest;
use skillyard::digest::Hasher;

/// What begins the bytes; another one is another way to write them.
const VERSION: &[u8] = b"skillyard run 1\n";

/// All that makes two calls the same call, the caller included; what only bounds the wait for it, as the deadline, does not.
#[derive(Debug)]
pub struct Fingerprint<'a> {
    /// Who asks.
    pub caller: &'a str,
    /// The skill.
    pub skill: &'a str,
    /// On whose behalf.
    pub agent: &'a str,
    /// Of the argument bytes.
    pub args_sha256: Digest,
    /// The limit that was asked for.
    pub timeout: Option<Duration>,
    /// The version that was asked for.
    pub expected_digest: Option<Digest>,
    /// The approval.
    pub approval_id: Option<&'a str>,
    /// Whether the run goes on without a reader.
    pub detached: bool,
    /// The labels.
    pub labels: &'a HashMap<String, String>,
}

impl Fingerprint<'_> {
    /// The digest: of every field, in this order, each with its length before it; one that is missing has none.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut bytes = Bytes(Hasher::default());
        bytes.0.update(VERSION);
        bytes.field(Some(self.caller.as_bytes()));
        bytes.field(Some(self.skill.as_bytes()));
        bytes.field(Some(self.agent.as_bytes()));
        bytes.field(Some(self.args_sha256.as_bytes()));
        bytes.field(self.timeout.map(|timeout| timeout.as_nanos().to_be_bytes()).as_ref().map(<[u8; 16]>::as_slice));
        bytes.field(self.expected_digest.as_ref().map(|digest| digest.as_bytes().as_slice()));
        bytes.field(self.approval_id.map(str::as_bytes));
        bytes.field(Some(&[u8::from(self.detached)]));
        let mut labels: Vec<_> = self.labels.iter().collect();
        labels.sort();
        for text in labels.into_iter().flat_map(|(name, value)| [name, value]) {
            bytes.field(Some(text.as_bytes()));
        }
        bytes.0.finish()
    }
}

struct Bytes(Hasher);

impl Bytes {
    fn field(&mut self, bytes: Option<&[u8]>) {
        let Some(bytes) = bytes else { return self.0.update(b"-") };
        self.0.update(b"+");
        self.0.update(&(bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(change: impl FnOnce(&mut Fingerprint<'_>)) -> Digest {
        with(&[("turn", "1"), ("ticket", "2")], change)
    }

    fn with(labels: &[(&str, &str)], change: impl FnOnce(&mut Fingerprint<'_>)) -> Digest {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut fingerprint = Fingerprint {
            caller: "ann",
            skill: "echo",
            agent: "ops",
            args_sha256: Digest::of(b"{}"),
            timeout: Some(Duration::from_secs(3)),
            expected_digest: None,
            approval_id: None,
            detached: false,
            labels: &labels,
        };
        change(&mut fingerprint);
        fingerprint.digest()
    }

    /// A journal of an older version says the same: this value never changes while [`VERSION`] is what it is.
    #[test]
    fn it_is_the_same_for_ever() {
        assert_eq!(of(|_| {}).to_string(), "2f57ecfe26ab5dbe8a31f7d0b2df59805091f95863b8c5f7d1f465ae777a4af2");
    }

    #[test]
    fn every_field_counts() {
        let all = [
            of(|_| {}),
            of(|call| call.caller = "bob"),
            of(|call| call.skill = "ech"),
            of(|call| (call.skill, call.agent) = ("echoo", "ps")),
            of(|call| call.args_sha256 = Digest::of(b"[]")),
            of(|call| call.timeout = None),
            of(|call| call.timeout = Some(Duration::from_millis(3001))),
            of(|call| call.expected_digest = Some(Digest::of(b"x"))),
            of(|call| call.approval_id = Some("a")),
            of(|call| call.approval_id = Some("")),
            of(|call| call.detached = true),
            with(&[], |_| {}),
            with(&[("turn", "2"), ("ticket", "2")], |_| {}),
            with(&[("turn1", ""), ("ticket", "2")], |_| {}),
        ];
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
