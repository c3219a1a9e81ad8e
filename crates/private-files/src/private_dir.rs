//! Directories and files that only this user can read: sockets, locks and kubeconfigs of running
//! processes, and the removal of files that killed processes left.

use std::fs::{self, DirBuilder, DirEntry, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;

/// How many names are tried. At most dead processes with the same process ID have taken names.
const MAX_ATTEMPTS: usize = 64;

/// How many directories are examined per sweep: enough to keep up with crashes, and bounded if
/// another user creates many.
const MAX_SWEPT_DIRS: usize = 256;

/// A directory that only this user can enter. Dropping it removes it and its content.
///
/// Its process may hold a lock on it. A killed process leaves it unlocked, and the next one
/// removes it.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    /// The kernel releases the lock when this file is closed.
    _lock: Option<File>,
}

/// How a lock is acquired.
type TryLock = fn(&File) -> Result<(), TryLockError>;

impl PrivateDir {
    /// Creates a directory that does not exist yet.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        create_private_dir(&path)?;
        Ok(Self { path, _lock: None })
    }

    /// Creates and locks a directory below one of this user's runtime directories. Its name is
    /// the prefix, the process ID and a counter. Unlocked directories with this prefix are
    /// removed.
    pub fn create_locked(prefix: &str) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for parent in runtime_directories() {
            match Self::create_locked_in(&parent, prefix, File::try_lock) {
                Ok(created) => return Ok(created),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn create_locked_in(parent: &Path, prefix: &str, lock: TryLock) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        sweep(parent, prefix, |entry, _| {
            let opened = open_no_follow(&entry.path(), OFlags::DIRECTORY);
            if opened.is_ok_and(|directory| directory.try_lock().is_ok()) {
                DirUse::Abandoned
            } else {
                DirUse::InUse
            }
        });
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..MAX_ATTEMPTS {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{prefix}{}-{number}", std::process::id());
            match Self::create_and_lock(&parent.join(name), lock) {
                Ok(created) => return Ok(created),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn create_and_lock(path: &Path, lock: TryLock) -> io::Result<Self> {
        create_private_dir(path)?;
        Self::lock(path, lock).inspect_err(|error| {
            use io::ErrorKind::{AlreadyExists, NotFound, WouldBlock};
            // The directory exists although it could not be locked. If another process swept it
            // as abandoned, that process removes it.
            if !matches!(error.kind(), AlreadyExists | NotFound | WouldBlock) {
                let _ = fs::remove_dir(path);
            }
        })
    }

    fn lock(path: &Path, lock: TryLock) -> io::Result<Self> {
        let file = File::open(path)?;
        lock(&file)?;
        // Another process may have swept the directory between creation and locking.
        if !is_same_file(path, &file.metadata()?)? {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        Ok(Self {
            path: path.to_owned(),
            _lock: Some(file),
        })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only this user can read, and returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        create_private_file(&path)?.write_all(bytes)?;
        Ok(path)
    }

    /// Removes the directory and its content, as dropping it does.
    pub fn remove(&mut self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Creates a directory that only this user can enter, and that does not exist yet.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Creates a directory that only this user can enter, and its parents. An existing one is left as it
/// is.
pub fn ensure_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a file that only this user can read, and that does not exist yet.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Opens for reading or locking without blocking, also if it is a FIFO, and without following a
/// symlink.
pub fn open_no_follow(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// Whether a path still leads to this file or directory.
pub fn is_same_file(path: &Path, opened: &Metadata) -> io::Result<bool> {
    let current = fs::symlink_metadata(path)?;
    Ok((current.dev(), current.ino()) == (opened.dev(), opened.ino()))
}

/// Whether it is a directory, no symlink, that only this user can enter.
pub fn is_private_dir(path: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path)
        // Six bits for group and others, none of them set.
        .is_ok_and(|it| it.is_dir() && it.uid() == uid && it.mode().trailing_zeros() >= 6)
}

/// Whether a process uses a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirUse {
    /// A process uses it, or this is unknown.
    InUse,
    /// At most a process that is about to fill it uses it: removed only if it is empty.
    Empty,
    /// No process uses it: removed with its content.
    Abandoned,
}

/// Removes directories of this user with this prefix that no process uses any more. Directories
/// of other users and symlinks are left alone.
pub fn sweep(parent: &Path, prefix: &str, used: impl Fn(&DirEntry, &Metadata) -> DirUse) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    let named = entries.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().starts_with(prefix.as_bytes())
    });
    let uid = rustix::process::geteuid().as_raw();
    for entry in named.take(MAX_SWEPT_DIRS) {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if !metadata.is_dir() || metadata.uid() != uid {
            continue;
        }
        let _ = match used(&entry, &metadata) {
            DirUse::InUse => continue,
            DirUse::Empty => fs::remove_dir(entry.path()),
            DirUse::Abandoned => fs::remove_dir_all(entry.path()),
        };
    }
}

/// Directories for private files, in order of preference: `$XDG_RUNTIME_DIR`, `$TMPDIR` and
/// `/tmp`. A variable is ignored if another user could replace files in its directory.
pub fn runtime_directories() -> impl Iterator<Item = PathBuf> {
    let from_env = ["XDG_RUNTIME_DIR", "TMPDIR"].map(std::env::var_os);
    from_env
        .into_iter()
        .flatten()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && is_safe(path))
        // The last resort: the system protects it.
        .chain([PathBuf::from("/tmp")])
}

fn is_safe(path: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    // Symlinks are followed: the check is of the directory that they lead to.
    fs::metadata(path).is_ok_and(|it| it.is_dir() && is_tamper_proof(it.uid(), it.mode(), uid))
}

/// Whether no other user can replace our files in a directory with this owner and mode.
fn is_tamper_proof(owner: u32, mode: u32, uid: u32) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let is_trusted_owner = owner == uid || owner == 0;
    is_trusted_owner && (mode & WRITABLE_BY_OTHERS == 0 || mode & STICKY != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use skewbridge_testkit::ScratchDir;

    use super::*;

    const PREFIX: &str = "skewbridge-test-";

    #[test]
    fn a_directory_is_safe_only_if_no_other_user_can_rename_files_in_it() {
        let rows = [
            (1000, 0o700, true),
            (1000, 0o755, true),
            (1000, 0o775, false),
            (1000, 0o757, false),
            (1000, 0o1777, true),
            (0, 0o1777, true),
            (0, 0o777, false),
            (1001, 0o700, false),
            (1001, 0o1777, false),
        ];
        for (owner, mode, expected) in rows {
            assert_eq!(
                is_tamper_proof(owner, mode, 1000),
                expected,
                "{owner} {mode:o}"
            );
        }
    }

    #[test]
    fn a_directory_is_private_only_if_it_is_ours_alone() {
        let scratch = ScratchDir::new();
        let path = scratch.path().join("directory");
        create_private_dir(&path).unwrap();
        assert!(is_private_dir(&path));
        assert!(create_private_dir(&path).is_err());
        for (mode, expected) in [(0o750, false), (0o701, false), (0o500, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_private_dir(&path), expected, "{mode:o}");
        }
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(!is_private_dir(&link));
        assert!(!is_private_dir(&scratch.path().join("absent")));
    }

    #[test]
    fn files_are_private_and_removed_with_the_directory() {
        let scratch = ScratchDir::new();
        let directory =
            PrivateDir::create_locked_in(scratch.path(), PREFIX, File::try_lock).unwrap();
        let file = directory.write("config", b"text").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(directory.path()), mode(&file)), (0o700, 0o600));
        assert_eq!(fs::read(&file).unwrap(), b"text");
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_is_left_where_locks_are_unsupported() {
        fn unsupported_lock(_: &File) -> Result<(), TryLockError> {
            Err(TryLockError::Error(io::ErrorKind::Unsupported.into()))
        }
        let scratch = ScratchDir::new();
        let error = PrivateDir::create_locked_in(scratch.path(), PREFIX, unsupported_lock);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn abandoned_directories_are_swept_and_locked_ones_are_kept() {
        let scratch = ScratchDir::new();
        let locked = PrivateDir::create_locked_in(scratch.path(), PREFIX, File::try_lock).unwrap();
        let abandoned = scratch.path().join(format!("{PREFIX}1-0"));
        fs::create_dir(&abandoned).unwrap();
        fs::write(abandoned.join("config"), "key").unwrap();
        let _next = PrivateDir::create_locked_in(scratch.path(), PREFIX, File::try_lock).unwrap();
        assert!(!abandoned.exists());
        assert!(locked.path().exists());
    }

    #[test]
    fn a_directory_that_is_being_filled_is_not_swept() {
        let scratch = ScratchDir::new();
        let empty = scratch.path().join(format!("{PREFIX}1"));
        let full = scratch.path().join(format!("{PREFIX}2"));
        let other = scratch.path().join("other");
        for path in [&empty, &full, &other] {
            fs::create_dir(path).unwrap();
        }
        fs::write(full.join("file"), "").unwrap();
        sweep(scratch.path(), PREFIX, |_, _| DirUse::Empty);
        assert!(!empty.exists() && full.exists() && other.exists());
    }
}
