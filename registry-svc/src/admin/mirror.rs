//! The mirror on the disk: where its parts are, who may change it, and what earlier syncs made of it. Finishes what a sync
//! that was cut off had begun.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::commit::{Commit, Folder};
use super::place;
use super::plan::Here;
use super::protocol::{Entry, Manifest};
use super::tree::{self, Print};
use crate::source::mirror as layout;

/// Where the parts of a mirror are.
#[derive(Clone, Debug)]
pub(super) struct Paths(PathBuf);

impl Paths {
    pub(super) fn new(cloud_dir: &Path) -> Self {
        Self(cloud_dir.to_owned())
    }

    /// One folder a skill.
    pub(super) fn skills(&self) -> PathBuf {
        self.0.join(layout::SKILLS)
    }

    /// Which id is in which folder, in the server's shape.
    pub(super) fn manifest(&self) -> PathBuf {
        self.0.join(layout::MANIFEST)
    }

    /// What the sync keeps for itself.
    pub(super) fn work(&self) -> PathBuf {
        self.0.join(layout::WORK)
    }

    /// What was fetched, and what is to be thrown away.
    pub(super) fn stage(&self) -> PathBuf {
        self.work().join("stage")
    }

    /// There while a commit goes on, or was cut off.
    pub(super) fn commit(&self) -> PathBuf {
        self.0.join(layout::COMMIT)
    }

    pub(super) fn state(&self) -> PathBuf {
        self.work().join("state.json")
    }

    /// What the load report says of the last sync.
    pub(super) fn report(&self) -> PathBuf {
        self.0.join(layout::REPORT)
    }

    /// A file that becomes another one by rename.
    pub(super) fn scratch(&self) -> PathBuf {
        self.work().join("scratch")
    }
}

/// What the sync remembers beyond the manifest. Without it everything still works, with more requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    /// Of the manifest, as long as it was synced completely.
    pub(super) etag: Option<String>,
    /// For which server and tier the ETags are.
    pub(super) scope: String,
    pub(super) skills: BTreeMap<String, Kept>,
}

/// What is remembered of a skill.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) folder: String,
    /// Of its folder, as it was made.
    pub(super) shape: String,
    pub(super) etag: Option<String>,
    /// Files whose content the server does not give.
    pub(super) missing: Vec<String>,
}

/// Why a mirror cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// Two cannot do it at once.
    #[error("another sync of {} goes on: wait for its end", .0.display())]
    Busy(PathBuf),
    /// A file or directory of the mirror.
    #[error("the mirror {} cannot be changed: {error}", path.display())]
    Io {
        /// The mirror.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// A mirror that nobody else changes.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) paths: Paths,
    _lock: File,
}

/// What is there.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) here: Here,
    /// The folders of `here.entries`, as they are.
    pub(super) folders: BTreeMap<String, Folder>,
    pub(super) shapes: BTreeMap<String, String>,
    pub(super) state: State,
    /// `manifest.json`, byte for byte.
    pub(super) manifest: Vec<u8>,
    /// It can be read.
    pub(super) listed: bool,
    /// As it says.
    pub(super) version: String,
}

impl Mirror {
    /// Takes it, makes what is missing, finishes a commit that was cut off, and sweeps up what else was left.
    ///
    /// # Errors
    /// Another sync has it, or the disk refuses.
    pub(super) fn open(cloud_dir: &Path) -> Result<Self, MirrorError> {
        let failed = |error| MirrorError::Io { path: cloud_dir.to_owned(), error };
        let paths = Paths::new(cloud_dir);
        let lock = Self::make(&paths).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(MirrorError::Busy(cloud_dir.to_owned())),
            other => other.map_err(|error| failed(error.into()))?,
        }
        let mirror = Self { paths, _lock: lock };
        mirror.finish().map_err(failed)?;
        mirror.sweep().map_err(failed)?;
        Ok(mirror)
    }

    pub(super) fn cloud_dir(&self) -> PathBuf {
        self.paths.0.clone()
    }

    fn make(paths: &Paths) -> io::Result<File> {
        fs::create_dir_all(paths.skills())?;
        fs::create_dir_all(paths.work())?;
        open_lock(&paths.0.join(layout::LOCK))?;
        open_lock(&paths.work().join("sync.lock"))
    }

    /// Finishes a commit that was cut off.
    fn finish(&self) -> io::Result<()> {
        let text = match fs::read(self.paths.commit()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        match serde_json::from_slice::<Commit>(&text) {
            Ok(commit) => {
                tracing::info!(mirror = %self.paths.0.display(), "a sync was cut off: its last step is finished");
                self.commit(commit).map(|failed| {
                    for (id, error) in failed {
                        tracing::warn!(id, %error, "a skill could not be put in its folder: the next sync fetches it");
                    }
                })
            }
            // It is written whole or not at all, so somebody else wrote this.
            Err(error) => {
                tracing::warn!(%error, "{} is not to be understood and is removed", self.paths.commit().display());
                fs::remove_file(self.paths.commit())
            }
        }
    }

    /// Changes the mirror while nobody looks at it.
    pub(super) fn commit(&self, commit: Commit) -> io::Result<Vec<(String, io::Error)>> {
        let lock = open_lock(&self.paths.0.join(layout::LOCK))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        commit.carry_out(&self.paths)
    }

    /// Throws away what is staged.
    pub(super) fn sweep(&self) -> io::Result<()> {
        tree::remove(&self.paths.stage())?;
        fs::create_dir(self.paths.stage())
    }

    /// Looks at what is there. What cannot be read of an earlier sync is as if it had not been.
    pub(super) fn look(&self) -> io::Result<Found> {
        let mut found = Found::default();
        for entry in fs::read_dir(self.paths.skills())? {
            found.here.taken.extend(entry?.file_name().into_string());
        }
        found.manifest = fs::read(self.paths.manifest()).unwrap_or_default();
        let state = fs::read(self.paths.state()).ok();
        found.state = state.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let manifest = Manifest::read(&found.manifest);
        found.listed = manifest.is_ok();
        let manifest = manifest.unwrap_or_else(|_| remembered(&found.state));
        found.version.clone_from(&manifest.version);
        let repeated: HashSet<String> = manifest.repeated().into_iter().map(ToOwned::to_owned).collect();
        let mut folders = HashSet::new();
        for entry in manifest.entries {
            let name = entry.directory().to_owned();
            if repeated.contains(&entry.id) || place::folder(&name).is_err() || !folders.insert(name.clone()) {
                continue;
            }
            let Some(print) = tree::print(&self.paths.skills().join(&name)) else { continue };
            self.note(&mut found, entry, name, print);
        }
        Ok(found)
    }

    fn note(&self, found: &mut Found, entry: Entry, name: String, print: Print) {
        // Where nothing is remembered, another program made it after the same manifest.
        let as_made = match found.state.skills.get(&entry.id) {
            Some(kept) => kept.shape == print.shape,
            None => self.paths.skills().join(&name).join("SKILL.md").is_file(),
        };
        if as_made {
            found.here.intact.insert(entry.id.clone());
        }
        found.folders.insert(entry.id.clone(), Folder { name, mark: print.mark });
        found.shapes.insert(entry.id.clone(), print.shape);
        found.here.made.insert(entry.directory().to_owned());
        found.here.entries.insert(entry.id.clone(), entry);
    }

    /// Writes what the load report says of this sync; says whether it is something new.
    pub(super) fn report(&self, report: &layout::Report) -> io::Result<bool> {
        let text = report.write();
        if fs::read(self.paths.report()).is_ok_and(|before| before == text) {
            return Ok(false);
        }
        tree::replace(&self.paths.report(), &self.paths.scratch(), &text)?;
        Ok(true)
    }

    /// Writes what is remembered.
    pub(super) fn remember(&self, state: &State) -> io::Result<()> {
        let text = serde_json::to_vec(state).map_err(io::Error::other)?;
        tree::replace(&self.paths.state(), &self.paths.scratch(), &text)
    }
}

/// Finishes what a sync that was cut off had begun, where there is such a thing and nobody else is at it.
pub fn recover(cloud_dir: &Path) {
    if !Paths::new(cloud_dir).commit().exists() {
        return;
    }
    if let Err(error) = Mirror::open(cloud_dir) {
        tracing::warn!(%error, "the mirror is in the middle of a change: its skills are loaded when the next sync has finished it");
    }
}

/// A manifest that says of which ids there are folders, and nothing of their hashes.
fn remembered(state: &State) -> Manifest {
    let entry = |(id, kept): (&String, &Kept)| Entry {
        id: id.clone(),
        // As no server calls it.
        hash: "unknown".to_owned(),
        tier: None,
        updated_at: None,
        dirname: Some(kept.folder.clone()),
    };
    Manifest { entries: state.skills.iter().map(entry).collect(), ..Manifest::default() }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)
}
