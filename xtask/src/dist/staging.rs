//! Directories with the files of a package, and archives of them that do not depend on the machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{self, StepError};

/// The permissions of a packaged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Data,
    Executable,
}

impl Mode {
    fn bits(self) -> u32 {
        match self {
            Self::Data => 0o644,
            Self::Executable => 0o755,
        }
    }
}

/// A directory whose files become a package.
#[derive(Debug)]
pub(super) struct Staging {
    root: PathBuf,
}

impl Staging {
    /// An empty directory.
    pub(super) fn new(root: PathBuf) -> Result<Self, StepError> {
        if root.exists() {
            fs::remove_dir_all(&root).map_err(failed(&root))?;
        }
        create_directories(&root)?;
        Ok(Self { root })
    }

    /// A directory with files.
    pub(super) fn open(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn write(&self, name: &str, mode: Mode, content: &[u8]) -> Result<(), StepError> {
        let path = self.prepare(name)?;
        fs::write(&path, content).map_err(failed(&path))?;
        set_mode(&path, mode.bits())
    }

    pub(super) fn copy(&self, name: &str, mode: Mode, from: &Path) -> Result<(), StepError> {
        let path = self.prepare(name)?;
        fs::copy(from, &path).map_err(failed(from))?;
        set_mode(&path, mode.bits())
    }

    pub(super) fn link(&self, name: &str, target: &str) -> Result<(), StepError> {
        let path = self.prepare(name)?;
        std::os::unix::fs::symlink(target, &path).map_err(failed(&path))
    }

    pub(super) fn directory(&self, name: &str) -> Result<(), StepError> {
        create_directories(&self.root.join(name))
    }

    /// The path of a file, whose directory exists then.
    fn prepare(&self, name: &str) -> Result<PathBuf, StepError> {
        let path = self.root.join(name);
        if let Some(parent) = path.parent() {
            create_directories(parent)?;
        }
        Ok(path)
    }

    /// All files, by their names below the directory, sorted.
    pub(super) fn files(&self) -> Result<Vec<String>, StepError> {
        let mut found = Vec::new();
        list(&self.root, &self.root, &mut found).map_err(failed(&self.root))?;
        found.sort();
        Ok(found)
    }

    /// Packs the directory under its own name: sorted, of user 0, with one time for all files.
    pub(super) fn archive(&self, archive: &Path, epoch: u64) -> Result<(), StepError> {
        let (Some(parent), Some(name)) = (self.root.parent(), self.root.file_name()) else {
            return Err(StepError(format!("{} has no name", self.root.display())));
        };
        let mut tar = Command::new("tar");
        tar.args(["--create", "--format=ustar", "--sort=name"])
            .args(["--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{epoch}"))
            // Without the name and the time of the file.
            .arg("--use-compress-program=gzip -9 --no-name")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(parent)
            .arg(name);
        step::run(&mut tar)
    }
}

/// Creates directories with a mode that does not depend on the umask.
fn create_directories(path: &Path) -> Result<(), StepError> {
    if path.exists() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_directories(parent)?;
    }
    fs::create_dir(path).map_err(failed(path))?;
    set_mode(path, 0o755)
}

fn set_mode(path: &Path, bits: u32) -> Result<(), StepError> {
    fs::set_permissions(path, Permissions::from_mode(bits)).map_err(failed(path))
}

fn list(root: &Path, directory: &Path, found: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let kind = fs::symlink_metadata(&path)?.file_type();
        if kind.is_dir() {
            list(root, &path, found)?;
        } else if let Ok(name) = path.strip_prefix(root) {
            found.push(name.display().to_string());
        }
    }
    Ok(())
}

pub(super) fn failed(path: &Path) -> impl Fn(std::io::Error) -> StepError {
    let path = path.display().to_string();
    move |error| StepError(format!("{path}: {error}"))
}
