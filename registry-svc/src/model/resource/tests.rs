use super::*;
use proptest::prelude::*;
use skillyard::skill::{Card, Kind};
use skillyard::{Digest, Skill, Source};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use crate::source::{Root, RootKind, RootState, scan_skills};

const MANIFEST_TEXT: &str = "---\nname: x\ndescription: d\n---\nBody.\n";

/// The playbook in `root/x`, as a scan finds it.
fn scanned(root: &Path) -> std::sync::Arc<FoundSkill> {
    let root = Root { path: root.to_owned(), kind: RootKind::Skills(Source::Override), state: RootState::Registered };
    let scan = scan_skills(&root, None);
    scan.candidates[0].value.clone().unwrap_or_else(|| panic!("{:?}", scan.candidates))
}

fn playbook(files: &[(&str, &[u8])]) -> (tempfile::TempDir, std::sync::Arc<FoundSkill>) {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in [("SKILL.md", MANIFEST_TEXT.as_bytes())].iter().chain(files) {
        let path = root.path().join("x").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let found = scanned(root.path());
    (root, found)
}

fn read(found: &FoundSkill, relpath: &str) -> Result<Resource, ResourceError> {
    resource(found, &relpath.parse()?)
}

fn text(found: &FoundSkill, relpath: &str) -> String {
    match read(found, relpath).unwrap().data {
        Data::Text(text) => text,
        Data::Base64(text) => panic!("{text}"),
    }
}

#[test]
fn paths_that_are_none() {
    for bad in [
        "",
        "../x",
        "a/../b",
        "..",
        "/etc/hosts",
        "a\\..\\b",
        "a\\b",
        ".git/config",
        ".env",
        "a/.b/c",
        "a/./b",
        ".",
        "a//b",
        "a/",
        "/",
        "a\0b",
        "a/..",
        &"a".repeat(1025),
    ] {
        assert!(bad.parse::<Relpath>().is_err(), "{bad:?}");
    }
    for good in ["a", "a/b.md", "a b/ü.md", "a..b", "a/b.", "SKILL.md"] {
        assert_eq!(good.parse::<Relpath>().unwrap().to_string(), good);
    }
}

#[test]
fn what_is_listed_is_what_can_be_read() {
    let (root, _) = playbook(&[
        ("references/a.md", b"one"),
        ("back\\slash.md", b"cannot be asked for"),
        (".hidden", b"x"),
        (".git/config", b"x"),
        ("empty", b""),
        ("nul.txt", b"a\0b"),
    ]);
    let x = root.path().join("x");
    fs::write(root.path().join("secret"), "secret").unwrap();
    symlink("references/a.md", x.join("link.md")).unwrap();
    symlink("../secret", x.join("out.md")).unwrap();
    symlink("/etc/passwd", x.join("passwd")).unwrap();
    symlink("..", x.join("up")).unwrap();
    symlink("references", x.join("refs")).unwrap();
    symlink("nowhere", x.join("broken")).unwrap();
    let found = scanned(root.path());
    let listed: Vec<_> = resources(&found).map(|file| file.path.to_string()).collect();
    assert_eq!(listed, ["empty", "link.md", "nul.txt", "references/a.md"]);
    for relpath in &listed {
        let file = resources(&found).find(|file| file.path.as_str() == relpath).unwrap();
        assert_eq!(read(&found, relpath).unwrap().file, *file);
    }
    assert_eq!(text(&found, "link.md"), "one");
    assert_eq!(text(&found, "empty"), "");
    assert_eq!(text(&found, "nul.txt"), "a\0b");
    for unknown in ["SKILL.md", "refs/a.md", "references", "broken", "none.md", "references/a.md/b"] {
        assert!(matches!(read(&found, unknown), Err(ResourceError::Unknown(path)) if path == unknown), "{unknown}");
    }
    for out in ["out.md", "passwd", "up/secret", "up/x/SKILL.md"] {
        let error = read(&found, out).unwrap_err();
        assert!(matches!(error, ResourceError::Relpath(RelpathError::LeadsOut(_))), "{out}: {error}");
    }
    assert_eq!(body(&found).unwrap(), "Body.\n");
}

#[test]
fn text_and_bytes_are_told_apart_and_cut_at_1_mib() {
    let at = |size: usize, end: &str| [&"a".repeat(size - end.len()), end].concat().into_bytes();
    let (_root, found) = playbook(&[
        ("exact.txt", &at(MAX_BYTES, "é")),
        ("over.txt", &at(MAX_BYTES + 1, "é")),
        ("wide.txt", &"字".repeat(MAX_BYTES).into_bytes()),
        ("late.bin", &[at(MAX_BYTES + 100_000, ""), vec![0xff]].concat()),
        ("cut.bin", &[at(10, "").as_slice(), &"é".as_bytes()[..1]].concat()),
    ]);
    let cut = |relpath: &str| {
        let Resource { data, truncated, file } = read(&found, relpath).unwrap();
        (data, truncated, file.size)
    };
    let (data, truncated, size) = cut("exact.txt");
    assert_eq!((data, truncated, size), (Data::Text(String::from_utf8(at(MAX_BYTES, "é")).unwrap()), false, 1 << 20));
    let (data, truncated, size) = cut("over.txt");
    assert_eq!((data, truncated, size), (Data::Text("a".repeat(MAX_BYTES - 1)), true, (1 << 20) + 1));
    let (data, truncated, size) = cut("wide.txt");
    assert_eq!((data, truncated, size), (Data::Text("字".repeat(MAX_BYTES / 3)), true, 3 << 20));
    let (data, truncated, _) = cut("late.bin");
    assert_eq!((data, truncated), (Data::Base64(STANDARD.encode(at(MAX_BYTES, ""))), true), "all of it is looked at");
    assert_eq!(cut("cut.bin"), (Data::Base64("YWFhYWFhYWFhYcM=".into()), false, 11));
}

#[test]
fn what_is_no_longer_that_of_the_digest_is_not_read() {
    let change = |change: fn(&Path)| {
        let (root, found) = playbook(&[("a.md", b"one")]);
        fs::write(root.path().join("secret"), "two").unwrap();
        change(&root.path().join("x"));
        read(&found, "a.md").unwrap_err().to_string()
    };
    assert_eq!(change(|x| fs::write(x.join("a.md"), "two").unwrap()), "a.md has changed");
    assert_eq!(change(|x| fs::write(x.join("a.md"), "longer").unwrap()), "a.md has changed");
    assert_eq!(change(|x| fs::write(x.join("a.md"), "").unwrap()), "a.md has changed");
    let relinked = |x: &Path, to: &str| {
        fs::remove_file(x.join("a.md")).unwrap();
        symlink(to, x.join("a.md")).unwrap();
    };
    assert!(change(|x| fs::remove_file(x.join("a.md")).unwrap()).starts_with("a.md cannot be read"));
    for to in ["../secret", "/etc/hostname", "a.md", "/dev/zero"] {
        let (root, found) = playbook(&[("a.md", b"one")]);
        fs::write(root.path().join("secret"), "one").unwrap();
        relinked(&root.path().join("x"), to);
        let error = read(&found, "a.md").unwrap_err().to_string();
        assert!(error.starts_with("a.md cannot be read"), "{to}: {error}");
    }
    let (root, found) = playbook(&[("a.md", b"one")]);
    let path = root.path().join("x/a.md");
    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(read(&found, "a.md").unwrap_err().to_string(), "a.md cannot be read: it is not a regular file");
    fs::write(root.path().join("x/SKILL.md"), MANIFEST_TEXT.replace("Body", "Bodi")).unwrap();
    assert_eq!(body(&found).unwrap_err().to_string(), "SKILL.md has changed");
    fs::remove_dir_all(root.path().join("x")).unwrap();
    assert!(body(&found).unwrap_err().to_string().starts_with("SKILL.md cannot be read"));
}

/// A thread swaps the file, and the directory that it is in, for links out of the package, as fast as it can.
#[test]
fn links_swapped_while_reading_lead_nowhere() {
    let (root, found) = playbook(&[("dir/a.md", b"inside"), ("file.md", b"inside")]);
    let x = root.path().join("x");
    fs::create_dir(root.path().join("outside")).unwrap();
    fs::write(root.path().join("outside/a.md"), "SECRET").unwrap();
    let stop = AtomicBool::new(false);
    let (mut read_it, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (name, to) in [("dir.link", "../outside"), ("file.link", "../outside/a.md")] {
                symlink(to, root.path().join(name)).unwrap();
            }
            let exchange = |a: &Path, b: &Path| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, a, rustix::fs::CWD, b, flags).unwrap();
            };
            while !stop.load(Ordering::Relaxed) {
                exchange(&root.path().join("dir.link"), &x.join("dir"));
                exchange(&root.path().join("file.link"), &x.join("file.md"));
            }
        });
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while (read_it < 200 || refused < 200) && std::time::Instant::now() < end {
            for relpath in ["dir/a.md", "file.md"] {
                match read(&found, relpath) {
                    Ok(resource) => {
                        assert_eq!(resource.data, Data::Text("inside".into()));
                        read_it += 1;
                    }
                    Err(ResourceError::Read(_)) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(read_it > 0 && refused > 0, "{read_it} {refused}");
}

fn hostile() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("..".to_owned()),
        Just(".".to_owned()),
        Just("up".to_owned()),
        Just("out".to_owned()),
        Just("secret".to_owned()),
        Just("x".to_owned()),
        Just("in".to_owned()),
        Just("a.md".to_owned()),
        "(?s).{0,3}",
    ];
    proptest::collection::vec(part, 0..6).prop_map(|parts| parts.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    #[test]
    fn no_path_reads_outside(paths in proptest::collection::vec(hostile(), 40)) {
        let (root, _) = playbook(&[("in/a.md", b"inside"), ("a.md", b"inside")]);
        fs::write(root.path().join("secret"), "SECRET").unwrap();
        for (name, to) in [("up", ".."), ("out", "../secret"), ("in/up", "../.."), ("in/out", "/etc/passwd")] {
            symlink(to, root.path().join("x").join(name)).unwrap();
        }
        let found = scanned(root.path());
        for path in paths {
            if let Ok(read) = read(&found, &path) {
                prop_assert_eq!(read.data, Data::Text("inside".into()));
                prop_assert!(resources(&found).any(|file| file.path.as_str() == path));
            }
        }
    }
}

#[test]
fn a_package_without_its_text() {
    let skill = Skill {
        name: "x".parse().unwrap(),
        description: "d".into(),
        source: Source::Override,
        digest: Digest::of(b""),
        path: "x".into(),
        kind: Kind::Playbook(Box::default()),
        card: Card::default(),
        extra: serde_json::Map::new(),
        modified_at: SystemTime::UNIX_EPOCH,
    };
    let package = crate::source::Package { directory: std::path::Path::new("/").into(), files: Vec::new() };
    assert!(matches!(body(&FoundSkill { skill, package, tier: None }), Err(ReadError::NoManifest)));
}
