//! The files that a kubeconfig refers to: certificates, keys and tokens.

use std::io::Read as _;
use std::path::Path;

use zeroize::Zeroizing;

use super::PemSource;
use crate::Secret;
use crate::error::Error;

/// The largest certificate, key or token file.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

impl PemSource {
    /// The content: inline, or read from the file.
    pub fn read(&self) -> Result<Secret, Error> {
        match self {
            Self::Data(data) => Ok(data.clone()),
            Self::File(path) => read_secret_file(path),
        }
    }
}

/// Reads a file that contains a secret.
pub(crate) fn read_secret_file(path: &Path) -> Result<Secret, Error> {
    let invalid = |cause: String| Error::File {
        path: path.to_owned(),
        cause,
    };
    let mut bytes = Zeroizing::new(Vec::new());
    let mut read = || {
        let file = std::fs::File::open(path)?;
        let length = file.metadata().map_or(0, |it| it.len()).min(MAX_FILE_BYTES);
        // Reserves the whole size: a buffer that grows leaves copies of secrets behind.
        bytes.reserve_exact(usize::try_from(length).unwrap_or_default() + 1);
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)
    };
    read().map_err(|error| invalid(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(invalid("is larger than 1 MiB; correct the path".to_owned()));
    }
    Ok(Secret::new(std::mem::take(&mut *bytes)))
}
