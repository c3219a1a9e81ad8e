//! From flags to [`Config`]: parses every value, and reads every file once.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use skewbridge_gateway::config::{
    Admin, ApiServerIdentity, AuthenticationConfig, BridgeUser, Config, Egress, Etcd, Feature,
    Limits, Listen, LogFormat, Logs, Peers, RegistryKind, RequestHeader, ServingTls, Shutdown,
    Streams, TlsVersion, TranslateStreams, Upstream, UpstreamStreams,
};
use skewbridge_gateway::tls::ca_conflict::{self, CaConflict};
use skewbridge_gateway::tls::files::{KeyPairFiles, load_ca};
use skewbridge_k8s_api::component::GuardedComponents;
use skewbridge_k8s_api::identity::IdentityHeaders;

use super::diagnostics::{Diagnostics, Problems, Warning};
use super::egress;
use super::features::features;
use super::flags::{
    AuthenticationFlags, EtcdFlags, Flags, GenericFlags, LimitFlags, LogFlags, PeerFlags,
    ServingFlags, StreamFlags, UpstreamFlags,
};
use super::parse::{self, Endpoint, Parsed};
use super::signatures;

/// kube-apiserver's default port.
const DEFAULT_UPSTREAM_PORT: u16 = 6443;

/// Parses a command line: a config and its warnings, or all errors.
pub(crate) fn config(flags: &Flags) -> Result<(Config, Vec<Warning>), Problems> {
    let mut diagnostics = Diagnostics::default();
    let built = build(flags, &mut diagnostics);
    diagnostics.conclude(built)
}

/// Checks all flags, and records every error. A missing part has had its error recorded.
fn build(flags: &Flags, diagnostics: &mut Diagnostics) -> Option<Config> {
    let listen = listen(&flags.serving, &flags.generic, diagnostics);
    let serving = serving(&flags.serving, diagnostics);
    let callers = callers(&flags.authentication, diagnostics);
    let admin = diagnostics.value(
        "--admin-address",
        parse::loopback_socket(&flags.admin.admin_address),
    );
    let upstream = upstream(&flags.upstream, listen.as_ref(), admin, diagnostics);
    let features = features(&flags.features.feature_gates, diagnostics);
    let peers = peers(&flags.peers, &flags.etcd, diagnostics);
    let streams = streams(&flags.streams, diagnostics);
    let limits = limits(&flags.limits, diagnostics);
    let shutdown = shutdown(&flags.generic, diagnostics);
    let logs = logs(&flags.logs, diagnostics);
    let workers = workers(&flags.generic, diagnostics);

    check_front_proxy_present(flags, diagnostics);
    if let (Some(listen), Some(admin)) = (&listen, admin) {
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
        admin: Admin { address: admin? },
        shutdown: shutdown?,
        logs: logs?,
        workers: workers?,
    };
    warn_of_incomplete_peering(&flags.peers, &config, diagnostics);
    check_front_proxy_is_not_user(&config, diagnostics);
    Some(config)
}

fn listen(
    serving: &ServingFlags,
    generic: &GenericFlags,
    diagnostics: &mut Diagnostics,
) -> Option<Listen> {
    let bind_address = diagnostics.value("--bind-address", parse::ip(&serving.bind_address));
    let secure_port = diagnostics.value(
        "--secure-port",
        parse::number(&serving.secure_port, &(0..=u16::MAX)),
    );
    let advertise_address = non_empty(generic.advertise_address.as_ref())
        .and_then(|ip| diagnostics.value("--advertise-address", parse::advertised_ip(ip)));
    Some(Listen {
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
    parse::keyword(
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
        parse::identity_header,
    );
    let uid = diagnostics.values(
        "--requestheader-uid-headers",
        &flags.requestheader_uid_headers,
        parse::identity_header,
    );
    let group = diagnostics.values(
        "--requestheader-group-headers",
        &flags.requestheader_group_headers,
        parse::identity_header,
    );
    let extra_prefix = diagnostics.values(
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
    flags: &UpstreamFlags,
    listen: Option<&Listen>,
    admin: Option<SocketAddr>,
    diagnostics: &mut Diagnostics,
) -> Option<Upstream> {
    let endpoint = required(
        flags.upstream.as_ref(),
        "https://HOST[:PORT] of the kube-apiserver",
    )
    .and_then(https_endpoint);
    let endpoint = diagnostics.value("--upstream", endpoint);
    let ca = diagnostics.value(
        "--upstream-ca-file",
        required(
            flags.upstream_ca_file.as_ref(),
            "the CA that signs its certificate; the system's are not used",
        ),
    );
    let ca = diagnostics.ca(("--upstream-ca-file", ca));
    let server_name = non_empty(flags.upstream_server_name.as_ref())
        .and_then(|name| diagnostics.value("--upstream-server-name", parse::server_name(name)));
    let front_proxy = front_proxy(flags, diagnostics);
    let bridge_user = bridge_user(flags, diagnostics);
    let Endpoint { host, port, .. } = endpoint?;
    let port = port.unwrap_or(DEFAULT_UPSTREAM_PORT);
    if let Some(listen) = listen {
        check_upstream_is_not_self(listen, &host, port, diagnostics);
    }
    if let Some(admin) = admin {
        check_upstream_is_not_admin(admin, &host, port, diagnostics);
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
        .and_then(|ip| diagnostics.value("--peer-advertise-ip", parse::advertised_ip(ip)));
    let advertise_port = non_empty(flags.peer_advertise_port.as_ref()).and_then(|port| {
        diagnostics.value(
            "--peer-advertise-port",
            parse::number(port, &(1..=u16::MAX)),
        )
    });
    let cidrs = diagnostics.values("--peer-cidrs", &flags.peer_cidrs, parse::cidr);
    let registry = registry(non_empty(flags.peer_registry.as_ref()).unwrap_or("etcd"));
    let registry = diagnostics.value("--peer-registry", registry);
    match &registry {
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
    let guarded_components = diagnostics.value(
        "--guard-components",
        guarded_components(&flags.guard_components),
    );
    let etcd = self::etcd(etcd, diagnostics);
    Some(Peers {
        identity: identity?,
        registry: registry?,
        ca: ca.map(|(path, _)| path),
        advertise_ip,
        advertise_port,
        cidrs,
        guarded_components: guarded_components?,
        state_dir: non_empty(flags.state_dir.as_ref()).map(PathBuf::from),
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

/// The components of `--guard-components`.
fn guarded_components(values: &[String]) -> Parsed<GuardedComponents> {
    let names = parse::list(values)?;
    match names.as_slice() {
        [] => Ok(GuardedComponents::default()),
        [only] if only == "off" => Ok(GuardedComponents::none()),
        names => GuardedComponents::new(names.iter().map(String::as_str))
            .map_err(|error| error.to_string()),
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
        parse::keyword(&flags.translate_streams, &words),
    );
    let ping_interval = diagnostics.value(
        "--stream-ping-interval",
        parse::duration(&flags.stream_ping_interval).and_then(|interval| {
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
        parse::duration(&flags.streaming_connection_idle_timeout),
    );
    let words = [
        ("any", UpstreamStreams::Any),
        ("websocket", UpstreamStreams::WebSocket),
    ];
    let upstream = diagnostics.value(
        "--upstream-streams",
        parse::keyword(&flags.upstream_streams, &words).and_then(|upstream| {
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
        parse::number(&flags.max_connections, &(1..=1_000_000)),
    );
    let reserved = non_empty(flags.reserved_connections.as_ref()).and_then(|count| {
        let less_than_all = 0..=max_connections.unwrap_or(1_000_000_usize) - 1;
        diagnostics.value(
            "--reserved-connections",
            parse::number(count, &less_than_all),
        )
    });
    let per_source = non_empty(flags.max_unauthenticated_connections_per_source.as_ref());
    let per_source = per_source.and_then(|count| {
        diagnostics.value(
            "--max-unauthenticated-connections-per-source",
            parse::number(count, &(1..=1_000_000)),
        )
    });
    let max_failures = diagnostics.value(
        "--max-authentication-failures-per-source",
        parse::number(
            &flags.max_authentication_failures_per_source,
            &(0..=1_000_000),
        ),
    );
    let max_streams = diagnostics.value(
        "--http2-max-streams-per-connection",
        parse::number(&flags.http2_max_streams_per_connection, &(0..=10_000)),
    );
    let max_buffered_bytes = diagnostics.value(
        "--max-buffered-bytes",
        // From a few stalled responses to the memory of any machine.
        parse::bytes(&flags.max_buffered_bytes, &((1 << 20)..=(1 << 40))),
    );
    let handshake_timeout = diagnostics.value(
        "--tls-handshake-timeout",
        parse::timeout(&flags.tls_handshake_timeout),
    );
    let read_header_timeout = diagnostics.value(
        "--read-header-timeout",
        parse::timeout(&flags.read_header_timeout),
    );
    let idle_timeout = diagnostics.value("--idle-timeout", parse::timeout(&flags.idle_timeout));
    let request_timeout =
        diagnostics.value("--request-timeout", parse::timeout(&flags.request_timeout));
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
        max_buffered_bytes: max_buffered_bytes?,
        handshake_timeout: handshake_timeout?,
        read_header_timeout: read_header_timeout?,
        idle_timeout: idle_timeout?,
        request_timeout: request_timeout?,
        ..Limits::default()
    })
}

fn shutdown(flags: &GenericFlags, diagnostics: &mut Diagnostics) -> Option<Shutdown> {
    let delay = diagnostics.value(
        "--shutdown-delay-duration",
        parse::duration(&flags.shutdown_delay_duration),
    );
    let drain = diagnostics.value(
        "--shutdown-drain-timeout",
        parse::duration(&flags.shutdown_drain_timeout),
    );
    Some(Shutdown {
        delay: delay?,
        drain: drain?,
    })
}

fn logs(flags: &LogFlags, diagnostics: &mut Diagnostics) -> Option<Logs> {
    let verbosity = diagnostics.value("--v", parse::number(&flags.v, &(0..=10)));
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let format = diagnostics.value("--log-format", parse::keyword(&flags.log_format, &formats));
    Some(Logs {
        verbosity: verbosity?,
        format: format?,
    })
}

fn workers(flags: &GenericFlags, diagnostics: &mut Diagnostics) -> Option<NonZeroUsize> {
    let Some(count) = non_empty(flags.worker_threads.as_ref()) else {
        return Some(available_parallelism().unwrap_or(NonZeroUsize::MIN));
    };
    let count = parse::number(count, &(1..=1024));
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
    let wanted = (config.features).enabled(Feature::UnknownVersionInteroperabilityProxy);
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
    admin: SocketAddr,
    host: &str,
    port: u16,
    diagnostics: &mut Diagnostics,
) {
    if port == admin.port() && ip_of(host) == Some(admin.ip()) {
        diagnostics.problem(
            "--upstream",
            None,
            format!(
                "{host}:{port} is this bridge's --admin-address; set the address of kube-apiserver"
            ),
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

fn check_listeners_differ(listen: &Listen, admin: SocketAddr, diagnostics: &mut Diagnostics) {
    let same_ip = listen.bind_address == admin.ip() || listen.bind_address.is_unspecified();
    if same_ip && admin.port() != 0 && admin.port() == listen.secure_port {
        let message = format!("{admin} is used by --secure-port; choose another port");
        diagnostics.problem("--admin-address", None, message);
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
