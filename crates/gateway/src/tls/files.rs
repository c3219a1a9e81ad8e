//! Certificates, keys and CA bundles, read from files.
//!
//! Each kind of invalid file has its own [`PemError`], so that the command line before the start
//! and the reload after it report the same error text: what is wrong, and what to do.

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{Error as TlsError, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::{self, PemObject, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

pub use crate::config::KeyPairFiles;

/// The largest file that is read. The CA bundle of an operating system has a quarter of this size,
/// so a larger file is a wrong path, such as a device or a log.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A certificate chain with the private key of its leaf.
#[derive(Clone)]
pub struct KeyPair {
    /// The chain and the key for rustls.
    pub certified: Arc<CertifiedKey>,
    /// The first moment at which the leaf is valid.
    pub not_before: SystemTime,
    /// The last moment at which the leaf is valid.
    pub not_after: SystemTime,
    /// The fingerprint of both files.
    pub fingerprint: Fingerprint,
}

/// CA certificates.
#[derive(Clone)]
pub struct CaBundle {
    /// The certificates in the order of the file.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The same, as trust anchors.
    pub roots: Arc<RootCertStore>,
    /// The first moment at which all of them are valid.
    pub not_before: SystemTime,
    /// The last moment at which all of them are valid.
    pub not_after: SystemTime,
    /// The fingerprint of the file.
    pub fingerprint: Fingerprint,
}

/// Detects a change of the content of a file. It is a keyed hash with a key of this process, so it
/// discloses nothing about a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: PemError,
}

/// What is wrong with a file, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// The file does not exist.
    #[error("no such file; correct the path, or create the file")]
    NotFound,
    /// It may not be read.
    #[error("permission denied; give read permission to the user that runs skewbridge")]
    PermissionDenied,
    /// It is a directory.
    #[error("is a directory; name the file in it")]
    Directory,
    /// It has no content.
    #[error("is empty; it must hold PEM certificates or a PEM private key")]
    Empty,
    /// It is larger than [`MAX_FILE_BYTES`].
    #[error("is larger than 1 MiB, which no certificate, key or CA bundle is; correct the path")]
    TooLarge,
    /// The operating system could not read it.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// The PEM is damaged.
    #[error("is not valid PEM: {0}; write the file again from its source")]
    MalformedPem(&'static str),
    /// No certificate is in it.
    #[error("holds no PEM certificate{}", hint_for_certificate(*.0))]
    NoCertificate(PemContent),
    /// No key is in it.
    #[error("holds no PEM private key{}", hint_for_key(*.0))]
    NoKey(PemContent),
    /// The key has a passphrase.
    #[error(
        "the private key is encrypted, and skewbridge cannot prompt for its passphrase; \
         decrypt it with `openssl pkey -in ENCRYPTED -out DECRYPTED`"
    )]
    EncryptedKey,
    /// The algorithm or the encoding of the key is not supported.
    #[error(
        "the private key cannot be used ({0}); use RSA of 2048 bits or more, ECDSA P-256, \
         P-384 or P-521, or Ed25519"
    )]
    UnusableKey(String),
    /// A file of keys for signatures is not valid.
    #[error("{0}")]
    SignatureKeys(String),
    /// A certificate cannot be parsed.
    #[error("certificate {number} in it cannot be read: {reason}")]
    MalformedCertificate {
        /// Its place in the file, from 1.
        number: usize,
        /// The error of the parser.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the private key does not match the certificate in {}; use the two that were \
         issued together",
        cert.display()
    )]
    KeyMismatch {
        /// The certificate's file.
        cert: PathBuf,
    },
}

/// The content of a file that does not have the expected PEM section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PemContent {
    /// No PEM at all.
    NoPem,
    /// Binary DER.
    Der,
    /// A certificate.
    Certificate,
    /// A private key.
    PrivateKey,
    /// A certificate signing request.
    SigningRequest,
    /// A public key.
    PublicKey,
    /// Some other PEM.
    OtherPem,
}

/// A certificate outside of its validity period. The bridge starts nevertheless: clients reject the
/// certificate, and the file may be replaced at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValidityError {
    /// It has ended.
    #[error("the certificate expired {} ago; renew it", LargestUnit(*.0))]
    Expired(Duration),
    /// It has not begun.
    #[error("the certificate is not valid for another {}; check this machine's clock", LargestUnit(*.0))]
    NotYet(Duration),
}

impl KeyPairFiles {
    /// Reads both files and checks that they belong together.
    pub fn load(&self) -> Result<KeyPair, FileError> {
        let (cert, key) = self.read()?;
        let first = self.parse(&cert, &key);
        if !matches!(&first, Err(problem) if matches!(problem.problem, PemError::KeyMismatch { .. }))
        {
            return first;
        }
        // Kubernetes replaces the directory atomically: one file may have been read before the
        // swap and the other after it. One retry is enough.
        let (retry_cert, retry_key) = self.read()?;
        if (&cert, &key) == (&retry_cert, &retry_key) {
            return first;
        }
        self.parse(&retry_cert, &retry_key)
    }

    /// All problems of the two files. Each file is checked separately first, so that all problems
    /// are reported at once.
    pub fn problems(&self) -> Vec<FileError> {
        let chain = read(&self.cert).and_then(|bytes| self.chain(&bytes));
        let key = read(&self.key).and_then(|bytes| self.signing_key(&bytes));
        match (chain, key) {
            (Ok(_), Ok(_)) => self.load().err().into_iter().collect(),
            (chain, key) => chain.err().into_iter().chain(key.err()).collect(),
        }
    }

    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), FileError> {
        Ok((read(&self.cert)?, read(&self.key)?))
    }

    fn parse(&self, cert: &[u8], key: &[u8]) -> Result<KeyPair, FileError> {
        let (chain, not_before, not_after) = self.chain(cert)?;
        let certified = CertifiedKey::new(chain, self.signing_key(key)?);
        match certified.keys_match() {
            Ok(()) => {}
            Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                let cert = self.cert.clone();
                return Err(in_file(&self.key)(PemError::KeyMismatch { cert }));
            }
            Err(error) => {
                let reason = reason(error);
                let problem = PemError::MalformedCertificate { number: 1, reason };
                return Err(in_file(&self.cert)(problem));
            }
        }
        Ok(KeyPair {
            certified: Arc::new(certified),
            not_before,
            not_after,
            fingerprint: Fingerprint::of(&[cert, key]),
        })
    }

    /// The chain, and the validity period of its leaf.
    fn chain(&self, bytes: &[u8]) -> Result<(Chain, SystemTime, SystemTime), FileError> {
        let chain = certificates(bytes).map_err(in_file(&self.cert))?;
        let leaf = chain.get(..1).unwrap_or_default();
        let (not_before, not_after) = validity(leaf).map_err(in_file(&self.cert))?;
        Ok((chain, not_before, not_after))
    }

    fn signing_key(&self, bytes: &[u8]) -> Result<Arc<dyn SigningKey>, FileError> {
        let usable = |key| {
            aws_lc_rs::default_provider()
                .key_provider
                .load_private_key(key)
                .map_err(|error| PemError::UnusableKey(reason(error)))
        };
        private_key(bytes)
            .and_then(usable)
            .map_err(in_file(&self.key))
    }
}

type Chain = Vec<CertificateDer<'static>>;

impl KeyPair {
    /// The error if it is not valid at this time.
    pub fn validity_error(&self, now: SystemTime) -> Option<ValidityError> {
        validity_error(self.not_before, self.not_after, now)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair")
            .field("certificates", &self.certified.cert.len())
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// Reads a CA bundle. If one certificate cannot be parsed, the file is rejected: a CA that is missing
/// without an error would be detected much later.
pub fn load_ca(path: &Path) -> Result<CaBundle, FileError> {
    let bytes = read(path)?;
    parse_ca(&bytes).map_err(in_file(path))
}

impl CaBundle {
    /// The subjects of certificates without the CA flag: the file is most likely the wrong one.
    pub fn non_ca_subjects(&self) -> Vec<String> {
        self.certificates
            .iter()
            .filter_map(|der| X509Certificate::from_der(der).ok())
            .filter(|(_, certificate)| !certificate.is_ca())
            .map(|(_, certificate)| certificate.subject().to_string())
            .collect()
    }

    /// The error if it is not valid at this time.
    pub fn validity_error(&self, now: SystemTime) -> Option<ValidityError> {
        validity_error(self.not_before, self.not_after, now)
    }
}

impl fmt::Debug for CaBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaBundle")
            .field("certificates", &self.certificates.len())
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

fn validity_error(
    not_before: SystemTime,
    not_after: SystemTime,
    now: SystemTime,
) -> Option<ValidityError> {
    let since = |then: SystemTime, now: SystemTime| {
        now.duration_since(then)
            .ok()
            .filter(|elapsed| !elapsed.is_zero())
    };
    let expired = since(not_after, now).map(ValidityError::Expired);
    expired.or_else(|| since(now, not_before).map(ValidityError::NotYet))
}

impl Fingerprint {
    pub(crate) fn of(files: &[&[u8]]) -> Self {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(KEYS.hash_one(files))
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    read_bounded(path).map_err(in_file(path))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, PemError> {
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => PemError::NotFound,
        ErrorKind::PermissionDenied => PemError::PermissionDenied,
        ErrorKind::IsADirectory => PemError::Directory,
        _ => PemError::Unreadable(error.to_string()),
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    match bytes.len() as u64 {
        0 => Err(PemError::Empty),
        size if size > MAX_FILE_BYTES => Err(PemError::TooLarge),
        _ => Ok(bytes),
    }
}

fn in_file(path: &Path) -> impl Fn(PemError) -> FileError {
    move |problem| FileError {
        path: path.to_owned(),
        problem,
    }
}

/// The same of bytes that were read.
pub fn parse_ca(bytes: &[u8]) -> Result<CaBundle, PemError> {
    let certificates = certificates(bytes)?;
    let (not_before, not_after) = validity(&certificates)?;
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        roots
            .add(certificate.clone())
            .map_err(|error| PemError::MalformedCertificate {
                number: index + 1,
                reason: reason(error),
            })?;
    }
    Ok(CaBundle {
        certificates,
        roots: Arc::new(roots),
        not_before,
        not_after,
        fingerprint: Fingerprint::of(&[bytes]),
    })
}

pub(crate) fn certificates(bytes: &[u8]) -> Result<Chain, PemError> {
    let mut certificates = Vec::new();
    let mut found = None;
    for (kind, der) in sections(bytes)? {
        match CertificateDer::from_pem(kind, der) {
            Some(certificate) => certificates.push(certificate),
            None => found = found.or(Some(kind)),
        }
    }
    if certificates.is_empty() {
        return Err(PemError::NoCertificate(PemContent::detect(found, bytes)));
    }
    Ok(certificates)
}

fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    // The two encrypted formats: a separate section (PKCS #8), and a header inside a plain section
    // (the old format of OpenSSL), which would be reported as invalid base64.
    const ENCRYPTED: [&[u8]; 2] = [
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----",
        b"Proc-Type: 4,ENCRYPTED",
    ];
    if ENCRYPTED.iter().any(|mark| contains(bytes, mark)) {
        return Err(PemError::EncryptedKey);
    }
    let mut found = None;
    for (kind, der) in sections(bytes)? {
        match PrivateKeyDer::from_pem(kind, der) {
            Some(key) => return Ok(key),
            None => found = found.or(Some(kind)),
        }
    }
    Err(PemError::NoKey(PemContent::detect(found, bytes)))
}

fn sections(bytes: &[u8]) -> Result<Vec<(SectionKind, Vec<u8>)>, PemError> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| {
            // The error text of the parser quotes the file, which may be a key.
            PemError::MalformedPem(match error {
                pem::Error::MissingSectionEnd { .. } => "a section has no END line",
                pem::Error::IllegalSectionStart { .. } => "a BEGIN line is damaged",
                pem::Error::Base64Decode(_) => "a section is not base64",
                _ => "it cannot be parsed",
            })
        })
}

/// The period in which all of these certificates are valid.
pub fn validity(certificates: &[CertificateDer<'_>]) -> Result<(SystemTime, SystemTime), PemError> {
    let (mut not_before, mut not_after) = (system_time(0), system_time(i64::MAX));
    for (index, der) in certificates.iter().enumerate() {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|error| PemError::MalformedCertificate {
                number: index + 1,
                reason: error.to_string(),
            })?;
        let validity = certificate.validity();
        not_before = not_before.max(system_time(validity.not_before.timestamp()));
        not_after = not_after.min(system_time(validity.not_after.timestamp()));
    }
    Ok((not_before, not_after))
}

/// Seconds since 1970 as a time, clamped to the range from 1970 to the end of 9999, which is the
/// latest date of a certificate.
fn system_time(seconds: i64) -> SystemTime {
    const END_OF_9999: u64 = 253_402_300_799;
    let seconds = u64::try_from(seconds).unwrap_or(0).min(END_OF_9999);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}

fn reason(error: TlsError) -> String {
    match error {
        TlsError::General(text) => text,
        other => other.to_string(),
    }
}

impl PemContent {
    fn detect(kind: Option<SectionKind>, bytes: &[u8]) -> Self {
        match kind {
            Some(SectionKind::Certificate) => Self::Certificate,
            Some(
                SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey,
            ) => Self::PrivateKey,
            Some(SectionKind::Csr) => Self::SigningRequest,
            Some(SectionKind::PublicKey) => Self::PublicKey,
            Some(_) => Self::OtherPem,
            None if contains(bytes, b"-----BEGIN ENCRYPTED PRIVATE KEY-----") => Self::PrivateKey,
            None if contains(bytes, b"-----BEGIN ") => Self::OtherPem,
            // A DER SEQUENCE of more than 255 bytes: a certificate or a key.
            None if bytes.starts_with(&[0x30, 0x82]) => Self::Der,
            None => Self::NoPem,
        }
    }
}

fn hint_for_certificate(found: PemContent) -> &'static str {
    match found {
        PemContent::PrivateKey => ", but a private key; two files may be swapped",
        PemContent::Der => ", but binary DER; convert it with `openssl x509 -inform der`",
        PemContent::SigningRequest => ", but a signing request; have it signed first",
        PemContent::PublicKey => ", but a public key; use the certificate that contains it",
        PemContent::OtherPem => ", but PEM of another kind",
        PemContent::NoPem | PemContent::Certificate => {
            "; it must have a line -----BEGIN CERTIFICATE-----"
        }
    }
}

fn hint_for_key(found: PemContent) -> &'static str {
    match found {
        PemContent::Certificate => ", but a certificate; two files may be swapped",
        PemContent::Der => ", but binary DER; convert it with `openssl pkey -inform der`",
        PemContent::PublicKey => ", but a public key; use the private key",
        PemContent::SigningRequest => ", but a signing request; use the key that created it",
        PemContent::OtherPem => ", but PEM of another kind",
        PemContent::NoPem | PemContent::PrivateKey => {
            "; it must have a line -----BEGIN PRIVATE KEY-----"
        }
    }
}

/// Formats a duration in its largest unit.
pub struct LargestUnit(pub Duration);

impl fmt::Display for LargestUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.0.as_secs() {
            seconds @ 0..60 => (seconds, "second"),
            seconds @ 60..3600 => (seconds / 60, "minute"),
            seconds @ 3600..86_400 => (seconds / 3600, "hour"),
            seconds => (seconds / 86_400, "day"),
        };
        write!(f, "{count} {unit}{}", if count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests;
