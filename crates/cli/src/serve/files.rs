//! The files of flags: read once before the start, so that errors are reported with the flag and
//! not by the first client.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use skewbridge_gateway::tls::files::{
    self, CaBundle, FileError, KeyPairFiles, PemContent, PemError,
};

use super::diagnostics::Diagnostics;
use crate::flag_values::Parsed;

/// The largest YAML file: enough for thousands of peers, not for a wrong path such as a device
/// or a log.
const MAX_DOCUMENT_BYTES: u64 = 1024 * 1024;

/// A flag and its value.
pub(crate) type FlagValue<'a> = (&'static str, Option<&'a str>);

impl Diagnostics {
    /// A CA bundle, if one was given.
    pub(crate) fn ca(&mut self, (flag, path): FlagValue<'_>) -> Option<(PathBuf, CaBundle)> {
        let path = PathBuf::from(path?);
        match files::load_ca(&path) {
            Ok(bundle) => {
                if let Some(validity_error) = bundle.validity_error(SystemTime::now()) {
                    self.warning(flag, Some(&path), validity_error.to_string());
                }
                for subject in bundle.non_ca_subjects() {
                    let message = format!("is not a CA certificate ({subject})");
                    self.warning(flag, Some(&path), message);
                }
                Some((path, bundle))
            }
            Err(wrong) => {
                let message = match wrong.problem {
                    // There is no second flag that it could be swapped with.
                    PemError::NoCertificate(PemContent::PrivateKey) => {
                        "holds no PEM certificate, but a private key; give the certificate, \
                         often the .crt beside it"
                            .to_owned()
                    }
                    problem => problem.to_string(),
                };
                self.problem(flag, Some(&path), message);
                None
            }
        }
    }

    /// A certificate and its key, both or neither.
    pub(crate) fn key_pair(
        &mut self,
        cert: FlagValue<'_>,
        key: FlagValue<'_>,
    ) -> Option<KeyPairFiles> {
        let files = match (cert.1, key.1) {
            (Some(cert), Some(key)) => KeyPairFiles {
                cert: cert.into(),
                key: key.into(),
            },
            (None, None) => return None,
            (Some(_), None) => {
                self.problem(key.0, None, format!("required with {}", cert.0));
                return None;
            }
            (None, Some(_)) => {
                self.problem(cert.0, None, format!("required with {}", key.0));
                return None;
            }
        };
        let problems = match files.load() {
            Ok(pair) => {
                if let Some(validity_error) = pair.validity_error(SystemTime::now()) {
                    self.warning(cert.0, Some(&files.cert), validity_error.to_string());
                }
                return Some(files);
            }
            Err(first) => match files.problems() {
                // The file was corrected meanwhile, but the first read counts.
                none if none.is_empty() => vec![first],
                problems => problems,
            },
        };
        let blamed = match problems.as_slice() {
            [only] if is_of_cert(only, &files) => vec![cert.0],
            [_] => vec![key.0],
            // One of each file, the certificate's first.
            _ => vec![cert.0, key.0],
        };
        for (flag, wrong) in blamed.into_iter().zip(&problems) {
            self.problem(flag, Some(&wrong.path), wrong.problem.to_string());
        }
        None
    }
}

/// Whether the only problem of two files is about the certificate. Both paths may be the same,
/// so the path counts only if the problem itself does not show it.
fn is_of_cert(wrong: &FileError, files: &KeyPairFiles) -> bool {
    match wrong.problem {
        PemError::NoCertificate(_) | PemError::MalformedCertificate { .. } => true,
        PemError::NoKey(_)
        | PemError::EncryptedKey
        | PemError::UnusableKey(_)
        | PemError::KeyMismatch { .. } => false,
        _ => wrong.path == files.cert,
    }
}

/// A YAML document.
pub(crate) fn yaml<T: DeserializeOwned>(path: &Path) -> Parsed<T> {
    parse_yaml(&text(path)?)
}

/// The text of a YAML document.
pub(crate) fn text(path: &Path) -> Parsed<String> {
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "no such file; correct the path, or create the file".into(),
        _ => format!("cannot be read: {error}"),
    };
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_DOCUMENT_BYTES + 1).read_to_string(&mut text))
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err("is larger than 1 MiB; correct the path".into());
    }
    if text.trim().is_empty() {
        return Err("is empty".into());
    }
    Ok(text)
}

/// The same from memory.
pub(crate) fn parse_yaml<T: DeserializeOwned>(text: &str) -> Parsed<T> {
    serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())
}
