//! A tree of small files.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::pattern::Pattern;

/// Files in one directory.
const FILES_PER_DIRECTORY: u32 = 100;
/// File sizes are below this, and vary: a prime step yields most of them.
const MAX_FILE_BYTES: u64 = 4096;
const FILE_SIZE_STEP_BYTES: u64 = 2027;

/// Writes this many files, a hundred in each directory.
pub(super) fn write(root: &Path, files: u32) -> Result<()> {
    for number in 0..files {
        let directory = root.join(format!("d{}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        let bytes = u64::from(number) * FILE_SIZE_STEP_BYTES % MAX_FILE_BYTES;
        let contents = Pattern::default().next(bytes).unwrap_or_default();
        fs::write(directory.join(format!("f{number}")), contents)?;
    }
    Ok(())
}

/// The copy has to contain the same files with the same bytes, and no others.
pub(super) fn compare(original: &Path, copy: &Path) -> Result<()> {
    let (names, copied) = (listed(original)?, listed(copy)?);
    ensure!(
        names == copied,
        "{} has other names than {}: {} missing, {} too many",
        copy.display(),
        original.display(),
        names.difference(&copied).count(),
        copied.difference(&names).count()
    );
    for name in names {
        let (original_path, copy_path) = (original.join(&name), copy.join(&name));
        if original_path.is_dir() {
            compare(&original_path, &copy_path)?;
            continue;
        }
        let copied = fs::read(&copy_path).with_context(|| copy_path.display().to_string())?;
        ensure!(
            fs::read(&original_path)? == copied,
            "{} differs",
            original_path.display()
        );
    }
    Ok(())
}

fn listed(directory: &Path) -> Result<BTreeSet<OsString>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let names = entries.map(|entry| Ok(entry?.file_name()));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_dir::ScratchDir;

    #[test]
    fn a_copy_with_a_missing_extra_or_changed_file_differs() {
        let scratch = ScratchDir::create().unwrap();
        let [one, other] = ["one", "other"].map(|name| scratch.path(name));
        write(&one, 250).unwrap();
        write(&other, 250).unwrap();
        compare(&one, &other).unwrap();
        fs::write(other.join("d1/more"), "").unwrap();
        assert!(compare(&one, &other).is_err());
        fs::remove_file(other.join("d1/more")).unwrap();
        fs::write(other.join("d2/f249"), "x").unwrap();
        assert!(compare(&one, &other).is_err());
        fs::remove_file(other.join("d2/f249")).unwrap();
        assert!(compare(&one, &other).is_err());
    }
}
