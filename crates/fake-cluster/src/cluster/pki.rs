//! Certificates of a playground, generated at its start.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use skewbridge_gateway::tls::files::KeyPairFiles;

/// Names in serving certificates, for clients and peers.
const SERVING_NAMES: [&str; 4] = [
    "localhost",
    "127.0.0.1",
    "kubernetes.default.svc",
    "kubernetes",
];

/// The common name of the front-proxy certificate.
pub(super) const FRONT_PROXY: &str = "front-proxy-client";

/// The user with all rights.
pub(super) const ADMIN: &str = "playground-admin";
const ADMIN_GROUP: &str = "system:masters";

/// All certificates, in files that only the owner can read.
#[derive(Debug)]
pub(super) struct Pki {
    /// Signs servers, bridges and users.
    pub(super) ca: PathBuf,
    pub(super) ca_pem: String,
    /// The CA of the front proxy.
    pub(super) front_proxy_ca: PathBuf,
    pub(super) serving: KeyPairFiles,
    pub(super) front_proxy: KeyPairFiles,
    pub(super) admin: Credentials,
    /// The token of the visitor, which has no certificate.
    pub(super) visitor_token: Token,
}

/// A bearer token.
pub(super) struct Token(pub(super) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

/// A certificate and its key in PEM.
pub(super) struct Credentials {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Why certificates could not be created.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Generating them failed.
    #[error("cannot create certificates: {0}")]
    Make(#[from] rcgen::Error),
    /// The system has no random numbers.
    #[error("no randomness")]
    Random,
    /// Writing them failed.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The system error.
        cause: io::Error,
    },
}

impl Pki {
    /// Generates all certificates, in this directory.
    pub(super) fn make(directory: &Path) -> Result<Self, PkiError> {
        let ca = authority("playground-ca")?;
        let front_proxy_ca = authority("playground-front-proxy-ca")?;
        let write = |name: &str, text: &str| write_private(directory, name, text);
        let pair = |name: &str, made: &Credentials| {
            Ok::<_, PkiError>(KeyPairFiles {
                cert: write(&format!("{name}.crt"), &made.certificate)?,
                key: write(&format!("{name}.key"), &made.key)?,
            })
        };
        let serving = issue(
            &ca,
            "kube-apiserver",
            None,
            &SERVING_NAMES,
            ExtendedKeyUsagePurpose::ServerAuth,
        )?;
        let user =
            |ca, name, group| issue(ca, name, group, &[], ExtendedKeyUsagePurpose::ClientAuth);
        Ok(Self {
            ca: write("ca.crt", &ca.pem())?,
            ca_pem: ca.pem(),
            front_proxy_ca: write("front-proxy-ca.crt", &front_proxy_ca.pem())?,
            serving: pair("serving", &serving)?,
            front_proxy: pair("front-proxy", &user(&front_proxy_ca, FRONT_PROXY, None)?)?,
            admin: user(&ca, ADMIN, Some(ADMIN_GROUP))?,
            visitor_token: Token(random_token()?),
        })
    }
}

fn random_token() -> Result<String, PkiError> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| PkiError::Random)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

fn issue(
    ca: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    group: Option<&str>,
    names: &[&str],
    purpose: ExtendedKeyUsagePurpose,
) -> Result<Credentials, rcgen::Error> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate()?;
    Ok(Credentials {
        certificate: params.signed_by(&key, ca)?.pem(),
        key: key.serialize_pem(),
    })
}

/// Writes a new file that only its owner can read.
pub(super) fn write_private(directory: &Path, name: &str, text: &str) -> Result<PathBuf, PkiError> {
    let path = directory.join(name);
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    match written {
        Ok(()) => Ok(path),
        Err(cause) => Err(PkiError::Write { path, cause }),
    }
}
