//! The store: packages by their digest, one read-only directory each. A package is written beside, verified, and renamed
//! into place, so that what is in place is whole; it is kept while the catalog names it or a run holds it. The store
//! knows no catalog and no registry.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skillyard::Digest;
use tokio::sync::Notify;

use super::package::{PackageError, Writer, remove_tree, verify};

/// Of what is being written or removed; never a digest.
const TEMPORARY: &str = ".tmp-";

/// Packages by digest.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    packages: Mutex<Packages>,
    /// A package is here that nobody names and nobody holds.
    released: Notify,
    /// A package that was here is broken.
    broken: Notify,
    counter: AtomicU64,
}

#[derive(Debug, Default)]
struct Packages {
    /// Those in place.
    present: HashMap<Digest, Present>,
    /// Those that the catalog names.
    named: HashSet<Digest>,
}

/// A package in place.
#[derive(Debug)]
struct Present {
    holders: usize,
    /// Tells it from one of the same digest that was here before, and was found broken.
    edition: u64,
}

impl Store {
    /// Opens a store, which nobody else may use, and verifies every package in it. With `named`, packages that it does
    /// not name go unread.
    ///
    /// # Errors
    /// The directory cannot be made or read. A broken package is removed and is no error.
    pub(crate) fn open(directory: &Path, named: Option<&HashSet<Digest>>) -> io::Result<Arc<Self>> {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
        let mut packages = Packages { named: named.cloned().unwrap_or_default(), ..Packages::default() };
        for entry in fs::read_dir(directory)? {
            let (name, path) = entry.map(|entry| (entry.file_name(), entry.path()))?;
            let name = name.to_string_lossy();
            let Ok(digest) = name.parse::<Digest>() else {
                if name.starts_with(TEMPORARY) {
                    remove(&path);
                } else {
                    tracing::warn!(path = %path.display(), "not a package: left alone");
                }
                continue;
            };
            if named.is_some_and(|named| !named.contains(&digest)) {
                remove(&path);
                continue;
            }
            match verify(&path, &digest) {
                Ok(()) => {
                    packages.present.insert(digest, Present { holders: 0, edition: 0 });
                }
                Err(error) => {
                    tracing::warn!(%digest, %error, "a package in the store is broken: removed, to be fetched again");
                    remove(&path);
                }
            }
        }
        Ok(Arc::new(Self {
            directory: directory.to_owned(),
            packages: Mutex::new(packages),
            released: Notify::new(),
            broken: Notify::new(),
            // Those that were verified just now are of edition 0.
            counter: AtomicU64::new(1),
        }))
    }

    /// The package, if it is here; it stays as long as the answer lives.
    pub(crate) fn hold(self: &Arc<Self>, digest: &Digest) -> Option<Held> {
        let edition = {
            let mut packages = self.lock();
            let present = packages.present.get_mut(digest)?;
            present.holders += 1;
            present.edition
        };
        Some(Held { path: self.path(digest), digest: *digest, edition, store: Arc::clone(self) })
    }

    /// Whether the package is here.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.lock().present.contains_key(digest)
    }

    /// Which packages the catalog names; the others go with the next [`Self::collect`].
    pub(crate) fn name(&self, named: HashSet<Digest>) {
        self.lock().named = named;
    }

    /// Begins a package.
    ///
    /// # Errors
    /// No directory can be made.
    pub(crate) fn writer(&self, digest: Digest) -> Result<Writer, PackageError> {
        // Somebody may have removed the store, or closed it: that is mended here, too.
        fs::create_dir_all(&self.directory)
            .and_then(|()| fs::set_permissions(&self.directory, Permissions::from_mode(0o755)))
            .map_err(|error| PackageError::io("create", &self.directory, error))?;
        Writer::new(self.temporary(), digest)
    }

    /// Puts a package in place that was written to its end.
    ///
    /// # Errors
    /// What was written is not what the digest says, or the directory cannot be renamed.
    pub(crate) fn publish(&self, writer: Writer) -> Result<(), PackageError> {
        let digest = *writer.digest();
        let finished = writer.finish()?;
        let path = self.path(&digest);
        let mut packages = self.lock();
        if packages.present.contains_key(&digest) {
            return Ok(());
        }
        // What could not be removed, earlier, is in the way.
        if path.symlink_metadata().is_ok() {
            let aside = self.temporary();
            fs::rename(&path, &aside).map_err(|error| PackageError::io("move aside", &path, error))?;
            remove(&aside);
        }
        finished.rename(&path)?;
        let edition = self.counter.fetch_add(1, Ordering::Relaxed);
        packages.present.insert(digest, Present { holders: 0, edition });
        if !packages.named.contains(&digest) {
            self.released.notify_one();
        }
        drop(packages);
        // Without it a crash may lose the package, which is then fetched again.
        if let Err(error) = fs::File::open(&self.directory).and_then(|directory| directory.sync_all()) {
            tracing::debug!(%error, "the store's directory could not be synced");
        }
        Ok(())
    }

    /// Removes the packages that nobody names and nobody holds, and says how many they were.
    pub(crate) fn collect(&self) -> usize {
        let mut gone = Vec::new();
        {
            let mut packages = self.lock();
            let Packages { present, named } = &mut *packages;
            // Moved aside under the lock: after it the same digest may be written anew.
            present.retain(|digest, package| {
                if package.holders > 0 || named.contains(digest) {
                    return true;
                }
                let (path, aside) = (self.path(digest), self.temporary());
                match fs::rename(&path, &aside) {
                    Ok(()) => gone.push(aside),
                    Err(error) => tracing::warn!(%digest, %error, "a package cannot be moved away"),
                }
                false
            });
        }
        gone.iter().for_each(|path| remove(path));
        gone.len()
    }

    /// Resolves when there may be something to collect.
    pub(crate) async fn released(&self) {
        self.released.notified().await;
    }

    /// Resolves when a package is to be fetched that was here.
    pub(crate) async fn broke(&self) {
        self.broken.notified().await;
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.to_string())
    }

    fn temporary(&self) -> PathBuf {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        self.directory.join(format!("{TEMPORARY}{number}"))
    }

    fn lock(&self) -> MutexGuard<'_, Packages> {
        self.packages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A package that is kept in place as long as this lives.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    digest: Digest,
    edition: u64,
    store: Arc<Store>,
}

impl Held {
    /// The package's directory, absolute and read-only.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The package's digest.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Reads all of it, to see whether it is what it was when it was fetched. If not, nobody gets it any more, and it is
    /// fetched anew. Blocks.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let Err(error) = verify(&self.path, &self.digest) else { return true };
        let mut packages = self.store.lock();
        if packages.present.get(&self.digest).is_some_and(|present| present.edition == self.edition) {
            tracing::warn!(digest = %self.digest, %error, "a package in the store was changed: it is fetched again");
            packages.present.remove(&self.digest);
            self.store.broken.notify_one();
        }
        false
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut packages = self.store.lock();
        let present = packages.present.get_mut(&self.digest).filter(|present| present.edition == self.edition);
        let Some(Present { holders, .. }) = present else { return };
        *holders -= 1;
        if *holders == 0 && !packages.named.contains(&self.digest) {
            self.store.released.notify_one();
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = remove_tree(path) {
        tracing::warn!(path = %path.display(), %error, "cannot be removed from the store");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skillyard::PackageFile;
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;

    /// Removed in the end, read-only directories too.
    struct Scratch(tempfile::TempDir);

    impl Scratch {
        fn new() -> Self {
            Self(tempfile::TempDir::new().unwrap())
        }

        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            remove_tree(self.path()).unwrap();
        }
    }

    const RUN: &str = "#!/bin/sh\necho '{}'\n";

    fn file(path: &str, executable: bool, content: &str) -> PackageFile {
        PackageFile {
            path: path.parse().unwrap(),
            size: content.len() as u64,
            executable,
            sha256: Digest::of(content.as_bytes()),
        }
    }

    fn write(store: &Store, files: &[(&str, bool, &str)]) -> Result<Digest, PackageError> {
        let headers: Vec<_> =
            files.iter().map(|(path, executable, content)| file(path, *executable, content)).collect();
        let digest = Digest::of_package(&headers);
        let mut writer = store.writer(digest)?;
        for (header, (_, _, content)) in headers.into_iter().zip(files) {
            writer.file(header)?;
            for piece in content.as_bytes().chunks(7) {
                writer.data(piece)?;
            }
        }
        store.publish(writer).map(|()| digest)
    }

    fn example(store: &Store) -> Digest {
        write(store, &[("data/deep/a.txt", false, "text"), ("empty", false, ""), ("run.sh", true, RUN)]).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().unwrap().permissions().mode() & 0o7777
    }

    /// Everything below, links not followed.
    fn names(directory: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                found.extend(names(&path));
            }
            found.push(path);
        }
        found
    }

    #[test]
    fn a_package_is_read_only_and_whole() {
        let dir = Scratch::new();
        let store = Store::open(dir.path(), None).unwrap();
        let held = store.hold(&example(&store)).unwrap();
        assert_eq!(fs::read_to_string(held.path().join("run.sh")).unwrap(), RUN);
        let modes = ["", "data", "data/deep", "data/deep/a.txt", "empty", "run.sh"].map(|p| mode(&held.path().join(p)));
        assert_eq!(modes, [0o555, 0o555, 0o555, 0o444, 0o444, 0o555]);
        // A second one of the same digest changes nothing.
        assert_eq!(example(&store), *held.digest());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let dir = Scratch::new();
        let store = Store::open(dir.path(), None).unwrap();
        let digest = Digest::of(b"another");
        let taken = |files: &[(PackageFile, &str)]| {
            let mut writer = store.writer(digest).unwrap();
            for (header, content) in files {
                writer.file(header.clone())?;
                writer.data(content.as_bytes())?;
            }
            store.publish(writer)
        };
        let short = PackageFile { size: 5, ..file("a", false, "text") };
        let long = PackageFile { size: 3, ..file("a", false, "text") };
        let other = PackageFile { sha256: Digest::of(b"x"), ..file("a", false, "text") };
        let huge = PackageFile { size: u64::MAX, ..file("a", false, "") };
        let (a, b) = ((file("a", false, "x"), "x"), (file("a/b", false, "x"), "x"));
        assert!(matches!(taken(&[(short, "text")]), Err(PackageError::Size { .. })));
        assert!(matches!(taken(&[(long, "text")]), Err(PackageError::Size { .. })));
        assert!(matches!(taken(&[(other, "text")]), Err(PackageError::Content(_))));
        assert!(matches!(taken(&[(huge, "")]), Err(PackageError::TooLarge)));
        assert!(matches!(taken(&[a.clone(), a.clone()]), Err(PackageError::Order(_))));
        assert!(matches!(taken(&[b.clone(), a.clone()]), Err(PackageError::Order(_))));
        assert!(matches!(taken(&[a.clone(), b]), Err(PackageError::Io { .. })), "a file is no directory");
        assert!(matches!(taken(&[a]), Err(PackageError::Digest { .. })));
        assert!(matches!(store.writer(digest).unwrap().data(b"x"), Err(PackageError::DataFirst)));
        let many: Vec<_> =
            (0..=skillyard::package::MAX_FILES).map(|i| (file(&format!("{i:05}"), false, ""), "")).collect();
        assert!(matches!(taken(&many), Err(PackageError::TooManyFiles)));
        assert!(store.hold(&digest).is_none());
        assert_eq!(names(dir.path()), Vec::<PathBuf>::new(), "nothing is left");
    }

    #[test]
    fn what_is_broken_goes_at_the_start() {
        let outside = Scratch::new();
        fs::write(outside.path().join("kept"), "kept").unwrap();
        let damage: [fn(&Path, &Path); 8] = [
            |package, _| fs::write(package.join("empty"), "no longer").unwrap(),
            |package, _| fs::remove_file(package.join("run.sh")).unwrap(),
            |package, _| fs::write(package.join("more"), "").unwrap(),
            |package, _| fs::set_permissions(package.join("run.sh"), Permissions::from_mode(0o444)).unwrap(),
            |package, outside| symlink(outside.join("kept"), package.join("link")).unwrap(),
            |package, outside| symlink(outside, package.join("data/link")).unwrap(),
            |package, outside| {
                remove_tree(&package.join("data")).unwrap();
                symlink(outside, package.join("data")).unwrap();
            },
            |package, _| {
                let mode = rustix::fs::Mode::RUSR;
                rustix::fs::mknodat(rustix::fs::CWD, package.join("fifo"), rustix::fs::FileType::Fifo, mode, 0)
                    .unwrap();
            },
        ];
        for (case, damage) in damage.into_iter().enumerate() {
            let dir = Scratch::new();
            let store = Store::open(dir.path(), None).unwrap();
            let digest = example(&store);
            let package = store.path(&digest);
            for path in names(&package).iter().chain([&package]).filter(|path| path.is_dir()) {
                fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
            }
            fs::set_permissions(package.join("empty"), Permissions::from_mode(0o644)).unwrap();
            damage(&package, outside.path());
            let store = Store::open(dir.path(), None).unwrap();
            assert!(!store.has(&digest), "case {case}");
            assert_eq!(names(dir.path()), Vec::<PathBuf>::new(), "case {case}");
            // It can be fetched again.
            assert_eq!(example(&store), digest);
        }
        assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
    }

    #[test]
    fn what_is_whole_stays_and_is_made_read_only_again() {
        let dir = Scratch::new();
        let store = Store::open(dir.path(), None).unwrap();
        let digest = example(&store);
        let package = store.path(&digest);
        fs::set_permissions(&package, Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(package.join("run.sh"), Permissions::from_mode(0o4755)).unwrap();
        fs::create_dir_all(dir.path().join(".tmp-7/a")).unwrap();
        fs::set_permissions(dir.path().join(".tmp-7"), Permissions::from_mode(0o555)).unwrap();
        fs::write(dir.path().join("somebody's"), "").unwrap();
        let store = Store::open(dir.path(), None).unwrap();
        assert!(store.has(&digest));
        assert_eq!([mode(&package), mode(&package.join("run.sh"))], [0o555, 0o555]);
        assert!(!dir.path().join(".tmp-7").exists());
        assert!(dir.path().join("somebody's").exists());
        // With a catalog, what it does not name is not even read.
        assert!(!Store::open(dir.path(), Some(&HashSet::new())).unwrap().has(&digest));
        assert!(!package.exists());
    }

    #[test]
    fn a_package_goes_when_nobody_names_and_nobody_holds_it() {
        let dir = Scratch::new();
        let store = Store::open(dir.path(), None).unwrap();
        let digest = example(&store);
        store.name([digest].into());
        assert_eq!(store.collect(), 0);
        let (first, second) = (store.hold(&digest).unwrap(), store.hold(&digest).unwrap());
        store.name(HashSet::new());
        assert_eq!(store.collect(), 0);
        drop(first);
        assert_eq!(store.collect(), 0);
        assert!(second.path().join("run.sh").exists());
        drop(second);
        assert_eq!(store.collect(), 1);
        assert!(store.hold(&digest).is_none());
        assert_eq!(names(dir.path()), Vec::<PathBuf>::new());
    }

    #[tokio::test]
    async fn letting_go_of_what_nobody_names_is_told() {
        let dir = Scratch::new();
        let store = Store::open(dir.path(), None).unwrap();
        let digest = example(&store);
        store.released().await;
        drop(store.hold(&digest));
        store.released().await;
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Whatever a peer sends, nothing is written outside the store; and what is taken is what was sent.
        #[test]
        fn nothing_escapes(
            files in proptest::collection::vec(("[a./\\\\é -]{1,10}", "[a-z]{0,4}", any::<bool>()), 1..6),
            sorted in any::<bool>(),
        ) {
            let outer = Scratch::new();
            let directory = outer.path().join("a/store");
            let store = Store::open(&directory, None).unwrap();
            let mut headers = Vec::new();
            for (path, content, executable) in &files {
                if let Ok(path) = path.parse() {
                    headers.push((PackageFile { path, ..file("x", *executable, content) }, content.as_str()));
                }
            }
            if sorted {
                headers.sort_by(|a, b| a.0.path.cmp(&b.0.path));
            }
            let all: Vec<_> = headers.iter().map(|(header, _)| header.clone()).collect();
            let digest = Digest::of_package(&all);
            let mut writer = store.writer(digest).unwrap();
            let taken = headers.iter().try_for_each(|(header, content)| {
                writer.file(header.clone())?;
                writer.data(content.as_bytes())
            });
            let taken = taken.and_then(|()| store.publish(writer));
            let below: Vec<_> = names(outer.path()).into_iter().filter(|path| !path.is_dir()).collect();
            if taken.is_ok() {
                let package = store.path(&digest);
                let found: BTreeMap<_, _> = below.iter().map(|p| (p.clone(), fs::read_to_string(p).unwrap())).collect();
                let sent = headers.iter().map(|(h, c)| (package.join(h.path.as_str()), (*c).to_owned())).collect();
                prop_assert_eq!(found, sent);
                prop_assert!(verify(&package, &digest).is_ok());
            } else {
                prop_assert_eq!(below, Vec::<PathBuf>::new());
            }
        }
    }
}
