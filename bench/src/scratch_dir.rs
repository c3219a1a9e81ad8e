//! A fresh directory for configurations, certificates and logs of one run.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// Removed with its contents on drop.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    pub(crate) fn create() -> Result<Self> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let name = format!("skewbridge-bench-{}-{nanos}", process::id());
        let path = std::env::temp_dir().join(name);
        // Not recursive: an existing directory, possibly another user's, is an error.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, contents).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Whether root runs this program: nginx would then run its worker as another user, which
    /// cannot read the directory.
    pub(crate) fn owned_by_root(&self) -> Result<bool> {
        Ok(fs::metadata(&self.path)?.uid() == 0)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_is_removed() {
        let scratch = ScratchDir::create().unwrap();
        let file = scratch.write("a/b/c", "x").unwrap();
        let root = scratch.root().to_owned();
        assert!(file.exists());
        drop(scratch);
        assert!(!root.exists());
    }
}
