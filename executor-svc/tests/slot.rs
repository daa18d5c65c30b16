//! Slots over real processes: what a job is given, what is said of it, and that nothing of it is left.

mod support;

use std::time::{Duration, Instant};

use executor_svc::slot::{Exit, Flavour, Job, Pool, PoolOptions, SlotError, SlotEvent};
use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use support::{Outcome, World, children, eventually, finish, pipes, status, within};

/// Both ways to end a tree: in the kernel's signal scope, and by walking.
#[rstest::fixture]
fn scoped() -> World {
    World::new(true)
}

fn exited(code: i32, stdout: &str) -> Outcome {
    Outcome { events: vec!["started", "exited"], exit: Some(Exit::Code(code)), stdout: stdout.into() }
}

#[rstest]
#[tokio::test]
async fn stdin_reaches_the_skill_and_stdout_comes_back(scoped: World) {
    let program = scoped.script("cat");
    let mut slot = scoped.pool.take(Flavour::Safe).await.unwrap();
    let input = "x".repeat(1 << 20);
    for _ in 0..3 {
        let pipes = scoped.start(&mut slot, &program);
        assert_eq!(finish(&mut slot, pipes, input.as_bytes()).await, exited(0, &input));
    }
    assert_eq!(scoped.pool.counts(), (0, 1));
    drop(slot);
    assert_eq!(scoped.pool.counts(), (1, 0));
}

#[rstest]
#[case::code("exit 7", Exit::Code(7))]
#[case::kill("kill -KILL $$", Exit::Signal(9))]
#[case::term("kill -TERM $$", Exit::Signal(15))]
#[case::realtime("kill -40 $$", Exit::Signal(40))]
#[tokio::test]
async fn an_exit_is_told_as_it_was(scoped: World, #[case] body: &str, #[case] exit: Exit) {
    assert_eq!(scoped.sh(body).await.exit, Some(exit));
}

#[rstest]
#[tokio::test]
async fn what_cannot_be_started_says_why_and_costs_no_slot(scoped: World) {
    let world = scoped;
    let here = world.directory.path();
    let good = world.script("echo fine");
    let no_shebang = world.file("echo hello\n", 0o755);
    let not_executable = world.file("#!/bin/sh\n", 0o644);
    let bad_interpreter = world.file("#!/no/such/interpreter\n", 0o755);
    let nul = ("A".to_owned(), "b\0c".to_owned());
    let cases = [
        (here.join("missing"), here.to_owned(), vec![], 2),
        (not_executable, here.to_owned(), vec![], 13),
        (here.to_owned(), here.to_owned(), vec![], 13),
        (no_shebang, here.to_owned(), vec![], 8),
        (bad_interpreter, here.to_owned(), vec![], 2),
        (good.clone(), here.join("missing"), vec![], 2),
        (good.clone(), here.to_owned(), vec![nul], 22),
    ];
    let mut slot = world.pool.take(Flavour::Safe).await.unwrap();
    for (program, directory, environment, errno) in cases {
        let (stdio, _pipes) = pipes();
        let job = Job { program: &program, directory: &directory, environment: &environment };
        slot.start(&job, stdio).unwrap();
        assert_eq!(within(slot.next()).await, SlotEvent::SpawnFailed { errno }, "{}", program.display());
    }
    assert_eq!(world.run(&mut slot, &good).await, exited(0, "fine\n"));
}

#[rstest]
#[tokio::test]
async fn the_environment_is_the_jobs_and_the_directory_too(scoped: World) {
    let environment = [("B".to_owned(), "2".to_owned()), ("A".to_owned(), "ä\n=".to_owned())];
    for given in [&environment[..], &[]] {
        let (stdio, pipes) = pipes();
        let mut slot = scoped.pool.take(Flavour::Safe).await.unwrap();
        // No shell: it would add variables of its own.
        let job = Job { program: "/usr/bin/env".as_ref(), directory: scoped.directory.path(), environment: given };
        slot.start(&job, stdio).unwrap();
        let mut lines: Vec<String> =
            finish(&mut slot, pipes, b"").await.stdout.split_terminator('\n').map(str::to_owned).collect();
        lines.sort_unstable();
        let expected = if given.is_empty() { vec![] } else { vec!["=", "A=ä", "B=2"] };
        assert_eq!(lines, expected);
    }
    let directory = scoped.directory.path().canonicalize().unwrap();
    assert_eq!(scoped.sh("pwd -P").await.stdout, format!("{}\n", directory.display()));
}

#[rstest]
#[tokio::test]
async fn a_skill_has_three_descriptors_and_a_group_of_its_own() {
    // Whoever started the executor left it a descriptor that is not closed on exec.
    let leaked = rustix::io::dup(std::io::stderr()).unwrap();
    assert!(rustix::io::fcntl_getfd(&leaked).unwrap().is_empty());
    let world = World::new(true);
    // The shell holds its script at 10.
    let fds = "for i in $(seq 0 9) $(seq 11 99); do [ -e /proc/$$/fd/$i ] && echo $i; done";
    assert_eq!(world.sh(&format!("{fds}; true")).await, exited(0, "0\n1\n2\n"));
    let group = "read -r _ _ _ _ group session tty _ </proc/self/stat; [ $group = $$ ] && [ $session = $PPID ] && [ $tty = 0 ] && echo own";
    assert_eq!(world.sh(group).await, exited(0, "own\n"));
    drop(leaked);
}

#[rstest]
#[tokio::test]
async fn usage_is_the_jobs_own(scoped: World) {
    let mut slot = scoped.pool.take(Flavour::Safe).await.unwrap();
    let mut times = Vec::new();
    for body in ["i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", "true"] {
        let _pipes = scoped.start(&mut slot, &scoped.script(body));
        assert!(matches!(within(slot.next()).await, SlotEvent::Started { .. }));
        let SlotEvent::Exited { usage, .. } = within(slot.next()).await else { panic!("no exit") };
        assert!(usage.max_rss_bytes > 100_000, "{usage:?}");
        times.push(usage.cpu_user + usage.cpu_system);
    }
    assert!(times[0] > Duration::from_millis(30) && times[1] < times[0] / 3, "{times:?}");
}

#[rstest]
#[case::holds_stdout("sleep 300 & echo ok")]
#[case::session("setsid sleep 300 & echo ok")]
#[case::daemon("(setsid sh -c 'setsid sleep 300 >/dev/null 2>&1 & sleep 300' &) ; sleep .1; echo ok")]
#[case::deaf("trap '' TERM INT HUP; sleep 300 & setsid sleep 300 & echo ok")]
#[case::many("for i in $(seq 60); do setsid sleep 300 & done; echo ok")]
#[case::stopped("sh -c 'kill -STOP $$' & sleep .1; echo ok")]
#[tokio::test]
async fn what_outlives_the_leader_is_swept(#[values(true, false)] scope: bool, #[case] body: &str) {
    let world = World::new(scope);
    let mut slot = world.pool.take(Flavour::Safe).await.unwrap();
    let program = world.script(body);
    for _ in 0..2 {
        let outcome = world.run(&mut slot, &program).await;
        let events = vec!["started", "exited, left", "clean"];
        assert_eq!(outcome, Outcome { events, exit: Some(Exit::Code(0)), stdout: "ok\n".into() });
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

#[rstest]
#[tokio::test]
async fn chains_that_fork_for_ever_are_swept(#[values(true, false)] scope: bool) {
    let world = World::new(scope);
    let chain = world.script("[ \"$(ls /proc | wc -l)\" -gt 5000 ] || \"$0\" & exit 0");
    let program = world.script(&format!("for i in 1 2 3 4; do {0} & setsid {0} & done; echo ok", chain.display()));
    let outcome = world.run(&mut world.pool.take(Flavour::Safe).await.unwrap(), &program).await;
    assert_eq!(outcome.events, ["started", "exited, left", "clean"]);
    assert_eq!(world.left(), Vec::<String>::new());
}

#[rstest]
#[tokio::test]
async fn terminate_is_heard_by_the_whole_tree(#[values(true, false)] scope: bool) {
    let world = World::new(scope);
    // The leader waits for its child, which tells that it heard although it was stopped.
    let child = world.script("trap 'echo child; exit 0' TERM; echo up; kill -STOP $$; while :; do sleep .05; done");
    let leader = world.script(&format!("trap 'echo leader; wait; exit 3' TERM; {} & wait", child.display()));
    let mut slot = world.pool.take(Flavour::Safe).await.unwrap();
    let mut pipes = world.start(&mut slot, &leader);
    let mut up = [0; 3];
    within(tokio::io::AsyncReadExt::read_exact(&mut pipes.stdout, &mut up)).await.unwrap();
    slot.terminate();
    let outcome = finish(&mut slot, pipes, b"").await;
    assert_eq!(outcome.exit, Some(Exit::Code(3)), "{outcome:?}");
    assert!(outcome.stdout.contains("child") && outcome.stdout.contains("leader"), "{outcome:?}");
}

#[rstest]
#[tokio::test]
async fn the_deaf_are_killed(#[values(true, false)] scope: bool) {
    let world = World::new(scope);
    let program = world.script("trap '' TERM; setsid sleep 300 & echo up; while :; do sleep 1; done");
    let mut slot = world.pool.take(Flavour::Safe).await.unwrap();
    let mut pipes = world.start(&mut slot, &program);
    let mut up = [0; 3];
    within(tokio::io::AsyncReadExt::read_exact(&mut pipes.stdout, &mut up)).await.unwrap();
    assert!(matches!(within(slot.next()).await, SlotEvent::Started { .. }));
    slot.terminate();
    assert!(tokio::time::timeout(Duration::from_millis(300), slot.next()).await.is_err(), "it is deaf");
    slot.kill();
    let outcome = finish(&mut slot, pipes, b"").await;
    assert_eq!(outcome.exit, Some(Exit::Signal(9)));
    drop(slot);
    assert_eq!(world.left(), Vec::<String>::new());
    assert_eq!(world.pool.counts(), (1, 0), "the slot is kept");
}

#[rstest]
#[case::killed("kill -KILL $PPID; sleep 300")]
#[case::ended("kill -TERM $PPID; sleep 300")]
#[case::stopped("kill -STOP $PPID; sleep 300")]
#[case::stopped_and_gone("kill -STOP $PPID")]
#[case::escaped(
    "for i in 1 2 3; do setsid sleep 300 & done; (setsid sh -c 'sleep 300 & sleep 300' &); kill -KILL $PPID"
)]
#[case::chains("for i in 1 2 3; do setsid $CHAIN & done; sleep .1; kill -KILL $PPID; sleep 300")]
#[tokio::test]
async fn a_slot_that_its_skill_takes_down_is_lost_alone(#[values(true, false)] scope: bool, #[case] body: &str) {
    let world = World::new(scope);
    let chain = world.script("\"$0\" & exit 0");
    let attack = world.script(&body.replace("$CHAIN", &chain.display().to_string()));
    let bystander = world.script("read -r line; echo $line");
    let mut other = world.pool.take(Flavour::Safe).await.unwrap();
    let mut slot = world.pool.take(Flavour::Safe).await.unwrap();
    let pipes = world.start(&mut other, &bystander);
    let attack_pipes = world.start(&mut slot, &attack);
    let start = Instant::now();
    loop {
        match within(slot.next()).await {
            SlotEvent::Lost => break,
            SlotEvent::Started { .. } => {}
            event => panic!("{event:?}"),
        }
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(within(slot.next()).await, SlotEvent::Lost, "it stays lost");
    drop(attack_pipes);
    drop(slot);
    // Only the bystander is left, and goes on.
    eventually(Duration::from_secs(5), || if world.left().len() == 1 { Ok(()) } else { Err(world.left()) }).await;
    assert_eq!(finish(&mut other, pipes, b"still here\n").await, exited(0, "still here\n"));
    assert_eq!(world.sh("echo next").await, exited(0, "next\n"));
    world.nothing_is_left().await;
}

#[rstest]
#[tokio::test]
async fn a_slot_that_died_idle_is_replaced(scoped: World) {
    let parent = scoped.script("echo $PPID");
    let mut slot = scoped.pool.take(Flavour::Safe).await.unwrap();
    let first: i32 = scoped.run(&mut slot, &parent).await.stdout.trim().parse().unwrap();
    // While it is taken, between two jobs.
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    eventually(Duration::from_secs(1), || status(first).map_or(Ok(()), Err)).await;
    let second: i32 = scoped.run(&mut slot, &parent).await.stdout.trim().parse().unwrap();
    assert_ne!(first, second);
    // While it is idle.
    drop(slot);
    kill_process(Pid::from_raw(second).unwrap(), Signal::STOP).unwrap();
    eventually(Duration::from_secs(1), || status(second).map_or(Ok(()), Err)).await;
    assert_eq!(scoped.sh("echo third").await, exited(0, "third\n"));
}

#[tokio::test]
async fn a_slot_that_is_killed_while_it_starts_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("slot");
    // A pool tries one of each flavour; of those that follow, the first and then two in turn end before they are any.
    let script = format!(
        "#!/bin/sh\necho >>{0}/starts\ncase $(/usr/bin/wc -l <{0}/starts) in 3|5|6) kill -KILL $$;; esac\nexec {1} \"$@\"\n",
        directory.path().display(),
        env!("CARGO_BIN_EXE_executor-svc"),
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let pool = Pool::with(PoolOptions { program, ..PoolOptions::default() }).unwrap();
    let _idle = pool.take(Flavour::Safe).await.unwrap();
    let fresh = pool.take(Flavour::Safe).await.unwrap();
    assert!(matches!(pool.take(Flavour::Safe).await, Err(SlotError::Gone(Flavour::Safe))));
    assert_eq!(pool.counts(), (0, 2), "nothing of them is left");
    drop(fresh);
    assert_eq!(pool.counts(), (1, 1));
}

#[rstest]
#[tokio::test]
async fn a_dropped_slot_ends_what_it_runs(#[values(true, false)] scope: bool) {
    let world = World::new(scope);
    let program = world.script("trap '' TERM; setsid sleep 300 & echo up; sleep 300");
    let mut slot = world.pool.take(Flavour::Safe).await.unwrap();
    let mut pipes = world.start(&mut slot, &program);
    let mut up = [0; 3];
    within(tokio::io::AsyncReadExt::read_exact(&mut pipes.stdout, &mut up)).await.unwrap();
    drop(slot);
    world.nothing_is_left().await;
    assert_eq!(world.pool.counts(), (0, 0), "it is not used again");
    assert_eq!(world.sh("echo next").await, exited(0, "next\n"));
}

#[rstest]
#[tokio::test]
async fn a_late_order_meets_no_later_job(scoped: World) {
    let quick = scoped.script("exit 0");
    let mut slot = scoped.pool.take(Flavour::Safe).await.unwrap();
    for round in 0..200 {
        let pipes = scoped.start(&mut slot, &quick);
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(20 * round)).await;
        }
        slot.kill();
        slot.terminate();
        let killed = finish(&mut slot, pipes, b"").await.exit;
        assert!([Some(Exit::Code(0)), Some(Exit::Signal(9)), Some(Exit::Signal(15))].contains(&killed), "{killed:?}");
        assert_eq!(scoped.run(&mut slot, &quick).await, exited(0, ""));
    }
}

#[rstest]
#[tokio::test]
async fn adopted_zombies_do_not_pile_up_while_a_run_goes_on(#[values(true, false)] scope: bool) {
    let world = World::new(scope);
    let program = world.script("for i in $(seq 50); do (true &) ; done; echo $PPID; read -r _; true");
    let mut slot = world.pool.take(Flavour::Safe).await.unwrap();
    let mut pipes = world.start(&mut slot, &program);
    let mut line = String::new();
    let mut stdout = tokio::io::BufReader::new(&mut pipes.stdout);
    within(tokio::io::AsyncBufReadExt::read_line(&mut stdout, &mut line)).await.unwrap();
    let slot_pid: i32 = line.trim().parse().unwrap();
    eventually(Duration::from_secs(2), || match children(slot_pid).len() {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    assert_eq!(finish(&mut slot, pipes, b"go\n").await.exit, Some(Exit::Code(0)));
}

#[rstest]
#[tokio::test]
async fn a_job_that_does_not_fit_says_its_sizes(scoped: World) {
    let program = scoped.script("printf %s \"$BIG\" | wc -c");
    let directory = scoped.directory.path();
    let mut slot = scoped.pool.take(Flavour::Safe).await.unwrap();
    let environment =
        |size: usize| [("PATH".to_owned(), "/usr/bin:/bin".to_owned()), ("BIG".to_owned(), "x".repeat(size))];
    let (stdio, _pipes) = pipes();
    let too_large = environment(200 * 1024);
    let refused = slot.start(&Job { program: &program, directory, environment: &too_large }, stdio);
    let Err(SlotError::JobTooLarge { size, environment: share, limit }) = refused else { panic!("{refused:?}") };
    assert_eq!((share, limit), (200 * 1024 + 3 + 4 + 13 + 16, 192 * 1024));
    assert!(size > share);
    // The longest variable that the kernel lets pass, and more than half of what fits.
    let fits = environment(127 * 1024);
    let (stdio, pipes) = pipes();
    slot.start(&Job { program: &program, directory, environment: &fits }, stdio).unwrap();
    assert_eq!(finish(&mut slot, pipes, b"").await.stdout.trim(), (127 * 1024).to_string());
}

#[rstest]
#[tokio::test]
async fn a_slot_takes_one_job_at_a_time(scoped: World) {
    let program = scoped.script("read -r _; true");
    let mut slot = scoped.pool.take(Flavour::Safe).await.unwrap();
    let first = scoped.start(&mut slot, &program);
    let (stdio, _pipes) = pipes();
    let job = Job { program: &program, directory: scoped.directory.path(), environment: &[] };
    assert!(matches!(slot.start(&job, stdio), Err(SlotError::Busy)));
    assert_eq!(finish(&mut slot, first, b"go\n").await, exited(0, ""));
}

#[rstest]
#[tokio::test]
async fn shutdown_ends_everything(#[values(true, false)] scope: bool) {
    let world = World::new(scope);
    let program = world.script("trap '' TERM; setsid sleep 300 & sleep 300");
    let mut slot = world.pool.take(Flavour::Safe).await.unwrap();
    let _pipes = world.start(&mut slot, &program);
    assert!(matches!(within(slot.next()).await, SlotEvent::Started { .. }));
    world.pool.shutdown();
    assert_eq!(within(slot.next()).await, SlotEvent::Lost);
    assert!(world.pool.ended(Duration::from_secs(5)));
    assert_eq!(world.left(), Vec::<String>::new());
    assert!(matches!(world.pool.take(Flavour::Safe).await, Err(SlotError::ShutDown)));
}

#[rstest]
#[tokio::test]
async fn signals_stay_inside_where_that_is_reported() {
    let outsider = std::process::id();
    let body = format!("kill -0 {outsider} 2>/dev/null && echo reached; true");
    let world = World::new(true);
    let expected = if world.isolation_has("signals") { "" } else { "reached\n" };
    assert_eq!(world.sh(&body).await, exited(0, expected));
    let unscoped = World::new(false);
    assert!(!unscoped.isolation_has("signals"));
    assert_eq!(unscoped.sh(&body).await, exited(0, "reached\n"));
}

#[rstest]
#[case::missing("/no/such/program", "cannot be started")]
#[case::no_slot("/bin/true", "did not become a slot")]
#[tokio::test]
async fn a_program_that_is_no_slot_is_told_at_once(#[case] program: &str, #[case] words: &str) {
    let error = executor_svc::slot::Pool::new(program.into()).unwrap_err().to_string();
    assert!(error.contains(words) && error.contains(program), "{error}");
}
