//! The peering configuration of this bridge: identity, address and registry, or why peering is
//! disabled.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use ipnet::IpNet;
use skewbridge_etcd::Endpoint;
use skewbridge_peer_directory::Identity;
use skewbridge_peer_directory::registry::{
    Activity, EtcdFiles, EtcdRegistry, FileRegistry, Registry, RegistryStatus, StatusReporter,
};
use tokio::sync::watch;

use crate::config::{ApiServerIdentity, Config, Feature, RegistryKind};
use crate::live_config::LiveConfig;

/// The configuration of peering.
pub(crate) struct PeeringConfig {
    /// The identity of the local server.
    pub(crate) identity: Identity,
    /// The host name of this machine.
    pub(crate) hostname: String,
    /// The address at which peers reach the bridge.
    pub(crate) address: SocketAddr,
    /// The registry of addresses.
    pub(crate) registry: PeerRegistry,
    /// The status of reading Leases, where Leases are the registry.
    pub(crate) lease_status: Arc<StatusReporter>,
    /// The address of the local server, if other hosts can reach it.
    pub(crate) server: Option<SocketAddr>,
    /// `--peer-cidrs`: networks that addresses of peers must be in; empty permits any address.
    pub(crate) networks: Vec<IpNet>,
}

/// Where servers publish their addresses.
pub(crate) enum PeerRegistry {
    /// In a registry, which also has served records.
    Registry(Box<dyn Registry>),
    /// In a file that an administrator maintains. Served records are in annotations of identity
    /// Leases.
    File(Box<dyn Registry>),
    /// In annotations of identity Leases.
    Leases,
}

/// Why every request goes to the local server (KEP-4020, Risks 6: the bridge runs nevertheless,
/// and reports the reason).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeeringDisabled {
    /// The feature gate is off.
    GateOff,
    /// A flag is missing.
    MissingFlag(&'static str),
    /// Another problem.
    Invalid(String),
}

impl fmt::Display for PeeringDisabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GateOff => f.write_str("UnknownVersionInteroperabilityProxy is off"),
            Self::MissingFlag(flag) => write!(f, "{flag} is not set"),
            Self::Invalid(cause) => f.write_str(cause),
        }
    }
}

impl PeeringConfig {
    /// Builds it from the config; `listening` is the port that was bound.
    pub(crate) fn of(
        config: &Config,
        live: &Arc<LiveConfig>,
        listening: u16,
    ) -> Result<Self, PeeringDisabled> {
        if !(config.features).enabled(Feature::UnknownVersionInteroperabilityProxy) {
            return Err(PeeringDisabled::GateOff);
        }
        let needed = [
            ("--peer-ca-file", config.peers.ca.is_some()),
            (
                "--proxy-client-cert-file",
                config.upstream.front_proxy.is_some(),
            ),
            (
                "--requestheader-client-ca-file",
                config.callers.request_header.is_some(),
            ),
        ];
        if let Some((flag, _)) = needed.into_iter().find(|(_, given)| !given) {
            return Err(PeeringDisabled::MissingFlag(flag));
        }
        let hostname = hostname();
        let identity = match &config.peers.identity {
            ApiServerIdentity::Auto => Identity::of_hostname(&hostname),
            ApiServerIdentity::Named(name) => Identity::named(name).map_err(|error| {
                PeeringDisabled::Invalid(format!("--apiserver-identity: {error}"))
            })?,
        };
        let address = address(config, listening).ok_or_else(|| {
            PeeringDisabled::Invalid(
                "this machine has no default interface; set --peer-advertise-ip".to_owned(),
            )
        })?;
        Ok(Self {
            identity,
            hostname,
            address,
            registry: peer_registry(config, live)?,
            lease_status: Arc::new(StatusReporter::new("leases", &[Activity::Read])),
            server: server_address(config),
            networks: config.peers.cidrs.clone(),
        })
    }

    /// Collects the outcomes of the activities of the registry.
    pub(crate) fn registry_reporter(&self) -> Arc<StatusReporter> {
        match &self.registry {
            PeerRegistry::Registry(registry) | PeerRegistry::File(registry) => registry.reporter(),
            PeerRegistry::Leases => self.lease_status.clone(),
        }
    }

    /// Whether addresses can be read and published, as this changes.
    pub(crate) fn registry_status(&self) -> watch::Receiver<RegistryStatus> {
        self.registry_reporter().subscribe()
    }
}

/// The address of the local server in `--upstream`, unless only this host can reach it.
fn server_address(config: &Config) -> Option<SocketAddr> {
    let ip: IpAddr = config.upstream.host.parse().ok()?;
    let is_reachable = !ip.is_loopback() && !ip.is_unspecified();
    is_reachable.then(|| SocketAddr::new(ip, config.upstream.port))
}

fn peer_registry(config: &Config, live: &Arc<LiveConfig>) -> Result<PeerRegistry, PeeringDisabled> {
    let peers = &config.peers;
    let registry: Box<dyn Registry> = match &peers.registry {
        RegistryKind::Leases => return Ok(PeerRegistry::Leases),
        RegistryKind::File(path) => {
            let registry = FileRegistry::new(path.clone(), peers.cidrs.clone());
            return Ok(PeerRegistry::File(Box::new(registry)));
        }
        RegistryKind::Memory(exchange) => Box::new(exchange.registry()),
        RegistryKind::Etcd => {
            if peers.etcd.servers.is_empty() {
                return Err(PeeringDisabled::MissingFlag("--etcd-servers"));
            }
            let endpoints: Result<Vec<Endpoint>, _> = (peers.etcd.servers.iter())
                .map(|server| server.to_string().parse())
                .collect();
            let endpoints = endpoints
                .map_err(|error| PeeringDisabled::Invalid(format!("--etcd-servers: {error}")))?;
            let live = live.clone();
            let tls = Arc::new(move || live.etcd.load_full());
            let files = EtcdFiles {
                ca: peers.etcd.ca.clone(),
                cert: peers.etcd.key_pair.as_ref().map(|it| it.cert.clone()),
            };
            let registry = EtcdRegistry::new(endpoints, tls, peers.etcd.prefix.clone());
            Box::new(registry.with_files(files))
        }
    };
    Ok(PeerRegistry::Registry(registry))
}

/// The host name as kube-apiserver reads it.
fn hostname() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// `--peer-advertise-ip` and `-port`, else `--advertise-address`, else
/// `--bind-address`, else the address of the default interface; `listening` is
/// the port that was bound.
fn address(config: &Config, listening: u16) -> Option<SocketAddr> {
    let bound = config.listen.bind_address;
    let ip = (config.peers.advertise_ip)
        .or(config.listen.advertise_address)
        .or((!bound.is_unspecified()).then_some(bound))
        .or_else(default_interface)?;
    Some(SocketAddr::new(
        ip,
        config.peers.advertise_port.unwrap_or(listening),
    ))
}

/// The source address of packets that leave this machine by its default route. No packet is sent:
/// the kernel only looks up the route. The destination addresses are from the ranges for
/// documentation (RFC 5737, RFC 3849).
fn default_interface() -> Option<IpAddr> {
    let outward = |from: &str, to: &str| {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect((to, 9)).ok()?;
        let ip = socket.local_addr().ok()?.ip();
        (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
    };
    outward("0.0.0.0", "192.0.2.1").or_else(|| outward("::", "2001:db8::1"))
}
