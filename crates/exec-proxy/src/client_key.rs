//! Keys for client certificates in the TLS handshake with the cluster. A key may be in a file, in
//! a hardware token or in a service on the network.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::ResolvesClientCert;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme, SupportedProtocolVersion};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Signs TLS handshakes with a key that need not be in memory.
///
/// Both methods may block, for example until the user touches the token: handshakes with such a
/// key run on threads of their own.
pub trait ClientKey: fmt::Debug + Send + Sync + 'static {
    /// The certificate with its intermediates, the leaf first, and the signature schemes of its
    /// key. Called for each handshake, so it may change.
    fn certificate(&self) -> Result<Certificate, KeyError>;

    /// Signs the message (not its digest) with one of [`Certificate::schemes`]. ECDSA signatures
    /// are in DER, as in TLS.
    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError>;
}

/// A certificate without its key.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// In DER, the leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The signature schemes of its key, the preferred one first.
    pub schemes: Vec<SignatureScheme>,
    /// The algorithm of the key.
    pub algorithm: SignatureAlgorithm,
}

/// Why nothing was signed, as a message for the user. Contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(String);

impl KeyError {
    /// An error with this message.
    pub fn new(cause: impl Into<String>) -> Self {
        Self(cause.into())
    }
}

/// A [`ClientKey`] in one handshake. It records the error of the key, which rustls does not
/// return to the caller of the handshake.
#[derive(Debug)]
pub(crate) struct HandshakeKey {
    key: Arc<dyn ClientKey>,
    /// Requested from the key once.
    certificate: std::sync::OnceLock<Result<Certificate, KeyError>>,
    failure: std::sync::Mutex<Option<KeyError>>,
    /// The expiry of the certificate that was sent.
    expires: std::sync::OnceLock<SystemTime>,
}

impl HandshakeKey {
    pub(crate) fn new(key: Arc<dyn ClientKey>) -> Arc<Self> {
        Arc::new(Self {
            key,
            certificate: std::sync::OnceLock::new(),
            failure: std::sync::Mutex::new(None),
            expires: std::sync::OnceLock::new(),
        })
    }

    /// The TLS versions that the key supports. May block.
    pub(crate) fn versions(&self) -> Versions {
        match self.certificate() {
            Ok(certificate) => versions(&certificate.schemes),
            // The server may not request a certificate.
            Err(_) => rustls::DEFAULT_VERSIONS,
        }
    }

    fn certificate(&self) -> &Result<Certificate, KeyError> {
        (self.certificate).get_or_init(|| self.key.certificate())
    }

    /// The expiry of the certificate that was sent in the handshake; `None` if the server did
    /// not request one.
    pub(crate) fn expires(&self) -> Option<SystemTime> {
        self.expires.get().copied()
    }

    /// The error of the key in the handshake.
    pub(crate) fn failure(&self) -> Option<KeyError> {
        self.lock().take()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<KeyError>> {
        // No code panics while it holds this lock.
        self.failure
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// TLS versions, in rustls's form.
pub(crate) type Versions = &'static [&'static SupportedProtocolVersion];

static TLS12: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];

/// TLS 1.3 has no signatures with PKCS#1 padding (RFC 8446, 4.2.3), and a client that has offered
/// TLS 1.3 cannot downgrade during the handshake. Some tokens support no other padding.
fn versions(schemes: &[SignatureScheme]) -> Versions {
    let is_pkcs1 = |scheme: &SignatureScheme| {
        matches!(
            *scheme,
            SignatureScheme::RSA_PKCS1_SHA1
                | SignatureScheme::RSA_PKCS1_SHA256
                | SignatureScheme::RSA_PKCS1_SHA384
                | SignatureScheme::RSA_PKCS1_SHA512
        )
    };
    if !schemes.is_empty() && schemes.iter().all(is_pkcs1) {
        &TLS12
    } else {
        rustls::DEFAULT_VERSIONS
    }
}

/// Passes a [`HandshakeKey`] to rustls.
#[derive(Debug)]
pub(crate) struct ClientKeyResolver(pub(crate) Arc<HandshakeKey>);

impl ResolvesClientCert for ClientKeyResolver {
    fn resolve(&self, _: &[&[u8]], offered: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let certificate = match self.0.certificate() {
            Ok(certificate) => certificate.clone(),
            Err(error) => {
                *self.0.lock() = Some(error.clone());
                return None;
            }
        };
        if !(certificate.schemes.iter()).any(|scheme| offered.contains(scheme)) {
            let cause = "the server accepts none of the signatures that the key can make";
            *self.0.lock() = Some(KeyError::new(cause));
            return None;
        }
        if let Some(expires) = certificate.chain.first().and_then(expiry) {
            let _ = self.0.expires.set(expires);
        }
        Some(Arc::new(CertifiedKey::new(
            certificate.chain,
            Arc::new(ExternalSigningKey {
                key: self.0.clone(),
                schemes: certificate.schemes,
                algorithm: certificate.algorithm,
            }),
        )))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// When a certificate expires; `None` if it cannot be parsed.
fn expiry(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let seconds = certificate.validity().not_after.timestamp();
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

#[derive(Debug)]
struct ExternalSigningKey {
    key: Arc<HandshakeKey>,
    schemes: Vec<SignatureScheme>,
    algorithm: SignatureAlgorithm,
}

impl SigningKey for ExternalSigningKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = self
            .schemes
            .iter()
            .find(|scheme| offered.contains(scheme))?;
        Some(Box::new(ExternalSigner {
            key: self.key.clone(),
            scheme: *scheme,
        }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

#[derive(Debug)]
struct ExternalSigner {
    key: Arc<HandshakeKey>,
    scheme: SignatureScheme,
}

impl Signer for ExternalSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.key.key.sign(self.scheme, message).map_err(|error| {
            let tls_error = rustls::Error::General(error.to_string());
            *self.key.lock() = Some(error);
            tls_error
        })
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{Ca, Validity};

    use super::*;

    #[test]
    fn a_key_without_pss_is_used_with_tls_1_2_only() {
        use SignatureScheme as Scheme;
        let rows: [(&[Scheme], bool); 5] = [
            (&[Scheme::RSA_PKCS1_SHA256, Scheme::RSA_PKCS1_SHA512], false),
            (&[Scheme::RSA_PSS_SHA256, Scheme::RSA_PKCS1_SHA256], true),
            (&[Scheme::ECDSA_NISTP384_SHA384], true),
            (&[Scheme::ED25519], true),
            (&[], true),
        ];
        for (schemes, expected) in rows {
            let offered = versions(schemes);
            let has_tls13 = offered.contains(&&rustls::version::TLS13);
            assert_eq!(has_tls13, expected, "{schemes:?}");
            assert!(offered.contains(&&rustls::version::TLS12), "{schemes:?}");
        }
    }

    #[test]
    fn the_expiry_of_a_certificate_is_parsed() {
        let ca = Ca::new("users");
        let now = SystemTime::now();
        let of = |validity| expiry(&ca.client_valid("jane", &[], validity).chain_der[0]).unwrap();
        assert!(of(Validity::Current) > now);
        assert!(of(Validity::Expired) < now);
        assert_eq!(expiry(&CertificateDer::from(vec![1, 2, 3])), None);
    }
}
