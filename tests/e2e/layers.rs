//! The layers: who may import whom. What is found here by reading the sources, the compiler does not see.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use skillyard_tests::binaries::workspace;

/// A module, and what it may not know: modules of its crate, and crates.
struct Rule {
    module: &'static str,
    never: &'static [&'static str],
}

const REGISTRY: &[Rule] = &[
    // `registry-svc check` is the way from the disk to the load report, without a server.
    Rule { module: "check", never: &["grpc", "store", "client", "config", "tonic", "prost", "pb", "wire"] },
    // Disk to values: no catalog, no wire.
    Rule { module: "source", never: &["admin", "catalog", "model", "grpc", "config", "tonic", "prost", "pb", "wire"] },
    // Values to a snapshot: no wire.
    Rule { module: "catalog", never: &["admin", "model", "grpc", "config", "tonic", "prost", "pb", "wire"] },
    // A snapshot to what a model reads: no wire.
    Rule { module: "model", never: &["admin", "grpc", "store", "config", "tonic", "prost", "pb", "wire"] },
    // HTTP, both ways: roots and snapshots, no wire of gRPC.
    Rule { module: "admin", never: &["grpc", "store", "client", "config", "tonic", "prost", "pb", "wire"] },
    // The database: values alone.
    Rule {
        module: "store",
        never: &["admin", "source", "catalog", "model", "grpc", "config", "tonic", "prost", "pb", "wire"],
    },
    // `registry-svc approvals` asks any registry, and shares nothing with this one.
    Rule { module: "client", never: &["source", "catalog", "model", "grpc", "store", "config"] },
    Rule { module: "config", never: &["catalog", "model", "grpc", "tonic", "prost", "pb", "wire"] },
];

const EXECUTOR: &[Rule] = &[
    // Processes: no skills, no catalog, no wire, no runs.
    Rule {
        module: "slot",
        never: &["mirror", "run", "grpc", "registry", "config", "client", "tonic", "prost", "pb", "wire"],
    },
    // From the registry to verified files.
    Rule { module: "mirror", never: &["run", "grpc", "slot", "config", "client", "pb"] },
    // One run: it knows nothing of who asked, nor of where packages come from.
    Rule { module: "run", never: &["grpc", "registry", "config", "client", "pb", "wire"] },
    // The registry's client knows no run.
    Rule { module: "registry", never: &["run", "grpc", "slot", "config", "client"] },
    Rule { module: "config", never: &["run", "grpc", "slot", "mirror", "registry", "prost", "pb", "wire"] },
    // `executor-svc run` talks to any executor, and shares nothing with this one.
    Rule { module: "client", never: &["run", "grpc", "slot", "mirror", "registry"] },
];

#[test]
fn imports_go_the_way_that_is_drawn() {
    let mut wrong = Vec::new();
    for (package, rules) in [("registry-svc", REGISTRY), ("executor-svc", EXECUTOR)] {
        let sources = workspace().join(package).join("src");
        for file in files(&sources) {
            let module = module_of(&file, &sources);
            let names = names(&std::fs::read_to_string(&file).unwrap());
            let rule = rules.iter().find(|rule| rule.module == module);
            for name in rule.into_iter().flat_map(|rule| rule.never).filter(|name| names.contains(**name)) {
                wrong.push(format!("{}: {module} may not know {name}", file.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Outside the process and the environment are read, and processes started, in one place each.
#[test]
fn one_file_starts_processes_and_one_reads_the_environment() {
    // Becomes the same program again, before anything else.
    let again = "proto/src/service/heap.rs";
    let (mut starts, mut reads) = (BTreeSet::new(), BTreeSet::new());
    for package in ["proto", "registry-svc", "executor-svc"] {
        let sources = workspace().join(package).join("src");
        for file in files(&sources) {
            let text = production(&std::fs::read_to_string(&file).unwrap());
            let name = file.strip_prefix(workspace()).unwrap().display().to_string();
            if text.contains("process::Command") || text.contains("Command::new(") {
                starts.insert(name.clone());
            }
            if text.contains("env::var") {
                reads.insert(name);
            }
        }
    }
    assert_eq!(Vec::from_iter(starts), ["executor-svc/src/slot/spawn.rs", again]);
    let allowed = |name: &String| name.ends_with("config.rs") || name.contains("/config/") || name == again;
    assert!(reads.iter().all(allowed), "{reads:?}");
}

#[test]
fn the_scanner_sees_what_it_must() {
    let text = "use crate::{grpc::{self, Wire as W}, catalog};\nuse skillyard::pb::registry::v1 as pb;\n\
                // use crate::ignored;\nfn f() { crate::run::go(\"crate::text::x\"); prost_types::X }\n\
                #[cfg(test)]\nmod tests { use crate::in_tests; }\n";
    let found = names(text);
    for name in ["grpc", "catalog", "pb", "run", "prost"] {
        assert!(found.contains(name), "{name} in {found:?}");
    }
    for name in ["ignored", "text", "in_tests", "wire"] {
        assert!(!found.contains(name), "{name} in {found:?}");
    }
}

/// The modules of its own crate, the crates, and the parts of `skillyard` that a file names.
fn names(text: &str) -> BTreeSet<String> {
    let text = production(text);
    let mut found = BTreeSet::new();
    for root in ["crate", "skillyard"] {
        for after in after_each(&text, &format!("{root}::")) {
            found.extend(heads(after));
        }
    }
    for name in ["tonic", "prost"] {
        // With what belongs to it: prost_types, tonic_health.
        if after_each(&text, name).any(|after| after.trim_start_matches(|c: char| is_word(c)).starts_with("::")) {
            found.insert(name.to_owned());
        }
    }
    found
}

/// What follows each place where a path begins.
fn after_each<'a>(text: &'a str, head: &str) -> impl Iterator<Item = &'a str> {
    text.match_indices(head).collect::<Vec<_>>().into_iter().filter_map(move |(at, head)| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|c| !is_word(c) && c != ':').then(|| &text[at + head.len()..])
    })
}

/// `a::b` gives a; `{a, b::{c}, d}` gives a, b, d.
fn heads(path: &str) -> Vec<String> {
    let word = |text: &str| text.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>();
    let Some(group) = path.trim_start().strip_prefix('{') else { return vec![word(path)] };
    let (mut found, mut depth, mut item) = (vec![word(group)], 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                item = at + 1;
                found.push(word(&group[item..]));
            }
            _ => {}
        }
    }
    debug_assert!(item <= group.len());
    found.retain(|name| !name.is_empty());
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text without comments, texts in quotes, and the tests at its end.
fn production(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut kept = String::new();
    for line in text.lines() {
        let mut quoted = false;
        let mut previous = ' ';
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '"' if previous != '\\' && previous != '\'' => quoted = !quoted,
                '/' if !quoted && chars.peek() == Some(&'/') => break,
                _ if !quoted => kept.push(c),
                _ => {}
            }
            previous = if previous == '\\' && c == '\\' { ' ' } else { c };
        }
        kept.push('\n');
    }
    kept
}

/// The first part of a file's path in the crate: `catalog` of `catalog/load.rs`, `grpc` of `grpc.rs`.
fn module_of(file: &Path, sources: &Path) -> String {
    let path = file.strip_prefix(sources).unwrap();
    let first = path.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = skillyard_tests::world::tree(directory);
    found.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    found
}
