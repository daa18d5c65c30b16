//! Which skills of a catalog one view sees, as a set of their places: what the one filter says, asked once for each skill
//! and kept as long as the catalog.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use skillyard::{Skill, View};

/// Agents for which the answers of a catalog are kept; with more they are asked for anew.
const MOST_KEPT: usize = 256;

/// The skills that a view sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visible {
    count: usize,
    /// A bit for each place; none where everything is seen.
    bits: Option<Box<[u64]>>,
}

impl Visible {
    fn of<'a>(view: View<'_>, skills: impl ExactSizeIterator<Item = &'a Skill>) -> Self {
        let all = skills.len();
        let (mut bits, mut count) = (vec![0; all.div_ceil(64)], 0);
        for (place, skill) in skills.enumerate() {
            if view.sees(&skill.name, skill.source) {
                bits[place / 64] |= 1 << (place % 64);
                count += 1;
            }
        }
        Self { count, bits: (count < all).then(|| bits.into()) }
    }

    /// How many it sees.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether it sees the skill at this place.
    pub(super) fn sees(&self, place: usize) -> bool {
        self.bits.as_ref().is_none_or(|bits| bits[place / 64] >> (place % 64) & 1 == 1)
    }
}

/// What the views of one catalog see, as far as somebody asked.
#[derive(Debug, Default)]
pub(super) struct Views(Mutex<HashMap<String, Arc<Visible>>>);

impl Views {
    /// What a view of the catalog with these skills sees.
    pub(super) fn visible<'a>(&self, view: View<'_>, skills: impl ExactSizeIterator<Item = &'a Skill>) -> Arc<Visible> {
        let Some(agent) = view.agent() else {
            return Arc::new(Visible { count: skills.len(), bits: None });
        };
        // A poisoned lock holds whole values all the same.
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept().get(&agent.name).map(Arc::clone);
        known.unwrap_or_else(|| {
            let visible = Arc::new(Visible::of(view, skills));
            let mut kept = kept();
            if kept.len() >= MOST_KEPT {
                kept.clear();
            }
            kept.insert(agent.name.clone(), Arc::clone(&visible));
            visible
        })
    }
}
