//! An inverted index: for each word of names and descriptions, the skills that have it. It never changes.

use std::collections::HashMap;

use super::snapshot::Entry;
use super::words;

/// How often a word of the name counts: what a skill is called says most.
const NAME: u8 = 3;

/// Skills, and which words they have. They are numbered from 0, in byte order of their names.
#[derive(Debug)]
pub(super) struct Segment {
    names: Words,
    /// The beginning of each one's fingerprint.
    prints: Box<[u64]>,
    /// How many words the texts of each have.
    lengths: Box<[u16]>,
    /// In byte order.
    words: Words,
    /// Where the postings of each word end; and of all words one after the other: which skill, and how often.
    postings: Box<[u32]>,
    numbers: Box<[u32]>,
    counts: Box<[u8]>,
}

impl Segment {
    /// An index of these, which are in byte order of their names.
    pub(super) fn new<'a>(skills: impl Iterator<Item = &'a Entry> + Clone) -> Self {
        let mut ids: HashMap<Box<str>, u32> = HashMap::new();
        // Of every skill in turn: which word, and how often.
        let mut found: Vec<(u32, u32, u8)> = Vec::new();
        let mut lengths = Vec::new();
        let mut own: Vec<(u32, u8)> = Vec::new();
        for (number, entry) in (0..).zip(skills.clone()) {
            own.clear();
            let skill = &entry.found.skill;
            for (text, worth) in [(skill.name.as_str(), NAME), (&skill.description, 1)] {
                words::each_word(text, |word| {
                    let next = u32::try_from(ids.len()).unwrap_or(u32::MAX);
                    let id = match ids.get(word) {
                        Some(id) => *id,
                        None => *ids.entry(word.into()).or_insert(next),
                    };
                    own.push((id, worth));
                });
            }
            lengths.push(u16::try_from(own.len()).unwrap_or(u16::MAX));
            own.sort_unstable();
            for same in own.chunk_by(|a, b| a.0 == b.0) {
                let count = same.iter().fold(0_u8, |count, (_, worth)| count.saturating_add(*worth));
                found.push((same[0].0, number, count));
            }
        }
        let mut words: Vec<_> = ids.into_iter().collect();
        words.sort_unstable();
        let mut ranks = vec![0_u32; words.len()];
        for (rank, (_, id)) in (0..).zip(&words) {
            ranks[*id as usize] = rank;
        }
        let mut postings = vec![0_u32; words.len()];
        for (id, _, _) in &found {
            postings[ranks[*id as usize] as usize] += 1;
        }
        let mut starts = Vec::with_capacity(words.len());
        let mut end = 0;
        for count in &mut postings {
            starts.push(end as usize);
            end += *count;
            *count = end;
        }
        let (mut numbers, mut counts) = (vec![0; found.len()], vec![0; found.len()]);
        for (id, number, count) in found {
            let at = &mut starts[ranks[id as usize] as usize];
            (numbers[*at], counts[*at]) = (number, count);
            *at += 1;
        }
        Self {
            names: Words::of(skills.clone().map(|entry| entry.found.skill.name.as_str())),
            prints: skills.map(print).collect(),
            lengths: lengths.into(),
            words: Words::of(words.iter().map(|(word, _)| word.as_ref())),
            postings: postings.into(),
            numbers: numbers.into(),
            counts: counts.into(),
        }
    }

    /// How many skills it has.
    pub(super) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// The name of a skill.
    pub(super) fn name(&self, number: usize) -> &str {
        self.names.get(number)
    }

    /// Whether a skill of this name is as it was.
    pub(super) fn is_same(&self, number: usize, entry: &Entry) -> bool {
        self.prints[number] == print(entry)
    }

    /// How many words the texts of each have.
    pub(super) fn lengths(&self) -> &[u16] {
        &self.lengths
    }

    /// Gives the postings of a word and of its other forms, and whether they are those of the word itself.
    pub(super) fn each_form(&self, word: &str, mut form: impl FnMut(Postings<'_>, bool)) {
        if words::is_lone_character(word) {
            for id in (0..self.words.len()).filter(|id| self.words.get(*id).contains(word)) {
                form(self.postings(id), true);
            }
            return;
        }
        match words::beginning(word) {
            Some(beginning) => {
                let first = self.words.first_not_below(beginning);
                for id in (first..self.words.len()).take_while(|id| self.words.get(*id).starts_with(beginning)) {
                    form(self.postings(id), self.words.get(id) == word);
                }
            }
            None => {
                let id = self.words.first_not_below(word);
                if id < self.words.len() && self.words.get(id) == word {
                    form(self.postings(id), true);
                }
            }
        }
    }

    fn postings(&self, id: usize) -> Postings<'_> {
        let range = start(&self.postings, id)..self.postings[id] as usize;
        self.numbers[range.clone()].iter().copied().zip(self.counts[range].iter().copied())
    }

    /// How much memory it holds beside the skills themselves, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.names.bytes()
            + self.words.bytes()
            + size_of_val(&*self.prints)
            + size_of_val(&*self.lengths)
            + size_of_val(&*self.postings)
            + size_of_val(&*self.numbers)
            + size_of_val(&*self.counts)
    }
}

/// Texts one after the other, without an allocation for each.
#[derive(Debug)]
struct Words {
    text: Box<str>,
    ends: Box<[u32]>,
}

impl Words {
    fn of<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let (mut text, mut ends) = (String::new(), Vec::new());
        for word in words {
            text.push_str(word);
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        Self { text: text.into(), ends: ends.into() }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, id: usize) -> &str {
        &self.text[start(&self.ends, id)..self.ends[id] as usize]
    }

    /// The first that does not come before this one in byte order; they are in that order.
    fn first_not_below(&self, word: &str) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.get(middle) < word { low = middle + 1 } else { high = middle }
        }
        low
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.ends)
    }
}

fn print(entry: &Entry) -> u64 {
    let mut beginning = [0; 8];
    beginning.copy_from_slice(&entry.fingerprint.as_bytes()[..8]);
    u64::from_le_bytes(beginning)
}

/// Which skills have a word, by number, and how often each.
pub(super) type Postings<'a> =
    std::iter::Zip<std::iter::Copied<std::slice::Iter<'a, u32>>, std::iter::Copied<std::slice::Iter<'a, u8>>>;

fn start(ends: &[u32], id: usize) -> usize {
    id.checked_sub(1).map_or(0, |before| ends[before] as usize)
}
