//! The certificates and CA files of the bridge, which the self-test compares with those of
//! upstream, and warnings about them for administrators.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, ServerName};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::{KeyPair, LargestUnit};
use crate::upstream_error_hint::UpstreamFlags;

/// The time before the expiry of a certificate from which on warnings are logged: enough for a
/// ticket and a maintenance window.
pub const EXPIRY_WARNING_PERIOD: Duration = Duration::from_hours(30 * 24);

/// The name for which peers verify the serving certificate.
pub const PEER_NAME: &str = "kubernetes.default.svc";

/// The files that upstream has to agree with.
#[derive(Debug, Clone, Default)]
pub struct OwnCertificates {
    /// `--client-ca-file`
    pub(crate) client_ca: Option<CaFile>,
    /// `--requestheader-client-ca-file`
    pub(crate) request_header_ca: Option<CaFile>,
    /// `--proxy-client-cert-file`
    pub(crate) front_proxy: Option<FrontProxy>,
    /// `--upstream` and `--upstream-ca-file`
    pub(crate) upstream: UpstreamFlags,
}

/// A CA bundle and its path.
#[derive(Debug, Clone)]
pub struct CaFile {
    /// The file.
    pub path: PathBuf,
    /// Its certificates.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// The front-proxy certificate and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontProxy {
    /// The file.
    pub path: PathBuf,
    /// The common name, which `--requestheader-allowed-names` lists.
    pub common_name: String,
    /// The subject of the CA that issued it.
    pub issuer: String,
    /// The chain with its intermediates.
    pub chain: Vec<CertificateDer<'static>>,
}

impl FrontProxy {
    /// The certificate of this pair.
    pub fn new(path: &Path, pair: &KeyPair) -> Self {
        let leaf = pair.certified.cert.first();
        let leaf = leaf.and_then(|der| X509Certificate::from_der(der).ok());
        let leaf = leaf.as_ref().map(|(_, leaf)| leaf);
        Self {
            path: path.to_owned(),
            common_name: leaf.and_then(common_name).unwrap_or_default().to_owned(),
            issuer: leaf.map_or_else(String::new, |leaf| leaf.issuer().to_string()),
            chain: pair.certified.cert.clone(),
        }
    }
}

/// The last common name, as Go takes it if there are several.
fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    let name = certificate.subject().iter_common_name().last()?;
    name.as_str().ok()
}

/// A certificate and the flag of its file.
#[derive(Clone, Copy)]
pub(crate) struct FlagCertificate<'a> {
    pub(crate) flag: &'static str,
    pub(crate) path: &'a Path,
    pub(crate) pair: &'a KeyPair,
}

/// A problem that an administrator should correct, although the bridge works now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateWarning {
    pub(crate) flag: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) message: String,
}

/// All warnings. An expired certificate is reported as a problem of its file instead.
pub(crate) fn warnings(
    serving: FlagCertificate<'_>,
    front_proxy: Option<FlagCertificate<'_>>,
    others: &[FlagCertificate<'_>],
    allowed_names: &[String],
    now: SystemTime,
) -> Vec<CertificateWarning> {
    let mut found = Vec::new();
    let mut warn = |of: FlagCertificate<'_>, message: String| {
        found.push(CertificateWarning {
            flag: of.flag,
            path: of.path.to_owned(),
            message,
        });
    };
    for certificate in [Some(serving), front_proxy]
        .into_iter()
        .flatten()
        .chain(others.iter().copied())
    {
        if let Ok(left) = certificate.pair.not_after.duration_since(now)
            && left < EXPIRY_WARNING_PERIOD
        {
            warn(
                certificate,
                format!("the certificate expires in {}; renew it", LargestUnit(left)),
            );
        }
    }
    if !is_for_peers(serving.pair) {
        let message = format!(
            "the certificate is not for {PEER_NAME}, the name that peers and pods verify: they \
             reject this bridge; issue it with {PEER_NAME} as a subject alternative name"
        );
        warn(serving, message);
    }
    if let Some(it) = front_proxy {
        let FrontProxy { common_name, .. } = FrontProxy::new(it.path, it.pair);
        if !allowed_names.is_empty() && !allowed_names.contains(&common_name) {
            let message = format!(
                "the common name {common_name:?} is not in --requestheader-allowed-names ({}): \
                 servers with the same flags reject users that this bridge asserts; add it there, \
                 or use a certificate with one of these names",
                allowed_names.join(",")
            );
            warn(it, message);
        }
    }
    found
}

/// Whether the certificate is valid for the name that peers verify.
fn is_for_peers(pair: &KeyPair) -> bool {
    is_for_name(pair, PEER_NAME)
}

/// Whether the certificate is valid for a DNS name or an IP address.
pub fn is_for_name(pair: &KeyPair, name: &str) -> bool {
    let Some(leaf) = pair.certified.cert.first() else {
        return false;
    };
    let (Ok(leaf), Ok(name)) = (
        ParsedCertificate::try_from(leaf),
        ServerName::try_from(name),
    ) else {
        return false;
    };
    verify_server_name(&leaf, &name).is_ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair as Key};

    use super::*;
    use crate::config::KeyPairFiles;

    const DAY: Duration = Duration::from_hours(24);

    /// A certificate for these names and this common name, in files.
    fn pair(dir: &skewbridge_testkit::ScratchDir, names: &[&str], common_name: &str) -> KeyPair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        let key = Key::generate().unwrap();
        let files = KeyPairFiles {
            cert: dir.write("a.crt", params.self_signed(&key).unwrap().pem()),
            key: dir.write("a.key", key.serialize_pem()),
        };
        files.load().unwrap()
    }

    fn flag_certificate<'a>(
        flag: &'static str,
        path: &'a Path,
        pair: &'a KeyPair,
    ) -> FlagCertificate<'a> {
        FlagCertificate { flag, path, pair }
    }

    /// Serving certificate, allowed names, time; flags and texts of the warnings.
    type Row<'a> = (
        FlagCertificate<'a>,
        &'a [String],
        SystemTime,
        &'a [(&'static str, &'a str)],
    );

    #[test]
    fn each_warning_names_flag_file_and_remedy() {
        let dir = skewbridge_testkit::ScratchDir::new();
        let path = Path::new("/pki/a.crt");
        let good = pair(&dir, &["kubernetes.default.svc"], "front-proxy-client");
        let wildcard = pair(&dir, &["*.default.svc"], "");
        let other = pair(&dir, &["localhost"], "");
        let now = good.not_after - 90 * DAY;
        let serving = |pair| flag_certificate("--tls-cert-file", path, pair);
        let proxy = flag_certificate("--proxy-client-cert-file", path, &good);
        let etcd = flag_certificate("--etcd-certfile", path, &good);
        let allowed = ["aggregator".to_owned()];
        let expected = ["front-proxy-client".to_owned()];
        let before_end = good.not_after - EXPIRY_WARNING_PERIOD;
        let moment = Duration::from_secs(1);
        let rows: [Row<'_>; 7] = [
            (serving(&good), &[], now, &[]),
            (serving(&wildcard), &expected, now, &[]),
            (
                serving(&other),
                &[],
                now,
                &[("--tls-cert-file", "subject alternative name")],
            ),
            (
                serving(&good),
                &allowed,
                now,
                &[(
                    "--proxy-client-cert-file",
                    "--requestheader-allowed-names (aggregator)",
                )],
            ),
            (serving(&good), &[], before_end - moment, &[]),
            (
                serving(&good),
                &[],
                before_end + moment,
                &[
                    ("--tls-cert-file", "expires in 29 days; renew it"),
                    ("--proxy-client-cert-file", "expires in 29 days; renew it"),
                    ("--etcd-certfile", "expires in 29 days; renew it"),
                ],
            ),
            // An expired certificate is reported elsewhere.
            (serving(&good), &[], good.not_after + DAY, &[]),
        ];
        for (number, (serving, allowed, now, expected)) in rows.into_iter().enumerate() {
            let found = warnings(serving, Some(proxy), &[etcd], allowed, now);
            let flags: Vec<_> = found.iter().map(|it| it.flag).collect();
            let expected_flags: Vec<_> = expected.iter().map(|(flag, _)| *flag).collect();
            assert_eq!(flags, expected_flags, "row {number}: {found:?}");
            for (found, (_, text)) in found.iter().zip(expected) {
                assert!(found.message.contains(text), "{found:?}");
                assert_eq!(found.path, path);
            }
        }
    }
}
