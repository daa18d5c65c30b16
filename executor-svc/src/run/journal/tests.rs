use super::*;

fn id(text: &str) -> RunId {
    text.parse().unwrap()
}

/// A run that was accepted so many milliseconds after 1970.
fn record(text: &str, accepted_ms: u64) -> Record {
    Record {
        id: id(text),
        request: Digest::of(text.as_bytes()),
        caller: "ann".to_owned(),
        approval_id: "approval".to_owned(),
        skill: "disk_cleaner".parse().unwrap(),
        digest: Digest::of(b"package"),
        agent: "ops".to_owned(),
        args_sha256: Digest::of(b"{}"),
        accepted_at: SystemTime::UNIX_EPOCH + Duration::from_millis(accepted_ms),
        outcome: None,
    }
}

fn ended(record: Record, outcome: Outcome) -> Record {
    Record { outcome: Some(outcome), ..record }
}

const FOR_EVER: Bounds = Bounds { age: Duration::from_secs(u64::MAX / 2), runs: u64::MAX };

#[tokio::test]
async fn a_record_gets_its_end_and_survives() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    for (name, outcome) in [("a", Some(Outcome::Succeeded)), ("b", Some(Outcome::Cancelled)), ("c", None)] {
        assert_eq!(journal.find(&id(name)).await.unwrap(), None);
        journal.accept(record(name, 1)).await.unwrap();
        assert_eq!(journal.find(&id(name)).await.unwrap(), Some(record(name, 1)));
        if let Some(outcome) = outcome {
            journal.end(&id(name), outcome).await.unwrap();
        }
    }
    journal.end(&id("nobody"), Outcome::Failed).await.unwrap();
    drop(journal);
    let journal = reopened(directory.path());
    for (name, outcome) in [("a", Outcome::Succeeded), ("b", Outcome::Cancelled), ("c", Outcome::Lost)] {
        assert_eq!(journal.find(&id(name)).await.unwrap(), Some(ended(record(name, 1), outcome)));
        // What has an end is never accepted again, and its end stays.
        assert!(matches!(journal.accept(record(name, 2)).await, Err(JournalError::Known(_))));
        journal.end(&id(name), Outcome::Failed).await.unwrap();
        journal.forget(&id(name)).await.unwrap();
        assert_eq!(journal.find(&id(name)).await.unwrap(), Some(ended(record(name, 1), outcome)));
    }
    assert_eq!(journal.find(&id("nobody")).await.unwrap(), None);
    assert_eq!(journal.forgotten_until(), None);
}

/// Also one that was made by a version that knew no ids.
#[tokio::test]
async fn a_journal_keeps_its_id_and_another_has_another() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    let id = journal.id().to_owned();
    assert!(id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
    drop(journal);
    assert_eq!(reopened(directory.path()).id(), id);
    let another = tempfile::tempdir().unwrap();
    let journal = Journal::open(another.path(), FOR_EVER).unwrap();
    assert_ne!(journal.id(), id);
    journal.accept(record("a", 1)).await.unwrap();
    drop(journal);
    drop(reopened(another.path()));

    database::forget_the_id(&another.path().join(FILE));
    let journal = reopened(another.path());
    let given = journal.id().to_owned();
    assert!(journal.find(&super::tests::id("a")).await.unwrap().is_some());
    drop(journal);
    assert_eq!(reopened(another.path()).id(), given);
}

/// The thread that writes closes the file, a moment after the last handle is gone.
fn reopened(directory: &Path) -> Journal {
    let begun = std::time::Instant::now();
    loop {
        match Journal::open(directory, FOR_EVER) {
            Ok(journal) => return journal,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_run_that_was_not_started_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    journal.accept(record("a", 1)).await.unwrap();
    journal.forget(&id("a")).await.unwrap();
    assert_eq!(journal.find(&id("a")).await.unwrap(), None);
    journal.accept(record("a", 2)).await.unwrap();
    assert_eq!(journal.find(&id("a")).await.unwrap(), Some(record("a", 2)));
    // As after a forget that failed: the record is that of the newer run.
    journal.accept(record("a", 3)).await.unwrap();
    assert_eq!(journal.find(&id("a")).await.unwrap(), Some(record("a", 3)));
    drop(journal);
    assert_eq!(reopened(directory.path()).find(&id("a")).await.unwrap(), Some(ended(record("a", 3), Outcome::Lost)));
}

/// A run that is dropped while its record waits to be written is settled by what is asked for after it.
#[tokio::test]
async fn what_is_asked_for_later_comes_later() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path(), FOR_EVER).unwrap();
    for i in 0..50 {
        let name = format!("run-{i}");
        {
            let mut accept = std::pin::pin!(journal.accept(record(&name, 1)));
            tokio::select! {
                biased;
                _ = &mut accept => {}
                () = std::future::ready(()) => {}
            }
        }
        if i % 2 == 0 {
            journal.end(&id(&name), Outcome::Cancelled).await.unwrap();
            let expected = ended(record(&name, 1), Outcome::Cancelled);
            assert_eq!(journal.find(&id(&name)).await.unwrap(), Some(expected));
        } else {
            journal.forget(&id(&name)).await.unwrap();
            assert_eq!(journal.find(&id(&name)).await.unwrap(), None);
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
            let record = record(&format!("run-{i}"), i);
            journal.accept(record.clone()).await.unwrap();
            journal.end(&record.id, Outcome::Succeeded).await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    for i in 0..500 {
        let expected = ended(record(&format!("run-{i}"), i), Outcome::Succeeded);
        assert_eq!(journal.find(&expected.id).await.unwrap(), Some(expected));
    }
}

#[tokio::test]
async fn the_oldest_are_forgotten_but_never_one_that_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Bounds { runs: 3, ..FOR_EVER };
    let journal = Journal::open(directory.path(), bounds).unwrap();
    for (i, name) in ["goes-on", "a", "b", "c", "d"].into_iter().enumerate() {
        journal.accept(record(name, 10 + i as u64)).await.unwrap();
        if name != "goes-on" {
            journal.end(&id(name), Outcome::Succeeded).await.unwrap();
        }
    }
    for (name, there) in [("goes-on", true), ("a", false), ("b", false), ("c", true), ("d", true)] {
        assert_eq!(journal.find(&id(name)).await.unwrap().is_some(), there, "{name}");
    }
    assert_eq!(journal.forgotten_until(), Some(SystemTime::UNIX_EPOCH + Duration::from_millis(12)));
    drop(journal);
    // What is remembered of the forgotten is remembered after a restart; age forgets too.
    let journal = reopened(directory.path());
    assert_eq!(journal.forgotten_until(), Some(SystemTime::UNIX_EPOCH + Duration::from_millis(12)));
    assert!(journal.find(&id("c")).await.unwrap().is_some());
    drop(journal);
    let begun = std::time::Instant::now();
    let journal = loop {
        match Journal::open(directory.path(), Bounds::default()) {
            Ok(journal) => break journal,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(10), "{error}"),
        }
    };
    assert_eq!(journal.find(&id("c")).await.unwrap(), None);
    assert_eq!(journal.forgotten_until(), Some(SystemTime::UNIX_EPOCH + Duration::from_millis(14)));
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
            journal.accept(record(&format!("run-{i}"), i)).await.unwrap();
        }
    });
    drop(reopened(directory.path()));
    drop(reopened(directory.path()));
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
    journal.accept(record("a", 1)).await.unwrap();
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
