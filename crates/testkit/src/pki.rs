//! Certificate authorities and the certificates they issue, generated for each test.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SigningKey, date_time_ymd,
};
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::der::{Subject, with_subject};

/// A certificate authority: a root or an intermediate.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// The chain that a leaf presents besides itself: this CA and those above it, without
    /// the root.
    presented: Vec<CertificateDer<'static>>,
}

/// The validity of a certificate. The dates are so far away that the clock does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validity {
    /// From 1975 to 4096.
    #[default]
    Current,
    /// Ended in 2001.
    Expired,
    /// Begins in 3000.
    NotYetValid,
    /// From 1975 to this time.
    Until(SystemTime),
}

/// A certificate with its key and its intermediates.
pub struct Leaf {
    /// The certificate and its intermediates in PEM, as in a `tls.crt` file.
    pub cert_pem: String,
    /// The key in PKCS#8 PEM, as in a `tls.key` file.
    pub key_pem: String,
    /// The same chain in DER, the leaf first.
    pub chain_der: Vec<CertificateDer<'static>>,
    /// The same key in DER.
    pub key_der: PrivateKeyDer<'static>,
}

/// Which client certificates a fake server requests.
#[derive(Clone, Copy, Debug, Default)]
pub enum ClientAuth<'a> {
    /// No certificate is requested.
    #[default]
    Off,
    /// A certificate of this CA is optional.
    Accept(&'a Ca),
    /// A certificate of this CA is required.
    Require(&'a Ca),
}

impl Ca {
    /// Creates a self-signed root with the common name `name`.
    pub fn new(name: &str) -> Self {
        let (params, key) = (authority(name), new_key());
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate: certificate.into(),
            issuer: Issuer::new(params, key),
            presented: Vec::new(),
        }
    }

    /// Creates an intermediate below this CA. Its leaves include it in their chain.
    #[must_use]
    pub fn intermediate(&self, name: &str) -> Self {
        let (params, key) = (authority(name), new_key());
        let certificate: CertificateDer<'static> =
            params.signed_by(&key, &self.issuer).unwrap().into();
        let mut presented = vec![certificate.clone()];
        presented.extend_from_slice(&self.presented);
        Self {
            certificate,
            issuer: Issuer::new(params, key),
            presented,
        }
    }

    /// The same root (name and key) with another certificate of this validity.
    ///
    /// # Panics
    /// If this CA is an intermediate.
    #[must_use]
    pub fn renewed(&self, validity: Validity) -> Self {
        self.with_certificate(|params| validity.write(params))
    }

    /// The same root with another certificate that expires at `end`.
    ///
    /// # Panics
    /// If this CA is an intermediate.
    #[must_use]
    pub fn renewed_until(&self, end: SystemTime) -> Self {
        self.with_certificate(|params| {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = end.into();
        })
    }

    fn with_certificate(&self, change: impl FnOnce(&mut CertificateParams)) -> Self {
        assert!(self.presented.is_empty(), "an intermediate");
        let mut params = authority(&Subject::of(&self.certificate).common_name);
        change(&mut params);
        let key = KeyPair::from_pem(&self.issuer.key().serialize_pem()).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate: certificate.into(),
            issuer: Issuer::new(params, key),
            presented: Vec::new(),
        }
    }

    /// Issues a serving certificate for these DNS names and IP addresses.
    pub fn server(&self, names: &[&str]) -> Leaf {
        self.server_valid(names, Validity::Current)
    }

    /// As [`Ca::server`], with a given validity.
    pub fn server_valid(&self, names: &[&str], validity: Validity) -> Leaf {
        let mut params = end_entity(validity, ExtendedKeyUsagePurpose::ServerAuth);
        params.subject_alt_names = names
            .iter()
            .map(|name| match name.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName((*name).try_into().unwrap()),
            })
            .collect();
        let subject = Subject {
            common_name: names.first().copied().unwrap_or_default().to_owned(),
            organizations: Vec::new(),
        };
        self.issue(&params, &subject)
    }

    /// Issues a client certificate: for Kubernetes the user `common_name` in the groups
    /// `organizations`, which are in the subject in this order.
    pub fn client(&self, common_name: &str, organizations: &[&str]) -> Leaf {
        self.client_valid(common_name, organizations, Validity::Current)
    }

    /// As [`Ca::client`], with a given validity.
    pub fn client_valid(
        &self,
        common_name: &str,
        organizations: &[&str],
        validity: Validity,
    ) -> Leaf {
        let subject = Subject {
            common_name: common_name.to_owned(),
            organizations: organizations.iter().map(|&name| name.to_owned()).collect(),
        };
        self.issue(
            &end_entity(validity, ExtendedKeyUsagePurpose::ClientAuth),
            &subject,
        )
    }

    /// As [`Ca::client`], for a key that is held elsewhere, for example in a token.
    pub fn client_with_key(
        &self,
        key: &impl PublicKeyData,
        common_name: &str,
        organizations: &[&str],
    ) -> CertificateDer<'static> {
        let subject = Subject {
            common_name: common_name.to_owned(),
            organizations: organizations.iter().map(|&name| name.to_owned()).collect(),
        };
        let params = end_entity(Validity::Current, ExtendedKeyUsagePurpose::ClientAuth);
        self.sign(&params, key, &subject)
    }

    /// The CA's own certificate in PEM, as in a `ca.crt` file.
    pub fn pem(&self) -> String {
        certificate_pem(&self.certificate)
    }

    /// The CA's own certificate in DER.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A store that trusts only this CA.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }

    fn issue(&self, params: &CertificateParams, subject: &Subject) -> Leaf {
        let key = new_key();
        let mut chain_der = vec![self.sign(params, &key, subject)];
        chain_der.extend_from_slice(&self.presented);
        Leaf {
            cert_pem: chain_der.iter().map(certificate_pem).collect(),
            key_pem: key.serialize_pem(),
            key_der: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            chain_der,
        }
    }

    fn sign(
        &self,
        params: &CertificateParams,
        key: &impl PublicKeyData,
        subject: &Subject,
    ) -> CertificateDer<'static> {
        let certificate = params.signed_by(key, &self.issuer).unwrap();
        // rcgen's names hold one attribute of a type; a Kubernetes user has several groups.
        let certificate = with_subject(certificate.der(), subject, |tbs| {
            self.issuer.key().sign(tbs).unwrap()
        });
        CertificateDer::from(certificate)
    }
}

impl Validity {
    fn write(self, params: &mut CertificateParams) {
        (params.not_before, params.not_after) = match self {
            Self::Current => (date_time_ymd(1975, 1, 1), date_time_ymd(4096, 1, 1)),
            Self::Expired => (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1)),
            Self::NotYetValid => (date_time_ymd(3000, 1, 1), date_time_ymd(4096, 1, 1)),
            Self::Until(end) => (date_time_ymd(1975, 1, 1), end.into()),
        };
    }
}

impl Leaf {
    /// A certificate and its key in PEM.
    pub fn from_pem(cert_pem: String, key_pem: String) -> Self {
        let chain = CertificateDer::pem_slice_iter(cert_pem.as_bytes());
        Self {
            chain_der: chain.collect::<Result<_, _>>().unwrap(),
            key_der: PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap(),
            cert_pem,
            key_pem,
        }
    }

    /// The configuration of a server that presents this certificate and offers `alpn`, in
    /// order of preference.
    pub fn server_config(&self, clients: ClientAuth<'_>, alpn: &[&str]) -> Arc<ServerConfig> {
        let verifier =
            |ca: &Ca| WebPkiClientVerifier::builder_with_provider(Arc::new(ca.roots()), provider());
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            ClientAuth::Off => builder.with_no_client_auth(),
            ClientAuth::Accept(ca) => builder
                .with_client_cert_verifier(verifier(ca).allow_unauthenticated().build().unwrap()),
            ClientAuth::Require(ca) => {
                builder.with_client_cert_verifier(verifier(ca).build().unwrap())
            }
        };
        let mut config = builder
            .with_single_cert(self.chain_der.clone(), self.key_der.clone_key())
            .unwrap();
        config.alpn_protocols = protocol_ids(alpn);
        Arc::new(config)
    }
}

impl Clone for Leaf {
    fn clone(&self) -> Self {
        Self {
            cert_pem: self.cert_pem.clone(),
            key_pem: self.key_pem.clone(),
            chain_der: self.chain_der.clone(),
            key_der: self.key_der.clone_key(),
        }
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = Subject::of(&self.chain_der[0]);
        f.debug_tuple("Leaf").field(&subject).finish()
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = Subject::of(&self.certificate);
        f.debug_tuple("Ca").field(&subject.common_name).finish()
    }
}

/// The configuration of a client that trusts `roots`, presents `identity` and offers `alpn`.
pub(crate) fn client_config(
    roots: &RootCertStore,
    identity: Option<&Leaf>,
    alpn: &[&str],
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots.clone());
    let mut config = match identity {
        Some(leaf) => builder
            .with_client_auth_cert(leaf.chain_der.clone(), leaf.key_der.clone_key())
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocol_ids(alpn);
    Arc::new(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn protocol_ids(alpn: &[&str]) -> Vec<Vec<u8>> {
    alpn.iter().map(|id| id.as_bytes().to_vec()).collect()
}

fn new_key() -> KeyPair {
    KeyPair::generate().unwrap()
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

fn end_entity(validity: Validity, purpose: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = CertificateParams::default();
    validity.write(&mut params);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    params
}

fn certificate_pem(certificate: &CertificateDer<'_>) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate.to_vec()), config)
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn a_client_keeps_its_organizations_in_order() {
        let leaf = Ca::new("cluster").client("alice", &["dev", "ops", "dev"]);
        let subject = Subject::of(&leaf.chain_der[0]);
        assert_eq!(subject.common_name, "alice");
        assert_eq!(subject.organizations, ["dev", "ops", "dev"]);
    }

    #[test]
    fn pem_and_der_are_equal() {
        let leaf = Ca::new("root").intermediate("sub").server(&["localhost"]);
        let chain: Vec<_> = CertificateDer::pem_slice_iter(leaf.cert_pem.as_bytes())
            .map(Result::unwrap)
            .collect();
        assert_eq!(chain, leaf.chain_der);
        assert_eq!(chain.len(), 2);
        assert!(leaf.key_pem.starts_with("-----BEGIN PRIVATE KEY-----\n"));
        let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes()).unwrap();
        assert_eq!(key, leaf.key_der);
    }

    #[test]
    fn debug_redacts_the_key() {
        let leaf = Ca::new("root").client("alice", &[]);
        assert!(!format!("{leaf:?}").contains("PRIVATE"));
        assert!(format!("{leaf:?}").contains("alice"));
    }
}
