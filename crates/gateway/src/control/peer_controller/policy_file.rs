//! `--state-dir`: the admission policies that not all servers enforce, in a file that survives a
//! restart.
//!
//! A file that cannot be read is ignored: it must not prevent the start.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use skewbridge_private_files::replace_file;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::admission_guard::PolicyMatches;

/// The file in the directory.
const FILE: &str = "admission-policies.json";

/// Larger than any file that is written: 16 kinds with 2,000 names of up to 253 bytes each.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// The pause after a failed write.
const SAVE_BACKOFF: Duration = Duration::from_secs(10);

/// What is stored about a kind of policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredKind {
    pub(super) version: String,
    /// The number of objects.
    pub(super) objects: usize,
    pub(super) matches: PolicyMatches,
}

/// The stored kinds by resource.
type StoredKinds = BTreeMap<String, StoredKind>;

/// The file in which this bridge stores policies.
pub(super) struct PolicyFile {
    directory: PathBuf,
    saved: StoredKinds,
    /// The outcome of the write in progress.
    pending_write: Option<oneshot::Receiver<io::Result<()>>>,
    next_save: Instant,
    /// The last write has failed.
    has_failed: bool,
}

impl PolicyFile {
    /// The file in this directory, which exists.
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            saved: StoredKinds::new(),
            pending_write: None,
            next_save: Instant::now(),
            has_failed: false,
        }
    }

    /// What an earlier process has stored.
    pub(super) fn read(&self) -> StoredKinds {
        let path = self.directory.join(FILE);
        match read(&path) {
            Ok(kinds) => kinds,
            Err(error) if error.kind() == io::ErrorKind::NotFound => StoredKinds::new(),
            Err(error) => {
                tracing::warn!(flag = "--state-dir", file = %path.display(), %error, "stored admission policies are ignored");
                StoredKinds::new()
            }
        }
    }

    /// Stores this if it has changed: one write at a time, on a thread that may block.
    pub(super) fn save(&mut self, kinds: StoredKinds, now: Instant) {
        if let Some(pending_write) = &mut self.pending_write {
            match pending_write.try_recv() {
                Err(TryRecvError::Empty) => return,
                Ok(Err(error)) => {
                    tracing::warn!(flag = "--state-dir", %error, "admission policies cannot be stored");
                    self.has_failed = true;
                    self.next_save = now + SAVE_BACKOFF;
                }
                Ok(Ok(())) | Err(TryRecvError::Closed) => self.has_failed = false,
            }
            self.pending_write = None;
        }
        if now < self.next_save || (self.saved == kinds && !self.has_failed) {
            return;
        }
        self.saved.clone_from(&kinds);
        let directory: Arc<Path> = self.directory.as_path().into();
        let (done, outcome) = oneshot::channel();
        self.pending_write = Some(outcome);
        tokio::task::spawn_blocking(move || {
            let _ = done.send(write(&directory, &kinds));
        });
    }
}

fn read(path: &Path) -> io::Result<StoredKinds> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}

/// Replaces the file atomically. With several values of `--upstream` there is one writer for each; all
/// know the same policies, so the last one counts.
fn write(directory: &Path, kinds: &StoredKinds) -> io::Result<()> {
    let bytes = serde_json::to_vec(kinds).map_err(io::Error::other)?;
    replace_file(&directory.join(FILE), &bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use skewbridge_testkit::ScratchDir;

    use super::*;
    use crate::admission_guard::MatchRule;

    fn kinds() -> StoredKinds {
        let rules = vec![MatchRule {
            operations: vec!["CREATE".to_owned()],
            resources: vec!["pods".to_owned()],
        }];
        let kind = |objects, matches| StoredKind {
            version: "v1".to_owned(),
            objects,
            matches,
        };
        StoredKinds::from([
            ("a".to_owned(), kind(2, PolicyMatches::Rules(rules))),
            ("b".to_owned(), kind(1, PolicyMatches::AnyWrite)),
        ])
    }

    #[test]
    fn policies_are_kept_in_a_private_file() {
        let dir = ScratchDir::new();
        let file = PolicyFile::new(dir.path());
        assert_eq!(file.read(), StoredKinds::new());
        write(dir.path(), &kinds()).unwrap();
        assert_eq!(file.read(), kinds());
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_ignored() {
        let dir = ScratchDir::new();
        for content in ["", "[]", "{\"a\":{\"version\":\"v1\"}}"] {
            fs::write(dir.path().join(FILE), content).unwrap();
            assert_eq!(PolicyFile::new(dir.path()).read(), StoredKinds::new());
        }
    }
}
