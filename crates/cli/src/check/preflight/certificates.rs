//! Whether certificates are valid, and the layout of CAs is one in which bridges, servers and
//! clients accept each other's certificates.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls_pki_types::CertificateDer;
use skewbridge_gateway::config::{Config, KeyPairFiles};
use skewbridge_gateway::peer_config::{advertised_address, disabled_by_flags};
use skewbridge_gateway::tls::ca_overlap::authenticates;
use skewbridge_gateway::tls::files::{CaBundle, KeyPair, LargestUnit, ValidityError, load_ca};
use skewbridge_gateway::tls::own_certificates::{
    EXPIRY_WARNING_PERIOD, FrontProxy, PEER_NAME, is_for_name,
};

use crate::check::finding::{Finding, Remedy, Section};

const SECTION: Section = Section::Certificates;

/// The CA of kubeadm's serving certificates.
const KUBEADM_CA: &str = "/etc/kubernetes/pki/ca.crt";

/// The files of a configuration, which have been read before without an error.
pub(super) struct Loaded {
    pairs: Vec<(&'static str, PathBuf, KeyPair)>,
    bundles: Vec<(&'static str, PathBuf, CaBundle)>,
}

impl Loaded {
    pub(super) fn of(config: &Config) -> Self {
        let callers = &config.callers;
        let pairs: [(_, Option<&KeyPairFiles>); 3] = [
            ("--tls-cert-file", Some(&config.serving.key_pair)),
            (
                "--proxy-client-cert-file",
                config.upstream.front_proxy.as_ref(),
            ),
            ("--etcd-certfile", config.peers.etcd.key_pair.as_ref()),
        ];
        let bundles = [
            ("--client-ca-file", callers.client_ca.as_ref()),
            (
                "--requestheader-client-ca-file",
                callers.request_header.as_ref().map(|it| &it.ca),
            ),
            ("--upstream-ca-file", Some(&config.upstream.ca)),
            ("--peer-ca-file", config.peers.ca.as_ref()),
            ("--etcd-cafile", config.peers.etcd.ca.as_ref()),
        ];
        let pairs = pairs.into_iter().filter_map(|(flag, files)| {
            let files = files?;
            Some((flag, files.cert.clone(), files.load().ok()?))
        });
        let bundles = bundles.into_iter().filter_map(|(flag, path)| {
            let path = path?;
            Some((flag, path.clone(), load_ca(path).ok()?))
        });
        Self {
            pairs: pairs.collect(),
            bundles: bundles.collect(),
        }
    }

    fn pair(&self, flag: &str) -> Option<(&Path, &KeyPair)> {
        let found = self.pairs.iter().find(|(name, ..)| *name == flag);
        found.map(|(_, path, pair)| (path.as_path(), pair))
    }

    pub(super) fn bundle(&self, flag: &str) -> Option<(&Path, &CaBundle)> {
        let found = self.bundles.iter().find(|(name, ..)| *name == flag);
        found.map(|(_, path, bundle)| (path.as_path(), bundle))
    }

    pub(super) fn front_proxy(&self) -> Option<FrontProxy> {
        let (path, pair) = self.pair("--proxy-client-cert-file")?;
        Some(FrontProxy::new(path, pair))
    }

    /// All CA files.
    pub(super) fn ca_files(&self) -> impl Iterator<Item = PathBuf> {
        self.bundles.iter().map(|(_, path, _)| path.clone())
    }
}

/// A file of CAs that has issued the certificate: one of these, or kubeadm's.
pub(super) fn ca_that_issued(
    chain: &[CertificateDer<'_>],
    files: impl IntoIterator<Item = PathBuf>,
) -> Option<PathBuf> {
    let mut all = files.into_iter().chain([PathBuf::from(KUBEADM_CA)]);
    all.find(|it| has_issued(it, chain))
}

/// Whether a CA file has issued the certificate.
fn has_issued(ca: &Path, chain: &[CertificateDer<'_>]) -> bool {
    load_ca(ca).is_ok_and(|it| authenticates(&it.certificates, chain))
}

/// All findings about certificates.
pub(super) fn judge(config: &Config, loaded: &Loaded, now: SystemTime) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (flag, path, pair) in &loaded.pairs {
        let error = pair.validity_error(now);
        findings.push(validity(flag, path, error, pair.not_after, now));
    }
    for (flag, path, bundle) in &loaded.bundles {
        let error = bundle.validity_error(now);
        findings.push(validity(flag, path, error, bundle.not_after, now));
        findings.extend(not_a_ca(flag, path, bundle));
    }
    let peering = disabled_by_flags(config).is_none();
    // Peers do not connect to a balancer.
    let has_clients = peering && !config.upstream.is_balanced();
    findings.extend(serving(config, loaded, has_clients));
    findings.extend(front_proxy(config, loaded, peering));
    findings
}

fn validity(
    flag: &str,
    path: &Path,
    error: Option<ValidityError>,
    not_after: SystemTime,
    now: SystemTime,
) -> Finding {
    let name = format!("{flag} {} is valid", path.display());
    let renewal = |text: &str| {
        let remedy = Remedy::file(path, text).of_flag(flag);
        match kubeadm_renewal(path) {
            Some(command) => Remedy {
                command: Some(command),
                ..remedy
            },
            None => remedy,
        }
    };
    match error {
        Some(error @ ValidityError::Expired(_)) => {
            let message = error.to_string();
            let message = message.split("; ").next().unwrap_or_default().to_owned();
            Finding::failure(SECTION, name, message, renewal("renew it"))
        }
        Some(error @ ValidityError::NotYet(_)) => {
            let message = error.to_string();
            let message = message.split("; ").next().unwrap_or_default().to_owned();
            let text = "correct the clock of this machine, or replace the file by a valid one";
            Finding::failure(
                SECTION,
                name,
                message,
                Remedy::file(path, text).of_flag(flag),
            )
        }
        None => match not_after.duration_since(now) {
            Ok(left) if left < EXPIRY_WARNING_PERIOD => {
                let message = format!("it expires in {}", LargestUnit(left));
                Finding::warning(SECTION, name, message, renewal("renew it"))
            }
            left => {
                let left = LargestUnit(left.unwrap_or_default());
                Finding::ok(SECTION, name).message(format!("for {left}"))
            }
        },
    }
}

/// kubeadm's command for its own files.
fn kubeadm_renewal(path: &Path) -> Option<String> {
    let name = match path.strip_prefix("/etc/kubernetes/pki").ok()?.to_str()? {
        "apiserver.crt" => "apiserver",
        "front-proxy-client.crt" => "front-proxy-client",
        "apiserver-etcd-client.crt" => "apiserver-etcd-client",
        _ => return None,
    };
    Some(format!("kubeadm certs renew {name}"))
}

fn not_a_ca(flag: &str, path: &Path, bundle: &CaBundle) -> Option<Finding> {
    let subjects = bundle.non_ca_subjects();
    let first = subjects.first()?;
    Some(Finding::warning(
        SECTION,
        format!("{flag} {} holds CAs", path.display()),
        format!("{first} is not a CA"),
        Remedy::file(
            path,
            "replace the file by that of the CA which has issued it",
        )
        .of_flag(flag),
    ))
}

fn serving(config: &Config, loaded: &Loaded, peering: bool) -> Vec<Finding> {
    const FLAG: &str = "--tls-cert-file";
    let Some((path, pair)) = loaded.pair(FLAG) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let reissue = |name: &str| {
        let text = format!("issue the certificate with {name} as a subject alternative name");
        let remedy = Remedy::file(path, text).of_flag(FLAG);
        match kubeadm_renewal(path) {
            Some(_) => Remedy {
                command: Some(format!(
                    "rm /etc/kubernetes/pki/apiserver.crt /etc/kubernetes/pki/apiserver.key && \
                     kubeadm init phase certs apiserver --apiserver-cert-extra-sans={name}"
                )),
                ..remedy
            },
            None => remedy,
        }
    };
    let name = format!("{FLAG} {} is for {PEER_NAME}", path.display());
    findings.push(if is_for_name(pair, PEER_NAME) {
        Finding::ok(SECTION, name)
    } else if peering {
        let message = "peers and pods verify this name, and reject this bridge";
        Finding::failure(SECTION, name, message, reissue(PEER_NAME))
    } else {
        let message = "pods verify this name, and reject this bridge";
        Finding::warning(SECTION, name, message, reissue(PEER_NAME))
    });
    let address = advertised_address(config).map(|it| it.ip());
    if let Some(address) = address.filter(|it| !it.is_loopback() && !it.is_unspecified()) {
        let name = format!("{FLAG} {} is for {address}", path.display());
        findings.push(if is_for_name(pair, &address.to_string()) {
            Finding::ok(SECTION, name)
        } else {
            let message = "clients whose kubeconfig has this address reject this bridge";
            Finding::warning(SECTION, name, message, reissue(&address.to_string()))
        });
    }
    if let (true, Some((ca, bundle))) = (peering, loaded.bundle("--peer-ca-file")) {
        let chain = &pair.certified.cert;
        let name = format!("--peer-ca-file {} has issued --tls-cert-file", ca.display());
        findings.push(if authenticates(&bundle.certificates, chain) {
            Finding::ok(SECTION, name)
        } else {
            let message = "bridges have the same --peer-ca-file: peers reject this bridge";
            let remedy = match ca_that_issued(chain, loaded.ca_files()) {
                Some(right) => Remedy::set("--peer-ca-file", right.display()),
                None => Remedy::flag(
                    "--peer-ca-file",
                    format!("set it to the CA that has issued {}", path.display()),
                ),
            };
            Finding::failure(SECTION, name, message, remedy.of_file(ca))
        });
    }
    findings
}

fn front_proxy(config: &Config, loaded: &Loaded, peering: bool) -> Vec<Finding> {
    const FLAG: &str = "--proxy-client-cert-file";
    let (Some(front_proxy), Some(request_header)) =
        (loaded.front_proxy(), &config.callers.request_header)
    else {
        return Vec::new();
    };
    if !peering {
        return Vec::new();
    }
    let path = front_proxy.path.clone();
    let (others, same) = if config.upstream.is_balanced() {
        ("kube-apiservers", "kube-apiservers with the same flags")
    } else {
        ("peers", "servers with the same flags")
    };
    let mut findings = Vec::new();
    if let Some((ca, bundle)) = loaded.bundle("--requestheader-client-ca-file") {
        let name = format!(
            "--requestheader-client-ca-file {} has issued {FLAG}",
            ca.display()
        );
        findings.push(if authenticates(&bundle.certificates, &front_proxy.chain) {
            Finding::ok(SECTION, name)
        } else {
            let message = format!(
                "with the same file, {others} reject users that this bridge asserts; the \
                 certificate is from {}",
                front_proxy.issuer
            );
            let text = format!(
                "use a front-proxy certificate that {} has issued",
                ca.display()
            );
            Finding::failure(
                SECTION,
                name,
                message,
                Remedy::file(&path, text).of_flag(FLAG),
            )
        });
    }
    let allowed = &request_header.allowed_names;
    let common_name = &front_proxy.common_name;
    let name = format!("--requestheader-allowed-names allows {common_name}");
    findings.push(if allowed.is_empty() || allowed.contains(common_name) {
        Finding::ok(SECTION, name)
    } else {
        let message = format!(
            "{same} reject users that this bridge asserts; {} are allowed",
            allowed.join(", ")
        );
        let all = [allowed.join(","), common_name.clone()].join(",");
        Finding::failure(
            SECTION,
            name,
            message,
            Remedy::set("--requestheader-allowed-names", all),
        )
    });
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::check::finding::Outcome;

    #[test]
    fn validity_is_judged_by_what_is_left() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 20_000);
        let day = Duration::from_hours(24);
        let rows = [
            (None, now + 31 * day, Outcome::Ok, "for 31 days"),
            (
                None,
                now + 29 * day,
                Outcome::Warning,
                "it expires in 29 days",
            ),
            (
                Some(ValidityError::Expired(2 * day)),
                now - 2 * day,
                Outcome::Failure,
                "the certificate expired 2 days ago",
            ),
            (
                Some(ValidityError::NotYet(day)),
                now + 400 * day,
                Outcome::Failure,
                "the certificate is not valid for another 1 day",
            ),
        ];
        for (error, not_after, outcome, message) in rows {
            let found = validity(
                "--tls-cert-file",
                Path::new("/a.crt"),
                error,
                not_after,
                now,
            );
            assert_eq!((found.outcome, &*found.message), (outcome, message));
            let file = found.remedy.and_then(|it| it.file);
            assert_eq!(file.is_some(), outcome != Outcome::Ok);
        }
    }

    #[test]
    fn kubeadm_renews_its_own_files() {
        let command = kubeadm_renewal(Path::new("/etc/kubernetes/pki/apiserver.crt"));
        assert_eq!(command.as_deref(), Some("kubeadm certs renew apiserver"));
        assert_eq!(kubeadm_renewal(Path::new("/pki/apiserver.crt")), None);
    }
}
