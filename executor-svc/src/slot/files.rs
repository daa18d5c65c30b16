//! The Landlock rules of one slot. Landlock only adds rights below a path and never takes any away: so what is closed is
//! closed by granting everything beside the way to it. A directory on that way is granted to be listed, its entries as
//! they are when the slot starts. Applies nothing by itself.

use std::fs::read_dir;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::settings::SlotFiles;
use crate::isolation::Flavour;

/// What the kernel can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Support {
    /// Files with truncation, which level `files` asks for; the newest version that is understood.
    files: Option<ABI>,
    pub(super) signals: bool,
}

impl Support {
    pub(super) fn probe() -> Self {
        let newest = [ABI::V5, ABI::V4, ABI::V3].into_iter();
        Self {
            files: newest.clone().find(|abi| handling(Some(*abi), false).and_then(Ruleset::create).is_ok()),
            signals: handling(None, true).and_then(Ruleset::create).is_ok(),
        }
    }

    pub(super) fn has_files(self) -> bool {
        self.files.is_some()
    }
}

/// The rules, with the paths opened: whoever applies them may have fewer rights by then. `None` where there is nothing to
/// apply.
pub(super) fn rules(
    support: Support,
    flavour: Flavour,
    files: Option<&SlotFiles>,
    signals: bool,
) -> io::Result<Option<RulesetCreated>> {
    if files.is_none() && !signals {
        return Ok(None);
    }
    let abi = if files.is_some() { support.files } else { None };
    let created = handling(abi, signals).and_then(Ruleset::create).map_err(io::Error::other)?;
    let (Some(files), Some(abi)) = (files, abi) else { return Ok(Some(created)) };
    let mut grants = Grants { ruleset: created, abi };
    let read = AccessFs::from_read(abi);
    let write = AccessFs::from_write(abi);
    // Names may be seen everywhere, or `ls` would fail on the way to what is closed.
    grants.add(Path::new("/"), AccessFs::ReadDir.into())?;
    let closed: Vec<&Path> = files.closed.iter().map(PathBuf::as_path).collect();
    match (flavour, &files.writable) {
        (Flavour::Writing, None) => grants.beside(Path::new("/"), &closed, read | write)?,
        (Flavour::Writing, Some(writable)) => {
            grants.beside(Path::new("/"), &closed, read)?;
            for path in writable {
                grants.beside(path, &closed, read | write)?;
            }
        }
        _ => grants.beside(Path::new("/"), &closed, read)?,
    }
    for device in DEVICES {
        let access = AccessFs::ReadFile | AccessFs::WriteFile | (write & (AccessFs::Truncate | AccessFs::IoctlDev));
        grants.add(Path::new(device), access)?;
    }
    grants.add(&files.readable, read)?;
    // A device that could be made here would be written, whatever it is.
    grants.add(&files.scratch, read | (write & !(AccessFs::MakeChar | AccessFs::MakeBlock)))?;
    Ok(Some(grants.ruleset))
}

/// What everybody writes.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/random", "/dev/urandom"];

/// A ruleset that forbids all of it, or an error where the kernel cannot.
fn handling(files: Option<ABI>, signals: bool) -> Result<Ruleset, landlock::RulesetError> {
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    if let Some(abi) = files {
        ruleset = ruleset.handle_access(AccessFs::from_all(abi))?;
    }
    if signals {
        ruleset = ruleset.scope(Scope::from_all(ABI::V6))?;
    }
    Ok(ruleset)
}

struct Grants {
    ruleset: RulesetCreated,
    abi: ABI,
}

impl Grants {
    /// Grants `path` and all below, but for `closed`, where these are.
    fn beside(&mut self, path: &Path, closed: &[&Path], access: BitFlags<AccessFs>) -> io::Result<()> {
        let closed: Vec<&Path> = closed.iter().copied().filter(|closed| closed.starts_with(path)).collect();
        if closed.is_empty() {
            return self.add(path, access);
        }
        if closed.contains(&path) {
            return Ok(());
        }
        let entries = match read_dir(path) {
            // Whom the user keeps from listing it is kept from what is in it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            entries => entries.map_err(|error| at("list", path, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| at("list", path, error))?;
            self.beside(&entry.path(), &closed, access)?;
        }
        Ok(())
    }

    /// Grants what is at `path`, if it is there. Links are not followed: what they lead to is granted where it is.
    fn add(&mut self, path: &Path, access: BitFlags<AccessFs>) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(CWD, path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => return Ok(()),
            Err(error) => return Err(at("open", path, error.into())),
        };
        let access = match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::Symlink => return Ok(()),
            FileType::Directory => access,
            _ => access & AccessFs::from_file(self.abi),
        };
        if access.is_empty() {
            return Ok(());
        }
        let added = (&mut self.ruleset).add_rule(PathBeneath::new(file, access));
        added.map(drop).map_err(|error| at("grant", path, io::Error::other(error)))
    }
}

fn at(what: &str, path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}
