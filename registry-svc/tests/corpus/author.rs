//! Writes SKILL.md files as people do, in the proportions found among published ones; the rarer ways are more frequent
//! here, so that each is seen. The same seed writes the same files.

/// One file, and what is to become of it.
#[derive(Debug)]
pub(crate) struct Written {
    /// Which way of writing it is.
    pub(crate) what: &'static str,
    pub(crate) directory: String,
    pub(crate) file: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) expected: Expected,
    /// Warnings that it has, among others.
    pub(crate) warns: Vec<&'static str>,
}

/// What is to become of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It is registered under its directory's name, with this description.
    Description(String),
    /// It is not, for this reason.
    Refused(&'static str),
}

/// Whoever writes them all.
#[derive(Debug)]
pub(crate) struct Author {
    state: u64,
}

const WORDS: [&str; 24] = [
    "Extracts",
    "text",
    "tables",
    "from",
    "PDF",
    "files,",
    "and",
    "fills",
    "forms.",
    "Use",
    "when",
    "the",
    "user",
    "mentions",
    "documents",
    "(.docx)",
    "—",
    "数据清洗",
    "résumé",
    "C++",
    "don't",
    "\"quoted\"",
    "100%",
    "🚀",
];
const NAMES: [&str; 12] = [
    "pdf",
    "docx",
    "git-commit",
    "code-review",
    "データ",
    "api",
    "k8s",
    "sql-helper",
    "notes",
    "ui-design",
    "étude",
    "x",
];

/// Ways that lose a file elsewhere, of 1,000 files each.
const FAULTS: [(&str, u64); 17] = [
    ("no frontmatter", 25),
    ("a title before the frontmatter", 10),
    ("a blank line before the frontmatter", 8),
    ("no fences", 8),
    ("an empty file", 3),
    ("an unquoted colon", 15),
    ("a value that begins with @", 5),
    ("skill.md", 8),
    ("Skill.md", 5),
    ("an unclosed frontmatter", 6),
    ("an indented closing fence", 4),
    ("an empty frontmatter", 4),
    ("no description", 6),
    ("a blank name", 4),
    ("a key twice", 5),
    ("a tab", 5),
    ("bytes that are not UTF-8", 5),
];

impl Author {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next file; `i` makes its directory's name its own.
    pub(crate) fn write(&mut self, i: usize) -> Written {
        let directory = format!("{}-{i}", self.one(&NAMES));
        let mut dice = self.below(1000);
        for (what, share) in FAULTS {
            if dice < share {
                return self.fault(what, directory);
            }
            dice -= share;
        }
        self.whole(directory)
    }

    fn whole(&mut self, directory: String) -> Written {
        let mut warns = Vec::new();
        let mut lines = Vec::new();
        if self.one_in(4) {
            warns.push("W_NAME_NOT_DIRECTORY");
            let other = [format!("{directory} Helper"), directory.to_uppercase() + "!", format!("\"{directory}: x\"")];
            lines.push(format!("name: {}", self.one(&other)));
        } else {
            lines.push(format!("name: {directory}"));
        }
        let (written, description) = self.description();
        lines.push(written);
        for (chance, line, warning) in [
            (8, "version: 1.0.0", Some("W_SPEC_KEY")),
            (7, "homepage: https://example.com/a#b", Some("W_SPEC_KEY")),
            (4, "license: MIT", None),
            (9, "allowed-tools: [Read, Bash]", None),
            (9, "metadata:\n  author: me\n  tags: [a, b]", Some("W_SPEC_METADATA")),
            (20, "tags:\n- one\n- two", Some("W_SPEC_KEY")),
            (20, "# a comment", None),
            (30, "category_order: many", Some("W_KEY_TYPE")),
            (30, "license: |\n  a\n\n  b", None),
        ] {
            if self.one_in(chance) && !lines.iter().any(|other| key(other) == key(line)) {
                lines.push(line.to_owned());
                warns.extend(warning);
            }
        }
        if self.one_in(3) {
            lines.rotate_left(1);
        }
        let body = [
            "# Title\n\nText.\n",
            "",
            "\n---\n\nA rule, and\n---\nanother.\n",
            "```yaml\n---\nname: other\n---\n```\n",
        ];
        let fence = if self.one_in(30) { "--- \t" } else { "---" };
        let head = format!("{fence}\n{}\n{fence}\n", lines.join("\n"));
        let body = *self.one(&body);
        let (what, text) = match self.below(40) {
            0 => ("CRLF", format!("{head}{body}").replace('\n', "\r\n")),
            1 => ("CRLF in the frontmatter", head.replace('\n', "\r\n") + body),
            2 => ("a byte order mark", format!("\u{feff}{head}{body}")),
            _ => ("whole", format!("{head}{body}")),
        };
        Written {
            what,
            directory,
            file: "SKILL.md",
            bytes: text.into_bytes(),
            expected: Expected::Description(description),
            warns,
        }
    }

    fn fault(&mut self, what: &'static str, directory: String) -> Written {
        let (_, description) = self.description();
        let quoted = format!("description: {}", serde_json::to_string(&description).unwrap());
        let name = format!("name: {directory}");
        let head = format!("{name}\n{quoted}");
        let whole = format!("---\n{head}\n---\n# Body\n");
        let (text, code) = match what {
            "no frontmatter" => (format!("# {directory}\n\n{description}\n\n---\n\nMore.\n"), "E_FRONTMATTER_MISSING"),
            "a title before the frontmatter" => (format!("# Title\n\n{whole}"), "E_FRONTMATTER_MISSING"),
            "a blank line before the frontmatter" => (format!("\n{whole}"), "E_FRONTMATTER_MISSING"),
            "no fences" => (format!("{head}\n\n# Body\n"), "E_FRONTMATTER_MISSING"),
            "an empty file" => (String::new(), "E_FRONTMATTER_MISSING"),
            "an unquoted colon" => (format!("---\n{name}\ndescription: Use when: {directory}\n---\n"), "E_YAML"),
            "a value that begins with @" => (format!("---\n{name}\ndescription: @scope/{directory}\n---\n"), "E_YAML"),
            "an unclosed frontmatter" => (format!("---\n{head}\n\n# Body\n"), "E_FRONTMATTER_UNCLOSED"),
            "an indented closing fence" => (format!("---\n{head}\n ---\n# Body\n"), "E_FRONTMATTER_UNCLOSED"),
            "an empty frontmatter" => ("---\n---\n# Body\n".to_owned(), "E_FRONTMATTER_EMPTY"),
            "no description" => (format!("---\n{name}\nlicense: MIT\n---\n"), "E_KEY_MISSING"),
            "a blank name" => (format!("---\nname: \" \"\n{quoted}\n---\n"), "E_NAME_INVALID"),
            "a key twice" => (format!("---\n{head}\nname: other\n---\n"), "E_DUPLICATE_KEY"),
            "a tab" => (format!("---\n{head}\nmetadata:\n\tauthor: me\n---\n"), "E_YAML"),
            "bytes that are not UTF-8" => (whole.clone(), "E_NOT_UTF8"),
            _ => (whole.clone(), "E_MANIFEST_NAME"),
        };
        let mut bytes = text.into_bytes();
        if code == "E_NOT_UTF8" {
            let at = bytes.len() - self.below(6) as usize;
            bytes.splice(at..at, [0xFF, 0xFE]);
        }
        let file = ["skill.md", "Skill.md"].into_iter().find(|file| *file == what).unwrap_or("SKILL.md");
        Written { what, directory, file, bytes, expected: Expected::Refused(code), warns: Vec::new() }
    }

    /// A description as it is written, and as it is meant.
    fn description(&mut self) -> (String, String) {
        let count = 3 + self.below(30);
        let mut words: Vec<_> = (0..count).map(|_| *self.one(&WORDS)).collect();
        // What would make a plain text something else at its start.
        words[0] = "Helps";
        let text = words.join(" ");
        let (first, rest) = words.split_at(words.len() / 2);
        let (first, rest) = (first.join(" "), rest.join(" "));
        match self.below(9) {
            0 => (format!("description: \"{}: x\"", text.replace('"', "\\\"")), format!("{text}: x")),
            1 => (format!("description: '{}: x'", text.replace('\'', "''")), format!("{text}: x")),
            2 => (format!("description: >-\n  {first}\n  {rest}"), format!("{first} {rest}")),
            3 => (format!("description: >\n  {first}: x\n  {rest}"), format!("{first}: x {rest}\n")),
            4 => (format!("description: |\n  {first}\n  ---\n  {rest}"), format!("{first}\n---\n{rest}\n")),
            5 => (format!("description: {first}\n  {rest}"), format!("{first} {rest}")),
            6 => (format!("description: {text} --- more"), format!("{text} --- more")),
            7 => (format!("description:   {text}   # a comment"), text),
            _ => (format!("description: {text}"), text),
        }
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }

    /// SplitMix64.
    fn below(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

fn key(line: &str) -> &str {
    line.split(':').next().unwrap_or_default()
}
