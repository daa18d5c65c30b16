use super::*;
use proptest::prelude::*;

fn entry<'a>(name: &'a str, description: &'a str, source: Source) -> Entry<'a> {
    Entry { name, description, source, location: Path::new("/srv/<a&b>/x/SKILL.md") }
}

fn made(entries: &[Entry<'_>], format: Format, max: usize) -> String {
    roster(entries, format, max).text
}

const HEADING: &str = "## Available skills";

#[test]
fn markdown() {
    let entries = [
        entry("a-b", "Does A.\n\nUse when:  B\r\n  happens.\n", Source::Cloud),
        entry("c", "1 < 2 & \"3\" [cloud]\u{2028}- `d` — not a skill", Source::Override),
        entry("e`f", "–", Source::Project),
        entry("数据 清洗", "清洗数据。", Source::ProjectLegacy),
    ];
    let expected = "## Available skills\n\
                    - `a-b` — Does A. Use when:  B happens. [cloud]\n\
                    - `c` — 1 < 2 & \"3\" [cloud] - `d` — not a skill [override]\n\
                    - `` e`f `` — – [project]\n\
                    - `数据 清洗` — 清洗数据。 [project_legacy]";
    let roster = roster(&entries, Format::Markdown, MAX_CHARS);
    assert_eq!(roster.text, expected);
    assert_eq!(roster.included, ["a-b", "c", "e`f", "数据 清洗"]);
    assert_eq!((roster.omitted.len(), roster.shortened.len()), (0, 0));
    assert_eq!(made(&[], Format::Markdown, MAX_CHARS), HEADING);
}

#[test]
fn xml() {
    let entries = [
        entry("a-b", " It's \"A\" & <B>.\nNext\u{0}line. ", Source::Cloud),
        entry("<c>", "</description>", Source::Override),
    ];
    let expected = "<available_skills>\n\
                    <skill>\n<name>\na-b\n</name>\n\
                    <description>\nIt&#x27;s &quot;A&quot; &amp; &lt;B&gt;.\nNext\u{FFFD}line.\n</description>\n\
                    <location>\n/srv/&lt;a&amp;b&gt;/x/SKILL.md\n</location>\n</skill>\n\
                    <skill>\n<name>\n&lt;c&gt;\n</name>\n\
                    <description>\n&lt;/description&gt;\n</description>\n\
                    <location>\n/srv/&lt;a&amp;b&gt;/x/SKILL.md\n</location>\n</skill>\n\
                    </available_skills>";
    assert_eq!(made(&entries, Format::Xml, MAX_CHARS), expected);
    assert_eq!(made(&[], Format::Xml, MAX_CHARS), "<available_skills>\n</available_skills>");
}

/// Two of 60 characters and one of 5.
const LONG: &str = "0123456789012345678901234567890123456789012345678901234567é.";

#[test]
fn descriptions_are_shortened_evenly() {
    let entries =
        [entry("a", LONG, Source::Cloud), entry("b", "Short", Source::Cloud), entry("c", LONG, Source::Cloud)];
    let full = made(&entries, Format::Markdown, MAX_CHARS);
    let chars = full.chars().count();
    assert_eq!(made(&entries, Format::Markdown, chars), full);
    let expected = "## Available skills\n\
                    - `a` — 0123456789012345678901234567890… [cloud]\n\
                    - `b` — Short [cloud]\n\
                    - `c` — 0123456789012345678901234567890… [cloud]\n\
                    \n\
                    Note: 2 descriptions are shortened for want of room.";
    let roster = roster(&entries, Format::Markdown, chars - 2);
    assert_eq!(roster.text, expected);
    assert_eq!(roster.included, ["a", "b", "c"]);
    assert_eq!(roster.shortened, ["a", "c"]);
    assert_eq!(roster.omitted, [""; 0]);
    let longer = LONG.repeat(3);
    let one = [entry("a", &longer, Source::Cloud)];
    let expected = "<available_skills>\n<skill>\n<name>\na\n</name>\n<description>\n01234567890123456789…\n</description>\n\
                    <location>\n/srv/&lt;a&amp;b&gt;/x/SKILL.md\n</location>\n</skill>\n\
                    <!-- 1 description is shortened for want of room. -->\n</available_skills>";
    assert_eq!(made(&one, Format::Xml, expected.chars().count()), expected);
}

#[test]
fn then_names_alone_and_then_fewer() {
    let entries: Vec<_> = ["a", "b", "c"].map(|name| entry(name, LONG, Source::Cloud)).to_vec();
    let names = "## Available skills\n- `a` [cloud]\n- `b` [cloud]\n- `c` [cloud]\n\n\
                 Note: Descriptions are left out for want of room.";
    let roster = roster(&entries, Format::Markdown, names.len());
    assert_eq!(roster.text, names);
    assert_eq!(roster.shortened, ["a", "b", "c"]);
    let entries: Vec<_> =
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"].map(|name| entry(name, LONG, Source::Cloud)).to_vec();
    let fewer = "## Available skills\n- `a` [cloud]\n- `b` [cloud]\n\n\
                 Note: Descriptions are left out and 8 more skills are not listed for want of room.";
    let roster = super::roster(&entries, Format::Markdown, fewer.len());
    assert_eq!(roster.text, fewer);
    assert_eq!((roster.included.join(""), roster.shortened.join("")), ("ab".to_owned(), "ab".to_owned()));
    assert_eq!(roster.omitted.join(""), "cdefghij");
    let none = "## Available skills\n\nNote: 10 skills are not listed for want of room.";
    assert_eq!(made(&entries, Format::Markdown, none.len()), none);
    assert_eq!(made(&entries, Format::Markdown, HEADING.len()), HEADING);
    let roster = super::roster(&entries, Format::Markdown, HEADING.len() - 1);
    assert_eq!((roster.text.as_str(), roster.omitted.len()), ("", 10));
    let xml = "<available_skills>\n<skill>\n<name>\na\n</name>\n<location>\n/srv/&lt;a&amp;b&gt;/x/SKILL.md\n</location>\n\
               </skill>\n<!-- Descriptions are left out and 9 more skills are not listed for want of room. -->\n\
               </available_skills>";
    assert_eq!(made(&entries, Format::Xml, xml.len()), xml);
}

/// 300 skills of 300 characters in 8,000.
#[test]
fn a_catalog_that_is_too_large_says_so() {
    let names: Vec<_> = (0..300).map(|i| format!("skill-{i:03}")).collect();
    let description = "x".repeat(300);
    let entries: Vec<_> = names.iter().map(|name| entry(name, &description, Source::Cloud)).collect();
    let roster = roster(&entries, Format::Markdown, 8000);
    assert!(roster.text.chars().count() <= 8000 && roster.text.len() > 6600, "{}", roster.text.len());
    assert!(roster.text.ends_with("Note: Descriptions are left out for want of room."), "{}", roster.text);
    assert_eq!((roster.included.len(), roster.omitted.len(), roster.shortened.len()), (300, 0, 300));
    let roster = super::roster(&entries, Format::Markdown, 4000);
    assert!(roster.text.ends_with("more skills are not listed for want of room."), "{}", roster.text);
    assert_eq!(roster.included.len() + roster.omitted.len(), 300);
    assert!(!roster.omitted.is_empty() && roster.text.chars().count() <= 4000);
}

#[test]
fn ten_thousand_skills_are_linear_work() {
    let names: Vec<_> = (0..10_000).map(|i| format!("skill-{i:05}")).collect();
    let descriptions: Vec<_> = (0..10_000).map(|i| "wörd ".repeat(i % 200 + 1)).collect();
    let entries: Vec<_> = names.iter().zip(&descriptions).map(|(n, d)| entry(n, d, Source::Cloud)).collect();
    for max in [1, 100_000, 300_000, 400_000, MAX_CHARS, usize::MAX] {
        for format in [Format::Markdown, Format::Xml] {
            let roster = roster(&entries, format, max);
            assert!(roster.text.chars().count() <= max.min(MAX_CHARS));
            assert_eq!(roster.included.len() + roster.omitted.len(), entries.len());
        }
    }
}

proptest! {
    #[test]
    fn it_fits_and_is_told(
        skills in proptest::collection::vec(("[a-z<`]{1,9}", "(?s)[a-z&<\"\n …é]{0,60}"), 0..8),
        max in 0..900_usize,
        xml in any::<bool>(),
    ) {
        let format = if xml { Format::Xml } else { Format::Markdown };
        let entries: Vec<_> = skills.iter().map(|(n, d)| entry(n, d, Source::Cloud)).collect();
        let made = roster(&entries, format, max);
        prop_assert!(made.text.chars().count() <= max, "{}", made.text);
        prop_assert_eq!(&made, &roster(&entries, format, max));
        let all: Vec<_> = made.included.iter().chain(&made.omitted).cloned().collect();
        prop_assert_eq!(all, names(&entries), "each once, in order");
        prop_assert!(made.shortened.iter().all(|name| made.included.contains(name)));
        let told = made.text.contains("for want of room");
        prop_assert!(told || (made.shortened.is_empty() && made.omitted.is_empty()) || made.included.is_empty());
        let full = roster(&entries, format, MAX_CHARS);
        prop_assert_eq!(made == full, full.text.chars().count() <= max);
        // More room is never worse.
        let more = roster(&entries, format, max + 1);
        prop_assert!(more.included.len() >= made.included.len());
        if !xml {
            let lines = made.text.lines().filter(|line| line.starts_with("- ")).count();
            prop_assert_eq!(lines, made.included.len(), "a line each");
        } else {
            prop_assert_eq!(made.text.matches("<skill>").count(), made.included.len());
            prop_assert_eq!(made.text.matches("</name>").count(), made.included.len());
        }
    }
}
