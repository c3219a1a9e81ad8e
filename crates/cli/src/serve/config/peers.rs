//! Where the other servers of the cluster are.

use std::path::{Path, PathBuf};

use skewbridge_gateway::config::{
    ApiServerIdentity, Config, Egress, Etcd, Feature, Peers, RegistryKind,
};

use super::{guards, non_empty};
use crate::flag_values::{self, Endpoint, Parsed};
use crate::serve::diagnostics::Diagnostics;
use crate::serve::egress;
use crate::serve::flags::{EtcdFlags, PeerFlags};

pub(super) fn peers(
    flags: &PeerFlags,
    etcd: &EtcdFlags,
    diagnostics: &mut Diagnostics,
) -> Option<Peers> {
    let identity = diagnostics.value("--apiserver-identity", identity(&flags.apiserver_identity));
    let ca = diagnostics.ca(("--peer-ca-file", non_empty(flags.peer_ca_file.as_ref())));
    let advertise_ip = non_empty(flags.peer_advertise_ip.as_ref())
        .and_then(|ip| diagnostics.value("--peer-advertise-ip", flag_values::advertised_ip(ip)));
    let advertise_port = non_empty(flags.peer_advertise_port.as_ref()).and_then(|port| {
        diagnostics.value(
            "--peer-advertise-port",
            flag_values::number(port, &(1..=u16::MAX)),
        )
    });
    let cidrs = diagnostics.values("--peer-cidrs", &flags.peer_cidrs, flag_values::cidr);
    let sources = address_sources(non_empty(flags.peer_registry.as_ref()).unwrap_or("etcd"));
    let sources = diagnostics.value("--peer-registry", sources);
    match sources.as_ref().map(|it| &it.registry) {
        Some(RegistryKind::Leases) if flags.peer_cidrs.is_empty() => diagnostics.problem(
            "--peer-cidrs",
            None,
            "required with --peer-registry=leases: a client that can write Leases could otherwise \
             send requests anywhere",
        ),
        Some(RegistryKind::File(path)) => {
            let read = skewbridge_peer_directory::registry::file::read(path, &cidrs);
            for wrong in read.err().unwrap_or_default() {
                diagnostics.problem("--peer-registry", Some(path), wrong);
            }
        }
        _ => {}
    }
    let egress = match non_empty(flags.egress_selector_config_file.as_ref()) {
        Some(path) => egress::read(Path::new(path), diagnostics),
        None => Some(Egress::Direct),
    };
    let guards = guards::guards(flags, diagnostics);
    let etcd = self::etcd(etcd, diagnostics);
    Some(Peers {
        identity: identity?,
        registry: sources.as_ref()?.registry.clone(),
        endpoints: sources?.endpoints,
        ca: ca.map(|(path, _)| path),
        advertise_ip,
        advertise_port,
        cidrs,
        guards: guards?,
        state_dir: non_empty(flags.state_dir.as_ref()).map(PathBuf::from),
        etcd: etcd?,
        egress: egress?,
    })
}

fn identity(text: &str) -> Parsed<ApiServerIdentity> {
    match text {
        "auto" => Ok(ApiServerIdentity::Auto),
        name => flag_values::dns_subdomain(name).map(ApiServerIdentity::Named),
    }
}

/// The sources of the addresses of peers.
#[derive(Debug, PartialEq, Eq)]
struct AddressSources {
    registry: RegistryKind,
    endpoints: bool,
}

/// At most one registry, in which the bridge also publishes its own address, and `endpoints`.
fn address_sources(text: &str) -> Parsed<AddressSources> {
    let is_endpoints = |source: &&str| *source == "endpoints";
    let (endpoints, others): (Vec<_>, Vec<_>) =
        text.split(',').map(str::trim).partition(is_endpoints);
    if endpoints.len() > 1 {
        return Err(format!("{text:?} has endpoints twice"));
    }
    // A path may have commas.
    let of_path = |source: &&&str| !["etcd", "leases"].contains(source) && !is_file(source);
    let registry = match others.as_slice() {
        [] => RegistryKind::None,
        [file, rest @ ..] if is_file(file) && rest.iter().all(|it| of_path(&it)) => {
            registry(&others.join(","))?
        }
        [one] => registry(one)?,
        [one, other, ..] => {
            registry(one)?;
            registry(other)?;
            if one == other {
                return Err(format!("{text:?} has {one} twice"));
            }
            return Err(format!(
                "{text:?} has {one} and {other}: a bridge publishes its address in one of etcd, \
                 leases and file:PATH; only endpoints can be added"
            ));
        }
    };
    Ok(AddressSources {
        registry,
        endpoints: !endpoints.is_empty(),
    })
}

fn is_file(source: &str) -> bool {
    source.starts_with("file:")
}

fn registry(text: &str) -> Parsed<RegistryKind> {
    match text.split_once(':') {
        None if text == "etcd" => Ok(RegistryKind::Etcd),
        None if text == "leases" => Ok(RegistryKind::Leases),
        Some(("file", path)) if !path.is_empty() => Ok(RegistryKind::File(path.into())),
        _ => Err(format!(
            "{text:?} is not one of etcd, leases, file:PATH, endpoints"
        )),
    }
}

fn etcd(flags: &EtcdFlags, diagnostics: &mut Diagnostics) -> Option<Etcd> {
    let servers = diagnostics.values("--etcd-servers", &flags.etcd_servers, etcd_server);
    let ca = ("--etcd-cafile", non_empty(flags.etcd_cafile.as_ref()));
    if ca.1.is_none() && servers.iter().any(|server| server.secure) {
        diagnostics.problem(
            ca.0,
            None,
            "required with https in --etcd-servers; the system's CAs are not used",
        );
    }
    let ca = diagnostics.ca(ca);
    let key_pair = diagnostics.key_pair(
        ("--etcd-certfile", non_empty(flags.etcd_certfile.as_ref())),
        ("--etcd-keyfile", non_empty(flags.etcd_keyfile.as_ref())),
    );
    let prefix = diagnostics.value("--etcd-prefix", etcd_prefix(&flags.etcd_prefix));
    Some(Etcd {
        servers: servers.into_iter().map(|server| server.uri).collect(),
        ca: ca.map(|(path, _)| path),
        key_pair,
        prefix: prefix?,
    })
}

fn etcd_server(text: &str) -> Parsed<Endpoint> {
    let endpoint = flag_values::endpoint(text)?;
    if endpoint.port.is_some() {
        Ok(endpoint)
    } else {
        Err(format!("{text:?} has no port; etcd's is usually 2379"))
    }
}

fn etcd_prefix(text: &str) -> Parsed<String> {
    let trimmed = text.trim_end_matches('/');
    if trimmed.starts_with('/') && trimmed.len() > 1 {
        Ok(trimmed.to_owned())
    } else {
        Err(format!("{text:?} must be a path like /registry"))
    }
}

/// Warns if peer flags are given and peering stays off.
pub(super) fn warn_of_incomplete_peering(
    flags: &PeerFlags,
    config: &Config,
    diagnostics: &mut Diagnostics,
) {
    let peers = &config.peers;
    let given: Vec<_> = [
        ("--peer-ca-file", peers.ca.is_some()),
        (
            "--peer-registry",
            non_empty(flags.peer_registry.as_ref()).is_some(),
        ),
        ("--etcd-servers", !peers.etcd.servers.is_empty()),
    ]
    .into_iter()
    .filter_map(|(flag, given)| given.then_some(flag))
    .collect();
    let needs_etcd = peers.registry == RegistryKind::Etcd;
    let missing: Vec<_> = [
        ("--peer-ca-file", peers.ca.is_some()),
        (
            "--proxy-client-cert-file",
            config.upstream.front_proxy.is_some(),
        ),
        (
            "--requestheader-client-ca-file",
            config.callers.request_header.is_some(),
        ),
        (
            "--etcd-servers",
            !needs_etcd || !peers.etcd.servers.is_empty(),
        ),
    ]
    .into_iter()
    .filter_map(|(flag, given)| (!given).then_some(flag))
    .collect();
    let is_enabled = (config.features).enabled(Feature::UnknownVersionInteroperabilityProxy)
        && !config.upstream.is_balanced();
    if is_enabled && !given.is_empty() && !missing.is_empty() {
        let missing = missing.join(", ");
        diagnostics.warning(
            &given.join(", "),
            None,
            format!("has no effect without {missing}: peering is off; set {missing}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_sources_are_one_registry_and_endpoints() {
        let file = |path: &str| RegistryKind::File(path.into());
        let table = [
            ("etcd", Ok((RegistryKind::Etcd, false))),
            ("leases", Ok((RegistryKind::Leases, false))),
            ("file:/a", Ok((file("/a"), false))),
            ("file:/a,b.yaml", Ok((file("/a,b.yaml"), false))),
            ("endpoints", Ok((RegistryKind::None, true))),
            ("etcd,endpoints", Ok((RegistryKind::Etcd, true))),
            ("endpoints, leases", Ok((RegistryKind::Leases, true))),
            ("file:/a,endpoints", Ok((file("/a"), true))),
            (
                "",
                Err("\"\" is not one of etcd, leases, file:PATH, endpoints"),
            ),
            ("etcd,", Err("\"\" is not one of")),
            ("file:", Err("\"file:\" is not one of")),
            ("etcd,consul", Err("\"consul\" is not one of")),
            ("etcd,etcd", Err("\"etcd,etcd\" has etcd twice")),
            (
                "endpoints,endpoints",
                Err("\"endpoints,endpoints\" has endpoints twice"),
            ),
            (
                "etcd,leases",
                Err("\"etcd,leases\" has etcd and leases: a bridge publishes"),
            ),
            (
                "file:/a,leases",
                Err("\"file:/a,leases\" has file:/a and leases"),
            ),
            (
                "file:/a,file:/a",
                Err("\"file:/a,file:/a\" has file:/a twice"),
            ),
        ];
        for (text, expected) in table {
            match (address_sources(text), expected) {
                (Ok(sources), Ok((registry, endpoints))) => {
                    assert_eq!(
                        (sources.registry, sources.endpoints),
                        (registry, endpoints),
                        "{text}"
                    );
                }
                (Err(error), Err(start)) => assert!(error.starts_with(start), "{text}: {error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
