//! From flags to [`Config`]: every value understood, every file read once.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use skewbridge_api::identity::IdentityHeaders;
use skewbridge_gateway::config::{
    Admin, ApiServerIdentity, BridgeUser, Callers, Config, Egress, Etcd, Feature, Limits, Listen,
    LogFormat, Logs, Peers, RegistryKind, RequestHeader, Serving, Shutdown, Streams, TlsVersion,
    TranslateStreams, Upstream, UpstreamStreams,
};
use skewbridge_gateway::tls::ca_conflict::{self, CaConflict};
use skewbridge_gateway::tls::files::{KeyPairFiles, load_ca};

use super::egress;
use super::features::features;
use super::findings::{Findings, Problems, Warning};
use super::flags::{
    AuthenticationFlags, EtcdFlags, Flags, GenericFlags, LimitFlags, LogFlags, PeerFlags,
    ServingFlags, StreamFlags, UpstreamFlags,
};
use super::parse::{self, Endpoint, Parsed};
use super::signatures;

/// Where kube-apiserver listens unless told otherwise.
const DEFAULT_UPSTREAM_PORT: u16 = 6443;

/// Understands a command line: a config and what its administrator should
/// know, or everything that is wrong with it.
pub(crate) fn config(flags: &Flags) -> Result<(Config, Vec<Warning>), Problems> {
    let mut findings = Findings::default();
    let built = build(flags, &mut findings);
    findings.conclude(built)
}

/// Goes through all of the flags whatever it finds; a part that is missing in
/// the end has had its problem noted.
fn build(flags: &Flags, findings: &mut Findings) -> Option<Config> {
    let listen = listen(&flags.serving, &flags.generic, findings);
    let serving = serving(&flags.serving, findings);
    let callers = callers(&flags.authentication, findings);
    let admin = findings.value(
        "--admin-address",
        parse::loopback_socket(&flags.admin.admin_address),
    );
    let upstream = upstream(&flags.upstream, listen.as_ref(), admin, findings);
    let features = features(&flags.features.feature_gates, findings);
    let peers = peers(&flags.peers, &flags.etcd, findings);
    let streams = streams(&flags.streams, findings);
    let limits = limits(&flags.limits, findings);
    let shutdown = shutdown(&flags.generic, findings);
    let logs = logs(&flags.logs, findings);
    let workers = workers(&flags.generic, findings);

    front_proxy_where_needed(flags, findings);
    if let (Some(listen), Some(admin)) = (&listen, admin) {
        no_clash(listen, admin, findings);
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
        admin: Admin { address: admin? },
        shutdown: shutdown?,
        logs: logs?,
        workers: workers?,
    };
    peers_need_more(&flags.peers, &config, findings);
    front_proxy_is_no_user(&config, findings);
    Some(config)
}

fn listen(
    serving: &ServingFlags,
    generic: &GenericFlags,
    findings: &mut Findings,
) -> Option<Listen> {
    let bind_address = findings.value("--bind-address", parse::ip(&serving.bind_address));
    let secure_port = findings.value(
        "--secure-port",
        parse::number(&serving.secure_port, &(0..=u16::MAX)),
    );
    let advertise_address = given(generic.advertise_address.as_ref())
        .and_then(|ip| findings.value("--advertise-address", parse::advertised_ip(ip)));
    Some(Listen {
        bind_address: bind_address?,
        secure_port: secure_port?,
        advertise_address,
    })
}

fn serving(flags: &ServingFlags, findings: &mut Findings) -> Option<Serving> {
    let cert = ("--tls-cert-file", given(flags.tls_cert_file.as_ref()));
    let key = (
        "--tls-private-key-file",
        given(flags.tls_private_key_file.as_ref()),
    );
    if cert.1.is_none() && key.1.is_none() {
        findings.problem(cert.0, None, "required: the certificate shown to clients");
        findings.problem(key.0, None, "required: the private key of --tls-cert-file");
    }
    let key_pair = findings.key_pair(cert, key);
    let min_version = findings.value("--tls-min-version", tls_version(&flags.tls_min_version));
    Some(Serving {
        key_pair: key_pair?,
        min_version: min_version?,
    })
}

fn tls_version(text: &str) -> Parsed<TlsVersion> {
    if matches!(text, "VersionTLS10" | "VersionTLS11") {
        return Err(format!(
            "{text} is not offered, being insecure (RFC 8996); use VersionTLS12 or VersionTLS13"
        ));
    }
    parse::word(
        text,
        &[
            ("VersionTLS12", TlsVersion::Tls12),
            ("VersionTLS13", TlsVersion::Tls13),
        ],
    )
}

fn callers(flags: &AuthenticationFlags, findings: &mut Findings) -> Callers {
    const REQUEST_HEADER_CA: &str = "--requestheader-client-ca-file";
    let client_ca = findings.ca(("--client-ca-file", given(flags.client_ca_file.as_ref())));
    let path = given(flags.requestheader_client_ca_file.as_ref());
    let peer_ca = findings.ca((REQUEST_HEADER_CA, path));
    let allowed_names = findings.values(
        "--requestheader-allowed-names",
        &flags.requestheader_allowed_names,
        |name| Ok(name.to_owned()),
    );
    let headers = identity_headers(flags, findings);
    let (client_ca, users) = client_ca.unzip();
    let (peer_ca, proxies) = peer_ca.unzip();
    let callers = Callers {
        client_ca,
        request_header: peer_ca.map(|ca| RequestHeader { ca, allowed_names }),
        signatures: signatures::read(flags, &headers, findings),
        headers,
    };
    if let (Some(users), Some(proxies)) = (users, proxies) {
        let conflict = ca_conflict::request_header_conflict(&callers, &proxies, &users);
        refuse(conflict, findings);
    }
    callers
}

/// The front-proxy certificate must not be a user's where it is presented to peers.
fn front_proxy_is_no_user(config: &Config, findings: &mut Findings) {
    let (Some(front_proxy), Some(client_ca)) =
        (&config.upstream.front_proxy, &config.callers.client_ca)
    else {
        return;
    };
    // Files that cannot be read have been reported.
    if let (Ok(front_proxy), Ok(client_ca)) = (front_proxy.load(), load_ca(client_ca)) {
        let conflict = ca_conflict::front_proxy_conflict(config, &front_proxy, &client_ca);
        refuse(conflict, findings);
    }
}

fn refuse(conflict: Option<CaConflict>, findings: &mut Findings) {
    if let Some(conflict) = conflict {
        findings.problem(conflict.flag(), Some(conflict.file()), conflict.message());
    }
}

fn identity_headers(flags: &AuthenticationFlags, findings: &mut Findings) -> IdentityHeaders {
    let username = findings.values(
        "--requestheader-username-headers",
        &flags.requestheader_username_headers,
        parse::identity_header,
    );
    let uid = findings.values(
        "--requestheader-uid-headers",
        &flags.requestheader_uid_headers,
        parse::identity_header,
    );
    let group = findings.values(
        "--requestheader-group-headers",
        &flags.requestheader_group_headers,
        parse::identity_header,
    );
    let extra_prefix = findings.values(
        "--requestheader-extra-headers-prefix",
        &flags.requestheader_extra_headers_prefix,
        parse::identity_prefix,
    );
    for prefix in &extra_prefix {
        let swallowed = [&username, &uid, &group]
            .into_iter()
            .flatten()
            .find(|name| name.as_str().starts_with(prefix.as_str()));
        if let Some(name) = swallowed {
            findings.problem(
                "--requestheader-extra-headers-prefix",
                None,
                format!("{prefix:?} is too short: it would take {name} for itself"),
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
    flags: &UpstreamFlags,
    listen: Option<&Listen>,
    admin: Option<SocketAddr>,
    findings: &mut Findings,
) -> Option<Upstream> {
    let endpoint = required(
        flags.upstream.as_ref(),
        "https://HOST[:PORT] of the kube-apiserver",
    )
    .and_then(https_endpoint);
    let endpoint = findings.value("--upstream", endpoint);
    let ca = findings.value(
        "--upstream-ca-file",
        required(
            flags.upstream_ca_file.as_ref(),
            "the CA that signs its certificate; the system's are not used",
        ),
    );
    let ca = findings.ca(("--upstream-ca-file", ca));
    let server_name = given(flags.upstream_server_name.as_ref())
        .and_then(|name| findings.value("--upstream-server-name", parse::server_name(name)));
    let front_proxy = front_proxy(flags, findings);
    let bridge_user = bridge_user(flags, findings);
    let Endpoint { host, port, .. } = endpoint?;
    let port = port.unwrap_or(DEFAULT_UPSTREAM_PORT);
    if let Some(listen) = listen {
        no_loop(listen, &host, port, findings);
    }
    if let Some(admin) = admin {
        not_the_admin(admin, &host, port, findings);
    }
    let server_name = server_name.or_else(|| parse::server_name(&host).ok());
    Some(Upstream {
        server_name: server_name?,
        host,
        port,
        ca: ca?.0,
        front_proxy,
        bridge_user: bridge_user?,
    })
}

fn https_endpoint(text: &str) -> Parsed<Endpoint> {
    let endpoint = parse::endpoint(text)?;
    if endpoint.secure {
        Ok(endpoint)
    } else {
        Err(format!(
            "{text:?} is not https, and identities do not travel in the clear; use https://"
        ))
    }
}

fn front_proxy(flags: &UpstreamFlags, findings: &mut Findings) -> Option<KeyPairFiles> {
    findings.key_pair(
        (
            "--proxy-client-cert-file",
            given(flags.proxy_client_cert_file.as_ref()),
        ),
        (
            "--proxy-client-key-file",
            given(flags.proxy_client_key_file.as_ref()),
        ),
    )
}

fn bridge_user(flags: &UpstreamFlags, findings: &mut Findings) -> Option<BridgeUser> {
    let default = BridgeUser::default();
    let name = findings.value("--bridge-user", bridge_user_name(&flags.bridge_user));
    let groups = findings.values("--bridge-groups", &flags.bridge_groups, bridge_group);
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
            Err("system:anonymous has no rights of its own; give another user".to_owned())
        }
        name => Ok(name.to_owned()),
    }
}

fn bridge_group(text: &str) -> Parsed<String> {
    match asserted(text)?.as_str() {
        "system:unauthenticated" => Err(
            "system:unauthenticated is the group of requests without a user; leave it out"
                .to_owned(),
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
        Err("is empty; give a name".to_owned())
    } else if !is_plain || text.trim() != text {
        Err(format!(
            "{text:?} cannot be sent in a header; use ASCII without surrounding spaces"
        ))
    } else {
        Ok(text.to_owned())
    }
}

fn peers(flags: &PeerFlags, etcd: &EtcdFlags, findings: &mut Findings) -> Option<Peers> {
    let identity = findings.value("--apiserver-identity", identity(&flags.apiserver_identity));
    let ca = findings.ca(("--peer-ca-file", given(flags.peer_ca_file.as_ref())));
    let advertise_ip = given(flags.peer_advertise_ip.as_ref())
        .and_then(|ip| findings.value("--peer-advertise-ip", parse::advertised_ip(ip)));
    let advertise_port = given(flags.peer_advertise_port.as_ref()).and_then(|port| {
        findings.value(
            "--peer-advertise-port",
            parse::number(port, &(1..=u16::MAX)),
        )
    });
    let cidrs = findings.values("--peer-cidrs", &flags.peer_cidrs, parse::cidr);
    let registry = registry(given(flags.peer_registry.as_ref()).unwrap_or("etcd"));
    let registry = findings.value("--peer-registry", registry);
    match &registry {
        Some(RegistryKind::Leases) if flags.peer_cidrs.is_empty() => findings.problem(
            "--peer-cidrs",
            None,
            "required with --peer-registry=leases: whoever may write Leases could otherwise \
             send requests anywhere",
        ),
        Some(RegistryKind::File(path)) => {
            let read = skewbridge_peer_directory::registry::file::read(path, &cidrs);
            for wrong in read.err().unwrap_or_default() {
                findings.problem("--peer-registry", Some(path), wrong);
            }
        }
        _ => {}
    }
    let egress = match given(flags.egress_selector_config_file.as_ref()) {
        Some(path) => egress::read(Path::new(path), findings),
        None => Some(Egress::Direct),
    };
    let etcd = self::etcd(etcd, findings);
    Some(Peers {
        identity: identity?,
        registry: registry?,
        ca: ca.map(|(path, _)| path),
        advertise_ip,
        advertise_port,
        cidrs,
        state_dir: given(flags.state_dir.as_ref()).map(PathBuf::from),
        etcd: etcd?,
        egress: egress?,
    })
}

fn identity(text: &str) -> Parsed<ApiServerIdentity> {
    match text {
        "auto" => Ok(ApiServerIdentity::Auto),
        name => parse::dns_subdomain(name).map(ApiServerIdentity::Named),
    }
}

fn registry(text: &str) -> Parsed<RegistryKind> {
    match text.split_once(':') {
        None if text == "etcd" => Ok(RegistryKind::Etcd),
        None if text == "leases" => Ok(RegistryKind::Leases),
        Some(("file", path)) if !path.is_empty() => Ok(RegistryKind::File(path.into())),
        _ => Err(format!("{text:?} is not one of etcd, leases, file:PATH")),
    }
}

fn etcd(flags: &EtcdFlags, findings: &mut Findings) -> Option<Etcd> {
    let servers = findings.values("--etcd-servers", &flags.etcd_servers, etcd_server);
    let ca = ("--etcd-cafile", given(flags.etcd_cafile.as_ref()));
    if ca.1.is_none() && servers.iter().any(|server| server.secure) {
        findings.problem(
            ca.0,
            None,
            "required with https in --etcd-servers; the system's CAs are not used",
        );
    }
    let ca = findings.ca(ca);
    let key_pair = findings.key_pair(
        ("--etcd-certfile", given(flags.etcd_certfile.as_ref())),
        ("--etcd-keyfile", given(flags.etcd_keyfile.as_ref())),
    );
    let prefix = findings.value("--etcd-prefix", etcd_prefix(&flags.etcd_prefix));
    Some(Etcd {
        servers: servers.into_iter().map(|server| server.uri).collect(),
        ca: ca.map(|(path, _)| path),
        key_pair,
        prefix: prefix?,
    })
}

fn etcd_server(text: &str) -> Parsed<Endpoint> {
    let endpoint = parse::endpoint(text)?;
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

/// What is pinged more often has nothing else to do.
const SHORTEST_PING: Duration = Duration::from_secs(1);

fn streams(flags: &StreamFlags, findings: &mut Findings) -> Option<Streams> {
    let words = [
        ("auto", TranslateStreams::Auto),
        ("always", TranslateStreams::Always),
        ("never", TranslateStreams::Never),
    ];
    let translate = findings.value(
        "--translate-streams",
        parse::word(&flags.translate_streams, &words),
    );
    let ping_interval = findings.value(
        "--stream-ping-interval",
        parse::duration(&flags.stream_ping_interval).and_then(|interval| {
            if interval.is_zero() || interval >= SHORTEST_PING {
                Ok(interval)
            } else {
                Err(format!(
                    "{:?} is too short: not less than 1s, or 0 for none",
                    flags.stream_ping_interval
                ))
            }
        }),
    );
    let idle_timeout = findings.value(
        "--streaming-connection-idle-timeout",
        parse::duration(&flags.streaming_connection_idle_timeout),
    );
    let words = [
        ("any", UpstreamStreams::Any),
        ("websocket", UpstreamStreams::WebSocket),
    ];
    let upstream = findings.value(
        "--upstream-streams",
        parse::word(&flags.upstream_streams, &words).and_then(|upstream| {
            if upstream == UpstreamStreams::WebSocket && translate == Some(TranslateStreams::Always)
            {
                return Err(
                    "\"websocket\" says that upstream gets no SPDY, and --translate-streams=always \
                     that it gets nothing else: leave one of them out"
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

fn limits(flags: &LimitFlags, findings: &mut Findings) -> Option<Limits> {
    let max_connections = findings.value(
        "--max-connections",
        parse::number(&flags.max_connections, &(1..=1_000_000)),
    );
    let reserved = given(flags.reserved_connections.as_ref()).and_then(|count| {
        let less_than_all = 0..=max_connections.unwrap_or(1_000_000_usize) - 1;
        findings.value(
            "--reserved-connections",
            parse::number(count, &less_than_all),
        )
    });
    let per_source = given(flags.max_unauthenticated_connections_per_source.as_ref());
    let per_source = per_source.and_then(|count| {
        findings.value(
            "--max-unauthenticated-connections-per-source",
            parse::number(count, &(1..=1_000_000)),
        )
    });
    let max_failures = findings.value(
        "--max-authentication-failures-per-source",
        parse::number(
            &flags.max_authentication_failures_per_source,
            &(0..=1_000_000),
        ),
    );
    let max_streams = findings.value(
        "--http2-max-streams-per-connection",
        parse::number(&flags.http2_max_streams_per_connection, &(0..=10_000)),
    );
    let max_buffered_bytes = findings.value(
        "--max-buffered-bytes",
        // A few stalled answers, and what fits any machine.
        parse::bytes(&flags.max_buffered_bytes, &((1 << 20)..=(1 << 40))),
    );
    let handshake_timeout = findings.value(
        "--tls-handshake-timeout",
        parse::timeout(&flags.tls_handshake_timeout),
    );
    let read_header_timeout = findings.value(
        "--read-header-timeout",
        parse::timeout(&flags.read_header_timeout),
    );
    let idle_timeout = findings.value("--idle-timeout", parse::timeout(&flags.idle_timeout));
    let request_timeout =
        findings.value("--request-timeout", parse::timeout(&flags.request_timeout));
    Some(Limits {
        max_connections: max_connections?,
        reserved_connections: reserved,
        max_unauthenticated_connections_per_source: per_source,
        max_authentication_failures_per_source: max_failures?,
        max_streams_per_connection: match max_streams? {
            // As with kube-apiserver.
            0 => Limits::default().max_streams_per_connection,
            count => count,
        },
        max_buffered_bytes: max_buffered_bytes?,
        handshake_timeout: handshake_timeout?,
        read_header_timeout: read_header_timeout?,
        idle_timeout: idle_timeout?,
        request_timeout: request_timeout?,
        ..Limits::default()
    })
}

fn shutdown(flags: &GenericFlags, findings: &mut Findings) -> Option<Shutdown> {
    let delay = findings.value(
        "--shutdown-delay-duration",
        parse::duration(&flags.shutdown_delay_duration),
    );
    let drain = findings.value(
        "--shutdown-drain-timeout",
        parse::duration(&flags.shutdown_drain_timeout),
    );
    Some(Shutdown {
        delay: delay?,
        drain: drain?,
    })
}

fn logs(flags: &LogFlags, findings: &mut Findings) -> Option<Logs> {
    let verbosity = findings.value("--v", parse::number(&flags.v, &(0..=10)));
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let format = findings.value("--log-format", parse::word(&flags.log_format, &formats));
    Some(Logs {
        verbosity: verbosity?,
        format: format?,
    })
}

fn workers(flags: &GenericFlags, findings: &mut Findings) -> Option<NonZeroUsize> {
    let Some(count) = given(flags.worker_threads.as_ref()) else {
        return Some(available_parallelism().unwrap_or(NonZeroUsize::MIN));
    };
    let count = parse::number(count, &(1..=1024));
    findings
        .value("--worker-threads", count)
        .and_then(NonZeroUsize::new)
}

/// Users that the bridge recognises have to be asserted to the upstream.
fn front_proxy_where_needed(flags: &Flags, findings: &mut Findings) {
    let front_proxy = [
        &flags.upstream.proxy_client_cert_file,
        &flags.upstream.proxy_client_key_file,
    ];
    if front_proxy
        .iter()
        .any(|file| given(file.as_ref()).is_some())
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
        .find(|(_, file)| given(file.as_ref()).is_some());
    if let Some((flag, _)) = recognises {
        findings.problem(
            "--proxy-client-cert-file",
            None,
            format!(
                "required with {flag}, as is --proxy-client-key-file: without them the \
                 upstream would not believe who the bridge says a client is"
            ),
        );
    }
}

/// Says so where somebody expects peers and there will be none; without these
/// flags nobody does.
fn peers_need_more(flags: &PeerFlags, config: &Config, findings: &mut Findings) {
    let peers = &config.peers;
    let given: Vec<_> = [
        ("--peer-ca-file", peers.ca.is_some()),
        (
            "--peer-registry",
            given(flags.peer_registry.as_ref()).is_some(),
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
    let wanted = (config.features).enabled(Feature::UnknownVersionInteroperabilityProxy);
    if wanted && !given.is_empty() && !missing.is_empty() {
        let missing = missing.join(", ");
        findings.warning(
            &given.join(", "),
            None,
            format!("of no use without {missing}: there will be no peers; give {missing}"),
        );
    }
}

/// With every default, a bridge on the kube-apiserver's own port would be its
/// own upstream.
fn no_loop(listen: &Listen, host: &str, port: u16, findings: &mut Findings) {
    let ours = ip_of(host).is_some_and(|ip| {
        ip == listen.bind_address
            || Some(ip) == listen.advertise_address
            || (listen.bind_address.is_unspecified() && (ip.is_loopback() || ip.is_unspecified()))
    });
    if ours && port == listen.secure_port {
        findings.problem(
            "--upstream",
            None,
            format!(
                "{host}:{port} is where this bridge listens; give the kube-apiserver another port, \
                 or the bridge another --secure-port",
            ),
        );
    }
}

fn not_the_admin(admin: SocketAddr, host: &str, port: u16, findings: &mut Findings) {
    if port == admin.port() && ip_of(host) == Some(admin.ip()) {
        findings.problem(
            "--upstream",
            None,
            format!("{host}:{port} is this bridge's --admin-address; give the kube-apiserver's"),
        );
    }
}

/// The address of a host that needs no resolver.
fn ip_of(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some([127, 0, 0, 1].into()),
        host => host.parse().ok(),
    }
}

fn no_clash(listen: &Listen, admin: SocketAddr, findings: &mut Findings) {
    let same_ip = listen.bind_address == admin.ip() || listen.bind_address.is_unspecified();
    if same_ip && admin.port() != 0 && admin.port() == listen.secure_port {
        let message = format!("{admin} is taken by --secure-port; choose another port");
        findings.problem("--admin-address", None, message);
    }
}

/// A flag that was given something; as with kube-apiserver, nothing is no file.
fn given(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|value| !value.is_empty())
}

fn required<'a>(value: Option<&'a String>, what: &str) -> Parsed<&'a str> {
    given(value).ok_or_else(|| format!("required: {what}"))
}

#[cfg(test)]
mod tests;
