//! What both services take when nothing happens, and what a run takes that waits in the queue.

use skillyard_tests::{Skill, call, eventually, process};

use crate::Options;
use crate::run::drive;
use crate::run::executor::builder;
use crate::table::{Goal, Table};

const WAITING: u64 = 1000;

pub(crate) async fn measure(options: &Options, table: &mut Table) {
    for _ in 0..options.rounds.min(3) {
        let builder = builder().slots(1, WAITING as u32).skill(Skill::sh("long", "exec sleep 3600").timeout(3600));
        let mut world = builder.start().await;
        let (registry, executor) = (world.registry_server().pid(), world.executor_server().pid());
        let resident = |pid| process::memory(pid, "VmRSS");
        let mb = |pid| resident(pid) as f64 / 1e6;
        table.add("registry without a call, MB", "", Goal::AtMost(15.0), mb(registry));
        table.add("executor without a run, MB", "", Goal::AtMost(15.0), mb(executor));
        let mut lives = vec![world.open("long").await];
        lives[0].started().await;
        let before = resident(executor);
        for _ in 0..WAITING {
            lives.push(world.open(call("long").args(drive::ARGUMENTS)).await);
        }
        eventually("all wait", async || u64::from(world.status().await.queued) == WAITING).await;
        let each = (resident(executor).saturating_sub(before)) as f64 / 1024.0 / WAITING as f64;
        table.add("a run that waits, KiB", "", Goal::AtMost(5.0), each);
    }
}
