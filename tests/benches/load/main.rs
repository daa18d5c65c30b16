//! What a run costs, against a floor of the same minutes: a loop that starts the same program by posix_spawn, writes the
//! same arguments, reads to the end and waits. All that is compared takes turns, in several rounds: an absolute figure
//! means nothing on a shared machine, a ratio does. Prints one table.
//!
//! `cargo bench -p skillyard-tests --bench load -- [--rounds N] [--seconds S] [--slots N] [--at 1,8,64] [--only runs,…]`

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

mod cpu;
mod drive;
mod executor;
mod floor;
mod large;
mod memory;
mod output;
mod peers;
mod runs;
mod table;

use std::time::Duration;

use crate::table::Table;

/// What can be measured, by its name for `--only`.
const PARTS: [&str; 5] = ["runs", "large", "output", "memory", "peers"];

/// The command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
    pub(crate) slots: u32,
    pub(crate) at: Vec<usize>,
    only: Vec<String>,
}

fn main() {
    // `cargo test --benches` runs it too, in a build that is not worth measuring.
    if !std::env::args().any(|argument| argument == "--bench") {
        say("not measured: run `cargo bench -p skillyard-tests --bench load`");
        return;
    }
    let options = options();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(&options));
}

fn options() -> Options {
    let only = PARTS.map(str::to_owned).into();
    let mut options = Options { rounds: 7, length: Duration::from_millis(1500), slots: 64, at: vec![1, 8, 64], only };
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let number = || value.parse::<f64>().unwrap_or_else(|_| panic!("{flag} needs a number, not {value:?}"));
        match &*flag {
            "--rounds" => options.rounds = number() as usize,
            "--seconds" => options.length = Duration::from_secs_f64(number()),
            "--slots" => options.slots = number() as u32,
            "--at" => options.at = value.split(',').map(|n| n.parse().expect("numbers between commas")).collect(),
            "--only" => options.only = value.split(',').map(str::to_owned).collect(),
            _ => panic!("{flag} is not a flag: --rounds, --seconds, --slots, --at, --only"),
        }
    }
    let unknown = options.only.iter().find(|part| !PARTS.contains(&part.as_str()));
    assert!(unknown.is_none(), "{unknown:?} is not measured here, but {}", PARTS.join(", "));
    options
}

async fn measure(options: &Options) {
    let mut table = Table::default();
    let wanted = |part: &str| options.only.iter().any(|only| only == part);
    if wanted("runs") {
        runs::measure(options, &mut table).await;
    }
    if wanted("large") {
        large::measure(options, &mut table).await;
    }
    if wanted("output") {
        output::measure(options, &mut table).await;
    }
    if wanted("memory") {
        memory::measure(options, &mut table).await;
    }
    if wanted("peers") {
        peers::measure(options, &mut table).await;
    }
    say(&format!("{} slots, {} rounds of {:?}", options.slots, options.rounds, options.length));
    table.print();
}

/// Prints a line.
#[expect(clippy::print_stdout, reason = "it prints what it measured")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
