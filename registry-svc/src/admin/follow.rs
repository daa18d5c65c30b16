//! Syncs again and again while the registry serves, and has the catalog reloaded where something changed.

use std::future::Future;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::pull::{Puller, SyncError, Synced};
use super::server::FetchError;
use crate::catalog::Catalogs;

/// Most skills of one sync that are named in the log.
const MAX_NAMED: usize = 100;

/// What is known of the syncs since the registry started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The admin server.
    pub url: String,
    /// What is mirrored, as the server calls it.
    pub version: String,
    /// When the last sync ended.
    pub attempted_at: Option<SystemTime>,
    /// When the last one ended that asked to the end.
    pub succeeded_at: Option<SystemTime>,
    /// Skills that are mirrored.
    pub skills: usize,
    /// Ids that the last one could not sync.
    pub failed: usize,
    /// Why the last one did not ask to the end; else empty.
    pub error: String,
}

/// The status, and the task that syncs, which runs until it is dropped.
pub fn start(
    puller: Puller,
    interval: Duration,
    catalogs: Catalogs,
) -> (watch::Receiver<Status>, impl Future<Output = ()> + Send) {
    puller.server.warn();
    let (publish, status) = watch::channel(Status { url: puller.server.url.to_string(), ..Status::default() });
    (status, run(puller, interval, catalogs, publish))
}

async fn run(puller: Puller, interval: Duration, catalogs: Catalogs, publish: watch::Sender<Status>) {
    loop {
        let outcome = puller.sync().await;
        let is_new = is_new(&publish.borrow(), &outcome);
        log(&outcome, is_new);
        // Readers of the status find the catalog that belongs to it.
        match &outcome {
            // The registry is stopping, and this task with it.
            Ok(synced) if synced.changed => drop(catalogs.reload().await),
            Ok(synced) if !synced.reported => {}
            _ => catalogs.hint(),
        }
        let asked = match &outcome {
            Err(SyncError::Fetch(error)) => asked(error),
            _ => Duration::ZERO,
        };
        publish.send_modify(|status| note(status, outcome, SystemTime::now()));
        tokio::time::sleep(spread(interval).max(asked)).await;
    }
}

/// A tenth more or less: registries that were started together do not ask together for ever.
fn spread(interval: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_fields().0;
    interval.mul_f64(0.9 + 0.2 * f64::from(random) / f64::from(u32::MAX))
}

/// A server may ask to be left alone for longer than the interval.
fn asked(error: &FetchError) -> Duration {
    const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
    error.retry_after().unwrap_or_default().min(LONGEST)
}

/// Whether the last sync did not say the same. The first one always says something.
fn is_new(before: &Status, outcome: &Result<Synced, SyncError>) -> bool {
    let same = match outcome {
        Ok(synced) => !synced.changed && !synced.reported,
        Err(error) => error.to_string() == before.error,
    };
    before.attempted_at.is_none() || !same
}

fn note(status: &mut Status, outcome: Result<Synced, SyncError>, now: SystemTime) {
    status.attempted_at = Some(now);
    match outcome {
        Ok(synced) => {
            status.succeeded_at = Some(now);
            (status.version, status.skills, status.failed) = (synced.version, synced.skills, synced.failed.len());
            status.error.clear();
        }
        Err(error) => status.error = error.to_string(),
    }
}

/// One line for a sync, one more for every skill that could not be synced; for debugging alone where nothing is new.
pub(super) fn log(outcome: &Result<Synced, SyncError>, is_new: bool) {
    match outcome {
        Ok(Synced { version, skills, fetched, removed, failed, above, .. }) if is_new => {
            for (id, what) in failed.iter().take(MAX_NAMED) {
                tracing::warn!(id, "sync: a skill is not synced, and tried again next time: {what}");
            }
            let failed = failed.len();
            tracing::info!(
                version,
                skills,
                fetched,
                removed,
                failed,
                above,
                "sync: the mirror is that of the admin server"
            );
        }
        Ok(Synced { version, .. }) => tracing::debug!(version, "sync: nothing is new"),
        Err(error) if is_new => tracing::warn!("sync: {error}"),
        Err(error) => tracing::debug!("sync: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_spread() {
        let all: Vec<_> = (0..100).map(|_| spread(Duration::from_secs(100))).collect();
        assert!(all.iter().all(|one| (90..=110).contains(&one.as_secs())));
        assert!(all.iter().any(|one| *one != all[0]));
    }

    #[test]
    fn what_was_said_before_is_not_said_again() {
        let mut status = Status::default();
        let failed = || Err(SyncError::Empty(1));
        assert!(is_new(&status, &failed()));
        note(&mut status, failed(), SystemTime::UNIX_EPOCH);
        assert!(!is_new(&status, &failed()) && is_new(&status, &Err(SyncError::Empty(2))));
        assert!(!is_new(&status, &Ok(Synced::default())), "nothing has changed and nothing is reported");
        assert!(is_new(&status, &Ok(Synced { reported: true, ..Synced::default() })));
        note(&mut status, Ok(Synced { skills: 3, ..Synced::default() }), SystemTime::now());
        assert_eq!((status.skills, status.error.as_str()), (3, ""));
    }
}
