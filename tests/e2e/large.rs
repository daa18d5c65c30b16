//! An executor whose memory is full of what runs that go on have written.

use std::time::{Duration, Instant};

use skillyard_tests::run::succeeded;
use skillyard_tests::{Skill, World, eventually, pack, process};

/// Writes nearly as much as a result may have, and stays.
const HOARDS: &str = r#"
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
/// Of these half take longer, and half less.
const RUNS: usize = 30;

/// What a process costs that is started by a copy of the executor grows with it: 70 ms at 512 MiB, and a run takes two.
#[tokio::test]
async fn a_run_of_a_large_executor_takes_no_longer() {
    let hoards = if skillyard_tests::long() { 128 } else { 32 };
    let mut world = World::builder()
        .slots(hoards + 2, 8)
        .flag("--max-output-memory", "8GiB")
        // What slots measure of runs that go on takes the same time of an executor of any size.
        .flag("--max-memory", "none")
        .flag("--max-processes", "none")
        .skill(Skill::c("hoards", HOARDS).timeout(600))
        .skill(Skill::tiny("tiny"))
        .start()
        .await;
    let small = middle(&mut world).await;
    let mut kept = Vec::new();
    for _ in 0..hoards {
        kept.push(world.open("hoards").await);
    }
    let executor = world.executor_pid();
    let memory = || process::memory(executor, "VmRSS");
    eventually("the executor is large", async || memory() >= u64::from(hoards) * (255 << 16)).await;
    let large = middle(&mut world).await;
    eprintln!("a run takes {large:?} of an executor of {} MiB, and took {small:?} before", memory() >> 20);
    assert!(large < small * 2 + Duration::from_millis(10), "{large:?} where it took {small:?} before");
    drop(kept);
    world.quiet(Duration::from_secs(10)).await;
}

/// How long a run takes, in the middle.
async fn middle(world: &mut World) -> Duration {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let began = Instant::now();
        assert_eq!(world.run("tiny").await, succeeded(pack::TINY_RESULT));
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times[RUNS / 2]
}
