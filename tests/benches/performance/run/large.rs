//! An executor whose memory is full of what runs that go on have written, against one that has only started.

use std::time::Duration;

use skillyard_tests::{Live, Skill, call, eventually, process};

use crate::run::drive;
use crate::run::executor::{self, Setting, builder};
use crate::table::{Goal, Table};
use crate::{Options, say};

/// Writes nearly as much as a result may have, and waits until it is ended.
const HOARD: &str = r#"
#include <string.h>
#include <unistd.h>
int main(void) {
    static char b[1 << 16];
    memset(b, 'x', sizeof b);
    for (int i = 0; i < 255; i++)
        for (ssize_t k = 0, n; k < (ssize_t)sizeof b; k += n)
            if ((n = write(1, b + k, sizeof b - k)) <= 0) return 1;
    for (;;) pause();
}
"#;
/// Each takes 16 MiB of the executor.
const HOARDS: u32 = 128;
const LARGE: u64 = 2 << 30;

pub(crate) async fn measure(options: &Options, table: &mut Table) {
    // Without limits that are measured: what each slot looks at by itself is not what is compared.
    let plain = || builder().flag("--max-memory", "none").flag("--max-processes", "none");
    let hoard = plain().flag("--max-output-memory", "8GiB").skill(Skill::c("hoard", HOARD).timeout(3600));
    let (mut small, small_calls) = executor::warm(plain(), Setting::AllOff, options.slots).await;
    let (mut large, large_calls) = executor::warm(hoard, Setting::AllOff, options.slots + HOARDS).await;
    let mut kept = Vec::new();
    for _ in 0..HOARDS {
        kept.push(Live::open(large.executor(), call("hoard")).await.unwrap());
    }
    let (small, large) = (small.executor_server().pid(), large.executor_server().pid());
    eventually("the executor is large", async || process::memory(large, "VmRSS") >= LARGE).await;
    let mib = |pid| process::memory(pid, "VmRSS") >> 20;
    say(&format!("a large executor of {} MiB, a small one of {} MiB", mib(large), mib(small)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for round in 0..options.rounds {
        for &at in &options.at {
            let (mut of_small, mut of_large) = (None, None);
            for turn in [round % 2, (round + 1) % 2] {
                if turn == 0 {
                    of_small = Some(drive::measure(&small_calls, small, at, options.length).await);
                } else {
                    of_large = Some(drive::measure(&large_calls, large, at, options.length).await);
                }
            }
            let (Some(small), Some(large)) = (of_small, of_large) else { continue };
            let what = |what: &str| format!("{what} at 2 GiB, {at} at a time");
            table.add(what("runs a second"), "a small executor", Goal::AtLeast(0.9), large.rate / small.rate);
            table.add(what("processor time"), "a small executor", Goal::None, large.cpu / small.cpu);
        }
    }
}
