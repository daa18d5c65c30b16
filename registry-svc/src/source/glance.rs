//! Files outside of packages on which skills depend, such as interpreters: many skills on few files, so that each is
//! looked at once in a scan.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::stamp::Stamp;

/// A file, and what was there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Glance {
    path: PathBuf,
    stamp: Option<Stamp>,
}

impl Glance {
    /// What was there, links followed.
    pub(crate) fn stamp(&self) -> Option<&Stamp> {
        self.stamp.as_ref()
    }

    /// Whether it is now as it was.
    pub(crate) fn is_same(&self, now: &Glances) -> bool {
        now.at(&self.path).stamp == self.stamp
    }
}

/// What was looked at in one scan.
#[derive(Debug, Default)]
pub(crate) struct Glances(RwLock<HashMap<PathBuf, Arc<Glance>>>);

impl Glances {
    /// What a path leads to, if it leads anywhere, as it was when it was first asked for.
    pub(crate) fn at(&self, path: &Path) -> Arc<Glance> {
        // A poisoned lock holds whole values all the same.
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(path) {
            return Arc::clone(known);
        }
        let stamp = std::fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata));
        let glance = Arc::new(Glance { path: path.to_owned(), stamp });
        Arc::clone(self.0.write().unwrap_or_else(PoisonError::into_inner).entry(path.to_owned()).or_insert(glance))
    }
}
