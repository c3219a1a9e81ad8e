//! The client's lock file (KEP-2718, "Proxy Shutdown"). The client holds the lock until its process
//! ends, even if it is killed; a plugin that acquires the lock can conclude that its client has
//! ended.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;
use skewbridge_private_files::{
    DirUse, create_private_dir, create_private_file, is_same_file, open_no_follow,
    runtime_directories,
};

/// Prefix of the lock directories; our process ID and a counter follow.
const DIR_PREFIX: &str = "skewbridge-exec-";

/// Name of the lock file in each directory.
const FILE_NAME: &str = "lock";

/// How many directory names are tried. At most dead processes with the same process ID have
/// taken names.
const MAX_ATTEMPTS: usize = 64;

/// A locked file in a directory that only this user can enter. Dropping it removes both.
#[derive(Debug)]
pub(super) struct LockFile {
    path: PathBuf,
    /// The kernel releases the lock when this file is closed.
    _file: File,
}

/// How the lock is acquired.
type TryLock = fn(&File) -> Result<(), TryLockError>;

/// Why no lock file could be created.
#[derive(Debug)]
enum CreateError {
    /// The name is in use; another one may be free.
    NameTaken(io::Error),
    /// Every other name would fail in the same way.
    Other(io::Error),
}

impl LockFile {
    /// Creates a directory below one of this user's runtime directories, and a locked file in
    /// it.
    pub(super) fn create() -> io::Result<Self> {
        Self::create_in_any(runtime_directories(), File::try_lock)
    }

    /// Uses the first directory where files can be locked: not all file systems support locks.
    fn create_in_any(
        directories: impl IntoIterator<Item = PathBuf>,
        lock: TryLock,
    ) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for parent in directories {
            match Self::create_in(&parent, lock) {
                Ok(created) => return Ok(created),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn create_in(parent: &Path, lock: TryLock) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        sweep(parent);
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..MAX_ATTEMPTS {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{DIR_PREFIX}{}-{number}", std::process::id());
            match Self::create_locked(&parent.join(name), lock) {
                Ok(created) => return Ok(created),
                Err(CreateError::NameTaken(error)) => last = error,
                Err(CreateError::Other(error)) => return Err(error),
            }
        }
        Err(last)
    }

    fn create_locked(directory: &Path, lock: TryLock) -> Result<Self, CreateError> {
        create_private_dir(directory).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => CreateError::NameTaken(error),
            _ => CreateError::Other(error),
        })?;
        let path = directory.join(FILE_NAME);
        Self::create_and_lock(&path, lock).inspect_err(|error| {
            // The file exists although it could not be locked. If another process swept it as
            // stale, that process removes it.
            if matches!(error, CreateError::Other(_)) {
                remove(&path);
            }
        })
    }

    fn create_and_lock(path: &Path, lock: TryLock) -> Result<Self, CreateError> {
        let file = create_private_file(path).map_err(|error| match error.kind() {
            // Another process swept our directory as stale.
            io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists => CreateError::NameTaken(error),
            _ => CreateError::Other(error),
        })?;
        lock(&file).map_err(|error| match error {
            TryLockError::WouldBlock => CreateError::NameTaken(io::ErrorKind::WouldBlock.into()),
            TryLockError::Error(error) => CreateError::Other(error),
        })?;
        // Another process may have swept our file between creation and locking.
        let ours = file.metadata().map_err(CreateError::Other)?;
        if !is_same_file(path, &ours).unwrap_or(false) {
            return Err(CreateError::NameTaken(io::ErrorKind::AlreadyExists.into()));
        }
        Ok(Self {
            path: path.to_owned(),
            _file: file,
        })
    }

    /// The path that the plugin gets.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    if let Some(directory) = path.parent() {
        let _ = fs::remove_dir(directory);
    }
}

/// Removes lock directories of killed clients that their plugins did not remove: those
/// with a free lock.
fn sweep(parent: &Path) {
    skewbridge_private_files::sweep(parent, DIR_PREFIX, |entry, _| {
        let path = entry.path().join(FILE_NAME);
        match open_no_follow(&path, OFlags::empty()) {
            Ok(file) => match file.try_lock() {
                Ok(()) => {
                    let _ = fs::remove_file(&path);
                    DirUse::Empty
                }
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => DirUse::InUse,
            },
            // Its owner was killed before it created the file, or is about to create it: then
            // it retries with another name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => DirUse::Empty,
            Err(_) => DirUse::InUse,
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn the_lock_is_in_a_private_directory_and_both_are_removed_on_drop() {
        let dir = ScratchDir::new();
        let lock = LockFile::create_in(dir.path(), File::try_lock).unwrap();
        let path = lock.path().to_owned();
        let directory = path.parent().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(directory), mode(&path)), (0o700, 0o600));
        let other = File::open(&path).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(lock);
        other.try_lock().unwrap();
        assert!(!directory.exists());
    }

    #[test]
    fn nothing_is_left_where_locks_are_unsupported() {
        fn unsupported_lock(_: &File) -> Result<(), TryLockError> {
            Err(TryLockError::Error(io::ErrorKind::Unsupported.into()))
        }
        let dir = ScratchDir::new();
        let error = LockFile::create_in(dir.path(), unsupported_lock).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_directory_is_tried_where_locks_are_unsupported() {
        static LOCK_CALLS: AtomicU64 = AtomicU64::new(0);
        fn lock_from_second_call_on(file: &File) -> Result<(), TryLockError> {
            match LOCK_CALLS.fetch_add(1, Ordering::Relaxed) {
                0 => Err(TryLockError::Error(io::ErrorKind::Unsupported.into())),
                _ => file.try_lock(),
            }
        }
        let (first, second) = (ScratchDir::new(), ScratchDir::new());
        let directories = [first.path().to_owned(), second.path().to_owned()];
        let lock = LockFile::create_in_any(directories, lock_from_second_call_on).unwrap();
        assert!(lock.path().starts_with(second.path()));
        assert_eq!(fs::read_dir(first.path()).unwrap().count(), 0);
    }

    #[test]
    fn sweeping_does_not_block_on_a_fifo_or_follow_a_symlink() {
        use rustix::fs::{CWD, FileType, Mode};
        let dir = ScratchDir::new();
        let fifo_dir = dir.path().join(format!("{DIR_PREFIX}1-0"));
        fs::create_dir(&fifo_dir).unwrap();
        let (pipe, mode) = (fifo_dir.join(FILE_NAME), Mode::RUSR | Mode::WUSR);
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
        let outside = dir.path().join("away");
        fs::write(&outside, "").unwrap();
        let linked = dir.path().join(format!("{DIR_PREFIX}1-1"));
        fs::create_dir(&linked).unwrap();
        std::os::unix::fs::symlink(&outside, linked.join(FILE_NAME)).unwrap();
        LockFile::create_in(dir.path(), File::try_lock).unwrap();
        assert!(linked.exists() && outside.exists());
    }

    #[test]
    fn stale_lock_directories_are_swept_and_live_ones_are_kept() {
        let dir = ScratchDir::new();
        let live = LockFile::create_in(dir.path(), File::try_lock).unwrap();
        let dead = dir.path().join(format!("{DIR_PREFIX}1-0"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(FILE_NAME), "").unwrap();
        let foreign = dir.path().join("other-directory");
        fs::create_dir(&foreign).unwrap();
        let second = LockFile::create_in(dir.path(), File::try_lock).unwrap();
        assert!(!dead.exists());
        assert!(foreign.exists() && live.path().exists() && second.path().exists());
        assert_ne!(live.path(), second.path());
    }
}
