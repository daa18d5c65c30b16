//! What a skill writes to stderr: how soon the first line is at the caller, and how much a second, against reading the raw
//! pipe; and a script of Python, against the same script by hand.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use skillyard::pb::executor::v1::run_event::Event;
use skillyard_tests::{Call, Live, Skill, binaries, call};

use crate::Options;
use crate::run::executor::{Setting, builder};
use crate::run::floor;
use crate::table::{Goal, Table};

/// Says on stderr when that was, by the clock that does not jump.
const CLOCK: &str = r#"
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    struct timespec t;
    usleep(20000);
    clock_gettime(CLOCK_MONOTONIC, &t);
    fprintf(stderr, "%lld\n", t.tv_sec * 1000000000LL + t.tv_nsec);
    usleep(20000);
    puts("{}");
    return 0;
}
"#;
/// Writes a million lines of 100 bytes to stderr, in blocks of 64 KiB that end where a line may not.
const SPAM: &str = r#"
#include <string.h>
#include <unistd.h>
int main(void) {
    static char b[65536], rest[4096];
    while (read(0, rest, sizeof rest) > 0) { }
    long total = 100000000, done = 0;
    while (done < total) {
        long size = total - done < (long)sizeof b ? total - done : (long)sizeof b;
        for (long i = 0; i < size; i++) b[i] = (done + i) % 100 == 99 ? '\n' : 'a' + (done + i) / 100 % 26;
        for (long k = 0; k < size;) {
            ssize_t n = write(2, b + k, size - k);
            if (n <= 0) return 1;
            k += n;
        }
        done += size;
    }
    return write(1, "{}", 2) != 2;
}
"#;
const SPAM_BYTES: usize = 100_000_000;
const SCRIPT: &str = "#!/usr/bin/env python3
import json, sys
arguments = json.load(sys.stdin)
print(json.dumps({'ok': True, 'days': arguments['days']}))
";
/// Runs of the quick ones in a round.
const EACH: usize = 10;

pub(crate) async fn measure(options: &Options, table: &mut Table) {
    let spam = binaries::compiled(SPAM);
    let builder = builder().known_callers().slots(4, 16).skill(Skill::c("clock", CLOCK)).skill(Skill::c("spam", SPAM));
    let script = Skill::script("script", SCRIPT).set("env_allow", vec!["PATH"]);
    let world = builder.skill(script).start().await;
    let by_hand = world.path("external").join("script/run.sh");
    let calls = Setting::AllOn.caller(&world);
    let open = |call: Call| Live::open(calls.client.clone(), call);
    let script = || call("script").args(crate::run::drive::ARGUMENTS);
    open(script()).await.unwrap().rest().await;
    for round in 0..options.rounds {
        for _ in 0..EACH {
            let mut live = open(call("clock")).await.unwrap();
            let said =
                live.until("a line", |event| if let Event::Log(log) = event { Some(log.text.clone()) } else { None });
            let said = said.await.trim().parse::<u64>().unwrap();
            let late = Duration::from_nanos(now().saturating_sub(said));
            table.add("first line at the caller, ms", "", Goal::AtMost(1.0), late.as_secs_f64() * 1e3);
            live.rest().await;
        }
        let (mut raw, mut ours) = (0.0, 0.0);
        for turn in [round % 2, (round + 1) % 2] {
            let began = Instant::now();
            if turn == 0 {
                let mut child = floor::start(&spam);
                drop(child.stdin.take());
                let (mut stderr, mut buffer, mut read) = (child.stderr.take().unwrap(), vec![0; 65536], 0);
                while let n @ 1.. = stderr.read(&mut buffer).unwrap() {
                    read += n;
                }
                assert!(child.wait().unwrap().success() && read == SPAM_BYTES);
                raw = began.elapsed().as_secs_f64();
            } else {
                let seen = follow(open(call("spam")).await.unwrap()).await;
                assert_eq!(seen, SPAM_BYTES, "nothing is dropped");
                ours = began.elapsed().as_secs_f64();
            }
        }
        table.add("100 MB of stderr", "raw pipe", Goal::AtLeast(0.55), raw / ours);
        let (mut hand, mut skill) = (0.0, 0.0);
        for turn in 0..2 * EACH {
            let began = Instant::now();
            if (turn + round) % 2 == 0 {
                let mut child = floor::start_in(&by_hand, &[("PATH", "/usr/local/bin:/usr/bin:/bin")]);
                child.stdin.take().unwrap().write_all(crate::run::drive::ARGUMENTS.as_bytes()).unwrap();
                assert!(child.wait_with_output().unwrap().status.success());
                hand += began.elapsed().as_secs_f64();
            } else {
                open(script()).await.unwrap().rest().await;
                skill += began.elapsed().as_secs_f64();
            }
        }
        table.add("a python3 skill", "the script by hand", Goal::AtLeast(0.97), hand / skill);
    }
}

/// Bytes of stderr that came, of a run in which nothing was dropped.
async fn follow(mut live: Live) -> usize {
    let mut seen = 0;
    while let Some(event) = live.next_unkept().await.unwrap() {
        match event.event {
            Some(Event::Log(log)) => {
                assert_eq!(log.dropped_lines, 0);
                seen += log.text.len();
            }
            Some(Event::Finished(_)) => break,
            _ => {}
        }
    }
    seen
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
