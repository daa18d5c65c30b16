//! What tells whether a file has changed, and when that can be trusted. Reads no content.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use rustix::fs::Stat;

/// A file younger than this when it was read is read again: its next change may bear the same time on a file system that
/// counts in seconds.
const TRUSTED_AFTER: Duration = Duration::from_secs(2);
/// A file younger than this when it was read may be in the middle of being written.
const SETTLED_AFTER: Duration = Duration::from_millis(500);

/// A file's identity, size and times, to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    mode: u32,
    pub(crate) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            mode: metadata.mode(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// The same, of what the system itself says.
    pub(crate) fn of_stat(stat: &Stat) -> Self {
        // The types of the fields differ from processor to processor.
        #[expect(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_possible_wrap, reason = "see above")]
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            mode: stat.st_mode as u32,
            size: stat.st_size as u64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Which file it is.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Whether any executable bit is set.
    pub(crate) fn executable(&self) -> bool {
        self.mode & 0o111 != 0
    }

    /// When its content was modified.
    pub(crate) fn modified_at(&self) -> SystemTime {
        time(self.modified)
    }

    /// When it last changed in any way. A modification time can be set to anything, this one cannot.
    pub(crate) fn youth(&self) -> SystemTime {
        time(self.changed)
    }

    /// Whether an equal stamp, seen later, means that what was read then is still what is there.
    pub(crate) fn trusted(&self, read_at: SystemTime) -> bool {
        self.youth() + TRUSTED_AFTER <= read_at
    }
}

/// Whether a file that changed then may have been in the middle of being written when it was read.
pub(crate) fn unsettled(changed: SystemTime, read_at: SystemTime) -> bool {
    // A clock that is ahead (a file server's) must not make every look the first of two, for ever.
    changed + SETTLED_AFTER > read_at && changed < read_at + SETTLED_AFTER
}

fn time((seconds, nanoseconds): (i64, i64)) -> SystemTime {
    let part = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or_default());
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = match seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(whole),
        _ => SystemTime::UNIX_EPOCH.checked_sub(whole),
    };
    base.and_then(|base| base.checked_add(part)).unwrap_or(SystemTime::UNIX_EPOCH)
}
