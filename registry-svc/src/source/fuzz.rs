//! Anything at all, as a manifest and as frontmatter: it is read or refused, in bounded time, with a bounded report whose
//! positions are the file's. Nothing here looks at a disk.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::findings::Findings;
use super::playbook::{self, Identity};
use super::text::Text;
use super::{Diagnostic, agent_file, manifest};

/// Of each text: as much as a frontmatter may have.
const BYTES: usize = 64 << 10;
/// Built for speed it is to be 50 ms. This is what an unoptimised build on a busy machine needs, and far less than what
/// grows with the square of the size.
const IN_TIME: Duration = Duration::from_secs(10);

/// Pieces that parsers have died of, one after the other up to the limit.
const PIECES: &[&str] = &[
    "[",
    "{",
    "]",
    "}",
    "[]",
    "{}",
    "[{",
    "[[],",
    "{a: ",
    "{a: [",
    "{\"a\":",
    "[1,",
    ",",
    ":",
    ": ",
    ":\n",
    "a: ",
    "a:\n",
    "? ",
    "?\n",
    "? - ",
    "- ",
    "-\n",
    "- - ",
    "- [",
    "-",
    "---",
    "---\n",
    "--- \n",
    "...\n",
    "--- ---\n",
    "%YAML 1.2\n",
    "%TAG ! x\n",
    "&a ",
    "&a\n",
    "*a ",
    "*a, ",
    "&a [*a, ",
    "!",
    "!!str ",
    "!!binary ",
    "!<x> ",
    "<<: *a\n",
    "<<: {a: b}\n",
    "|\n",
    ">\n",
    "|9\n",
    ">-\n ",
    "'",
    "''",
    "\"",
    "\"\"",
    "\\",
    "\"\\",
    "\"\\u",
    "\"\\x0\"",
    "\\n",
    "#",
    "# \n",
    " #",
    "@",
    "`",
    "%",
    "\t",
    "\t\n",
    " ",
    " \n",
    "\n",
    "\r",
    "\r\n",
    "\n\n ",
    "\u{85}",
    "\u{2028}",
    "\u{feff}",
    "\0",
    "\u{1b}",
    "é",
    "数",
    "😀",
    "a\u{301}",
    "1",
    "0",
    "-1",
    "0x",
    "0x1",
    "1e9",
    "1.",
    ".5",
    ".inf ",
    ".nan\n",
    "1_0",
    "12:30:45 ",
    "2001-12-14t21:59:43.10-05:00\n",
    "true ",
    "null\n",
    "~\n",
    "a: b\n",
    "a: &x b\n",
    "a: *x\n",
    "\"a\": \"b\",",
    "a: 'b'\n",
    "a: |\n  b\n",
    "a: >+\n\n",
    "- a: b\n",
    "-   - a\n",
    "a: {b: [c, d], e: f}\n",
    "name: x\n",
    "description: d\n",
    "schema: {}\n",
    "\"schema\": {\"$ref\": \"#\"},",
    "{\"allOf\":[",
    "{\"$defs\":{\"a\":",
    "\"name\":\"x\",",
    "-----BEGIN SKILL-----\n",
];

#[derive(Debug)]
struct Read {
    diagnostics: Vec<Diagnostic>,
    lines: usize,
    took: Duration,
}

/// Reads a text as all that it could be.
fn read(bytes: &[u8]) -> Vec<Read> {
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    let as_one = |look: &dyn Fn(&Text, &mut Findings)| {
        let began = Instant::now();
        let mut findings = Findings::default();
        match Text::of_file(bytes) {
            Ok(text) => look(&text, &mut findings),
            Err(fault) => findings.fault(fault),
        }
        Read { diagnostics: findings.into_diagnostics(), lines, took: began.elapsed() }
    };
    let directory = Identity::Directory("x".to_owned());
    vec![
        as_one(&|text, findings| drop(manifest::read(text, findings))),
        as_one(&|text, findings| drop(playbook::read(text, &directory, true, findings))),
        as_one(&|text, findings| drop(agent_file::read(text, findings))),
    ]
}

fn check(bytes: &[u8], what: &str) {
    for Read { diagnostics, lines, took } in read(bytes) {
        assert!(took < IN_TIME, "{what}: {took:?}");
        assert!(diagnostics.len() <= 200, "{what}: {} diagnostics", diagnostics.len());
        for Diagnostic { message, line, code, .. } in diagnostics {
            assert!(message.len() < 8000, "{what}: {code}: {} bytes", message.len());
            assert!(line as usize <= lines + 1, "{what}: {code} in line {line} of {lines}");
        }
    }
}

/// The piece again and again, in each place where it could stand.
fn placed(piece: &str, bytes: usize) -> Vec<String> {
    let many = piece.repeat(bytes / piece.len());
    vec![
        many.clone(),
        format!("---\n{many}\n---\n"),
        format!("---\nname: x\ndescription: {many}\n---\n"),
        format!("---\nname: x\ndescription: \"{many}\"\n---\n"),
        format!("---\nname: x\ndescription: d\nmetadata: {{{many}}}\n---\n"),
        format!("{{\"name\":\"x\",\"description\":\"{many}\"}}"),
        format!("{{\"name\":\"x\",\"schema\":{{{many}}}}}"),
    ]
}

#[test]
fn what_parsers_have_died_of() {
    // One after another on few threads: a whole machine is not this test's.
    std::thread::scope(|scope| {
        for half in PIECES.chunks(PIECES.len().div_ceil(2)) {
            scope.spawn(move || {
                for piece in half {
                    for text in placed(piece, BYTES - 64) {
                        check(
                            text.as_bytes(),
                            &format!("{:?}… ({piece:?})", text.chars().take(20).collect::<String>()),
                        );
                    }
                }
            });
        }
    });
}

#[test]
fn what_grows_with_its_depth_or_its_count() {
    let stairs = |step: &dyn Fn(usize) -> String| (0..400).map(step).collect::<String>();
    let many = |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<String>();
    for (what, text) in [
        ("a staircase of mappings", stairs(&|i| format!("{}a:\n", " ".repeat(i)))),
        ("a staircase of lists", stairs(&|i| format!("{}-\n", " ".repeat(i)))),
        ("anchors", many(6000, &|i| format!("a{i}: &a{i} b\n"))),
        ("aliases", format!("a: &a b\n{}", many(6000, &|i| format!("b{i}: *a\n")))),
        ("laughs", format!("a0: &a0 [x]\n{}", many(40, &|i| format!("a{0}: &a{0} [*a{i}, *a{i}]\n", i + 1)))),
        ("keys", many(7000, &|i| format!("k{i}: v\n"))),
        ("nearly keys", many(5000, &|i| format!("descriptio{i}: v\n"))),
        ("keys of metadata", format!("metadata:\n{}", many(5000, &|i| format!("  k{i}: 1\n")))),
        ("tools", format!("tools:\n{}", many(2000, &|i| format!("- {{name: t{i}, class: c{i}}}\n")))),
        ("requirements", format!("metadata: {{requires: {{bins: [{}]}}}}\n", many(9000, &|i| format!("b{i},")))),
        ("a number", format!("category_order: {}\n", "9".repeat(60_000))),
        ("a hexadecimal number", format!("category_order: 0x{}\n", "f".repeat(60_000))),
        ("a fraction", format!("category_order: 0.{}\n", "1".repeat(60_000))),
        ("an exponent", format!("category_order: 1e{}\n", "9".repeat(60_000))),
        ("a key", format!("{}: v\n", "k".repeat(60_000))),
        ("a folded text", format!("description: >\n{}", many(5000, &|_| "  a\n\n".to_owned()))),
        ("comments", many(9000, &|_| "# c\n".to_owned())),
        ("blank lines", many(60_000, &|_| "\n".to_owned())),
    ] {
        check(format!("---\nname: x\n{text}---\n").as_bytes(), what);
        check(text.as_bytes(), what);
    }
}

#[test]
fn fences_without_end() {
    let text = format!("---\nname: x\ndescription: d\n---\n{}", "---\n".repeat(200_000));
    check(text.as_bytes(), "rules of the body");
    check(" ---\n".repeat(200_000).as_bytes(), "no fence at all");
    check(format!("---\n{}", " ---\n".repeat(200_000)).as_bytes(), "never closed");
    check(format!("# T\n{}", "---\n\n".repeat(200_000)).as_bytes(), "never opened");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        check(&bytes, "bytes");
        check(&[b"---\n", bytes.as_slice(), b"\n---\n"].concat(), "bytes between fences");
    }

    #[test]
    fn any_pieces(
        pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..60), fences in any::<bool>(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let text = pieces.concat();
        let text = if fences { format!("---\nname: x\ndescription: d\n{text}\n---\n") } else { text };
        check(text.as_bytes(), "pieces");
        check(&text.as_bytes()[..cut.index(text.len() + 1)], "pieces, cut");
    }

    /// What was read once is read again from what it says.
    #[test]
    fn a_description_of_any_characters_comes_through(description in "\\PC{1,200}") {
        prop_assume!(!description.trim().is_empty());
        let quoted = serde_json::to_string(&description).unwrap();
        let file = Text::of_file(format!("---\nname: x\ndescription: {quoted}\n---\n").as_bytes()).unwrap();
        let mut findings = Findings::default();
        let sheet = playbook::read(&file, &Identity::Directory("x".to_owned()), true, &mut findings);
        prop_assert_eq!(sheet.map(|sheet| sheet.description), Some(description));
    }
}
