//! The journal and `kill -9`: what a process was told that is written down is there for the next one.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, which starts itself to be killed")]

use std::collections::{HashMap, HashSet};
use std::io::BufRead as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use executor_svc::run::call::Call;
use executor_svc::run::id::RunId;
use executor_svc::run::journal::{Bounds, Journal, RunRecord};
use executor_svc::run::outcome::{Outcome, Remains};
use executor_svc::slot::Exit;
use skillyard::Digest;

fn id(text: &str) -> RunId {
    text.parse().unwrap()
}

fn call(text: &str) -> Arc<Call> {
    Arc::new(Call {
        id: id(text),
        named_by_caller: true,
        request: Digest::of(text.as_bytes()),
        skill: "disk_cleaner".parse().unwrap(),
        digest: Digest::of(b"package"),
        agent: "ops".to_owned(),
        caller: "ann".to_owned(),
        args_sha256: Digest::of(b"{}"),
        approval_id: Some("approval".to_owned()),
        needs_approval: true,
        detached: false,
        labels: HashMap::new(),
        executor: "here".into(),
        accepted_at: SystemTime::now(),
    })
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
            let call = call(&name);
            journal.accept(&call).await.unwrap();
            eprintln!("\nACCEPTED {name}");
            if i % 3 == 0 {
                let (finished, result) = Remains::default().exited(Exit::Code(1), |_| None);
                assert!(result.is_none());
                let (finished, finished_at) = (Arc::new(finished), SystemTime::now());
                let record = RunRecord { call, started_at: None, finished_at, finished, stderr: String::new() };
                journal.end(record).await.unwrap();
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
            Some(Outcome::Failed) => {}
            Some(Outcome::Lost) => assert!(!over.contains(&name), "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}
