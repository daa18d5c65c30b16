//! What it costs a registry to tell what there is: a change to one and to 200 watchers, all skills in pages, a package of
//! 64 MiB. The registry is the real program, and its processor time what the kernel counts; an absolute figure means
//! nothing on a shared machine, a ratio of two that were taken in turn does.
//!
//! `cargo bench -p skillyard-tests --bench watch -- [--rounds N] [--skills 1000,10000] [--watchers 200]`

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::path::PathBuf;

#[path = "watch/changes.rs"]
mod changes;
#[path = "watch/fetch.rs"]
mod fetch;
#[path = "scan/herd.rs"]
mod herd;
#[path = "watch/list.rs"]
mod list;
#[path = "watch/registry.rs"]
mod registry;
#[path = "watch/rows.rs"]
mod rows;

pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) skills: Vec<usize>,
    pub(crate) watchers: usize,
    pub(crate) place: PathBuf,
}

fn main() {
    // `cargo test --benches` runs it too, in a build that is not worth measuring.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("not measured: run `cargo bench -p skillyard-tests --bench watch`");
        return;
    }
    let options = options();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut rows = rows::Rows::default();
        list::measure(&options, &mut rows).await;
        fetch::measure(&options, &mut rows).await;
        changes::measure(&options, &mut rows).await;
        rows.print(options.rounds);
    });
}

fn options() -> Options {
    let mut options = Options { rounds: 7, skills: vec![1000, 10_000], watchers: 200, place: std::env::temp_dir() };
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{flag} needs numbers, not {text:?}"));
        match &*flag {
            "--rounds" => options.rounds = number(&value),
            "--skills" => options.skills = value.split(',').map(number).collect(),
            "--watchers" => options.watchers = number(&value),
            "--in" => options.place = value.into(),
            _ => panic!("{flag} is not a flag: --rounds, --skills, --watchers, --in"),
        }
    }
    options
}
