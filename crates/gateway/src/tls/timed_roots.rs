//! Verification of certificates by CAs that are valid at that time.
//!
//! rustls treats a trust anchor as valid at any time. Go, and therefore kube-apiserver, also checks
//! the dates of the root: an expired CA authenticates nothing. The verifiers here use the CAs that
//! are valid at the time of the verification.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::CaBundle;

/// The CAs of a bundle, each with the time in which it is valid.
#[derive(Debug, Clone)]
pub struct TimedRoots(Vec<TimedRoot>);

#[derive(Debug, Clone)]
struct TimedRoot {
    certificate: CertificateDer<'static>,
    /// Seconds since 1970, both inclusive as in RFC 5280, 4.1.2.5.
    not_before: u64,
    not_after: u64,
}

impl TimedRoot {
    fn is_valid(&self, now: u64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// A period in which the same CAs are valid: seconds since 1970, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    from: u64,
    /// The last second.
    pub until: u64,
}

impl TimedRoots {
    /// The CAs of a bundle.
    pub fn of(bundle: &CaBundle) -> Self {
        let timed = |der: &CertificateDer<'static>| {
            let (_, certificate) = X509Certificate::from_der(der).ok()?;
            let validity = certificate.validity();
            // A start before 1970 is 0; a CA that ended before 1970 is never valid.
            let not_after = u64::try_from(validity.not_after.timestamp()).ok()?;
            Some(TimedRoot {
                certificate: der.clone(),
                not_before: u64::try_from(validity.not_before.timestamp()).unwrap_or(0),
                not_after,
            })
        };
        Self(bundle.certificates.iter().filter_map(timed).collect())
    }

    /// The time around this moment in which the set of valid CAs does not change.
    pub fn span(&self, now: u64) -> Span {
        let mut span = Span {
            from: 0,
            until: u64::MAX,
        };
        for root in &self.0 {
            // The first second of the next state.
            for boundary in [root.not_before, root.not_after.saturating_add(1)] {
                if boundary <= now {
                    span.from = span.from.max(boundary);
                } else {
                    span.until = span.until.min(boundary - 1);
                }
            }
        }
        span
    }

    /// The CAs that are valid at this time.
    fn valid(&self, now: u64) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        for root in self.0.iter().filter(|root| root.is_valid(now)) {
            // They were accepted when the bundle was read.
            let _ = roots.add(root.certificate.clone());
        }
        roots
    }
}

/// Verifiers by the CAs that are valid now, built again when that set changes.
#[derive(Debug)]
struct TimedVerifier<V: ?Sized> {
    roots: TimedRoots,
    build: fn(Arc<RootCertStore>) -> Result<Arc<V>, VerifierBuilderError>,
    /// Uses all CAs at any time: verifies signatures, and distinguishes an expired CA from an
    /// unknown one.
    timeless: Arc<V>,
    current: Mutex<Option<CachedVerifier<V>>>,
}

#[derive(Debug)]
struct CachedVerifier<V: ?Sized> {
    span: Span,
    /// None: no CA is valid.
    verifier: Option<Arc<V>>,
}

impl<V: ?Sized> TimedVerifier<V> {
    fn new(
        bundle: &CaBundle,
        build: fn(Arc<RootCertStore>) -> Result<Arc<V>, VerifierBuilderError>,
    ) -> Result<Self, VerifierBuilderError> {
        Ok(Self {
            roots: TimedRoots::of(bundle),
            build,
            timeless: build(bundle.roots.clone())?,
            current: Mutex::new(None),
        })
    }

    fn at(&self, now: u64) -> Option<Arc<V>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current
            && (current.span.from..=current.span.until).contains(&now)
        {
            return current.verifier.clone();
        }
        let roots = self.roots.valid(now);
        if current.is_some() {
            let (valid, all) = (roots.len(), self.roots.0.len());
            tracing::warn!(valid, all, "a CA has expired, or has become valid");
        }
        let verifier = (self.build)(Arc::new(roots)).ok();
        *current = Some(CachedVerifier {
            span: self.roots.span(now),
            verifier: verifier.clone(),
        });
        verifier
    }

    /// Verifies by the CAs that are valid now. If only an expired CA would match, the error names
    /// so.
    fn verify<T>(
        &self,
        now: UnixTime,
        verify: impl Fn(&V) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let verified = match self.at(now.as_secs()) {
            Some(verifier) => verify(&verifier),
            None => Err(unknown),
        };
        verified.map_err(|error| match verify(&self.timeless) {
            Ok(_) => Error::General(
                "the CA that issued the certificate has expired or is not valid yet".to_owned(),
            ),
            Err(_) => error,
        })
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Verifies the certificates of clients.
#[derive(Debug)]
pub struct TimedClientVerifier(TimedVerifier<dyn ClientCertVerifier>);

impl TimedClientVerifier {
    /// By the CAs of this bundle.
    pub fn new(bundle: &CaBundle) -> Result<Self, VerifierBuilderError> {
        TimedVerifier::new(bundle, |roots| {
            WebPkiClientVerifier::builder_with_provider(roots, provider()).build()
        })
        .map(Self)
    }
}

impl ClientCertVerifier for TimedClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.timeless.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify(now, |verifier| {
            verifier.verify_client_cert(end_entity, intermediates, now)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.timeless.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.timeless.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.timeless.supported_verify_schemes()
    }
}

/// Verifies the certificates of servers: upstream, peers, etcd, an egress proxy.
#[derive(Debug)]
pub struct TimedServerVerifier(TimedVerifier<WebPkiServerVerifier>);

impl TimedServerVerifier {
    /// By the CAs of this bundle.
    pub fn new(bundle: &CaBundle) -> Result<Self, VerifierBuilderError> {
        TimedVerifier::new(bundle, |roots| {
            WebPkiServerVerifier::builder_with_provider(roots, provider()).build()
        })
        .map(Self)
    }
}

impl ServerCertVerifier for TimedServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.verify(now, |verifier| {
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.timeless.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.timeless.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.timeless.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use skewbridge_testkit::{Ca, Leaf, ScratchDir, Validity};

    use super::*;
    use crate::tls::files::load_ca;

    /// The last valid second of the CAs here: the first second of 2033.
    const CA_NOT_AFTER_SECONDS: u64 = 1_988_150_400;

    fn bundle(cas: &[&Ca]) -> CaBundle {
        let pem: String = cas.iter().map(|ca| ca.pem()).collect();
        load_ca(&ScratchDir::new().write("ca.crt", pem)).unwrap()
    }

    fn ending(name: &str) -> Ca {
        Ca::new(name)
            .renewed_until(SystemTime::UNIX_EPOCH + Duration::from_secs(CA_NOT_AFTER_SECONDS))
    }

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    fn client(verifier: &TimedClientVerifier, leaf: &Leaf, now: u64) -> Result<(), String> {
        let (leaf, intermediates) = leaf.chain_der.split_first().unwrap();
        let outcome = verifier.verify_client_cert(leaf, intermediates, at(now));
        outcome.map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_ca_authenticates_from_its_first_second_to_its_last() {
        let ca = ending("users");
        let verifier = TimedClientVerifier::new(&bundle(&[&ca])).unwrap();
        let below = ca.intermediate("issuing").client("alice", &[]);
        for leaf in [ca.client("alice", &[]), below] {
            // The clock may also be set back.
            for (now, valid) in [
                (CA_NOT_AFTER_SECONDS - 1, true),
                (CA_NOT_AFTER_SECONDS, true),
                (CA_NOT_AFTER_SECONDS + 1, false),
                (CA_NOT_AFTER_SECONDS + 100, false),
                (CA_NOT_AFTER_SECONDS, true),
                (900_000_000, false),
                (CA_NOT_AFTER_SECONDS, true),
            ] {
                let outcome = client(&verifier, &leaf, now);
                assert_eq!(outcome.is_ok(), valid, "{now}: {outcome:?}");
                if let Err(cause) = outcome {
                    assert!(cause.contains("has expired or is not valid yet"), "{cause}");
                }
            }
        }
    }

    #[test]
    fn other_cas_of_the_bundle_stay_valid() {
        let (old, new) = (ending("users"), Ca::new("users"));
        let verifier = TimedClientVerifier::new(&bundle(&[&old, &new])).unwrap();
        assert!(
            client(
                &verifier,
                &new.client("alice", &[]),
                CA_NOT_AFTER_SECONDS + 1
            )
            .is_ok()
        );
        assert!(
            client(
                &verifier,
                &old.client("alice", &[]),
                CA_NOT_AFTER_SECONDS + 1
            )
            .is_err()
        );
        let unknown = Ca::new("users").client("alice", &[]);
        let cause = client(&verifier, &unknown, CA_NOT_AFTER_SECONDS + 1).unwrap_err();
        assert!(!cause.contains("has expired"), "{cause}");
    }

    #[test]
    fn a_renewed_certificate_of_the_same_ca_is_used() {
        let old = ending("users");
        let leaf = old.client("alice", &[]);
        let renewed = old.renewed(Validity::Current);
        let verifier = TimedClientVerifier::new(&bundle(&[&old, &renewed])).unwrap();
        assert!(client(&verifier, &leaf, CA_NOT_AFTER_SECONDS + 1).is_ok());
    }

    #[test]
    fn servers_are_verified_by_valid_cas_only() {
        let ca = ending("serving");
        let verifier = TimedServerVerifier::new(&bundle(&[&ca])).unwrap();
        let leaf = ca.server(&["localhost"]);
        let name = ServerName::try_from("localhost").unwrap();
        let verify = |now| {
            let (leaf, rest) = leaf.chain_der.split_first().unwrap();
            verifier.verify_server_cert(leaf, rest, &name, &[], at(now))
        };
        assert!(verify(CA_NOT_AFTER_SECONDS).is_ok());
        assert!(verify(CA_NOT_AFTER_SECONDS + 1).is_err());
    }

    #[test]
    fn the_valid_cas_change_at_known_seconds() {
        let (ending, future) = (ending("a"), Ca::new("b").renewed(Validity::NotYetValid));
        let roots = TimedRoots::of(&bundle(&[&ending, &future]));
        let begin = roots.0[1].not_before;
        let rows = [
            (
                CA_NOT_AFTER_SECONDS,
                Span {
                    from: roots.0[0].not_before,
                    until: CA_NOT_AFTER_SECONDS,
                },
            ),
            (
                CA_NOT_AFTER_SECONDS + 1,
                Span {
                    from: CA_NOT_AFTER_SECONDS + 1,
                    until: begin - 1,
                },
            ),
            (
                begin,
                Span {
                    from: begin,
                    until: roots.0[1].not_after,
                },
            ),
        ];
        for (now, span) in rows {
            assert_eq!(roots.span(now), span, "{now}");
        }
        assert_eq!(roots.valid(CA_NOT_AFTER_SECONDS + 1).len(), 0);
    }
}
