//! The flags of `serve`, as text.
//!
//! kube-apiserver's names wherever it has one. Every value is taken as it was
//! written: `config` understands them, so that all mistakes are told at once.

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

LIST is comma-separated, and its flag may be repeated. DURATION is written
like 30s, 1m30s or 100ms. Files are PEM unless told otherwise, and certificates,
keys and CAs are read again when they change.";

// Everything that `serve` can be told. (What it is for, `main.rs` says.)
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
    /// Address to listen on; 0.0.0.0 or :: is every one
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub(crate) bind_address: String,
    /// Port to listen on; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value = "6443")]
    pub(crate) secure_port: String,
    /// Certificate shown to clients, with its chain (required)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert_file: Option<String>,
    /// Its private key (required)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_private_key_file: Option<String>,
    /// Oldest TLS to accept: VersionTLS12 or VersionTLS13
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12")]
    pub(crate) tls_min_version: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Authentication flags")]
pub(crate) struct AuthenticationFlags {
    /// CAs whose certificates are users: CN is the name, each O a group
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca_file: Option<String>,
    /// CAs whose certificates may assert a user by header
    #[arg(long, value_name = "FILE")]
    pub(crate) requestheader_client_ca_file: Option<String>,
    /// Common names that may; none given is any
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
    /// Beginnings of headers that carry the rest
    #[arg(long, value_name = "LIST", default_value = "X-Remote-Extra-")]
    pub(crate) requestheader_extra_headers_prefix: Vec<String>,
    /// Keys with which users sign requests (RFC 9421), in YAML; read again when it
    /// changes
    #[arg(long, value_name = "FILE")]
    pub(crate) http_signature_keys: Option<String>,
    /// HOST[:PORT] for which requests may be signed (required with the keys)
    #[arg(long, value_name = "LIST")]
    pub(crate) http_signature_authorities: Vec<String>,
    /// How long a signature is good, if it does not say less
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) http_signature_max_age: String,
    /// By how much the clocks of who signs may differ from ours
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) http_signature_clock_skew: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Upstream flags")]
pub(crate) struct UpstreamFlags {
    /// The kube-apiserver: https://HOST[:PORT], port 6443 unless given (required)
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// CAs that sign its certificate; the system's are not used (required)
    #[arg(long, value_name = "FILE")]
    pub(crate) upstream_ca_file: Option<String>,
    /// Name to expect in its certificate, if not the host of --upstream
    #[arg(long, value_name = "NAME")]
    pub(crate) upstream_server_name: Option<String>,
    /// Certificate with which the bridge asserts users to it and to peers
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_client_cert_file: Option<String>,
    /// Its private key
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_client_key_file: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Peer flags")]
pub(crate) struct PeerFlags {
    /// CAs that sign the peers' serving certificates; without it, no peers
    #[arg(long, value_name = "FILE")]
    pub(crate) peer_ca_file: Option<String>,
    /// Address at which peers reach this bridge, if not --advertise-address
    #[arg(long, value_name = "IP")]
    pub(crate) peer_advertise_ip: Option<String>,
    /// Port at which peers reach this bridge, if not --secure-port
    #[arg(long, value_name = "PORT")]
    pub(crate) peer_advertise_port: Option<String>,
    /// Where peers find each other: etcd, leases or file:PATH (YAML) [default: etcd]
    #[arg(long, value_name = "KIND")]
    pub(crate) peer_registry: Option<String>,
    /// Networks that peers must be in; required with leases
    #[arg(long, value_name = "LIST")]
    pub(crate) peer_cidrs: Vec<String>,
    /// Identity Lease to speak for: its name, or auto as kube-apiserver does
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) apiserver_identity: String,
    /// EgressSelectorConfiguration (YAML), as kube-apiserver reads it: its
    /// controlplane is the way to peers
    #[arg(long, value_name = "FILE")]
    pub(crate) egress_selector_config_file: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Etcd flags")]
pub(crate) struct EtcdFlags {
    /// URLs of etcd: http[s]://HOST:PORT
    #[arg(long, value_name = "LIST")]
    pub(crate) etcd_servers: Vec<String>,
    /// CAs that sign etcd's certificates; required with https
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_cafile: Option<String>,
    /// Certificate shown to etcd
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_certfile: Option<String>,
    /// Its private key
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_keyfile: Option<String>,
    /// What the keys of this cluster begin with
    #[arg(long, value_name = "PATH", default_value = "/registry")]
    pub(crate) etcd_prefix: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Streams flags")]
pub(crate) struct StreamFlags {
    /// Carry WebSocket streams upstream as SPDY: auto (where upstream does not do it
    /// itself), always or never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) translate_streams: String,
    /// What the way to upstream carries: any, or websocket (then SPDY streams are
    /// carried upstream as WebSocket)
    #[arg(long, value_name = "WHAT", default_value = "any")]
    pub(crate) upstream_streams: String,
    /// Time between pings on a quiet stream; 0 is none
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(crate) stream_ping_interval: String,
    /// Time after which a translated stream that carries nothing is ended; 0 is never
    #[arg(long, value_name = "DURATION", default_value = "4h")]
    pub(crate) streaming_connection_idle_timeout: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Features flags")]
pub(crate) struct FeatureFlags {
    /// NAME=true|false for UnknownVersionInteroperabilityProxy, PortForwardWebsockets or
    /// TranslateStreamCloseWebsocketRequests; all are on
    #[arg(long, value_name = "LIST")]
    pub(crate) feature_gates: Vec<String>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits flags")]
pub(crate) struct LimitFlags {
    /// Open client connections; further ones wait
    #[arg(long, value_name = "COUNT", default_value = "16384")]
    pub(crate) max_connections: String,
    /// Requests at once on one HTTP/2 connection; 0 is the default
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub(crate) http2_max_streams_per_connection: String,
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
    /// Where /metrics, /livez, /readyz and /debug/peers are, in plain HTTP: on loopback only
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10270")]
    pub(crate) admin_address: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs flags")]
pub(crate) struct LogFlags {
    /// Verbosity, 0 to 10: 2 adds a line per request, 4 debugs, 6 traces
    #[arg(short, long, value_name = "LEVEL", default_value = "0")]
    pub(crate) v: String,
    /// How lines are written: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generic flags")]
pub(crate) struct GenericFlags {
    /// Address at which clients reach this bridge, if not --bind-address
    #[arg(long, value_name = "IP")]
    pub(crate) advertise_address: Option<String>,
    /// Threads that carry requests [default: one per core]
    #[arg(long, value_name = "COUNT")]
    pub(crate) worker_threads: Option<String>,
    /// After SIGTERM: time to be not ready, but to serve on
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(crate) shutdown_delay_duration: String,
    /// After that: time for running requests to end
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub(crate) shutdown_drain_timeout: String,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
}
