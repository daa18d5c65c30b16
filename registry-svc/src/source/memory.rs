//! What a scan keeps for the next one: stamps and digests, so that what did not change is not read again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::Digest;

use super::SourceFile;
use super::beneath::Beneath;
use super::findings::{Fault, Findings};
use super::glance::{Glance, Glances};
use super::package::{self, Item, Listing};
use super::stamp::{Stamp, unsettled};
use super::text::{self, Text};
use super::tree::Dir;

/// What is kept of each candidate, in their order.
pub(crate) type Memory = Vec<Option<Arc<Remembered>>>;

/// All that a candidate was made from.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    place: Place,
    items: Box<[Item]>,
    /// Of each item, as far as it was read; of none where the candidate's value has them.
    digests: Box<[Option<Digest>]>,
    /// The package's directory, and those that were listed for it alone.
    dir: Option<Arc<Dir>>,
    own: Box<[(PathBuf, Stamp)]>,
    is_plain: bool,
    /// What listing the items found.
    listing: Option<Box<Findings>>,
    /// Other files that the candidate depends on, there or not.
    watched: Box<[Arc<Glance>]>,
    /// Before anything was read.
    read_at: SystemTime,
}

/// What is known before anything is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The directory of a package below the root; the canonical path of an agent's file.
    pub(crate) path: Box<Path>,
    /// What an admin server calls it.
    pub(crate) id: Option<Box<str>>,
}

impl Remembered {
    pub(crate) fn new(place: Place, dir: Option<Arc<Dir>>, listing: Listing, findings: &Findings) -> Self {
        Self {
            place,
            digests: listing.items.iter().map(|_| None).collect(),
            items: listing.items.into(),
            dir,
            own: listing.own.into(),
            is_plain: listing.is_plain,
            listing: (*findings != Findings::default()).then(|| Box::new(findings.clone())),
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
        Dir::read_one(beneath, &self.place.path, package::MAX_ENTRIES).ok()
    }

    /// Notes what an item was when it was read.
    pub(crate) fn note(&mut self, item: usize, digest: Digest) {
        if let Some(noted) = self.digests.get_mut(item) {
            *noted = Some(digest);
        }
    }

    /// Forgets the digests, because the candidate's value has them.
    pub(crate) fn forget_digests(&mut self) {
        self.digests = Box::default();
    }

    /// Whether a file went after it was listed.
    pub(crate) fn lost_a_file(&self, root: &Path, beneath: &Beneath) -> bool {
        let there = |item: &Item| beneath.stamp(&item.real(root, &self.place.path)).is_ok();
        self.items.iter().zip(&self.digests).any(|(item, digest)| digest.is_none() && !there(item))
    }

    /// What was read in this look.
    pub(crate) fn noted(&self, item: &Item) -> Option<Digest> {
        *self.digests.get(self.find(item)?)?
    }

    /// The digest that holds for a file whose stamp is still the same; `files` are those of the candidate's value.
    pub(crate) fn known(&self, item: &Item, files: &[SourceFile]) -> Option<Digest> {
        let place = self.find(item)?;
        let before = self.items.get(place).filter(|before| *before == item && before.stamp.trusted(self.read_at))?;
        if let Some(digest) = self.digests.get(place) {
            return *digest;
        }
        let order = |file: &SourceFile| file.file.path.as_str().as_bytes().cmp(before.path.as_str().as_bytes());
        files.binary_search_by(order).ok().map(|file| files[file].file.sha256)
    }

    fn find(&self, item: &Item) -> Option<usize> {
        let wanted = item.path.as_str().as_bytes();
        self.items.binary_search_by(|item| item.path.as_str().as_bytes().cmp(wanted)).ok()
    }

    /// Whether looking at the same directory once more would find what was found before: by stamps alone. `real` is where
    /// it lies below the root, which is the same.
    pub(crate) fn is_as_it_was(&self, real: &Path, id: Option<&str>, dir: &Arc<Dir>, sight: &Sight<'_>) -> bool {
        let same = |path: &Path, stamp: &Stamp| sight.beneath.stamp(path).is_ok_and(|now| now == *stamp);
        let mut path = PathBuf::with_capacity(self.place.path.as_os_str().len() + 64);
        let mut is_same = |item: &Item| {
            path.as_mut_os_string().clear();
            path.push(real);
            path.push(item.path.as_str());
            same(&path, &item.stamp)
        };
        self.is_plain
            && self.dir.as_ref().is_some_and(|before| Arc::ptr_eq(before, dir))
            && self.place.path.as_os_str() == real.as_os_str()
            && self.place.id.as_deref() == id
            && self.is_trusted()
            && self.own.iter().all(|(path, stamp)| stamp.trusted(self.read_at) && same(path, stamp))
            && self.items.iter().all(&mut is_same)
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
