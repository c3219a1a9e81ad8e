//! `--state-dir`: the served records of other servers, in files that survive a restart.
//!
//! There is one file per server under `served/`. A file that cannot be read is ignored: it must
//! not prevent the start.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use skewbridge_peer_directory::served_record::MAX_ENCODED_BYTES;
use skewbridge_peer_directory::served_record::MAX_RECORDS;
use skewbridge_peer_directory::{Identity, ServedRecord};

/// The subdirectory of the records.
const RECORDS_DIR: &str = "served";

/// The file that is being written. No server identity begins with a dot.
const TEMPORARY_FILE: &str = ".new";

/// The directory in which this bridge stores served records.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    served: PathBuf,
}

impl StateDir {
    /// Opens the directory, creates it if it does not exist, and checks that it is writable.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let served = path.join(RECORDS_DIR);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&served)?;
        let state = Self { served };
        state.write_temporary(b"")?;
        fs::remove_file(state.served.join(TEMPORARY_FILE))?;
        Ok(state)
    }

    /// All records that can be read.
    pub(crate) fn read(&self) -> Vec<ServedRecord> {
        let entries = match fs::read_dir(&self.served) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(flag = "--state-dir", path = %self.served.display(), %error, "stored records cannot be listed");
                return Vec::new();
            }
        };
        let mut records = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            if records.len() == MAX_RECORDS {
                tracing::warn!(flag = "--state-dir", path = %self.served.display(), "more than {MAX_RECORDS} stored records: the others are ignored");
                break;
            }
            match read(&entry.path(), name) {
                Ok(record) => records.push(record),
                Err(problem) => {
                    tracing::warn!(flag = "--state-dir", file = %entry.path().display(), %problem, "a stored record is ignored");
                }
            }
        }
        records
    }

    /// Replaces the record of a server atomically.
    pub(crate) fn write(&self, record: &ServedRecord) -> io::Result<()> {
        let bytes = record.encode().map_err(io::Error::other)?;
        self.write_temporary(&bytes)?;
        let file = self.file(&record.identity);
        fs::rename(self.served.join(TEMPORARY_FILE), file)
    }

    /// Removes the record of a server.
    pub(crate) fn remove(&self, identity: &Identity) -> io::Result<()> {
        match fs::remove_file(self.file(identity)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// An identity is a DNS subdomain, so it is neither a path nor a hidden file.
    fn file(&self, identity: &Identity) -> PathBuf {
        self.served.join(identity.as_str())
    }

    fn write_temporary(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.served.join(TEMPORARY_FILE))?;
        file.write_all(bytes)?;
        file.sync_all()
    }
}

fn read(path: &Path, name: &str) -> Result<ServedRecord, String> {
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_ENCODED_BYTES).unwrap_or(u64::MAX);
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    let record = ServedRecord::decode(&bytes).map_err(|error| error.to_string())?;
    if record.identity.as_str() != name {
        return Err(format!("the file is the record of {}", record.identity));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;
    use std::time::SystemTime;

    use skewbridge_discovery::Index;
    use skewbridge_peer_directory::ServedApis;
    use skewbridge_testkit::ScratchDir;

    use super::*;

    fn record(name: &str) -> ServedRecord {
        let served = ServedApis {
            index: Arc::new(Index::new(&[])),
            documents: [Arc::default(), Arc::default()],
            etags: [None, None],
            version: "1.36.4".parse().ok(),
            by_bridge: false,
        };
        let identity = Identity::named(name).unwrap();
        ServedRecord::new(identity, &served, |_, _| false, SystemTime::UNIX_EPOCH)
    }

    fn names(state: &StateDir) -> Vec<String> {
        let records = state.read();
        let mut names: Vec<_> = records.iter().map(|it| it.identity.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn records_are_kept_until_they_are_removed() {
        let dir = ScratchDir::new();
        let path = dir.path().join("made/by/it");
        let state = StateDir::open(&path).unwrap();
        assert_eq!(names(&state), [""; 0]);
        state.write(&record("apiserver-a")).unwrap();
        state.write(&record("apiserver-b")).unwrap();
        state.write(&record("apiserver-a")).unwrap();
        let state = StateDir::open(&path).unwrap();
        assert_eq!(names(&state), ["apiserver-a", "apiserver-b"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path.join("served")), 0o700);
        assert_eq!(mode(&path.join("served/apiserver-a")), 0o600);
        state.remove(&record("apiserver-a").identity).unwrap();
        state.remove(&record("apiserver-a").identity).unwrap();
        assert_eq!(names(&state), ["apiserver-b"]);
    }

    #[test]
    fn files_that_are_not_records_are_ignored() {
        let dir = ScratchDir::new();
        let state = StateDir::open(dir.path()).unwrap();
        let served = dir.path().join("served");
        let bytes = record("apiserver-a").encode().unwrap();
        for (name, content) in [
            ("apiserver-empty", &b""[..]),
            ("apiserver-cut", &bytes[..bytes.len() / 2]),
            ("apiserver-other", &bytes),
            ("apiserver-large", &vec![b'S'; MAX_ENCODED_BYTES + 1]),
            (".new", b"cut"),
        ] {
            fs::write(served.join(name), content).unwrap();
        }
        fs::create_dir(served.join("apiserver-directory")).unwrap();
        state.write(&record("apiserver-good")).unwrap();
        assert_eq!(names(&state), ["apiserver-good"]);
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_an_error() {
        let dir = ScratchDir::new();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(StateDir::open(&dir.path().join("file")).is_err());
    }
}
