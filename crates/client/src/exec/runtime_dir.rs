//! Directories for this user's private runtime files.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

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
    // Symlinks are followed: what matters is the directory they lead to.
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
    use super::*;

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
}
