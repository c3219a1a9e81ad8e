//! Files of a flag that are read again when they change.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LoadError;
use crate::config::KeyPairFiles;
use crate::metrics::Metrics;
use crate::signatures::keys::SignatureKeys;
use crate::tls::files::{CaBundle, FileError, Fingerprint, KeyPair, load_ca};

/// Files are read at this interval even if they seem unchanged, for file systems with coarse
/// timestamps.
const READ_INTERVAL: Duration = Duration::from_mins(1);

/// The value of one file, or of two files that belong together.
pub(super) struct WatchedFiles<T> {
    pub(super) flag: &'static str,
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, FileError> + Send>,
    pub(super) value: T,
    stamp: Stamp,
    read_at: Instant,
    /// The last failure, so that each is logged once.
    last_problem: Option<FileError>,
}

impl WatchedFiles<CaBundle> {
    pub(super) fn ca(flag: &'static str, path: &Path) -> Result<Self, LoadError> {
        let path = path.to_owned();
        Self::new(flag, vec![path.clone()], move || load_ca(&path))
    }
}

impl WatchedFiles<KeyPair> {
    pub(super) fn key_pair(flag: &'static str, files: &KeyPairFiles) -> Result<Self, LoadError> {
        let files = files.clone();
        let paths = vec![files.cert.clone(), files.key.clone()];
        Self::new(flag, paths, move || files.load())
    }
}

impl<T: Reloadable> WatchedFiles<T> {
    pub(super) fn new(
        flag: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, FileError> + Send + 'static,
    ) -> Result<Self, LoadError> {
        // Before reading, so that the next check detects a change in between.
        let stamp = stamp(&paths);
        Ok(Self {
            value: load().map_err(|problem| LoadError::File { flag, problem })?,
            load: Box::new(load),
            flag,
            paths,
            stamp,
            read_at: Instant::now(),
            last_problem: None,
        })
    }

    /// The file of a CA bundle, or the certificates of a key pair.
    pub(super) fn first_path(&self) -> Option<&Path> {
        self.paths.first().map(PathBuf::as_path)
    }

    /// Reloads the value. Returns whether it has changed.
    pub(super) fn refresh(&mut self, metrics: &Metrics) -> bool {
        let stamp = stamp(&self.paths);
        if stamp == self.stamp && self.read_at.elapsed() < READ_INTERVAL {
            return false;
        }
        self.stamp = stamp;
        self.read_at = Instant::now();
        match (self.load)() {
            Ok(value) => {
                let was_invalid = self.last_problem.take().is_some();
                let changed = value.fingerprint() != self.value.fingerprint();
                self.value = value;
                if was_invalid && !changed {
                    tracing::info!(flag = self.flag, paths = ?self.paths, "the file is valid again and unchanged");
                }
                if changed {
                    metrics.reloaded(self.flag);
                    tracing::info!(flag = self.flag, paths = ?self.paths, "file reloaded");
                }
                changed
            }
            Err(problem) => {
                if self.last_problem.as_ref() != Some(&problem) {
                    metrics.reload_failed(self.flag);
                    tracing::error!(flag = self.flag, %problem, "the new file cannot be used; the old one stays in use");
                    self.last_problem = Some(problem);
                }
                false
            }
        }
    }
}

/// Reloads the files of a flag, if it is set. Returns whether they have changed.
pub(super) fn refresh<T: Reloadable>(
    watched: &mut Option<WatchedFiles<T>>,
    metrics: &Metrics,
) -> bool {
    watched
        .as_mut()
        .is_some_and(|watched| watched.refresh(metrics))
}

/// Detects a change of a file: device, inode, size and modification time, after resolving symlinks.
type Stamp = Vec<Option<(u64, u64, u64, i64, i64)>>;

pub(super) trait Reloadable {
    fn fingerprint(&self) -> Fingerprint;
}

impl Reloadable for KeyPair {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Reloadable for CaBundle {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Reloadable for Arc<SignatureKeys> {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

fn stamp(paths: &[PathBuf]) -> Stamp {
    paths
        .iter()
        .map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((
                meta.dev(),
                meta.ino(),
                meta.size(),
                meta.mtime(),
                meta.mtime_nsec(),
            ))
        })
        .collect()
}
