//! The configuration of the gateway: plain data, parsed and validated once.
//!
//! The command line builds it from flags (`skewbridge serve --help`), tests build it directly.
//! Strings are parsed into types before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use rustls_pki_types::ServerName;
use skewbridge_k8s_api::component::GuardedComponents;
use skewbridge_k8s_api::identity::IdentityHeaders;
use skewbridge_peer_directory::registry::SharedMemoryRegistry;
use skewbridge_released_apis::Minor;

use crate::admission_guard::AdmissionGuard;
use crate::field_guard::FieldGuard;

/// The files of a certificate chain and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// The chain in PEM, leaf first.
    pub cert: PathBuf,
    /// The key in PEM.
    pub key: PathBuf,
}

/// The configuration of `skewbridge serve`.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address for clients.
    pub listen: Listen,
    /// TLS to clients.
    pub serving: ServingTls,
    /// Authentication of callers.
    pub callers: AuthenticationConfig,
    /// The kube-apiserver behind this bridge.
    pub upstream: Upstream,
    /// Peering.
    pub peers: Peers,
    /// Exec, attach and port-forward.
    pub streams: Streams,
    /// Feature gates.
    pub features: Features,
    /// Limits for clients.
    pub limits: Limits,
    /// Metrics and health checks.
    pub admin: Admin,
    /// Shutdown delay and drain.
    pub shutdown: Shutdown,
    /// Logging.
    pub logs: Logs,
    /// The number of worker threads.
    pub workers: NonZeroUsize,
}

/// The address for clients.
#[derive(Debug, Clone)]
pub struct Listen {
    /// `--bind-address`
    pub bind_address: IpAddr,
    /// `--secure-port`; 0 is any free port.
    pub secure_port: u16,
    /// `--advertise-address`
    pub advertise_address: Option<IpAddr>,
    /// `--proxy-protocol-cidrs`: networks of load balancers, whose connections begin with a PROXY
    /// header.
    pub proxy_protocol_cidrs: Vec<IpNet>,
}

/// TLS to clients.
#[derive(Debug, Clone)]
pub struct ServingTls {
    /// `--tls-cert-file` and `--tls-private-key-file`
    pub key_pair: KeyPairFiles,
    /// `--tls-min-version`
    pub min_version: TlsVersion,
}

/// The minimum TLS version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// `VersionTLS12`
    Tls12,
    /// `VersionTLS13`
    Tls13,
}

/// Authentication of callers.
#[derive(Debug, Clone)]
pub struct AuthenticationConfig {
    /// `--client-ca-file`: its certificates are users.
    pub client_ca: Option<PathBuf>,
    /// `--requestheader-client-ca-file`: its certificates are peers and front proxies.
    pub request_header: Option<RequestHeader>,
    /// `--requestheader-*-headers*`: the names of the identity headers.
    pub headers: IdentityHeaders,
    /// `--http-signature-*`: signed requests.
    pub signatures: Option<Signatures>,
}

/// Verification of signed requests (RFC 9421).
#[derive(Debug, Clone)]
pub struct Signatures {
    /// `--http-signature-keys`
    pub keys: PathBuf,
    /// `--http-signature-authorities`: accepted authorities of signed requests, in lower case and
    /// without port 443.
    pub authorities: Vec<String>,
    /// `--http-signature-max-age`
    pub max_age: Duration,
    /// `--http-signature-clock-skew`
    pub clock_skew: Duration,
}

/// Front proxies, which may assert users in headers.
#[derive(Debug, Clone)]
pub struct RequestHeader {
    /// `--requestheader-client-ca-file`
    pub ca: PathBuf,
    /// `--requestheader-allowed-names`; empty means any common name.
    pub allowed_names: Vec<String>,
}

/// The kube-apiserver behind this bridge.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Host of `--upstream`: a name or an address, without brackets.
    pub host: String,
    /// Port of `--upstream`.
    pub port: u16,
    /// `--upstream-ca-file`
    pub ca: PathBuf,
    /// `--upstream-server-name`, else the host of `--upstream`.
    pub server_name: ServerName<'static>,
    /// Further values of `--upstream`: kube-apiservers of the same cluster. Requests are spread over
    /// all of them.
    pub others: Vec<UpstreamServer>,
    /// With `--upstream=endpoints`: the name in the certificates of the servers that the
    /// `EndpointSlices` of the Service `default/kubernetes` list. These replace the other values once
    /// the `EndpointSlices` have been read.
    pub endpoints: Option<ServerName<'static>>,
    /// `--proxy-client-cert-file` and `--proxy-client-key-file`: the certificate with which the
    /// bridge asserts users.
    pub front_proxy: Option<KeyPairFiles>,
    /// `--bridge-user` and `--bridge-groups`: the user of the bridge's own requests.
    pub bridge_user: BridgeUser,
}

/// The most values of `--upstream`. A control plane has three to seven servers.
pub const MAX_UPSTREAMS: usize = 32;

/// One of the kube-apiservers behind a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamServer {
    /// Host of `--upstream`: a name or an address, without brackets.
    pub host: String,
    /// Port of `--upstream`.
    pub port: u16,
    /// `--upstream-server-name`, else the host.
    pub server_name: ServerName<'static>,
}

impl UpstreamServer {
    /// Host and port, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl Upstream {
    /// All servers behind the bridge, in the order of the flags.
    pub fn servers(&self) -> Vec<UpstreamServer> {
        let first = UpstreamServer {
            host: self.host.clone(),
            port: self.port,
            server_name: self.server_name.clone(),
        };
        [&[first], self.others.as_slice()].concat()
    }

    /// Whether requests are spread over several servers.
    pub fn is_balanced(&self) -> bool {
        !self.others.is_empty() || self.endpoints.is_some()
    }
}

/// The user of the bridge's own requests: it reads Leases, `APIServices`,
/// `CustomResourceDefinitions` and discovery, and renews the identity Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeUser {
    /// The name.
    pub name: String,
    /// The groups in requests to the local server, and to a peer when the Lease of a server that has
    /// ended is deleted. All other requests to peers have the group `system:authenticated` only.
    pub groups: Vec<String>,
}

impl Default for BridgeUser {
    /// The user of kube-apiserver's requests to itself.
    fn default() -> Self {
        Self {
            name: "system:apiserver".to_owned(),
            groups: vec!["system:masters".to_owned()],
        }
    }
}

/// The other servers of the cluster.
#[derive(Debug, Clone)]
pub struct Peers {
    /// `--apiserver-identity`
    pub identity: ApiServerIdentity,
    /// `--peer-registry`: the registry in which this bridge publishes its address.
    pub registry: RegistryKind,
    /// `endpoints` in `--peer-registry`: kube-apiservers in `EndpointSlices` are peers, too.
    pub endpoints: bool,
    /// `--peer-ca-file`
    pub ca: Option<PathBuf>,
    /// `--peer-advertise-ip`
    pub advertise_ip: Option<IpAddr>,
    /// `--peer-advertise-port`
    pub advertise_port: Option<u16>,
    /// `--peer-cidrs`
    pub cidrs: Vec<IpNet>,
    /// `--guard-*`
    pub guards: Guards,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--etcd-*`
    pub etcd: Etcd,
    /// `--egress-selector-config-file`: the selection `controlplane`.
    pub egress: Egress,
}

impl Peers {
    /// Whether addresses are read from `EndpointSlices`.
    pub fn reads_endpoints(&self) -> bool {
        self.endpoints || self.registry == RegistryKind::None
    }
}

/// The placement rules beyond `serves`.
#[derive(Debug, Clone, Default)]
pub struct Guards {
    /// `--guard-components`: components whose server must not be older than they are.
    pub components: GuardedComponents,
    /// `--guard-fields`
    pub fields: FieldGuard,
    /// `--guard-admission`
    pub admission: AdmissionGuard,
    /// `--guard-retention`: how long fields and policies count after the last server that has them has
    /// ended; `None` for the default of each.
    pub retention: Option<Duration>,
}

/// How connections to peers are opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Egress {
    /// Directly.
    #[default]
    Direct,
    /// Through an HTTP CONNECT proxy.
    HttpConnect(ProxyTransport),
}

/// The transport to that proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyTransport {
    /// TCP.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// TCP with TLS.
    Tls {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// The name that the certificate of the proxy must have.
        server_name: ServerName<'static>,
        /// The CA of that certificate.
        ca: PathBuf,
        /// The client certificate of the bridge.
        key_pair: KeyPairFiles,
    },
    /// A Unix domain socket.
    Uds(PathBuf),
}

/// The identity of the local server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiServerIdentity {
    /// Computed from the host name, as kube-apiserver does.
    Auto,
    /// The name of its Lease.
    Named(String),
}

/// The registry of peer addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryKind {
    /// kube-apiserver's own records in etcd.
    Etcd,
    /// Annotations of identity Leases.
    Leases,
    /// A YAML file.
    File(PathBuf),
    /// None: the only addresses are those in `EndpointSlices`.
    None,
    /// The memory of this process, for the playground and tests.
    Memory(SharedMemoryRegistry),
}

/// The connection to etcd.
#[derive(Debug, Clone, Default)]
pub struct Etcd {
    /// `--etcd-servers`: validated URLs.
    pub servers: Vec<http::Uri>,
    /// `--etcd-cafile`
    pub ca: Option<PathBuf>,
    /// `--etcd-certfile` and `--etcd-keyfile`
    pub key_pair: Option<KeyPairFiles>,
    /// `--etcd-prefix`
    pub prefix: String,
}

/// Exec, attach and port-forward.
#[derive(Debug, Clone)]
pub struct Streams {
    /// `--translate-streams`
    pub translate: TranslateStreams,
    /// `--upstream-streams`
    pub upstream: UpstreamStreams,
    /// `--stream-ping-interval`
    pub ping_interval: Duration,
    /// `--streaming-connection-idle-timeout`
    pub idle_timeout: Duration,
}

/// The stream protocols that the path to upstream supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamStreams {
    /// WebSocket and SPDY.
    Any,
    /// WebSocket only.
    WebSocket,
}

/// When WebSocket streams are translated to SPDY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TranslateStreams {
    /// If upstream does not translate the stream itself.
    Auto,
    /// For every WebSocket stream.
    Always,
    /// For no stream.
    Never,
}

/// A feature gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// Peer routing and merged discovery (KEP-4020).
    UnknownVersionInteroperabilityProxy,
    /// `/api`, lists and OpenAPI are merged too, beyond KEP-4020.
    CompleteDiscovery,
    /// The stream translator (KEP-4006).
    TranslateStreamCloseWebsocketRequests,
    /// Port-forward over WebSocket (KEP-4006).
    PortForwardWebsockets,
}

/// The feature gates that are enabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features(pub BTreeSet<Feature>);

impl Features {
    /// Whether a gate is enabled.
    pub fn enabled(&self, feature: Feature) -> bool {
        self.0.contains(&feature)
    }
}

impl Default for Features {
    /// All gates are enabled.
    fn default() -> Self {
        Self(
            [
                Feature::UnknownVersionInteroperabilityProxy,
                Feature::CompleteDiscovery,
                Feature::TranslateStreamCloseWebsocketRequests,
                Feature::PortForwardWebsockets,
            ]
            .into(),
        )
    }
}

/// Limits for one client, or for all of them.
#[derive(Debug, Clone)]
pub struct Limits {
    /// `--max-connections`: open client connections. Further ones evict connections that have not
    /// authenticated, otherwise they wait in the accept backlog.
    pub max_connections: usize,
    /// `--reserved-connections`: the part of them for peers, nodes and control-plane components; a
    /// tenth by default.
    pub reserved_connections: Option<usize>,
    /// `--max-unauthenticated-connections-per-source`; a quarter of `max_connections` by default.
    pub max_unauthenticated_connections_per_source: Option<usize>,
    /// `--max-authentication-failures-per-source`, per minute; 0 is no limit.
    pub max_authentication_failures_per_source: u32,
    /// `--http2-max-streams-per-connection`
    pub max_streams_per_connection: u32,
    /// `--tls-handshake-timeout`
    pub handshake_timeout: Duration,
    /// `--read-header-timeout`: from a request's first byte to the end of its
    /// headers.
    pub read_header_timeout: Duration,
    /// `--idle-timeout`: a connection without a request is closed after this.
    pub idle_timeout: Duration,
    /// `--request-timeout`: kube-apiserver's own limit for requests that are
    /// not long-running.
    pub request_timeout: Duration,
    /// How long the bridge waits beyond `request_timeout`. kube-apiserver enforces `request_timeout`
    /// itself, and its response is more precise than that of the bridge. No flag.
    pub answer_grace: Duration,
    /// How long a client may read nothing of a response that waits for it; no flag.
    pub stall_timeout: Duration,
    /// `--max-buffered-bytes`: buffered bytes of all clients.
    pub max_buffered_bytes: usize,
    /// `stall_timeout` for clients that have not authenticated; no flag.
    pub unauthenticated_stall_timeout: Duration,
    /// The ping interval of HTTP/2 connections to upstream that are in use, and the timeout of a
    /// ping; no flag.
    pub upstream_ping: Duration,
    /// `--goaway-chance`: the share of HTTP/2 requests after which the connection ends.
    pub goaway_chance: f64,
    /// The time over which watches are ended at several upstreams when one of them returns, so that
    /// all get a share; no flag.
    pub watch_rebalance_period: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            reserved_connections: None,
            max_unauthenticated_connections_per_source: None,
            // Far more than clients with expired tokens need, far less than guessing needs.
            max_authentication_failures_per_source: 600,
            // kube-apiserver's own default since CVE-2023-44487.
            max_streams_per_connection: 100,
            handshake_timeout: Duration::from_secs(10),
            // kube-apiserver's ReadHeaderTimeout and IdleTimeout.
            read_header_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            request_timeout: Duration::from_mins(1),
            // Longer than a user usually reads a page of `kubectl logs -f | less`.
            stall_timeout: Duration::from_mins(10),
            // More than a thousand stalled responses, and less memory than kube-apiserver needs in
            // a small cluster.
            max_buffered_bytes: 256 << 20,
            unauthenticated_stall_timeout: Duration::from_secs(10),
            // client-go uses 30 s and 15 s; upstream is nearer to the bridge.
            upstream_ping: Duration::from_secs(15),
            goaway_chance: 0.0,
            // A client lists nothing when its watch is ended, but it sends a request, and a control
            // plane has thousands of watches.
            watch_rebalance_period: Duration::from_secs(30),
            answer_grace: Duration::from_secs(10),
        }
    }
}

/// Metrics and health checks.
#[derive(Debug, Clone)]
pub struct Admin {
    /// `--admin-address`: plain HTTP, loopback only.
    pub address: SocketAddr,
    /// `--admin-secure-address`: TLS, for users that kube-apiserver permits.
    pub secure_address: Option<SocketAddr>,
    /// `--watch-target`: the release whose missing APIs are watched; the default is the minor version
    /// after the newest server.
    pub watch_target: Option<Minor>,
    /// What `/flagz` shows: the flags without dashes, and their values.
    pub flags: BTreeMap<String, String>,
}

/// Shutdown delay and drain.
#[derive(Debug, Clone)]
pub struct Shutdown {
    /// `--shutdown-delay-duration`: the time in which the bridge is not ready but still serves.
    pub delay: Duration,
    /// `--shutdown-drain-timeout`: requests that are still running after it are aborted.
    pub drain: Duration,
}

/// Logging.
#[derive(Debug, Clone, Copy)]
pub struct Logs {
    /// `--v`
    pub verbosity: u8,
    /// `--log-format`
    pub format: LogFormat,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}
