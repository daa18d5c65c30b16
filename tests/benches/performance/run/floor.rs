//! The floor: a loop that starts a program by posix_spawn, writes it its arguments, reads to the end and waits. So many
//! threads, each with one program at a time.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use skillyard_tests::pack;
use skillyard_tests::process::command;

use crate::run::cpu::Spent;
use crate::run::drive::{ARGUMENTS, Sample};

pub(crate) fn measure(program: &Path, at: usize, length: Duration) -> Sample {
    let stop = AtomicBool::new(false);
    let (before, began) = (Spent::by_this(), Instant::now());
    let took = std::thread::scope(|scope| {
        let one = || {
            let (mut buffer, mut took) = (Vec::with_capacity(4096), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                spawn(program, &mut buffer);
                took.push(began.elapsed());
            }
            took
        };
        let threads: Vec<_> = (0..at).map(|_| scope.spawn(one)).collect();
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    Sample::new(took, began.elapsed(), Spent::by_this().since(&before))
}

fn spawn(program: &Path, buffer: &mut Vec<u8>) {
    let mut child = start(program);
    // The arguments fit into the pipe.
    child.stdin.take().unwrap().write_all(ARGUMENTS.as_bytes()).unwrap();
    buffer.clear();
    child.stdout.take().unwrap().read_to_end(buffer).unwrap();
    assert_eq!(buffer, pack::TINY_RESULT.as_bytes());
    buffer.clear();
    child.stderr.take().unwrap().read_to_end(buffer).unwrap();
    assert!(child.wait().unwrap().success());
}

/// A program with three pipes, as a skill has it.
pub(crate) fn start(program: &Path) -> Child {
    start_in(program, &[])
}

/// The same with an environment.
pub(crate) fn start_in(program: &Path, environment: &[(&str, &str)]) -> Child {
    command(program)
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}
