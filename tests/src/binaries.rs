//! Where the programs under test are, and the small C programs that tests use as skills. Programs are built where they
//! are missing or older than their sources, each once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;

use skillyard::Digest;

use crate::process::command;

/// The registry's program.
#[must_use]
pub fn registry() -> PathBuf {
    built().join("registry-svc")
}

/// The executor's program.
#[must_use]
pub fn executor() -> PathBuf {
    built().join("executor-svc")
}

/// The root of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A C program, compiled once to a static executable.
///
/// # Panics
/// When there is no C compiler, or the program does not compile.
#[must_use]
pub fn compiled(source: &str) -> PathBuf {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let name = &Digest::of(source.as_bytes()).to_string()[..16];
    let directories = [
        profile_directory().join("skillyard-tests"),
        // Whoever may not write there, because another user has built the tests, has a place of his own.
        std::env::temp_dir().join(format!("skillyard-tests-{}", rustix::process::geteuid().as_raw())),
    ];
    if let Some(program) = directories.iter().map(|directory| directory.join(name)).find(|program| program.exists()) {
        return program;
    }
    let scratch_in = |directory: &PathBuf| {
        fs::create_dir_all(directory)?;
        tempfile::tempdir_in(directory)
    };
    let scratch = scratch_in(&directories[0]).or_else(|_| scratch_in(&directories[1])).unwrap();
    let program = scratch.path().with_file_name(name);
    let (input, output) = (scratch.path().join("program.c"), scratch.path().join("program"));
    fs::write(&input, source).unwrap();
    let compiler = command(Path::new("cc"))
        .args(["-O2", "-static", "-o"])
        .args([&output, &input])
        .output()
        .expect("the tests need a C compiler: install gcc and the C library's headers");
    assert!(compiler.status.success(), "cc: {}", String::from_utf8_lossy(&compiler.stderr));
    // Renamed, so that another test program never finds half of it.
    fs::rename(&output, &program).unwrap();
    program
}

/// The directory with both programs, as new as their sources.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = profile_directory();
        let programs = ["registry-svc", "executor-svc"];
        let newest = newest_source();
        let stale = |name: &&str| modified(&directory.join(name)).is_none_or(|built| built < newest);
        // `cargo test --workspace` has built them; `cargo test -p skillyard-tests` and `cargo bench` have not.
        // With the feature, cargo says whether they are the ones that have it.
        if cfg!(feature = "otlp") || programs.iter().any(stale) {
            build(&directory);
            // One that had no part in what changed is as it was, and as new: a user who may not build finds both.
            for name in programs {
                fs::File::open(directory.join(name)).unwrap().set_modified(SystemTime::now()).unwrap();
            }
        }
        directory
    })
}

fn build(directory: &Path) {
    let profile = match directory.file_name().and_then(|name| name.to_str()).unwrap() {
        "debug" => "dev",
        name => name,
    };
    let features: &[&str] =
        if cfg!(feature = "otlp") { &["--features", "registry-svc/otlp,executor-svc/otlp"] } else { &[] };
    let output = command(Path::new(env!("CARGO")))
        .current_dir(workspace())
        .args(["build", "--quiet", "-p", "registry-svc", "-p", "executor-svc", "--profile", profile, "--target-dir"])
        .arg(directory.parent().unwrap())
        .args(features)
        .output()
        .unwrap();
    assert!(output.status.success(), "the services do not build:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// `target/debug` or its like: the test program is in its `deps`.
fn profile_directory() -> PathBuf {
    std::env::current_exe().unwrap().parent().and_then(Path::parent).unwrap().to_owned()
}

fn newest_source() -> SystemTime {
    fn newest(directory: &Path) -> Option<SystemTime> {
        let below = |entry: fs::DirEntry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => newest(&entry.path()),
            _ => modified(&entry.path()),
        };
        fs::read_dir(directory).ok()?.flatten().filter_map(below).max()
    }
    let sources = ["proto/src", "proto/skillyard", "registry-svc/src", "executor-svc/src"];
    sources.iter().filter_map(|path| newest(&workspace().join(path))).max().unwrap()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}
