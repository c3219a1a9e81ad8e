//! Whether an open file is the one at a path.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether the path still leads to this open file. Another process may have removed or replaced
/// it.
pub(crate) fn is_same_file(file: &File, path: &Path) -> bool {
    (file.metadata().ok())
        .zip(fs::symlink_metadata(path).ok())
        .is_some_and(|(opened, current)| {
            (opened.dev(), opened.ino()) == (current.dev(), current.ino())
        })
}
