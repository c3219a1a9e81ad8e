//! The configuration of a bridge: the same as by the flags of `skewbridge serve`, except that
//! addresses are exchanged in memory.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use rustls_pki_types::ServerName;
use skewbridge_gateway::config::{
    Admin, ApiServerIdentity, AuthenticationConfig, BridgeUser, Config, Egress, Etcd, Features,
    Guards, Limits, Listen, LogFormat, Logs, Peers, RegistryKind, RequestHeader, ServingTls,
    Shutdown, Streams, TlsVersion, TranslateStreams, Upstream, UpstreamStreams,
};
use skewbridge_k8s_api::identity::IdentityHeaders;
use skewbridge_peer_directory::Identity;
use skewbridge_peer_directory::registry::SharedMemoryRegistry;

use super::pki::{FRONT_PROXY, Pki};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Time for requests in flight when the playground ends.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// A bridge in front of a server; ports may be 0.
pub(super) fn config(
    pki: &Pki,
    exchange: &SharedMemoryRegistry,
    hostname: &str,
    server: SocketAddr,
    port: u16,
    admin_port: u16,
) -> Config {
    Config {
        listen: Listen {
            bind_address: LOOPBACK,
            secure_port: port,
            advertise_address: Some(LOOPBACK),
            proxy_protocol_cidrs: Vec::new(),
        },
        serving: ServingTls {
            key_pair: pki.serving.clone(),
            min_version: TlsVersion::Tls12,
        },
        callers: AuthenticationConfig {
            client_ca: Some(pki.ca.clone()),
            request_header: Some(RequestHeader {
                ca: pki.front_proxy_ca.clone(),
                allowed_names: vec![FRONT_PROXY.to_owned()],
            }),
            headers: IdentityHeaders::default(),
            signatures: None,
        },
        upstream: Upstream {
            host: server.ip().to_string(),
            port: server.port(),
            ca: pki.ca.clone(),
            server_name: ServerName::IpAddress(server.ip().into()),
            others: Vec::new(),
            endpoints: None,
            front_proxy: Some(pki.front_proxy.clone()),
            bridge_user: BridgeUser::default(),
        },
        peers: Peers {
            // The servers share a host name, so the identity of the local one is configured.
            identity: ApiServerIdentity::Named(Identity::of_hostname(hostname).to_string()),
            registry: RegistryKind::Memory(exchange.clone()),
            endpoints: false,
            ca: Some(pki.ca.clone()),
            advertise_ip: Some(LOOPBACK),
            advertise_port: None,
            cidrs: Vec::new(),
            guards: Guards::default(),
            state_dir: None,
            etcd: Etcd::default(),
            egress: Egress::Direct,
        },
        streams: Streams {
            translate: TranslateStreams::Auto,
            upstream: UpstreamStreams::Any,
            ping_interval: Duration::from_secs(10),
            idle_timeout: Duration::from_hours(4),
        },
        features: Features::default(),
        limits: Limits::default(),
        admin: Admin {
            address: SocketAddr::new(LOOPBACK, admin_port),
            secure_address: None,
            watch_target: None,
            flags: BTreeMap::new(),
        },
        shutdown: Shutdown {
            delay: Duration::ZERO,
            drain: DRAIN_TIMEOUT,
        },
        logs: Logs {
            verbosity: 0,
            format: LogFormat::Text,
        },
        // A playground has few clients.
        workers: NonZeroUsize::MIN,
    }
}
