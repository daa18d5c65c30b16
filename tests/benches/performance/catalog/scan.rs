//! What a catalog of many skills costs: a cold load against `find` and `cat` of the same files, a reload after one edit
//! against a load, a search against looking through every text. Where other work holds the processors, the ratio of
//! processor time tells what one thread takes beside what `find` and `cat` take, and half of it what two take.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use registry_svc::catalog::Catalog;
use registry_svc::catalog::load::{self, Scanned};
use registry_svc::source::{self, Layout, Root, RootKind};
use skillyard::View;
use skillyard_tests::process::command;
use wait4::Wait4 as _;

use crate::Options;
use crate::catalog::herd;
use crate::table::{Goal, Table};

/// Of a catalog of `--skills` skills.
pub(crate) fn measure(options: &Options, table: &mut Table) {
    let world = tempfile::tempdir_in(crate::place()).unwrap();
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

    let skills = options.skills;
    let (floor_is, load_is) = ("find + cat", "cold load");
    for round in 0..options.rounds {
        let mut floor = Took::default();
        let wall = timed(|| floor.cpu = find_and_cat(&root)).wall;
        floor.wall = wall;
        let mut loaded = None;
        let load = timed(|| loaded = Some(look(&roots, None)));
        drop(black_box(loaded));
        table.add("cold load", floor_is, Goal::AtMost(0.5), load.wall / floor.wall);
        table.add("cold load, processor time", floor_is, Goal::AtMost(1.0), load.cpu / floor.cpu);
        herd::edit(&root, round);
        let mut next = None;
        let reload = timed(|| next = Some(look(&roots, Some(&kept))));
        kept = next.unwrap_or(kept);
        table.add("reload after one edit", load_is, Goal::AtMost(0.25), reload.wall / load.wall);
        table.add("reload, processor time", load_is, Goal::AtMost(0.25), reload.cpu / load.cpu);
        let index = timed(|| kept.0.prepare());
        table.add("index after one edit", load_is, Goal::AtMost(0.1), index.wall / load.wall);
        let through = timed(|| assert!(look_through(&kept.0, "clean") > 0));
        let search = timed(|| assert!(!kept.0.search(View::unfiltered(), "clean up old files", 10).is_empty()));
        table.add("search", "looking through the texts", Goal::AtMost(1.0), search.wall / through.wall);
        table.add("search, ms", "", Goal::AtMost(20.0), search.wall * 1e3);
        let each = |cpu: f64| cpu * 1e6 / skills as f64;
        table.add("find + cat, µs of processor a skill", "", Goal::None, each(floor.cpu));
        table.add("cold load, µs of processor a skill", "", Goal::None, each(load.cpu));
        table.add("reload, µs of processor a skill", "", Goal::None, each(reload.cpu));
    }
    let per_skill = |bytes: usize| bytes as f64 / 1024.0 / skills as f64;
    table.add("memory a skill, KiB", "", Goal::AtMost(3.0), per_skill(bytes));
    table.add("memory a skill, with the index, KiB", "", Goal::AtMost(3.0), per_skill(searched));
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
