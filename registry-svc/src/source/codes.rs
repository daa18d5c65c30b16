//! The codes of diagnostics: stable, each with what causes it and, from the second sentence on, what mends it. `E_` keeps a
//! candidate out, `W_` does not. `docs/diagnostics.md` is the same for people.

/// A file or directory cannot be read, or is not a regular file. Give the registry's user the right to read it.
pub const E_UNREADABLE: &str = "E_UNREADABLE";
/// A manifest is larger than is read: 1 MiB of a `SKILL.md`, 512 KiB of a `skill.json`, 4 MiB of an agent's file.
/// Move text that a model does not always need into files beside it.
pub const E_TOO_LARGE: &str = "E_TOO_LARGE";
/// A manifest has bytes that are not UTF-8. Save it as UTF-8.
pub const E_NOT_UTF8: &str = "E_NOT_UTF8";
/// A link leads out of the root. Put the files themselves under the root, or add the other directory as a root.
pub const E_ESCAPES_ROOT: &str = "E_ESCAPES_ROOT";
/// A manifest is a link to a file outside of its directory. Put the file itself there.
pub const E_MANIFEST_OUTSIDE: &str = "E_MANIFEST_OUTSIDE";
/// A file is nearly called as a manifest is (`Skill.md`). Rename it: `SKILL.md`, `skill.json`.
pub const E_MANIFEST_NAME: &str = "E_MANIFEST_NAME";
/// Directories are nested deeper than is walked. Move the skills further up.
pub const E_WALK_TOO_DEEP: &str = "E_WALK_TOO_DEEP";
/// A root has more entries than are walked; the rest was not looked at. Point the root at the skills alone.
pub const E_WALK_TOO_LARGE: &str = "E_WALK_TOO_LARGE";

/// Text that is not JSON: a comment, a trailing comma, something behind the value. Mend it where the position says.
pub const E_JSON: &str = "E_JSON";
/// A key stands twice in one object or mapping. Remove one.
pub const E_DUPLICATE_KEY: &str = "E_DUPLICATE_KEY";
/// Values are nested deeper than is read. Flatten them.
pub const E_TOO_DEEP: &str = "E_TOO_DEEP";
/// A value has the wrong type. Write the type that the message names.
pub const E_TYPE: &str = "E_TYPE";
/// A required key is missing. Add it.
pub const E_KEY_MISSING: &str = "E_KEY_MISSING";
/// A key is nearly `class`; were it left out, the skill would count as safe. Write `class`, or give the key another name.
pub const E_CLASS_MISSPELT: &str = "E_CLASS_MISSPELT";
/// A name breaks the rules for names. Write one that the message allows.
pub const E_NAME_INVALID: &str = "E_NAME_INVALID";
/// A description is blank. Say what the skill does and when to use it.
pub const E_DESCRIPTION_BLANK: &str = "E_DESCRIPTION_BLANK";
/// A class that does not exist. Write `safe`, `mutating` or `dangerous`.
pub const E_CLASS_UNKNOWN: &str = "E_CLASS_UNKNOWN";
/// A number of seconds below zero or beyond 32 bits. Write a whole number, 0 for the default.
pub const E_TIMEOUT_INVALID: &str = "E_TIMEOUT_INVALID";
/// A name that no environment variable can have. Write one without `=` and NUL.
pub const E_ENV_NAME: &str = "E_ENV_NAME";
/// `schema` is not an object. Write `{"type":"object","properties":{}}` or what the arguments are.
pub const E_SCHEMA_NOT_OBJECT: &str = "E_SCHEMA_NOT_OBJECT";
/// The schema does not compile. Mend what the message names.
pub const E_SCHEMA_INVALID: &str = "E_SCHEMA_INVALID";
/// The schema refers outside itself. Copy what it refers to into its `$defs`.
pub const E_SCHEMA_REF: &str = "E_SCHEMA_REF";

/// The entry's canonical path is not under the root. Move the program under the root.
pub const E_ENTRY_ESCAPES: &str = "E_ENTRY_ESCAPES";
/// The entry is not there. Check the path: it is relative to the manifest's directory.
pub const E_ENTRY_MISSING: &str = "E_ENTRY_MISSING";
/// The entry is a directory, a device, a socket or a FIFO. Name the program itself.
pub const E_ENTRY_NOT_FILE: &str = "E_ENTRY_NOT_FILE";
/// The entry may not be executed. `chmod +x` it.
pub const E_ENTRY_NOT_EXECUTABLE: &str = "E_ENTRY_NOT_EXECUTABLE";
/// The entry is neither a program nor begins with `#!`. Write an interpreter's path into its first line.
pub const E_ENTRY_NO_SHEBANG: &str = "E_ENTRY_NO_SHEBANG";
/// The entry's first line ends with CRLF: the system would look for an interpreter whose name ends with CR. Save it with
/// LF.
pub const E_ENTRY_CRLF: &str = "E_ENTRY_CRLF";
/// The entry's first line names no interpreter, or one by a relative path. Write an absolute one.
pub const E_ENTRY_SHEBANG: &str = "E_ENTRY_SHEBANG";
/// The entry is an object file, not a program. Link it.
pub const E_ENTRY_NOT_PROGRAM: &str = "E_ENTRY_NOT_PROGRAM";
/// The entry is not among the package's files (below `.git`, or its place is taken). Move it.
pub const E_ENTRY_NOT_PACKAGED: &str = "E_ENTRY_NOT_PACKAGED";

/// A file's name is not UTF-8 or not usable in a package. Rename it.
pub const E_PATH_INVALID: &str = "E_PATH_INVALID";
/// More than 4,096 files. Leave out what a run does not need.
pub const E_PACKAGE_TOO_MANY_FILES: &str = "E_PACKAGE_TOO_MANY_FILES";
/// More than 64 MiB. Leave out what a run does not need.
pub const E_PACKAGE_TOO_LARGE: &str = "E_PACKAGE_TOO_LARGE";

/// The first line is not `---`. Begin the file with it, then `name:` and `description:`, then `---`.
pub const E_FRONTMATTER_MISSING: &str = "E_FRONTMATTER_MISSING";
/// Nothing stands between the two `---`. Write `name:` and `description:`.
pub const E_FRONTMATTER_EMPTY: &str = "E_FRONTMATTER_EMPTY";
/// The closing `---` is missing, or does not stand at the line's start. Add it behind the last key.
pub const E_FRONTMATTER_UNCLOSED: &str = "E_FRONTMATTER_UNCLOSED";
/// More than 64 KiB between the two `---`. Move text into the body.
pub const E_FRONTMATTER_TOO_LARGE: &str = "E_FRONTMATTER_TOO_LARGE";
/// The frontmatter is not YAML, or not a mapping. An unquoted `: ` is the commonest cause: quote the value.
pub const E_YAML: &str = "E_YAML";
/// The cloud directory's manifest.json cannot be read, so directories' names are taken. Sync again.
pub const E_CLOUD_MANIFEST: &str = "E_CLOUD_MANIFEST";
/// The admin server was not asked to the end: it does not answer, or not in its protocol. Mend what the message names; what
/// is mirrored stays as it is.
pub const E_SYNC_SERVER: &str = "E_SYNC_SERVER";
/// A skill of the admin server is not mirrored, or stays as it was. Mend what the message names where it is published; it is
/// tried again at every sync.
pub const E_SYNC_SKILL: &str = "E_SYNC_SKILL";
/// A permission mode that does not exist. Write `read-only`, `mutating-with-confirm` or `dual-sign-required`.
pub const E_PERMISSION_MODE: &str = "E_PERMISSION_MODE";
/// Another skill, or agent, has the name and comes first. Rename one of the two, or remove one.
pub const E_NAME_TAKEN: &str = "E_NAME_TAKEN";

/// A hidden directory or `node_modules` holds a manifest and was not entered. Move the skill, if it is one.
pub const W_NOT_ENTERED: &str = "W_NOT_ENTERED";
/// A `skill.json` under a playbook root, or a `SKILL.md` under an external root. Subprocess skills belong under external
/// roots, playbooks under playbook roots.
pub const W_KIND_NOT_HERE: &str = "W_KIND_NOT_HERE";
/// A `SKILL.md` lies elsewhere than exactly one level below its root. Move its directory directly under the root.
pub const W_LEVEL: &str = "W_LEVEL";
/// A link leads nowhere. Remove or mend it.
pub const W_LINK_BROKEN: &str = "W_LINK_BROKEN";
/// A linked directory is not under the root and was not entered. Put the files themselves under the root, or add the
/// other directory as a root.
pub const W_LINK_OUT_OF_ROOT: &str = "W_LINK_OUT_OF_ROOT";
/// A link to a directory, out of the package or to nowhere is not in the package. Put the files there themselves.
pub const W_LINK_LEFT_OUT: &str = "W_LINK_LEFT_OUT";
/// A virtual environment depends on links that are left out. Vendor with `pip install --target` instead.
pub const W_VENV_LINKS: &str = "W_VENV_LINKS";
/// A socket, FIFO or device is not in the package. Remove it.
pub const W_NOT_REGULAR: &str = "W_NOT_REGULAR";
/// The entry lies outside the skill's directory: it alone is packaged, its neighbours are not. Move it, and what it
/// needs, into the directory.
pub const W_ENTRY_OUTSIDE: &str = "W_ENTRY_OUTSIDE";
/// The entry's shebang finds its interpreter by PATH, which `env_allow` does not pass on. Add `PATH`, or write the path.
pub const W_SHEBANG_NEEDS_PATH: &str = "W_SHEBANG_NEEDS_PATH";
/// A key of a manifest is nearly one that counts, and counts for nothing. Write the key that the message names.
pub const W_KEY_NEARLY: &str = "W_KEY_NEARLY";
/// The entry's interpreter is not on the registry's host. Every executor needs it.
pub const W_INTERPRETER_MISSING: &str = "W_INTERPRETER_MISSING";
/// The entry is a program for another architecture than the registry's. Every executor needs that one.
pub const W_ARCHITECTURE: &str = "W_ARCHITECTURE";
/// The entry seems to call bwrap, firejail, nsenter or unshare, which executors' isolation keeps from working. Name the
/// skill in `--self-confined` of every executor, or leave confining it to them.
pub const W_ENTRY_CONFINES: &str = "W_ENTRY_CONFINES";

/// The file's name is not the directory's, which is the one that counts. Make them the same.
pub const W_NAME_NOT_DIRECTORY: &str = "W_NAME_NOT_DIRECTORY";
/// The file's name is not the id that the admin server published it under, which is the one that counts. Make them the
/// same where it is published.
pub const W_NAME_NOT_ID: &str = "W_NAME_NOT_ID";
/// A name has more than the 64 characters that the Agent Skills specification allows. Shorten it.
pub const W_SPEC_NAME_LENGTH: &str = "W_SPEC_NAME_LENGTH";
/// A name has characters that the Agent Skills specification does not allow. Write lower-case letters, digits and hyphens
/// only.
pub const W_SPEC_NAME: &str = "W_SPEC_NAME";
/// A name has a hyphen at an end, or two in a row, which the Agent Skills specification does not allow. Remove it.
pub const W_SPEC_NAME_HYPHENS: &str = "W_SPEC_NAME_HYPHENS";
/// A description has more than the 1,024 characters that the Agent Skills specification allows. Shorten it.
pub const W_SPEC_DESCRIPTION: &str = "W_SPEC_DESCRIPTION";
/// `compatibility` is empty, or has more than the 500 characters that the Agent Skills specification allows. Write 1 to
/// 500, or leave the key out.
pub const W_SPEC_COMPATIBILITY: &str = "W_SPEC_COMPATIBILITY";
/// A value of `metadata` is no text, and the Agent Skills specification allows text only. Quote it.
pub const W_SPEC_METADATA: &str = "W_SPEC_METADATA";
/// `allowed-tools` is a list, and the Agent Skills specification has one text there. Write the tools with blanks between
/// them.
pub const W_SPEC_ALLOWED_TOOLS: &str = "W_SPEC_ALLOWED_TOOLS";
/// A key that the Agent Skills specification does not have at the top level. Put it under `metadata`.
pub const W_SPEC_KEY: &str = "W_SPEC_KEY";
/// `metadata.os` does not name the system of this host. Add it if the skill works there.
pub const W_REQUIRES_OS: &str = "W_REQUIRES_OS";
/// A program of `metadata.requires.bins` is not on this host's PATH. Install it.
pub const W_REQUIRES_BIN: &str = "W_REQUIRES_BIN";
/// A setting of `metadata.requires.config` is not among this host's environment variables (`aws.region` is `AWS_REGION`).
/// Set it.
pub const W_REQUIRES_CONFIG: &str = "W_REQUIRES_CONFIG";
/// A key has another type than is understood; it is kept as an unknown key. Write the type that the message names.
pub const W_KEY_TYPE: &str = "W_KEY_TYPE";
/// A tool's class that nobody knows. Write `safe` (or `read`), `mutating` or `dangerous`.
pub const W_TOOL_CLASS: &str = "W_TOOL_CLASS";

/// A key of an agent's file is nearly one that counts, and counts for nothing. Write the key that the message names.
pub const W_AGENT_KEY_NEARLY: &str = "W_AGENT_KEY_NEARLY";
/// `skills` is there and lists nothing, which means all skills. Write `["*"]` if that is meant.
pub const W_AGENT_SKILLS_EMPTY: &str = "W_AGENT_SKILLS_EMPTY";
/// `skills` or `disallowed_skills` names a skill that does not exist. Correct the name, or remove it.
pub const W_UNKNOWN_SKILL: &str = "W_UNKNOWN_SKILL";
/// A skill of the admin server is for a higher tier than this registry's. Nothing, or start the registry with its `--tier`.
pub const W_SYNC_TIER: &str = "W_SYNC_TIER";
/// The admin server does not give the content of a file, which is too large for it. Publish a smaller one.
pub const W_SYNC_FILE_MISSING: &str = "W_SYNC_FILE_MISSING";

/// A skill has the name of a tool by which models read playbooks, and is not offered to agents that see some. Choose
/// another name.
pub const W_TOOL_RESERVED: &str = "W_TOOL_RESERVED";
/// A skill's name is one that Gemini refuses as a function's. Begin it with a letter.
pub const W_TOOL_NAME: &str = "W_TOOL_NAME";
/// A subprocess skill's description is longer than OpenAI takes a function's, and is cut. Shorten it to 1,024 characters,
/// or to 960 where runs need approvals.
pub const W_TOOL_DESCRIPTION: &str = "W_TOOL_DESCRIPTION";
/// The root of a schema does not say `"type": "object"`, and APIs refuse a tool without it. Write it; until then it is
/// added to what they get.
pub const W_TOOL_SCHEMA_TYPE: &str = "W_TOOL_SCHEMA_TYPE";
/// The root of a schema has `oneOf`, `anyOf`, `allOf`, `not`, `enum` or `$ref`, and APIs refuse a tool with it. Write it
/// below a property, or say it in the description; until then all but `$ref` is left out of what OpenAI and Anthropic get.
pub const W_TOOL_SCHEMA_ROOT: &str = "W_TOOL_SCHEMA_ROOT";
/// A schema of an older draft is not one of draft 2020-12, and Anthropic refuses others. Write what the message names.
pub const W_TOOL_SCHEMA_DRAFT: &str = "W_TOOL_SCHEMA_DRAFT";
/// A schema has more than 10 levels of objects and arrays within one another, and OpenAI allows 10. Flatten it.
pub const W_TOOL_SCHEMA_DEEP: &str = "W_TOOL_SCHEMA_DEEP";
/// A property's name is one that Anthropic refuses. Write 1 to 64 letters a-z, digits, `_`, `.` and `-`.
pub const W_TOOL_PROPERTY: &str = "W_TOOL_PROPERTY";

#[cfg(test)]
mod tests {
    /// Code, cause and mend, as they stand here.
    fn codes() -> Vec<(&'static str, String, String)> {
        let (mut codes, mut comment) = (Vec::new(), Vec::new());
        for line in include_str!("codes.rs").lines() {
            if let Some(text) = line.strip_prefix("/// ") {
                comment.push(text);
            } else if let Some(code) = line.strip_prefix("pub const ") {
                let name = code.split(':').next().unwrap();
                assert!(code.ends_with(&format!("= \"{name}\";")), "{code}: it is called as it is written");
                let text = std::mem::take(&mut comment).join(" ");
                let (cause, mend) = text.split_once(". ").unwrap_or_else(|| panic!("{name}: what mends it?"));
                codes.push((name, format!("{cause}."), mend.to_owned()));
            }
        }
        codes
    }

    #[test]
    fn the_page_says_the_same() {
        let page = include_str!("../../../docs/diagnostics.md");
        let (page, _) = page.split_once("\n## The Agent Skills specification\n").unwrap();
        let (errors, warnings) = page.split_once("\n## Warnings\n").unwrap();
        for (prefix, section) in [("E_", errors), ("W_", warnings)] {
            let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| `")).collect();
            let wanted: Vec<_> = codes()
                .into_iter()
                .filter(|(code, ..)| code.starts_with(prefix))
                .map(|(code, cause, mend)| format!("| `{code}` | {cause} | {mend} |"))
                .collect();
            for (row, wanted) in rows.iter().zip(&wanted) {
                assert_eq!(row, wanted);
            }
            assert_eq!(rows.len(), wanted.len(), "{prefix}");
        }
        assert!(codes().iter().all(|(code, ..)| code.starts_with("E_") || code.starts_with("W_")));
    }
}
