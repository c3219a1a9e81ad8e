//! Mutual TLS between a plugin and its clients: a CA that exists as long as the process, the
//! plugin's server certificate and the certificates of its clients. All keys are in memory only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use skewbridge_k8s_api::secret::SecretString;
use zeroize::{Zeroize as _, Zeroizing};

use crate::Error;
use crate::forward::ProtocolOffer;

/// Both ends use the same clock, but it may be set back.
const CLOCK_SKEW: Duration = Duration::from_hours(1);

/// How long certificates are valid: longer than any session. In a process that runs longer, the
/// CA and its certificates expire together.
const CERTIFICATE_LIFETIME: Duration = Duration::from_hours(24 * 365);

/// A CA for one process.
pub struct EphemeralCa {
    issuer: Issuer<'static, ZeroizingKeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

/// A certificate for a client of this process, and its key.
#[derive(Debug)]
pub struct ClientIdentity {
    /// In PEM.
    pub certificate: String,
    /// In PEM.
    pub key: SecretString,
}

impl EphemeralCa {
    /// Generates a key and a CA certificate.
    pub fn new() -> Result<Self, Error> {
        let key = ZeroizingKeyPair::new()?;
        // A different name than the listener's: OpenSSL considers a certificate whose issuer and
        // subject have the same name self-signed.
        let mut params = params("skewbridge agent authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).map_err(Error::certificate)?;
        Ok(Self {
            pem: certificate.pem(),
            certificate: certificate.into(),
            issuer: Issuer::new(params, key),
        })
    }

    /// The CA certificate in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate to a client.
    pub fn issue_client(&self) -> Result<ClientIdentity, Error> {
        let key = ZeroizingKeyPair::new()?;
        let params = end_entity("client", ExtendedKeyUsagePurpose::ClientAuth);
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(Error::certificate)?;
        Ok(ClientIdentity {
            certificate: certificate.pem(),
            key: key.pem(),
        })
    }

    /// The TLS configuration of a listener with a certificate of this CA, which requires a client
    /// certificate of this CA. Clients of a Unix socket expect `localhost` or any of `names`,
    /// those of a port 127.0.0.1 or `::1`.
    pub fn server_config(&self, names: &[String]) -> Result<Arc<ServerConfig>, Error> {
        let key = ZeroizingKeyPair::new()?;
        let mut params = end_entity("skewbridge agent", ExtendedKeyUsagePurpose::ServerAuth);
        let loopback = [
            IpAddr::from(Ipv4Addr::LOCALHOST),
            Ipv6Addr::LOCALHOST.into(),
        ];
        params
            .subject_alt_names
            .extend(loopback.map(SanType::IpAddress));
        for name in names.iter().map(String::as_str).chain(["localhost"]) {
            let name = match name.parse() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(name.try_into().map_err(Error::certificate)?),
            };
            if !params.subject_alt_names.contains(&name) {
                params.subject_alt_names.push(name);
            }
        }
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(Error::certificate)?;
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(self.certificate.clone())
            .map_err(Error::certificate)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(Error::certificate)?;
        let mut der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.0.serialize_der()));
        let signing = aws_lc_rs::sign::any_supported_type(&der);
        der.zeroize();
        let signing = signing.map_err(Error::certificate)?;
        let certified_key = CertifiedKey::new(vec![certificate.into()], signing);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(Error::certificate)?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified_key)));
        config.alpn_protocols = ProtocolOffer::Either.alpn();
        Ok(Arc::new(config))
    }
}

impl std::fmt::Debug for EphemeralCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EphemeralCa").finish_non_exhaustive()
    }
}

/// A key pair that is overwritten when it is dropped.
struct ZeroizingKeyPair(KeyPair);

impl ZeroizingKeyPair {
    fn new() -> Result<Self, Error> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256);
        key.map(Self).map_err(Error::certificate)
    }

    /// The private key in PEM (RFC 7468), without copies that would not be overwritten.
    fn pem(&self) -> SecretString {
        const LINE_LENGTH: usize = 64;
        let base64 = Zeroizing::new(STANDARD.encode(self.0.serialized_der()));
        // Reserves the whole size: a buffer that grows leaves copies of secrets behind.
        let mut pem = String::with_capacity(base64.len() + base64.len() / LINE_LENGTH + 64);
        pem.push_str("-----BEGIN PRIVATE KEY-----\n");
        let mut rest = base64.as_str();
        while !rest.is_empty() {
            let (line, next) = rest.split_at(rest.len().min(LINE_LENGTH));
            pem.push_str(line);
            pem.push('\n');
            rest = next;
        }
        pem.push_str("-----END PRIVATE KEY-----\n");
        SecretString::new(pem)
    }
}

impl Drop for ZeroizingKeyPair {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl rcgen::PublicKeyData for ZeroizingKeyPair {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl rcgen::SigningKey for ZeroizingKeyPair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + CERTIFICATE_LIFETIME).into();
    params
}

fn end_entity(name: &str, purpose: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = params(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    params
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn a_key_is_encoded_as_pem() {
        let key = ZeroizingKeyPair::new().unwrap();
        let read = PrivateKeyDer::from_pem_slice(key.pem().expose().as_bytes()).unwrap();
        assert_eq!(read.secret_der(), key.0.serialized_der());
    }
}
