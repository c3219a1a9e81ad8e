//! Where files of this user alone may be made.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Directories in which something private may be made, the user's own first:
/// `$XDG_RUNTIME_DIR`, `$TMPDIR` and `/tmp`. A variable that leads where somebody else
/// could put something else in its place is passed over.
pub fn runtime_directories() -> impl Iterator<Item = PathBuf> {
    let from_env = ["XDG_RUNTIME_DIR", "TMPDIR"].map(std::env::var_os);
    from_env
        .into_iter()
        .flatten()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && is_safe(path))
        // The system's to keep, and there is nothing after it.
        .chain([PathBuf::from("/tmp")])
}

fn is_safe(path: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    // With links followed: what they lead to counts.
    fs::metadata(path).is_ok_and(|it| it.is_dir() && is_tamper_proof(it.uid(), it.mode(), uid))
}

/// Whether what we make in a directory stays what it is.
fn is_tamper_proof(owner: u32, mode: u32, uid: u32) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let is_trusted_owner = owner == uid || owner == 0;
    is_trusted_owner && (mode & WRITABLE_BY_OTHERS == 0 || mode & STICKY != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_nobody_else_can_rename_is_safe() {
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
}
