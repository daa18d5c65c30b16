//! Thousands of SKILL.md as people write them, made anew from a seed: every one is registered with what its author meant,
//! or has a diagnostic that says why not; none is lost without a word.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod author;

use std::collections::BTreeMap;
use std::fs;

use registry_svc::source::{
    Candidate, FoundSkill, Look, Root, RootKind, RootState, Severity, scan_skills, scan_skills_with,
};
use skillyard::Source;

use author::{Author, Expected, Written};

const FILES: usize = 3000;

/// The corpus under a root, and what is expected of each directory of it.
fn corpus(seed: u64) -> (tempfile::TempDir, Root, BTreeMap<String, Written>) {
    let dir = tempfile::tempdir().unwrap();
    let mut author = Author::new(seed);
    let mut all = BTreeMap::new();
    for i in 0..FILES {
        let written = author.write(i);
        let directory = dir.path().join(&written.directory);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(written.file), &written.bytes).unwrap();
        assert!(all.insert(written.directory.clone(), written).is_none());
    }
    let root =
        Root { path: dir.path().to_owned(), kind: RootKind::Skills(Source::Override), state: RootState::Registered };
    (dir, root, all)
}

fn codes(candidate: &Candidate<FoundSkill>, severity: Severity) -> Vec<&'static str> {
    candidate.diagnostics.iter().filter(|d| d.severity == severity).map(|d| d.code).collect()
}

#[test]
fn nothing_is_lost_without_a_word() {
    let (_dir, root, all) = corpus(1);
    let scan = scan_skills(&root, None);
    assert_eq!(scan.candidates.len(), FILES, "one candidate a directory");
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for candidate in &scan.candidates {
        let directory = candidate.path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let written = &all[directory];
        let what = || format!("{}: {:?}: {:?}", written.what, String::from_utf8_lossy(&written.bytes), candidate);
        *kinds.entry(written.what).or_default() += 1;
        match &written.expected {
            Expected::Description(description) => {
                let skill = &candidate.value.as_deref().unwrap_or_else(|| panic!("{}", what())).skill;
                assert_eq!(&skill.description, description, "{}", what());
                assert_eq!(skill.name.as_str(), directory, "{}", what());
                assert!(!skill.description.contains('\r'), "{}", what());
                assert_eq!(codes(candidate, Severity::Error), Vec::<&str>::new(), "{}", what());
            }
            Expected::Refused(code) => {
                assert!(candidate.value.is_none() && candidate.failed.is_some(), "{}", what());
                assert_eq!(codes(candidate, Severity::Error), [*code], "{}", what());
                let fault = candidate.diagnostics.iter().find(|d| d.code == *code).unwrap();
                assert!(fault.message.len() > 20, "{}", what());
            }
        }
        for code in &written.warns {
            assert!(codes(candidate, Severity::Warning).contains(code), "{code}: {}", what());
        }
        assert!(candidate.diagnostics.iter().all(|d| d.message.contains([':', ',', ' '])), "{}", what());
    }
    // Every way of writing was there, and the whole ones are many.
    assert!(kinds.len() >= 20 && kinds.values().all(|count| *count >= 5), "{kinds:?}");
    assert!(kinds["whole"] > FILES / 2, "{kinds:?}");
}

#[test]
fn a_second_look_sees_the_same_and_a_strict_one_registers_the_same() {
    let (_dir, root, _) = corpus(2);
    let scan = scan_skills(&root, None);
    assert_eq!(scan_skills(&root, Some(&scan)), scan);
    let strict = scan_skills_with(&Look { strict: true, ..Look::default() }, &root, None);
    for (tolerant, strict) in scan.candidates.iter().zip(&strict.candidates) {
        assert_eq!((&tolerant.path, &tolerant.value, tolerant.failed), (&strict.path, &strict.value, strict.failed));
        assert!(tolerant.diagnostics.iter().all(|d| strict.diagnostics.contains(d)), "{:?}", tolerant.path);
    }
}
