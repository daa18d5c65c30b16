//! The directories on the way to what is closed to slots. Landlock grants their entries one by one, as a slot finds them
//! at its start; when they change, slots that are idle are older than what they would have to grant. Looks, and grants
//! nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::stat;

use crate::isolation::Flavour;

/// How often the directories are looked at, at most, for skills that only read there: one that always changes costs a new
/// slot so often. A skill that writes there finds what was made the moment before.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Directories, as they were last seen.
#[derive(Debug)]
pub(super) struct Way {
    seen: BTreeMap<PathBuf, Option<Stamp>>,
    /// A directory that was granted, and which one it was: made anew, it is closed to those who were granted the old one.
    granted: Option<(PathBuf, Option<(u64, u64)>)>,
    looked: Instant,
    /// Counts the changes.
    edition: u64,
}

impl Way {
    pub(super) fn to(closed: &[PathBuf], granted: Option<PathBuf>) -> Self {
        let directories = closed.iter().flat_map(|path| path.ancestors().skip(1));
        let seen = directories.map(|path| (path.to_owned(), Stamp::of(path))).collect();
        let granted = granted.map(|path| (path.clone(), Stamp::of(&path).map(|stamp| stamp.inode)));
        Self { seen, granted, looked: Instant::now(), edition: 0 }
    }

    /// The edition that a slot of a flavour has which starts now, or that one must have to be used now.
    pub(super) fn edition(&mut self, flavour: Flavour) -> u64 {
        if let Some((path, before)) = &mut self.granted {
            let now = Stamp::of(path).map(|stamp| stamp.inode);
            self.edition += u64::from(std::mem::replace(before, now) != now);
        }
        if flavour == Flavour::Writing || self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let mut changed = false;
            for (path, before) in &mut self.seen {
                let now = Stamp::of(path);
                changed |= std::mem::replace(before, now) != now;
            }
            self.edition += u64::from(changed);
        }
        self.edition
    }

    /// From the root on.
    pub(super) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.seen.keys().map(PathBuf::as_path)
    }
}

/// Changes with every entry that comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    changed: (i64, u64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let stat = stat(path).ok()?;
        #[allow(clippy::unnecessary_cast, reason = "these have other types on other architectures")]
        Some(Self {
            inode: (stat.st_dev as u64, stat.st_ino as u64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        })
    }
}
