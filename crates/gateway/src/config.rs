//! What the gateway was told to do: plain data, parsed and checked once.
//!
//! The command line turns flags into this (`skewbridge serve --help`), tests
//! write it down directly. Nothing in here is a string that still has to be
//! understood.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use rustls_pki_types::ServerName;
use skewbridge_k8s_api::identity::IdentityHeaders;
use skewbridge_peer_directory::registry::SharedMemoryRegistry;

/// Where a certificate chain and its private key are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// The chain in PEM, leaf first.
    pub cert: PathBuf,
    /// The key in PEM.
    pub key: PathBuf,
}

/// Everything `skewbridge serve` was told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where clients connect.
    pub listen: Listen,
    /// What the bridge shows to clients.
    pub serving: Serving,
    /// Whose client certificates are believed.
    pub callers: Callers,
    /// The kube-apiserver behind this bridge.
    pub upstream: Upstream,
    /// The other servers of the cluster (read now, used by peer routing).
    pub peers: Peers,
    /// Exec, attach and port-forward.
    pub streams: Streams,
    /// Feature gates.
    pub features: Features,
    /// Bounds on what one client, or all of them, may take.
    pub limits: Limits,
    /// Metrics and health.
    pub admin: Admin,
    /// How to go away.
    pub shutdown: Shutdown,
    /// Log lines.
    pub logs: Logs,
    /// Threads that carry requests.
    pub workers: NonZeroUsize,
}

/// Where clients connect.
#[derive(Debug, Clone)]
pub struct Listen {
    /// `--bind-address`
    pub bind_address: IpAddr,
    /// `--secure-port`; 0 lets the system choose.
    pub secure_port: u16,
    /// `--advertise-address`
    pub advertise_address: Option<IpAddr>,
}

/// What the bridge shows to clients.
#[derive(Debug, Clone)]
pub struct Serving {
    /// `--tls-cert-file` and `--tls-private-key-file`
    pub key_pair: KeyPairFiles,
    /// `--tls-min-version`
    pub min_version: TlsVersion,
}

/// The oldest TLS a client may speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// `VersionTLS12`
    Tls12,
    /// `VersionTLS13`
    Tls13,
}

/// Whose client certificates are believed.
#[derive(Debug, Clone)]
pub struct Callers {
    /// `--client-ca-file`: its certificates are users.
    pub client_ca: Option<PathBuf>,
    /// `--requestheader-client-ca-file`: its certificates are peers.
    pub request_header: Option<RequestHeader>,
    /// `--requestheader-*-headers*`: the names that carry an identity.
    pub headers: IdentityHeaders,
    /// `--http-signature-*`: whose signatures are believed.
    pub signatures: Option<Signatures>,
}

/// Whose signatures over requests (RFC 9421) are believed.
#[derive(Debug, Clone)]
pub struct Signatures {
    /// `--http-signature-keys`
    pub keys: PathBuf,
    /// `--http-signature-authorities`: for whom requests may be signed, in lower
    /// case and without port 443.
    pub authorities: Vec<String>,
    /// `--http-signature-max-age`
    pub max_age: Duration,
    /// `--http-signature-clock-skew`
    pub clock_skew: Duration,
}

/// Who may assert an identity by header.
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
    /// `--proxy-client-cert-file` and `--proxy-client-key-file`: what lets the
    /// bridge assert an identity.
    pub front_proxy: Option<KeyPairFiles>,
    /// `--bridge-user` and `--bridge-groups`: the user of the bridge's own requests.
    pub bridge_user: BridgeUser,
}

/// The user as which the bridge makes requests of its own: it reads Leases, `APIServices`,
/// `CustomResourceDefinitions` and discovery, and keeps the identity Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeUser {
    /// The name.
    pub name: String,
    /// The groups, to the kube-apiserver behind the bridge, and to a peer when the Lease of
    /// a server that has ended is deleted. Peers are else asked for what every
    /// authenticated user may read.
    pub groups: Vec<String>,
}

impl Default for BridgeUser {
    /// As kube-apiserver makes requests to itself.
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
    /// `--peer-registry`
    pub registry: RegistryKind,
    /// `--peer-ca-file`
    pub ca: Option<PathBuf>,
    /// `--peer-advertise-ip`
    pub advertise_ip: Option<IpAddr>,
    /// `--peer-advertise-port`
    pub advertise_port: Option<u16>,
    /// `--peer-cidrs`
    pub cidrs: Vec<IpNet>,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--etcd-*`
    pub etcd: Etcd,
    /// `--egress-selector-config-file`: what it says for `controlplane`.
    pub egress: Egress,
}

/// How connections leave this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Egress {
    /// By themselves.
    #[default]
    Direct,
    /// Through a proxy that is asked by HTTP CONNECT.
    HttpConnect(ProxyTransport),
}

/// How that proxy is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyTransport {
    /// By TCP.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// By TCP with TLS.
    Tls {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// What its certificate must be for.
        server_name: ServerName<'static>,
        /// What signs that.
        ca: PathBuf,
        /// What we show.
        key_pair: KeyPairFiles,
    },
    /// By the socket at this path.
    Uds(PathBuf),
}

/// Which identity Lease the bridge speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiServerIdentity {
    /// Computed from the host name, as kube-apiserver does.
    Auto,
    /// Told by name.
    Named(String),
}

/// Where peers find each other's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryKind {
    /// kube-apiserver's own records in etcd.
    Etcd,
    /// An annotation on the identity Lease.
    Leases,
    /// A YAML file.
    File(PathBuf),
    /// The memory of this process: the playground, tests.
    Memory(SharedMemoryRegistry),
}

/// How to reach etcd.
#[derive(Debug, Clone, Default)]
pub struct Etcd {
    /// `--etcd-servers`: checked URLs.
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

/// What the way to upstream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamStreams {
    /// WebSocket and SPDY.
    Any,
    /// WebSocket only.
    WebSocket,
}

/// When WebSocket streams are carried upstream as SPDY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TranslateStreams {
    /// Where the upstream does not do it itself.
    Auto,
    /// For every such request.
    Always,
    /// For none.
    Never,
}

/// A feature that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// Peer routing and merged discovery (KEP-4020).
    UnknownVersionInteroperabilityProxy,
    /// Beyond KEP-4020 also `/api`, lists and OpenAPI are those of the whole
    /// cluster.
    CompleteDiscovery,
    /// The stream translator (KEP-4006).
    TranslateStreamCloseWebsocketRequests,
    /// Port-forward over WebSocket (KEP-4006).
    PortForwardWebsockets,
}

/// The feature gates that are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features(pub BTreeSet<Feature>);

impl Features {
    /// Whether a gate is on.
    pub fn enabled(&self, feature: Feature) -> bool {
        self.0.contains(&feature)
    }
}

impl Default for Features {
    /// All on: that is what the bridge is for.
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

/// Bounds on what one client, or all of them, may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// `--max-connections`: open client connections. Further ones evict connections that
    /// have not authenticated, else they wait in the listen backlog.
    pub max_connections: usize,
    /// `--reserved-connections`: of these, for peers, nodes and control-plane
    /// components; a tenth unless given.
    pub reserved_connections: Option<usize>,
    /// `--max-unauthenticated-connections-per-source`; a quarter of `max_connections`
    /// unless given.
    pub max_unauthenticated_connections_per_source: Option<usize>,
    /// `--max-authentication-failures-per-source`, a minute; 0 is no limit.
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
    /// What the bridge waits beyond `request_timeout`. kube-apiserver enforces
    /// that one itself, and its own answer is better than ours: it gets a
    /// little more time to say it. No flag.
    pub answer_grace: Duration,
    /// How long a client may take nothing of an answer that waits for it; no
    /// flag.
    pub stall_timeout: Duration,
    /// `--max-buffered-bytes`: what the process holds for all clients.
    pub max_buffered_bytes: usize,
    /// The same as `stall_timeout` for a client that has not authenticated; no flag.
    pub unauthenticated_stall_timeout: Duration,
    /// How often an HTTP/2 connection to upstream that is in use is asked
    /// whether it lives, and how long it may take to say so; no flag.
    pub upstream_ping: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            reserved_connections: None,
            max_unauthenticated_connections_per_source: None,
            // Far more than clients with expired tokens, far less than a guesser.
            max_authentication_failures_per_source: 600,
            // kube-apiserver's own default since CVE-2023-44487.
            max_streams_per_connection: 100,
            handshake_timeout: Duration::from_secs(10),
            // kube-apiserver's ReadHeaderTimeout and IdleTimeout.
            read_header_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            request_timeout: Duration::from_mins(1),
            // Longer than somebody looks at a page of `kubectl logs -f | less`
            // without leaving it for good.
            stall_timeout: Duration::from_mins(10),
            // More than a thousand stalled answers, and less than kube-apiserver itself
            // needs in a small cluster.
            max_buffered_bytes: 256 << 20,
            unauthenticated_stall_timeout: Duration::from_secs(10),
            // client-go waits 30 s and 15 s; upstream is nearer to us.
            upstream_ping: Duration::from_secs(15),
            answer_grace: Duration::from_secs(10),
        }
    }
}

/// Metrics and health.
#[derive(Debug, Clone)]
pub struct Admin {
    /// `--admin-address`; loopback only, for now.
    pub address: SocketAddr,
}

/// How to go away.
#[derive(Debug, Clone)]
pub struct Shutdown {
    /// `--shutdown-delay-duration`: not ready, but still serving.
    pub delay: Duration,
    /// `--shutdown-drain-timeout`: what is still running after this is cut.
    pub drain: Duration,
}

/// Log lines.
#[derive(Debug, Clone, Copy)]
pub struct Logs {
    /// `--v`
    pub verbosity: u8,
    /// `--log-format`
    pub format: LogFormat,
}

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}
