//! Certificates, keys and CA bundles, read from files.
//!
//! Every way in which a file can be wrong has its own [`Problem`], so that the
//! command line before the start and the watcher after it say the same thing
//! about the same mistake: what is wrong, and what to do.

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

/// The largest file that is read: the CA bundle of a whole operating system is
/// a quarter of it, so a larger one is a wrong path (a device, a log).
pub const MAX_FILE_SIZE: u64 = 1024 * 1024;

/// A certificate chain with the private key of its leaf.
#[derive(Clone)]
pub struct KeyPair {
    /// What rustls presents.
    pub certified: Arc<CertifiedKey>,
    /// The first moment at which the leaf is valid.
    pub not_before: SystemTime,
    /// The last moment at which the leaf is valid.
    pub not_after: SystemTime,
    /// Of both files.
    pub fingerprint: Fingerprint,
}

/// Certificates that sign others.
#[derive(Clone)]
pub struct CaBundle {
    /// As they stand in the file.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The same, as trust anchors.
    pub roots: Arc<RootCertStore>,
    /// The first moment at which all of them are valid.
    pub not_before: SystemTime,
    /// The last moment at which all of them are valid.
    pub not_after: SystemTime,
    /// Of the file.
    pub fingerprint: Fingerprint,
}

/// Tells whether a file's bytes have changed since it was last read. It means
/// nothing outside this process, so it betrays nothing about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct FileProblem {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a file, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Nothing is there.
    #[error("no such file; correct the path, or create the file")]
    NotFound,
    /// It may not be read.
    #[error("permission denied; let the user that runs skewbridge read it")]
    PermissionDenied,
    /// It is a directory.
    #[error("is a directory; name the file in it")]
    Directory,
    /// It has no content.
    #[error("is empty; it must hold PEM certificates or a PEM private key")]
    Empty,
    /// It is larger than [`MAX_FILE_SIZE`].
    #[error("is larger than 1 MiB, which no certificate, key or CA bundle is; correct the path")]
    TooLarge,
    /// The system could not read it.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// PEM that is damaged.
    #[error("is not valid PEM: {0}; write the file again from its source")]
    MalformedPem(&'static str),
    /// No certificate is in it.
    #[error("holds no PEM certificate{}", hint_for_certificate(*.0))]
    NoCertificate(Found),
    /// No key is in it.
    #[error("holds no PEM private key{}", hint_for_key(*.0))]
    NoKey(Found),
    /// The key has a passphrase.
    #[error(
        "the private key is encrypted, and nobody is there to type its passphrase; \
         decrypt it with `openssl pkey -in ENCRYPTED -out DECRYPTED`"
    )]
    EncryptedKey,
    /// A key of a kind, or in a form, that cannot be used.
    #[error(
        "the private key cannot be used ({0}); use RSA of 2048 bits or more, ECDSA P-256, \
         P-384 or P-521, or Ed25519"
    )]
    UnusableKey(String),
    /// A file of keys for signatures that has no reading.
    #[error("{0}")]
    SignatureKeys(String),
    /// A certificate that is not one.
    #[error("certificate {number} in it cannot be read: {reason}")]
    MalformedCertificate {
        /// Its place in the file, from 1.
        number: usize,
        /// What the parser says.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the private key does not match the certificate in {}; give the two that were \
         issued together",
        cert.display()
    )]
    KeyMismatch {
        /// The certificate's file.
        cert: PathBuf,
    },
}

/// What a file holds in place of what was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
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

/// A certificate outside the time it is valid in. No reason not to start: it
/// is for clients to refuse, and the file may be replaced at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValidityError {
    /// It has ended.
    #[error("the certificate expired {} ago; renew it", Rough(*.0))]
    Expired(Duration),
    /// It has not begun.
    #[error("the certificate is not valid for another {}; check this machine's clock", Rough(*.0))]
    NotYet(Duration),
}

impl KeyPairFiles {
    /// Reads both files and checks that they belong together.
    pub fn load(&self) -> Result<KeyPair, FileProblem> {
        let (cert, key) = self.read()?;
        let first = self.parse(&cert, &key);
        if !matches!(&first, Err(problem) if matches!(problem.problem, Problem::KeyMismatch { .. }))
        {
            return first;
        }
        // Kubernetes swaps the whole directory at once: one file may have been
        // read before the swap and the other after it. A second look is enough.
        let (cert_again, key_again) = self.read()?;
        if (&cert, &key) == (&cert_again, &key_again) {
            return first;
        }
        self.parse(&cert_again, &key_again)
    }

    /// Everything that is wrong with the two files, each looked at for itself
    /// first: whoever corrects a command line wants to do it once.
    pub fn problems(&self) -> Vec<FileProblem> {
        let chain = read(&self.cert).and_then(|bytes| self.chain(&bytes));
        let key = read(&self.key).and_then(|bytes| self.signing_key(&bytes));
        match (chain, key) {
            (Ok(_), Ok(_)) => self.load().err().into_iter().collect(),
            (chain, key) => chain.err().into_iter().chain(key.err()).collect(),
        }
    }

    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), FileProblem> {
        Ok((read(&self.cert)?, read(&self.key)?))
    }

    fn parse(&self, cert: &[u8], key: &[u8]) -> Result<KeyPair, FileProblem> {
        let (chain, not_before, not_after) = self.chain(cert)?;
        let certified = CertifiedKey::new(chain, self.signing_key(key)?);
        match certified.keys_match() {
            Ok(()) => {}
            Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                let cert = self.cert.clone();
                return Err(in_file(&self.key)(Problem::KeyMismatch { cert }));
            }
            Err(error) => {
                let reason = reason(error);
                let problem = Problem::MalformedCertificate { number: 1, reason };
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

    /// The chain, and from when until when its leaf is valid.
    fn chain(&self, bytes: &[u8]) -> Result<(Chain, SystemTime, SystemTime), FileProblem> {
        let chain = certificates(bytes).map_err(in_file(&self.cert))?;
        let leaf = chain.get(..1).unwrap_or_default();
        let (not_before, not_after) = validity(leaf).map_err(in_file(&self.cert))?;
        Ok((chain, not_before, not_after))
    }

    fn signing_key(&self, bytes: &[u8]) -> Result<Arc<dyn SigningKey>, FileProblem> {
        let usable = |key| {
            aws_lc_rs::default_provider()
                .key_provider
                .load_private_key(key)
                .map_err(|error| Problem::UnusableKey(reason(error)))
        };
        private_key(bytes)
            .and_then(usable)
            .map_err(in_file(&self.key))
    }
}

type Chain = Vec<CertificateDer<'static>>;

impl KeyPair {
    /// What is wrong with using it at that moment, if anything is.
    pub fn untimely(&self, now: SystemTime) -> Option<ValidityError> {
        untimely(self.not_before, self.not_after, now)
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

/// Reads a CA bundle. One certificate that cannot be read spoils the file: a
/// bundle that silently lacks a CA is found out much later.
pub fn load_ca(path: &Path) -> Result<CaBundle, FileProblem> {
    let bytes = read(path)?;
    parse_ca(&bytes).map_err(in_file(path))
}

impl CaBundle {
    /// The subjects of those that say of themselves, or by saying nothing,
    /// that they sign no others: most likely the wrong file.
    pub fn not_cas(&self) -> Vec<String> {
        self.certificates
            .iter()
            .filter_map(|der| X509Certificate::from_der(der).ok())
            .filter(|(_, certificate)| !certificate.is_ca())
            .map(|(_, certificate)| certificate.subject().to_string())
            .collect()
    }

    /// What is wrong with using it at that moment, if anything is.
    pub fn untimely(&self, now: SystemTime) -> Option<ValidityError> {
        untimely(self.not_before, self.not_after, now)
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

fn untimely(
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

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileProblem> {
    read_bounded(path).map_err(in_file(path))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, Problem> {
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Problem::NotFound,
        ErrorKind::PermissionDenied => Problem::PermissionDenied,
        ErrorKind::IsADirectory => Problem::Directory,
        _ => Problem::Unreadable(error.to_string()),
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_SIZE + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    match bytes.len() as u64 {
        0 => Err(Problem::Empty),
        size if size > MAX_FILE_SIZE => Err(Problem::TooLarge),
        _ => Ok(bytes),
    }
}

fn in_file(path: &Path) -> impl Fn(Problem) -> FileProblem {
    move |problem| FileProblem {
        path: path.to_owned(),
        problem,
    }
}

fn parse_ca(bytes: &[u8]) -> Result<CaBundle, Problem> {
    let certificates = certificates(bytes)?;
    let (not_before, not_after) = validity(&certificates)?;
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        roots
            .add(certificate.clone())
            .map_err(|error| Problem::MalformedCertificate {
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

pub(crate) fn certificates(bytes: &[u8]) -> Result<Chain, Problem> {
    let mut certificates = Vec::new();
    let mut found = None;
    for (kind, der) in sections(bytes)? {
        match CertificateDer::from_pem(kind, der) {
            Some(certificate) => certificates.push(certificate),
            None => found = found.or(Some(kind)),
        }
    }
    if certificates.is_empty() {
        return Err(Problem::NoCertificate(Found::instead(found, bytes)));
    }
    Ok(certificates)
}

fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, Problem> {
    // The encrypted forms: a section of its own (PKCS #8), and a header inside
    // a plain one (OpenSSL's old form), which would only look like bad base64.
    const ENCRYPTED: [&[u8]; 2] = [
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----",
        b"Proc-Type: 4,ENCRYPTED",
    ];
    if ENCRYPTED.iter().any(|mark| contains(bytes, mark)) {
        return Err(Problem::EncryptedKey);
    }
    let mut found = None;
    for (kind, der) in sections(bytes)? {
        match PrivateKeyDer::from_pem(kind, der) {
            Some(key) => return Ok(key),
            None => found = found.or(Some(kind)),
        }
    }
    Err(Problem::NoKey(Found::instead(found, bytes)))
}

fn sections(bytes: &[u8]) -> Result<Vec<(SectionKind, Vec<u8>)>, Problem> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| {
            // The parser's own words quote the file; this one may be a key.
            Problem::MalformedPem(match error {
                pem::Error::MissingSectionEnd { .. } => "a section has no END line",
                pem::Error::IllegalSectionStart { .. } => "a BEGIN line is damaged",
                pem::Error::Base64Decode(_) => "a section is not base64",
                _ => "it cannot be parsed",
            })
        })
}

/// The time in which all of these are valid.
fn validity(certificates: &[CertificateDer<'_>]) -> Result<(SystemTime, SystemTime), Problem> {
    let (mut not_before, mut not_after) = (moment(0), moment(i64::MAX));
    for (index, der) in certificates.iter().enumerate() {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|error| Problem::MalformedCertificate {
                number: index + 1,
                reason: error.to_string(),
            })?;
        let validity = certificate.validity();
        not_before = not_before.max(moment(validity.not_before.timestamp()));
        not_after = not_after.min(moment(validity.not_after.timestamp()));
    }
    Ok((not_before, not_after))
}

/// Seconds since 1970 as a time; what no clock can show becomes the epoch or
/// the year 9999, after which no certificate can be dated.
fn moment(seconds: i64) -> SystemTime {
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

impl Found {
    fn instead(kind: Option<SectionKind>, bytes: &[u8]) -> Self {
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
            // A DER SEQUENCE of more than 255 bytes, as certificates and keys are.
            None if bytes.starts_with(&[0x30, 0x82]) => Self::Der,
            None => Self::NoPem,
        }
    }
}

fn hint_for_certificate(found: Found) -> &'static str {
    match found {
        Found::PrivateKey => ", but a private key; two files may be swapped",
        Found::Der => ", but binary DER; convert it with `openssl x509 -inform der`",
        Found::SigningRequest => ", but a signing request; have it signed first",
        Found::PublicKey => ", but a public key; give the certificate that holds it",
        Found::OtherPem => ", but PEM of another kind",
        Found::NoPem | Found::Certificate => "; it must have a line -----BEGIN CERTIFICATE-----",
    }
}

fn hint_for_key(found: Found) -> &'static str {
    match found {
        Found::Certificate => ", but a certificate; two files may be swapped",
        Found::Der => ", but binary DER; convert it with `openssl pkey -inform der`",
        Found::PublicKey => ", but a public key; give the private one",
        Found::SigningRequest => ", but a signing request; give the key that made it",
        Found::OtherPem => ", but PEM of another kind",
        Found::NoPem | Found::PrivateKey => "; it must have a line -----BEGIN PRIVATE KEY-----",
    }
}

/// A duration in its largest unit, which is all that a reader needs.
pub(crate) struct Rough(pub(crate) Duration);

impl fmt::Display for Rough {
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
