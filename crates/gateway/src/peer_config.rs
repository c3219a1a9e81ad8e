//! The peering configuration of this bridge: identity, address and registry, or why peering is
//! disabled.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use skewbridge_etcd::Endpoint;
use skewbridge_peer_directory::Identity;
use skewbridge_peer_directory::registry::{
    Activity, EtcdFiles, EtcdRegistry, FileRegistry, FixedRegistry, FixedServer, Registry,
    RegistryStatus, StatusReporter,
};
use tokio::sync::watch;

use crate::config::{ApiServerIdentity, Config, Feature, RegistryKind};
use crate::field_guard::FieldGuard;
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
    /// The status of reading Leases, where Leases are the registry, or of `EndpointSlices`, where
    /// there is no registry.
    pub(crate) lease_status: Arc<StatusReporter>,
    /// Whether addresses in `EndpointSlices` are read, too.
    pub(crate) reads_endpoints: bool,
    /// The addresses of this bridge and of the local server.
    pub(crate) own_addresses: OwnAddresses,
    /// `--guard-fields`
    pub(crate) field_guard: FieldGuard,
    /// `--state-dir`
    pub(crate) state_dir: Option<PathBuf>,
    /// `--peer-cidrs`: networks that addresses of peers must be in; empty permits any address.
    pub(crate) networks: Vec<IpNet>,
}

/// The addresses of this bridge and of the local server.
#[derive(Debug, Clone)]
pub(crate) struct OwnAddresses {
    /// The address at which peers reach the bridge.
    pub(crate) bridge: SocketAddr,
    /// The address of the local server, if other hosts can reach it.
    pub(crate) server: Option<SocketAddr>,
    /// The port of the local server, if it runs on this host.
    pub(crate) local_port: Option<u16>,
}

impl OwnAddresses {
    /// Whether an address is that of this bridge or of the local server.
    pub(crate) fn contains(&self, address: SocketAddr) -> bool {
        let has_own_port =
            address.port() == self.bridge.port() || Some(address.port()) == self.local_port;
        address == self.bridge
            || Some(address) == self.server
            || (has_own_port && is_of_this_host(address.ip()))
    }
}

/// Whether an interface of this host has the address: packets to it have it as their source, too. No
/// packet is sent. (`bind` shows nothing where `net.ipv4.ip_nonlocal_bind` is set.)
fn is_of_this_host(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((ip, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    !ip.is_loopback() && source() == Some(ip)
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
    /// Nowhere. Served records are in annotations of identity Leases.
    None,
    /// Behind the same bridge. These peers have no identity Leases that the bridge reads.
    Fixed(Box<dyn Registry>, watch::Receiver<Vec<FixedServer>>),
}

impl PeerRegistry {
    /// The servers behind the same bridge, of which all but the own one are the peers.
    pub(crate) fn fixed_peers(&self) -> Option<watch::Receiver<Vec<FixedServer>>> {
        match self {
            Self::Fixed(_, servers) => Some(servers.clone()),
            Self::Registry(_) | Self::File(_) | Self::Leases | Self::None => None,
        }
    }
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
    /// Builds the configuration of peering; `listening` is the port that was bound.
    pub(crate) fn of(
        config: &Config,
        live: &Arc<LiveConfig>,
        listening: u16,
    ) -> Result<Self, PeeringDisabled> {
        if let Some(disabled) = disabled_by_flags(config) {
            return Err(disabled);
        }
        let hostname = hostname();
        let identity = own_identity(config).map_err(PeeringDisabled::Invalid)?;
        let address = address(config, listening).ok_or_else(|| {
            PeeringDisabled::Invalid(
                "this machine has no default interface; set --peer-advertise-ip".to_owned(),
            )
        })?;
        let own_addresses = OwnAddresses {
            bridge: address,
            server: server_address(config),
            local_port: is_on_this_host(config, &hostname).then_some(config.upstream.port),
        };
        let lease_status = match config.peers.registry {
            RegistryKind::None => StatusReporter::new("endpoints", &[Activity::ReadEndpoints]),
            _ => StatusReporter::new("leases", &[Activity::Read]),
        };
        let peering_config = Self {
            identity,
            hostname,
            address,
            registry: peer_registry(config, live)?,
            lease_status: Arc::new(lease_status),
            reads_endpoints: config.peers.reads_endpoints(),
            own_addresses,
            field_guard: config.peers.guards.fields,
            state_dir: config.peers.state_dir.clone(),
            networks: config.peers.cidrs.clone(),
        };
        if peering_config.reads_endpoints {
            peering_config.registry_reporter().also_read_endpoints();
        }
        Ok(peering_config)
    }

    /// The configuration for one of several values of `--upstream`: its peers are the others.
    pub(crate) fn of_backend(
        config: &Config,
        own: &FixedServer,
        servers: watch::Receiver<Vec<FixedServer>>,
    ) -> Result<Self, PeeringDisabled> {
        if let Some(disabled) = disabled_by_flags(config) {
            return Err(disabled);
        }
        let registry = FixedRegistry::new(servers.clone());
        // Peers do not connect to the bridge.
        let address = SocketAddr::new(config.listen.bind_address, config.listen.secure_port);
        Ok(Self {
            identity: own.identity.clone(),
            hostname: own.host.clone(),
            address,
            registry: PeerRegistry::Fixed(Box::new(registry), servers),
            lease_status: Arc::new(StatusReporter::new("leases", &[Activity::Read])),
            reads_endpoints: false,
            own_addresses: OwnAddresses {
                bridge: address,
                server: None,
                local_port: None,
            },
            field_guard: config.peers.guards.fields,
            state_dir: config.peers.state_dir.clone(),
            networks: Vec::new(),
        })
    }

    /// Collects the outcomes of the activities of the registry.
    pub(crate) fn registry_reporter(&self) -> Arc<StatusReporter> {
        match &self.registry {
            PeerRegistry::Registry(registry)
            | PeerRegistry::File(registry)
            | PeerRegistry::Fixed(registry, _) => registry.reporter(),
            PeerRegistry::Leases | PeerRegistry::None => self.lease_status.clone(),
        }
    }

    /// Whether addresses can be read and published, as this changes.
    pub(crate) fn registry_status(&self) -> watch::Receiver<RegistryStatus> {
        self.registry_reporter().subscribe()
    }
}

/// The address of the local server in `--upstream`; `None` if only this host can reach it.
fn server_address(config: &Config) -> Option<SocketAddr> {
    let ip: IpAddr = config.upstream.host.parse().ok()?;
    let is_reachable = !ip.is_loopback() && !ip.is_unspecified();
    is_reachable.then(|| SocketAddr::new(ip, config.upstream.port))
}

/// Whether `--upstream` names this host.
fn is_on_this_host(config: &Config, hostname: &str) -> bool {
    let host = config.upstream.host.as_str();
    let is_loopback = host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    is_loopback || host == "localhost" || host == hostname
}

fn peer_registry(config: &Config, live: &Arc<LiveConfig>) -> Result<PeerRegistry, PeeringDisabled> {
    let peers = &config.peers;
    let registry: Box<dyn Registry> = match &peers.registry {
        RegistryKind::Leases => return Ok(PeerRegistry::Leases),
        RegistryKind::None => return Ok(PeerRegistry::None),
        RegistryKind::File(path) => {
            let registry = FileRegistry::new(path.clone(), peers.cidrs.clone());
            return Ok(PeerRegistry::File(Box::new(registry)));
        }
        RegistryKind::Memory(exchange) => Box::new(exchange.registry()),
        RegistryKind::Etcd => {
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

/// The reason if flags disable peering: a gate, or a flag that is missing. Several values of
/// `--upstream` are peers of each other: flags by which bridges find each other are not needed.
pub fn disabled_by_flags(config: &Config) -> Option<PeeringDisabled> {
    if !(config.features).enabled(Feature::UnknownVersionInteroperabilityProxy) {
        return Some(PeeringDisabled::GateOff);
    }
    let is_balanced = config.upstream.is_balanced();
    let needs_etcd = config.peers.registry == RegistryKind::Etcd && !is_balanced;
    let needed = [
        ("--peer-ca-file", config.peers.ca.is_some() || is_balanced),
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
            !needs_etcd || !config.peers.etcd.servers.is_empty(),
        ),
    ];
    let missing = needed.into_iter().find(|(_, given)| !given);
    missing.map(|(flag, _)| PeeringDisabled::MissingFlag(flag))
}

/// The identity of the local server: `--apiserver-identity`, or that of this host.
pub fn own_identity(config: &Config) -> Result<Identity, String> {
    match &config.peers.identity {
        ApiServerIdentity::Auto => Ok(Identity::of_hostname(&hostname())),
        ApiServerIdentity::Named(name) => {
            Identity::named(name).map_err(|error| format!("--apiserver-identity: {error}"))
        }
    }
}

/// The address at which peers reach the bridge, if it has one.
pub fn advertised_address(config: &Config) -> Option<SocketAddr> {
    address(config, config.listen.secure_port)
}

/// The host name as kube-apiserver reads it.
pub(crate) fn hostname() -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_count_as_its_own_by_their_port() {
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let own = OwnAddresses {
            bridge: address("198.51.100.1:7443"),
            server: Some(address("198.51.100.1:6443")),
            local_port: Some(6444),
        };
        for (text, expected) in [
            ("198.51.100.1:7443", true),
            ("198.51.100.1:6443", true),
            // No address of this host (RFC 5737).
            ("198.51.100.2:7443", false),
            ("198.51.100.1:6444", false),
            // Every host has it.
            ("127.0.0.1:6444", false),
        ] {
            assert_eq!(own.contains(address(text)), expected, "{text}");
        }
    }
}
