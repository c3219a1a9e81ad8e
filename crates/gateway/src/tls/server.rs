//! Builds the rustls configurations for client and upstream connections.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::files::{CaBundle, KeyPair};
use super::timed_roots::TimedServerVerifier;
use crate::config::TlsVersion;

/// aws-lc with the cipher suites in the order of Go, AES-128 first, as in kube-apiserver.
fn provider() -> Arc<CryptoProvider> {
    use aws_lc_rs::cipher_suite as suite;
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            suite::TLS13_AES_128_GCM_SHA256,
            suite::TLS13_AES_256_GCM_SHA384,
            suite::TLS13_CHACHA20_POLY1305_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    })
}

/// Whether the cryptography is a validated FIPS module, and only approved algorithms are on.
pub fn is_fips() -> bool {
    provider().fips()
}

/// The TLS configuration of the listener. Client certificates are requested with `requested_cas` as
/// hints; if it is empty, none are requested.
pub fn server_config(
    key_pair: &KeyPair,
    requested_cas: &[&CaBundle],
    min_version: TlsVersion,
) -> Result<ServerConfig, rustls::Error> {
    let provider = provider();
    let versions: &[&SupportedProtocolVersion] = match min_version {
        TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        TlsVersion::Tls13 => &[&rustls::version::TLS13],
    };
    let builder =
        ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
    let builder = if requested_cas.is_empty() {
        builder.with_no_client_auth()
    } else {
        let hints = requested_cas
            .iter()
            .flat_map(|ca| ca.roots.subjects())
            .collect();
        builder.with_client_cert_verifier(Arc::new(RequestOnlyVerifier {
            hints,
            algorithms: provider.signature_verification_algorithms,
        }))
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(
        CertifiedKey::clone(&key_pair.certified),
    )));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // The server chooses in the order above.
    config.ignore_client_order = true;
    // A new ticketer, so that sessions with other files cannot be resumed with these.
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    // rustls sends two tickets by default; clients use one.
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// The TLS configuration of connections to servers. Their certificates are verified by the CAs of
/// `bundle` that are valid at that time.
pub fn client_config(
    bundle: &CaBundle,
    identity: Option<&KeyPair>,
) -> Result<ClientConfig, rustls::Error> {
    let verifier = TimedServerVerifier::new(bundle)
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Ok(match identity {
        None => builder.with_no_client_auth(),
        Some(key_pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(
            CertifiedKey::clone(&key_pair.certified),
        ))),
    })
}

/// Requests a certificate and verifies that the client has the key; `authn` verifies the
/// certificate. kube-apiserver does the same: a client with an unknown certificate may still have a
/// valid token.
#[derive(Debug)]
struct RequestOnlyVerifier {
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for RequestOnlyVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
