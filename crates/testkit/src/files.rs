//! Files in a directory of their own, removed after the test.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// A new directory that only this user can access, removed on drop.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
}

/// A directory laid out as the kubelet mounts a Secret or a `ConfigMap`: `NAME ->
/// ..data/NAME`, `..data -> ..REVISION`, the files in `..REVISION`. An update renames a new
/// `..data` over the old one, so that all files change atomically.
#[derive(Debug)]
pub struct KubeletStyleVolume {
    path: PathBuf,
    revision: u64,
}

impl ScratchDir {
    /// Creates the directory below the system's temporary directory.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("skewbridge-test-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Self { path },
                // Left behind by an earlier process with the same ID.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot make {}: {error}", path.display()),
            }
        }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in place and returns its path.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(name);
        fs::write(&path, contents).unwrap();
        path
    }

    /// Writes an executable file. Another process writes it: a concurrent fork of this
    /// process would hold the file open for writing, and such a file cannot be executed.
    pub fn write_program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        let written = Command::new("sh")
            .args(["-c", "printf %s \"$2\" > \"$1\" && chmod 700 \"$1\"", "sh"])
            .arg(&path)
            .arg(text)
            .status();
        assert!(written.unwrap().success(), "{}", path.display());
        path
    }

    /// Creates a volume with these files in the new subdirectory `name`.
    pub fn volume(&self, name: &str, files: &[(&str, &str)]) -> KubeletStyleVolume {
        KubeletStyleVolume::new(self.path.join(name), files)
    }
}

impl Default for ScratchDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl KubeletStyleVolume {
    /// Creates a volume with these files at `path`, which must not exist yet.
    pub fn new(path: impl Into<PathBuf>, files: &[(&str, &str)]) -> Self {
        let mut volume = Self {
            path: path.into(),
            revision: 0,
        };
        fs::create_dir(&volume.path).unwrap();
        volume.swap(files);
        volume
    }

    /// The mount path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path with which a program is configured.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Replaces all files atomically. Removed names lose their link, as with the kubelet.
    pub fn swap(&mut self, files: &[(&str, &str)]) {
        let data = self.path.join("..data");
        let old = fs::read_link(&data).ok();

        // The kubelet names revisions by time; the number makes the name unique.
        self.revision += 1;
        let new = format!("..2026_01_01_00_00_00.{:09}", self.revision);
        fs::create_dir(self.path.join(&new)).unwrap();
        for (name, contents) in files {
            fs::write(self.path.join(&new).join(name), contents).unwrap();
        }

        let staged = self.path.join("..data_tmp");
        symlink(&new, &staged).unwrap();
        fs::rename(&staged, &data).unwrap();

        self.link_names(files);
        if let Some(old) = old {
            fs::remove_dir_all(self.path.join(old)).unwrap();
        }
    }

    fn link_names(&self, files: &[(&str, &str)]) {
        for entry in fs::read_dir(&self.path).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            let name = name.to_str().unwrap();
            if !name.starts_with("..") && files.iter().all(|(kept, _)| *kept != name) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        for (name, _) in files {
            if fs::symlink_metadata(self.file(name)).is_err() {
                symlink(Path::new("..data").join(name), self.file(name)).unwrap();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_is_removed_after_the_test() {
        let dir = ScratchDir::new();
        let file = dir.write("token", "secret");
        assert_eq!(fs::read_to_string(&file).unwrap(), "secret");
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_volume_swaps_its_files_atomically() {
        let dir = ScratchDir::new();
        let mut volume = dir.volume("tls", &[("tls.crt", "one"), ("old", "x")]);
        let before = fs::read_link(volume.path().join("..data")).unwrap();
        volume.swap(&[("tls.crt", "two"), ("tls.key", "key")]);

        assert_eq!(
            fs::read_link(volume.file("tls.crt")).unwrap(),
            Path::new("..data/tls.crt")
        );
        assert_eq!(fs::read_to_string(volume.file("tls.crt")).unwrap(), "two");
        assert_eq!(fs::read_to_string(volume.file("tls.key")).unwrap(), "key");
        assert!(fs::symlink_metadata(volume.file("old")).is_err());
        assert!(!volume.path().join(before).exists());
    }
}
