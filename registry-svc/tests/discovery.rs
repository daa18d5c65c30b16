//! What a golden pack cannot hold: special files, rights, names that are not UTF-8, limits, and looking again after a
//! change. Over real directories.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use registry_svc::source::{
    Candidate, FoundSkill, Host, Look, Root, RootKind, RootState, SkillScan, Stage, open, scan_agents, scan_skills,
    scan_skills_with,
};
use rustix::fs::{CWD, FileType, Mode};
use skillyard::Source;
use skillyard::skill::Kind;

const RUN: &str = "#!/bin/sh\necho '{}'\n";

/// Far more than a machine that works needs, far less than what grows with the square of a file's size.
const IN_TIME: Duration = Duration::from_secs(20);

/// A root in a temporary directory.
struct World {
    dir: tempfile::TempDir,
    source: Source,
}

impl World {
    fn new(source: Source) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("skills")).unwrap();
        Self { dir, source }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("skills").join(relative)
    }

    fn write(&self, relative: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn program(&self, relative: &str, content: impl AsRef<[u8]>) {
        chmod(&self.write(relative, content), 0o755);
    }

    /// A whole subprocess skill in a directory of its name.
    fn skill(&self, name: &str) {
        self.skill_with(name, "run.sh");
        self.program(&format!("{name}/run.sh"), RUN);
    }

    fn skill_with(&self, name: &str, entry: &str) {
        let manifest = format!(r#"{{"name":"{name}","description":"d","entry":"{entry}"}}"#);
        self.write(&format!("{name}/skill.json"), manifest);
    }

    /// A whole playbook in a directory of its name.
    fn playbook(&self, name: &str) {
        self.write(&format!("{name}/SKILL.md"), format!("---\nname: {name:?}\ndescription: d\n---\nBody\n"));
    }

    fn root(&self) -> Root {
        Root { path: self.path(""), kind: RootKind::Skills(self.source), state: RootState::Registered }
    }

    fn scan(&self) -> SkillScan {
        scan_skills(&self.root(), None)
    }

    /// Looks again until what is remembered is trusted, so that nothing is read any more.
    fn settled(&self) -> SkillScan {
        let mut scan = self.scan();
        let start = Instant::now();
        loop {
            let next = scan_skills(&self.root(), Some(&scan));
            if next.candidates.iter().zip(&scan.candidates).all(|(a, b)| same(a, b)) {
                assert!(!next.needs_second_look());
                return next;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "never settles");
            std::thread::sleep(Duration::from_millis(50));
            scan = next;
        }
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether the one was taken over from the other.
fn same(a: &Candidate<FoundSkill>, b: &Candidate<FoundSkill>) -> bool {
    match (&a.value, &b.value) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Every candidate: its path below the root, whether it has a value, and its codes.
fn seen(world: &World, scan: &SkillScan) -> Vec<(String, bool, Vec<&'static str>)> {
    let root = world.path("");
    let one = |candidate: &Candidate<FoundSkill>| {
        let path = candidate.path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        (path, candidate.value.is_some(), candidate.diagnostics.iter().map(|d| d.code).collect())
    };
    scan.candidates.iter().map(one).collect()
}

fn row(path: &str, whole: bool, codes: &[&'static str]) -> (String, bool, Vec<&'static str>) {
    (path.to_owned(), whole, codes.to_vec())
}

fn find<'a>(scan: &'a SkillScan, name: &str) -> &'a FoundSkill {
    let found = scan.candidates.iter().find(|candidate| &*candidate.name == name && candidate.value.is_some());
    found.unwrap_or_else(|| panic!("no {name} in {scan:?}")).value.as_deref().unwrap()
}

fn files(found: &FoundSkill) -> Vec<&str> {
    found.package.files.iter().map(|file| file.file.path.as_str()).collect()
}

/// Without root's right to read everything: the thread alone takes another uid.
fn as_nobody<T: Send>(world: &World, look: impl FnOnce() -> T + Send) -> T {
    chmod(world.dir.path(), 0o755);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            look()
        });
        thread.join().unwrap()
    })
}

#[test]
fn roots_that_are_not_looked_at() {
    let world = World::new(Source::External);
    world.skill("a");
    let state = |path: PathBuf, state| {
        let scan = scan_skills(&Root { path, state, ..world.root() }, None);
        (scan.root.state, scan.candidates.iter().map(|c| c.diagnostics[0].code).collect::<Vec<_>>())
    };
    let path = world.path("");
    assert_eq!(state(path.clone(), RootState::NotAbsolute), (RootState::NotAbsolute, vec![]));
    assert_eq!(state(path.clone(), RootState::NotEntitled), (RootState::NotEntitled, vec![]));
    assert_eq!(state(path.join("nowhere"), RootState::Registered), (RootState::Missing, vec![]));
    let file = world.write("file", "");
    assert_eq!(state(file.clone(), RootState::Registered), (RootState::Unreadable, vec!["E_UNREADABLE"]));
    symlink("nowhere", world.path("dangling")).unwrap();
    assert_eq!(state(path.join("dangling"), RootState::Registered), (RootState::Missing, vec![]));
    // What was missing, and then is there, is looked at.
    let missing = Root { state: RootState::Missing, ..world.root() };
    assert_eq!(scan_skills(&missing, None).root.state, RootState::Registered);
    let agents = Root { path: path.join("nowhere"), kind: RootKind::Agents, state: RootState::Registered };
    assert_eq!(scan_agents(&agents, None).root.state, RootState::Missing);
}

#[test]
fn a_root_behind_a_link_is_its_target() {
    let world = World::new(Source::External);
    world.skill_with("a", &world.path("a/run.sh").display().to_string());
    world.program("a/run.sh", RUN);
    let link = world.dir.path().join("link");
    symlink(world.path(""), &link).unwrap();
    let scan = scan_skills(&Root { path: link.clone(), ..world.root() }, None);
    let found = find(&scan, "a");
    assert_eq!(*scan.candidates[0].path, *link.join("a/skill.json"));
    assert_eq!(*found.package.directory, *world.path("a"));
    assert_eq!((found.skill.path.as_str(), files(found)), ("a", vec!["run.sh", "skill.json"]));
}

#[test]
fn an_escape_is_told_in_exactly_these_words() {
    let world = World::new(Source::External);
    let outside = world.dir.path().canonicalize().unwrap().join("escape.sh");
    fs::write(&outside, RUN).unwrap();
    chmod(&outside, 0o755);
    world.skill_with("bad_path", &outside.display().to_string());
    let candidate = &world.scan().candidates[0];
    assert_eq!((candidate.failed, &*candidate.name), (Some(Stage::Build), "bad_path"));
    let root = world.path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    assert_eq!(candidate.diagnostics[0].message, format!("entry {} escapes allowlist root {root}", outside.display()));
    // Nothing tells whether what escapes is there.
    fs::remove_file(&outside).unwrap();
    assert_eq!(world.scan().candidates[0].diagnostics, candidate.diagnostics);
}

#[test]
fn special_files_do_not_block_and_are_not_packaged() {
    let world = World::new(Source::External);
    world.skill("whole");
    let fifo = |relative: &str| {
        let path = world.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        rustix::fs::mkfifoat(CWD, &path, Mode::RWXU).unwrap();
    };
    fifo("fifo-manifest/skill.json");
    fifo("fifo-entry/run.sh");
    world.skill_with("fifo-entry", "run.sh");
    fs::rename(world.path("fifo-entry"), world.path("fifo_entry")).unwrap();
    world.write("fifo_entry/skill.json", r#"{"name":"fifo_entry","description":"d","entry":"run.sh"}"#);
    fifo("whole/pipe");
    let _listener = std::os::unix::net::UnixListener::bind(world.path("whole/socket")).unwrap();
    let scan = world.scan();
    assert_eq!(
        seen(&world, &scan),
        [
            row("fifo-manifest/skill.json", false, &["W_NOT_REGULAR", "E_UNREADABLE"]),
            row("fifo_entry/skill.json", false, &["W_NOT_REGULAR", "E_ENTRY_NOT_FILE"]),
            row("whole/skill.json", true, &["W_NOT_REGULAR", "W_NOT_REGULAR"]),
        ]
    );
    let found = find(&scan, "whole");
    assert_eq!(files(found), ["run.sh", "skill.json"]);

    let run = &found.package.files[0];
    assert!(open(run).is_ok());
    fs::remove_file(run.origin()).unwrap();
    fifo("whole/run.sh");
    assert_eq!(open(run).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);

    let world = World::new(Source::Override);
    world.playbook("whole");
    fs::create_dir(world.path("pipe")).unwrap();
    rustix::fs::mknodat(CWD, world.path("pipe/SKILL.md"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert_eq!(
        seen(&world, &world.scan()),
        [row("pipe/SKILL.md", false, &["W_NOT_REGULAR", "E_UNREADABLE"]), row("whole/SKILL.md", true, &[])]
    );
}

#[test]
fn what_may_not_be_read_is_one_diagnostic_each() {
    let world = World::new(Source::External);
    for name in ["whole", "secret_manifest", "secret_file", "secret_dir", "secret_entry"] {
        world.skill(name);
    }
    chmod(&world.path("secret_manifest/skill.json"), 0);
    chmod(&world.write("secret_file/data", "x"), 0);
    world.write("secret_dir/data/x", "x");
    chmod(&world.path("secret_dir/data"), 0);
    chmod(&world.path("secret_entry/run.sh"), 0o111);
    world.skill("secret");
    chmod(&world.path("secret"), 0);
    let scan = as_nobody(&world, || world.scan());
    assert_eq!(
        seen(&world, &scan),
        [
            row("secret", false, &["E_UNREADABLE"]),
            row("secret_dir/skill.json", false, &["E_UNREADABLE"]),
            row("secret_entry/skill.json", false, &["E_UNREADABLE"]),
            row("secret_file/skill.json", false, &["E_UNREADABLE"]),
            row("secret_manifest/skill.json", false, &["E_UNREADABLE"]),
            row("whole/skill.json", true, &[]),
        ]
    );
    // Once they may be read, they are, whatever was remembered.
    chmod(&world.path("secret_file/data"), 0o644);
    chmod(&world.path("secret_dir/data"), 0o755);
    let scan = as_nobody(&world, || scan_skills(&world.root(), Some(&scan)));
    assert!(find(&scan, "secret_file").package.files.len() == 3 && find(&scan, "secret_dir").package.files.len() == 3);
    chmod(&world.path("secret"), 0o755);

    let world = World::new(Source::Override);
    for name in ["whole", "secret", "secret-file"] {
        world.playbook(name);
    }
    chmod(&world.path("secret"), 0);
    chmod(&world.path("secret-file/SKILL.md"), 0);
    let scan = as_nobody(&world, || world.scan());
    assert_eq!(
        seen(&world, &scan),
        [
            row("secret", false, &["E_UNREADABLE"]),
            row("secret-file/SKILL.md", false, &["E_UNREADABLE"]),
            row("whole/SKILL.md", true, &[]),
        ]
    );
    chmod(&world.path("secret"), 0o755);
    chmod(&world.path(""), 0);
    let scan = as_nobody(&world, || world.scan());
    assert_eq!((scan.root.state, scan.candidates.len()), (RootState::Unreadable, 1));
    chmod(&world.path(""), 0o755);
}

#[test]
fn names_that_are_none() {
    let world = World::new(Source::External);
    world.skill("a");
    world.skill("b");
    fs::write(world.path("b").join(std::ffi::OsStr::from_bytes(b"\xff")), "x").unwrap();
    assert_eq!(
        seen(&world, &world.scan()),
        [row("a/skill.json", true, &[]), row("b/skill.json", false, &["E_PATH_INVALID"])]
    );

    let world = World::new(Source::Cloud);
    world.playbook("whole");
    world.playbook(&"n".repeat(129));
    world.playbook("line\nbreak");
    world.playbook(" blank");
    let strange = world.path("").join(std::ffi::OsStr::from_bytes(b"\xff"));
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("SKILL.md"), "---\nname: x\ndescription: d\n---\n").unwrap();
    let scan = world.scan();
    assert_eq!(scan.candidates.iter().filter(|c| c.value.is_some()).count(), 1);
    for candidate in scan.candidates.iter().filter(|c| &*c.name != "whole") {
        let codes: Vec<_> = candidate.diagnostics.iter().filter(|d| d.code.starts_with("E_")).map(|d| d.code).collect();
        assert_eq!((codes, candidate.failed), (vec!["E_NAME_INVALID"], Some(Stage::Build)), "{:?}", candidate.path);
    }
}

#[test]
fn a_decomposed_name_is_the_composed_one() {
    let world = World::new(Source::Override);
    world.write("cafe\u{301}/SKILL.md", "---\nname: caf\u{e9}\ndescription: d\n---\n");
    let scan = world.scan();
    assert_eq!(find(&scan, "caf\u{e9}").skill.path, "cafe\u{301}");
    assert_eq!(scan.candidates[0].diagnostics, []);
}

#[test]
fn hidden_files_and_git() {
    let world = World::new(Source::External);
    world.skill("a");
    for file in [".git/config", ".hidden", ".dir/x", "sub/.git/HEAD", "sub/x", ".gitignore"] {
        world.write(&format!("a/{file}"), "x");
    }
    let expected = [".dir/x", ".gitignore", ".hidden", "run.sh", "skill.json", "sub/x"];
    assert_eq!(files(find(&world.scan(), "a")), expected);

    let world = World::new(Source::Override);
    world.playbook("a");
    for file in [".git/config", ".hidden", ".dir/x", "sub/.git/HEAD", "sub/x", ".gitignore"] {
        world.write(&format!("a/{file}"), "x");
    }
    assert_eq!(files(find(&world.scan(), "a")), ["SKILL.md", "sub/x"]);
}

#[test]
fn an_entry_below_git_is_not_packaged() {
    let world = World::new(Source::External);
    world.skill_with("a", ".git/run.sh");
    world.program("a/.git/run.sh", RUN);
    assert_eq!(seen(&world, &world.scan()), [row("a/skill.json", false, &["E_ENTRY_NOT_PACKAGED"])]);
}

#[test]
fn limits_of_a_package() {
    let world = World::new(Source::External);
    world.skill("many");
    for i in 0..4094 {
        world.write(&format!("many/{}/{i}", i % 16), "");
    }
    world.skill("large");
    let large = fs::File::create(world.path("large/data")).unwrap();
    let rest = fs::metadata(world.path("large/run.sh")).unwrap().len()
        + fs::metadata(world.path("large/skill.json")).unwrap().len();
    large.set_len((64 << 20) - rest).unwrap();
    world.skill("whole");
    let scan = world.scan();
    assert_eq!(find(&scan, "many").package.files.len(), 4096);
    assert_eq!(find(&scan, "large").package.files.iter().map(|f| f.file.size).sum::<u64>(), 64 << 20);

    world.write("many/one-more", "");
    large.set_len((64 << 20) - rest + 1).unwrap();
    assert_eq!(
        seen(&world, &scan_skills(&world.root(), Some(&scan))),
        [
            row("large/skill.json", false, &["E_PACKAGE_TOO_LARGE"]),
            row("many/skill.json", false, &["E_PACKAGE_TOO_MANY_FILES"]),
            row("whole/skill.json", true, &[]),
        ]
    );
}

#[test]
fn limits_of_a_manifest_and_of_a_walk() {
    let world = World::new(Source::External);
    world.skill("whole");
    world.write("huge/skill.json", vec![b' '; (4 << 20) + 1]);
    let deep = "d/".repeat(64);
    world.write(&format!("{deep}skill.json"), "{}");
    world.write(&format!("{deep}e/skill.json"), "{}");
    let scan = world.scan();
    let deepest = deep.trim_end_matches('/');
    assert_eq!(
        seen(&world, &scan),
        [
            row(&format!("{deepest}/e"), false, &["E_WALK_TOO_DEEP"]),
            row(&format!("{deepest}/skill.json"), false, &["E_KEY_MISSING"; 3]),
            row("huge/skill.json", false, &["E_TOO_LARGE"]),
            row("whole/skill.json", true, &[]),
        ]
    );
}

#[test]
fn programs_and_what_is_none() {
    let own = fs::read("/proc/self/exe").unwrap();
    let header = |change: fn(&mut Vec<u8>)| {
        let mut header = own[..64].to_vec();
        change(&mut header);
        header
    };
    let world = World::new(Source::External);
    for (name, content) in [
        ("here", header(|_| {})),
        ("elsewhere", header(|header| header[18..20].copy_from_slice(&[0xF3, 0x77]))),
        ("object", header(|header| header[16] = 1)),
        ("cut", header(|header| header.truncate(10))),
    ] {
        world.skill_with(name, "run");
        world.program(&format!("{name}/run"), content);
    }
    assert_eq!(
        seen(&world, &world.scan()),
        [
            row("cut/skill.json", false, &["E_ENTRY_NOT_PROGRAM"]),
            row("elsewhere/skill.json", true, &["W_ARCHITECTURE"]),
            row("here/skill.json", true, &[]),
            row("object/skill.json", false, &["E_ENTRY_NOT_PROGRAM"]),
        ]
    );
}

#[test]
fn an_edit_in_place_of_the_same_length_is_seen_at_once() {
    let world = World::new(Source::Override);
    let path = world.write("a/SKILL.md", "---\nname: a\ndescription: one\n---\n");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let first = world.scan();
    assert!(first.needs_second_look());
    assert!(first.youngest().is_some());
    fs::write(&path, "---\nname: a\ndescription: two\n---\n").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    let second = scan_skills(&world.root(), Some(&first));
    assert_eq!(find(&second, "a").skill.description, "two");
    assert_ne!(find(&first, "a").skill.digest, find(&second, "a").skill.digest);
}

#[test]
fn what_did_not_change_is_not_read_again_and_what_did_is() {
    let world = World::new(Source::External);
    for name in ["a", "b", "c", "d", "e", "f"] {
        world.skill(name);
    }
    world.program("shared/run.sh", RUN);
    world.skill_with("outside", "../shared/run.sh");
    world.skill_with("waiting", "../shared/later.sh");
    world.write("a/data", "one");
    let mut scan = world.settled();
    let mut changed = |what: &str, names: &[&str]| {
        let next = scan_skills(&world.root(), Some(&scan));
        for candidate in &next.candidates {
            let before = scan.candidates.iter().find(|before| before.path == candidate.path);
            let taken_over = before.is_some_and(|before| same(before, candidate));
            assert_eq!(taken_over, !names.contains(&&*candidate.name), "{what}: {}", candidate.name);
        }
        assert_eq!(next, world.scan(), "{what}: as if nothing were remembered");
        scan = world.settled();
        next
    };
    changed("nothing", &[]);
    world.write("a/data", "two");
    chmod(&world.path("b/run.sh"), 0o700);
    chmod(&world.path("b/skill.json"), 0o755);
    world.write("c/new", "");
    symlink("nowhere", world.path("d/link")).unwrap();
    world.program("shared/run.sh", format!("{RUN}\n"));
    world.program("shared/later.sh", RUN);
    changed(
        "edited, executable, a new file, a new link, entries elsewhere",
        &["a", "b", "c", "d", "outside", "waiting"],
    );
    fs::remove_file(world.path("c/new")).unwrap();
    fs::remove_dir_all(world.path("d")).unwrap();
    let next = changed("gone", &["c"]);
    assert!(next.candidates.iter().all(|candidate| &*candidate.name != "d"));
}

#[test]
fn a_mounted_volume_that_is_swapped() {
    let world = World::new(Source::Override);
    let volume = |version: &str| {
        world.write(&format!("a/..{version}/SKILL.md"), format!("---\nname: a\ndescription: {version}\n---\n"));
        symlink(format!("..{version}"), world.path("a/..next")).unwrap();
        fs::rename(world.path("a/..next"), world.path("a/..data")).unwrap();
    };
    volume("one");
    symlink("..data/SKILL.md", world.path("a/SKILL.md")).unwrap();
    let first = world.settled();
    assert_eq!((find(&first, "a").skill.description.as_str(), files(find(&first, "a"))), ("one", vec!["SKILL.md"]));
    volume("two");
    fs::remove_dir_all(world.path("a/..one")).unwrap();
    let second = scan_skills(&world.root(), Some(&first));
    assert_eq!((find(&second, "a").skill.description.as_str(), second.candidates[0].diagnostics.len()), ("two", 0));
}

#[test]
fn a_cloud_manifest_that_changes_or_breaks() {
    let world = World::new(Source::Cloud);
    world.playbook("folder");
    let manifest = world.dir.path().join("manifest.json");
    let names = |scan: &SkillScan| scan.candidates.iter().map(|c| c.name.to_string()).collect::<Vec<_>>();
    let mut scan = world.settled();
    assert_eq!(names(&scan), ["folder"]);
    fs::write(&manifest, r#"{"skills":[{"id":"the id","dirname":"folder"}],"version":"1"}"#).unwrap();
    scan = scan_skills(&world.root(), Some(&scan));
    assert_eq!(names(&scan), ["the id"]);
    assert_eq!(find(&scan, "the id").skill.path, "folder");
    for broken in ["", "[]", "{}", r#"{"skills":[1]}"#, r#"{"skills":[{"hash":"x"}]}"#] {
        fs::write(&manifest, broken).unwrap();
        scan = scan_skills(&world.root(), Some(&scan));
        let candidate = scan.candidates.iter().find(|c| c.path.ends_with("manifest.json")).unwrap();
        assert_eq!((candidate.diagnostics[0].code, candidate.failed), ("E_CLOUD_MANIFEST", Some(Stage::Parse)));
        assert_eq!(find(&scan, "folder").skill.path, "folder");
    }
}

#[test]
fn agents_are_read_again_when_they_change() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root { path: dir.path().to_owned(), kind: RootKind::Agents, state: RootState::Registered };
    let path = dir.path().join("a.md");
    fs::write(&path, "---\nname: a\nskills: [x]\n---\n").unwrap();
    let first = scan_agents(&root, None);
    fs::write(&path, "---\nname: a\nskills: [y]\n---\n").unwrap();
    let second = scan_agents(&root, Some(&first));
    let skills = |scan: &registry_svc::source::AgentScan| scan.candidates[0].value.as_ref().unwrap().skills.clone();
    assert_eq!((skills(&first), skills(&second)), (["x".to_owned()].into(), ["y".to_owned()].into()));
    fs::remove_file(&path).unwrap();
    assert!(scan_agents(&root, Some(&second)).candidates.is_empty());
}

#[test]
fn what_is_packaged_is_the_file_as_it_was_written() {
    let world = World::new(Source::Override);
    for (name, text) in [
        ("bom", "\u{feff}---\nname: bom\ndescription: d\n---\nbody\n".to_owned()),
        ("crlf", "---\r\nname: crlf\r\ndescription: >\r\n  a\r\n  b\r\n---\r\nbody\r\n".to_owned()),
        ("crlf-head", "---\r\nname: crlf-head\r\ndescription: d\r\n---\r\nbody\n".to_owned()),
    ] {
        world.write(&format!("{name}/SKILL.md"), &text);
        let scan = world.scan();
        let found = find(&scan, name);
        assert_eq!(found.package.files[0].file.sha256, skillyard::Digest::of(text.as_bytes()), "{name}");
        assert!(!found.skill.description.contains('\r'), "{name}");
    }
    let world = World::new(Source::External);
    let text = "\u{feff}{\"name\":\"bom\",\"description\":\"d\",\"entry\":\"run.sh\"}\r\n";
    world.write("bom/skill.json", text);
    world.program("bom/run.sh", RUN);
    let scan = world.scan();
    let manifest = &find(&scan, "bom").package.files[1];
    assert_eq!(
        (manifest.file.path.as_str(), manifest.file.sha256),
        ("skill.json", skillyard::Digest::of(text.as_bytes()))
    );
}

#[test]
fn a_requirement_that_is_met_later_is_seen() {
    let world = World::new(Source::Override);
    world.write("a/SKILL.md", "---\nname: a\ndescription: d\nmetadata: {requires: {bins: [tool]}}\n---\n");
    let bin = world.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let look = Look { host: Some(Host::new(bin.as_os_str(), [])), ..Look::default() };
    let first = scan_skills_with(&look, &world.root(), None);
    assert_eq!(seen(&world, &first), [row("a/SKILL.md", true, &["W_REQUIRES_BIN"])]);
    fs::write(bin.join("tool"), "").unwrap();
    chmod(&bin.join("tool"), 0o755);
    let second = scan_skills_with(&look, &world.root(), Some(&first));
    assert_eq!(seen(&world, &second), [row("a/SKILL.md", true, &[])]);
    // Where nothing is known of the host, nothing is said of it.
    assert_eq!(seen(&world, &world.scan()), [row("a/SKILL.md", true, &[])]);
}

#[test]
fn the_kind_of_a_skill_is_its_roots() {
    let world = World::new(Source::External);
    world.skill("a");
    world.playbook("b");
    // A package may hold anything.
    world.write("a/docs/SKILL.md", "");
    let scan = world.scan();
    assert!(matches!(find(&scan, "a").skill.kind, Kind::Subprocess(_)));
    assert_eq!(seen(&world, &scan), [row("a/skill.json", true, &[]), row("b/SKILL.md", false, &["W_KIND_NOT_HERE"])]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn one_bad_file_never_stops_another(bytes in proptest::collection::vec(any::<u8>(), 0..120), fence in any::<bool>()) {
        let bytes = if fence { [b"---\n".as_slice(), &bytes, b"\n---\n"].concat() } else { bytes };
        let world = World::new(Source::External);
        world.skill("whole");
        world.write("bad/skill.json", &bytes);
        let scan = world.scan();
        find(&scan, "whole");
        prop_assert!(scan.candidates[0].failed.is_some());
        let world = World::new(Source::Override);
        world.playbook("whole");
        world.write("bad/SKILL.md", &bytes);
        let scan = world.scan();
        find(&scan, "whole");
        prop_assert!(scan.candidates[0].failed.is_some());
    }
}

#[test]
fn a_manifest_made_to_be_slow_is_read_in_time_and_its_report_can_be_sent() {
    let world = World::new(Source::External);
    let numbered = |i: usize| format!("\"v{i}\"");
    let many = |item: &dyn Fn(usize) -> String| (0..30_000).map(item).collect::<Vec<_>>().join(",");
    let long = "x".repeat(400_000);
    for (name, more) in [
        ("names", format!(r#""env_allow":[{}]"#, many(&numbered))),
        ("numbers", format!(r#""env_allow":[{}]"#, many(&|_| "1".to_owned()))),
        ("empty", format!(r#""env_allow":[{}]"#, many(&|_| "\"\"".to_owned()))),
        ("keys", many(&|i| format!("\"k{i}\":1"))),
        ("class", format!(r#""class":"{long}""#)),
        ("pattern", format!(r#""schema":{{"pattern":"(?<{long}""#) + "}"),
    ] {
        world.program(&format!("{name}/run.sh"), RUN);
        world.write(
            &format!("{name}/skill.json"),
            format!(r#"{{"name":"{name}","description":"d","entry":"run.sh",{more}}}"#),
        );
    }
    world.write("name/skill.json", format!(r#"{{"name":"{long}!"}}"#));
    world.write("whole/skill.json", format!(r#"{{"name":"whole","description":"{long}{long}"}}"#));
    let begun = Instant::now();
    let scan = world.scan();
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
    for candidate in &scan.candidates {
        assert!(candidate.diagnostics.len() <= 100 && candidate.name.chars().count() <= 129, "{}", candidate.name);
        assert!(candidate.diagnostics.iter().all(|diagnostic| diagnostic.message.len() < 2000));
    }
    let of = |name: &str| {
        let candidate = scan.candidates.iter().find(|c| *c.path == *world.path(name).join("skill.json")).unwrap();
        (candidate.value.is_some(), candidate.diagnostics.last().map(|last| (last.code, last.message.clone())))
    };
    assert_eq!(of("names"), (true, None));
    assert_eq!(of("keys"), (true, None));
    assert_eq!(of("whole").1.unwrap().0, "E_TOO_LARGE");
    for (name, code) in [("numbers", "E_TYPE"), ("empty", "E_ENV_NAME"), ("class", "E_CLASS_UNKNOWN")] {
        let (registered, last) = of(name);
        assert_eq!((registered, last.unwrap().0), (false, code), "{name}");
    }
}

#[test]
fn a_list_of_a_mirror_made_to_be_slow_is_read_in_time() {
    let world = World::new(Source::Cloud);
    let skills: Vec<_> = (0..100_000).map(|i| format!(r#"{{"id":"s{i}"}}"#)).collect();
    fs::write(world.dir.path().join("manifest.json"), format!(r#"{{"skills":[{}]}}"#, skills.join(","))).unwrap();
    world.write("s7/SKILL.md", "---\nname: s7\ndescription: d\n---\n");
    let begun = Instant::now();
    assert_eq!(world.scan().candidates.len(), 1);
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
}
