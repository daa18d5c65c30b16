//! What a sync is to do: a server's manifest beside what is here. Pure: touches no disk and asks nobody.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::place::{self, folded};
use super::protocol::{Entry, MANIFEST, Manifest};
use crate::source::{Tier, codes, shortened};
use skillyard::name::MAX_CHARS;

/// Most characters of a message.
const MAX_MESSAGE: usize = 1000;

/// What is here.
#[derive(Clone, Debug, Default)]
pub(super) struct Here {
    /// What earlier syncs made, by id.
    pub(super) entries: BTreeMap<String, Entry>,
    /// Those of them whose folder is there as it was made.
    pub(super) intact: HashSet<String>,
    /// The folders of all of them.
    pub(super) made: HashSet<String>,
    /// Everything that lies where folders of skills do.
    pub(super) taken: HashSet<String>,
}

/// What to do with each id.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// As it is here already; perhaps in another folder.
    pub(super) keep: Vec<Entry>,
    /// To be fetched.
    pub(super) fetch: Vec<Entry>,
    /// Not published any more, or not for this tier.
    pub(super) remove: Vec<String>,
    /// Not to be had, and why. What is here of it stays as it is.
    pub(super) refused: Vec<Refused>,
}

/// An id that is not synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) id: String,
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Refused {
    pub(super) fn failed(id: &str, message: impl Into<String>) -> Self {
        Self::with(codes::E_SYNC_SKILL, id, message.into())
    }

    /// Both may be as long as a server likes.
    fn with(code: &'static str, id: &str, message: String) -> Self {
        Self { id: shortened(id.to_owned(), MAX_CHARS), code, message: shortened(message, MAX_MESSAGE) }
    }
}

/// What to do about a manifest.
pub(super) fn plan(remote: &Manifest, here: &Here, tier: Tier) -> Plan {
    let mut plan = Plan::default();
    let repeated = remote.repeated();
    let mut seen = BTreeSet::new();
    let mut wanted: Vec<&Entry> = Vec::new();
    let mut above = BTreeSet::new();
    // A folder that is called as a published id is that id's, also where it cannot be had now.
    let called: HashSet<String> =
        remote.entries.iter().filter(|entry| entry.directory() == entry.id).map(|entry| folded(&entry.id)).collect();
    for entry in remote.entries.iter().filter(|entry| seen.insert(entry.id.as_str())) {
        if let Some(code) = not_for(entry.tier.as_deref(), tier) {
            let of = entry.tier.as_deref().unwrap_or_default();
            let message = format!("the skill {:?} is for tier {of:?}, and this registry has --tier {tier}", entry.id);
            plan.refused.push(Refused::with(code, &entry.id, message));
            above.insert(entry.id.as_str());
        } else if let Err(message) = acceptable(entry, repeated.contains(entry.id.as_str()), &called, here) {
            plan.refused.push(Refused::failed(&entry.id, message));
        } else {
            wanted.push(entry);
        }
    }
    // An entry that cannot be read may be any of those that seem to be gone.
    let certain = remote.unreadable.is_empty();
    plan.remove.extend(
        here.entries
            .keys()
            .filter(|id| above.contains(id.as_str()) || (certain && !seen.contains(id.as_str())))
            .cloned(),
    );
    for message in &remote.unreadable {
        plan.refused.push(Refused::failed("", message.clone()));
    }
    let removed: HashSet<&str> = plan.remove.iter().map(String::as_str).collect();
    let (settled, refused) = settle(wanted, here, &removed);
    plan.refused.extend(refused);
    for entry in settled {
        let same = here.entries.get(&entry.id).is_some_and(|old| old.hash == entry.hash);
        let list = if same && here.intact.contains(&entry.id) { &mut plan.keep } else { &mut plan.fetch };
        list.push(entry.clone());
    }
    plan
}

/// The code to report an entry with that is not for us.
fn not_for(of: Option<&str>, tier: Tier) -> Option<&'static str> {
    // A tier that nobody knows may be above all that are known.
    let allowed = of.is_none_or(|of| of.parse::<Tier>().is_ok_and(|of| of <= tier));
    (!allowed).then_some(codes::W_SYNC_TIER)
}

fn acceptable(entry: &Entry, repeated: bool, called: &HashSet<String>, here: &Here) -> Result<(), String> {
    if repeated {
        return Err("the manifest has the id more than once: publish it once".to_owned());
    }
    if entry.id.parse::<skillyard::SkillName>().is_err() || entry.id.contains('\\') {
        return Err("the id cannot be a skill's name: publish it under another one".to_owned());
    }
    if entry.id == MANIFEST {
        return Err("an id \"manifest\" cannot be asked for: publish it under another one".to_owned());
    }
    let directory = entry.directory();
    place::folder(directory).map_err(|error| format!("its folder is refused: {error}"))?;
    let has = here.entries.get(&entry.id).is_some_and(|old| old.directory() == directory);
    if !has && entry.id != directory && called.contains(&folded(directory)) {
        return Err(format!("its folder {directory:?} is called as another skill: publish another dirname"));
    }
    if here.taken.contains(directory) && !here.made.contains(directory) {
        return Err(format!(
            "the folder {directory:?} is there already, and no sync made it: move it away, or publish another dirname"
        ));
    }
    Ok(())
}

/// One id a folder: the one that has it, else the one that is called so, else the first. The others are refused, and one
/// that is refused keeps the folder that it has.
pub(super) fn settle<'a>(
    wanted: Vec<&'a Entry>,
    here: &Here,
    removed: &HashSet<&str>,
) -> (Vec<&'a Entry>, Vec<Refused>) {
    let old_folder = |id: &str| here.entries.get(id).map(|old| folded(old.directory()));
    let mut left: HashMap<&str, &Entry> = wanted.iter().map(|entry| (entry.id.as_str(), *entry)).collect();
    let mut refused = Vec::new();
    loop {
        // What stays where it is, whoever else wants to be there.
        let held: HashMap<String, &str> = here
            .entries
            .keys()
            .map(String::as_str)
            .filter(|id| !left.contains_key(id) && !removed.contains(id))
            .filter_map(|id| Some((old_folder(id)?, id)))
            .collect();
        let mut owners: HashMap<String, &Entry> = HashMap::new();
        let mut lost: Vec<(&Entry, String)> = Vec::new();
        for entry in wanted.iter().filter(|entry| left.contains_key(entry.id.as_str())) {
            let folder = folded(entry.directory());
            if let Some(owner) = held.get(&folder) {
                lost.push((entry, (*owner).to_owned()));
                continue;
            }
            let rank = |entry: &Entry| match (old_folder(&entry.id).as_ref() == Some(&folder), entry.id.as_str()) {
                (true, _) => 0,
                (false, id) if folded(id) == folder => 1,
                _ => 2,
            };
            match owners.get(&folder) {
                Some(owner) if rank(owner) <= rank(entry) => lost.push((entry, owner.id.clone())),
                Some(owner) => {
                    lost.push((owner, entry.id.clone()));
                    owners.insert(folder, entry);
                }
                None => {
                    owners.insert(folder, entry);
                }
            }
        }
        if lost.is_empty() {
            return (wanted.into_iter().filter(|entry| left.contains_key(entry.id.as_str())).collect(), refused);
        }
        for (entry, owner) in lost {
            left.remove(entry.id.as_str());
            let message = format!(
                "its folder {:?} is that of the skill {owner:?}, or differs from it in case alone: publish another dirname",
                entry.directory()
            );
            refused.push(Refused::failed(&entry.id, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> Entry {
        let mut words = text.split_whitespace();
        let mut word = || words.next().filter(|word| *word != "-").map(ToOwned::to_owned);
        Entry { id: word().unwrap(), hash: word().unwrap(), dirname: word(), tier: word(), updated_at: None }
    }

    fn here(entries: &[&str], others: &[&str]) -> Here {
        let entries: Vec<_> = entries.iter().map(|text| entry(text)).collect();
        let taken =
            entries.iter().map(|entry| entry.directory().to_owned()).chain(others.iter().map(ToString::to_string));
        Here {
            taken: taken.collect(),
            made: entries.iter().map(|entry| entry.directory().to_owned()).collect(),
            intact: entries.iter().map(|entry| entry.id.clone()).collect(),
            entries: entries.into_iter().map(|entry| (entry.id.clone(), entry)).collect(),
        }
    }

    fn planned(remote: &[&str], here: &Here) -> [Vec<String>; 4] {
        let manifest = Manifest { entries: remote.iter().map(|text| entry(text)).collect(), ..Manifest::default() };
        let plan = plan(&manifest, here, Tier::Pro);
        let ids = |entries: &[Entry]| entries.iter().map(|entry| entry.id.clone()).collect();
        let refused = plan.refused.iter().map(|refused| refused.id.clone()).collect();
        [ids(&plan.keep), ids(&plan.fetch), plan.remove, refused]
    }

    fn is(keep: &[&str], fetch: &[&str], remove: &[&str], refused: &[&str]) -> [Vec<String>; 4] {
        [keep, fetch, remove, refused].map(|ids| ids.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn only_what_differs_is_fetched() {
        let here = here(&["a 1", "b 1", "c 1"], &[]);
        assert_eq!(planned(&["a 1", "b 2", "d 1"], &here), is(&["a"], &["b", "d"], &["c"], &[]));
        let damaged = Here { intact: HashSet::new(), ..here };
        assert_eq!(planned(&["a 1"], &damaged), is(&[], &["a"], &["b", "c"], &[]));
    }

    #[test]
    fn tiers() {
        let here = here(&["b 1"], &[]);
        let remote = ["a 1 - community", "b 1 - lab", "c 1 - pro", "d 1 - gold", "e 1 - Enterprise"];
        assert_eq!(planned(&remote, &here), is(&[], &["a", "c"], &["b"], &["b", "d", "e"]));
    }

    #[test]
    fn ids_and_folders_that_are_refused() {
        let here = here(&["a 1", "twice 1"], &["mine"]);
        let remote =
            ["a 1", "twice 1", "twice 2", "up 1 ../x", "back 1 a\\b", "mine 1", "m 1 mine", "manifest 1", "x 1 .x"];
        let refused = ["twice", "up", "back", "mine", "m", "manifest", "x"];
        assert_eq!(planned(&remote, &here), is(&["a"], &[], &[], &refused));
    }

    #[test]
    fn one_id_a_folder() {
        let nothing = here(&[], &[]);
        assert_eq!(planned(&["b 1 a", "a 1"], &nothing), is(&[], &["a"], &[], &["b"]), "the one that is called so");
        assert_eq!(planned(&["b 1 x", "a 1 X"], &nothing), is(&[], &["b"], &[], &["a"]), "else the first");
        let has = here(&["b 1 a"], &[]);
        assert_eq!(planned(&["a 1", "b 1 a"], &has), is(&["b"], &[], &[], &["a"]), "before all the one that has it");
        assert_eq!(planned(&["a 1", "b 1 c"], &has), is(&["b"], &["a"], &[], &[]), "unless it moves");
        assert_eq!(planned(&["a 1"], &has), is(&[], &["a"], &["b"], &[]), "or goes");
        // b may not move to c, so it keeps a, so the other cannot have it.
        let both = here(&["b 1 a", "c 1"], &[]);
        assert_eq!(planned(&["a 1", "b 1 c", "c 1"], &both), is(&["c"], &[], &[], &["b", "a"]));
        let swap = here(&["a 1 x", "b 1 y"], &[]);
        assert_eq!(planned(&["a 1 y", "b 1 x"], &swap), is(&["a", "b"], &[], &[], &[]));
    }

    #[test]
    fn an_entry_that_cannot_be_read_keeps_all_that_seem_gone() {
        let manifest = Manifest { unreadable: vec!["?".into()], ..Manifest::default() };
        let plan = plan(&manifest, &here(&["a 1"], &[]), Tier::Free);
        assert_eq!((plan.remove.len(), plan.refused.len()), (0, 1));
    }
}
