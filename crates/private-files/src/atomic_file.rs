//! Files that are replaced as a whole: a reader, and the next process after a crash, gets the old
//! content or the new.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The beginning of the name of a file that is being written. A name with a dot is hidden.
const TEMPORARY_PREFIX: &str = ".new-";

/// Makes the names of files that are written at the same time different. A later process begins with
/// the same numbers, and overwrites files that a crash has left.
static WRITES: AtomicU64 = AtomicU64::new(0);

/// Replaces a file in a private directory atomically. Only this user can read it. It is on disk when
/// this returns.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path
        .parent()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    fs::rename(write_temporary(directory, bytes)?, path)
}

/// Fails if files cannot be written to a directory.
pub fn check_writable(directory: &Path) -> io::Result<()> {
    fs::remove_file(write_temporary(directory, b"")?)
}

fn write_temporary(directory: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("{TEMPORARY_PREFIX}{number}"));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn a_replaced_file_is_private_and_nothing_else_is_left() {
        let scratch = ScratchDir::new();
        let path = scratch.path().join("state");
        for content in ["longer", "new"] {
            replace_file(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        check_writable(scratch.path()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_does_not_exist_is_an_error() {
        let scratch = ScratchDir::new();
        let absent = scratch.path().join("absent");
        assert!(check_writable(&absent).is_err());
        assert!(replace_file(&absent.join("state"), b"").is_err());
    }
}
