//! Reads files that contain secrets.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use zeroize::Zeroizing;

/// The largest file: larger than any key, certificate chain or list of headers.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The content of a file, zeroed when it is dropped. An error names the file.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let failed = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
    let file = File::open(path).map_err(|error| failed(&error))?;
    let length = file.metadata().map_or(0, |it| it.len());
    // Room for all of it: a buffer that grows leaves copies in memory.
    let room = usize::try_from(length.min(MAX_FILE_BYTES)).unwrap_or_default() + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(&error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(failed(&"it is longer than a megabyte"));
    }
    Ok(bytes)
}
