//! What watchers of the catalog are sent: whole states and changes, each encoded once for all who need it, on a thread
//! that may take its time. Nobody's own pace matters here: [`super::watch`] has that.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use prost::Message as _;
use prost::bytes::Bytes;
use skillyard::pb::skill::v1::Skill as SkillMessage;
use skillyard::skill::Kind;
use skillyard::watch::{Agents, Update, state_sha256};
use skillyard::{Digest, Skill, View, wire};
use tokio::sync::{Mutex, watch};
use tracing::Instrument as _;

use super::watch::Known;
use crate::catalog::Catalog;
use crate::catalog::changes::Changes;
use crate::source::FoundSkill;

/// A message is full at that, and holds one skill at least.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;
/// Changes that are kept encoded, from so many versions to the current one: watchers that are behind are behind by the
/// same few.
const MOST_KEPT: usize = 8;

/// The messages of one state or one change, encoded.
pub(super) type Messages = Arc<Vec<Bytes>>;

/// The current state and those to come.
#[derive(Clone, Debug)]
pub(super) struct States(watch::Receiver<Option<Arc<State>>>);

/// One version of the catalog, and what was encoded of it.
#[derive(Debug)]
pub(super) struct State {
    catalog: Arc<Catalog>,
    version: String,
    /// The steps to this version.
    changes: Changes,
    sha256: OnceLock<String>,
    encoded: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// As long as somebody is being sent it: it may be large.
    whole: Weak<Vec<Bytes>>,
    /// By the version that they begin at.
    changes: Vec<(String, Messages)>,
}

impl States {
    /// Follows the catalogs until there are no more.
    pub(super) fn follow(mut catalogs: watch::Receiver<Option<Arc<Catalog>>>) -> Self {
        let (publish, states) = watch::channel(None);
        let following = async move {
            let mut changes = Changes::default();
            loop {
                let current = catalogs.borrow_and_update().clone();
                if let Some(catalog) = current {
                    let before: Option<Arc<State>> = publish.borrow().clone();
                    let is_new = before.as_ref().is_none_or(|before| before.catalog.version() != catalog.version());
                    if is_new {
                        let (same, after) = (std::mem::take(&mut changes), Arc::clone(&catalog));
                        let Some(made) = blocking(move || add(same, before.as_deref(), &after)).await else { return };
                        changes = made;
                        publish.send_replace(Some(Arc::new(State::new(catalog, changes.clone()))));
                    }
                }
                if catalogs.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::spawn(following.in_current_span());
        Self(states)
    }

    /// The current state, and those to come; it ends when the registry stops.
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<State>>> {
        self.0.clone()
    }
}

fn add(mut changes: Changes, before: Option<&State>, after: &Catalog) -> Changes {
    if let Some(before) = before {
        changes.add(&before.catalog, after);
    }
    changes
}

impl State {
    pub(super) fn new(catalog: Arc<Catalog>, changes: Changes) -> Self {
        let version = catalog.version().to_string();
        Self { catalog, version, changes, sha256: OnceLock::new(), encoded: Mutex::default() }
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// What leads from what is known to this state: a change where it is known where to begin, or else the whole.
    /// `None` after a fault of ours.
    pub(super) async fn messages(self: &Arc<Self>, known: &Known) -> Option<Messages> {
        // One encodes, and the others wait for it.
        let mut kept = self.encoded.lock().await;
        let version = known.version.as_str();
        if let Some((_, messages)) = kept.changes.iter().find(|(from, _)| from == version) {
            return Some(Arc::clone(messages));
        }
        let from = version.parse().ok().filter(|from| self.changes.remembers(from));
        if let Some(from) = from {
            let state = Arc::clone(self);
            let messages = blocking(move || state.since(&from)).await?;
            if kept.changes.len() == MOST_KEPT {
                kept.changes.remove(0);
            }
            kept.changes.push((version.to_owned(), Arc::clone(&messages)));
            return Some(messages);
        }
        if !known.digests.is_empty() {
            // It is nobody else's.
            drop(kept);
            let (state, digests) = (Arc::clone(self), Arc::clone(&known.digests));
            return blocking(move || state.beyond(&digests)).await;
        }
        if let Some(whole) = kept.whole.upgrade() {
            return Some(whole);
        }
        let state = Arc::clone(self);
        let messages = blocking(move || state.whole()).await?;
        kept.whole = Arc::downgrade(&messages);
        Some(messages)
    }

    /// All that there is.
    fn whole(&self) -> Messages {
        let mut packing = Packing::new(self, true);
        self.all().for_each(|(_, found)| packing.skill(found));
        packing.finish()
    }

    /// What is other than at a version that is remembered.
    fn since(&self, version: &Digest) -> Messages {
        let mut packing = Packing::new(self, false);
        for name in self.changes.since(version).into_iter().flatten() {
            match self.catalog.skill(View::unfiltered(), name.as_str()) {
                Some(found) => packing.skill(found),
                None => packing.removed(name.as_str()),
            }
        }
        packing.finish()
    }

    /// What is other than these digests by skill name.
    fn beyond(&self, digests: &HashMap<String, String>) -> Messages {
        let mut packing = Packing::new(self, false);
        for (name, found) in self.all() {
            if digests.get(name) != Some(&found.skill.digest.to_string()) {
                packing.skill(found);
            }
        }
        for name in digests.keys().filter(|name| self.catalog.skill(View::unfiltered(), name).is_none()) {
            packing.removed(name);
        }
        packing.finish()
    }

    /// In byte order of their names.
    fn all(&self) -> impl Iterator<Item = (&str, &FoundSkill)> {
        self.catalog.skills(View::unfiltered(), None).map(|found| (found.skill.name.as_str(), found))
    }

    /// The checksum. What did not change since an earlier catalog is not encoded again.
    fn sha256(&self) -> String {
        let make = || {
            let skills = self.catalog.listed(View::unfiltered(), None);
            let skills = skills.map(|listed| listed.digest_once(|found| Digest::of(&mirrored(&found.skill))));
            let agents: Vec<_> = self.agents().collect();
            state_sha256(skills, agents.iter().map(AsRef::as_ref)).to_string()
        };
        self.sha256.get_or_init(make).clone()
    }

    fn agents(&self) -> impl Iterator<Item = Bytes> {
        self.catalog.agents(None).map(|agent| wire::agent_to_wire(agent).encode_to_vec().into())
    }
}

/// Fills messages one after the other: agents first, of which there may be none, and then skills.
struct Packing<'a> {
    state: &'a State,
    message: Update,
    room: usize,
    full: Vec<Bytes>,
}

impl<'a> Packing<'a> {
    fn new(state: &'a State, full: bool) -> Self {
        let message = Update { catalog_version: state.version.clone(), full, ..Update::default() };
        let message = Update { agents: Some(Agents::default()), ..message };
        let mut packing = Self { state, message, room: MESSAGE_BYTES, full: Vec::new() };
        for agent in state.agents() {
            packing.make_room(agent.len());
            packing.message.agents.get_or_insert_default().agents.push(agent);
        }
        packing
    }

    fn skill(&mut self, found: &FoundSkill) {
        let skill = mirrored(&found.skill);
        self.make_room(skill.len());
        self.message.changed.push(skill.into());
    }

    fn removed(&mut self, name: &str) {
        self.make_room(name.len());
        self.message.removed.push(name.to_owned());
    }

    /// For an item of so many bytes; one that no message has room for is alone in one.
    fn make_room(&mut self, bytes: usize) {
        // Beside its bytes an item has a tag and a length.
        let bytes = bytes + 8;
        if bytes > self.room && self.room < MESSAGE_BYTES {
            let (catalog_version, full) = (self.message.catalog_version.clone(), self.message.full);
            let next = Update { catalog_version, full, ..Update::default() };
            let message = std::mem::replace(&mut self.message, next);
            self.full.push(Update { more: true, ..message }.encode_to_vec().into());
            self.room = MESSAGE_BYTES;
        }
        self.room = self.room.saturating_sub(bytes);
    }

    fn finish(mut self) -> Messages {
        let last = Update { state_sha256: self.state.sha256(), ..self.message };
        self.full.push(last.encode_to_vec().into());
        Arc::new(self.full)
    }
}

/// A skill as an executor needs it: all that decides about a run; of a playbook, that there is one.
fn mirrored(skill: &Skill) -> Vec<u8> {
    let message = wire::skill_to_wire(skill);
    let message = match skill.kind {
        Kind::Subprocess(_) => SkillMessage { card: None, extra: None, modified_at: None, ..message },
        Kind::Playbook(_) => SkillMessage {
            name: message.name,
            kind: message.kind,
            source: message.source,
            digest: message.digest,
            ..Default::default()
        },
    };
    message.encode_to_vec()
}

/// With many skills it takes longer than the runtime's threads may be held. `None` when it panicked.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.inspect_err(|error| tracing::error!(%error, "encoding the catalog failed")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixture;
    use skillyard::pb::registry::v1 as pb;

    fn decoded(messages: &Messages) -> Vec<pb::WatchCatalogResponse> {
        messages.iter().map(|message| pb::WatchCatalogResponse::decode(message.clone()).unwrap()).collect()
    }

    fn state(catalog: Catalog, changes: &Changes) -> Arc<State> {
        Arc::new(State::new(Arc::new(catalog), changes.clone()))
    }

    fn names(messages: &[pb::WatchCatalogResponse]) -> (Vec<&str>, Vec<&str>) {
        let agents =
            messages.iter().flat_map(|m| &m.agents).flat_map(|set| &set.agents).map(|agent| agent.name.as_str());
        let skills = messages.iter().flat_map(|m| &m.changed).map(|skill| skill.name.as_str());
        (agents.collect(), skills.collect())
    }

    #[test]
    fn a_large_state_comes_in_several_messages() {
        let listed: Vec<_> = (0..2000).map(|i| format!("skill_{i:0100}")).collect();
        let agents: Vec<_> = (0..10).map(|i| fixture::agent(&format!("a{i}"), &listed)).collect();
        let skills: Vec<_> = (0..20).map(|i| fixture::described(&format!("s{i:02}"), "x".repeat(i * 20_000))).collect();
        let state = state(fixture::catalog(skills, agents), &Changes::default());
        let encoded = state.whole();
        assert!(encoded.len() > 4, "{}", encoded.len());
        assert!(encoded.iter().all(|message| message.len() <= MESSAGE_BYTES + 512));
        let messages = decoded(&encoded);
        assert!(messages.iter().all(|message| message.full && message.catalog_version == state.version));
        let more: Vec<_> = messages.iter().map(|message| message.more).collect();
        assert_eq!(more.iter().position(|more| !more), Some(messages.len() - 1));
        let summed: Vec<_> = messages.iter().map(|message| !message.state_sha256.is_empty()).collect();
        assert_eq!(summed.iter().position(|summed| *summed), Some(messages.len() - 1));
        let (agents, skills) = names(&messages);
        assert_eq!(agents, state.catalog.agents(None).map(|agent| agent.name.as_str()).collect::<Vec<_>>());
        assert_eq!(skills, state.all().map(|(name, _)| name).collect::<Vec<_>>());
    }

    #[test]
    fn a_state_of_nothing_is_one_message() {
        let state = state(fixture::catalog(Vec::new(), Vec::new()), &Changes::default());
        let message = pb::WatchCatalogResponse {
            catalog_version: state.version.clone(),
            full: true,
            agents: Some(pb::AgentSet::default()),
            state_sha256: state_sha256([], []).to_string(),
            ..Default::default()
        };
        assert_eq!(decoded(&state.whole()), [message]);
    }

    #[test]
    fn a_skill_that_no_message_has_room_for_is_alone_in_one() {
        let skills =
            ["a", "b", "c"].map(|name| fixture::described(name, "x".repeat(if name == "b" { 2 << 20 } else { 1 })));
        let state = state(fixture::catalog(skills.to_vec(), Vec::new()), &Changes::default());
        assert_eq!(decoded(&state.whole()).iter().map(|message| message.changed.len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    fn of(skills: &[(&str, &str)]) -> Catalog {
        let skills =
            skills.iter().map(|(name, content)| fixture::skill("/e", name, name, skillyard::Source::External, content));
        fixture::catalog(skills.collect(), vec![fixture::agent("me", &["a"])])
    }

    fn known(version: &str, digests: &[(&str, &str)]) -> Known {
        let digests =
            digests.iter().map(|(name, content)| ((*name).to_owned(), Digest::of(content.as_bytes()).to_string()));
        Known { version: version.into(), digests: Arc::new(digests.collect()) }
    }

    #[tokio::test]
    async fn a_change_is_sent_to_whoever_has_what_it_is_of() {
        let (first, second) = (of(&[("a", "1"), ("b", "1"), ("c", "1")]), of(&[("a", "1"), ("c", "2"), ("d", "1")]));
        let version = first.version().to_string();
        let mut changes = Changes::default();
        changes.add(&first, &second);
        let now = state(second, &changes);
        let whole = now.messages(&known("", &[])).await.unwrap();
        let sha256 = decoded(&whole).remove(0).state_sha256;
        let expected = |messages: &Messages, skills: &[&str], gone: &[&str]| {
            let [message] = &decoded(messages)[..] else { panic!("{messages:?}") };
            assert!(!message.full && message.catalog_version == now.version && message.agents.is_some());
            assert_eq!(
                (names(std::slice::from_ref(message)).1, &message.removed[..]),
                (skills.to_vec(), &gone.iter().map(ToString::to_string).collect::<Vec<_>>()[..])
            );
            assert_eq!(message.state_sha256, sha256, "the check is of the state, however it came");
        };
        let change = now.messages(&known(&version, &[])).await.unwrap();
        expected(&change, &["c", "d"], &["b"]);
        let again = now.messages(&known(&version, &[("a", "other")])).await.unwrap();
        assert!(Arc::ptr_eq(&again, &change), "encoded once, and the version says more than the digests");
        for unknown in ["", "gone", &"0".repeat(64)] {
            let known = known(unknown, &[("a", "1"), ("b", "1"), ("c", "1")]);
            expected(&now.messages(&known).await.unwrap(), &["c", "d"], &["b"]);
        }
        // What nobody knows begins at the beginning, for all at once.
        for unknown in ["", "gone", &"0".repeat(64)] {
            assert!(Arc::ptr_eq(&whole, &now.messages(&known(unknown, &[])).await.unwrap()));
        }
        drop(whole);
        assert!(now.encoded.lock().await.whole.upgrade().is_none(), "it is kept for nobody");
    }
}
