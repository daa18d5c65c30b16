//! What the Agent Skills specification refuses of a playbook that loads all the same. A rule is a code; none keeps a
//! playbook out.

use serde_json::Value;
use skillyard::SkillName;
use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

use super::findings::Findings;
use super::node::{Data, Member, Node};
use super::text::Text;
use super::{codes, near};

/// The keys that the specification has.
const KEYS: [&str; 6] = ["name", "description", "license", "compatibility", "metadata", "allowed-tools"];
/// Those that Skillyard has besides, and among them those of `metadata`.
const OWN_KEYS: [&str; 8] =
    ["category", "category_order", "summary", "use_when", "example_prompts", "when_to_use", "activation", "tools"];
const OWN_METADATA: [&str; 3] = ["os", "requires", "ongrid"];
/// What people write for one of the keys.
const SYNONYMS: [(&str, &str); 3] = [("requires", "metadata.requires"), ("os", "metadata.os"), ("licence", "license")];

const MAX_NAME: usize = 64;
const MAX_DESCRIPTION: usize = 1024;
const MAX_COMPATIBILITY: usize = 500;

/// Holds a frontmatter, and the name that counts, against the specification. `strict`: forms of Skillyard's own are
/// not passed over.
pub(crate) fn check(text: &Text, members: &[Member], name: &str, strict: bool, findings: &mut Findings) {
    for Member { key, key_span, value } in members {
        // A position is counted from the file's start, so for what needs one alone.
        let (key_at, at) = (|| text.position(key_span.start), || text.position(value.span.start));
        match key.as_str() {
            "name" => check_name(name, at(), findings),
            "description" => at_most(codes::W_SPEC_DESCRIPTION, key, value, MAX_DESCRIPTION, at(), findings),
            "compatibility" => compatibility(value, at(), findings),
            "metadata" => metadata(text, value, strict, findings),
            "allowed-tools" if strict => allowed_tools(value, at(), findings),
            "license" | "allowed-tools" => {}
            own if OWN_KEYS.contains(&own) => {
                if strict {
                    let message = format!(
                        "{own} is Skillyard's own, and the Agent Skills specification has no such key: leave it out \
                         where other loaders are to take the file"
                    );
                    findings.warn(codes::W_SPEC_KEY, key_at(), message);
                }
            }
            // There may be thousands, and nobody reads them.
            _ if findings.has_all_warnings() => {}
            other => {
                let all: Vec<_> = KEYS.into_iter().chain(OWN_KEYS).collect();
                let mend = match near::meant(other, &all, &SYNONYMS) {
                    Some(meant) => format!("write {meant} if that is meant"),
                    None => "put it under metadata".to_owned(),
                };
                let message = format!("the Agent Skills specification has no key {other:?} here: {mend}");
                findings.warn(codes::W_SPEC_KEY, key_at(), message);
            }
        }
    }
}

/// The name that counts: where the file has another, that is a warning already.
fn check_name(name: &str, at: (u32, u32), findings: &mut Findings) {
    // That is an error, which says so.
    if name.parse::<SkillName>().is_err() {
        return;
    }
    let name: String = if name.is_ascii() { name.to_owned() } else { name.nfkc().collect() };
    let mut refuse = |code, why: &str| {
        let message = format!("the Agent Skills specification allows no name {name:?}: {why}");
        findings.warn(code, at, message);
    };
    let characters = name.chars().count();
    if characters > MAX_NAME {
        let why = format!("it has {characters} characters, of which {MAX_NAME} are allowed: shorten it");
        refuse(codes::W_SPEC_NAME_LENGTH, &why);
    }
    if !name.chars().all(|c| c == '-' || is_letter_or_digit(c)) {
        refuse(codes::W_SPEC_NAME, "write lower-case letters, digits and hyphens only");
    }
    if name.starts_with('-') || name.ends_with('-') || name.contains("--") {
        refuse(codes::W_SPEC_NAME_HYPHENS, "write single hyphens, and none at either end");
    }
}

/// Of any script. Marks are no letters to the specification's own validator, and neither are letters in squares.
fn is_letter_or_digit(c: char) -> bool {
    c.is_alphanumeric() && !is_combining_mark(c) && !matches!(c, '\u{1f130}'..='\u{1f189}') && c.to_lowercase().eq([c])
}

fn compatibility(value: &Node, at: (u32, u32), findings: &mut Findings) {
    if value.as_text().is_some_and(|text| text.trim().is_empty()) {
        let message = "compatibility is empty: say what the skill needs, or leave the key out";
        findings.warn(codes::W_SPEC_COMPATIBILITY, at, message);
    }
    at_most(codes::W_SPEC_COMPATIBILITY, "compatibility", value, MAX_COMPATIBILITY, at, findings);
}

/// Texts by texts; what is none is another warning where the whole is no mapping.
fn metadata(text: &Text, value: &Node, strict: bool, findings: &mut Findings) {
    let Data::Map(members) = &value.data else { return };
    for Member { key, value, .. } in members {
        let own = OWN_METADATA.contains(&key.as_str());
        if matches!(value.data, Data::Text(_)) || (own && !strict) || findings.has_all_warnings() {
            continue;
        }
        let mend = match &value.data {
            Data::Plain(Value::Number(_) | Value::Bool(_), written) => format!("quote it: {key}: \"{written}\""),
            _ if own => "that is Skillyard's own; leave it out where other loaders are to take the file".to_owned(),
            _ => "write one text, in quotes".to_owned(),
        };
        let message =
            format!("metadata.{key} is {}, and the Agent Skills specification allows text only: {mend}", value.kind());
        findings.warn(codes::W_SPEC_METADATA, text.position(value.span.start), message);
    }
}

fn allowed_tools(value: &Node, at: (u32, u32), findings: &mut Findings) {
    if let Data::List(items) = &value.data {
        let tools: Vec<_> = items.iter().filter_map(Node::as_text).collect();
        let message = format!(
            "allowed-tools is a list, and the Agent Skills specification has one text there: write allowed-tools: \"{}\"",
            tools.join(" ")
        );
        findings.warn(codes::W_SPEC_ALLOWED_TOOLS, at, message);
    }
}

fn at_most(code: &'static str, key: &str, value: &Node, most: usize, at: (u32, u32), findings: &mut Findings) {
    let characters = value.as_text().map_or(0, |text| text.chars().count());
    if characters > most {
        let message = format!(
            "{key} has {characters} characters, of which the Agent Skills specification allows {most}: shorten it"
        );
        findings.warn(code, at, message);
    }
}

#[cfg(test)]
mod tests {
    use super::super::playbook::{self, Identity};
    use super::*;

    /// The codes of a playbook in a directory, read strictly and tolerantly.
    fn codes(directory: &str, frontmatter: &str) -> (Vec<&'static str>, Vec<&'static str>) {
        let read = |strict| {
            let file = Text::of_file(format!("---\n{frontmatter}\n---\n").as_bytes()).unwrap();
            let mut findings = Findings::default();
            let sheet = playbook::read(&file, &Identity::Directory(directory.to_owned()), strict, &mut findings);
            assert!(sheet.is_some(), "{directory}: {frontmatter}: it loads");
            findings.into_diagnostics().into_iter().map(|d| d.code).collect()
        };
        (read(true), read(false))
    }

    fn strict(frontmatter: &str) -> Vec<&'static str> {
        codes("x", &format!("name: x\ndescription: d\n{frontmatter}")).0
    }

    #[test]
    fn the_name() {
        let of = |name: &str| codes(name, &format!("name: \"{name}\"\ndescription: d"));
        let none = || (vec![], vec![]);
        let both = |code| (vec![code], vec![code]);
        for good in
            ["a", "7", "pdf-tools", "a-1-b", "数据-清洗", "größe", "été", "ﬁle", &"n".repeat(64), &"é".repeat(64)]
        {
            assert_eq!(of(good), none(), "{good}");
        }
        for bad in ["My", "a_b", "a b", "a.b", "ÉTÉ", "Ⅷ", "a\u{301}b\u{20dd}", "ＡＢ", "a🅰"] {
            assert_eq!(of(bad), both(codes::W_SPEC_NAME), "{bad}");
        }
        for bad in ["-a", "a-", "a--b"] {
            assert_eq!(of(bad), both(codes::W_SPEC_NAME_HYPHENS), "{bad}");
        }
        assert_eq!(of(&"n".repeat(65)), both(codes::W_SPEC_NAME_LENGTH));
        // Six letters where there was one.
        assert_eq!(of(&"ﬃ".repeat(22)), both(codes::W_SPEC_NAME_LENGTH));
    }

    #[test]
    fn the_directory() {
        let of = |directory: &str, name: &str| codes(directory, &format!("name: {name:?}\ndescription: d")).0;
        assert_eq!(of("file", "ﬁle"), Vec::<&str>::new());
        assert_eq!(of("ﬁle", "file"), Vec::<&str>::new());
        assert_eq!(of("cafe\u{301}", " café "), Vec::<&str>::new());
        assert_eq!(of("file", "files"), [codes::W_NAME_NOT_DIRECTORY]);
        assert_eq!(of("file", "File"), [codes::W_NAME_NOT_DIRECTORY]);
    }

    #[test]
    fn the_description() {
        let of = |description: String| codes("x", &format!("name: x\ndescription: {description:?}")).0;
        assert_eq!(of("d".to_owned()), Vec::<&str>::new());
        assert_eq!(of("é".repeat(1024)), Vec::<&str>::new());
        assert_eq!(of("é".repeat(1025)), [codes::W_SPEC_DESCRIPTION]);
    }

    #[test]
    fn the_compatibility() {
        for good in [String::new(), "compatibility: c".to_owned(), format!("compatibility: {}", "é".repeat(500))] {
            assert_eq!(strict(&good), Vec::<&str>::new());
        }
        assert_eq!(strict("compatibility: \" \""), [codes::W_SPEC_COMPATIBILITY]);
        assert_eq!(strict(&format!("compatibility: {}", "é".repeat(501))), [codes::W_SPEC_COMPATIBILITY]);
        assert_eq!(strict("compatibility: [a]"), [codes::W_KEY_TYPE]);
    }

    #[test]
    fn the_metadata() {
        assert_eq!(strict("metadata: {author: me, version: \"1.0\", empty: \"\"}"), Vec::<&str>::new());
        for bad in ["version: 1.0", "ready: true", "a: [b]", "a: {b: c}", "a:"] {
            let text = format!("metadata:\n  {bad}");
            let code = codes::W_SPEC_METADATA;
            assert_eq!(codes("x", &format!("name: x\ndescription: d\n{text}")), (vec![code], vec![code]), "{bad}");
        }
        assert_eq!(strict("metadata: text"), [codes::W_KEY_TYPE]);
        let own = "name: x\ndescription: d\nmetadata: {os: [linux], requires: {bins: [sh]}, ongrid: {icon: broom}}";
        assert_eq!(codes("x", own), (vec![codes::W_SPEC_METADATA; 3], vec![]));
    }

    #[test]
    fn the_allowed_tools() {
        assert_eq!(strict("allowed-tools: Bash(git:*) Read"), Vec::<&str>::new());
        let list = "name: x\ndescription: d\nallowed-tools: [Bash, Read]";
        assert_eq!(codes("x", list), (vec![codes::W_SPEC_ALLOWED_TOOLS], vec![]));
        assert_eq!(strict("allowed-tools: {a: b}"), [codes::W_KEY_TYPE]);
    }

    #[test]
    fn the_keys() {
        assert_eq!(strict("license: MIT\ncompatibility: c\nmetadata: {a: b}\nallowed-tools: Read"), Vec::<&str>::new());
        for foreign in ["version: 1.0", "homepage: h", "allowed_tools: Read", "Name: x", "requires: {bins: [a]}"] {
            let text = format!("name: x\ndescription: d\n{foreign}");
            assert_eq!(codes("x", &text), (vec![codes::W_SPEC_KEY], vec![codes::W_SPEC_KEY]), "{foreign}");
        }
        for own in OWN_KEYS {
            let value = if own == "category_order" { "1" } else { "~" };
            let text = format!("name: x\ndescription: d\n{own}: {value}");
            assert_eq!(codes("x", &text), (vec![codes::W_SPEC_KEY], vec![]), "{own}");
        }
    }
}
