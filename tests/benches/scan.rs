//! What a catalog of many skills costs, against a floor of the same run: a cold load against `find` and `cat` of the same
//! files, a reload after one edit against a load, a search against looking through every text. An absolute figure means
//! nothing on a shared machine, a ratio does; and where other work holds the processors, a ratio of processor time does:
//! it is what one thread takes beside what `find` and `cat` take, and half of it what two take.
//!
//! `cargo bench -p skillyard-tests --bench scan -- [--skills N] [--rounds N] [--in DIRECTORY]`

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use registry_svc::catalog::Catalog;
use registry_svc::catalog::load::{self, Scanned};
use registry_svc::source::{self, Layout, Root, RootKind};
use skillyard::View;
use skillyard_tests::process::command;
use wait4::Wait4 as _;

#[path = "scan/herd.rs"]
mod herd;

struct Options {
    skills: usize,
    rounds: usize,
    place: PathBuf,
}

fn main() {
    // `cargo test --benches` runs it too, in a build that is not worth measuring.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("not measured: run `cargo bench -p skillyard-tests --bench scan`");
        return;
    }
    measure(&options());
}

fn options() -> Options {
    let mut options = Options { skills: 10_000, rounds: 7, place: std::env::temp_dir() };
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let number = || value.parse().unwrap_or_else(|_| panic!("{flag} needs a number, not {value:?}"));
        match &*flag {
            "--skills" => options.skills = number(),
            "--rounds" => options.rounds = number(),
            "--in" => options.place = value.into(),
            _ => panic!("{flag} is not a flag: --skills, --rounds, --in"),
        }
    }
    options
}

fn measure(options: &Options) {
    let world = tempfile::tempdir_in(&options.place).unwrap();
    let root = fs::canonicalize(world.path()).unwrap();
    herd::write(&root, options.skills);
    let roots = source::roots(&Layout {
        external_dirs: vec![root.join("ext")],
        skill_roots: vec![root.join("playbooks")],
        ..Layout::default()
    });
    // Whatever is read first is read from the disk.
    find_and_cat(&root);
    let before = resident();
    let mut kept = look(&roots, None);
    let bytes = resident().saturating_sub(before);
    kept.0.prepare();
    let searched = resident().saturating_sub(before);
    assert_eq!(kept.0.skills(View::unfiltered(), None).count(), options.skills);

    let mut rows = Rows::default();
    for round in 0..options.rounds {
        let mut floor = Took::default();
        let wall = timed(|| floor.cpu = find_and_cat(&root)).wall;
        floor.wall = wall;
        let mut loaded = None;
        let load = timed(|| loaded = Some(look(&roots, None)));
        drop(black_box(loaded));
        rows.add("cold load / find + cat", load.wall / floor.wall, 1.0);
        rows.add("cold load / find + cat, processor time", load.cpu / floor.cpu, 1.0);
        herd::edit(&root, round);
        let mut next = None;
        let reload = timed(|| next = Some(look(&roots, Some(&kept))));
        kept = next.unwrap_or(kept);
        rows.add("reload after one edit / cold load", reload.wall / load.wall, 0.25);
        rows.add("reload / cold load, processor time", reload.cpu / load.cpu, 0.25);
        let index = timed(|| kept.0.prepare());
        rows.add("index after one edit / cold load", index.wall / load.wall, 0.1);
        let through = timed(|| assert!(look_through(&kept.0, "clean") > 0));
        let search = timed(|| assert!(!kept.0.search(View::unfiltered(), "clean up old files", 10).is_empty()));
        rows.add("search / looking through all texts", search.wall / through.wall, 1.0);
        rows.add("search, ms", search.wall * 1e3, 20.0);
        rows.add("find + cat, µs of processor a skill", floor.cpu * 1e6 / options.skills as f64, f64::INFINITY);
        rows.add("cold load, µs of processor a skill", load.cpu * 1e6 / options.skills as f64, f64::INFINITY);
        rows.add("reload, µs of processor a skill", reload.cpu * 1e6 / options.skills as f64, f64::INFINITY);
    }
    let per_skill = |bytes: usize| bytes as f64 / 1024.0 / options.skills as f64;
    rows.add("memory of a skill, KiB", per_skill(bytes), 3.0);
    rows.add("memory of a skill with the index, KiB", per_skill(searched), 3.0);
    rows.print(options);
}

type Looked = (Arc<Catalog>, Vec<Arc<Scanned>>);

/// All roots at once, as the registry does it.
fn look(roots: &[Root], before: Option<&Looked>) -> Looked {
    let scans = std::thread::scope(|threads| {
        let looking: Vec<_> = (0..)
            .zip(roots)
            .map(|(i, root)| {
                let known = before.map(|(_, scans)| Arc::clone(&scans[i]));
                threads.spawn(move || match (root.kind, known.as_deref()) {
                    (RootKind::Agents, _) => Scanned::Agents(source::scan_agents(root, None)),
                    (_, Some(Scanned::Skills(known))) => Scanned::Skills(source::scan_skills(root, Some(known))),
                    _ => Scanned::Skills(source::scan_skills(root, None)),
                })
            })
            .collect();
        looking.into_iter().map(|scan| Arc::new(scan.join().unwrap())).collect::<Vec<_>>()
    });
    let catalog = load::load(&scans, SystemTime::now(), before.map(|(catalog, _)| catalog.as_ref()));
    (Arc::new(catalog), scans)
}

/// The seconds of processor that it takes.
fn find_and_cat(root: &Path) -> f64 {
    let mut find = command(Path::new("find"));
    find.arg(root).args(["-type", "f", "-exec", "cat", "{}", "+"]).stdout(Stdio::null());
    let ended = find.spawn().unwrap().wait4().unwrap();
    assert!(ended.status.success());
    (ended.rusage.utime + ended.rusage.stime).as_secs_f64()
}

fn look_through(catalog: &Catalog, word: &str) -> usize {
    let skills = catalog.skills(View::unfiltered(), None).map(|found| &found.skill);
    skills.filter(|skill| skill.name.as_str().contains(word) || skill.description.to_lowercase().contains(word)).count()
}

/// In seconds.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: f64,
    /// Of all threads.
    cpu: f64,
}

fn timed(work: impl FnOnce()) -> Took {
    let cpu = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let (began, cpu_before) = (Instant::now(), cpu());
    work();
    Took { wall: began.elapsed().as_secs_f64(), cpu: cpu() - cpu_before }
}

/// What this process takes of memory, in bytes.
fn resident() -> usize {
    skillyard_tests::process::memory(std::process::id().cast_signed(), "VmRSS") as usize
}

/// What was measured, round by round, and what is to be reached.
#[derive(Default)]
struct Rows(Vec<(&'static str, f64, Vec<f64>)>);

impl Rows {
    fn add(&mut self, what: &'static str, value: f64, goal: f64) {
        match self.0.iter_mut().find(|row| row.0 == what) {
            Some(row) => row.2.push(value),
            None => self.0.push((what, goal, vec![value])),
        }
    }

    fn print(&mut self, options: &Options) {
        println!("{} skills, {} rounds: median [least..most]", options.skills, options.rounds);
        for (what, goal, values) in &mut self.0 {
            values.sort_by(f64::total_cmp);
            let (least, middle, most) = (values[0], values[values.len() / 2], values[values.len() - 1]);
            let verdict = match goal {
                goal if goal.is_infinite() => String::new(),
                goal => format!("at most {goal:.2}: {}", if middle <= *goal { "reached" } else { "missed" }),
            };
            println!("{what:>42} {middle:>9.3} [{least:.3}..{most:.3}]  {verdict}");
        }
    }
}
