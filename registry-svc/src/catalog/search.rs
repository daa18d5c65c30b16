//! Finding skills by their names and descriptions, best first by BM25. It is asked for one view: what a view does not
//! see has no part in anything, not even in how rare a word is.
//!
//! The index has two parts: a large one that is kept from catalog to catalog, and a small one with what is new since.

use std::cmp::Ordering;
use std::sync::Arc;

use super::segment::Segment;
use super::snapshot::Entry;
use super::visible::Visible;
use super::words;

/// The usual constants: how soon more of the same word is no better, and how much a long text counts against it.
const K1: f64 = 1.2;
const B: f64 = 0.75;
/// What another form of a word counts, of what the word itself does.
const OTHER_FORM: f32 = 0.5;
/// The small part may grow to this share of the large one before both become one.
const SHARE: usize = 8;
/// And to this many, whatever the share.
const ALWAYS_SMALL: usize = 64;

/// The index of one catalog's skills.
#[derive(Debug)]
pub(super) struct Index {
    parts: [Part; 2],
}

/// A segment, and which of its skills are those of the catalog.
#[derive(Debug)]
struct Part {
    segment: Arc<Segment>,
    /// The place in the catalog of each of the segment's skills; `GONE` where it has none any more.
    places: Box<[u32]>,
}

const GONE: u32 = u32::MAX;

/// A skill that was found: its place in the catalog, and how well it fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hit {
    pub(super) place: usize,
    pub(super) score: f64,
}

impl Index {
    /// The index of these skills, which are in byte order of their names. What `before` has of them is not read again.
    pub(super) fn new(skills: &[Entry], before: Option<&Self>) -> Self {
        if let Some(before) = before {
            let (places, fresh) = places(&before.parts[0].segment, skills);
            let kept = places.iter().filter(|place| **place != GONE).count();
            if fresh.len() <= ALWAYS_SMALL.max(kept / SHARE) && kept * 2 >= places.len() {
                let large = Part { segment: Arc::clone(&before.parts[0].segment), places };
                return Self { parts: [large, Part::of(skills, fresh)] };
            }
        }
        let all = (0..u32::try_from(skills.len()).unwrap_or(GONE)).collect();
        Self { parts: [Part::of(skills, all), Part::of(skills, Vec::new())] }
    }

    /// The best of those that the view sees, best first; equally good ones by name.
    pub(super) fn search(&self, question: &str, visible: &Visible, limit: usize) -> Vec<Hit> {
        let words = words::words_of_question(question);
        let mut sheets: Vec<_> = self.parts.iter().map(|part| Sheet::new(part, visible)).collect();
        let skills = visible.count() as f64;
        let length: u64 = sheets.iter().map(|sheet| sheet.length).sum();
        let average = (length as f64 / skills).max(1.0);
        for word in &words {
            // How many skills have it is known only when both parts were looked through.
            let having: usize = sheets.iter_mut().map(|sheet| sheet.look_for(word)).sum();
            let having = having as f64;
            let rarity = (1.0 + (skills - having + 0.5) / (having + 0.5)).ln();
            for sheet in &mut sheets {
                sheet.score(rarity, average);
            }
        }
        let mut hits: Vec<_> = sheets.iter().flat_map(Sheet::hits).collect();
        if hits.len() > limit {
            if limit == 0 {
                return Vec::new();
            }
            hits.select_nth_unstable_by(limit - 1, better);
            hits.truncate(limit);
        }
        hits.sort_unstable_by(better);
        hits
    }

    /// How much memory it holds, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.segment.bytes() + size_of_val(&*part.places)).sum()
    }

    /// Whether both have the same large part.
    #[cfg(test)]
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.parts[0].segment, &other.parts[0].segment)
    }
}

/// The places in the catalog are in byte order of the names.
fn better(a: &Hit, b: &Hit) -> Ordering {
    b.score.total_cmp(&a.score).then(a.place.cmp(&b.place))
}

impl Part {
    fn of(skills: &[Entry], places: Vec<u32>) -> Self {
        let segment = Segment::new(places.iter().map(|place| &skills[*place as usize]));
        Self { segment: Arc::new(segment), places: places.into() }
    }
}

/// Where the skills of a segment are now, and the places of those that it does not have. Both are in order of names.
fn places(segment: &Segment, skills: &[Entry]) -> (Box<[u32]>, Vec<u32>) {
    let (mut places, mut fresh) = (vec![GONE; segment.len()], Vec::new());
    let mut number = 0;
    for (place, entry) in (0..).zip(skills) {
        let name = entry.found.skill.name.as_str();
        while number < places.len() && segment.name(number) < name {
            number += 1;
        }
        if number < places.len() && segment.name(number) == name && segment.is_same(number, entry) {
            places[number] = place;
        } else {
            fresh.push(place);
        }
    }
    (places.into(), fresh)
}

/// What one search notes of one part.
struct Sheet<'a> {
    part: &'a Part,
    visible: &'a Visible,
    /// Of all texts that are visible.
    length: u64,
    /// How often each skill has the word that is looked for now, and which have it at all.
    counts: Vec<f32>,
    having: Vec<u32>,
    /// The score so far, and which have one.
    scores: Vec<f64>,
    scored: Vec<u32>,
}

impl<'a> Sheet<'a> {
    fn new(part: &'a Part, visible: &'a Visible) -> Self {
        let lengths = part.segment.lengths();
        let seen = part.places.iter().zip(lengths).filter(|(place, _)| is_seen(**place, visible));
        let length = seen.map(|(_, length)| u64::from(*length)).sum();
        let (counts, scores) = (vec![0.0; lengths.len()], vec![0.0; lengths.len()]);
        Self { part, visible, length, counts, having: Vec::new(), scores, scored: Vec::new() }
    }

    /// Counts a word and its other forms, and says how many skills have one of them.
    fn look_for(&mut self, word: &str) -> usize {
        let part = self.part;
        part.segment.each_form(word, |postings, is_the_word| {
            let worth = if is_the_word { 1.0 } else { OTHER_FORM };
            for (number, count) in postings {
                if !is_seen(part.places[number as usize], self.visible) {
                    continue;
                }
                let so_far = &mut self.counts[number as usize];
                if *so_far == 0.0 {
                    self.having.push(number);
                }
                *so_far += worth * f32::from(count);
            }
        });
        self.having.len()
    }

    /// Adds what the word that was looked for is worth.
    fn score(&mut self, rarity: f64, average: f64) {
        for number in self.having.drain(..) {
            let count = f64::from(std::mem::take(&mut self.counts[number as usize]));
            let length = f64::from(self.part.segment.lengths()[number as usize]);
            let score = &mut self.scores[number as usize];
            if *score == 0.0 {
                self.scored.push(number);
            }
            *score += rarity * count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length / average));
        }
    }

    fn hits(&self) -> impl Iterator<Item = Hit> {
        self.scored.iter().map(|number| Hit {
            place: self.part.places[*number as usize] as usize,
            score: self.scores[*number as usize],
        })
    }
}

fn is_seen(place: u32, visible: &Visible) -> bool {
    place != GONE && visible.sees(place as usize)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{agent, catalog, described};
    use super::super::{Catalog, load};
    use super::*;
    use crate::source::{Candidate, FoundSkill};
    use proptest::prelude::*;
    use skillyard::View;
    use std::time::SystemTime;

    fn skills(found: &[(&str, &str)]) -> Vec<Candidate<FoundSkill>> {
        found.iter().map(|(name, description)| described(name, (*description).to_owned())).collect()
    }

    fn names(catalog: &Catalog, question: &str) -> Vec<String> {
        found(catalog, View::unfiltered(), question).into_iter().map(|(name, _)| name).collect()
    }

    fn found(catalog: &Catalog, view: View<'_>, question: &str) -> Vec<(String, u64)> {
        let hits = catalog.search(view, question, 1000);
        assert!(hits.iter().all(|hit| hit.score > 0.0) && hits.is_sorted_by(|a, b| a.score >= b.score), "{hits:?}");
        hits.iter().map(|hit| (hit.found.skill.name.to_string(), hit.score.to_bits())).collect()
    }

    fn shelf() -> Catalog {
        let found = skills(&[
            ("certificate_check", "Says when a TLS certificate of a host expires."),
            ("disk_cleaner", "Removes old files where a disk is full."),
            ("disk_usage", "Shows what takes the place on a disk."),
            ("log_summary", "Counts what a log file says, and cleaning up nothing."),
            ("log_zh", "分析日志文件，找出错误。数据清洗"),
            ("log_ja", "ログファイルを集計して、エラーを探す"),
            ("log_ko", "로그 파일을 분석합니다"),
            ("log_th", "วิเคราะห์ไฟล์บันทึก"),
            ("sql_query", "Asks PostgreSQL databases; reads only. Café naïve."),
        ]);
        catalog(found, Vec::new())
    }

    #[test]
    fn what_is_found() {
        let shelf = shelf();
        for (question, best) in [
            ("disk_cleaner", "disk_cleaner"),
            ("disk cleaner", "disk_cleaner"),
            ("clean up a disk", "disk_cleaner"),
            ("DISK-USAGE!", "disk_usage"),
            ("which certificates are expiring", "certificate_check"),
            ("cert", "certificate_check"),
            ("query a database", "sql_query"),
            ("postgresql", "sql_query"),
            ("cafe", "sql_query"),
            ("日志", "log_zh"),
            ("数据清洗", "log_zh"),
            ("洗", "log_zh"),
            ("エラー", "log_ja"),
            ("ｴﾗｰ", "log_ja"),
            ("분석", "log_ko"),
            ("บันทึก", "log_th"),
        ] {
            assert_eq!(names(&shelf, question).first().map(String::as_str), Some(best), "{question}");
        }
        for nothing in ["", "!!", "quantum", "的", "zz top"] {
            assert_eq!(names(&shelf, nothing), [""; 0], "{nothing}");
        }
        assert_eq!(shelf.search(View::unfiltered(), "log", 2).len(), 2);
        assert_eq!(shelf.search(View::unfiltered(), "log", 0).len(), 0);
    }

    #[test]
    fn equally_good_ones_come_by_name() {
        let twins = ["b", "d", "a", "c"].map(|name| (name, "the same text"));
        assert_eq!(names(&catalog(skills(&twins), Vec::new()), "text"), ["a", "b", "c", "d"]);
    }

    #[test]
    fn the_word_itself_is_better_than_another_form_and_a_name_better_than_a_description() {
        let shelf = catalog(
            skills(&[
                ("a", "about testers of things"),
                ("b", "about tests of things"),
                ("test", "about some other things"),
            ]),
            Vec::new(),
        );
        assert_eq!(names(&shelf, "tests"), ["test", "b", "a"]);
    }

    fn next(catalog: &Catalog, found: &[Candidate<FoundSkill>]) -> Catalog {
        let scan = crate::source::Scan::new(
            super::super::fixture::root("/e", crate::source::RootKind::Skills(skillyard::Source::External)),
            found.to_vec(),
        );
        load::load(&[Arc::new(load::Scanned::Skills(scan))], SystemTime::UNIX_EPOCH, Some(catalog))
    }

    #[test]
    fn what_changes_little_is_not_indexed_again() {
        let mut many: Vec<_> = (0..1000).map(|i| described(&format!("s{i:04}"), format!("does thing {i}"))).collect();
        let first = catalog(many.clone(), Vec::new());
        first.prepare();
        many[7] = described("s0007", "cleans quietly".into());
        many.remove(500);
        many.push(described("t", "quietly waits".into()));
        let second = next(&first, &many);
        assert!(second.index().shares_with(first.index()));
        assert_eq!(names(&second, "quietly"), ["s0007", "t"]);
        assert_eq!(names(&second, "7"), [""; 0]);
        assert_eq!(names(&second, "500"), [""; 0]);
        assert_eq!(names(&first, "quietly"), [""; 0]);
        let third = next(&second, &many);
        assert!(third.index().shares_with(first.index()));
        let other: Vec<_> = (0..1000).map(|i| described(&format!("u{i:04}"), "another".into())).collect();
        let last = next(&third, &other);
        assert!(!last.index().shares_with(first.index()));
        assert_eq!(names(&last, "another").len(), 1000);
        assert!(last.index().bytes() < 200 * 1000, "{}", last.index().bytes());
    }

    prop_compose! {
        fn a_shelf()(texts in proptest::collection::btree_map("[ab]{1,2}(_[ab])?", "([a-c]{1,4} ){0,5}", 0..12)) -> Vec<(String, String)> {
            texts.into_iter().collect()
        }
    }

    proptest! {
        /// Whatever came before, and whoever else is there.
        #[test]
        fn an_index_that_was_carried_on_and_filtered_is_as_one_of_nothing_else(
            shelves in proptest::collection::vec(a_shelf(), 1..5),
            hidden in a_shelf(),
            questions in proptest::collection::vec("([a-c]{1,4} ){1,3}", 1..4),
        ) {
            let mut carried: Option<Catalog> = None;
            for shelf in &shelves {
                let seen: Vec<_> = shelf.iter().map(|(name, text)| described(name, text.clone())).collect();
                let mut all = seen.clone();
                // These names none of the others has.
                all.extend(hidden.iter().map(|(name, text)| described(&format!("{name}0"), text.clone())));
                all.sort_by(|a, b| a.name.cmp(&b.name));
                let alone = catalog(seen.clone(), Vec::new());
                let both = match &carried {
                    None => catalog(all, Vec::new()),
                    Some(before) => next(before, &all),
                };
                both.prepare();
                let names: Vec<_> = seen.iter().map(|candidate| candidate.name.clone()).chain(["none".into()]).collect();
                let mut who = agent("who", &names);
                Arc::make_mut(who.value.as_mut().unwrap()).disallowed_skills.clear();
                let who = who.value.unwrap();
                for question in &questions {
                    let expected = found(&alone, View::unfiltered(), question);
                    prop_assert_eq!(found(&both, View::of(&who), question), expected);
                }
                carried = Some(both);
            }
        }
    }
}
