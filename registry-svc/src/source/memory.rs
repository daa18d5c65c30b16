//! What a scan keeps for the next one: stamps and digests, so that what did not change is not read again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::{Digest, PackagePath};

use super::SourceFile;
use super::beneath::Beneath;
use super::findings::{Fault, Findings};
use super::glance::{Glance, Glances};
use super::package::{self, Item, Listing};
use super::playbook::Identity;
use super::stamp::{Stamp, unsettled};
use super::text::{self, Text};
use super::tree::Dir;

/// What is kept, by the candidates' paths.
pub(crate) type Memory = HashMap<Arc<Path>, Arc<Remembered>>;

/// All that a candidate was made from.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    /// Where the package's directory, or the agent's file, lies.
    place: Place,
    items: Box<[Item]>,
    /// Of each item, as far as it was read.
    digests: Box<[Option<Digest>]>,
    /// The package's directory, and those that were listed for it alone.
    dir: Option<Arc<Dir>>,
    own: Box<[(PathBuf, Stamp)]>,
    is_plain: bool,
    /// What listing the items found.
    listing: Findings,
    /// Other files that the candidate depends on, there or not.
    watched: Box<[Arc<Glance>]>,
    /// Before anything was read.
    read_at: SystemTime,
}

/// What is known before anything is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The canonical root.
    pub(crate) root: Arc<Path>,
    /// The canonical directory of a package; the canonical path of an agent's file.
    pub(crate) path: Box<Path>,
    /// What it is called whatever it says.
    pub(crate) identity: Option<Identity>,
}

impl Remembered {
    pub(crate) fn new(place: Place, dir: Option<Arc<Dir>>, listing: Listing, findings: Findings) -> Self {
        Self {
            place,
            digests: listing.items.iter().map(|_| None).collect(),
            items: listing.items.into(),
            dir,
            own: listing.own.into(),
            is_plain: listing.is_plain,
            listing: findings,
            watched: Box::default(),
            read_at: SystemTime::now(),
        }
    }

    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Notes files outside of the items on which the candidate depends.
    pub(crate) fn watch(&mut self, more: Vec<Arc<Glance>>) {
        if !more.is_empty() {
            self.watched = self.watched.iter().map(Arc::clone).chain(more).collect();
        }
    }

    /// Reads the manifest, and remembers its digest as it was read.
    pub(crate) fn read(&mut self, package: &package::Place<'_>, manifest: &Path, most: u64) -> Result<Text, Fault> {
        let bytes = text::read_beneath(package.beneath, package.root, manifest, most)?;
        let digest = Digest::of(&bytes);
        for (item, noted) in self.items.iter().zip(&mut self.digests) {
            if item.is_at(package.directory, manifest) {
                *noted = Some(digest);
            }
        }
        Text::of_bytes(bytes)
    }

    /// The directory as it is now, for this candidate alone.
    pub(crate) fn list_again(&self, beneath: &Beneath) -> Option<Arc<Dir>> {
        let real = self.place.path.strip_prefix(&self.place.root).ok()?;
        Dir::read_one(beneath, real, package::MAX_ENTRIES).ok()
    }

    /// Notes what an item was when it was read.
    pub(crate) fn note(&mut self, item: usize, digest: Digest) {
        if let Some(noted) = self.digests.get_mut(item) {
            *noted = Some(digest);
        }
    }

    /// Notes the digests that were made.
    pub(crate) fn remember(&mut self, files: &[SourceFile]) {
        // Both are in order of their paths, and some of either may be missing in the other.
        let mut files = files.iter().peekable();
        for (item, digest) in self.items.iter().zip(&mut self.digests) {
            let order = |path: &PackagePath| path.as_str().as_bytes().cmp(item.path.as_str().as_bytes());
            while files.peek().is_some_and(|file| order(&file.file.path).is_lt()) {
                files.next();
            }
            *digest = files.peek().filter(|file| file.file.path == item.path).map(|file| file.file.sha256);
        }
    }

    /// Whether a file went after it was listed.
    pub(crate) fn lost_a_file(&self) -> bool {
        let unread = self.items.iter().zip(&self.digests).filter(|(_, digest)| digest.is_none());
        unread.into_iter().any(|(item, _)| !item.origin(&self.place.path).exists())
    }

    /// What was read in this look.
    pub(crate) fn noted(&self, item: &Item) -> Option<Digest> {
        self.digests[self.find(item)?]
    }

    /// The digest that holds for a file whose stamp is still the same.
    pub(crate) fn known(&self, item: &Item) -> Option<Digest> {
        let place = self.find(item)?;
        let before = &self.items[place];
        self.digests[place].filter(|_| before == item && before.stamp.trusted(self.read_at))
    }

    fn find(&self, item: &Item) -> Option<usize> {
        let wanted = item.path.as_str().as_bytes();
        self.items.binary_search_by(|item| item.path.as_str().as_bytes().cmp(wanted)).ok()
    }

    /// Whether looking at the same directory once more would find what was found before: by stamps alone.
    pub(crate) fn is_as_it_was(&self, place: &Place, dir: &Arc<Dir>, real: &Path, sight: &Sight<'_>) -> bool {
        let same = |path: &Path, stamp: &Stamp| sight.beneath.stamp(path).is_ok_and(|now| now == *stamp);
        self.is_plain
            && self.dir.as_ref().is_some_and(|before| Arc::ptr_eq(before, dir))
            && self.place == *place
            && self.is_trusted()
            && self.own.iter().all(|(path, stamp)| stamp.trusted(self.read_at) && same(path, stamp))
            && self.items.iter().all(|item| same(&real.join(item.path.as_str()), &item.stamp))
            && self.watched.iter().all(|before| before.is_same(sight.glances))
    }

    /// Whether a candidate made of `now` would be what was made before.
    pub(crate) fn still(&self, now: &Self, glances: &Glances) -> bool {
        self.place == now.place
            && self.items == now.items
            && self.listing == now.listing
            && self.is_trusted()
            && self.watched.iter().all(|before| before.is_same(glances))
    }

    /// The same, with the directory as it is now listed.
    pub(crate) fn listed_anew(&self, now: Self) -> Self {
        Self { digests: self.digests.clone(), watched: self.watched.clone(), read_at: self.read_at, ..now }
    }

    /// When the youngest of the files last changed.
    pub(crate) fn youngest(&self) -> Option<SystemTime> {
        self.stamps().map(Stamp::youth).max()
    }

    /// Whether a file may have been in the middle of being written.
    pub(crate) fn unsettled(&self) -> bool {
        self.stamps().any(|stamp| unsettled(stamp.youth(), self.read_at))
    }

    fn is_trusted(&self) -> bool {
        self.stamps().all(|stamp| stamp.trusted(self.read_at))
    }

    fn stamps(&self) -> impl Iterator<Item = &Stamp> {
        self.items.iter().map(|item| &item.stamp).chain(self.watched.iter().filter_map(|glance| glance.stamp()))
    }
}

/// With what a look sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    pub(crate) beneath: &'a Beneath,
    pub(crate) glances: &'a Glances,
}
