use super::queue::{Queue, Queued};
use super::*;
use crate::run::call::Step;
use crate::run::outcome::{Finished, Outcome};

fn id(text: &str) -> RunId {
    text.parse().unwrap()
}

const DAY: Duration = Duration::from_secs(86_400);

fn at(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

/// A run with an approval that was accepted so many milliseconds after 1970.
fn call(text: &str, accepted_ms: u64) -> Arc<Call> {
    Arc::new(Call {
        caller: "ann".to_owned(),
        approval_id: Some("approval".to_owned()),
        needs_approval: true,
        accepted_at: at(accepted_ms),
        ..Call::for_tests(Some(text), text.as_bytes())
    })
}

/// A safe one.
fn safe(text: Option<&str>, accepted_ms: u64) -> Arc<Call> {
    Arc::new(Call { accepted_at: at(accepted_ms), ..Call::for_tests(text, b"safe") })
}

fn goes_on(call: &Arc<Call>) -> Entry {
    Entry::accepted(Arc::clone(call))
}

fn ended(call: &Arc<Call>, outcome: Outcome) -> Entry {
    Entry { outcome: Some(outcome), ..goes_on(call) }
}

/// A run that ended without having been started.
fn record(call: &Arc<Call>, outcome: Outcome) -> RunRecord {
    let finished = Finished { outcome, ..Finished::for_tests() };
    let (finished, finished_at) = (Arc::new(finished), SystemTime::now());
    RunRecord { call: Arc::clone(call), started_at: None, finished_at, finished, stderr: "a\nü\n".to_owned() }
}

async fn all_unshipped(journal: &Journal) -> Vec<(String, Outcome)> {
    let (records, _) = journal.unshipped(usize::MAX, usize::MAX).await.unwrap();
    records.iter().map(|record| (record.call.id.to_string(), record.finished.outcome)).collect()
}

const FOR_EVER: Bounds = Bounds { age: Duration::from_secs(u64::MAX / 2), runs: u64::MAX, record_bytes: u64::MAX };

#[tokio::test]
async fn a_run_gets_its_end_and_survives() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    for (name, outcome) in [("a", Some(Outcome::Succeeded)), ("b", Some(Outcome::Cancelled)), ("c", None)] {
        let call = call(name, 1);
        assert_eq!(journal.find(&call.id).await.unwrap(), None);
        journal.accept(&call).await.unwrap();
        assert_eq!(journal.find(&call.id).await.unwrap(), Some(goes_on(&call)));
        if let Some(outcome) = outcome {
            journal.end(record(&call, outcome)).await.unwrap();
        }
    }
    drop(journal);
    let journal = reopened(directory.path(), FOR_EVER);
    for (name, outcome) in [("a", Outcome::Succeeded), ("b", Outcome::Cancelled), ("c", Outcome::Lost)] {
        let call = call(name, 1);
        assert_eq!(journal.find(&call.id).await.unwrap(), Some(ended(&call, outcome)));
        // What has an end is never accepted again, and its end stays.
        assert!(matches!(journal.accept(&call).await, Err(JournalError::Known(_))));
        journal.forget(&call.id).await.unwrap();
        assert_eq!(journal.find(&call.id).await.unwrap(), Some(ended(&call, outcome)));
    }
    let all = [("a", Outcome::Succeeded), ("b", Outcome::Cancelled), ("c", Outcome::Lost)];
    assert_eq!(all_unshipped(&journal).await, all.map(|(name, outcome)| (name.to_owned(), outcome)));
    assert_eq!(journal.find(&id("nobody")).await.unwrap(), None);
    assert_eq!(journal.forgotten_until(), None);
}

#[test]
fn a_journal_keeps_its_id_and_another_has_another() {
    let directory = tempfile::tempdir().unwrap();
    let id = Journal::open(directory.path(), FOR_EVER).unwrap().id().to_owned();
    assert!(id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
    assert_eq!(reopened(directory.path(), FOR_EVER).id(), id);
    let another = tempfile::tempdir().unwrap();
    assert_ne!(Journal::open(another.path(), FOR_EVER).unwrap().id(), id);
}

/// The thread that writes closes the file, a moment after the last handle is gone.
fn reopened(directory: &Path, bounds: Bounds) -> Journal {
    let begun = std::time::Instant::now();
    loop {
        match Journal::open(directory, bounds) {
            Ok(journal) => return journal,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{error}"),
        }
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_run_that_was_not_started_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    journal.accept(&call("a", 1)).await.unwrap();
    journal.forget(&id("a")).await.unwrap();
    assert_eq!(journal.find(&id("a")).await.unwrap(), None);
    journal.accept(&call("a", 2)).await.unwrap();
    assert_eq!(journal.find(&id("a")).await.unwrap(), Some(goes_on(&call("a", 2))));
    // As after a forget that failed: the entry is that of the newer run.
    journal.accept(&call("a", 3)).await.unwrap();
    assert_eq!(journal.find(&id("a")).await.unwrap(), Some(goes_on(&call("a", 3))));
    assert!(journal.note_accepted(&safe(Some("b"), 1)));
    journal.note_forgotten(&id("b"));
    journal.flush().await.unwrap();
    drop(journal);
    let journal = reopened(directory.path(), FOR_EVER);
    assert_eq!(journal.find(&id("a")).await.unwrap(), Some(ended(&call("a", 3), Outcome::Lost)));
    assert_eq!(all_unshipped(&journal).await, [("a".to_owned(), Outcome::Lost)]);
}

/// A run that is dropped while its entry waits to be written is settled by what is asked for after it.
#[tokio::test]
async fn what_is_asked_for_later_comes_later() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    for i in 0..50 {
        let call = call(&format!("run-{i}"), 1);
        {
            let mut accept = std::pin::pin!(journal.accept(&call));
            tokio::select! {
                biased;
                _ = &mut accept => {}
                () = std::future::ready(()) => {}
            }
        }
        if i % 2 == 0 {
            journal.end(record(&call, Outcome::Cancelled)).await.unwrap();
            assert_eq!(journal.find(&call.id).await.unwrap(), Some(ended(&call, Outcome::Cancelled)));
        } else {
            journal.forget(&call.id).await.unwrap();
            assert_eq!(journal.find(&call.id).await.unwrap(), None);
        }
    }
}

#[tokio::test]
async fn many_at_once_share_a_sync_and_all_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..500 {
        let journal = journal.clone();
        tasks.spawn(async move {
            let call = call(&format!("run-{i}"), i);
            journal.accept(&call).await.unwrap();
            journal.approved(&call.id).await.unwrap();
            journal.end(record(&call, Outcome::Succeeded)).await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    for i in 0..500 {
        let call = call(&format!("run-{i}"), i);
        assert_eq!(journal.find(&call.id).await.unwrap(), Some(ended(&call, Outcome::Succeeded)));
    }
    assert_eq!(all_unshipped(&journal).await.len(), 500);
}

#[tokio::test]
async fn the_oldest_are_forgotten_but_never_one_that_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Bounds { runs: 3, ..FOR_EVER };
    let journal = Journal::open(directory.path(), bounds).unwrap();
    for (i, name) in ["goes-on", "a", "b", "c", "d", "e"].into_iter().enumerate() {
        let call = call(name, 10 + i as u64);
        journal.accept(&call).await.unwrap();
        if name != "goes-on" {
            journal.end(record(&call, Outcome::Succeeded)).await.unwrap();
        }
    }
    // Safe ones push out no others, and say nothing about approvals.
    for i in 0..10 {
        journal.note_ended(record(&safe(Some(&format!("safe-{i}")), 100 + i), Outcome::Succeeded), false);
    }
    journal.flush().await.unwrap();
    let there = [("goes-on", true), ("a", false), ("b", false), ("c", true), ("d", true), ("e", true)];
    for (name, there) in there.into_iter().chain([("safe-6", false), ("safe-7", true), ("safe-9", true)]) {
        assert_eq!(journal.find(&id(name)).await.unwrap().is_some(), there, "{name}");
    }
    assert_eq!(journal.forgotten_until(), Some(at(12)));
    drop(journal);
    // What is remembered of the forgotten is remembered after a restart; age forgets too.
    let journal = reopened(directory.path(), FOR_EVER);
    assert_eq!(journal.forgotten_until(), Some(at(12)));
    assert!(journal.find(&id("c")).await.unwrap().is_some());
    drop(journal);
    let journal = reopened(directory.path(), Bounds::default());
    assert_eq!(journal.find(&id("c")).await.unwrap(), None);
    assert_eq!(journal.forgotten_until(), Some(at(15)));
}

/// Of safe runs, what a crash needs is there after a moment, and what ended before is one record.
#[tokio::test]
async fn safe_runs_note_what_happens_to_them() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    let mut changed = journal.changed();
    let (named, unnamed, ends) = (safe(Some("named"), 1), safe(None, 2), safe(None, 3));
    for call in [&named, &unnamed, &ends] {
        assert!(journal.note_accepted(call));
    }
    journal.note_started(&named.id, at(5));
    journal.note_ended(record(&ends, Outcome::Failed), true);
    changed.changed().await.unwrap();
    assert_eq!(all_unshipped(&journal).await, [(ends.id.to_string(), Outcome::Failed)]);
    assert_eq!(journal.find(&ends.id).await.unwrap(), None, "nobody can ask for it again");
    drop(journal);
    let journal = reopened(directory.path(), FOR_EVER);
    let (records, _) = journal.unshipped(usize::MAX, usize::MAX).await.unwrap();
    let of = |call: &Arc<Call>| records.iter().find(|record| record.call.id == call.id).unwrap();
    assert_eq!(of(&ends), &RunRecord { finished_at: of(&ends).finished_at, ..record(&ends, Outcome::Failed) });
    for (call, started_at, says) in [(&named, Some(at(5)), "going on"), (&unnamed, None, "is not known")] {
        let record = of(call);
        assert_eq!((&record.call, record.started_at), (call, started_at));
        assert_eq!((record.finished.outcome, &*record.finished.reason), (Outcome::Lost, "EXECUTOR_LOST"));
        assert!(record.finished.message.contains(says), "{}", record.finished.message);
    }
    let remembered = Entry { step: Step::Started, started_at: Some(at(5)), ..ended(&named, Outcome::Lost) };
    assert_eq!(journal.find(&named.id).await.unwrap(), Some(remembered));
    assert_eq!(journal.find(&unnamed.id).await.unwrap(), None);
}

/// What a run with an approval did before the executor died is known: each step is on the disk before the next.
#[tokio::test]
async fn a_lost_run_says_how_far_it_came() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    let steps = [
        ("a", Step::Accepted, "changed nothing"),
        ("b", Step::Approved, "about to start"),
        ("c", Step::Started, "was going on"),
    ];
    for (name, step, _) in steps {
        journal.accept(&call(name, 1)).await.unwrap();
        if step >= Step::Approved {
            journal.approved(&id(name)).await.unwrap();
        }
        if step == Step::Started {
            journal.note_started(&id(name), at(9));
        }
    }
    drop(journal);
    let journal = reopened(directory.path(), FOR_EVER);
    let (records, _) = journal.unshipped(usize::MAX, usize::MAX).await.unwrap();
    for ((name, step, says), record) in steps.into_iter().zip(records) {
        assert_eq!((record.call.id.as_str(), record.finished.outcome), (name, Outcome::Lost));
        assert!(record.finished.message.contains(says), "{}", record.finished.message);
        let entry = journal.find(&id(name)).await.unwrap().unwrap();
        assert_eq!((entry.step, &entry.lost()), (step, &*record.finished));
    }
}

#[tokio::test]
async fn records_are_shipped_once_in_order_over_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    assert_eq!(journal.unshipped(usize::MAX, usize::MAX).await.unwrap(), (vec![], 0));
    let calls: Vec<_> = (0..10).map(|i| safe(None, i)).collect();
    for call in &calls {
        journal.note_ended(record(call, Outcome::Succeeded), false);
    }
    journal.flush().await.unwrap();
    let (mut journal, mut seen) = (journal, Vec::new());
    loop {
        let (records, cursor) = journal.unshipped(usize::MAX, 3).await.unwrap();
        if records.is_empty() {
            assert_eq!(cursor, 10);
            break;
        }
        // Unless it was said that they are shipped, the same come again.
        assert_eq!(journal.unshipped(usize::MAX, 3).await.unwrap(), (records.clone(), cursor));
        let (first, _) = journal.unshipped(1, 3).await.unwrap();
        assert_eq!(first, records[..1], "one at least");
        seen.extend(records.into_iter().map(|record| record.call.id.clone()));
        journal.shipped(cursor).await.unwrap();
        journal.shipped(cursor - 1).await.unwrap();
        drop(journal);
        journal = reopened(directory.path(), FOR_EVER);
    }
    assert_eq!(seen, calls.iter().map(|call| call.id.clone()).collect::<Vec<_>>());
    // A cursor is never used twice, and one that there never was moves nothing away.
    journal.shipped(u64::MAX).await.unwrap();
    journal.note_ended(record(&calls[0], Outcome::Succeeded), false);
    journal.flush().await.unwrap();
    assert_eq!(journal.unshipped(usize::MAX, 3).await.unwrap().1, 11);
    assert_eq!(*journal.changed().borrow(), 11);
}

#[tokio::test]
async fn records_that_are_too_old_or_too_much_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Bounds { record_bytes: 20 << 10, age: 2 * DAY, ..FOR_EVER };
    let journal = Journal::open(directory.path(), bounds).unwrap();
    let with = |stderr: String, age| {
        let finished_at = SystemTime::now() - age;
        RunRecord { stderr, finished_at, ..record(&safe(None, 1), Outcome::Failed) }
    };
    journal.note_ended(with(String::new(), 3 * DAY), false);
    let young = [with(String::new(), DAY), with(String::new(), Duration::ZERO)];
    young.iter().for_each(|record| journal.note_ended(record.clone(), false));
    journal.flush().await.unwrap();
    assert_eq!(journal.unshipped(usize::MAX, usize::MAX).await.unwrap(), (young.to_vec(), 3));
    let large = [with("a".repeat(8 << 10), Duration::ZERO), with("b".repeat(8 << 10), Duration::ZERO)];
    large.iter().for_each(|record| journal.note_ended(record.clone(), false));
    journal.flush().await.unwrap();
    let (kept, _) = journal.unshipped(usize::MAX, usize::MAX).await.unwrap();
    assert!(kept.ends_with(&large) && kept.len() < 5, "{}", kept.len());
}

/// Nothing that was on the disk is taken for another thing, and nothing is made anew in its place.
#[test]
fn what_was_not_written_so_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
        for i in 0..100 {
            journal.accept(&call(&format!("run-{i}"), i)).await.unwrap();
        }
    });
    drop(reopened(directory.path(), FOR_EVER));
    drop(reopened(directory.path(), FOR_EVER));
    let good = fs::read(&path).unwrap();
    let mut scrambled = good.clone();
    scrambled.iter_mut().skip(4096).for_each(|byte| *byte ^= 0x5a);
    let cases: [(&str, Vec<u8>); 5] = [
        ("empty", Vec::new()),
        ("text", b"this is no journal".to_vec()),
        ("cut", good[..good.len() / 2].to_vec()),
        ("scrambled", scrambled),
        ("zeros", vec![0; good.len()]),
    ];
    for (what, bytes) in cases {
        let another = tempfile::tempdir().unwrap();
        let path = another.path().join(FILE);
        fs::write(&path, &bytes).unwrap();
        Journal::open(another.path(), FOR_EVER).expect_err(what);
        let error = Journal::open(another.path(), FOR_EVER).expect_err(what);
        assert!(matches!(&error, JournalError::Corrupt { path: named, .. } if *named == path), "{what}: {error:?}");
        assert!(error.to_string().contains("put back the file"), "{what}: {error}");
        assert!(path.exists(), "{what}");
    }
}

/// A half-made file is no journal yet, and no run was ever in it.
#[tokio::test]
async fn a_journal_that_was_half_made_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(NEW_FILE), b"half").unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    journal.accept(&call("a", 1)).await.unwrap();
    assert!(!directory.path().join(NEW_FILE).exists());
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = Journal::open(&file.join("journal"), FOR_EVER).unwrap_err();
    assert!(matches!(&error, JournalError::Io { .. }), "{error:?}");
    // A journal that somebody else has open is not corrupt.
    let _first = Journal::open(directory.path(), FOR_EVER).unwrap();
    let error = Journal::open(directory.path(), FOR_EVER).unwrap_err();
    assert!(matches!(&error, JournalError::Io { what: "open", .. }), "{error:?}");
}

#[test]
fn what_could_not_be_written_waits_before_all_else() {
    let queue = Queue::default();
    let runs = ["a", "b", "c"].map(|text| call(text, 1));
    let end = |call: &Arc<Call>| Write::End(Box::new(record(call, Outcome::Succeeded)));
    queue.record(record(&runs[2], Outcome::Succeeded), true);
    assert_eq!(queue.put_back(vec![Write::Note(Box::new(goes_on(&runs[0]))), end(&runs[0]), end(&runs[1])]), 0);
    let ids = |waiting: Vec<Queued>| {
        let id = |queued: &Queued| match &queued.write {
            Write::Note(entry) => format!("note {}", entry.call.id),
            Write::End(record) => format!("end {}", record.call.id),
            Write::Forget(id) => format!("forget {id}"),
            other => format!("{other:?}"),
        };
        waiting.iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids(queue.take().unwrap()), ["note a", "end a", "end b", "end c"]);
    // There is room for so many: of the others, nothing is said of their runs.
    let labels = [("long".to_owned(), "x".repeat(1 << 20))].into();
    let long = Arc::new(Call { labels, ..Call::for_tests(Some("long"), b"long") });
    let lost = queue.put_back((0..100).map(|_| end(&long)).collect());
    let waiting = ids(queue.take().unwrap());
    assert_eq!(waiting.len(), 100);
    assert_eq!(waiting.iter().filter(|what| *what == "forget long").count() as u64, lost);
    assert!(lost > 0 && lost < 100, "{lost}");
    // And none once nothing is written any more.
    queue.close();
    assert_eq!(queue.put_back(vec![end(&runs[1])]), 1);
    assert!(queue.take().is_none());
}
