//! Field sets in `--state-dir`: one file for each version and set of APIs, under `fields/`. A file
//! that cannot be read is ignored; the fields are fetched again. The modification time of a file is the
//! last time at which a server was known to have these fields.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use skewbridge_field_sets::ServerFields;
use skewbridge_private_files::{ensure_private_dir, replace_file};

/// The subdirectory of the field sets.
const FIELDS_DIR: &str = "fields";

/// A field set has less than 1 MiB.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Files that are kept: those of more versions than a cluster passes in a year.
const MAX_FILES: usize = 32;

/// A field set that an earlier process has stored.
#[derive(Debug)]
pub(in super::super) struct StoredFields {
    pub(super) fields: ServerFields,
    /// When a server was last known to have these fields.
    pub(super) last_used: SystemTime,
}

/// The directory of field sets. Its functions block.
#[derive(Debug, Clone)]
pub(in super::super) struct CacheDir(PathBuf);

impl CacheDir {
    /// The directory is created when the first field set is stored.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join(FIELDS_DIR))
    }

    /// All sets, by the names of their files.
    pub(super) fn read_all(&self) -> HashMap<String, StoredFields> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        // Files that are being written begin with a dot.
        let names = names.filter(|name| !name.starts_with('.')).take(MAX_FILES);
        names
            .filter_map(|name| Some((name.clone(), self.read_stored(&name)?)))
            .collect()
    }

    fn read_stored(&self, name: &str) -> Option<StoredFields> {
        let metadata = fs::metadata(self.0.join(name)).ok()?;
        Some(StoredFields {
            fields: self.read(name)?,
            last_used: metadata.modified().ok()?,
        })
    }

    pub(super) fn read(&self, name: &str) -> Option<ServerFields> {
        let file = File::open(self.0.join(name)).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        ServerFields::from_json(&bytes).ok()
    }

    /// Stores that a server has these fields now.
    pub(super) fn note_use(&self, name: &str) {
        let path = self.0.join(name);
        let noted = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        // Fields that could not be stored have been logged.
        if let Err(error) = noted
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(flag = "--state-dir", path = %path.display(), %error, "the last use of the fields of a version is not stored");
        }
    }

    pub(super) fn write(&self, name: &str, fields: &ServerFields) {
        if let Err(error) = self.try_write(name, &fields.to_json()) {
            tracing::warn!(flag = "--state-dir", path = %self.0.join(name).display(), %error, "the fields of a version are not stored");
        }
    }

    fn try_write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        ensure_private_dir(&self.0)?;
        self.remove_oldest()?;
        replace_file(&self.0.join(name), bytes)
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.0)?.flatten() {
            files.push((entry.metadata()?.modified()?, entry.path()));
        }
        files.sort();
        let excess = (files.len() + 1).saturating_sub(MAX_FILES);
        for (_, path) in files.iter().take(excess) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_are_removed() {
        let dir = skewbridge_testkit::ScratchDir::new();
        let cache = CacheDir::new(dir.path());
        for number in 0..MAX_FILES + 3 {
            cache.write(&format!("{number:03}.json"), &ServerFields::default());
        }
        let count = fs::read_dir(dir.path().join(FIELDS_DIR)).unwrap().count();
        assert_eq!(count, MAX_FILES);
        assert!(cache.read("034.json").is_some());
        assert!(cache.read("000.json").is_none());
    }

    #[test]
    fn the_last_use_of_a_file_is_stored() {
        let dir = skewbridge_testkit::ScratchDir::new();
        let cache = CacheDir::new(dir.path());
        cache.write("a.json", &ServerFields::default());
        let long_ago = SystemTime::now() - std::time::Duration::from_hours(1);
        let file = File::open(dir.path().join(FIELDS_DIR).join("a.json")).unwrap();
        file.set_modified(long_ago).unwrap();
        assert_eq!(cache.read_all()["a.json"].last_used, long_ago);
        cache.note_use("a.json");
        assert!(cache.read_all()["a.json"].last_used > long_ago);
        cache.note_use("none.json");
        assert_eq!(cache.read_all().len(), 1);
    }

    #[test]
    fn a_file_that_is_no_field_set_is_ignored() {
        let dir = skewbridge_testkit::ScratchDir::new();
        let cache = CacheDir::new(dir.path());
        fs::create_dir(dir.path().join(FIELDS_DIR)).unwrap();
        fs::write(dir.path().join(FIELDS_DIR).join("a.json"), "{").unwrap();
        assert!(cache.read("a.json").is_none());
        assert!(cache.read("none.json").is_none());
    }
}
