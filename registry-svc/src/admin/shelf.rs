//! What is published of a catalog, as pages for each tier: pure, made once for a catalog.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use serde_json::{Map, Value, json};
use skillyard::digest::Hasher;
use skillyard::skill::Kind;
use skillyard::{Source, View};

use super::place::{self, folded};
use super::protocol::{Entry, MANIFEST, Manifest};
use crate::catalog::Catalog;
use crate::source::{FoundSkill, Tier};

/// The playbooks of a catalog.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) catalog: Arc<Catalog>,
    /// Lowest tier first; made when somebody asks.
    pages: [OnceLock<Pages>; TIERS.len()],
}

const TIERS: [Tier; 5] = [Tier::Free, Tier::Plus, Tier::Pro, Tier::Lab, Tier::Enterprise];

/// What a tier sees.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) manifest: Bytes,
    pub(super) list: Bytes,
    /// Of the skills, not of when they were changed: replicas agree.
    pub(super) version: String,
}

impl Shelf {
    pub(super) fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog, pages: Default::default() }
    }

    /// The pages for a tier.
    pub(super) fn pages(&self, tier: Tier) -> &Pages {
        let index = TIERS.iter().position(|known| *known == tier).unwrap_or_default();
        self.pages[index].get_or_init(|| Pages::of(&self.catalog, tier))
    }

    /// A skill, if there is one for this tier.
    pub(super) fn skill(&self, id: &str, tier: Tier) -> Option<&FoundSkill> {
        self.catalog.skill(View::unfiltered(), id).map(AsRef::as_ref).filter(|found| is_published(found, tier))
    }
}

/// Playbooks of the roots for all, and of the mirror. What is written in a workspace stays there.
fn is_published(found: &FoundSkill, tier: Tier) -> bool {
    let ours = matches!(found.skill.kind, Kind::Playbook(_))
        && matches!(found.skill.source, Source::Override | Source::Cloud)
        && found.skill.name.as_str() != MANIFEST;
    ours && found.tier.is_some_and(|of| of <= tier)
}

impl Pages {
    fn of(catalog: &Catalog, tier: Tier) -> Self {
        let found: Vec<_> =
            catalog.skills(View::unfiltered(), None).filter(|found| is_published(found, tier)).collect();
        let folders = folders(&found);
        let mut hasher = Hasher::default();
        let mut manifest = Manifest::default();
        let mut list = Vec::with_capacity(found.len());
        for (found, folder) in found.iter().zip(folders) {
            let skill = &found.skill;
            let entry = Entry {
                id: skill.name.to_string(),
                hash: skill.digest.to_string(),
                tier: found.tier.map(|tier| tier.to_string()),
                updated_at: Some(humantime::format_rfc3339_seconds(skill.modified_at).to_string().into()),
                dirname: Some(folder),
            };
            for text in [Some(&entry.id), Some(&entry.hash), entry.tier.as_ref(), entry.dirname.as_ref()] {
                let text = text.map(String::as_str).unwrap_or_default();
                hasher.update(&(text.len() as u64).to_be_bytes());
                hasher.update(text.as_bytes());
            }
            list.push(listed(&entry, found));
            manifest.entries.push(entry);
        }
        manifest.version = hasher.finish().to_string();
        let list = json!({"skills": list, "version": manifest.version}).to_string();
        Self { manifest: manifest.write().into(), list: list.into(), version: manifest.version }
    }
}

/// What is said of a skill where all are listed.
fn listed(entry: &Entry, found: &FoundSkill) -> Value {
    let (skill, card) = (&found.skill, &found.skill.card);
    let mut all = Map::new();
    if let Ok(Value::Object(entry)) = serde_json::to_value(entry) {
        all.extend(entry);
    }
    all.insert("name".to_owned(), skill.name.as_str().into());
    all.insert("description".to_owned(), skill.description.as_str().into());
    for (key, text) in [("category", &card.category), ("summary", &card.summary), ("use_when", &card.use_when)] {
        if !text.is_empty() {
            all.insert(key.to_owned(), text.as_str().into());
        }
    }
    all.into()
}

/// The folder of each: its own, unless that is another one's name or folder, or cannot be one everywhere; then its id.
fn folders(found: &[&FoundSkill]) -> Vec<String> {
    let own = |found: &FoundSkill| {
        let name = found.package.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.to_owned()
    };
    let mut wanted: HashMap<String, usize> = HashMap::new();
    for found in found {
        let (id, folder) = (folded(found.skill.name.as_str()), folded(&own(found)));
        *wanted.entry(folder.clone()).or_default() += 1;
        if id != folder {
            *wanted.entry(id).or_default() += 1;
        }
    }
    let alone = |found: &&FoundSkill| {
        let folder = own(found);
        let alone = wanted.get(&folded(&folder)) == Some(&1) && place::folder(&folder).is_ok();
        if alone { folder } else { found.skill.name.to_string() }
    };
    found.iter().map(alone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixture::{agents, skills};
    use crate::catalog::load;
    use std::time::SystemTime;

    fn shelf(scans: &[std::sync::Arc<load::Scanned>]) -> Shelf {
        Shelf::new(Arc::new(load::load(scans, SystemTime::UNIX_EPOCH, None)))
    }

    fn seen(shelf: &Shelf) -> Vec<String> {
        let manifest = Manifest::read(&shelf.pages(Tier::Free).manifest).unwrap();
        manifest.entries.iter().map(|entry| format!("{} in {}", entry.id, entry.directory())).collect()
    }

    #[test]
    fn playbooks_alone_and_no_workspace() {
        let shelf = shelf(&[
            skills("/e", Source::External, &[("run", "run", "1")]),
            skills("/o", Source::Override, &[("a", "a", "1"), ("manifest", "manifest", "1")]),
            skills("/c", Source::Cloud, &[("B dir", "b", "1")]),
            skills("/w", Source::Project, &[("mine", "mine", "1")]),
            agents(Vec::new()),
        ]);
        assert_eq!(seen(&shelf), ["a in a", "b in B dir"]);
        assert!(shelf.skill("b", Tier::Free).is_some());
        for id in ["run", "mine", "manifest", "none"] {
            assert!(shelf.skill(id, Tier::Enterprise).is_none(), "{id}");
        }
    }

    #[test]
    fn no_two_in_one_folder() {
        let shelf = shelf(&[
            skills("/o", Source::Override, &[("x", "x", "1"), ("same", "same", "1")]),
            skills("/c", Source::Cloud, &[("x", "y", "2"), ("SAME", "z", "3"), ("alone", "q", "4")]),
        ]);
        assert_eq!(seen(&shelf), ["q in alone", "same in same", "x in x", "y in y", "z in z"]);
    }

    #[test]
    fn a_version_is_of_the_content() {
        let one = |content| shelf(&[skills("/o", Source::Override, &[("a", "a", content)])]);
        let version = |shelf: &Shelf| shelf.pages(Tier::Free).version.clone();
        assert_eq!(version(&one("1")), version(&one("1")));
        assert_ne!(version(&one("1")), version(&one("2")));
    }
}
