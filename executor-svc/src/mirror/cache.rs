//! The last catalog on disk, and how long ago the registry confirmed it. A reader gets it whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use skillyard::Digest;

use crate::registry::{RegistryError, State};

/// The first line of a kept state; a format of another kind begins with another.
const HEADING: &[u8] = b"skillyard catalog 1\n";

/// A directory with the two files.
#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
}

/// Why there is no catalog on disk to start with.
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("its heading is not that of a catalog of this version")]
    Heading,
    #[error("its checksum is not that of its content")]
    Checksum,
    #[error(transparent)]
    State(#[from] RegistryError),
}

impl Cache {
    pub(super) fn open(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
        Ok(Self { directory })
    }

    /// The state that was kept; `None` where there is none.
    pub(super) fn load(&self) -> Result<Option<State>, CacheError> {
        let bytes = match fs::read(self.directory.join("state")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let rest = bytes.strip_prefix(HEADING).ok_or(CacheError::Heading)?;
        let (checksum, content) = rest.split_at_checked(32).ok_or(CacheError::Checksum)?;
        if Digest::of(content).as_bytes() != checksum {
            return Err(CacheError::Checksum);
        }
        Ok(Some(State::from_bytes(content)?))
    }

    /// Keeps a state. The age goes with it: [`Self::save_age`].
    pub(super) fn save(&self, state: &[u8]) -> io::Result<()> {
        self.replace("state", &[HEADING, Digest::of(state).as_bytes(), state])
    }

    /// Keeps how long ago the registry confirmed the state.
    ///
    /// Not the moment of it: what is lost when the clock is set back is then the time since this was written, and not all
    /// that had passed.
    pub(super) fn save_age(&self, age: Duration) -> io::Result<()> {
        let text = format!("{} {}\n", since_epoch().as_millis(), age.as_millis());
        self.replace("age", &[text.as_bytes()])
    }

    /// How long ago the registry confirmed the state; `None` where that was not kept.
    pub(super) fn load_age(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.directory.join("age")).ok()?;
        let (written, age) = text.strip_suffix('\n')?.split_once(' ')?;
        let (written, age) = (written.parse().ok()?, age.parse().ok()?);
        let passed = since_epoch().saturating_sub(Duration::from_millis(written));
        Some(Duration::from_millis(age).saturating_add(passed))
    }

    fn replace(&self, name: &str, content: &[&[u8]]) -> io::Result<()> {
        let (path, beside) = (self.directory.join(name), self.directory.join(format!("{name}.new")));
        let mut file = File::create(&beside)?;
        content.iter().try_for_each(|bytes| file.write_all(bytes))?;
        file.sync_all()?;
        fs::rename(&beside, &path)?;
        sync(&self.directory)
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
