//! Follows the registry's catalog, and keeps account of how old it is.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Confirmed, Inner, blocking};
use crate::backoff::Backoff;
use crate::registry::{Registry, RegistryError, Update};

/// Longest pause before the registry is asked again.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How often the age is written down, and looked at.
const KEEP_INTERVAL: Duration = Duration::from_secs(60);
/// How exactly its end is met.
const MIN_STEP: Duration = Duration::from_millis(5);

/// Watches, and watches again, for ever.
pub(super) async fn watch(inner: &Arc<Inner>, registry: &Registry) -> Infallible {
    let mut backoff = Backoff::default();
    let mut logged: Option<String> = None;
    loop {
        let ended = follow(inner, registry, &mut backoff).await;
        let was_connected = std::mem::replace(&mut inner.live().connected, false);
        let pause = backoff.next(MAX_PAUSE);
        let error = ended.err();
        let cause = error.as_ref().map_or_else(|| "it ended the stream".to_owned(), ToString::to_string);
        let is_malformed = error.is_some_and(|error| error.is_malformed());
        if is_malformed {
            *inner.state.lock().await = None;
        }
        // One line an outage, and one whenever the registry says something else that it must not.
        if was_connected || logged.is_none() || (is_malformed && logged.as_ref() != Some(&cause)) {
            logged = Some(cause.clone());
            tracing::warn!(%cause, "the registry is not followed: runs go on from what is here, and it is tried again");
        } else {
            tracing::debug!(%cause, ?pause, "the registry is tried again");
        }
        tokio::time::sleep(pause).await;
    }
}

async fn follow(inner: &Arc<Inner>, registry: &Registry, backoff: &mut Backoff) -> Result<(), RegistryError> {
    let (mut watch, mut known) = {
        let state = inner.state.lock().await;
        (registry.watch(state.as_ref()).await?, state.as_ref().map(|state| state.version().to_owned()))
    };
    while let Some(update) = watch.next().await? {
        match update {
            Update::Confirmed(version) if known.as_ref() == Some(&version) => {
                inner.live().confirmed = Some(Confirmed::ago(Duration::ZERO))
            }
            Update::Confirmed(_) => return Err(RegistryError::Mixed),
            Update::Sent(sent) => {
                let inner = Arc::clone(inner);
                let mut state = Arc::clone(&inner.state).lock_owned().await;
                let applied = blocking(move || {
                    inner.apply(&mut state, sent)?;
                    Ok::<_, RegistryError>(state.as_ref().map(|state| state.version().to_owned()))
                });
                known = applied.await.ok_or(RegistryError::NoState)??;
            }
        }
        backoff.reset();
        let before = std::mem::replace(&mut inner.live().connected, true);
        if !before {
            tracing::info!(version = known, "the registry is followed");
            // What could not be fetched is tried at once.
            inner.changed.notify_one();
        }
        inner.update_ready();
    }
    Ok(())
}

/// Writes down the catalog's age now and then, and sees it become too old.
pub(super) async fn keep(inner: &Arc<Inner>) -> Infallible {
    let mut saved = Instant::now();
    loop {
        let age = inner.live().confirmed.map(Confirmed::age);
        // Until it is too old; one that is confirmed in the meantime is not too old before this has passed either.
        let left = age.and_then(|age| inner.max_age.checked_sub(age)).unwrap_or(inner.max_age);
        tokio::time::sleep(left.clamp(MIN_STEP, KEEP_INTERVAL)).await;
        inner.update_ready();
        if saved.elapsed() >= KEEP_INTERVAL {
            saved = Instant::now();
            save_age(inner).await;
        }
    }
}

/// Writes down the catalog's age, after any state that is being written.
pub(super) async fn save_age(inner: &Arc<Inner>) {
    let state = Arc::clone(&inner.state).lock_owned().await;
    let Some(confirmed) = inner.live().confirmed else { return };
    // Of a catalog with an unknown age nothing is known still.
    if confirmed.age() == Duration::MAX {
        return;
    }
    let inner = Arc::clone(inner);
    let saved = blocking(move || {
        let saved = inner.cache.save_age(confirmed.age());
        drop((inner, state));
        saved
    });
    if let Some(Err(error)) = saved.await {
        tracing::debug!(%error, "the catalog's age cannot be kept");
    }
}
