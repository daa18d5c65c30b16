//! Which skills changed from version to version, as far back as it is worth remembering: the names alone, so that no old
//! catalog is kept for the sake of a watcher that is behind.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use skillyard::{Digest, SkillName};

use super::snapshot::Catalog;

/// Versions that are remembered.
const MOST_STEPS: usize = 256;
/// Names that are remembered, all steps together; with more skills, as many as a quarter of them.
const MOST_NAMES: usize = 4096;

/// The last steps to a version. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The oldest first.
    steps: VecDeque<Step>,
    names: usize,
}

/// From one version to the next.
#[derive(Clone, Debug)]
struct Step {
    from: Digest,
    /// Of the skills that are new, other, or gone after it.
    touched: Arc<[SkillName]>,
}

impl Changes {
    /// Adds the step from one catalog to another, and forgets those that are no longer worth it.
    pub fn add(&mut self, before: &Catalog, after: &Catalog) {
        let touched: Arc<[_]> = after.touched(before).into();
        self.names += touched.len();
        self.steps.push_back(Step { from: *before.version(), touched });
        let most = MOST_NAMES.max(after.size() / 4);
        while self.names > most || self.steps.len() > MOST_STEPS {
            let Some(oldest) = self.steps.pop_front() else { break };
            self.names -= oldest.touched.len();
        }
    }

    /// Whether it is known what changed since this version.
    #[must_use]
    pub fn remembers(&self, version: &Digest) -> bool {
        self.steps.iter().any(|step| step.from == *version)
    }

    /// The names of all skills that may differ from those of this version; `None` where it is not remembered.
    #[must_use]
    pub fn since(&self, version: &Digest) -> Option<BTreeSet<&SkillName>> {
        // A version that comes back is in it more than once: nothing before the last time matters.
        let first = self.steps.iter().rposition(|step| step.from == *version)?;
        Some(self.steps.range(first..).flat_map(|step| step.touched.iter()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::fixture::{catalog, described};

    fn of(skills: &[(&str, &str)]) -> Catalog {
        catalog(skills.iter().map(|(name, text)| described(name, (*text).into())).collect(), Vec::new())
    }

    fn since(changes: &Changes, catalog: &Catalog) -> Option<Vec<String>> {
        Some(changes.since(catalog.version())?.into_iter().map(ToString::to_string).collect())
    }

    #[test]
    fn steps_add_up() {
        let mut changes = Changes::default();
        let first = of(&[("a", "1"), ("b", "1"), ("c", "1")]);
        let second = of(&[("a", "1"), ("b", "2"), ("c", "1")]);
        let third = of(&[("b", "2"), ("c", "1"), ("d", "1")]);
        changes.add(&first, &second);
        changes.add(&second, &third);
        assert_eq!(since(&changes, &first).unwrap(), ["a", "b", "d"]);
        assert_eq!(since(&changes, &second).unwrap(), ["a", "d"]);
        assert_eq!(since(&changes, &third), None, "from the last version there is no step yet");
        // One that goes and comes back.
        changes.add(&third, &second);
        changes.add(&second, &third);
        assert_eq!(since(&changes, &second).unwrap(), ["a", "d"]);
        assert_eq!(since(&changes, &of(&[])), None);
    }

    #[test]
    fn what_is_not_worth_it_is_forgotten() {
        let mut changes = Changes::default();
        let versions: Vec<_> = (0..MOST_STEPS + 3).map(|i| of(&[("a", &i.to_string())])).collect();
        for pair in versions.windows(2) {
            changes.add(&pair[0], &pair[1]);
        }
        assert_eq!(since(&changes, &versions[1]), None);
        assert_eq!(since(&changes, &versions[2]).unwrap(), ["a"]);
        let names: Vec<_> = (0..MOST_NAMES).map(|i| format!("s{i:04}")).collect();
        let many = of(&names.iter().map(|name| (name.as_str(), "1")).collect::<Vec<_>>());
        let last = versions.last().unwrap();
        changes.add(last, &many);
        assert_eq!(since(&changes, last), None, "nearly all of it is new: with `a` gone it is one more than the most");
        let fewer = of(&names.iter().skip(1).map(|name| (name.as_str(), "1")).collect::<Vec<_>>());
        changes.add(&many, &fewer);
        assert_eq!(since(&changes, &many).unwrap(), ["s0000"]);
    }

    proptest::proptest! {
        #[test]
        fn they_are_the_difference(
            before in proptest::collection::btree_map("[a-e]{1,2}", "[xy]", 0..12),
            after in proptest::collection::btree_map("[a-e]{1,2}", "[xy]", 0..12),
        ) {
            let catalog = |skills: &std::collections::BTreeMap<String, String>| {
                of(&skills.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>())
            };
            let touched = catalog(&after).touched(&catalog(&before));
            let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
            let expected: Vec<_> = names.into_iter().filter(|name| before.get(*name) != after.get(*name)).collect();
            proptest::prop_assert_eq!(touched.iter().map(SkillName::as_str).collect::<Vec<_>>(), expected);
        }
    }
}
