//! The journal and `kill -9`: what a process was told that is written down is there for the next one.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, which starts itself to be killed")]

use std::collections::HashSet;
use std::io::BufRead as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use executor_svc::run::id::RunId;
use executor_svc::run::journal::{Bounds, Journal, Record};
use executor_svc::run::outcome::Outcome;
use skillyard::Digest;

fn id(text: &str) -> RunId {
    text.parse().unwrap()
}

fn record(text: &str) -> Record {
    Record {
        id: id(text),
        request: Digest::of(text.as_bytes()),
        caller: "ann".to_owned(),
        approval_id: "approval".to_owned(),
        skill: "disk_cleaner".parse().unwrap(),
        digest: Digest::of(b"package"),
        agent: "ops".to_owned(),
        args_sha256: Digest::of(b"{}"),
        accepted_at: SystemTime::now(),
        outcome: None,
    }
}

const KILLED_IN: &str = "SKILLYARD_JOURNAL_OF_A_KILLED_PROCESS";

/// The process that is killed: accepts runs for ever, and says so of each on stdout once it may be started.
#[test]
fn the_process_that_is_killed() {
    let Some(directory) = std::env::var_os(KILLED_IN) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let journal = Journal::open(Path::new(&directory), Bounds::default()).unwrap();
        for i in 0_u64.. {
            let name = format!("run-{}-{i}", std::process::id());
            journal.accept(record(&name)).await.unwrap();
            eprintln!("\nACCEPTED {name}");
            if i % 3 == 0 {
                journal.end(&id(&name), Outcome::Succeeded).await.unwrap();
                eprintln!("\nENDED {name}");
            }
        }
    });
}

#[tokio::test]
async fn what_was_accepted_is_there_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let (mut accepted, mut over) = (Vec::new(), HashSet::new());
    for round in 1..=4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_process_that_is_killed", "--nocapture"])
            .env(KILLED_IN, directory.path())
            .stderr(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
        let mut take = |line: std::io::Result<String>| {
            let line = line.unwrap();
            if let Some(name) = line.strip_prefix("ACCEPTED ") {
                accepted.push(name.to_owned());
            } else if let Some(name) = line.strip_prefix("ENDED ") {
                over.insert(name.to_owned());
            }
        };
        (&mut lines).take(20 * round).for_each(&mut take);
        child.kill().unwrap();
        lines.for_each(&mut take);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
    assert!(accepted.len() > 20, "{}", accepted.len());
    let journal = Journal::open(directory.path(), Bounds::default()).unwrap();
    for name in accepted {
        let found = journal.find(&id(&name)).await.unwrap().unwrap_or_else(|| panic!("{name} is gone"));
        // The end may have been written and not yet told.
        match found.outcome {
            Some(Outcome::Succeeded) => {}
            Some(Outcome::Lost) => assert!(!over.contains(&name), "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}
