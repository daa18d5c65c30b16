//! Skills as people browse them: categories by their smallest order, cards by theirs, what has none last. Skills that
//! name no category are in none.

use std::collections::BTreeMap;

use skillyard::Skill;
use skillyard::skill;

use crate::source::FoundSkill;

/// A category of which a view sees at least one skill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Category<'a> {
    /// As its skills write it.
    pub name: &'a str,
    /// The smallest order among the skills that are seen; none where none of them has one.
    pub order: Option<i32>,
    /// How many skills are seen.
    pub skills: usize,
}

/// Where a card stands in its category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Card<'a> {
    order: Order,
    name: &'a str,
}

/// None comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order(bool, i32);

impl Order {
    fn of(order: Option<i32>) -> Self {
        Self(order.is_none(), order.unwrap_or_default())
    }
}

impl<'a> Card<'a> {
    /// The place of a skill with this order and name.
    #[must_use]
    pub fn new(order: Option<i32>, name: &'a str) -> Self {
        Self { order: Order::of(order), name }
    }

    /// The place of this skill.
    #[must_use]
    pub fn of(found: &'a FoundSkill) -> Self {
        Self::of_skill(&found.skill)
    }

    fn of_skill(skill: &'a Skill) -> Self {
        Self::new(skill.card.category_order, skill.name.as_str())
    }
}

/// The categories of a catalog: by name, the places of their skills in the order of their cards.
#[derive(Debug)]
pub(super) struct Categories(BTreeMap<Box<str>, Box<[u32]>>);

impl Categories {
    pub(super) fn of<'a>(skills: impl Iterator<Item = &'a Skill>) -> Self {
        let mut cards: BTreeMap<&str, Vec<(Card<'_>, u32)>> = BTreeMap::new();
        for (place, skill) in (0..).zip(skills).filter(|(_, skill)| !skill.card.category.is_empty()) {
            cards.entry(&skill.card.category).or_default().push((Card::of_skill(skill), place));
        }
        let sorted = cards.into_iter().map(|(name, mut cards)| {
            cards.sort_unstable();
            (name.into(), cards.into_iter().map(|(_, place)| place).collect())
        });
        Self(sorted.collect())
    }

    /// The places of the skills of a category.
    pub(super) fn places(&self, category: &str) -> &[u32] {
        self.0.get(category).map_or(&[], |places| places)
    }

    /// The categories with skills that are seen, in order.
    pub(super) fn seen<'a>(
        &'a self,
        sees: impl Fn(usize) -> bool,
        card: impl Fn(usize) -> &'a skill::Card,
    ) -> Vec<Category<'a>> {
        let seen = |name: &'a str, places: &[u32]| {
            let mut places = places.iter().map(|place| *place as usize).filter(|place| sees(*place));
            // The first card has the smallest order.
            let first = places.next()?;
            Some(Category { name, order: card(first).category_order, skills: 1 + places.count() })
        };
        let mut categories: Vec<_> = self.0.iter().filter_map(|(name, places)| seen(name, places)).collect();
        categories.sort_by_key(|category| (Order::of(category.order), category.name));
        categories
    }
}
