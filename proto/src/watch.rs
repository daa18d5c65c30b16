//! What WatchCatalog sends, with its skills and agents as the bytes that they are on the wire: a registry encodes each of
//! them once, and an executor keeps what it does not know, and checks that it has what the registry has.

use prost::Message;
use prost::bytes::Bytes;

use crate::digest::{Digest, Hasher};

/// A `WatchCatalogResponse` whose skills and agents are encoded.
#[derive(Clone, PartialEq, Message)]
pub struct Update {
    /// Of the whole state.
    #[prost(string, tag = "1")]
    pub catalog_version: String,
    /// What is not in it is gone.
    #[prost(bool, tag = "2")]
    pub full: bool,
    /// More of the same follows.
    #[prost(bool, tag = "6")]
    pub more: bool,
    /// Skills.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub changed: Vec<Bytes>,
    /// Names of skills.
    #[prost(string, repeated, tag = "4")]
    pub removed: Vec<String>,
    /// All agents.
    #[prost(message, optional, tag = "5")]
    pub agents: Option<Agents>,
    /// Of the state after it; empty but in the last message.
    #[prost(string, tag = "7")]
    pub state_sha256: String,
}

/// An `AgentSet` whose agents are encoded.
#[derive(Clone, PartialEq, Message)]
pub struct Agents {
    /// In byte order of their names.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub agents: Vec<Bytes>,
}

/// `state_sha256` of a state: of its skills by the sha256 of their bytes, and of its agents by their bytes, each in byte
/// order of their names.
#[must_use]
pub fn state_sha256<'a>(
    skills: impl IntoIterator<Item = Digest>,
    agents: impl IntoIterator<Item = &'a [u8]>,
) -> Digest {
    let all = |parts: &mut dyn Iterator<Item = Digest>| {
        let mut hasher = Hasher::default();
        parts.for_each(|part| hasher.update(part.as_bytes()));
        hasher.finish()
    };
    let skills = all(&mut skills.into_iter());
    let agents = all(&mut agents.into_iter().map(Digest::of));
    all(&mut [skills, agents].into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::registry::v1 as pb;
    use crate::pb::skill::v1::Skill;

    #[test]
    fn on_the_wire_it_is_the_message() {
        let skill = Skill { name: "x".into(), description: "d".into(), ..Skill::default() };
        let agent = pb::Agent { name: "a".into(), ..pb::Agent::default() };
        let message = pb::WatchCatalogResponse {
            catalog_version: "1".into(),
            full: true,
            more: true,
            changed: vec![skill.clone(), Skill::default()],
            removed: vec!["y".into()],
            agents: Some(pb::AgentSet { agents: vec![agent.clone()] }),
            state_sha256: "2".into(),
        };
        let update = Update::decode(&*message.encode_to_vec()).unwrap();
        assert_eq!(update.changed, [skill.encode_to_vec(), Vec::new()]);
        assert_eq!(update.agents.as_ref().unwrap().agents, [agent.encode_to_vec()]);
        assert_eq!(pb::WatchCatalogResponse::decode(&*update.encode_to_vec()).unwrap(), message);
    }

    /// The same by hand.
    #[test]
    fn the_formula() {
        let of = |parts: &[Digest]| Digest::of(&parts.iter().flat_map(|part| *part.as_bytes()).collect::<Vec<_>>());
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(state_sha256([a, b], [b"c".as_slice()]), of(&[of(&[a, b]), of(&[Digest::of(b"c")])]));
        assert_ne!(state_sha256([a, b], []), state_sha256([a], [b"b".as_slice()]));
        assert_ne!(state_sha256([a, b], []), state_sha256([b, a], []));
    }
}
