//! One CA and one ECDSA P-256 server certificate that every server of a run presents, so
//! that all proxies have equal handshakes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::Serialize;
use skewbridge_testkit::{Ca, Leaf};

use crate::scratch_dir::ScratchDir;

/// The name in the certificate that every client verifies.
pub(crate) const SERVER_NAME: &str = "localhost";

/// The only cipher suite that clients offer and the backend accepts: the one that Go
/// prefers at both ends of a Kubernetes cluster. Given a choice the proxies differ:
/// `HAProxy` uses its own order and the others use the client's.
pub(crate) const CIPHER: &str = "TLS_AES_128_GCM_SHA256";

/// The name that bridges verify in the certificates of their peers.
const PEER_NAME: &str = "kubernetes.default.svc";

const ALPN_H2: &[u8] = b"h2";
const ALPN_H1: &[u8] = b"http/1.1";

#[derive(Debug)]
pub(crate) struct Pki {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Certificate and key in one file, the way `HAProxy` reads them.
    pub(crate) bundle: PathBuf,
}

/// The key of the server certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum ServerKey {
    #[serde(rename = "ECDSA P-256")]
    Ecdsa,
    /// The default of kubeadm.
    #[serde(rename = "RSA 2048")]
    Rsa,
}

impl ServerKey {
    fn generate(self) -> Result<KeyPair> {
        Ok(match self {
            Self::Ecdsa => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
            Self::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?,
        })
    }
}

impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ecdsa => "ECDSA P-256",
            Self::Rsa => "RSA 2048",
        })
    }
}

impl Pki {
    pub(crate) fn generate(scratch: &ScratchDir) -> Result<Self> {
        Self::with_key(scratch, ServerKey::Ecdsa)
    }

    /// The same with another server key.
    pub(crate) fn with_key(scratch: &ScratchDir, key: ServerKey) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "skewbridge-bench-ca");
        let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let ca = CertifiedIssuer::self_signed(params, ca_key)?;

        let mut params =
            CertificateParams::new(vec![SERVER_NAME.to_owned(), "127.0.0.1".to_owned()])?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params
            .distinguished_name
            .push(DnType::CommonName, SERVER_NAME);
        let key = key.generate()?;
        let certificate = params.signed_by(&key, &ca)?.pem();
        Self::write(scratch, &ca.pem(), &certificate, &key.serialize_pem())
    }

    /// The same with the CA of a cluster.
    pub(crate) fn issued_by(ca: &Ca, scratch: &ScratchDir) -> Result<Self> {
        let leaf = ca.server(&[SERVER_NAME, "127.0.0.1", PEER_NAME]);
        Self::write(scratch, &ca.pem(), &leaf.cert_pem, &leaf.key_pem)
    }

    /// From a playground's directory.
    pub(crate) fn of_playground(directory: &Path, scratch: &ScratchDir) -> Result<Self> {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))
        };
        let (ca, certificate) = (read("ca.crt")?, read("serving.crt")?);
        Self::write(scratch, &ca, &certificate, &read("serving.key")?)
    }

    fn write(scratch: &ScratchDir, ca: &str, certificate: &str, key: &str) -> Result<Self> {
        Ok(Self {
            ca: scratch.write("pki/ca.crt", ca)?,
            bundle: scratch.write("pki/server.pem", format!("{certificate}{key}"))?,
            certificate: scratch.write("pki/server.crt", certificate)?,
            key: scratch.write("pki/server.key", key)?,
        })
    }
}

/// A client that trusts only `ca` and uses only HTTP/2.
pub(crate) fn h2_client(ca: &Path) -> Result<Arc<ClientConfig>> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(ca)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(Arc::new(config))
}

/// A client that trusts only `ca` and uses only HTTP/1.1 and [`CIPHER`].
pub(crate) fn h1_client(ca: &Path) -> Result<Arc<ClientConfig>> {
    let mut config = ClientConfig::builder_with_provider(one_cipher())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots(ca)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_H1.to_vec()];
    Ok(Arc::new(config))
}

/// The same with the certificate of a user, which the server requests.
pub(crate) fn h1_client_of(ca: &Path, user: &Leaf) -> Result<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(one_cipher())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots(ca)?)
        .with_client_auth_cert(user.chain_der.clone(), user.key_der.clone_key())?;
    config.alpn_protocols = vec![ALPN_H1.to_vec()];
    Ok(config)
}

/// A server that uses only HTTP/2.
pub(crate) fn h2_server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let private = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("cannot read {}", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates(certificate)?, private)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(Arc::new(config))
}

/// A client that trusts only `ca`, and presents the certificate `user` on request.
pub(crate) fn stream_client(ca: &Ca, user: &Leaf) -> Result<Arc<ClientConfig>> {
    let config = ClientConfig::builder_with_provider(one_cipher())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(ca.roots())
        .with_client_auth_cert(user.chain_der.clone(), user.key_der.clone_key())?;
    Ok(Arc::new(config))
}

/// A server for requests and for streams.
pub(crate) fn http_server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let mut config = ServerConfig::clone(&*h2_server(certificate, key)?);
    config.alpn_protocols.push(ALPN_H1.to_vec());
    Ok(Arc::new(config))
}

/// A server for streams, which are upgraded from HTTP/1.1.
pub(crate) fn stream_server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let private = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("cannot read {}", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(one_cipher())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates(certificate)?, private)?;
    config.alpn_protocols = vec![ALPN_H1.to_vec()];
    Ok(Arc::new(config))
}

/// Only [`CIPHER`]: with a choice, rustls would select another one than Go.
fn one_cipher() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    Arc::new(provider)
}

fn roots(ca: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    read().with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_certificate_is_served_and_trusted() {
        let scratch = ScratchDir::create().unwrap();
        let pki = Pki::generate(&scratch).unwrap();
        h2_server(&pki.certificate, &pki.key).unwrap();
        h2_client(&pki.ca).unwrap();
        h1_client(&pki.ca).unwrap();
    }

    #[test]
    fn an_rsa_key_is_served() {
        let scratch = ScratchDir::create().unwrap();
        let pki = Pki::with_key(&scratch, ServerKey::Rsa).unwrap();
        h2_server(&pki.certificate, &pki.key).unwrap();
        let user = Ca::new("users").client("user", &[]);
        h1_client_of(&pki.ca, &user).unwrap();
    }

    #[test]
    fn a_certificate_of_a_cluster_is_served_and_trusted() {
        let scratch = ScratchDir::create().unwrap();
        let ca = Ca::new("cluster");
        let pki = Pki::issued_by(&ca, &scratch).unwrap();
        stream_server(&pki.certificate, &pki.key).unwrap();
        stream_client(&ca, &ca.client("admin", &["system:masters"])).unwrap();
    }
}
