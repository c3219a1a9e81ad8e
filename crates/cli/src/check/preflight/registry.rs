//! Whether the registry of peers can be read and written, and which addresses it has.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use skewbridge_gateway::config::{Config, KeyPairFiles, RegistryKind};
use skewbridge_gateway::tls::client_config;
use skewbridge_gateway::tls::files::load_ca;
use skewbridge_peer_directory::registry::{EtcdFiles, EtcdRegistry, file};
use skewbridge_peer_directory::{
    EndpointSlice, Identity, IdentityLease, List, endpoint_slice, lease,
};
use tokio::time::timeout;

use super::permissions;
use super::upstream_request::{own_user, send_as};
use crate::check::finding::{Finding, Remedy, Section};
use crate::check::{http, parallel};

const SECTION: Section = Section::Registry;

/// For all members of etcd, which are tried one after the other with 5 s each.
const ETCD_TIMEOUT: Duration = Duration::from_secs(20);

/// What was found, and the addresses of peers.
#[derive(Debug, Default)]
pub(super) struct RegistryChecks {
    pub(super) findings: Vec<Finding>,
    pub(super) addresses: Vec<PeerAddress>,
}

/// The address of a peer, and where it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerAddress {
    pub(super) identity: Identity,
    pub(super) address: SocketAddr,
    pub(super) source: Source,
    /// Whether the registry lists it as the address of a kube-apiserver, not of a bridge.
    pub(super) is_server: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Etcd,
    File(PathBuf),
    Leases,
    Endpoints,
}

pub(super) async fn check(config: &Config) -> RegistryChecks {
    let mut checked = match &config.peers.registry {
        RegistryKind::Etcd => etcd(config).await,
        RegistryKind::File(path) => of_file(config, path),
        RegistryKind::Leases => leases(config).await,
        RegistryKind::None | RegistryKind::Memory(_) => RegistryChecks::default(),
    };
    if config.peers.reads_endpoints() {
        let more = endpoints(config).await;
        checked.findings.extend(more.findings);
        let known: Vec<_> = checked.addresses.iter().map(|it| it.address).collect();
        let new = more
            .addresses
            .into_iter()
            .filter(|it| !known.contains(&it.address));
        checked.addresses.extend(new);
    }
    checked
}

async fn etcd(config: &Config) -> RegistryChecks {
    let etcd = &config.peers.etcd;
    let servers: Vec<_> = (etcd.servers.iter())
        .map(|it| it.to_string().trim_end_matches('/').to_owned())
        .collect();
    let probes = servers
        .iter()
        .map(|server| -> parallel::Probe<'_, _> { Box::pin(probe_etcd(config, server)) });
    let results = parallel::all(probes.collect()).await;
    let mut addresses = BTreeMap::new();
    let mut findings = Vec::new();
    let any = results.iter().any(Result::is_ok);
    for (server, result) in servers.iter().zip(results) {
        let name = format!("etcd {server} is readable and writable");
        match result {
            Ok(found) => {
                findings
                    .push(Finding::ok(SECTION, name).message(format!("{} records", found.len())));
                addresses.extend(found);
            }
            Err(why) => findings.push(etcd_problem(config, name, &why, any)),
        }
    }
    let addresses = addresses.into_iter().map(|(identity, found)| PeerAddress {
        identity,
        address: found.address,
        source: Source::Etcd,
        is_server: found.origin.is_server(),
    });
    RegistryChecks {
        findings,
        addresses: addresses.collect(),
    }
}

/// The error names the flags. With other members the bridge works.
fn etcd_problem(config: &Config, name: String, why: &str, others_work: bool) -> Finding {
    let etcd = &config.peers.etcd;
    let why = why.strip_prefix("--etcd-servers: ").unwrap_or(why);
    let (message, text) = why
        .rsplit_once("; ")
        .unwrap_or((why, "correct --etcd-servers"));
    let is = |word: &str| message.contains(word);
    let remedy = if is("UnknownIssuer") || is("signed by") {
        let remedy = Remedy::flag("--etcd-cafile", text);
        etcd.ca
            .as_ref()
            .map_or(remedy.clone(), |ca| remedy.of_file(ca))
    } else if is("alert") || is("certificate") || is("Certificate") || is("permission") {
        let remedy = Remedy::flag("--etcd-certfile", text);
        let cert = etcd.key_pair.as_ref().map(|it| &it.cert);
        cert.map_or(remedy.clone(), |cert| remedy.of_file(cert))
    } else {
        Remedy::flag("--etcd-servers", text)
    };
    if others_work {
        Finding::warning(SECTION, name, message, remedy)
    } else {
        Finding::failure(SECTION, name, message, remedy)
    }
}

async fn probe_etcd(
    config: &Config,
    server: &str,
) -> Result<skewbridge_peer_directory::registry::Addresses, String> {
    let etcd = &config.peers.etcd;
    let endpoint: skewbridge_etcd::Endpoint =
        (server.parse()).map_err(|error: skewbridge_etcd::EndpointError| error.to_string())?;
    let tls = match &etcd.ca {
        None => None,
        Some(ca) => {
            let bundle = load_ca(ca).map_err(|error| error.to_string())?;
            let pair = etcd.key_pair.as_ref().map(KeyPairFiles::load).transpose();
            let pair = pair.map_err(|error| error.to_string())?;
            let tls = client_config(&bundle, pair.as_ref()).map_err(|error| error.to_string())?;
            Some(Arc::new(tls))
        }
    };
    let files = EtcdFiles {
        ca: etcd.ca.clone(),
        cert: etcd.key_pair.as_ref().map(|it| it.cert.clone()),
    };
    let source = Arc::new(move || tls.clone());
    let registry = EtcdRegistry::new(vec![endpoint], source, etcd.prefix.clone()).with_files(files);
    match timeout(ETCD_TIMEOUT, registry.probe()).await {
        Ok(result) => result,
        Err(_) => Err(format!(
            "etcd does not answer within {} s; start etcd, or correct --etcd-servers",
            ETCD_TIMEOUT.as_secs()
        )),
    }
}

fn of_file(config: &Config, path: &Path) -> RegistryChecks {
    let name = format!("--peer-registry {} names peers", path.display());
    match file::read(path, &config.peers.cidrs) {
        Ok(found) => {
            let finding = Finding::ok(SECTION, name).message(format!("{} entries", found.len()));
            let addresses = found.into_iter().map(|(identity, found)| PeerAddress {
                identity,
                address: found.address,
                source: Source::File(path.to_owned()),
                is_server: found.origin.is_server(),
            });
            RegistryChecks {
                findings: vec![finding],
                addresses: addresses.collect(),
            }
        }
        Err(problems) => {
            let remedy = Remedy::file(path, "correct the entries").of_flag("--peer-registry");
            RegistryChecks {
                findings: vec![Finding::failure(SECTION, name, problems.join("; "), remedy)],
                addresses: Vec::new(),
            }
        }
    }
}

async fn leases(config: &Config) -> RegistryChecks {
    let path = format!(
        "{}?labelSelector={}",
        lease::LEASES_PATH,
        "apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver"
    );
    let name = "identity Leases in kube-system are readable";
    match list::<IdentityLease>(config, &path).await {
        Ok(leases) => {
            let finding = Finding::ok(SECTION, name).message(format!("{} Leases", leases.len()));
            let addresses = leases.iter().filter_map(|lease| {
                Some(PeerAddress {
                    identity: lease.identity().clone(),
                    address: lease.bridge_address().or(lease.peer_address())?,
                    source: Source::Leases,
                    is_server: false,
                })
            });
            RegistryChecks {
                findings: vec![finding],
                addresses: addresses.collect(),
            }
        }
        Err(why) => RegistryChecks {
            findings: vec![Finding::failure(
                SECTION,
                name,
                why,
                permissions::remedy(config),
            )],
            addresses: Vec::new(),
        },
    }
}

async fn endpoints(config: &Config) -> RegistryChecks {
    let path = format!(
        "{}?limit=500{}",
        endpoint_slice::ENDPOINT_SLICES_PATH,
        endpoint_slice::SELECTOR
    );
    let name = "EndpointSlices of the Service default/kubernetes are readable";
    match list::<EndpointSlice>(config, &path).await {
        Ok(slices) => {
            let all: Vec<_> = slices
                .iter()
                .flat_map(|it| it.addresses().clone())
                .collect();
            let finding = Finding::ok(SECTION, name).message(format!("{} addresses", all.len()));
            let addresses = all.into_iter().map(|address| PeerAddress {
                identity: Identity::of_address(address),
                address,
                source: Source::Endpoints,
                is_server: true,
            });
            RegistryChecks {
                findings: vec![finding],
                addresses: addresses.collect(),
            }
        }
        Err(why) => RegistryChecks {
            findings: vec![Finding::failure(
                SECTION,
                name,
                why,
                permissions::remedy(config),
            )],
            addresses: Vec::new(),
        },
    }
}

async fn list<T: serde::de::DeserializeOwned>(
    config: &Config,
    path: &str,
) -> Result<Vec<T>, String> {
    let servers = config.upstream.servers();
    let server = servers.first().ok_or("no --upstream")?;
    let answer = send_as(config, server, &own_user(config), http::get(path)).await?;
    answer.json(path)?;
    let list = List::<T>::parse(&answer.response.body).map_err(|error| error.to_string())?;
    Ok(list.items)
}
