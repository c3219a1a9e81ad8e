//! A private directory for the command.
//!
//! Not an anonymous file: `kubectl config`, helm and others write beside a kubeconfig or replace
//! it, and a path below `/proc` is not valid in another PID namespace. The content is useful
//! only while this process runs.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;
use skewbridge_client::exec::runtime_directories;

/// The prefix of the directories, followed by the process id and a number.
const PREFIX: &str = "skewbridge-run-";

/// Maximum number of names to try: they can only be taken by dead processes with the same pid.
const ATTEMPTS: usize = 64;

/// Maximum number of stale directories to check.
const SWEPT: usize = 256;

/// A private directory, removed with its content when dropped. It is locked while in use: a
/// killed process leaves it unlocked, and the next process removes it.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    path: PathBuf,
    _held: File,
}

/// The function that tries to lock.
type TryLock = fn(&File) -> Result<(), TryLockError>;

impl PrivateDirectory {
    /// Creates a directory among the runtime files of the user: in memory, where the system
    /// supports it.
    pub(super) fn new() -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for beside in runtime_directories() {
            match Self::new_in(&beside, File::try_lock) {
                Ok(made) => return Ok(made),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn new_in(beside: &Path, lock: TryLock) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        sweep(beside);
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..ATTEMPTS {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{}-{number}", std::process::id());
            match Self::make(&beside.join(name), lock) {
                Ok(made) => return Ok(made),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn make(path: &Path, lock: TryLock) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(path)?;
        Self::hold(path, lock).inspect_err(|error| {
            use io::ErrorKind::{AlreadyExists, NotFound, WouldBlock};
            // Without locks, the directory is used anyway. If it was taken for a stale one, that
            // process removes it.
            if !matches!(error.kind(), AlreadyExists | NotFound | WouldBlock) {
                let _ = fs::remove_dir(path);
            }
        })
    }

    fn hold(path: &Path, lock: TryLock) -> io::Result<Self> {
        let held = File::open(path)?;
        lock(&held)?;
        // Another process may have removed it as stale in between.
        let (there, ours) = (fs::symlink_metadata(path)?, held.metadata()?);
        if (there.dev(), there.ino()) != (ours.dev(), ours.ino()) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        Ok(Self {
            path: path.to_owned(),
            _held: held,
        })
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only the owner can read, and returns its path.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(bytes)?;
        Ok(path)
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes stale directories: those that are not locked.
fn sweep(beside: &Path) {
    let Ok(entries) = fs::read_dir(beside) else {
        return;
    };
    let us = rustix::process::geteuid().as_raw();
    let named = entries.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(PREFIX))
    });
    for entry in named.take(SWEPT) {
        // Directories of other users are not touched.
        let is_ours = |it: fs::Metadata| it.is_dir() && it.uid() == us;
        let is_left = || {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let opened = OpenOptions::new()
                .read(true)
                .custom_flags(flags.bits().cast_signed())
                .open(entry.path());
            opened.is_ok_and(|directory| directory.try_lock().is_ok())
        };
        if entry.metadata().is_ok_and(is_ours) && is_left() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn files_are_private_and_removed_with_the_directory() {
        let scratch = ScratchDir::new();
        let directory = PrivateDirectory::new_in(scratch.path(), File::try_lock).unwrap();
        let file = directory.write("config", b"text").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(directory.path()), mode(&file)), (0o700, 0o600));
        assert_eq!(fs::read(&file).unwrap(), b"text");
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn without_locks_nothing_is_left_behind() {
        fn without_locks(_: &File) -> Result<(), TryLockError> {
            Err(TryLockError::Error(io::ErrorKind::Unsupported.into()))
        }
        let scratch = ScratchDir::new();
        let error = PrivateDirectory::new_in(scratch.path(), without_locks).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn stale_directories_are_removed_and_used_ones_are_not() {
        let scratch = ScratchDir::new();
        let living = PrivateDirectory::new_in(scratch.path(), File::try_lock).unwrap();
        let dead = scratch.path().join(format!("{PREFIX}1-0"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("config"), "key").unwrap();
        let _next = PrivateDirectory::new_in(scratch.path(), File::try_lock).unwrap();
        assert!(!dead.exists());
        assert!(living.path().exists());
    }
}
