//! The flags of `serve`, as text.
//!
//! Names are kube-apiserver's wherever it has one. Values are not parsed here: `config` does it,
//! so that all errors are reported at once.

#![expect(clippy::doc_markdown, reason = "comments on fields are the help text")]
#![expect(clippy::struct_field_names, reason = "fields are named as their flags")]
#![allow(
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    reason = "comments on fields are the help text"
)]

use clap::{ArgAction, Args};

const USAGE: &str = "skewbridge serve --upstream=URL --upstream-ca-file=FILE \\
           --tls-cert-file=FILE --tls-private-key-file=FILE [flags]";

const EXAMPLE: &str = "\
Example, in front of the kube-apiserver of a kubeadm node:
  skewbridge serve \\
    --secure-port=7443 \\
    --tls-cert-file=/etc/kubernetes/pki/apiserver.crt \\
    --tls-private-key-file=/etc/kubernetes/pki/apiserver.key \\
    --client-ca-file=/etc/kubernetes/pki/ca.crt \\
    --requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt \\
    --requestheader-allowed-names=front-proxy-client \\
    --proxy-client-cert-file=/etc/kubernetes/pki/front-proxy-client.crt \\
    --proxy-client-key-file=/etc/kubernetes/pki/front-proxy-client.key \\
    --upstream=https://127.0.0.1:6443 \\
    --upstream-server-name=kubernetes \\
    --upstream-ca-file=/etc/kubernetes/pki/ca.crt
From a configuration file:
  skewbridge serve --config=/etc/skewbridge/config.yaml

LIST is comma-separated, and its flag may be repeated. DURATION is written
like 30s, 1m30s or 100ms. Files are PEM unless stated otherwise. Certificates,
keys and CAs are reloaded when their files change.";

// The flags of `serve`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(
    args_override_self = true,
    disable_help_flag = true,
    next_line_help = true,
    override_usage = USAGE,
    after_help = EXAMPLE
)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) serving: ServingFlags,
    #[command(flatten)]
    pub(crate) authentication: AuthenticationFlags,
    #[command(flatten)]
    pub(crate) upstream: UpstreamFlags,
    #[command(flatten)]
    pub(crate) peers: PeerFlags,
    #[command(flatten)]
    pub(crate) etcd: EtcdFlags,
    #[command(flatten)]
    pub(crate) streams: StreamFlags,
    #[command(flatten)]
    pub(crate) features: FeatureFlags,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    #[command(flatten)]
    pub(crate) admin: AdminFlags,
    #[command(flatten)]
    pub(crate) logs: LogFlags,
    #[command(flatten)]
    pub(crate) generic: GenericFlags,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Secure serving flags")]
pub(crate) struct ServingFlags {
    /// Address to listen on; 0.0.0.0 or :: for all addresses
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub(crate) bind_address: String,
    /// Port to listen on; 0 for a free port
    #[arg(long, value_name = "PORT", default_value = "6443")]
    pub(crate) secure_port: String,
    /// Serving certificate, with its chain (required)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert_file: Option<String>,
    /// Private key of the serving certificate (required)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_private_key_file: Option<String>,
    /// Networks of load balancers whose connections begin with a PROXY header (version 1 or 2); the
    /// client address in it counts for limits, logs and X-Forwarded-For
    #[arg(long, value_name = "LIST")]
    pub(crate) proxy_protocol_cidrs: Vec<String>,
    /// Minimum TLS version: VersionTLS12 or VersionTLS13
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12")]
    pub(crate) tls_min_version: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Authentication flags")]
pub(crate) struct AuthenticationFlags {
    /// CAs of client certificates: the CN is the user name, each O a group
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca_file: Option<String>,
    /// CAs of front proxies, which set the user in request headers
    #[arg(long, value_name = "FILE")]
    pub(crate) requestheader_client_ca_file: Option<String>,
    /// Common names allowed to set these headers; empty allows any
    #[arg(long, value_name = "LIST")]
    pub(crate) requestheader_allowed_names: Vec<String>,
    /// Headers that carry the user's name
    #[arg(long, value_name = "LIST", default_value = "X-Remote-User")]
    pub(crate) requestheader_username_headers: Vec<String>,
    /// Headers that carry the user's UID
    #[arg(long, value_name = "LIST", default_value = "X-Remote-Uid")]
    pub(crate) requestheader_uid_headers: Vec<String>,
    /// Headers that carry the user's groups
    #[arg(long, value_name = "LIST", default_value = "X-Remote-Group")]
    pub(crate) requestheader_group_headers: Vec<String>,
    /// Prefixes of headers that carry the user's extra fields
    #[arg(long, value_name = "LIST", default_value = "X-Remote-Extra-")]
    pub(crate) requestheader_extra_headers_prefix: Vec<String>,
    /// Keys of users with signed requests (RFC 9421), in YAML; reloaded when the file
    /// changes
    #[arg(long, value_name = "FILE")]
    pub(crate) http_signature_keys: Option<String>,
    /// HOST[:PORT] that signatures must be for; required with --http-signature-keys
    #[arg(long, value_name = "LIST")]
    pub(crate) http_signature_authorities: Vec<String>,
    /// Maximum age of a signature; a signature may expire earlier
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) http_signature_max_age: String,
    /// Tolerated difference between the clocks of signer and bridge
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) http_signature_clock_skew: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Upstream flags")]
pub(crate) struct UpstreamFlags {
    /// The kube-apiserver: https://HOST[:PORT], port 6443 unless given (required). With several,
    /// requests are spread over all of them: kube-apiservers of one cluster. The value `endpoints`
    /// stands for those in the EndpointSlices of default/kubernetes, as they change; they are
    /// first read through the other values, or in a pod through the Service
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Vec<String>,
    /// CAs of the kube-apiserver's certificate; system CAs are not used (required)
    #[arg(long, value_name = "FILE")]
    pub(crate) upstream_ca_file: Option<String>,
    /// Name to expect in the certificates of all values of --upstream, if not the host of each
    /// (kubernetes.default.svc with `endpoints`)
    #[arg(long, value_name = "NAME")]
    pub(crate) upstream_server_name: Option<String>,
    /// Front-proxy client certificate, for requests to the kube-apiserver and to peers
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_client_cert_file: Option<String>,
    /// Private key of the front-proxy client certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_client_key_file: Option<String>,
    /// User of the bridge's own requests; docs/rbac.md has the rights that it needs
    #[arg(long, value_name = "NAME", default_value = "system:apiserver")]
    pub(crate) bridge_user: String,
    /// Groups of that user [default: system:masters, none with another --bridge-user]
    #[arg(long, value_name = "LIST")]
    pub(crate) bridge_groups: Vec<String>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Peer flags")]
pub(crate) struct PeerFlags {
    /// CAs of the peers' serving certificates; without it, the bridge runs local-only
    #[arg(long, value_name = "FILE")]
    pub(crate) peer_ca_file: Option<String>,
    /// Address at which peers reach this bridge, if not --advertise-address
    #[arg(long, value_name = "IP")]
    pub(crate) peer_advertise_ip: Option<String>,
    /// Port at which peers reach this bridge, if not --secure-port
    #[arg(long, value_name = "PORT")]
    pub(crate) peer_advertise_port: Option<String>,
    /// Where peers find each other: etcd, leases or file:PATH (YAML). endpoints, alone or after a
    /// comma: kube-apiservers that the Service default/kubernetes lists are peers, also without a
    /// bridge [default: etcd]
    #[arg(long, value_name = "LIST")]
    pub(crate) peer_registry: Option<String>,
    /// Networks that peer addresses must be in; required with --peer-registry=leases
    #[arg(long, value_name = "LIST")]
    pub(crate) peer_cidrs: Vec<String>,
    /// Components that are not sent to a kube-apiserver older than themselves while a newer one
    /// is healthy, by the name in their User-Agent; off for none [default: kubelet,
    /// kube-controller-manager, kube-scheduler, cloud-controller-manager, kube-proxy, kubeadm]
    #[arg(long, value_name = "LIST")]
    pub(crate) guard_components: Vec<String>,
    /// Which requests for kinds whose fields differ between servers go to a server with all fields:
    /// writes (and reads of single objects), all, or off
    #[arg(long, value_name = "REQUESTS", default_value = "writes")]
    pub(crate) guard_fields: String,
    /// Whether writes that an admission policy may match only go to servers that enforce it: on or off
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub(crate) guard_admission: String,
    /// How long fields and admission policies count after the last server that has them has ended, up
    /// to 24h [default: 15m for fields, 5m for admission policies]
    #[arg(long, value_name = "DURATION")]
    pub(crate) guard_retention: Option<String>,
    /// Directory in which the bridge stores what other servers serve, for its next start;
    /// without it, this is stored only in the registry
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<String>,
    /// Name of the kube-apiserver's identity Lease; auto derives it from the host name
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) apiserver_identity: String,
    /// EgressSelectorConfiguration (YAML) of kube-apiserver; its controlplane entry is
    /// used for connections to peers
    #[arg(long, value_name = "FILE")]
    pub(crate) egress_selector_config_file: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Etcd flags")]
pub(crate) struct EtcdFlags {
    /// URLs of etcd: http[s]://HOST:PORT
    #[arg(long, value_name = "LIST")]
    pub(crate) etcd_servers: Vec<String>,
    /// CAs of etcd's certificates; required with https
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_cafile: Option<String>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_certfile: Option<String>,
    /// Private key of the client certificate for etcd
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_keyfile: Option<String>,
    /// Prefix of this cluster's keys in etcd
    #[arg(long, value_name = "PATH", default_value = "/registry")]
    pub(crate) etcd_prefix: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Streams flags")]
pub(crate) struct StreamFlags {
    /// Translate WebSocket streams to SPDY: auto (where upstream does not translate
    /// itself), always or never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) translate_streams: String,
    /// Stream protocols that the path to upstream supports: any, or websocket (SPDY
    /// streams are then translated to WebSocket)
    #[arg(long, value_name = "WHAT", default_value = "any")]
    pub(crate) upstream_streams: String,
    /// Time between pings on an idle stream; 0 disables pings
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(crate) stream_ping_interval: String,
    /// Time after which an idle translated stream is closed; 0 disables the timeout
    #[arg(long, value_name = "DURATION", default_value = "4h")]
    pub(crate) streaming_connection_idle_timeout: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Features flags")]
pub(crate) struct FeatureFlags {
    #[arg(long, value_name = "LIST", help = super::features::HELP)]
    pub(crate) feature_gates: Vec<String>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits flags")]
pub(crate) struct LimitFlags {
    /// Open client connections; a further one evicts the oldest that has not authenticated,
    /// or waits
    #[arg(long, value_name = "COUNT", default_value = "16384")]
    pub(crate) max_connections: String,
    /// Connections reserved for peers, nodes and control-plane components [default: a tenth of
    /// --max-connections]
    #[arg(long, value_name = "COUNT")]
    pub(crate) reserved_connections: Option<String>,
    /// Open connections of one IPv4 address or IPv6 /64 that have not authenticated
    /// [default: a quarter of --max-connections, at least 16]
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_unauthenticated_connections_per_source: Option<String>,
    /// Failed authentications per minute from one IPv4 address or IPv6 /64, then 429; 0 for no
    /// limit
    #[arg(long, value_name = "COUNT", default_value = "600")]
    pub(crate) max_authentication_failures_per_source: String,
    /// Concurrent requests on one HTTP/2 connection; 0 for the default
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub(crate) http2_max_streams_per_connection: String,
    /// Share of HTTP/2 requests after which the connection ends with GOAWAY, 0 to 0.02, so that
    /// clients spread over several bridges; requests in flight on it complete
    #[arg(long, value_name = "CHANCE", default_value = "0")]
    pub(crate) goaway_chance: String,
    /// Bytes buffered for all clients; beyond it, stalled streams are reset, first those of
    /// clients that have not authenticated
    #[arg(long, value_name = "BYTES", default_value = "256Mi")]
    pub(crate) max_buffered_bytes: String,
    /// Time for a TLS handshake
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(crate) tls_handshake_timeout: String,
    /// Time from a request's first byte to the end of its headers
    #[arg(long, value_name = "DURATION", default_value = "32s")]
    pub(crate) read_header_timeout: String,
    /// Time that a connection may be without a request
    #[arg(long, value_name = "DURATION", default_value = "1m30s")]
    pub(crate) idle_timeout: String,
    /// The upstream's own --request-timeout; watches and streams have none
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub(crate) request_timeout: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admin flags")]
pub(crate) struct AdminFlags {
    /// Address of /metrics, /livez, /readyz and /debug; plain HTTP, loopback only
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10270")]
    pub(crate) admin_address: String,
    /// Address of the same paths for the network: TLS with the serving certificate, for users that
    /// the kube-apiserver permits to get the path (TokenReview, SubjectAccessReview)
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) admin_secure_address: Option<String>,
    /// Release such as 1.37: /debug/vanishing and the metrics show who calls APIs that it does not
    /// serve [default: the minor version after the newest kube-apiserver]
    #[arg(long, value_name = "VERSION")]
    pub(crate) watch_target: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs flags")]
pub(crate) struct LogFlags {
    /// Log verbosity, 0 to 10: 2 adds a line per request, 4 adds debug messages
    #[arg(short, long, value_name = "LEVEL", default_value = "0")]
    pub(crate) v: String,
    /// Log format: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generic flags")]
pub(crate) struct GenericFlags {
    /// BridgeConfiguration (YAML) with values of flags; flags on the command line win
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Check all flags and files, print the effective configuration, and exit
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) dry_run: bool,
    /// Address at which clients reach this bridge, if not --bind-address
    #[arg(long, value_name = "IP")]
    pub(crate) advertise_address: Option<String>,
    /// Worker threads for requests [default: one per core]
    #[arg(long, value_name = "COUNT")]
    pub(crate) worker_threads: Option<String>,
    /// Time after SIGTERM during which /readyz fails and requests are still accepted
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(crate) shutdown_delay_duration: String,
    /// Time for requests in flight to complete, after --shutdown-delay-duration
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub(crate) shutdown_drain_timeout: String,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
}
