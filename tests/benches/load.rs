//! How many runs a second the executor makes, against the floor: a loop that starts the same program by posix_spawn,
//! writes the same arguments, reads to the end and waits. Both in turn, in several rounds of the same minutes, at 1, 8
//! and 64 at a time: an absolute figure means nothing on a shared machine, a ratio does.
//!
//! `cargo bench -p skillyard-tests --bench load -- [--rounds N] [--seconds S] [--slots N] [--at 1,8,64]`

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]
#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use skillyard::pb::executor::v1::executor_service_client::ExecutorServiceClient;
use skillyard::pb::executor::v1::run_event::Event;
use skillyard::pb::executor::v1::{Outcome, RunSkillRequest, run_skill_request::Arguments};
use skillyard_tests::process::{self, command};
use skillyard_tests::{Skill, World, binaries, pack};
use tonic::transport::Channel;

const ARGUMENTS: &str = r#"{"path":"/var/log","days":7}"#;
/// What is to be reached, by how many run at a time.
const GOALS: [(usize, f64); 3] = [(1, 0.45), (8, 0.50), (64, 0.70)];

struct Options {
    rounds: usize,
    seconds: f64,
    slots: u32,
    at: Vec<usize>,
}

fn main() {
    // `cargo test --benches` runs it too, in a build that is not worth measuring.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("not measured: run `cargo bench -p skillyard-tests --bench load`");
        return;
    }
    let options = options();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(&options));
}

fn options() -> Options {
    let mut options = Options { rounds: 7, seconds: 1.5, slots: 64, at: GOALS.iter().map(|goal| goal.0).collect() };
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let number = || value.parse().unwrap_or_else(|_| panic!("{flag} needs a number, not {value:?}"));
        match &*flag {
            "--rounds" => options.rounds = number() as usize,
            "--seconds" => options.seconds = number(),
            "--slots" => options.slots = number() as u32,
            "--at" => options.at = value.split(',').map(|n| n.parse().expect("numbers between commas")).collect(),
            _ => panic!("{flag} is not a flag: --rounds, --seconds, --slots, --at"),
        }
    }
    options
}

async fn measure(options: &Options) {
    let program = binaries::compiled(pack::TINY);
    let world = World::builder().slots(options.slots, 256).skill(Skill::tiny("tiny"));
    let mut world = world.start().await;
    let client = world.executor();
    let length = Duration::from_secs_f64(options.seconds);
    // Every slot has been started, and every page been touched, before anything counts.
    ours(&client, options.slots as usize, length).await;
    floor(&program, 8, length / 4);

    println!("{} slots, {} rounds of {:.1} s each; runs a second", options.slots, options.rounds, options.seconds);
    let mut rows = Vec::new();
    for &at in &options.at {
        rows.push((at, Vec::new(), Vec::new()));
    }
    for round in 0..options.rounds {
        for (at, floors, runs) in &mut rows {
            // Which comes first changes from round to round.
            let (mut of_floor, mut of_ours) = (0.0, 0.0);
            for first in [round % 2 == 0, round % 2 != 0] {
                if first {
                    of_floor = floor(&program, *at, length);
                } else {
                    of_ours = ours(&client, *at, length).await;
                }
            }
            floors.push(of_floor);
            runs.push(of_ours);
        }
    }
    println!("{:>9} {:>22} {:>22} {:>20}  goal", "at a time", "posix_spawn loop", "RunSkill", "ratio");
    for (at, floors, runs) in &rows {
        let ratios: Vec<_> = floors.iter().zip(runs).map(|(floor, ours)| ours / floor).collect();
        let (floor, ours) = (spread(floors, 0), spread(runs, 0));
        let goal = GOALS.iter().find(|goal| goal.0 == *at).map(|goal| goal.1);
        let verdict = goal.map_or(String::new(), |goal| {
            format!("{goal:.2} {}", if middle(&ratios) >= goal { "reached" } else { "missed" })
        });
        println!("{at:>9} {floor:>22} {ours:>22} {:>20}  {verdict}", spread(&ratios, 2));
    }
    let executor = world.executor_server().pid();
    println!(
        "the executor takes {:.1} MB, {:.1} MB at most",
        process::memory(executor, "VmRSS") as f64 / 1e6,
        process::memory(executor, "VmHWM") as f64 / 1e6
    );
}

/// Runs a second of the executor: one channel, so many calls at a time on it.
async fn ours(client: &ExecutorServiceClient<Channel>, at: usize, length: Duration) -> f64 {
    let (began, done) = (Instant::now(), Cell::new(0_u64));
    let local = tokio::task::LocalSet::new();
    let done = std::rc::Rc::new(done);
    for _ in 0..at {
        let (mut client, done) = (client.clone(), std::rc::Rc::clone(&done));
        local.spawn_local(async move {
            while began.elapsed() < length {
                run(&mut client).await;
                done.set(done.get() + 1);
            }
        });
    }
    local.await;
    done.get() as f64 / began.elapsed().as_secs_f64()
}

async fn run(client: &mut ExecutorServiceClient<Channel>) {
    let arguments = Some(Arguments::ArgsJson(ARGUMENTS.to_owned()));
    let request = RunSkillRequest { skill: "tiny".to_owned(), arguments, ..Default::default() };
    let mut events = client.run_skill(request).await.unwrap().into_inner();
    let (mut result, mut outcome) = (String::new(), None);
    while let Some(response) = events.message().await.unwrap() {
        match response.event.and_then(|event| event.event) {
            Some(Event::Result(chunk)) => result.push_str(&chunk.json),
            Some(Event::Finished(finished)) => outcome = Some(finished.outcome()),
            _ => {}
        }
    }
    assert_eq!((outcome, &*result), (Some(Outcome::Succeeded), pack::TINY_RESULT));
}

/// Runs a second of the loop: so many threads, each with one program at a time.
fn floor(program: &Path, at: usize, length: Duration) -> f64 {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..at {
            scope.spawn(|| {
                let mut buffer = Vec::with_capacity(4096);
                while !stop.load(Ordering::Relaxed) {
                    spawn(program, &mut buffer);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
    });
    done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

fn spawn(program: &Path, buffer: &mut Vec<u8>) {
    let mut child = command(program)
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The arguments fit into the pipe.
    child.stdin.take().unwrap().write_all(ARGUMENTS.as_bytes()).unwrap();
    buffer.clear();
    child.stdout.take().unwrap().read_to_end(buffer).unwrap();
    assert_eq!(buffer, pack::TINY_RESULT.as_bytes());
    buffer.clear();
    child.stderr.take().unwrap().read_to_end(buffer).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The median, the smallest and the largest.
fn spread(values: &[f64], digits: usize) -> String {
    let (smallest, largest) = values.iter().fold((f64::MAX, f64::MIN), |(s, l), v| (s.min(*v), l.max(*v)));
    let mut text = String::new();
    write!(text, "{:.digits$} [{smallest:.digits$}..{largest:.digits$}]", middle(values)).unwrap();
    text
}

fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
