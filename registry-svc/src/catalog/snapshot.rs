//! A catalog: skills and agents by name, packages by digest, and the report of the load that made it. It never changes;
//! a reader takes the current one and keeps it for the whole call.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use skillyard::{Agent, Digest, SkillName, View};

use super::categories::{Card, Categories, Category};
use super::fingerprint;
use super::report::Report;
use super::search::Index;
use super::visible::{Views, Visible};
use crate::source::FoundSkill;

/// All that is known at one moment.
#[derive(Debug)]
pub struct Catalog {
    version: Digest,
    /// In byte order of their names.
    skills: Vec<Entry>,
    agents: BTreeMap<String, Arc<Agent>>,
    /// Places of the skills in order of their digests; made when somebody asks.
    packages: OnceLock<Box<[u32]>>,
    report: Report,
    /// Made when somebody asks, of what there was before.
    index: OnceLock<Arc<Index>>,
    index_before: Mutex<Option<Arc<Index>>>,
    categories: OnceLock<Categories>,
    views: Views,
}

/// A skill that was found by what its name and description say.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// The skill.
    pub found: &'a FoundSkill,
    /// How well it fits; the more the better, and of no meaning beside another question's.
    pub score: f64,
}

/// A skill of a catalog.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The skill and its files.
    pub(super) found: Arc<FoundSkill>,
    /// Of its manifest, as it was found.
    pub(super) path: Arc<Path>,
    /// Of all that a caller could see of it but its modification time.
    pub(super) fingerprint: Digest,
    /// What was made of this very value before.
    pub(super) memo: Arc<Memo>,
}

/// A place for what a reader makes of a skill, which is the same each time and takes longer to make than to keep. It goes
/// from catalog to catalog with the skill.
#[derive(Debug, Default)]
pub(super) struct Memo {
    bytes: OnceLock<Arc<[u8]>>,
    digest: OnceLock<Digest>,
}

/// A skill in a list.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// The skill.
    pub found: &'a FoundSkill,
    memo: &'a Memo,
}

impl<'a> Listed<'a> {
    /// What the first caller made of the skill: every caller must make the same.
    pub fn once(&self, make: impl FnOnce(&'a FoundSkill) -> Vec<u8>) -> &'a Arc<[u8]> {
        self.memo.bytes.get_or_init(|| make(self.found).into())
    }

    /// The same for a digest of what is made of the skill for an executor.
    pub fn digest_once(&self, make: impl FnOnce(&'a FoundSkill) -> Digest) -> Digest {
        *self.memo.digest.get_or_init(|| make(self.found))
    }
}

/// No agent has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown agent {0:?}")]
pub struct UnknownAgent(pub String);

/// How the skills of two catalogs differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Skills that are new.
    pub added: u32,
    /// Skills that differ.
    pub changed: u32,
    /// Skills that are gone.
    pub removed: u32,
}

impl Catalog {
    pub(super) fn new(
        skills: Vec<Entry>,
        agents: BTreeMap<String, Arc<Agent>>,
        report: Report,
        before: Option<&Self>,
    ) -> Self {
        let version =
            fingerprint::of_catalog(skills.iter().map(|entry| &entry.fingerprint), agents.values().map(AsRef::as_ref));
        Self {
            version,
            skills,
            agents,
            packages: OnceLock::new(),
            report,
            index: OnceLock::new(),
            index_before: Mutex::new(before.and_then(|before| before.index.get()).map(Arc::clone)),
            categories: OnceLock::new(),
            views: Views::default(),
        }
    }

    /// A hash of all it holds, without modification times: replicas over the same files agree.
    #[must_use]
    pub fn version(&self) -> &Digest {
        &self.version
    }

    /// What became of every candidate.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What an agent sees. An empty name means the default agent, and without one there is no filter.
    ///
    /// # Errors
    /// There is no such agent. A default agent that is not there is as unknown as any other.
    pub fn view(&self, agent: &str, default_agent: Option<&str>) -> Result<View<'_>, UnknownAgent> {
        let name = match (agent, default_agent) {
            ("", None) => return Ok(View::unfiltered()),
            ("", Some(default)) => default,
            (name, _) => name,
        };
        self.agents.get(name).map(|agent| View::of(agent)).ok_or_else(|| UnknownAgent(name.to_owned()))
    }

    /// A skill, if there is one for this view.
    #[must_use]
    pub fn skill(&self, view: View<'_>, name: &str) -> Option<&Arc<FoundSkill>> {
        let found = &self.entry(name)?.found;
        view.sees(&found.skill.name, found.skill.source).then_some(found)
    }

    /// Where the manifest of a skill was found, whoever may see it.
    #[must_use]
    pub fn manifest_path(&self, name: &SkillName) -> Option<&Path> {
        self.entry(name.as_str()).map(|entry| &*entry.path)
    }

    /// The skills of a view in byte order of their names, those after `after` only.
    pub fn skills<'a>(&'a self, view: View<'a>, after: Option<&str>) -> impl Iterator<Item = &'a FoundSkill> {
        self.listed(view, after).map(|listed| listed.found)
    }

    /// The same, for lists.
    pub fn listed<'a>(&'a self, view: View<'a>, after: Option<&str>) -> impl Iterator<Item = Listed<'a>> {
        let first = after.map_or(0, |after| self.skills.partition_point(|entry| entry.name() <= after));
        self.skills[first..].iter().filter(move |entry| entry.is_seen(view)).map(Entry::listed)
    }

    /// How many skills a view sees.
    #[must_use]
    pub fn count(&self, view: View<'_>) -> usize {
        self.visible(view).count()
    }

    /// The skills of a view that fit a question, best first, equally good ones by name: at most `limit`. The first call
    /// of a catalog makes the index, which takes its time.
    #[must_use]
    pub fn search(&self, view: View<'_>, question: &str, limit: usize) -> Vec<Hit<'_>> {
        let hits = self.index().search(question, &self.visible(view), limit);
        hits.into_iter().map(|hit| Hit { found: self.skills[hit.place].found.as_ref(), score: hit.score }).collect()
    }

    /// The categories of the skills of a view, as people browse them.
    #[must_use]
    pub fn categories(&self, view: View<'_>) -> Vec<Category<'_>> {
        let visible = self.visible(view);
        self.all_categories().seen(|place| visible.sees(place), |place| &self.skills[place].found.skill.card)
    }

    /// The skills of one category that a view sees, as people browse them, those after `after` only.
    pub fn cards<'a>(
        &'a self,
        view: View<'a>,
        category: &str,
        after: Option<Card<'_>>,
    ) -> impl Iterator<Item = Listed<'a>> {
        let places = self.all_categories().places(category);
        let entry = |place: u32| &self.skills[place as usize];
        let first = after.map_or(0, |after| places.partition_point(|place| Card::of(&entry(*place).found) <= after));
        places[first..]
            .iter()
            .map(move |place| entry(*place))
            .filter(move |entry| entry.is_seen(view))
            .map(Entry::listed)
    }

    /// Makes what a search needs, if nobody has asked for it yet. Blocks.
    pub fn prepare(&self) {
        self.index();
    }

    /// An agent by its name.
    #[must_use]
    pub fn agent(&self, name: &str) -> Option<&Agent> {
        self.agents.get(name).map(AsRef::as_ref)
    }

    /// The agents in byte order of their names, those after `after` only.
    pub fn agents<'a>(&'a self, after: Option<&str>) -> impl Iterator<Item = &'a Agent> {
        self.agents
            .range::<str, _>((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
            .map(|(_, agent)| agent.as_ref())
    }

    /// A skill with this package; where several have it, one of them.
    #[must_use]
    pub fn package(&self, digest: &Digest) -> Option<&Arc<FoundSkill>> {
        let digest_at = |place: u32| &self.skills[place as usize].found.skill.digest;
        let packages = self.packages.get_or_init(|| {
            let mut places: Box<[u32]> = (0..).take(self.skills.len()).collect();
            places.sort_unstable_by_key(|place| digest_at(*place));
            places
        });
        let found = packages.binary_search_by_key(&digest, |place| digest_at(*place)).ok()?;
        Some(&self.skills[packages[found] as usize].found)
    }

    /// How the skills differ from those of the catalog before.
    #[must_use]
    pub fn difference(&self, before: Option<&Self>) -> Difference {
        let mut difference = Difference::default();
        // Both are in byte order of their names, and most are the very same.
        let mut old = before.map(|before| before.skills.iter()).into_iter().flatten().peekable();
        for entry in &self.skills {
            let is_same = |old: &&Entry| Arc::ptr_eq(&old.found, &entry.found);
            while old.next_if(|old| !is_same(old) && old.name() < entry.name()).is_some() {
                difference.removed += 1;
            }
            match old.next_if(|old| is_same(old) || old.name() == entry.name()) {
                None => difference.added += 1,
                Some(old) if old.fingerprint != entry.fingerprint => difference.changed += 1,
                Some(_) => {}
            }
        }
        difference.removed += u32::try_from(old.count()).unwrap_or(u32::MAX);
        difference
    }

    /// How many skills there are, whoever sees them.
    pub(super) fn size(&self) -> usize {
        self.skills.len()
    }

    /// The names of the skills that are new, differ from those of the catalog before, or are gone.
    #[must_use]
    pub fn touched(&self, before: &Self) -> Vec<SkillName> {
        let (mut now, mut then) = (self.skills.iter().peekable(), before.skills.iter().peekable());
        let mut touched = Vec::new();
        loop {
            let order = match (now.peek(), then.peek()) {
                (None, None) => return touched,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                // Most are the very same, and their names need not be compared.
                (Some(new), Some(old)) if Arc::ptr_eq(&new.found, &old.found) => Ordering::Equal,
                (Some(new), Some(old)) => new.name().cmp(old.name()),
            };
            let new = if order.is_le() { now.next() } else { None };
            let old = if order.is_ge() { then.next() } else { None };
            if new.map(|entry| entry.fingerprint) != old.map(|entry| entry.fingerprint) {
                touched.extend(new.or(old).map(|entry| entry.found.skill.name.clone()));
            }
        }
    }

    /// The skills with what was made of them, in byte order of their names.
    pub(super) fn known(&self) -> std::slice::Iter<'_, Entry> {
        self.skills.iter()
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        let place = self.skills.binary_search_by(|entry| entry.name().cmp(name)).ok()?;
        Some(&self.skills[place])
    }

    pub(super) fn index(&self) -> &Arc<Index> {
        self.index.get_or_init(|| {
            // It is not needed a second time, and may hold much that is gone.
            let before = self.index_before.lock().unwrap_or_else(PoisonError::into_inner).take();
            Arc::new(Index::new(&self.skills, before.as_deref()))
        })
    }

    fn all_categories(&self) -> &Categories {
        self.categories.get_or_init(|| Categories::of(self.skills.iter().map(|entry| &entry.found.skill)))
    }

    fn visible(&self, view: View<'_>) -> Arc<Visible> {
        self.views.visible(view, self.skills.iter().map(|entry| &entry.found.skill))
    }
}

impl Entry {
    pub(super) fn name(&self) -> &str {
        self.found.skill.name.as_str()
    }

    fn is_seen(&self, view: View<'_>) -> bool {
        view.sees(&self.found.skill.name, self.found.skill.source)
    }

    fn listed(&self) -> Listed<'_> {
        Listed { found: &self.found, memo: &self.memo }
    }
}
