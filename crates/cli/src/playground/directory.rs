//! The private directory of a playground, and its removal.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::geteuid;
use skewbridge_private_files::create_private_dir;

/// Accessible only to the owner.
const PRIVATE_MODE: u32 = 0o700;

/// The uid of root.
const ROOT_UID: u32 = 0;

/// Mode bits: group or others may write.
const OTHERS_WRITE_MODE: u32 = 0o022;

/// Attempts to find an unused name.
const MAX_NAME_ATTEMPTS: usize = 16;

/// A private directory. Dropping it empties it, and removes it if it was created here.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    made: bool,
}

impl Directory {
    /// Prepares the given directory, or a new one.
    pub(crate) fn prepare(given: Option<&Path>) -> Result<Self> {
        let Some(path) = given else {
            return Self::fresh();
        };
        let shown = path.display();
        match create_private_dir(path) {
            Ok(()) => Self::absolute(path, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let entries =
                    fs::read_dir(path).with_context(|| format!("--directory: {shown}"))?;
                if entries.count() > 0 {
                    bail!(
                        "--directory: {shown} is not empty; name an empty directory, or one \
                         that does not exist"
                    );
                }
                check_owner(path, &fs::metadata(path)?)?;
                fs::set_permissions(path, fs::Permissions::from_mode(PRIVATE_MODE))
                    .with_context(|| format!("--directory: {shown}"))?;
                Self::absolute(path, false)
            }
            Err(error) => bail!("--directory: {shown}: {error}"),
        }
    }

    fn absolute(path: &Path, made: bool) -> Result<Self> {
        let path = fs::canonicalize(path).context("--directory")?;
        Ok(Self { path, made })
    }

    fn fresh() -> Result<Self> {
        for _ in 0..MAX_NAME_ATTEMPTS {
            // Short, because it is typed and pasted.
            let chance = RandomState::new().build_hasher().finish() >> 40;
            let path = std::env::temp_dir().join(format!("skewbridge-{chance:06x}"));
            match create_private_dir(&path) {
                Ok(()) => return Self::absolute(&path, true),
                // The name exists already.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => bail!("cannot create {}: {error}; set --directory", path.display()),
            }
        }
        bail!("no free name for a directory; set --directory")
    }

    /// The path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Keys and files of pods must not be in a directory of another user, because that user could replace them.
fn check_owner(path: &Path, found: &fs::Metadata) -> Result<()> {
    let own_uid = geteuid();
    check_owner_and_mode(own_uid.as_raw(), found.uid(), found.mode())
        .map_err(|why| anyhow!("--directory: {} {why}", path.display()))
}

/// Why a directory of this owner and mode is refused. A directory of root must be safe already,
/// because other users may have put files into one that was not.
fn check_owner_and_mode(us: u32, owner: u32, mode: u32) -> Result<(), String> {
    if owner != us {
        return Err(format!(
            "belongs to user {owner}, not to user {us}; name one of your own, or one that \
             does not exist"
        ));
    }
    if us == ROOT_UID && mode & OTHERS_WRITE_MODE != 0 {
        return Err(format!(
            "can be written to by others (mode {:03o}); `chmod go-w` it, or name one that does \
             not exist",
            mode & 0o777
        ));
    }
    Ok(())
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_dir_all(&self.path);
            return;
        }
        let Ok(entries) = fs::read_dir(&self.path) else {
            return;
        };
        for entry in entries.flatten() {
            let is_directory = entry.file_type().is_ok_and(|it| it.is_dir());
            let _ = if is_directory {
                fs::remove_dir_all(entry.path())
            } else {
                fs::remove_file(entry.path())
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_must_belong_to_the_user() {
        let rows = [
            (1000, 1000, 0o700, true),
            // Its mode is changed.
            (1000, 1000, 0o775, true),
            (1000, 1001, 0o700, false),
            (1000, 0, 0o777, false),
            (0, 0, 0o755, true),
            (0, 0, 0o775, false),
            (0, 0, 0o757, false),
            (0, 1000, 0o700, false),
        ];
        for (us, owner, mode, good) in rows {
            let judged = check_owner_and_mode(us, owner, 0o40_000 | mode);
            assert_eq!(judged.is_ok(), good, "{us} {owner} {mode:o}: {judged:?}");
        }
        let refused = check_owner_and_mode(0, 0, 0o40_775).unwrap_err();
        assert!(refused.contains("(mode 775)"), "{refused}");
        if geteuid().is_root() {
            let fresh = Directory::prepare(None).unwrap();
            let theirs = fresh.path().join("theirs");
            fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::chown(&theirs, Some(65_534), None).unwrap();
            let refused = Directory::prepare(Some(&theirs)).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 65534"), "{refused}");
        }
    }

    #[test]
    fn a_created_directory_is_removed_and_an_existing_one_is_emptied() {
        let fresh = Directory::prepare(None).unwrap();
        let path = fresh.path().to_owned();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, PRIVATE_MODE);
        let there = path.join("there");
        fs::create_dir(&there).unwrap();
        let given = Directory::prepare(Some(&there)).unwrap();
        fs::write(there.join("file"), "").unwrap();
        let refused = Directory::prepare(Some(&there)).unwrap_err().to_string();
        assert!(
            refused.ends_with("is not empty; name an empty directory, or one that does not exist")
        );
        drop(given);
        assert_eq!(fs::read_dir(&there).unwrap().count(), 0);
        drop(fresh);
        assert!(!path.exists());
    }
}
