//! A TLS key in files, like those of a kubeconfig: for tests, and for migration to a better
//! place.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use skewbridge_exec_proxy::{Certificate, ClientKey, KeyError};
use skewbridge_k8s_api::pem::PrivateKey;

use crate::secret_file;

/// A certificate and its key in files. They are read for each handshake, so that they can be
/// replaced.
pub struct FileKey {
    certificate: PathBuf,
    key: PathBuf,
    /// The key of the handshake in progress.
    last: Mutex<Option<Arc<dyn SigningKey>>>,
}

/// Signature schemes of TLS in order of preference.
const SCHEMES: [SignatureScheme; 9] = [
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

impl FileKey {
    /// Both files are PEM; the certificate is followed by its intermediates. Errors in them are
    /// reported at once.
    pub fn new(certificate: PathBuf, key: PathBuf) -> Result<Self, KeyError> {
        let files = Self {
            certificate,
            key,
            last: Mutex::new(None),
        };
        files.certificate()?;
        Ok(files)
    }

    /// A certificate with its intermediates, in PEM. An error names the file.
    pub fn read_certificate(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
        let pem = secret_file::read(path)?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        chain.ok_or_else(|| format!("{}: there is no certificate in PEM", path.display()))
    }

    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, Arc<dyn SigningKey>), String> {
        let chain = Self::read_certificate(&self.certificate)?;
        let path = self.key.display();
        let pem = secret_file::read(&self.key)?;
        let key = PrivateKey::from_pem(&pem).ok_or_else(|| {
            format!("{path}: there is no private key in PEM, or an encrypted one")
        })?;
        let key = any_supported_type(&key.as_der());
        let key = key.map_err(|_| format!("{path}: this kind of key cannot be used"))?;
        let both = CertifiedKey::new(chain, key);
        match both.keys_match() {
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => Err(
                format!("{path} does not belong to {}", self.certificate.display()),
            ),
            _ => Ok((both.cert, both.key)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn SigningKey>>> {
        // No code that can panic runs under this lock.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientKey for FileKey {
    fn certificate(&self) -> Result<Certificate, KeyError> {
        let (chain, key) = self.read().map_err(KeyError::new)?;
        let schemes = SCHEMES.into_iter();
        let schemes = schemes.filter(|scheme| key.choose_scheme(&[*scheme]).is_some());
        let certificate = Certificate {
            chain,
            schemes: schemes.collect(),
            algorithm: key.algorithm(),
        };
        *self.lock() = Some(key);
        Ok(certificate)
    }

    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let key = self.lock().clone();
        let signer = key.and_then(|key| key.choose_scheme(&[scheme]));
        let signer = signer.ok_or_else(|| {
            KeyError::new(format!("{} was replaced just now", self.key.display()))
        })?;
        signer
            .sign(message)
            .map_err(|error| KeyError::new(format!("{}: {error}", self.key.display())))
    }
}

impl std::fmt::Debug for FileKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileKey")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{Ca, ScratchDir};

    use super::*;

    #[test]
    fn errors_name_the_file() {
        let dir = ScratchDir::new();
        let ca = Ca::new("users");
        let jane = ca.client("jane", &[]);
        let certificate = dir.write("jane.crt", &jane.cert_pem);
        let key = dir.write("jane.key", &jane.key_pem);
        FileKey::new(certificate.clone(), key.clone()).unwrap();
        let other = dir.write("joe.key", &ca.client("joe", &[]).key_pem);
        let empty = dir.write("empty", "");
        let rows = [
            (&certificate, &other, "joe.key does not belong to"),
            (&empty, &key, "empty: there is no certificate in PEM"),
            (
                &certificate,
                &empty,
                "empty: there is no private key in PEM",
            ),
            (&dir.path().join("none"), &key, "none: No such file"),
        ];
        for (certificate, key, expected) in rows {
            let error = FileKey::new(certificate.clone(), key.clone()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
