//! TLS configurations: server verification and client certificates.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct,
    Error as TlsError, InconsistentKeys, RootCertStore, SignatureScheme, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use skewbridge_k8s_api::pem::PrivateKey;
use tokio_rustls::TlsConnector;

use crate::Secret;
use crate::error::Error;

/// Where systems keep their trusted CAs: Go's list.
const SYSTEM_BUNDLES: [&str; 7] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/etc/ssl/cert.pem",
];

/// How a server's certificate is verified.
pub(crate) enum ServerTrust<'a> {
    /// By these CAs, in PEM.
    Pem(&'a [u8]),
    /// By these CAs, in PEM, for any server name: they sign for one server only.
    PemForAnyName(&'a [u8]),
    /// By the system's CAs.
    System,
    /// By these CAs, in PEM, and the system's CAs, if it has any.
    SystemAndPem(&'a [u8]),
    /// The certificate is not verified.
    SkipVerification,
}

/// A certificate chain with its key, both in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) chain: Secret,
    pub(crate) key: Secret,
}

/// The start of a TLS configuration: server verification and TLS versions. Errors include
/// advice.
pub(crate) fn builder(
    trust: &ServerTrust<'_>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| error.to_string())?;
    Ok(match trust {
        ServerTrust::Pem(pem) => builder.with_root_certificates(roots_from_pem(pem)?),
        ServerTrust::PemForAnyName(pem) => {
            let roots = Arc::new(roots_from_pem(pem)?);
            let inner = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
                .build()
                .map_err(|error| error.to_string())?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServerName(inner)))
        }
        ServerTrust::System => builder.with_root_certificates(system_roots()?),
        ServerTrust::SystemAndPem(pem) => {
            let mut roots = roots_from_pem(pem)?;
            if let Ok(system) = system_roots() {
                roots.extend(system.roots);
            }
            builder.with_root_certificates(roots)
        }
        ServerTrust::SkipVerification => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(NoCertificateVerification(provider))),
    })
}

const UNUSABLE_CERTIFICATE: &str = "client-certificate or client-key cannot be used";

/// The plaintext of a TLS 1.3 record that is 16 KiB in total with its 5-byte header. rustls's
/// default makes it 22 bytes more, so that four pages become five.
const MAX_FRAGMENT_BYTES: usize = 16 * 1024 - 17;

/// The TLS configuration of a connection. Errors include advice.
pub(crate) fn config(
    trust: &ServerTrust<'_>,
    certificate: Option<&Certificate>,
) -> Result<Arc<ClientConfig>, String> {
    let builder = builder(trust, rustls::DEFAULT_VERSIONS)?;
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(Certificate { chain, key }) => {
            let chain = certificates(chain.expose())
                .filter(|chain| !chain.is_empty())
                .ok_or("client-certificate holds no certificate in PEM")?;
            let key = PrivateKey::from_pem(key.expose())
                .ok_or("client-key holds no private key in PEM, or an encrypted one")?;
            let signing = aws_lc_rs::sign::any_supported_type(&key.as_der());
            drop(key);
            let certified_key =
                CertifiedKey::new(chain, signing.map_err(|_| UNUSABLE_CERTIFICATE)?);
            match certified_key.keys_match() {
                Ok(()) | Err(TlsError::InconsistentKeys(InconsistentKeys::Unknown)) => {}
                Err(TlsError::InconsistentKeys(_)) => {
                    return Err("client-key does not belong to client-certificate".to_owned());
                }
                Err(_) => return Err(UNUSABLE_CERTIFICATE.to_owned()),
            }
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified_key)))
        }
    };
    config.max_fragment_size = Some(MAX_FRAGMENT_BYTES);
    config.alpn_protocols.clone_from(&ALPN_HTTP1);
    Ok(Arc::new(config))
}

/// HTTP/1.1 alone, as an ALPN list.
pub(crate) static ALPN_HTTP1: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| vec![b"http/1.1".to_vec()]);

/// The same configuration with these ALPN protocols.
pub(crate) fn connector(config: &Arc<ClientConfig>, alpn: &[Vec<u8>]) -> TlsConnector {
    if config.alpn_protocols == alpn {
        return TlsConnector::from(config.clone());
    }
    // The copy shares keys, trust and sessions.
    let mut config = ClientConfig::clone(config);
    config.alpn_protocols = alpn.to_vec();
    TlsConnector::from(Arc::new(config))
}

/// The error of a failed handshake with this server.
pub(crate) fn handshake_error(server: String, error: &std::io::Error) -> Error {
    let cause = explain(error);
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(
            TlsError::AlertReceived(AlertDescription::NoApplicationProtocol)
            | TlsError::NoApplicationProtocol,
        ) => Error::NoCommonProtocol { server, cause },
        _ => Error::Tls { server, cause },
    }
}

/// Describes a failed handshake in Go's words.
pub(crate) fn explain(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(TlsError::InvalidCertificate(cause)) = inner else {
        return format!("TLS: {error}");
    };
    match cause {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "x509: certificate signed by unknown authority; is certificate-authority that of \
             this cluster?"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "x509: certificate has expired; is the clock right?".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "x509: certificate is not yet valid; is the clock right?".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("x509: {cause}; tls-server-name sets the expected name")
        }
        other => format!("x509: {other}"),
    }
}

fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .ok()
}

fn roots_from_pem(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = certificates(pem).ok_or("certificate-authority is not PEM")?;
    let (added, _) = roots.add_parsable_certificates(found);
    if added == 0 {
        return Err("certificate-authority holds no certificate in PEM".to_owned());
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, String> {
    let file = std::env::var("SSL_CERT_FILE").ok();
    let bundles = file.iter().map(String::as_str).chain(SYSTEM_BUNDLES);
    for bundle in bundles.map(Path::new) {
        let Ok(pem) = std::fs::read(bundle) else {
            continue;
        };
        let mut roots = RootCertStore::empty();
        let found = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        let (added, _) = roots.add_parsable_certificates(found);
        if added > 0 {
            return Ok(roots);
        }
    }
    Err(
        "it has no certificate-authority, and this system has no list of CAs; give one, or set \
         $SSL_CERT_FILE"
            .to_owned(),
    )
}

/// Accepts every certificate (`insecure-skip-tls-verify`) if the server has its key.
#[derive(Debug)]
struct NoCertificateVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoCertificateVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts certificates of certain CAs for any server name.
#[derive(Debug)]
struct AnyServerName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyServerName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let verified =
            self.0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is checked after everything else has been verified.
            Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
