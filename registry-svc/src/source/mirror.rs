//! What of an admin server's mirror its readers must know: where its parts are, whether it is in the middle of a change,
//! and what the last sync says of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::codes;

/// The folders of the skills.
pub(crate) const SKILLS: &str = "skills";
/// Which id is in which folder.
pub(crate) const MANIFEST: &str = "manifest.json";
/// What the sync keeps for itself.
pub(crate) const WORK: &str = ".sync";
/// Held by whoever changes folders, and shared by whoever looks at them.
pub(crate) const LOCK: &str = ".sync/commit.lock";
/// There while folders are changed.
pub(crate) const COMMIT: &str = ".sync/commit.json";
/// Of the last sync.
pub(crate) const REPORT: &str = ".sync/report.json";

/// Waits until nobody changes the mirror; nobody does as long as the value lives.
///
/// # Errors
/// A sync was cut off in the middle of a change, and nobody has finished it yet.
pub(crate) fn hold(cloud_dir: &Path) -> io::Result<Option<File>> {
    // No sync was ever there, or not one of this program.
    let Ok(lock) = File::open(cloud_dir.join(LOCK)) else { return Ok(None) };
    flock(&lock, FlockOperation::LockShared)?;
    if std::fs::symlink_metadata(cloud_dir.join(COMMIT)).is_ok() {
        return Err(io::Error::other(
            "a sync was cut off in the middle of a change: run `registry-svc sync` to finish it",
        ));
    }
    Ok(Some(lock))
}

/// What a sync says in the load report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// What became of the sync as a whole; empty where it came to its end.
    pub(crate) failed: String,
    /// Ids that are not synced: each with code and cause.
    pub(crate) refused: Vec<(String, &'static str, String)>,
    /// Files, by folder, whose content the server does not give.
    pub(crate) missing: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Raw {
    failed: String,
    refused: Vec<RawRefused>,
    missing: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize, Deserialize)]
struct RawRefused {
    id: String,
    code: String,
    message: String,
}

impl Report {
    /// What the last sync said; nothing where there was none.
    pub(crate) fn read(cloud_dir: &Path) -> Self {
        let text = std::fs::read(cloud_dir.join(REPORT)).unwrap_or_default();
        let Raw { failed, refused, missing } = serde_json::from_slice(&text).unwrap_or_default();
        let known = |code: &str| if code == codes::W_SYNC_TIER { codes::W_SYNC_TIER } else { codes::E_SYNC_SKILL };
        let refused = refused.into_iter().map(|RawRefused { id, code, message }| (id, known(&code), message)).collect();
        Self { failed, refused, missing }
    }

    /// For the next one who reads.
    pub(crate) fn write(&self) -> Vec<u8> {
        let Self { failed, refused, missing } = self.clone();
        let refused = refused.into_iter().map(|(id, code, message)| RawRefused { id, code: code.to_owned(), message });
        // Texts and lists always have a JSON.
        serde_json::to_vec(&Raw { failed, refused: refused.collect(), missing }).unwrap_or_default()
    }
}
