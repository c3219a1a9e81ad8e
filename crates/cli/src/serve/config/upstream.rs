//! The kube-apiservers behind a bridge, and the user as which the bridge sends its own requests.

use std::net::IpAddr;

use skewbridge_gateway::config::{
    Admin, BridgeUser, Config, Feature, Listen, MAX_UPSTREAMS, Upstream, UpstreamServer,
};
use skewbridge_gateway::tls::files::KeyPairFiles;

use super::listeners::{check_upstream_is_not_admin, check_upstream_is_not_self};
use super::{non_empty, required};
use crate::flag_values::{self, Endpoint, Parsed};
use crate::serve::diagnostics::Diagnostics;
use crate::serve::flags::{Flags, UpstreamFlags};

/// kube-apiserver's default port.
const DEFAULT_UPSTREAM_PORT: u16 = 6443;

/// The keyword of `--upstream` for the servers that the `EndpointSlices` list.
const ENDPOINTS: &str = "endpoints";

/// A name in the certificate of every kube-apiserver, whatever its address is.
const LISTED_SERVER_NAME: &str = "kubernetes.default.svc";

/// The Service `default/kubernetes`, whose address kubelet puts into the environment of each pod.
pub(crate) fn kubernetes_service(environment: impl Fn(&str) -> Option<String>) -> Option<Endpoint> {
    let variable = |name| environment(name).filter(|value| !value.is_empty());
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let host = match host.parse() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host,
    };
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    https_endpoint(&format!("https://{host}:{port}")).ok()
}

pub(super) fn upstream(
    (flags, service): (&UpstreamFlags, Option<Endpoint>),
    listen: Option<&Listen>,
    admin: Option<&Admin>,
    diagnostics: &mut Diagnostics,
) -> Option<Upstream> {
    let values = upstream_values(&flags.upstream, service, diagnostics);
    let ca = diagnostics.value(
        "--upstream-ca-file",
        required(
            flags.upstream_ca_file.as_ref(),
            "the CA that signs its certificate; the system's are not used",
        ),
    );
    let ca = diagnostics.ca(("--upstream-ca-file", ca));
    let server_name = non_empty(flags.upstream_server_name.as_ref()).and_then(|name| {
        diagnostics.value("--upstream-server-name", flag_values::server_name(name))
    });
    let front_proxy = front_proxy(flags, diagnostics);
    let bridge_user = bridge_user(flags, diagnostics);
    let UpstreamValues {
        endpoints,
        follows_endpoints,
        is_service,
    } = values?;
    let listed_name = || flag_values::server_name(LISTED_SERVER_NAME).ok();
    let mut servers = Vec::new();
    for Endpoint { host, port, .. } in endpoints {
        let port = port.unwrap_or(DEFAULT_UPSTREAM_PORT);
        if let Some(listen) = listen {
            check_upstream_is_not_self(listen, &host, port, diagnostics);
        }
        if let Some(admin) = admin {
            check_upstream_is_not_admin(admin, &host, port, diagnostics);
        }
        let server_name = server_name.clone().or_else(|| {
            if is_service {
                listed_name()
            } else {
                flag_values::server_name(&host).ok()
            }
        });
        let server = UpstreamServer {
            server_name: server_name?,
            host,
            port,
        };
        if servers.contains(&server) {
            let message = format!("{} is given twice", server.authority());
            diagnostics.problem("--upstream", None, message);
        }
        servers.push(server);
    }
    if servers.len() > MAX_UPSTREAMS {
        let message = format!(
            "has {} values; {MAX_UPSTREAMS} are supported",
            servers.len()
        );
        diagnostics.problem("--upstream", None, message);
    }
    let first = servers.remove(0);
    Some(Upstream {
        server_name: first.server_name,
        host: first.host,
        port: first.port,
        others: servers,
        endpoints: if follows_endpoints {
            Some(server_name.or_else(listed_name)?)
        } else {
            None
        },
        ca: ca?.0,
        front_proxy,
        bridge_user: bridge_user?,
    })
}

/// The values of `--upstream`.
struct UpstreamValues {
    /// At least one.
    endpoints: Vec<Endpoint>,
    /// `endpoints` is one of the values.
    follows_endpoints: bool,
    /// `endpoints` is the only value: the endpoint is that of the Service.
    is_service: bool,
}

fn upstream_values(
    values: &[String],
    service: Option<Endpoint>,
    diagnostics: &mut Diagnostics,
) -> Option<UpstreamValues> {
    const FLAG: &str = "--upstream";
    if values.iter().all(String::is_empty) {
        let message = "required: https://HOST[:PORT] of the kube-apiserver";
        diagnostics.problem(FLAG, None, message);
        return None;
    }
    let parsed = diagnostics.values(FLAG, values, |text| match text {
        ENDPOINTS => Ok(None),
        url => https_endpoint(url).map(Some),
    });
    // Otherwise an error has been recorded.
    let follows_endpoints = parsed.contains(&None);
    let mut endpoints: Vec<_> = parsed.iter().flatten().cloned().collect();
    let is_service = parsed == [None];
    endpoints.extend(service.filter(|_| is_service));
    if endpoints.is_empty() && follows_endpoints {
        let message = "endpoints also needs the URL of a kube-apiserver through which the \
                       EndpointSlices are read first: \
                       --upstream=https://HOST[:PORT],endpoints; in a pod the Service of \
                       KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT is used, which are not set";
        diagnostics.problem(FLAG, None, message);
    }
    (!endpoints.is_empty()).then_some(UpstreamValues {
        endpoints,
        follows_endpoints,
        is_service,
    })
}

fn https_endpoint(text: &str) -> Parsed<Endpoint> {
    let endpoint = flag_values::endpoint(text)?;
    if endpoint.secure {
        Ok(endpoint)
    } else {
        Err(format!(
            "{text:?} is not https; identities must not be sent unencrypted: use https://"
        ))
    }
}

fn front_proxy(flags: &UpstreamFlags, diagnostics: &mut Diagnostics) -> Option<KeyPairFiles> {
    diagnostics.key_pair(
        (
            "--proxy-client-cert-file",
            non_empty(flags.proxy_client_cert_file.as_ref()),
        ),
        (
            "--proxy-client-key-file",
            non_empty(flags.proxy_client_key_file.as_ref()),
        ),
    )
}

fn bridge_user(flags: &UpstreamFlags, diagnostics: &mut Diagnostics) -> Option<BridgeUser> {
    let default = BridgeUser::default();
    let name = diagnostics.value("--bridge-user", bridge_user_name(&flags.bridge_user));
    let groups = diagnostics.values("--bridge-groups", &flags.bridge_groups, bridge_group);
    let name = name?;
    Some(BridgeUser {
        groups: if flags.bridge_groups.is_empty() && name == default.name {
            default.groups
        } else {
            groups
        },
        name,
    })
}

fn bridge_user_name(text: &str) -> Parsed<String> {
    match asserted(text)?.as_str() {
        "system:anonymous" => {
            Err("system:anonymous has no rights of its own; set another user".to_owned())
        }
        name => Ok(name.to_owned()),
    }
}

fn bridge_group(text: &str) -> Parsed<String> {
    match asserted(text)?.as_str() {
        "system:unauthenticated" => Err(
            "system:unauthenticated is the group of requests without a user; omit it".to_owned(),
        ),
        name => Ok(name.to_owned()),
    }
}

/// A name that a header can carry unchanged.
fn asserted(text: &str) -> Parsed<String> {
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if text.trim().is_empty() {
        Err("is empty; set a name".to_owned())
    } else if !is_plain || text.trim() != text {
        Err(format!(
            "{text:?} cannot be sent in a header; use ASCII without surrounding spaces"
        ))
    } else {
        Ok(text.to_owned())
    }
}

/// With several values of `--upstream`, each is a peer of the others: flags by which bridges find
/// each other have no meaning.
pub(super) fn check_flags_of_balancer(
    flags: &Flags,
    config: &Config,
    diagnostics: &mut Diagnostics,
) {
    if !config.upstream.is_balanced() {
        return;
    }
    let (peers, etcd) = (&flags.peers, &flags.etcd);
    let given = |value: &Option<String>| non_empty(value.as_ref()).is_some();
    let rows = [
        ("--peer-ca-file", given(&peers.peer_ca_file)),
        ("--peer-registry", given(&peers.peer_registry)),
        ("--peer-cidrs", !peers.peer_cidrs.is_empty()),
        ("--peer-advertise-ip", given(&peers.peer_advertise_ip)),
        ("--peer-advertise-port", given(&peers.peer_advertise_port)),
        ("--apiserver-identity", peers.apiserver_identity != "auto"),
        ("--etcd-servers", !etcd.etcd_servers.is_empty()),
        ("--etcd-cafile", given(&etcd.etcd_cafile)),
        ("--etcd-certfile", given(&etcd.etcd_certfile)),
        ("--etcd-keyfile", given(&etcd.etcd_keyfile)),
    ];
    for (flag, _) in rows.iter().filter(|(_, given)| *given) {
        diagnostics.problem(
            flag,
            None,
            "has no effect with several values of --upstream, which are the peers of each other: \
             omit it",
        );
    }
    let missing: Vec<_> = [
        (
            "--proxy-client-cert-file",
            config.upstream.front_proxy.is_some(),
        ),
        (
            "--requestheader-client-ca-file",
            config.callers.request_header.is_some(),
        ),
    ]
    .into_iter()
    .filter_map(|(flag, given)| (!given).then_some(flag))
    .collect();
    if config.upstream.endpoints.is_some() && config.upstream.front_proxy.is_none() {
        diagnostics.problem(
            "--upstream",
            None,
            "endpoints needs --proxy-client-cert-file and --proxy-client-key-file: the bridge reads the \
             EndpointSlices as --bridge-user",
        );
    }
    let is_enabled = (config.features).enabled(Feature::UnknownVersionInteroperabilityProxy);
    if is_enabled && !missing.is_empty() {
        let missing = missing.join(", ");
        diagnostics.warning(
            "--upstream",
            None,
            format!(
                "has several values without {missing}: requests are spread without regard to what \
                 each kube-apiserver serves; set {missing}"
            ),
        );
    }
}
