//! The smallest skill: everything on against the floor, against everything off, and against everything but isolation.

use skillyard_tests::{binaries, pack};

use crate::Options;
use crate::run::drive::{self, Sample};
use crate::run::executor::{self, Setting};
use crate::run::floor;
use crate::table::{Goal, Table};

/// What is to be reached, by how many run at a time: runs a second, and processor time a run, of the floor's.
const GOALS: [(usize, f64, f64); 3] = [(1, 0.50, 1.9), (8, 0.56, 1.5), (64, 0.76, 1.2)];
/// The settings, everything on first.
const SETTINGS: [Setting; 3] = [Setting::AllOn, Setting::AllOff, Setting::NotConfined];

pub(crate) async fn measure(options: &Options, table: &mut Table) {
    let program = binaries::compiled(pack::TINY);
    let mut executors = Vec::new();
    for setting in SETTINGS {
        let (mut world, calls) = executor::warm(setting.builder(), setting, options.slots).await;
        let pid = world.executor_server().pid();
        executors.push((world, calls, pid));
    }
    floor::measure(&program, 8, options.length / 4);
    for round in 0..options.rounds {
        for &at in &options.at {
            let mut samples = [None; SETTINGS.len() + 1];
            // Which comes first changes from round to round.
            for turn in 0..samples.len() {
                let whose = (turn + round) % samples.len();
                samples[whose] = Some(match executors.get(whose) {
                    Some((_, calls, pid)) => drive::measure(calls, *pid, at, options.length).await,
                    None => floor::measure(&program, at, options.length),
                });
            }
            let [Some(on), Some(off), Some(not_confined), Some(floor)] = samples else { continue };
            compare(table, at, on, off, not_confined, floor);
        }
    }
}

fn compare(table: &mut Table, at: usize, on: Sample, off: Sample, not_confined: Sample, floor: Sample) {
    let (rate, cpu) = match GOALS.iter().find(|goal| goal.0 == at) {
        Some((_, rate, cpu)) => (Goal::AtLeast(*rate), Goal::AtMost(*cpu)),
        None => (Goal::None, Goal::None),
    };
    let what = |what: &str| format!("{what}, {at} at a time");
    let loop_ = "posix_spawn loop";
    table.add(what("runs a second"), loop_, rate, on.rate / floor.rate);
    table.add(what("processor time a run"), loop_, cpu, on.cpu / floor.cpu);
    table.add(what("runs a second"), "everything off", Goal::AtLeast(0.95), on.rate / off.rate);
    table.add(what("processor time a run"), "everything off", Goal::None, on.cpu / off.cpu);
    table.add(what("runs a second"), "no isolation", Goal::AtLeast(0.95), on.rate / not_confined.rate);
    let tail = if at == 64 { Goal::AtMost(3.0) } else { Goal::None };
    table.add(what("p99 of a run"), "its p50", tail, on.p99.as_secs_f64() / on.p50.as_secs_f64());
    table.add(what("p99 of a program"), "its p50", Goal::None, floor.p99.as_secs_f64() / floor.p50.as_secs_f64());
    table.add(what("runs a second"), "", Goal::None, on.rate);
    table.add(what("µs of processor a run"), "", Goal::None, on.cpu * 1e6);
}
