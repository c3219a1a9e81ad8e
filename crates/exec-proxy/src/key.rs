//! Keys that prove who the user is in the TLS handshake with the cluster, and may
//! be anywhere: in a file, in a token, behind a network.

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
/// Both methods may block, for a second or for a touch of the user: handshakes
/// run on threads of their own.
pub trait ClientKey: fmt::Debug + Send + Sync + 'static {
    /// The certificate and its intermediates, the leaf first, and what its key can
    /// sign with. Asked for each handshake, so it may change.
    fn certificate(&self) -> Result<Certificate, KeyError>;

    /// Signs the message (not its digest) by one of [`Certificate::schemes`]. ECDSA
    /// signatures are in DER, as TLS has them.
    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError>;
}

/// A certificate whose key is elsewhere.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// In DER, the leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// What its key can sign with, the best first.
    pub schemes: Vec<SignatureScheme>,
    /// Of what kind the key is.
    pub algorithm: SignatureAlgorithm,
}

/// Why nothing was signed, in words for the user. Without secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(String);

impl KeyError {
    /// In these words.
    pub fn new(cause: impl Into<String>) -> Self {
        Self(cause.into())
    }
}

/// Gives rustls a [`ClientKey`], and keeps what went wrong for whoever tells the
/// user: rustls has no place for it.
#[derive(Debug)]
pub(crate) struct Bridge {
    key: Arc<dyn ClientKey>,
    /// Asked for once.
    certificate: std::sync::OnceLock<Result<Certificate, KeyError>>,
    failure: std::sync::Mutex<Option<KeyError>>,
    /// Until when the certificate is valid that was shown.
    expires: std::sync::OnceLock<SystemTime>,
}

impl Bridge {
    pub(crate) fn new(key: Arc<dyn ClientKey>) -> Arc<Self> {
        Arc::new(Self {
            key,
            certificate: std::sync::OnceLock::new(),
            failure: std::sync::Mutex::new(None),
            expires: std::sync::OnceLock::new(),
        })
    }

    /// In which versions a handshake may be done. May block.
    pub(crate) fn versions(&self) -> Versions {
        match self.certificate() {
            Ok(certificate) => versions(&certificate.schemes),
            // It may be that the server asks for none.
            Err(_) => rustls::DEFAULT_VERSIONS,
        }
    }

    fn certificate(&self) -> &Result<Certificate, KeyError> {
        (self.certificate).get_or_init(|| self.key.certificate())
    }

    /// Until when the certificate is valid that was shown in the handshake that used
    /// this; none if the server did not ask for one.
    pub(crate) fn expires(&self) -> Option<SystemTime> {
        self.expires.get().copied()
    }

    /// What went wrong in the handshake that used this.
    pub(crate) fn failure(&self) -> Option<KeyError> {
        self.lock().take()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<KeyError>> {
        // Nothing that panics is done under this lock.
        self.failure
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Versions of TLS, as rustls has them.
pub(crate) type Versions = &'static [&'static SupportedProtocolVersion];

static TLS12: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];

/// TLS 1.3 has no place for RSA with PKCS#1 padding (RFC 8446, 4.2.3), and whoever has
/// offered it cannot go back in the middle of a handshake. Some tokens know nothing else.
fn versions(schemes: &[SignatureScheme]) -> Versions {
    let is_old = |scheme: &SignatureScheme| {
        matches!(
            *scheme,
            SignatureScheme::RSA_PKCS1_SHA1
                | SignatureScheme::RSA_PKCS1_SHA256
                | SignatureScheme::RSA_PKCS1_SHA384
                | SignatureScheme::RSA_PKCS1_SHA512
        )
    };
    if !schemes.is_empty() && schemes.iter().all(is_old) {
        &TLS12
    } else {
        rustls::DEFAULT_VERSIONS
    }
}

/// For rustls, which wants to own it.
#[derive(Debug)]
pub(crate) struct Resolver(pub(crate) Arc<Bridge>);

impl ResolvesClientCert for Resolver {
    fn resolve(&self, _: &[&[u8]], offered: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let certificate = match self.0.certificate() {
            Ok(certificate) => certificate.clone(),
            Err(error) => {
                *self.0.lock() = Some(error.clone());
                return None;
            }
        };
        if !(certificate.schemes.iter()).any(|scheme| offered.contains(scheme)) {
            let cause = "the server takes none of the signatures that the key can make";
            *self.0.lock() = Some(KeyError::new(cause));
            return None;
        }
        if let Some(expires) = certificate.chain.first().and_then(expires) {
            let _ = self.0.expires.set(expires);
        }
        Some(Arc::new(CertifiedKey::new(
            certificate.chain,
            Arc::new(Elsewhere {
                bridge: self.0.clone(),
                schemes: certificate.schemes,
                algorithm: certificate.algorithm,
            }),
        )))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// When a certificate runs out; none if it is none.
fn expires(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let seconds = certificate.validity().not_after.timestamp();
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

#[derive(Debug)]
struct Elsewhere {
    bridge: Arc<Bridge>,
    schemes: Vec<SignatureScheme>,
    algorithm: SignatureAlgorithm,
}

impl SigningKey for Elsewhere {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = self
            .schemes
            .iter()
            .find(|scheme| offered.contains(scheme))?;
        Some(Box::new(OneSignature {
            bridge: self.bridge.clone(),
            scheme: *scheme,
        }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

#[derive(Debug)]
struct OneSignature {
    bridge: Arc<Bridge>,
    scheme: SignatureScheme,
}

impl Signer for OneSignature {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.bridge.key.sign(self.scheme, message).map_err(|error| {
            let told = rustls::Error::General(error.to_string());
            *self.bridge.lock() = Some(error);
            told
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
    fn a_key_without_pss_is_for_tls_1_2_alone() {
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
            let is_new = offered.contains(&&rustls::version::TLS13);
            assert_eq!(is_new, expected, "{schemes:?}");
            assert!(offered.contains(&&rustls::version::TLS12), "{schemes:?}");
        }
    }

    #[test]
    fn a_certificate_says_when_it_runs_out() {
        let ca = Ca::new("users");
        let now = SystemTime::now();
        let of = |validity| expires(&ca.client_valid("jane", &[], validity).chain_der[0]).unwrap();
        assert!(of(Validity::Current) > now);
        assert!(of(Validity::Expired) < now);
        assert_eq!(expires(&CertificateDer::from(vec![1, 2, 3])), None);
    }
}
