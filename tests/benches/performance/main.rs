//! What a run and a catalog cost, against floors and peers of the same minutes. All that is compared takes turns, in several
//! rounds: an absolute figure means nothing on a shared machine, a ratio does. Prints one table.
//!
//! `cargo bench -p skillyard-tests -- [--only runs,scan,…] [--rounds N] [--seconds S] [--slots N] [--at 1,8,64] [--skills N]`

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

mod catalog;
mod run;
mod table;

use std::path::Path;
use std::time::Duration;

use crate::catalog::{changes, fetch, list, scan};
use crate::run::{large, memory, output, peers, runs};
use crate::table::Table;

/// What can be measured, by its name for `--only`.
const PARTS: [&str; 9] = ["scan", "list", "fetch", "changes", "runs", "large", "output", "memory", "peers"];

/// The command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
    pub(crate) slots: u32,
    pub(crate) at: Vec<usize>,
    pub(crate) skills: usize,
    only: Vec<String>,
}

fn main() {
    // `cargo test --benches` runs it too, in a build that is not worth measuring.
    if !std::env::args().any(|argument| argument == "--bench") {
        say("not measured: run `cargo bench -p skillyard-tests`");
        return;
    }
    let options = options();
    let wanted = |part: &str| options.only.iter().any(|only| only == part);
    let mut table = Table::default();
    // It looks at its own process, and so comes first.
    if wanted("scan") {
        scan::measure(&options, &mut table);
    }
    // Others that listen have a thread for it; who calls executors is one thread.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if wanted("list") {
            list::measure(&options, &mut table).await;
        }
        if wanted("fetch") {
            fetch::measure(&options, &mut table).await;
        }
        if wanted("changes") {
            changes::measure(&options, &mut table).await;
        }
    });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if wanted("runs") {
            runs::measure(&options, &mut table).await;
        }
        if wanted("large") {
            large::measure(&options, &mut table).await;
        }
        if wanted("output") {
            output::measure(&options, &mut table).await;
        }
        if wanted("memory") {
            memory::measure(&options, &mut table).await;
        }
        if wanted("peers") {
            peers::measure(&options, &mut table).await;
        }
    });
    let Options { rounds, skills, slots, length, .. } = &options;
    say(&format!("{rounds} rounds; scan: {skills} skills; runs: {slots} slots, {length:?} each"));
    table.print();
}

fn options() -> Options {
    let only = PARTS.map(str::to_owned).into();
    let length = Duration::from_millis(1500);
    let mut options = Options { rounds: 7, length, slots: 64, at: vec![1, 8, 64], skills: 100_000, only };
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let number = || value.parse::<f64>().unwrap_or_else(|_| panic!("{flag} needs a number, not {value:?}"));
        match &*flag {
            "--rounds" => options.rounds = number() as usize,
            "--seconds" => options.length = Duration::from_secs_f64(number()),
            "--slots" => options.slots = number() as u32,
            "--skills" => options.skills = number() as usize,
            "--at" => options.at = value.split(',').map(|n| n.parse().expect("numbers between commas")).collect(),
            "--only" => options.only = value.split(',').map(str::to_owned).collect(),
            _ => panic!("{flag} is not a flag: --only, --rounds, --seconds, --slots, --at, --skills"),
        }
    }
    let unknown = options.only.iter().find(|part| !PARTS.contains(&part.as_str()));
    assert!(unknown.is_none(), "{unknown:?} is not measured here, but {}", PARTS.join(", "));
    options
}

/// A directory below this one is where nobody else makes or removes files.
pub(crate) fn place() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Prints a line.
#[expect(clippy::print_stdout, reason = "it prints what it measured")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
