//! `registry-svc sync`: syncs once, and says by its exit code what came of it.

use super::follow;
use super::pull::{Puller, SyncError, Synced};

/// All that is published for us is mirrored.
const DONE: u8 = 0;
/// The mirror cannot be changed, or some skills could not be synced: they are in the log.
const FAILED: u8 = 1;
/// The admin server did not answer, or not in its protocol.
const NO_ANSWER: u8 = 9;

/// Syncs; without a server, because it is offline, there is nothing to do.
#[must_use]
pub fn run(puller: Option<Puller>) -> u8 {
    let Some(puller) = puller else {
        tracing::info!("sync: offline, so the mirror stays as it is");
        return DONE;
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "sync: no threads");
            return FAILED;
        }
    };
    puller.server.warn();
    let outcome = runtime.block_on(puller.sync());
    follow::log(&outcome, true);
    match outcome {
        Ok(Synced { failed, .. }) if failed.is_empty() => DONE,
        Ok(_) => FAILED,
        Err(SyncError::Fetch(_) | SyncError::Manifest(_) | SyncError::Empty(_)) => NO_ANSWER,
        Err(SyncError::Mirror(_) | SyncError::Disk(_) | SyncError::Task(_)) => FAILED,
    }
}
