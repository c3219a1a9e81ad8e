//! From flags to [`Config`]: parses every value, and reads every file once.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use skewbridge_gateway::admission_guard::AdmissionGuard;
use skewbridge_gateway::config::{
    Admin, ApiServerIdentity, AuthenticationConfig, BridgeUser, Config, Egress, Etcd, Feature,
    Guards, Limits, Listen, LogFormat, Logs, MAX_UPSTREAMS, Peers, RegistryKind, RequestHeader,
    ServingTls, Shutdown, Streams, TlsVersion, TranslateStreams, Upstream, UpstreamServer,
    UpstreamStreams,
};
use skewbridge_gateway::field_guard::FieldGuard;
use skewbridge_gateway::tls::ca_conflict::{self, CaConflict};
use skewbridge_gateway::tls::files::{KeyPairFiles, load_ca};
use skewbridge_k8s_api::component::GuardedComponents;
use skewbridge_k8s_api::identity::IdentityHeaders;

use super::diagnostics::{Diagnostics, Problems, Warning};
use super::egress;
use super::features::features;
use super::flags::{
    AdminFlags, AuthenticationFlags, EtcdFlags, Flags, GenericFlags, LimitFlags, LogFlags,
    PeerFlags, ServingFlags, StreamFlags, UpstreamFlags,
};
use super::signatures;
use crate::flag_values::{self, Endpoint, Parsed};

/// kube-apiserver's default port.
const DEFAULT_UPSTREAM_PORT: u16 = 6443;

const ADMIN_ADDRESS: &str = "--admin-address";
const ADMIN_SECURE_ADDRESS: &str = "--admin-secure-address";

/// Parses a command line: a config and its warnings, or all errors. `service` is the Service of the
/// kube-apiservers, in a pod.
pub(crate) fn config(
    flags: &Flags,
    service: Option<Endpoint>,
) -> Result<(Config, Vec<Warning>), Problems> {
    let mut diagnostics = Diagnostics::default();
    let built = build(flags, service, &mut diagnostics);
    diagnostics.conclude(built)
}

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

/// Checks all flags, and records every error. A missing part has had its error recorded.
fn build(
    flags: &Flags,
    service: Option<Endpoint>,
    diagnostics: &mut Diagnostics,
) -> Option<Config> {
    let listen = listen(&flags.serving, &flags.generic, diagnostics);
    let serving = serving(&flags.serving, diagnostics);
    let callers = callers(&flags.authentication, diagnostics);
    let admin = admin(&flags.admin, diagnostics);
    let upstream = upstream(
        (&flags.upstream, service),
        listen.as_ref(),
        admin.as_ref(),
        diagnostics,
    );
    let features = features(&flags.features.feature_gates, diagnostics);
    let peers = peers(&flags.peers, &flags.etcd, diagnostics);
    let streams = streams(&flags.streams, diagnostics);
    let limits = limits(&flags.limits, diagnostics);
    let shutdown = shutdown(&flags.generic, diagnostics);
    let logs = logs(&flags.logs, diagnostics);
    let workers = workers(&flags.generic, diagnostics);

    check_front_proxy_present(flags, diagnostics);
    check_reviews_can_be_sent(flags, diagnostics);
    if let (Some(listen), Some(admin)) = (&listen, &admin) {
        check_listeners_differ(listen, admin, diagnostics);
    }

    let config = Config {
        listen: listen?,
        serving: serving?,
        callers,
        upstream: upstream?,
        peers: peers?,
        streams: streams?,
        features,
        limits: limits?,
        admin: admin?,
        shutdown: shutdown?,
        logs: logs?,
        workers: workers?,
    };
    warn_of_incomplete_peering(&flags.peers, &config, diagnostics);
    check_flags_of_many(flags, &config, diagnostics);
    check_front_proxy_is_not_user(&config, diagnostics);
    Some(config)
}

fn admin(flags: &AdminFlags, diagnostics: &mut Diagnostics) -> Option<Admin> {
    let address = diagnostics.value(
        ADMIN_ADDRESS,
        flag_values::loopback_socket(&flags.admin_address),
    );
    let secure = non_empty(flags.admin_secure_address.as_ref());
    let secure = secure.map(flag_values::any_socket).transpose();
    let secure_address = diagnostics.value(ADMIN_SECURE_ADDRESS, secure);
    let watch_target = non_empty(flags.watch_target.as_ref());
    let watch_target = watch_target.map(flag_values::released_minor).transpose();
    let watch_target = diagnostics.value("--watch-target", watch_target);
    Some(Admin {
        address: address?,
        secure_address: secure_address?,
        watch_target: watch_target?,
        // Set when all sources of flags are known.
        flags: BTreeMap::new(),
    })
}

fn listen(
    serving: &ServingFlags,
    generic: &GenericFlags,
    diagnostics: &mut Diagnostics,
) -> Option<Listen> {
    let bind_address = diagnostics.value("--bind-address", flag_values::ip(&serving.bind_address));
    let secure_port = diagnostics.value(
        "--secure-port",
        flag_values::number(&serving.secure_port, &(0..=u16::MAX)),
    );
    let advertise_address = non_empty(generic.advertise_address.as_ref())
        .and_then(|ip| diagnostics.value("--advertise-address", flag_values::advertised_ip(ip)));
    let proxy_protocol_cidrs = diagnostics.values(
        "--proxy-protocol-cidrs",
        &serving.proxy_protocol_cidrs,
        flag_values::cidr,
    );
    Some(Listen {
        proxy_protocol_cidrs,
        bind_address: bind_address?,
        secure_port: secure_port?,
        advertise_address,
    })
}

fn serving(flags: &ServingFlags, diagnostics: &mut Diagnostics) -> Option<ServingTls> {
    let cert = ("--tls-cert-file", non_empty(flags.tls_cert_file.as_ref()));
    let key = (
        "--tls-private-key-file",
        non_empty(flags.tls_private_key_file.as_ref()),
    );
    if cert.1.is_none() && key.1.is_none() {
        diagnostics.problem(cert.0, None, "required: the serving certificate");
        diagnostics.problem(key.0, None, "required: the private key of --tls-cert-file");
    }
    let key_pair = diagnostics.key_pair(cert, key);
    let min_version = diagnostics.value("--tls-min-version", tls_version(&flags.tls_min_version));
    Some(ServingTls {
        key_pair: key_pair?,
        min_version: min_version?,
    })
}

fn tls_version(text: &str) -> Parsed<TlsVersion> {
    if matches!(text, "VersionTLS10" | "VersionTLS11") {
        return Err(format!(
            "{text} is insecure (RFC 8996) and not supported; use VersionTLS12 or VersionTLS13"
        ));
    }
    flag_values::keyword(
        text,
        &[
            ("VersionTLS12", TlsVersion::Tls12),
            ("VersionTLS13", TlsVersion::Tls13),
        ],
    )
}

fn callers(flags: &AuthenticationFlags, diagnostics: &mut Diagnostics) -> AuthenticationConfig {
    const REQUEST_HEADER_CA: &str = "--requestheader-client-ca-file";
    let client_ca = diagnostics.ca(("--client-ca-file", non_empty(flags.client_ca_file.as_ref())));
    let path = non_empty(flags.requestheader_client_ca_file.as_ref());
    let peer_ca = diagnostics.ca((REQUEST_HEADER_CA, path));
    let allowed_names = diagnostics.values(
        "--requestheader-allowed-names",
        &flags.requestheader_allowed_names,
        |name| Ok(name.to_owned()),
    );
    let headers = identity_headers(flags, diagnostics);
    let (client_ca, users) = client_ca.unzip();
    let (peer_ca, proxies) = peer_ca.unzip();
    let callers = AuthenticationConfig {
        client_ca,
        request_header: peer_ca.map(|ca| RequestHeader { ca, allowed_names }),
        signatures: signatures::read(flags, &headers, diagnostics),
        headers,
    };
    if let (Some(users), Some(proxies)) = (users, proxies) {
        let conflict = ca_conflict::request_header_conflict(&callers, &proxies, &users);
        refuse(conflict, diagnostics);
    }
    callers
}

/// The front-proxy certificate must not authenticate as a user where it is presented to peers.
fn check_front_proxy_is_not_user(config: &Config, diagnostics: &mut Diagnostics) {
    let (Some(front_proxy), Some(client_ca)) =
        (&config.upstream.front_proxy, &config.callers.client_ca)
    else {
        return;
    };
    // Files that cannot be read have been reported.
    if let (Ok(front_proxy), Ok(client_ca)) = (front_proxy.load(), load_ca(client_ca)) {
        let conflict = ca_conflict::front_proxy_conflict(config, &front_proxy, &client_ca);
        refuse(conflict, diagnostics);
    }
}

fn refuse(conflict: Option<CaConflict>, diagnostics: &mut Diagnostics) {
    if let Some(conflict) = conflict {
        diagnostics.problem(conflict.flag(), Some(conflict.file()), conflict.message());
    }
}

fn identity_headers(flags: &AuthenticationFlags, diagnostics: &mut Diagnostics) -> IdentityHeaders {
    let username = diagnostics.values(
        "--requestheader-username-headers",
        &flags.requestheader_username_headers,
        flag_values::identity_header,
    );
    let uid = diagnostics.values(
        "--requestheader-uid-headers",
        &flags.requestheader_uid_headers,
        flag_values::identity_header,
    );
    let group = diagnostics.values(
        "--requestheader-group-headers",
        &flags.requestheader_group_headers,
        flag_values::identity_header,
    );
    let extra_prefix = diagnostics.values(
        "--requestheader-extra-headers-prefix",
        &flags.requestheader_extra_headers_prefix,
        flag_values::identity_prefix,
    );
    for prefix in &extra_prefix {
        let covered_header = [&username, &uid, &group]
            .into_iter()
            .flatten()
            .find(|name| name.as_str().starts_with(prefix.as_str()));
        if let Some(name) = covered_header {
            diagnostics.problem(
                "--requestheader-extra-headers-prefix",
                None,
                format!("{prefix:?} is too short: it would also match {name}"),
            );
        }
    }
    IdentityHeaders {
        username,
        uid,
        group,
        extra_prefix,
    }
}

fn upstream(
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

/// The keyword of `--upstream` for the servers that the `EndpointSlices` list.
const ENDPOINTS: &str = "endpoints";

/// A name in the certificate of every kube-apiserver, whatever its address is.
const LISTED_SERVER_NAME: &str = "kubernetes.default.svc";

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

/// With several values of `--upstream`, each is a peer of the others: flags by which bridges find
/// each other have no meaning.
fn check_flags_of_many(flags: &Flags, config: &Config, diagnostics: &mut Diagnostics) {
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
    let wanted = (config.features).enabled(Feature::UnknownVersionInteroperabilityProxy);
    if wanted && !missing.is_empty() {
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

fn peers(flags: &PeerFlags, etcd: &EtcdFlags, diagnostics: &mut Diagnostics) -> Option<Peers> {
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
    let guards = guards(flags, diagnostics);
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

/// Objects of a version that the cluster has left for longer are the business of its administrator.
const MAX_GUARD_RETENTION: Duration = Duration::from_hours(24);

/// The placement rules of `--guard-*`.
fn guards(flags: &PeerFlags, diagnostics: &mut Diagnostics) -> Option<Guards> {
    let components = guarded_components(&flags.guard_components);
    let components = diagnostics.value("--guard-components", components);
    let fields = diagnostics.value("--guard-fields", field_guard(&flags.guard_fields));
    let admission = admission_guard(&flags.guard_admission);
    let admission = diagnostics.value("--guard-admission", admission);
    let retention = non_empty(flags.guard_retention.as_ref());
    let retention = retention.map(guard_retention).transpose();
    let retention = diagnostics.value("--guard-retention", retention);
    Some(Guards {
        components: components?,
        fields: fields?,
        admission: admission?,
        retention: retention?,
    })
}

fn guard_retention(text: &str) -> Parsed<Duration> {
    let retention = flag_values::duration(text)?;
    if retention > MAX_GUARD_RETENTION {
        return Err(format!("{text} is more than 24h"));
    }
    Ok(retention)
}

fn field_guard(text: &str) -> Parsed<FieldGuard> {
    match text {
        "off" => Ok(FieldGuard::Off),
        "writes" => Ok(FieldGuard::Writes),
        "all" => Ok(FieldGuard::All),
        _ => Err(format!("{text:?} is not off, writes or all")),
    }
}

fn admission_guard(text: &str) -> Parsed<AdmissionGuard> {
    match text {
        "off" => Ok(AdmissionGuard::Off),
        "on" => Ok(AdmissionGuard::On),
        _ => Err(format!("{text:?} is not on or off")),
    }
}

/// The components of `--guard-components`.
fn guarded_components(values: &[String]) -> Parsed<GuardedComponents> {
    let names = flag_values::list(values)?;
    match names.as_slice() {
        [] => Ok(GuardedComponents::default()),
        [only] if only == "off" => Ok(GuardedComponents::none()),
        names => GuardedComponents::new(names.iter().map(String::as_str))
            .map_err(|error| error.to_string()),
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

/// More frequent pings would be most of the traffic.
const MIN_PING_INTERVAL: Duration = Duration::from_secs(1);

fn streams(flags: &StreamFlags, diagnostics: &mut Diagnostics) -> Option<Streams> {
    let words = [
        ("auto", TranslateStreams::Auto),
        ("always", TranslateStreams::Always),
        ("never", TranslateStreams::Never),
    ];
    let translate = diagnostics.value(
        "--translate-streams",
        flag_values::keyword(&flags.translate_streams, &words),
    );
    let ping_interval = diagnostics.value(
        "--stream-ping-interval",
        flag_values::duration(&flags.stream_ping_interval).and_then(|interval| {
            if interval.is_zero() || interval >= MIN_PING_INTERVAL {
                Ok(interval)
            } else {
                Err(format!(
                    "{:?} is too short: not less than 1s, or 0 for none",
                    flags.stream_ping_interval
                ))
            }
        }),
    );
    let idle_timeout = diagnostics.value(
        "--streaming-connection-idle-timeout",
        flag_values::duration(&flags.streaming_connection_idle_timeout),
    );
    let words = [
        ("any", UpstreamStreams::Any),
        ("websocket", UpstreamStreams::WebSocket),
    ];
    let upstream = diagnostics.value(
        "--upstream-streams",
        flag_values::keyword(&flags.upstream_streams, &words).and_then(|upstream| {
            if upstream == UpstreamStreams::WebSocket && translate == Some(TranslateStreams::Always)
            {
                return Err(
                    "\"websocket\" means that upstream gets no SPDY streams, and \
                     --translate-streams=always that it gets only SPDY streams: omit one of them"
                        .to_owned(),
                );
            }
            Ok(upstream)
        }),
    );
    Some(Streams {
        translate: translate?,
        upstream: upstream?,
        ping_interval: ping_interval?,
        idle_timeout: idle_timeout?,
    })
}

fn limits(flags: &LimitFlags, diagnostics: &mut Diagnostics) -> Option<Limits> {
    let max_connections = diagnostics.value(
        "--max-connections",
        flag_values::number(&flags.max_connections, &(1..=1_000_000)),
    );
    let reserved = non_empty(flags.reserved_connections.as_ref()).and_then(|count| {
        let less_than_all = 0..=max_connections.unwrap_or(1_000_000_usize) - 1;
        diagnostics.value(
            "--reserved-connections",
            flag_values::number(count, &less_than_all),
        )
    });
    let per_source = non_empty(flags.max_unauthenticated_connections_per_source.as_ref());
    let per_source = per_source.and_then(|count| {
        diagnostics.value(
            "--max-unauthenticated-connections-per-source",
            flag_values::number(count, &(1..=1_000_000)),
        )
    });
    let max_failures = diagnostics.value(
        "--max-authentication-failures-per-source",
        flag_values::number(
            &flags.max_authentication_failures_per_source,
            &(0..=1_000_000),
        ),
    );
    let max_streams = diagnostics.value(
        "--http2-max-streams-per-connection",
        flag_values::number(&flags.http2_max_streams_per_connection, &(0..=10_000)),
    );
    let goaway_chance = diagnostics.value("--goaway-chance", goaway_chance(&flags.goaway_chance));
    let max_buffered_bytes = diagnostics.value(
        "--max-buffered-bytes",
        // From a few stalled responses to the memory of any machine.
        flag_values::bytes(&flags.max_buffered_bytes, &((1 << 20)..=(1 << 40))),
    );
    let handshake_timeout = diagnostics.value(
        "--tls-handshake-timeout",
        flag_values::timeout(&flags.tls_handshake_timeout),
    );
    let read_header_timeout = diagnostics.value(
        "--read-header-timeout",
        flag_values::timeout(&flags.read_header_timeout),
    );
    let idle_timeout =
        diagnostics.value("--idle-timeout", flag_values::timeout(&flags.idle_timeout));
    let request_timeout = diagnostics.value(
        "--request-timeout",
        flag_values::timeout(&flags.request_timeout),
    );
    Some(Limits {
        max_connections: max_connections?,
        reserved_connections: reserved,
        max_unauthenticated_connections_per_source: per_source,
        max_authentication_failures_per_source: max_failures?,
        max_streams_per_connection: match max_streams? {
            // As in kube-apiserver.
            0 => Limits::default().max_streams_per_connection,
            count => count,
        },
        goaway_chance: goaway_chance?,
        max_buffered_bytes: max_buffered_bytes?,
        handshake_timeout: handshake_timeout?,
        read_header_timeout: read_header_timeout?,
        idle_timeout: idle_timeout?,
        request_timeout: request_timeout?,
        ..Limits::default()
    })
}

/// The range of kube-apiserver.
fn goaway_chance(text: &str) -> Parsed<f64> {
    let chance = text.parse().ok();
    let chance = chance.filter(|it| (0.0..=0.02).contains(it));
    chance.ok_or_else(|| format!("{text:?} is not a number from 0 to 0.02"))
}

fn shutdown(flags: &GenericFlags, diagnostics: &mut Diagnostics) -> Option<Shutdown> {
    let delay = diagnostics.value(
        "--shutdown-delay-duration",
        flag_values::duration(&flags.shutdown_delay_duration),
    );
    let drain = diagnostics.value(
        "--shutdown-drain-timeout",
        flag_values::duration(&flags.shutdown_drain_timeout),
    );
    Some(Shutdown {
        delay: delay?,
        drain: drain?,
    })
}

fn logs(flags: &LogFlags, diagnostics: &mut Diagnostics) -> Option<Logs> {
    let verbosity = diagnostics.value("--v", flag_values::number(&flags.v, &(0..=10)));
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let format = diagnostics.value(
        "--log-format",
        flag_values::keyword(&flags.log_format, &formats),
    );
    Some(Logs {
        verbosity: verbosity?,
        format: format?,
    })
}

fn workers(flags: &GenericFlags, diagnostics: &mut Diagnostics) -> Option<NonZeroUsize> {
    let Some(count) = non_empty(flags.worker_threads.as_ref()) else {
        return Some(available_parallelism().unwrap_or(NonZeroUsize::MIN));
    };
    let count = flag_values::number(count, &(1..=1024));
    diagnostics
        .value("--worker-threads", count)
        .and_then(NonZeroUsize::new)
}

/// Users that the bridge authenticates must be asserted to the upstream.
fn check_front_proxy_present(flags: &Flags, diagnostics: &mut Diagnostics) {
    let front_proxy = [
        &flags.upstream.proxy_client_cert_file,
        &flags.upstream.proxy_client_key_file,
    ];
    if front_proxy
        .iter()
        .any(|file| non_empty(file.as_ref()).is_some())
    {
        return;
    }
    let authentication = &flags.authentication;
    let recognises = [
        ("--client-ca-file", &authentication.client_ca_file),
        (
            "--requestheader-client-ca-file",
            &authentication.requestheader_client_ca_file,
        ),
        ("--http-signature-keys", &authentication.http_signature_keys),
    ];
    let recognises = recognises
        .iter()
        .find(|(_, file)| non_empty(file.as_ref()).is_some());
    if let Some((flag, _)) = recognises {
        diagnostics.problem(
            "--proxy-client-cert-file",
            None,
            format!(
                "required with {flag}, as is --proxy-client-key-file: without them the \
                 upstream would not accept the users that the bridge asserts"
            ),
        );
    }
}

/// Warns if peer flags are given and peering stays off.
fn warn_of_incomplete_peering(flags: &PeerFlags, config: &Config, diagnostics: &mut Diagnostics) {
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
    let wanted = (config.features).enabled(Feature::UnknownVersionInteroperabilityProxy)
        && !config.upstream.is_balanced();
    if wanted && !given.is_empty() && !missing.is_empty() {
        let missing = missing.join(", ");
        diagnostics.warning(
            &given.join(", "),
            None,
            format!("has no effect without {missing}: peering is off; set {missing}"),
        );
    }
}

/// With the defaults, a bridge on the kube-apiserver's own port would be its own upstream.
fn check_upstream_is_not_self(
    listen: &Listen,
    host: &str,
    port: u16,
    diagnostics: &mut Diagnostics,
) {
    let ours = ip_of(host).is_some_and(|ip| {
        ip == listen.bind_address
            || Some(ip) == listen.advertise_address
            || (listen.bind_address.is_unspecified() && (ip.is_loopback() || ip.is_unspecified()))
    });
    if ours && port == listen.secure_port {
        diagnostics.problem(
            "--upstream",
            None,
            format!(
                "{host}:{port} is where this bridge listens; use another port for kube-apiserver, \
                 or another --secure-port for the bridge",
            ),
        );
    }
}

fn check_upstream_is_not_admin(
    admin: &Admin,
    host: &str,
    port: u16,
    diagnostics: &mut Diagnostics,
) {
    for (flag, address) in admin_ports(admin) {
        if port == address.port() && ip_of(host) == Some(address.ip()) {
            let message =
                format!("{host}:{port} is this bridge's {flag}; set the address of kube-apiserver");
            diagnostics.problem("--upstream", None, message);
        }
    }
}

/// The admin ports and their flags.
fn admin_ports(admin: &Admin) -> impl Iterator<Item = (&'static str, SocketAddr)> {
    let secure = admin.secure_address.map(|it| (ADMIN_SECURE_ADDRESS, it));
    [(ADMIN_ADDRESS, admin.address)].into_iter().chain(secure)
}

/// The address of a host that needs no resolver.
fn ip_of(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some([127, 0, 0, 1].into()),
        host => host.parse().ok(),
    }
}

fn check_listeners_differ(listen: &Listen, admin: &Admin, diagnostics: &mut Diagnostics) {
    let main = SocketAddr::new(listen.bind_address, listen.secure_port);
    for (flag, address) in admin_ports(admin) {
        if are_one_port(main, address) {
            let message = format!("{address} is used by --secure-port; choose another port");
            diagnostics.problem(flag, None, message);
        }
    }
    if let Some(secure) = admin.secure_address
        && are_one_port(admin.address, secure)
    {
        let message = format!("{secure} is used by {ADMIN_ADDRESS}; choose another port");
        diagnostics.problem(ADMIN_SECURE_ADDRESS, None, message);
    }
}

/// Whether two listeners cannot both be opened.
fn are_one_port(one: SocketAddr, other: SocketAddr) -> bool {
    let same_ip =
        one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    same_ip && one.port() != 0 && one.port() == other.port()
}

/// Reviews are sent as `--bridge-user`, which the front-proxy certificate asserts.
fn check_reviews_can_be_sent(flags: &Flags, diagnostics: &mut Diagnostics) {
    let secure = non_empty(flags.admin.admin_secure_address.as_ref());
    if secure.is_some() && non_empty(flags.upstream.proxy_client_cert_file.as_ref()).is_none() {
        let message = "needs --proxy-client-cert-file, with which the bridge asks kube-apiserver \
                       who may read the port";
        diagnostics.problem(ADMIN_SECURE_ADDRESS, None, message);
    }
}

/// The value of a flag; as with kube-apiserver, an empty value is no file.
fn non_empty(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|value| !value.is_empty())
}

fn required<'a>(value: Option<&'a String>, what: &str) -> Parsed<&'a str> {
    non_empty(value).ok_or_else(|| format!("required: {what}"))
}

#[cfg(test)]
mod tests;
