//! What an approval is, and the rules of its life: who may sign, when it is signed enough, which run may use it. Knows no
//! database: whoever calls holds the lock.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use skillyard::{Class, Digest};
use uuid::Uuid;

/// A permission for one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Its name.
    pub id: Uuid,
    /// The number of its last change, among all changes of all approvals.
    pub changed: i64,
    /// The run that it is for.
    pub call: Call,
    /// Of the skill, when it was asked for.
    pub class: Class,
    /// The arguments, while it is pending and where they were asked for.
    pub args_json: Option<String>,
    /// Why it is wanted.
    pub reason: String,
    /// The identity that asked.
    pub requested_by: String,
    /// The person on whose behalf; may be empty.
    pub requested_for: String,
    /// How many must sign for it.
    pub signatures_required: u32,
    /// Those that are there, in their order.
    pub signatures: Vec<Signature>,
    /// What became of it.
    pub state: State,
    /// When it was asked for.
    pub created_at: SystemTime,
    /// When it ends unless it is used before.
    pub expires_at: SystemTime,
    /// What used it.
    pub used_by: Option<Use>,
}

/// What an approval is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// On whose behalf the skill runs.
    pub agent: String,
    /// The skill's name.
    pub skill: String,
    /// Of its package.
    pub digest: Digest,
    /// Of the argument bytes.
    pub args_sha256: Digest,
}

/// A run on an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The run.
    pub run_id: String,
    /// The executor's identity.
    pub executor: String,
    /// The journal in which the executor remembers the run; empty for one that names none.
    pub journal: String,
}

/// One person's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The identity that signed.
    pub signer: String,
    /// For, or against.
    pub approve: bool,
    /// What the signer said.
    pub comment: String,
    /// When.
    pub time: SystemTime,
}

/// What became of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Signatures are missing.
    Pending,
    /// Signed by as many as are required, and not used yet.
    Approved,
    /// Somebody signed against it.
    Rejected,
    /// Its time passed before it was used.
    Expired,
    /// A run used it.
    Consumed,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Approved, Self::Rejected, Self::Expired, Self::Consumed];

    /// As the database and people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Consumed => "consumed",
        }
    }

    /// Whether something may still become of it.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Approved)
    }
}

/// Who may sign for what, among those with the role: all, or those that the operator names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signers {
    /// For mutating skills.
    pub mutating: Option<BTreeSet<String>>,
    /// For dangerous skills.
    pub dangerous: Option<BTreeSet<String>>,
}

impl Signers {
    fn may_sign(&self, class: Class, signer: &str) -> bool {
        let named = match class {
            Class::Dangerous => &self.dangerous,
            Class::Mutating | Class::Safe => &self.mutating,
        };
        named.as_ref().is_none_or(|named| named.contains(signer))
    }
}

/// Why a signature does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignRefusal {
    /// The one who asked.
    #[error("{0:?} asked for this approval and may not sign it: another person must")]
    Requester(String),
    /// The one it was asked for.
    #[error("this approval was asked for {0:?}, who may not sign it: another person must")]
    Beneficiary(String),
    /// Not among those that the operator names.
    #[error("{signer:?} may not sign for {} skills: the registry's --signers-{} names those who may", .class.as_str(), .class.as_str())]
    NotASigner {
        /// Who tried.
        signer: String,
        /// Of the skill.
        class: Class,
    },
    /// Once is enough.
    #[error("{0:?} has signed this approval already: nobody signs twice")]
    Twice(String),
    /// It has ended, or has all signatures.
    #[error("the approval is {}: there is nothing to sign any more; a new one can be asked for", .0.as_str())]
    Closed(State),
}

/// Why a run may not use an approval.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UseRefusal {
    /// Signatures are missing.
    #[error("the approval has {there} of {required} signatures: wait for the others (WatchApprovals), then run again")]
    Pending {
        /// Those that are there.
        there: usize,
        /// Those that are required.
        required: u32,
    },
    /// It was rejected, or expired.
    #[error("the approval is {}: ask for a new one", .0.as_str())]
    Ended(State),
    /// Another run used it.
    #[error("the approval was used by another run, and each is for one: ask for a new one")]
    Used,
    /// It is for something else.
    #[error("the approval is for another {0}: ask for one for this call")]
    OtherCall(&'static str),
}

/// Whether a use is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Used {
    /// It is: the approval has changed.
    First,
    /// The same run in the same journal of the same executor asks again, having missed the answer.
    Again,
}

impl Approval {
    /// What is true at this moment, whether or not anybody has written it down.
    pub(super) fn expire(&mut self, now: SystemTime) {
        if self.state.is_open() && self.expires_at <= now {
            self.enter(State::Expired);
        }
    }

    /// Adds a signature. One against ends it, also when it had all; the last one for makes it approved.
    pub(super) fn sign(&mut self, signature: Signature, signers: &Signers) -> Result<(), SignRefusal> {
        let signer = signature.signer.as_str();
        if is_same_person(signer, &self.requested_by) {
            return Err(SignRefusal::Requester(signer.to_owned()));
        }
        if is_same_person(signer, &self.requested_for) {
            return Err(SignRefusal::Beneficiary(signer.to_owned()));
        }
        if !signers.may_sign(self.class, signer) {
            return Err(SignRefusal::NotASigner { signer: signer.to_owned(), class: self.class });
        }
        if !self.state.is_open() {
            return Err(SignRefusal::Closed(self.state));
        }
        if self.signatures.iter().any(|there| is_same_person(&there.signer, signer)) {
            return Err(SignRefusal::Twice(signer.to_owned()));
        }
        if self.state == State::Approved && signature.approve {
            return Err(SignRefusal::Closed(self.state));
        }
        let approve = signature.approve;
        self.signatures.push(signature);
        if !approve {
            self.enter(State::Rejected);
        } else if self.signatures.len() >= self.signatures_required as usize {
            self.enter(State::Approved);
        }
        Ok(())
    }

    /// Binds it to a run that is about to start.
    pub(super) fn consume(&mut self, call: &Call, by: &Use) -> Result<Used, UseRefusal> {
        if let Some(other) = self.call.difference(call) {
            return Err(UseRefusal::OtherCall(other));
        }
        match self.state {
            State::Pending => {
                Err(UseRefusal::Pending { there: self.signatures.len(), required: self.signatures_required })
            }
            State::Rejected | State::Expired => Err(UseRefusal::Ended(self.state)),
            State::Consumed if self.used_by.as_ref() == Some(by) => Ok(Used::Again),
            State::Consumed => Err(UseRefusal::Used),
            State::Approved => {
                self.enter(State::Consumed);
                self.used_by = Some(by.clone());
                Ok(Used::First)
            }
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        // They may hold secrets, and nobody decides on them any more.
        self.args_json = None;
    }
}

impl Call {
    fn difference(&self, other: &Self) -> Option<&'static str> {
        [
            (self.agent != other.agent, "agent"),
            (self.skill != other.skill, "skill"),
            (self.digest != other.digest, "digest of the skill"),
            (self.args_sha256 != other.args_sha256, "set of arguments"),
        ]
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
    }
}

/// `requested_for` is what a caller says: "Ann " is not to sign for herself as "ann".
fn is_same_person(a: &str, b: &str) -> bool {
    a.trim().to_lowercase() == b.trim().to_lowercase()
}

/// Times are kept in whole milliseconds.
pub(super) fn to_millis(time: SystemTime) -> i64 {
    let millis = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    i64::try_from(millis).unwrap_or(i64::MAX)
}

pub(super) fn from_millis(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approval(class: Class, signatures_required: u32) -> Approval {
        let now = SystemTime::now();
        Approval {
            id: Uuid::now_v7(),
            changed: 1,
            call: Call {
                agent: "ops".into(),
                skill: "x".into(),
                digest: Digest::of(b"package"),
                args_sha256: Digest::of(b"{}"),
            },
            class,
            args_json: Some("{}".into()),
            reason: String::new(),
            requested_by: "bot".into(),
            requested_for: "Ann ".into(),
            signatures_required,
            signatures: Vec::new(),
            state: State::Pending,
            created_at: now,
            expires_at: now + Duration::from_secs(60),
            used_by: None,
        }
    }

    fn sign(approval: &mut Approval, signer: &str, approve: bool) -> Result<State, SignRefusal> {
        let time = SystemTime::now();
        let signature = Signature { signer: signer.into(), approve, comment: String::new(), time };
        approval.sign(signature, &Signers::default())?;
        Ok(approval.state)
    }

    #[test]
    fn two_people_other_than_those_who_asked() {
        let mut approval = approval(Class::Dangerous, 2);
        assert_eq!(sign(&mut approval, "bot", true), Err(SignRefusal::Requester("bot".into())));
        assert_eq!(sign(&mut approval, "ann", true), Err(SignRefusal::Beneficiary("ann".into())));
        assert_eq!(sign(&mut approval, "bob", true), Ok(State::Pending));
        assert!(approval.args_json.is_some());
        assert_eq!(sign(&mut approval, "bob", true), Err(SignRefusal::Twice("bob".into())));
        assert_eq!(sign(&mut approval, "bob", false), Err(SignRefusal::Twice("bob".into())));
        assert_eq!(sign(&mut approval, "cat", true), Ok(State::Approved));
        assert_eq!(approval.args_json, None);
        assert_eq!(sign(&mut approval, "dan", true), Err(SignRefusal::Closed(State::Approved)));
        assert_eq!(sign(&mut approval, "dan", false), Ok(State::Rejected), "until it is used, it can be taken back");
        assert_eq!(sign(&mut approval, "eve", true), Err(SignRefusal::Closed(State::Rejected)));
    }

    #[test]
    fn one_against_ends_it() {
        let mut approval = approval(Class::Dangerous, 2);
        assert_eq!(sign(&mut approval, "bob", true), Ok(State::Pending));
        assert_eq!(sign(&mut approval, "cat", false), Ok(State::Rejected));
        assert_eq!(approval.args_json, None);
    }

    #[test]
    fn signers_by_class() {
        let signers = Signers { mutating: None, dangerous: Some(["bob".to_owned()].into()) };
        let signature =
            Signature { signer: "cat".into(), approve: true, comment: String::new(), time: SystemTime::now() };
        let refused = approval(Class::Dangerous, 2).sign(signature.clone(), &signers).unwrap_err();
        assert_eq!(refused, SignRefusal::NotASigner { signer: "cat".into(), class: Class::Dangerous });
        assert!(refused.to_string().contains("--signers-dangerous"));
        approval(Class::Mutating, 1).sign(signature, &signers).unwrap();
    }

    #[test]
    fn one_use_of_the_very_call() {
        let mut approval = approval(Class::Mutating, 1);
        let call = approval.call.clone();
        let run = |run_id: &str, executor: &str| Use {
            run_id: run_id.into(),
            executor: executor.into(),
            journal: "j".into(),
        };
        let refused = approval.consume(&call, &run("r", "e"));
        assert_eq!(refused, Err(UseRefusal::Pending { there: 0, required: 1 }));
        sign(&mut approval, "bob", true).unwrap();
        for (other, what) in [
            (Call { agent: "dev".into(), ..call.clone() }, "agent"),
            (Call { skill: "y".into(), ..call.clone() }, "skill"),
            (Call { digest: Digest::of(b"packagf"), ..call.clone() }, "digest of the skill"),
            (Call { args_sha256: Digest::of(b"{ }"), ..call.clone() }, "set of arguments"),
        ] {
            assert_eq!(approval.consume(&other, &run("r", "e")), Err(UseRefusal::OtherCall(what)));
        }
        assert_eq!(approval.consume(&call, &run("r", "e")), Ok(Used::First));
        assert_eq!(approval.consume(&call, &run("r", "e")), Ok(Used::Again), "the answer was lost");
        assert_eq!(approval.consume(&call, &run("r", "f")), Err(UseRefusal::Used));
        assert_eq!(approval.consume(&call, &run("s", "e")), Err(UseRefusal::Used));
        for journal in ["k", ""] {
            let wiped = Use { journal: journal.into(), ..run("r", "e") };
            assert_eq!(approval.consume(&call, &wiped), Err(UseRefusal::Used), "it does not know what it ran");
        }
        assert_eq!(sign(&mut approval, "dan", false), Err(SignRefusal::Closed(State::Consumed)));
        approval.expire(approval.expires_at);
        assert_eq!(approval.state, State::Consumed);
    }

    #[test]
    fn its_time_passes() {
        let mut approval = approval(Class::Mutating, 1);
        sign(&mut approval, "bob", true).unwrap();
        approval.expire(approval.expires_at - Duration::from_millis(1));
        assert_eq!(approval.state, State::Approved);
        approval.expire(approval.expires_at);
        let by = Use { run_id: "r".into(), executor: "e".into(), journal: "j".into() };
        assert_eq!(approval.consume(&approval.call.clone(), &by), Err(UseRefusal::Ended(State::Expired)));
    }

    #[test]
    fn milliseconds_there_and_back() {
        for millis in [0, 1, 1_700_000_000_123] {
            assert_eq!(to_millis(from_millis(millis)), millis);
        }
        assert_eq!(to_millis(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), 0);
    }
}
