//! A thousand runs, and nothing is left of them: alone in its process, since it counts what the process has.

#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeSet;
use std::fs;

use executor_svc::slot::{Exit, Flavour, Slot};
use support::{World, children, finish, processes, status};

/// Everything that could be left, but for the idle slots.
#[derive(Debug, PartialEq)]
struct Holdings {
    descriptors: BTreeSet<String>,
    children: usize,
    grandchildren: usize,
    zombies: usize,
    slots: (usize, usize),
}

#[tokio::test]
async fn a_thousand_runs_leave_nothing() {
    for signal_scope in [true, false] {
        let world = World::new(signal_scope);
        let plain = world.script("read -r line; echo \"$line\"");
        let untidy = world.script("sleep 300 & (setsid sleep 300 &) ; echo left");
        let missing = world.directory.path().join("missing");

        let mut slots: Vec<Slot> = Vec::new();
        for _ in 0..4 {
            slots.push(world.pool.take(Flavour::Safe).await.expect("a slot"));
        }
        for slot in &mut slots {
            world.run(slot, &plain).await;
        }
        drop(slots);
        let before = holdings(&world);

        for round in 0..125 {
            let jobs = (0..4).map(|index| {
                let world = &world;
                let (plain, untidy, missing) = (&plain, &untidy, &missing);
                async move {
                    let mut slot = world.pool.take(Flavour::Safe).await.expect("a slot");
                    let pipes = world.start(&mut slot, plain);
                    let line = format!("{round} {index}\n");
                    let outcome = finish(&mut slot, pipes, line.as_bytes()).await;
                    assert_eq!((outcome.exit, outcome.stdout), (Some(Exit::Code(0)), line));
                    let second = match (round + index) % 8 {
                        0 => untidy,
                        1 => missing,
                        _ => plain,
                    };
                    world.run(&mut slot, second).await;
                }
            });
            let [a, b, c, d]: [_; 4] = jobs.collect::<Vec<_>>().try_into().unwrap_or_else(|_| unreachable!());
            tokio::join!(a, b, c, d);
        }

        assert_eq!(holdings(&world), before);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

fn holdings(world: &World) -> Holdings {
    let me = i32::try_from(std::process::id()).expect("a pid");
    let slots = children(me);
    let below: Vec<i32> = slots.iter().flat_map(|slot| children(*slot)).collect();
    let zombies = processes()
        .into_iter()
        .filter_map(status)
        .filter(|(state, parent)| *state == 'Z' && (*parent == me || slots.contains(parent)))
        .count();
    let descriptors = fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    Holdings { descriptors, children: slots.len(), grandchildren: below.len(), zombies, slots: world.pool.counts() }
}
