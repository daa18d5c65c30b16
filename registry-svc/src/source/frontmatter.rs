//! YAML frontmatter: finds the two fences and has what stands between them read. Knows no key.

use super::findings::Fault;
use super::node::Member;
use super::text::Text;
use super::yaml::{self, MAX_BYTES};
use super::{Stage, codes};

const FENCE: &str = "---";

/// Frontmatter that was found: its text, with positions of the file, and its keys.
#[derive(Debug)]
pub(crate) struct Frontmatter {
    pub(crate) text: Text,
    pub(crate) members: Vec<Member>,
}

/// The frontmatter of a file.
pub(crate) fn read(file: &Text) -> Result<Frontmatter, Fault> {
    let Some(between) = split(file.as_str()).map_err(|fence| fence_fault(fence, file.as_str()))? else {
        let message = "no frontmatter: begin the file with a line `---`, then `name:` and `description:`, then `---`";
        return Err(Fault::at(codes::E_FRONTMATTER_MISSING, Stage::Parse, (1, 1), with_late_fence(message, file)));
    };
    if between.len() > MAX_BYTES {
        let message = format!("the frontmatter has more than {MAX_BYTES} bytes: move text into the body");
        return Err(Fault::at(codes::E_FRONTMATTER_TOO_LARGE, Stage::Parse, (1, 1), message));
    }
    // However a line's end is written, it is LF to YAML, and no other CR ends a line; positions are the same.
    let text = Text::part(between.replace("\r\n", "\n").replace('\r', " "), 2);
    let members = yaml::parse(&text)?;
    Ok(Frontmatter { text, members })
}

/// What stands behind the frontmatter, byte for byte; nothing where there is no frontmatter.
pub(crate) fn body(file: &Text) -> Option<&str> {
    let text = file.as_str();
    let between = split(text).ok()??;
    let closing = text.find('\n')? + 1 + between.len();
    let rest = &text[closing..];
    Some(rest.find('\n').map_or("", |end| &rest[end + 1..]))
}

/// Why there is an opening fence and no frontmatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceError {
    /// No closing fence.
    Unclosed,
}

/// What stands between the first line, if it is a fence, and the next fence. `Ok(None)` without an opening fence.
fn split(text: &str) -> Result<Option<&str>, FenceError> {
    let mut lines = text.split_inclusive('\n');
    let Some(opening) = lines.next().filter(|line| is_fence(line)) else { return Ok(None) };
    let mut end = opening.len();
    for line in lines {
        if is_fence(line) {
            return Ok(Some(&text[opening.len()..end]));
        }
        end += line.len();
    }
    Err(FenceError::Unclosed)
}

/// A line that is `---` at column 0, and blanks.
fn is_fence(line: &str) -> bool {
    line.strip_prefix(FENCE).is_some_and(|rest| rest.trim_matches([' ', '\t', '\r', '\n']).is_empty())
}

fn fence_fault(error: FenceError, text: &str) -> Fault {
    let FenceError::Unclosed = error;
    let near = text.lines().enumerate().skip(1).find_map(|(index, line)| Some((index + 1, nearly_fence(line)?)));
    let hint = match near {
        Some((line, why)) => format!("line {line} {why}: write `---` alone, at the line's start"),
        None => "add a line `---` behind the last key".to_owned(),
    };
    let message = format!("the frontmatter is not closed: {hint}");
    Fault::at(codes::E_FRONTMATTER_UNCLOSED, Stage::Parse, (1, 1), message)
}

/// Why a line that was meant to be a fence is none.
fn nearly_fence(line: &str) -> Option<&'static str> {
    let trimmed = line.trim();
    if line.starts_with([' ', '\t']) && is_fence(trimmed) {
        return Some("does not begin with its `---`");
    }
    let dashes = |c: char| matches!(c, '-' | '\u{2010}'..='\u{2015}' | '\u{2212}');
    let nearly = trimmed.chars().count() >= 2 && trimmed.chars().all(dashes) && !is_fence(trimmed);
    nearly.then_some("is not three hyphens")
}

/// What was meant by a file that does not begin with a fence, where that can be told.
fn with_late_fence(message: &str, file: &Text) -> String {
    let mut lines = file.as_str().lines().enumerate().skip_while(|(_, line)| line.trim().is_empty());
    let Some((first, text)) = lines.next() else { return format!("{message}; the file is empty") };
    if is_fence(text) {
        return format!("{message}; the `---` in line {} must be the first line", first + 1);
    }
    if let Some(why) = nearly_fence(text) {
        return format!("{message}; line {} {why}", first + 1);
    }
    if is_key(text) {
        return format!("{message}; a line `---` is missing before line {}", first + 1);
    }
    // A rule of the body is a fence too, but no key follows it.
    let mut rest = lines.skip_while(|(_, line)| !is_fence(line));
    match (rest.next(), rest.find(|(_, line)| !line.trim().is_empty())) {
        (Some((late, _)), Some((_, next))) if is_key(next) => format!(
            "{message}; text stands before the frontmatter: move it behind, so that the `---` in line {} is the first line",
            late + 1
        ),
        _ => message.to_owned(),
    }
}

/// Whether it is one of the keys that every file has, and its value.
fn is_key(line: &str) -> bool {
    ["name:", "description:"].iter().any(|key| line.starts_with(key))
}

#[cfg(test)]
mod tests {
    use super::super::node::Node;
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Result<Frontmatter, Fault> {
        read(&Text::of_file(text.as_bytes()).unwrap())
    }

    fn value(text: &str, key: &str) -> Node {
        of(text).unwrap().members.into_iter().find(|member| member.key == key).unwrap().value
    }

    #[test]
    fn only_dashes_at_the_start_of_a_line_are_a_fence() {
        for fence in ["---\n", "--- \t\r\n", "---"] {
            assert_eq!(split(&format!("---\na: b\n{fence}")), Ok(Some("a: b\n")), "{fence:?}");
        }
        for other in ["----\n", " ---\n", "--- x\n", "--\n", "\u{a0}---\n", "---\u{a0}\n"] {
            assert_eq!(split(&format!("---\na: b\n{other}")), Err(FenceError::Unclosed), "{other:?}");
            assert_eq!(split(&format!("{other}a: b\n---\n")), Ok(None), "{other:?}");
        }
        assert_eq!(split("---\n---\n"), Ok(Some("")));
        assert_eq!(split("---\na\n---\nb\n---\n"), Ok(Some("a\n")));
    }

    #[test]
    fn values_are_what_yaml_1_2_says() {
        let text = "---\na: yes\nb: true\nc: 007\nd: 1_0\ne: 1.10\nf: .inf\ng: ~\nh: 2024-01-01\ni: 99999999999999999999\n---\n";
        let seen: Vec<_> = of(text).unwrap().members.into_iter().map(|member| member.value.into_value()).collect();
        assert_eq!(
            serde_json::json!(seen),
            serde_json::json!(["yes", true, "007", "1_0", 1.1, ".inf", null, "2024-01-01", "99999999999999999999"])
        );
        assert_eq!(value("---\nname: 1.10\n---\n", "name").as_text(), Some("1.10"));
        assert_eq!(value("---\nnull: a\n1: b\n---\n", "null").as_text(), Some("a"));
    }

    #[test]
    fn positions_are_the_files() {
        let found = of("\u{feff}---\r\n# é\r\né: x\r\nb:  y\r\n---\r\n").unwrap();
        let at = |i: usize| found.text.position(found.members[i].value.span.start);
        assert_eq!((at(0), at(1)), ((3, 4), (4, 5)));
    }

    #[test]
    fn an_expansion_is_bounded() {
        let mut bomb = "---\na0: &a0 [x]\n".to_owned();
        for i in 1..20 {
            bomb += &format!("a{i}: &a{i} [*a{0}, *a{0}]\n", i - 1);
        }
        assert!(of(&(bomb + "---\n")).is_err());
    }

    #[test]
    fn what_was_meant_is_said() {
        for (text, hint) in [
            ("", "the file is empty"),
            ("\n\n---\nname: x\n---\n", "the `---` in line 3 must be the first line"),
            ("# X\n\n---\nname: x\n---\n", "the `---` in line 3 is the first line"),
            ("<!-- c -->\n---\n\ndescription: x\n---\n", "the `---` in line 2 is the first line"),
            ("name: x\ndescription: d\n---\n", "a line `---` is missing before line 1"),
            ("----\nname: x\n----\n", "line 1 is not three hyphens"),
            (" ---\nname: x\n---\n", "line 1 does not begin with its `---`"),
            ("\u{2014}\u{2014}\nname: x\n", "line 1 is not three hyphens"),
            ("---\nname: x\n ---\n", "line 3 does not begin with its `---`"),
            ("---\nname: x\n----\nbody", "line 3 is not three hyphens"),
            ("---\nname: x\nbody", "add a line `---` behind the last key"),
        ] {
            let message = of(text).unwrap_err().message;
            assert!(message.contains(hint), "{text:?}: {message}");
        }
        let rule = of("# X\n\ntext\n\n---\n\nmore\n").unwrap_err().message;
        assert!(rule.ends_with("then `---`"), "{rule}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused_within_the_file(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(text) = Text::of_file(&bytes) {
                let _ = read(&text);
            }
        }

        #[test]
        fn any_frontmatter_is_read_or_refused_with_a_line_of_it(body in "[-a: \\[\\]{}&*!|>'\"#%@`,?é\t\r\n]{0,60}") {
            let file = format!("---\n{body}\n---\n");
            let lines = file.split('\n').count() as u32;
            match of(&file) {
                Ok(found) => for member in &found.members {
                    let (line, column) = found.text.position(member.value.span.start);
                    prop_assert!(line >= 2 && line <= lines && column >= 1);
                },
                Err(fault) => prop_assert!(fault.line <= lines, "{fault:?}"),
            }
        }

        #[test]
        fn what_stands_between_the_fences_is_found(
            lines in proptest::collection::vec("[ a-z:]{1,12}|-{1,2}|-{4,6}| ---|--- x", 0..6), body in "[-a\n]{0,20}",
            end in "\r?\n", blanks in "[ \t]{0,3}",
        ) {
            let between: String = lines.iter().map(|line| format!("{line}{end}")).collect();
            let file = format!("---{blanks}{end}{between}---{blanks}{end}{body}");
            prop_assert_eq!(split(&file), Ok(Some(between.as_str())));
            let text = Text::of_file(file.as_bytes()).unwrap();
            prop_assert_eq!(super::body(&text), Some(body.as_str()));
        }
    }
}
