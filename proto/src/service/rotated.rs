//! A value that is read from files, and read again when they have changed: tokens, callers, certificates. A change that
//! cannot be read is logged and changes nothing. Knows no format.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs, io};

use rustix::fs::{FileType, Mode, OFlags};

/// Files are looked at once in this time at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A file younger than this when it was read is read again: it may have been in the middle of being written, or change
/// again within one tick of its file system's clock.
const YOUNG: Duration = Duration::from_secs(2);
/// None of these files is ever near it.
const MAX_BYTES: u64 = 4 << 20;

/// What is wrong with a file: which one, where in it, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds what cannot be used.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, where, and what to write instead.
        what: String,
    },
}

impl FileError {
    /// What is wrong with the content of a file.
    pub(crate) fn content(path: &Path, what: impl fmt::Display) -> Self {
        Self::Content { path: path.to_owned(), what: what.to_string() }
    }
}

/// One file's path and bytes.
pub(crate) struct Content {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl Content {
    /// A file as it is now.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let (mut contents, _) = read(&[path.to_owned()]).ok()?;
        contents.pop()
    }

    /// Its text.
    pub(crate) fn text(&self) -> Result<&str, FileError> {
        std::str::from_utf8(&self.bytes).map_err(|_| FileError::content(&self.path, "it is not UTF-8: write it anew"))
    }
}

type Load<T> = Box<dyn Fn(&[Content]) -> Result<T, FileError> + Send + Sync>;

/// A value that follows its files.
pub(crate) struct Rotated<T> {
    what: &'static str,
    paths: Vec<PathBuf>,
    load: Load<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    current: Arc<T>,
    seen: Vec<Seen>,
    /// As read last, whether or not it could be used.
    bytes: Vec<Vec<u8>>,
    looked_at: Instant,
    /// The files could not be read when last looked at, and that was said.
    unreadable: bool,
}

/// A file's identity, size and times; `None` where it has to be read again.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen(Option<(u64, u64, u64, i128, i128)>);

impl<T> Rotated<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// What is wrong with them; there is no value then.
    pub(crate) fn open(
        what: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn(&[Content]) -> Result<T, FileError> + Send + Sync + 'static,
    ) -> Result<Self, FileError> {
        let (contents, seen) = read(&paths)?;
        let current = Arc::new(load(&contents)?);
        let bytes = contents.into_iter().map(|content| content.bytes).collect();
        let state = State { current, seen, bytes, looked_at: Instant::now(), unreadable: false };
        Ok(Self { what, paths, load: Box::new(load), state: Mutex::new(state) })
    }

    /// The value of the files as they are now, or were a second ago.
    pub(crate) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked_at.elapsed() >= LOOK_EVERY {
            self.look(&mut state);
            state.looked_at = Instant::now();
        }
        Arc::clone(&state.current)
    }

    fn look(&self, state: &mut State<T>) {
        let seen: io::Result<Vec<_>> = self.paths.iter().map(|path| fs::metadata(path).map(|m| Seen::of(&m))).collect();
        if seen.is_ok_and(|seen| seen == state.seen && seen.iter().all(|seen| seen.0.is_some())) {
            return;
        }
        let (contents, seen) = match read(&self.paths) {
            Ok(read) => read,
            Err(error) => {
                if !std::mem::replace(&mut state.unreadable, true) {
                    tracing::error!(%error, "the {} cannot be read: what was read before stays in force", self.what);
                }
                return;
            }
        };
        state.unreadable = false;
        state.seen = seen;
        if contents.iter().map(|content| &content.bytes).eq(&state.bytes) {
            return;
        }
        match (self.load)(&contents) {
            Ok(value) => {
                state.current = Arc::new(value);
                tracing::info!("the {} changed, and the new one is in force", self.what);
            }
            Err(error) => {
                tracing::error!(%error, "the {} changed and cannot be used: what was read before stays in force", self.what);
            }
        }
        state.bytes = contents.into_iter().map(|content| content.bytes).collect();
    }
}

impl<T> fmt::Debug for Rotated<T> {
    /// Contents are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rotated").field("what", &self.what).field("paths", &self.paths).finish_non_exhaustive()
    }
}

/// All files, with what they were before they were read.
fn read(paths: &[PathBuf]) -> Result<(Vec<Content>, Vec<Seen>), FileError> {
    let one = |path: &PathBuf| -> io::Result<(Content, Seen)> {
        // A pipe would keep the open waiting for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file: give the path of one"));
        }
        let seen = Seen::of(&file.metadata()?);
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes: is it the right file?")));
        }
        Ok((Content { path: path.clone(), bytes }, seen))
    };
    let mut read = (Vec::new(), Vec::new());
    for path in paths {
        let (content, seen) = one(path).map_err(|source| FileError::Read { path: path.clone(), source })?;
        read.0.push(content);
        read.1.push(seen);
    }
    Ok(read)
}

impl Seen {
    fn of(metadata: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().cast_signed();
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        let modified = nanoseconds(metadata.mtime(), metadata.mtime_nsec());
        let changed = nanoseconds(metadata.ctime(), metadata.ctime_nsec());
        // A clock that is ahead (a file server's) must not have a file read again for ever.
        let young = (0..YOUNG.as_nanos().cast_signed()).contains(&(now - changed));
        Self((!young).then(|| (metadata.dev(), metadata.ino(), metadata.size(), modified, changed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(contents: &[Content]) -> Result<u32, FileError> {
        let text = contents[0].text()?;
        text.trim().parse().map_err(|error| FileError::content(&contents[0].path, error))
    }

    /// As if the last look was long ago.
    fn age(rotated: &Rotated<u32>) {
        rotated.state.lock().unwrap().looked_at = Instant::now().checked_sub(LOOK_EVERY).unwrap();
    }

    #[test]
    fn a_change_is_followed_and_a_broken_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("number");
        let open = || Rotated::open("number", vec![path.clone()], number);
        assert!(open().unwrap_err().to_string().contains("number: No such file"));
        fs::write(&path, "x").unwrap();
        assert!(open().unwrap_err().to_string().contains("number: invalid digit"));
        fs::write(&path, "1").unwrap();
        let rotated = open().unwrap();
        for (text, expected) in [("2", 2), ("x", 2), ("3", 3), ("", 3), ("4", 4)] {
            // In place, of one length, within one tick of the clock.
            fs::write(&path, text).unwrap();
            age(&rotated);
            assert_eq!(*rotated.current(), expected, "{text}");
        }
        let beside = directory.path().join("beside");
        fs::write(&beside, "5").unwrap();
        fs::rename(&beside, &path).unwrap();
        assert_eq!(*rotated.current(), 4, "it was looked at a moment ago");
        age(&rotated);
        assert_eq!(*rotated.current(), 5);
        fs::remove_file(&path).unwrap();
        age(&rotated);
        assert_eq!(*rotated.current(), 5);
        // A volume as it is mounted: the link changes, the path does not.
        fs::write(&beside, "6").unwrap();
        std::os::unix::fs::symlink("beside", &path).unwrap();
        age(&rotated);
        assert_eq!(*rotated.current(), 6);
    }
}
