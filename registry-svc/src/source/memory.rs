//! What a scan keeps for the next one: stamps and digests, so that what did not change is not read again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use skillyard::Digest;

use super::SourceFile;
use super::findings::{Fault, Findings};
use super::package::{Digests, Item};
use super::playbook::Identity;
use super::stamp::{Stamp, unsettled};
use super::text::{Text, read_bounded};

/// What is kept, by the candidates' paths.
pub(crate) type Memory = HashMap<PathBuf, Remembered>;

/// All that a candidate was made from.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    root: PathBuf,
    /// The canonical directory of a package; the canonical path of an agent's file.
    place: PathBuf,
    identity: Identity,
    items: Vec<Item>,
    /// What listing the items found.
    listing: Findings,
    /// Other files that the candidate depends on, there or not.
    watched: Vec<(PathBuf, Option<Stamp>)>,
    digests: Digests,
    manifest: Option<(PathBuf, Digest)>,
    /// Before anything was read.
    read_at: SystemTime,
}

impl Remembered {
    pub(crate) fn new(root: &Path, place: &Path, identity: Identity, items: Vec<Item>, listing: Findings) -> Self {
        Self {
            root: root.to_owned(),
            place: place.to_owned(),
            identity,
            items,
            listing,
            watched: Vec::new(),
            digests: Digests::new(),
            manifest: None,
            read_at: SystemTime::now(),
        }
    }

    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Notes files outside of the items on which the candidate depends.
    pub(crate) fn watch(&mut self, paths: Vec<PathBuf>) {
        self.watched.extend(paths.into_iter().map(|path| {
            let stamp = stamp(&path);
            (path, stamp)
        }));
    }

    /// Reads the manifest, and remembers its digest as it was read.
    pub(crate) fn read(&mut self, manifest: &Path, most: u64) -> Result<Text, Fault> {
        let bytes = read_bounded(manifest, most)?;
        self.manifest = Some((manifest.to_owned(), Digest::of(&bytes)));
        Text::of_file(&bytes)
    }

    /// The manifest's digest, to be taken for its file in the package.
    pub(crate) fn manifest_digest(&self) -> impl Iterator<Item = (PathBuf, (Stamp, Digest))> + '_ {
        self.manifest.iter().flat_map(|(path, digest)| {
            let items = self.items.iter().filter(move |item| item.origin == *path);
            items.map(|item| (item.origin.clone(), (item.stamp, *digest)))
        })
    }

    /// Notes the digests that were made.
    pub(crate) fn remember(&mut self, items: &[Item], files: &[SourceFile]) {
        let digests: HashMap<_, _> = files.iter().map(|file| (&file.file.path, file.file.sha256)).collect();
        self.digests = items
            .iter()
            .filter_map(|item| Some((item.origin.clone(), (item.stamp, *digests.get(&item.path)?))))
            .collect();
    }

    /// Whether a file went after it was listed.
    pub(crate) fn lost_a_file(&self) -> bool {
        self.digests.len() < self.items.len() && self.items.iter().any(|item| !item.origin.exists())
    }

    /// The digests that hold for files whose stamps are still the same.
    pub(crate) fn digests(&self) -> Digests {
        let trusted = self.digests.iter().filter(|(_, (stamp, _))| stamp.trusted(self.read_at));
        trusted.map(|(path, digest)| (path.clone(), *digest)).collect()
    }

    /// Whether a candidate made of `now` would be what was made before.
    pub(crate) fn still(&self, now: &Self) -> bool {
        self.root == now.root
            && self.place == now.place
            && self.identity == now.identity
            && self.items == now.items
            && self.listing == now.listing
            && self.stamps().all(|stamp| stamp.trusted(self.read_at))
            && self.watched.iter().all(|(path, before)| stamp(path) == *before)
    }

    /// When the youngest of the files last changed.
    pub(crate) fn youngest(&self) -> Option<SystemTime> {
        self.stamps().map(Stamp::youth).max()
    }

    /// Whether a file may have been in the middle of being written.
    pub(crate) fn unsettled(&self) -> bool {
        self.stamps().any(|stamp| unsettled(stamp.youth(), self.read_at))
    }

    fn stamps(&self) -> impl Iterator<Item = &Stamp> {
        self.items.iter().map(|item| &item.stamp).chain(self.watched.iter().filter_map(|(_, stamp)| stamp.as_ref()))
    }
}

/// A stamp of what a path leads to, if it leads anywhere.
fn stamp(path: &Path) -> Option<Stamp> {
    std::fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata))
}
