//! One package on disk: written file by file and verified as it comes, verified again where it lies, removed. It never
//! follows a link and never writes outside its own directory.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use skillyard::digest::Hasher;
use skillyard::package::{MAX_BYTES, MAX_FILES, PackagePath};
use skillyard::{Digest, PackageFile};

/// Most directories: far beyond what the most files need, and few enough to be made and removed.
const MAX_DIRECTORIES: usize = 2 * MAX_FILES;
const READ_BYTES: usize = 128 << 10;

/// Why a package is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackageError {
    /// The system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("data came before the first file")]
    DataFirst,
    #[error("the file {0} does not come in path order")]
    Order(PackagePath),
    #[error("more than {MAX_FILES} files")]
    TooManyFiles,
    #[error("more than {MAX_DIRECTORIES} directories")]
    TooManyDirectories,
    #[error("more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("the file {path} has another size than the {expected} bytes announced")]
    Size { path: PackagePath, expected: u64 },
    #[error("the content of the file {0} is not that of its sha256")]
    Content(PackagePath),
    #[error("the files are not those of the digest {expected}: theirs is {found}")]
    Digest { expected: Digest, found: Digest },
    #[error("{} is neither a file nor a directory", .0.display())]
    Irregular(PathBuf),
    #[error("{} is no path of a package", .0.display())]
    Name(PathBuf),
}

impl PackageError {
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}

/// A package being written, in a directory of its own that goes with it unless it is finished and renamed.
#[derive(Debug)]
pub(crate) struct Writer {
    directory: TemporaryDirectory,
    digest: Digest,
    files: Vec<PackageFile>,
    /// Made below the package, relative.
    directories: BTreeSet<String>,
    max_directories: usize,
    bytes: u64,
    /// The content of the last of `files`, while it comes.
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    hasher: Hasher,
    left: u64,
}

impl Writer {
    pub(super) fn new(directory: PathBuf, digest: Digest) -> Result<Self, PackageError> {
        make_directory(&directory)?;
        Ok(Self {
            directory: TemporaryDirectory(Some(directory)),
            digest,
            files: Vec::new(),
            directories: BTreeSet::new(),
            max_directories: MAX_DIRECTORIES,
            bytes: 0,
            open: None,
        })
    }

    pub(super) fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Begins a file. What is announced is checked before anything is written.
    pub(crate) fn file(&mut self, file: PackageFile) -> Result<(), PackageError> {
        self.end_file()?;
        if self.files.last().is_some_and(|last| last.path >= file.path) {
            return Err(PackageError::Order(file.path));
        }
        if self.files.len() >= MAX_FILES {
            return Err(PackageError::TooManyFiles);
        }
        self.bytes = self.bytes.checked_add(file.size).filter(|&sum| sum <= MAX_BYTES).ok_or(PackageError::TooLarge)?;
        self.make_parents(&file.path)?;
        let path = self.directory.path().join(file.path.as_str());
        let content = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let content = content.map_err(|error| PackageError::io("create", &path, error))?;
        self.open = Some(OpenFile { file: content, hasher: Hasher::default(), left: file.size });
        self.files.push(file);
        Ok(())
    }

    /// Adds bytes to the file last begun.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> Result<(), PackageError> {
        let (Some(open), Some(file)) = (&mut self.open, self.files.last()) else { return Err(PackageError::DataFirst) };
        let size = || PackageError::Size { path: file.path.clone(), expected: file.size };
        open.left = open.left.checked_sub(bytes.len() as u64).ok_or_else(size)?;
        open.hasher.update(bytes);
        let path = || self.directory.path().join(file.path.as_str());
        open.file.write_all(bytes).map_err(|error| PackageError::io("write", &path(), error))
    }

    /// Checks the whole, makes it read-only, and brings it to the disk.
    pub(super) fn finish(mut self) -> Result<Finished, PackageError> {
        self.end_file()?;
        let found = Digest::of_package(&self.files);
        if found != self.digest {
            return Err(PackageError::Digest { expected: self.digest, found });
        }
        let root = self.directory.path();
        // All is written before the first sync, which then carries most of it.
        for file in &self.files {
            sync(&root.join(file.path.as_str()))?;
        }
        for directory in self.directories.iter().rev().map(|name| root.join(name)).chain([root.to_owned()]) {
            sync(&directory)?;
            set_mode(&directory, 0o555)?;
        }
        Ok(Finished(self.directory))
    }

    fn end_file(&mut self) -> Result<(), PackageError> {
        let (Some(open), Some(file)) = (self.open.take(), self.files.last()) else { return Ok(()) };
        if open.left > 0 {
            return Err(PackageError::Size { path: file.path.clone(), expected: file.size });
        }
        if open.hasher.finish() != file.sha256 {
            return Err(PackageError::Content(file.path.clone()));
        }
        let path = || self.directory.path().join(file.path.as_str());
        let mode = Permissions::from_mode(file_mode(file.executable));
        open.file.set_permissions(mode).map_err(|error| PackageError::io("set the mode of", &path(), error))
    }

    fn make_parents(&mut self, path: &PackagePath) -> Result<(), PackageError> {
        for (end, _) in path.as_str().match_indices('/') {
            let name = &path.as_str()[..end];
            if self.directories.contains(name) {
                continue;
            }
            if self.directories.len() >= self.max_directories {
                return Err(PackageError::TooManyDirectories);
            }
            make_directory(&self.directory.path().join(name))?;
            self.directories.insert(name.to_owned());
        }
        Ok(())
    }
}

/// A package that is whole, and not in place yet.
#[derive(Debug)]
pub(super) struct Finished(TemporaryDirectory);

impl Finished {
    pub(super) fn rename(mut self, to: &Path) -> Result<(), PackageError> {
        fs::rename(self.0.path(), to).map_err(|error| PackageError::io("move into place", to, error))?;
        self.0.0 = None;
        Ok(())
    }
}

/// Removed when dropped.
#[derive(Debug)]
struct TemporaryDirectory(Option<PathBuf>);

impl TemporaryDirectory {
    fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let Some(path) = self.0.take() else { return };
        if let Err(error) = remove_tree(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot be removed from the store");
        }
    }
}

/// Reads a package where it lies, checks it against its digest, and sets right the modes of what is in it.
pub(super) fn verify(package: &Path, digest: &Digest) -> Result<(), PackageError> {
    let mut walk = Walk { files: Vec::new(), bytes: 0, directories: 0, buffer: vec![0; READ_BYTES] };
    walk.directory(package, "")?;
    let found = Digest::of_package(&walk.files);
    if found != *digest {
        return Err(PackageError::Digest { expected: *digest, found });
    }
    Ok(())
}

struct Walk {
    files: Vec<PackageFile>,
    bytes: u64,
    directories: usize,
    buffer: Vec<u8>,
}

impl Walk {
    fn directory(&mut self, path: &Path, below: &str) -> Result<(), PackageError> {
        self.directories += 1;
        if self.directories > MAX_DIRECTORIES + 1 {
            return Err(PackageError::TooManyDirectories);
        }
        let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY;
        let directory = open(path, flags)?;
        keep_mode(&directory, path, 0o555)?;
        let failed = |error| PackageError::io("list", path, error);
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().into_string().map_err(|_| PackageError::Name(entry.path()))?;
            let name = if below.is_empty() { name } else { format!("{below}/{name}") };
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                // Bounds the depth too.
                let _: PackagePath = name.parse().map_err(|_| PackageError::Name(entry.path()))?;
                self.directory(&entry.path(), &name)?;
            } else {
                self.file(&entry.path(), &name)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, name: &str) -> Result<(), PackageError> {
        if self.files.len() >= MAX_FILES {
            return Err(PackageError::TooManyFiles);
        }
        let name = name.parse().map_err(|_| PackageError::Name(path.to_owned()))?;
        // NONBLOCK: a FIFO would hold up the opening.
        let mut file = open(path, OFlags::NOFOLLOW | OFlags::NONBLOCK)?;
        let failed = |error| PackageError::io("read", path, error);
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(PackageError::Irregular(path.to_owned()));
        }
        let (mut hasher, mut size) = (Hasher::default(), 0);
        loop {
            let read = match file.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            size += read as u64;
            self.bytes += read as u64;
            if self.bytes > MAX_BYTES {
                return Err(PackageError::TooLarge);
            }
            hasher.update(&self.buffer[..read]);
        }
        let executable = metadata.mode() & 0o111 != 0;
        keep_mode(&file, path, file_mode(executable))?;
        self.files.push(PackageFile { path: name, size, executable, sha256: hasher.finish() });
        Ok(())
    }
}

/// Removes a file, or a directory and all below it, read-only directories included; follows no link. What is not there
/// is removed already.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !metadata.is_dir() {
        return fs::remove_file(path);
    }
    // Without write permission on a directory nothing in it can be removed, but by root.
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        remove_tree(&entry?.path())?;
    }
    fs::remove_dir(path)
}

fn file_mode(executable: bool) -> u32 {
    if executable { 0o555 } else { 0o444 }
}

fn make_directory(path: &Path) -> Result<(), PackageError> {
    fs::DirBuilder::new().mode(0o700).create(path).map_err(|error| PackageError::io("create", path, error))
}

fn set_mode(path: &Path, mode: u32) -> Result<(), PackageError> {
    let permissions = Permissions::from_mode(mode);
    fs::set_permissions(path, permissions).map_err(|error| PackageError::io("set the mode of", path, error))
}

fn keep_mode(file: &File, path: &Path, mode: u32) -> Result<(), PackageError> {
    let failed = |error| PackageError::io("set the mode of", path, error);
    if file.metadata().map_err(failed)?.mode() & 0o7777 != mode {
        file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok(())
}

fn sync(path: &Path) -> Result<(), PackageError> {
    open(path, OFlags::NOFOLLOW)?.sync_all().map_err(|error| PackageError::io("sync", path, error))
}

fn open(path: &Path, flags: OFlags) -> Result<File, PackageError> {
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.map_err(|error| PackageError::io("open", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_counted() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut writer = Writer::new(dir.path().join("package"), Digest::of(b"any")).unwrap();
        writer.max_directories = 4;
        let mut take = |path: &str| {
            writer.file(PackageFile {
                path: path.parse().unwrap(),
                size: 0,
                executable: false,
                sha256: Digest::of(b""),
            })
        };
        take("a/b/c").unwrap();
        take("a/b/d").unwrap();
        take("e/f/g").unwrap();
        assert!(matches!(take("e/h/i"), Err(PackageError::TooManyDirectories)));
        drop(writer);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
