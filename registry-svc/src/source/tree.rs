//! The directories under a root as they were listed: names, kinds, and a stamp of each. Follows no link, and opens no file.
//!
//! A directory whose stamp is the same has the same names in it, so it is not listed again; and one under which nothing
//! has changed is the very same value as before.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use rustix::fs::{AtFlags, FileType, RawDir, fstat, statat};

use super::beneath::Beneath;
use super::parallel;
use super::stamp::Stamp;

/// Enough for the names of most directories at once.
const NAMES_AT_ONCE: usize = 32 << 10;

/// A directory.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) stamp: Stamp,
    listed_at: SystemTime,
    /// Whether there was no room for all that is in it.
    pub(crate) is_cut: bool,
    names: Names,
    /// Of each name that is a directory's, in their order.
    below: Box<[Below]>,
}

/// Names in byte order, one after the other: for each its kind, its length, and itself. There are as many of these as
/// there are directories, and most have few names.
#[derive(Clone, Debug)]
struct Names(Arc<[u8]>);

/// A directory in a directory.
#[derive(Debug)]
pub(crate) enum Below {
    /// It was listed.
    Listed(Arc<Dir>),
    /// It could not be.
    Closed(io::Error),
    /// It was not to be.
    NotEntered,
}

/// One thing in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    Directory(&'a Below),
    File,
    Link,
    Other,
}

/// How much may be listed.
#[derive(Debug)]
pub(crate) struct Bounds<'a> {
    /// How many directories within one another, below the first.
    pub(crate) levels: usize,
    /// How many names, all together.
    pub(crate) left: &'a AtomicUsize,
    /// Names of directories that are not entered.
    pub(crate) skipped: fn(&OsStr) -> bool,
}

impl Dir {
    /// A directory and those below it, on all processors. `path` is relative to what they lie beneath.
    pub(crate) fn read(
        beneath: &Beneath,
        path: &Path,
        before: Option<&Arc<Self>>,
        bounds: &Bounds<'_>,
    ) -> io::Result<Arc<Self>> {
        let mut looks: Vec<(Look, Range<usize>)> = Vec::new();
        let mut jobs = vec![Job { path: path.to_owned(), before: before.map(Arc::clone) }];
        for level in 0.. {
            let first_of_next = looks.len() + jobs.len();
            let mut next = Vec::new();
            let done = parallel::map(&jobs, |job| look(beneath, job, bounds.left));
            for (job, look) in jobs.iter().zip(done) {
                let start = first_of_next + next.len();
                if level < bounds.levels {
                    next.extend(look.jobs(&job.path, bounds.skipped));
                }
                looks.push((look, start..first_of_next + next.len()));
            }
            if next.is_empty() {
                break;
            }
            jobs = next;
        }
        // Those below come later: from the last to the first, each finds its own.
        let mut made: Vec<Option<io::Result<Arc<Self>>>> = looks.iter().map(|_| None).collect();
        for (index, (look, below)) in looks.into_iter().enumerate().rev() {
            let below = made[below].iter_mut().map(|made| made.take().unwrap_or_else(|| Err(gone())));
            let dir = look.into_dir(below, bounds.skipped);
            made[index] = Some(dir);
        }
        made.swap_remove(0).unwrap_or_else(|| Err(gone()))
    }

    /// One directory alone.
    pub(crate) fn read_one(beneath: &Beneath, path: &Path, most: usize) -> io::Result<Arc<Self>> {
        let bounds = Bounds { levels: 0, left: &AtomicUsize::new(most), skipped: |_| true };
        Self::read(beneath, path, None, &bounds)
    }

    /// What is in it, in byte order of the names.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&OsStr, Kind<'_>)> {
        self.entries_from((0, 0)).map(|(name, kind, _)| (name, kind))
    }

    /// What is in it from a place on, which is `(0, 0)` at first; with each, the place behind it.
    pub(crate) fn entries_from(
        &self,
        (offset, below): (usize, usize),
    ) -> impl Iterator<Item = (&OsStr, Kind<'_>, (usize, usize))> {
        let (mut offset, mut directories) = (offset, below);
        self.names.from(offset).map(move |(name, kind)| {
            offset += HEAD + name.len();
            let kind = match kind {
                DIRECTORY => {
                    directories += 1;
                    Kind::Directory(self.below.get(directories - 1).unwrap_or(&Below::NotEntered))
                }
                FILE => Kind::File,
                LINK => Kind::Link,
                _ => Kind::Other,
            };
            (name, kind, (offset, directories))
        })
    }

    /// Whether it has a regular file of this name.
    pub(crate) fn has_file(&self, name: &str) -> bool {
        self.names.from(0).any(|(own, kind)| own == name && kind == FILE)
    }

    /// Whether the same stamp, seen later, means that the same is in it.
    fn is_trusted(&self) -> bool {
        !self.is_cut && self.stamp.trusted(self.listed_at)
    }
}

/// Kinds as they are kept.
const DIRECTORY: u8 = 1;
const FILE: u8 = 2;
const LINK: u8 = 3;
const OTHER: u8 = 4;
/// Before each name: its kind and its length, which no file system lets be more than 255.
const HEAD: usize = 2;

impl Names {
    fn from(&self, offset: usize) -> impl Iterator<Item = (&OsStr, u8)> {
        let mut rest = self.0.get(offset..).unwrap_or_default();
        std::iter::from_fn(move || {
            let [kind, length, after @ ..] = rest else { return None };
            let (name, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            Some((OsStr::from_bytes(name), *kind))
        })
    }

    fn directories(&self) -> impl Iterator<Item = &OsStr> {
        self.from(0).filter(|(_, kind)| *kind == DIRECTORY).map(|(name, _)| name)
    }
}

/// A directory to be looked at.
struct Job {
    path: PathBuf,
    before: Option<Arc<Dir>>,
}

/// What a look at a directory found.
enum Look {
    Same(Arc<Dir>),
    New { listed: Listed, before: Option<Arc<Dir>> },
    Closed(io::Error),
}

struct Listed {
    stamp: Stamp,
    listed_at: SystemTime,
    is_cut: bool,
    names: Names,
}

fn look(beneath: &Beneath, job: &Job, left: &AtomicUsize) -> Look {
    if let Some(before) = job.before.as_ref().filter(|before| before.is_trusted())
        && beneath.stamp(&job.path).is_ok_and(|stamp| stamp == before.stamp)
    {
        let names = before.names.from(0).count();
        if take(left, names) == names {
            return Look::Same(Arc::clone(before));
        }
    }
    match list(beneath, &job.path, left) {
        Ok(listed) => Look::New { listed, before: job.before.as_ref().map(Arc::clone) },
        Err(error) => Look::Closed(error),
    }
}

/// What a thread needs for a listing, made once.
struct Scratch {
    entries: Box<[MaybeUninit<u8>]>,
    /// The names as they come, and of each its place in them and its kind.
    text: Vec<u8>,
    places: Vec<(Range<usize>, u8)>,
}

fn list(beneath: &Beneath, path: &Path, left: &AtomicUsize) -> io::Result<Listed> {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
            entries: vec![MaybeUninit::uninit(); NAMES_AT_ONCE].into_boxed_slice(),
            text: Vec::new(),
            places: Vec::new(),
        });
    }
    let directory = beneath.directory(path)?;
    let listed_at = SystemTime::now();
    let stamp = Stamp::of_stat(&fstat(&directory)?);
    SCRATCH.with_borrow_mut(|Scratch { entries, text, places }| {
        text.clear();
        places.clear();
        let mut is_cut = false;
        let mut entries = RawDir::new(&directory, entries);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if take(left, 1) == 0 {
                is_cut = true;
                break;
            }
            let kind = match entry.file_type() {
                // Some file systems do not say.
                FileType::Unknown => match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                kind => kind,
            };
            let kind = match kind {
                FileType::Directory => DIRECTORY,
                FileType::RegularFile => FILE,
                FileType::Symlink => LINK,
                _ => OTHER,
            };
            let start = text.len();
            text.extend_from_slice(name.to_bytes());
            places.push((start..text.len(), kind));
        }
        places.sort_unstable_by(|a, b| text[a.0.clone()].cmp(&text[b.0.clone()]));
        let mut names = Vec::with_capacity(text.len() + HEAD * places.len());
        for (place, kind) in places.iter() {
            let Ok(length) = u8::try_from(place.len()) else { return Err(io::ErrorKind::InvalidFilename.into()) };
            names.extend([*kind, length]);
            names.extend_from_slice(&text[place.clone()]);
        }
        Ok(Listed { stamp, listed_at, is_cut, names: Names(names.into()) })
    })
}

/// Takes as much as there is, at most so much.
fn take(left: &AtomicUsize, most: usize) -> usize {
    let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(most)));
    before.unwrap_or_default().min(most)
}

impl Look {
    /// The directories below that are to be looked at.
    fn jobs(&self, path: &Path, skipped: fn(&OsStr) -> bool) -> Vec<Job> {
        let (names, before) = match self {
            Self::Same(dir) => (&dir.names, Some(dir)),
            Self::New { listed, before } => (&listed.names, before.as_ref()),
            Self::Closed(_) => return Vec::new(),
        };
        // Both are in order of the names.
        let mut old = before.into_iter().flat_map(|dir| dir.entries()).peekable();
        let mut jobs = Vec::new();
        for name in names.directories().filter(|name| !skipped(name)) {
            while old.peek().is_some_and(|(old, _)| old.as_bytes() < name.as_bytes()) {
                old.next();
            }
            let before = match old.peek() {
                Some((old, Kind::Directory(Below::Listed(dir)))) if *old == name => Some(Arc::clone(dir)),
                _ => None,
            };
            jobs.push(Job { path: path.join(name), before });
        }
        jobs
    }

    /// The directory, with those below it that were looked at.
    fn into_dir(
        self,
        mut looked_at: impl ExactSizeIterator<Item = io::Result<Arc<Dir>>>,
        skipped: fn(&OsStr) -> bool,
    ) -> io::Result<Arc<Dir>> {
        let none = looked_at.len() == 0;
        let mut below = |names: &Names| -> Box<[Below]> {
            let of = |name| match none || skipped(name) {
                true => Below::NotEntered,
                false => match looked_at.next() {
                    Some(Ok(dir)) => Below::Listed(dir),
                    Some(Err(error)) => Below::Closed(error),
                    None => Below::NotEntered,
                },
            };
            names.directories().map(of).collect()
        };
        match self {
            Self::Same(dir) => {
                let below = below(&dir.names);
                if below.iter().zip(&dir.below).all(|(now, before)| now.is_same(before)) {
                    return Ok(dir);
                }
                let Dir { stamp, listed_at, is_cut, .. } = *dir;
                Ok(Arc::new(Dir { stamp, listed_at, is_cut, names: dir.names.clone(), below }))
            }
            Self::New { listed: Listed { stamp, listed_at, is_cut, names }, .. } => {
                let below = below(&names);
                Ok(Arc::new(Dir { stamp, listed_at, is_cut, names, below }))
            }
            Self::Closed(error) => Err(error),
        }
    }
}

impl Below {
    fn is_same(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Listed(now), Self::Listed(before)) => Arc::ptr_eq(now, before),
            (Self::NotEntered, Self::NotEntered) => true,
            _ => false,
        }
    }
}

fn gone() -> io::Error {
    io::ErrorKind::NotFound.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    const MANY: usize = 1_000_000;

    struct World {
        place: tempfile::TempDir,
        beneath: Beneath,
    }

    impl World {
        fn new() -> Self {
            let place = tempfile::tempdir().unwrap();
            let beneath = Beneath::of(place.path()).unwrap();
            Self { place, beneath }
        }

        fn read(&self, before: Option<&Arc<Dir>>, levels: usize, most: usize) -> Arc<Dir> {
            let left = AtomicUsize::new(most);
            let bounds = Bounds { levels, left: &left, skipped: |name| name == ".git" };
            Dir::read(&self.beneath, Path::new(""), before, &bounds).unwrap()
        }

        /// As if it had been listed so much later: what was young is trusted.
        fn aged(dir: &Dir) -> Arc<Dir> {
            let below = dir.below.iter().map(|below| match below {
                Below::Listed(dir) => Below::Listed(Self::aged(dir)),
                _ => Below::NotEntered,
            });
            let (names, below) = (dir.names.clone(), below.collect());
            let listed_at = dir.listed_at + Duration::from_secs(60);
            Arc::new(Dir { stamp: dir.stamp, listed_at, is_cut: dir.is_cut, names, below })
        }
    }

    fn shown(dir: &Dir) -> String {
        let entries = dir.entries().map(|(name, kind)| {
            let name = name.to_string_lossy();
            match kind {
                Kind::Directory(Below::Listed(dir)) => format!("{name}({})", shown(dir)),
                Kind::Directory(Below::Closed(_)) => format!("{name}!"),
                Kind::Directory(Below::NotEntered) => format!("{name}/"),
                Kind::File => name.into_owned(),
                Kind::Link => format!("{name}@"),
                Kind::Other => format!("{name}?"),
            }
        });
        entries.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_there() {
        let world = World::new();
        let at = |path: &str| world.place.path().join(path);
        fs::create_dir_all(at("b/c/d")).unwrap();
        fs::create_dir_all(at(".git/x")).unwrap();
        fs::create_dir_all(at("a")).unwrap();
        fs::write(at("b/file"), "").unwrap();
        symlink("b", at("link")).unwrap();
        assert_eq!(shown(&world.read(None, 9, MANY)), ".git/ a() b(c(d()) file) link@");
        assert_eq!(shown(&world.read(None, 1, MANY)), ".git/ a() b(c/ file) link@");
        assert_eq!(shown(&world.read(None, 0, MANY)), ".git/ a/ b/ link@");
        let cut = world.read(None, 9, 2);
        assert!(cut.is_cut && cut.entries().count() == 2);
    }

    #[test]
    fn what_did_not_change_is_the_same_value() {
        let world = World::new();
        let at = |path: &str| world.place.path().join(path);
        for directory in ["a/x", "a/y", "b"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        let young = world.read(None, 9, MANY);
        assert!(!Arc::ptr_eq(&world.read(Some(&young), 9, MANY), &young), "it may have changed unseen");
        let before = World::aged(&young);
        assert!(Arc::ptr_eq(&world.read(Some(&before), 9, MANY), &before));
        fs::write(at("a/x/new"), "").unwrap();
        let after = world.read(Some(&before), 9, MANY);
        assert_eq!(shown(&after), "a(x(new) y()) b()");
        let below = |dir: &Arc<Dir>, place: usize| match &dir.below[place] {
            Below::Listed(dir) => Arc::clone(dir),
            other => panic!("{other:?}"),
        };
        assert!(Arc::ptr_eq(&below(&after, 1), &below(&before, 1)));
        assert!(Arc::ptr_eq(&below(&below(&after, 0), 1), &below(&below(&before, 0), 1)));
        fs::remove_dir(at("b")).unwrap();
        fs::create_dir(at("c")).unwrap();
        fs::write(at("c/file"), "").unwrap();
        assert_eq!(shown(&world.read(Some(&World::aged(&after)), 9, MANY)), "a(x(new) y()) c(file)");
    }
}
