//! From the registry to verified files: the catalog and the agents as they were last sent, and the packages by digest.
//!
//! [`Mirror::open`] starts with what was kept on disk, [`Mirror::follow`] keeps it up to date. Whoever runs skills takes
//! the current [`MirroredCatalog`] and holds a package; neither ever waits for the registry.

mod cache;
mod catalog;
mod fetch;
mod package;
mod store;
mod watch;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skillyard::Digest;
use tokio::sync::{Notify, watch as value};
use tokio_util::sync::CancellationToken;

use self::cache::Cache;
pub use self::catalog::{MirroredCatalog, MirroredSkill};
pub use self::store::Held;
use self::store::Store;
use crate::registry::{Registry, RegistryError, Sent, State};

/// What an executor has of a registry. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Mirror {
    inner: Arc<Inner>,
}

/// How a mirror stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// Of the catalog; empty until there is one.
    pub catalog_version: String,
    /// Whether the registry answers now.
    pub connected: bool,
    /// Since the registry last confirmed the catalog; `None` until there is one.
    pub age: Option<Duration>,
    /// Skills that cannot be run for want of their package, or that were left out: by name, with the cause.
    pub missing: BTreeMap<String, String>,
}

/// Why a mirror cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The directory cannot be used.
    #[error("cannot {what} {}: {source}: give a state directory that this user may write", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("the state directory {} is in use by process {holder}: give each executor one of its own", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that has it, as far as it said.
        holder: String,
    },
}

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    cache: Cache,
    /// What the catalog was made of, to which changes are applied; `None` where the registry is to send the whole. Held by
    /// whoever writes to the cache.
    state: Arc<tokio::sync::Mutex<Option<State>>>,
    max_age: Duration,
    live: Mutex<Live>,
    ready: value::Sender<bool>,
    /// The catalog is another one.
    changed: Notify,
    /// The descriptor is the lock.
    _lock: File,
}

#[derive(Debug, Default)]
struct Live {
    catalog: Option<Arc<MirroredCatalog>>,
    connected: bool,
    confirmed: Option<Confirmed>,
    /// Why a package could not be fetched, the last time.
    failures: BTreeMap<Digest, String>,
}

/// When the registry last confirmed the catalog: so long before a moment of this process.
#[derive(Clone, Copy, Debug)]
struct Confirmed {
    age_then: Duration,
    then: Duration,
}

impl Confirmed {
    fn ago(age: Duration) -> Self {
        Self { age_then: age, then: uptime() }
    }

    fn age(self) -> Duration {
        self.age_then.saturating_add(uptime().saturating_sub(self.then))
    }
}

impl Mirror {
    /// Opens `<state_dir>/store` and `<state_dir>/catalog`, verifies every package, and takes up the last catalog. Once the
    /// registry has not confirmed that for `max_age`, the mirror is not ready.
    ///
    /// Reads every file of the store, and blocks as long.
    ///
    /// # Errors
    /// [`MirrorError`]: the directory cannot be used, or another executor uses it. A broken package or a broken catalog is
    /// no error: it is logged and fetched again.
    pub fn open(state_dir: &Path, max_age: Duration) -> Result<Self, MirrorError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| MirrorError::Io { what, path, source }
        };
        fs::create_dir_all(state_dir).map_err(failed("create", state_dir))?;
        let state_dir = state_dir.canonicalize().map_err(failed("use", state_dir))?;
        let lock = lock(&state_dir)?;
        let directory = state_dir.join("catalog");
        let cache = Cache::open(directory.clone()).map_err(failed("use", &directory))?;
        let state = cache.load().unwrap_or_else(|error| {
            tracing::warn!(%error, path = %directory.display(), "the catalog on disk is not used");
            None
        });
        let catalog = state.as_ref().map(|state| Arc::new(MirroredCatalog::build(state, None, None)));
        let named = catalog.as_ref().map(|catalog| catalog.packages());
        let directory = state_dir.join("store");
        let store = Store::open(&directory, named.as_ref()).map_err(failed("use", &directory))?;
        // A catalog whose age nobody knows waits for the registry's word.
        let age = cache.load_age().unwrap_or(Duration::MAX);
        let confirmed = catalog.as_ref().map(|_| Confirmed::ago(age));
        if let Some(catalog) = &catalog {
            tracing::info!(version = %catalog.version, skills = catalog.skills.len(), ?age, "catalog taken up from disk");
        }
        let inner = Inner {
            store,
            cache,
            state: Arc::new(tokio::sync::Mutex::new(state.filter(State::is_checked))),
            max_age,
            live: Mutex::new(Live { catalog, confirmed, ..Live::default() }),
            ready: value::Sender::new(false),
            changed: Notify::new(),
            _lock: lock,
        };
        inner.update_ready();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The current catalog, however old. `None` until there is one.
    #[must_use]
    pub fn catalog(&self) -> Option<Arc<MirroredCatalog>> {
        self.inner.live().catalog.clone()
    }

    /// The package, if it is here. It stays in place as long as the answer lives.
    #[must_use]
    pub fn hold(&self, digest: &Digest) -> Option<Held> {
        self.inner.store.hold(digest)
    }

    /// Why the package is not here, for a caller to read.
    #[must_use]
    pub fn cause_of_missing(&self, digest: &Digest) -> String {
        self.inner.live().cause_of_missing(digest)
    }

    /// How the mirror stands.
    #[must_use]
    pub fn status(&self) -> MirrorStatus {
        let live = self.inner.live();
        let mut missing = BTreeMap::new();
        if let Some(catalog) = &live.catalog {
            missing.clone_from(&catalog.refused);
            for skill in catalog.subprocesses().filter(|skill| !self.inner.store.has(&skill.digest)) {
                missing.insert(skill.name.to_string(), live.cause_of_missing(&skill.digest));
            }
        }
        MirrorStatus {
            catalog_version: live.catalog.as_ref().map(|catalog| catalog.version.clone()).unwrap_or_default(),
            connected: live.connected,
            age: live.confirmed.map(Confirmed::age),
            missing,
        }
    }

    /// Whether there is a catalog that is not too old, now and later. It turns while [`Self::follow`] goes on.
    #[must_use]
    pub fn ready(&self) -> value::Receiver<bool> {
        self.inner.ready.subscribe()
    }

    /// Watches the registry, fetches what is missing and removes what is no longer used, until `shutdown`. A registry that
    /// is away, slow or wrong is tried again for ever.
    pub async fn follow(&self, registry: Registry, shutdown: CancellationToken) {
        let work = async {
            tokio::join!(
                watch::watch(&self.inner, &registry),
                fetch::fetch(&self.inner, &registry),
                watch::keep(&self.inner),
                self.inner.collect(),
            )
        };
        // Each goes on for ever.
        let _ = shutdown.run_until_cancelled(work).await;
        self.inner.live().connected = false;
        watch::save_age(&self.inner).await;
    }
}

impl Inner {
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what was sent the current state, at once: a skill whose package is not here yet waits for it, and a run that
    /// goes on keeps the package that it holds. Where it does not lead to a state that is known to be the registry's,
    /// everything stays as it was, and the whole is to be asked for. Blocks.
    fn apply(&self, current: &mut Option<State>, sent: Sent) -> Result<(), RegistryError> {
        let (state, touched) = match current.take() {
            _ if sent.is_whole() => (State::whole(sent)?, None),
            Some(mut state) => {
                let touched = state.change(sent)?;
                (state, Some(touched))
            }
            None => return Err(RegistryError::Baseless),
        };
        let previous = self.live().catalog.clone();
        let catalog = Arc::new(MirroredCatalog::build(&state, previous.as_deref(), touched.as_ref()));
        let encoded = current.insert(state).to_bytes();
        let packages = catalog.packages();
        tracing::info!(
            version = %catalog.version, skills = catalog.skills.len(), agents = catalog.agents.len(), "catalog mirrored"
        );
        for (skill, cause) in &catalog.refused {
            tracing::warn!(skill, cause, "a skill of the catalog is left out");
        }
        self.store.name(packages.clone());
        {
            let mut live = self.live();
            live.catalog = Some(catalog);
            live.failures.retain(|digest, _| packages.contains(digest));
            live.confirmed = Some(Confirmed::ago(Duration::ZERO));
        }
        self.update_ready();
        self.changed.notify_one();
        self.store.collect();
        if let Err(error) = self.cache.save(&encoded).and_then(|()| self.cache.save_age(Duration::ZERO)) {
            tracing::warn!(%error, "the catalog cannot be kept: without the registry a restart finds an older one, or none");
        }
        Ok(())
    }

    fn update_ready(&self) {
        let ready = self.live().confirmed.is_some_and(|confirmed| confirmed.age() <= self.max_age);
        self.ready.send_if_modified(|before| std::mem::replace(before, ready) != ready);
    }

    async fn collect(self: &Arc<Self>) {
        loop {
            self.store.released().await;
            let store = Arc::clone(&self.store);
            blocking(move || store.collect()).await;
        }
    }
}

impl Live {
    fn cause_of_missing(&self, digest: &Digest) -> String {
        match self.failures.get(digest) {
            Some(cause) => cause.clone(),
            None if self.connected => "its package is being fetched".to_owned(),
            None => "its package was not fetched yet, and the registry does not answer".to_owned(),
        }
    }
}

/// Work on files, off the runtime's thread. `None` when it panicked.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.inspect_err(|error| tracing::error!(%error, "work on files failed")).ok()
}

/// How long a lock is waited for that somebody else has.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

fn lock(state_dir: &Path) -> Result<File, MirrorError> {
    let path = state_dir.join("lock");
    let failed = |source| MirrorError::Io { what: "lock", path: path.clone(), source };
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut file = file.map_err(failed)?;
    // A slot that was being started when its executor was killed holds the lock until it has become a slot.
    let until = std::time::Instant::now() + LOCK_PATIENCE;
    let mut locked = file.try_lock();
    while matches!(locked, Err(TryLockError::WouldBlock)) && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => {
            file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Only for the message: it says less where this cannot be read.
            let _ = file.take(20).read_to_string(&mut holder);
            Err(MirrorError::Locked { path: state_dir.to_owned(), holder: holder.trim().to_owned() })
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// A clock that nobody sets, and that goes on while the machine sleeps.
fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.try_into().unwrap_or_default(), now.tv_nsec.try_into().unwrap_or_default())
}
