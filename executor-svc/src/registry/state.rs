//! The catalog's state as the registry sent it, piece by piece as the bytes that came: what this version does not know
//! is kept for the one that will, and a change is applied and checked without the rest of the state.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message as _;
use prost::bytes::Bytes;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::skill::v1 as skill_pb;
use skillyard::watch::{Agents, Update, state_sha256};
use skillyard::{Agent, Digest, Skill, wire};

use super::RegistryError;

/// A request is at most that large; what a client has is said only where it fits. The registry takes 4 MiB.
const MAX_REQUEST_BYTES: usize = 3 << 20;

/// What the registry sent, complete: a whole state, or a change of one.
#[derive(Debug)]
pub struct Sent(Update);

/// A catalog's whole state.
#[derive(Debug)]
pub struct State {
    version: String,
    skills: BTreeMap<String, Kept>,
    agents: Vec<Bytes>,
    /// Names that came more than once in one state: the first is used.
    twice: BTreeSet<String>,
    /// The registry said what the state is, and this is it.
    checked: bool,
}

/// A skill, as it came.
#[derive(Debug)]
struct Kept {
    bytes: Box<[u8]>,
    sha256: Digest,
}

/// Of a skill's bytes, what it goes by.
#[derive(Clone, PartialEq, prost::Message)]
struct Name {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "5")]
    digest: String,
}

impl Sent {
    /// Something complete, or why it is not.
    pub(super) fn new(update: Update) -> Result<Self, RegistryError> {
        if update.catalog_version.is_empty() {
            return Err(RegistryError::NoVersion);
        }
        if update.agents.is_none() {
            return Err(RegistryError::NoAgents);
        }
        Ok(Self(update))
    }

    /// Whether it is a whole state, and no change of one.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.0.full
    }
}

impl State {
    /// The state that was sent whole.
    ///
    /// # Errors
    /// It is not what the registry says that it is, or a skill of it is not one at all.
    pub fn whole(sent: Sent) -> Result<Self, RegistryError> {
        let mut state = Self {
            version: String::new(),
            skills: BTreeMap::new(),
            agents: Vec::new(),
            twice: BTreeSet::new(),
            checked: false,
        };
        state.take(sent)?;
        Ok(state)
    }

    /// Makes of the state another, and says by name which skills may differ. After an error nothing is known of it.
    ///
    /// # Errors
    /// The registry does not say what the state is afterwards, or it is another.
    pub fn change(&mut self, sent: Sent) -> Result<BTreeSet<String>, RegistryError> {
        if sent.0.state_sha256.is_empty() {
            return Err(RegistryError::Unchecked);
        }
        self.take(sent)
    }

    fn take(&mut self, Sent(update): Sent) -> Result<BTreeSet<String>, RegistryError> {
        let mut touched: BTreeSet<String> = update.removed.into_iter().collect();
        for name in &touched {
            self.skills.remove(name);
        }
        for bytes in update.changed {
            let Name { name, .. } = Name::decode(&*bytes).map_err(|_| RegistryError::NoState)?;
            if touched.insert(name.clone()) {
                self.twice.remove(&name);
                self.skills.insert(name, Kept { sha256: Digest::of(&bytes), bytes: (&*bytes).into() });
            } else {
                self.twice.insert(name);
            }
        }
        // The bytes of their own: what they came in is let go of.
        self.agents =
            update.agents.unwrap_or_default().agents.iter().map(|bytes| Bytes::copy_from_slice(bytes)).collect();
        self.version = update.catalog_version;
        self.checked = !update.state_sha256.is_empty();
        if self.checked && self.sha256() != update.state_sha256 {
            return Err(RegistryError::Other);
        }
        Ok(touched)
    }

    /// The registry's name for it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The state that was kept.
    ///
    /// # Errors
    /// The bytes are no state.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RegistryError> {
        let update = Update::decode(bytes).map_err(|_| RegistryError::NoState)?;
        Self::whole(Sent::new(update)?)
    }

    /// The state as bytes, to be kept.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let update = Update {
            catalog_version: self.version.clone(),
            full: true,
            more: false,
            changed: self.skills.values().map(|kept| Bytes::copy_from_slice(&kept.bytes)).collect(),
            removed: Vec::new(),
            agents: Some(Agents { agents: self.agents.clone() }),
            state_sha256: if self.checked { self.sha256() } else { String::new() },
        };
        update.encode_to_vec()
    }

    /// Whether the registry said what the state is, and this is it. Of another one, once it has been on the disk, an
    /// earlier executor may have left out what that did not know.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        self.checked
    }

    /// What is asked with: what changed since this state.
    pub(super) fn request(&self) -> pb::WatchCatalogRequest {
        let digests: HashMap<_, _> = self
            .skills
            .values()
            .filter_map(|kept| Name::decode(&*kept.bytes).ok())
            .map(|Name { name, digest }| (name, digest))
            .collect();
        let mut request = pb::WatchCatalogRequest { catalog_version: self.version.clone(), digests };
        if request.encoded_len() > MAX_REQUEST_BYTES || !self.checked {
            request.digests.clear();
        }
        request
    }

    /// The names of all skills.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.skills.keys().map(String::as_str)
    }

    /// A skill, or why it cannot be used; it never stops the others.
    #[must_use]
    pub fn skill(&self, name: &str) -> Option<Result<Skill, String>> {
        let kept = self.skills.get(name)?;
        let unreadable = |error: String| format!("the registry sent a skill that cannot be read: {error}");
        let message = skill_pb::Skill::decode(&*kept.bytes).map_err(|error| unreadable(error.to_string()));
        Some(message.and_then(|message| wire::skill_from_wire(message).map_err(|error| unreadable(error.to_string()))))
    }

    /// Why the registry's word on a skill is doubtful, by name.
    pub fn doubts(&self) -> impl Iterator<Item = (&str, String)> {
        let cause = "the registry sent two skills of this name: the first is used";
        self.twice.iter().map(move |name| (name.as_str(), cause.to_owned()))
    }

    /// All agents. What is none is left out.
    pub fn agents(&self) -> impl Iterator<Item = Agent> {
        self.agents.iter().filter_map(|bytes| pb::Agent::decode(bytes.clone()).ok()).map(wire::agent_from_wire)
    }

    fn sha256(&self) -> String {
        let skills = self.skills.values().map(|kept| kept.sha256);
        state_sha256(skills, self.agents.iter().map(AsRef::as_ref)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn skill(name: &str, text: &str) -> Bytes {
        let digest = Digest::of(text.as_bytes()).to_string();
        skill_pb::Skill { name: name.into(), digest, ..skill_pb::Skill::default() }.encode_to_vec().into()
    }

    type Skills = BTreeMap<String, String>;

    /// What a registry with these skills says of itself.
    fn sum(skills: &Skills) -> String {
        state_sha256(skills.iter().map(|(name, text)| Digest::of(&skill(name, text))), []).to_string()
    }

    fn sent(full: bool, version: &str, changed: Vec<Bytes>, removed: Vec<String>, state_sha256: String) -> Sent {
        let agents = Some(Agents::default());
        Sent::new(Update { catalog_version: version.into(), full, more: false, changed, removed, agents, state_sha256 })
            .unwrap()
    }

    fn whole(version: &str, skills: &Skills) -> Sent {
        sent(true, version, skills.iter().map(|(name, text)| skill(name, text)).collect(), Vec::new(), sum(skills))
    }

    proptest! {
        #[test]
        fn a_change_leads_to_the_state(
            before in proptest::collection::btree_map("[a-c]{1,2}", "[xy]", 0..9),
            after in proptest::collection::btree_map("[a-c]{1,2}", "[xy]", 0..9),
            left_out in any::<proptest::sample::Index>(),
        ) {
            let start = || State::whole(whole("1", &before)).unwrap();
            let (mut changed, mut removed) = (Vec::new(), Vec::new());
            for (name, text) in after.iter().filter(|(name, text)| before.get(*name) != Some(text)) {
                changed.push(skill(name, text));
            }
            removed.extend(before.keys().filter(|name| !after.contains_key(*name)).cloned());
            let mut state = start();
            let touched = state.change(sent(false, "2", changed.clone(), removed.clone(), sum(&after))).unwrap();
            prop_assert_eq!(touched.len(), changed.len() + removed.len());
            let expected = State::whole(whole("2", &after)).unwrap();
            prop_assert_eq!(state.to_bytes(), expected.to_bytes());
            prop_assert_eq!(State::from_bytes(&state.to_bytes()).unwrap().to_bytes(), expected.to_bytes());
            // Whatever is missing of it is noticed.
            if !touched.is_empty() {
                match left_out.index(touched.len()).checked_sub(changed.len()) {
                    Some(of_removed) => drop(removed.remove(of_removed)),
                    None => drop(changed.remove(left_out.index(touched.len()))),
                }
                let error = start().change(sent(false, "2", changed, removed, sum(&after))).unwrap_err();
                prop_assert_eq!(error, RegistryError::Other);
            }
        }
    }

    #[test]
    fn what_it_is_asked_with() {
        let skills = Skills::from([("a".into(), "x".into()), ("b".into(), "y".into())]);
        let state = State::whole(whole("1", &skills)).unwrap();
        let digests = skills.iter().map(|(name, text)| (name.clone(), Digest::of(text.as_bytes()).to_string()));
        let request = pb::WatchCatalogRequest { catalog_version: "1".into(), digests: digests.collect() };
        assert_eq!(state.request(), request);
        let unchecked = sent(true, "1", vec![skill("a", "x")], Vec::new(), String::new());
        let request = State::whole(unchecked).unwrap().request();
        assert_eq!(
            (&*request.catalog_version, request.digests.len()),
            ("1", 0),
            "nobody would notice what they do not say"
        );
        let many: Skills = (0..20_000).map(|i| (format!("{i:0100}"), "x".into())).collect();
        let request = State::whole(whole("1", &many)).unwrap().request();
        assert_eq!((&*request.catalog_version, request.digests.len()), ("1", 0), "they do not fit");
    }

    #[test]
    fn what_this_version_does_not_know_is_kept() {
        let mut bytes = skill("a", "x").to_vec();
        // Field 1000, a varint.
        bytes.extend([0xc0, 0x3e, 7]);
        let sum = state_sha256([Digest::of(&bytes)], []).to_string();
        let state = State::whole(sent(true, "1", vec![bytes.into()], Vec::new(), sum)).unwrap();
        assert!(state.skill("a").unwrap().unwrap_err().contains("cannot be read"), "it lacks what a skill has");
        assert!(State::from_bytes(&state.to_bytes()).unwrap().checked);
    }
}
