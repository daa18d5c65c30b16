//! The roster: the playbooks that an agent may load, for a system prompt. Names and descriptions alone, nothing of a card.
//!
//! Where there is not room for all of it, descriptions are cut evenly, then left out, and then skills are left out from
//! the end; the text says so in a note. The same skills and the same room give the same text.

use std::borrow::Cow;
use std::path::Path;

use skillyard::Source;

use super::markdown;

/// Most characters of a text whatever is asked for: with four bytes for each it still goes into one message.
pub const MAX_CHARS: usize = 500_000;
/// A description with less left of it says nothing.
const LEAST_CHARS: usize = 20;

/// How a roster is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A heading and a line a skill.
    Markdown,
    /// The `<available_skills>` block of the Agent Skills specification, as its reference implementation writes it.
    Xml,
}

/// A playbook, as far as a roster tells of it.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its description.
    pub description: &'a str,
    /// Where it is from.
    pub source: Source,
    /// The path of its `SKILL.md`.
    pub location: &'a Path,
}

/// A roster, and what became of each skill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// For the prompt; without a line break at its end.
    pub text: String,
    /// The names of those in the text, in its order.
    pub included: Vec<String>,
    /// Of those left out.
    pub omitted: Vec<String>,
    /// Of those in the text with less than their description.
    pub shortened: Vec<String>,
}

/// The roster of these skills, in their order, in at most so many characters.
#[must_use]
pub fn roster(entries: &[Entry<'_>], format: Format, max_chars: usize) -> Roster {
    let max = max_chars.min(MAX_CHARS);
    let items: Vec<_> = entries.iter().map(|entry| Item::new(entry, format)).collect();
    let frame = Frame::new(format);
    let everything = frame.chars() + items.iter().map(Item::chars).sum::<usize>();
    let (listed, cut) = if everything <= max {
        (items.len(), Cut::Nothing)
    } else if let Some(most) = even_cut(&items, &frame, max) {
        (items.len(), Cut::To(most))
    } else if let Some(listed) = names_alone(&items, &frame, max) {
        (listed, Cut::ToNothing)
    } else {
        // Not even the note has room; without it the frame may have.
        let text = if frame.chars() <= max { frame.around("", "") } else { String::new() };
        return Roster { text, omitted: names(entries), ..Roster::default() };
    };
    let omitted = items.len() - listed;
    let shortened: Vec<_> = entries.iter().zip(&items).take(listed).filter(|(_, item)| cut.shortens(item)).collect();
    let mut lines = String::with_capacity(everything.min(4 * max));
    for item in &items[..listed] {
        lines.push('\n');
        item.write(cut, &mut lines);
    }
    Roster {
        text: frame.around(&lines, &note(cut, if cut == Cut::ToNothing { listed } else { shortened.len() }, omitted)),
        included: names(&entries[..listed]),
        omitted: names(&entries[listed..]),
        shortened: shortened.into_iter().map(|(entry, _)| entry.name.to_owned()).collect(),
    }
}

fn names(entries: &[Entry<'_>]) -> Vec<String> {
    entries.iter().map(|entry| entry.name.to_owned()).collect()
}

/// What is left of descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Nothing,
    To(usize),
    ToNothing,
}

impl Cut {
    fn shortens(self, item: &Item<'_>) -> bool {
        match self {
            Self::Nothing => false,
            Self::To(most) => item.length > most,
            Self::ToNothing => item.length > 0,
        }
    }
}

/// The most characters of each description with which all skills have room.
fn even_cut(items: &[Item<'_>], frame: &Frame, max: usize) -> Option<usize> {
    let longest = items.iter().map(|item| item.length).max().unwrap_or(0);
    // By place: how many characters the descriptions have there as they are written, how many of these are the last of
    // one; and by length, how many descriptions have it.
    let (mut widths, mut last, mut lengths) = (vec![0; longest + 1], vec![0; longest + 1], vec![0_usize; longest + 1]);
    for item in items {
        for (at, c) in item.description.chars().enumerate() {
            let width = item.format.width(c);
            widths[at] += width;
            if at + 1 == item.length {
                last[at] += width;
            }
        }
        lengths[item.length] += 1;
    }
    let fixed = frame.chars() + items.iter().map(Item::chars_without_description).sum::<usize>();
    let (mut before, mut longer, mut best) = (0, items.len() - lengths[0], None);
    for most in 1..longest {
        // Those that are longer have a mark at the last place.
        longer -= lengths[most];
        let described = before + last[most - 1] + longer;
        if fixed + described + frame.chars_of(&note(Cut::To(most), longer, 0)) <= max {
            best = Some(most);
        }
        before += widths[most - 1];
    }
    best.filter(|most| *most >= LEAST_CHARS)
}

/// How many skills have room without descriptions.
fn names_alone(items: &[Item<'_>], frame: &Frame, max: usize) -> Option<usize> {
    let mut chars = frame.chars() + items.iter().map(Item::chars_of_name).sum::<usize>();
    (0..=items.len()).rev().find(|listed| {
        if let Some(item) = items.get(*listed) {
            chars -= item.chars_of_name();
        }
        chars + frame.chars_of(&note(Cut::ToNothing, *listed, items.len() - listed)) <= max
    })
}

/// What the text says of what was done to it; nothing where nothing was. `count` is of the skills that it was done to.
fn note(cut: Cut, count: usize, omitted: usize) -> String {
    let of = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    match (cut, count, omitted) {
        (Cut::Nothing, ..) => String::new(),
        (Cut::To(_), count, _) => {
            format!("{} shortened for want of room.", of(count, "description is", "descriptions are"))
        }
        (Cut::ToNothing, _, 0) => "Descriptions are left out for want of room.".to_owned(),
        (Cut::ToNothing, 0, omitted) => {
            format!("{} not listed for want of room.", of(omitted, "skill is", "skills are"))
        }
        (Cut::ToNothing, _, omitted) => {
            let skills = of(omitted, "more skill is", "more skills are");
            format!("Descriptions are left out and {skills} not listed for want of room.")
        }
    }
}

/// What stands around the skills.
struct Frame {
    format: Format,
}

impl Frame {
    fn new(format: Format) -> Self {
        Self { format }
    }

    fn around(&self, lines: &str, note: &str) -> String {
        match (self.format, note) {
            (Format::Markdown, "") => format!("## Available skills{lines}"),
            (Format::Markdown, note) => format!("## Available skills{lines}\n\nNote: {note}"),
            (Format::Xml, "") => format!("<available_skills>{lines}\n</available_skills>"),
            (Format::Xml, note) => format!("<available_skills>{lines}\n<!-- {note} -->\n</available_skills>"),
        }
    }

    /// Of the frame alone.
    fn chars(&self) -> usize {
        self.around("", "").chars().count()
    }

    /// What a note adds to it.
    fn chars_of(&self, note: &str) -> usize {
        self.around("", note).chars().count() - self.chars()
    }
}

/// A skill as it is written, in pieces: what comes before its description, the description, and what comes after it.
struct Item<'a> {
    format: Format,
    head: String,
    description: Cow<'a, str>,
    /// Of the description, in characters.
    length: usize,
    tail: String,
}

impl<'a> Item<'a> {
    fn new(entry: &Entry<'a>, format: Format) -> Self {
        let (head, description, tail) = match format {
            Format::Markdown => (
                format!("- {}", markdown::code(entry.name)),
                markdown::on_one_line(entry.description),
                format!(" [{}]", entry.source.as_str()),
            ),
            Format::Xml => (
                format!("<skill>\n<name>\n{}\n</name>\n", escaped(entry.name)),
                allowed(entry.description.trim()),
                format!("<location>\n{}\n</location>\n</skill>", escaped(&entry.location.to_string_lossy())),
            ),
        };
        let length = description.chars().count();
        Self { format, head, description, length, tail }
    }

    /// What stands on both sides of a description, where there is one.
    fn marks(&self) -> (&'static str, &'static str) {
        match self.format {
            Format::Markdown => (" — ", ""),
            Format::Xml => ("<description>\n", "\n</description>\n"),
        }
    }

    /// With the line break before it.
    fn chars_of_name(&self) -> usize {
        1 + self.head.chars().count() + self.tail.chars().count()
    }

    fn chars_without_description(&self) -> usize {
        let (before, after) = self.marks();
        self.chars_of_name() + before.chars().count() + after.chars().count()
    }

    fn chars(&self) -> usize {
        let described = self.description.chars().map(|c| self.format.width(c)).sum::<usize>();
        self.chars_without_description() + described
    }

    fn write(&self, cut: Cut, to: &mut String) {
        let (before, after) = self.marks();
        to.push_str(&self.head);
        if cut != Cut::ToNothing {
            to.push_str(before);
            match cut {
                Cut::To(most) if self.length > most => {
                    let end = self.description.char_indices().nth(most - 1).map_or(0, |(at, _)| at);
                    self.format.push(self.description[..end].trim_end(), to);
                    to.push('…');
                }
                _ => self.format.push(&self.description, to),
            }
            to.push_str(after);
        }
        to.push_str(&self.tail);
    }
}

impl Format {
    /// How many characters one character of a description takes.
    fn width(self, c: char) -> usize {
        match self {
            Self::Markdown => 1,
            Self::Xml => entity(c).map_or(1, str::len),
        }
    }

    fn push(self, description: &str, to: &mut String) {
        match self {
            Self::Markdown => to.push_str(description),
            Self::Xml => to.push_str(&escaped(description)),
        }
    }
}

fn entity(c: char) -> Option<&'static str> {
    Some(match c {
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        '"' => "&quot;",
        '\'' => "&#x27;",
        _ => return None,
    })
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in allowed(text).chars() {
        match entity(c) {
            Some(entity) => escaped.push_str(entity),
            None => escaped.push(c),
        }
    }
    escaped
}

/// Characters that no XML document can hold, escaped or not, are replaced.
fn allowed(text: &str) -> Cow<'_, str> {
    let forbidden = |c: char| (c < ' ' && !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{FFFE}' | '\u{FFFF}');
    if text.contains(forbidden) { text.replace(forbidden, "\u{FFFD}").into() } else { text.into() }
}

#[cfg(test)]
mod tests;
