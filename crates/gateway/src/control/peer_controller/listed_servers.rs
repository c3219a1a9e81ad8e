//! Listed addresses of kube-apiservers: those in the `EndpointSlices` of `default/kubernetes`, and
//! those of entries of a file without a bridge. Finds out which server answers at each of them, so
//! that no server counts twice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use skewbridge_http_engine::client::{Connector as _, ProtocolOffer};
use skewbridge_peer_directory::refresh_schedule::{ChangeDetection, RefreshSchedule};
use skewbridge_peer_directory::registry::{Addresses, AdvertisedAddress};
use skewbridge_peer_directory::server_addresses::MAX_CERTIFICATE_NAMES;
use skewbridge_peer_directory::{Identity, KubernetesEndpoints, ObservedServer};
use tokio::time::timeout;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::peer_config::OwnAddresses;
use crate::state::GatewayState;
use crate::upstream::PeerConnectionIdentity;

/// The timeout of a connection whose only purpose is the serving certificate.
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(5);

/// The listed addresses, and what servers have presented there.
#[derive(Debug)]
pub(super) struct ListedServers {
    own: OwnAddresses,
    /// Whether `EndpointSlices` are an address source.
    reads_slices: bool,
    pub(super) slices: KubernetesEndpoints,
    listed: BTreeSet<SocketAddr>,
    /// Those of this bridge and of the local server.
    own_addresses: BTreeSet<SocketAddr>,
    observed: BTreeMap<SocketAddr, ObservedServer>,
    schedules: BTreeMap<SocketAddr, RefreshSchedule>,
}

impl ListedServers {
    pub(super) fn new(own: OwnAddresses, reads_slices: bool) -> Self {
        Self {
            own,
            reads_slices,
            slices: KubernetesEndpoints::default(),
            listed: BTreeSet::new(),
            own_addresses: BTreeSet::new(),
            observed: BTreeMap::new(),
            schedules: BTreeMap::new(),
        }
    }

    /// Whether there may be listed addresses.
    pub(super) fn is_used(&self) -> bool {
        self.reads_slices || !self.listed.is_empty()
    }

    /// The addresses in `EndpointSlices`, as those of servers without a known identity.
    pub(super) fn in_slices(&self) -> Addresses {
        let addresses = self.slices.addresses().into_iter();
        addresses
            .map(|it| {
                (
                    Identity::of_address(it),
                    AdvertisedAddress::by_endpoints(it),
                )
            })
            .collect()
    }

    /// Replaces the listed addresses. New ones are probed.
    pub(super) fn set_listed(&mut self, listed: BTreeSet<SocketAddr>, now: Instant) {
        if self.listed == listed {
            return;
        }
        let own = &self.own;
        self.own_addresses = (listed.iter().copied())
            .filter(|it| own.contains(*it))
            .collect();
        self.observed.retain(|it, _| listed.contains(it));
        self.schedules.retain(|it, _| listed.contains(it));
        for address in listed.difference(&self.own_addresses) {
            self.schedules.entry(*address).or_insert_with(|| {
                let mut schedule = RefreshSchedule::default();
                schedule.refresh_now(now);
                schedule
            });
        }
        self.listed = listed;
    }

    pub(super) fn own_addresses(&self) -> &BTreeSet<SocketAddr> {
        &self.own_addresses
    }

    pub(super) fn observed(&self) -> &BTreeMap<SocketAddr, ObservedServer> {
        &self.observed
    }

    /// The addresses whose serving certificate is due to be read.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<SocketAddr> {
        let schedules = self.schedules.iter_mut();
        schedules
            .filter_map(|(address, schedule)| schedule.begin_if_due(now).then_some(*address))
            .collect()
    }

    /// The names of the serving certificate at an address. Returns whether they have changed. The
    /// last known ones stay in use while the server does not answer.
    pub(super) fn on_certificate(
        &mut self,
        address: SocketAddr,
        names: Result<Vec<String>, String>,
        now: Instant,
        jitter: f64,
    ) -> bool {
        let Some(schedule) = self.schedules.get_mut(&address) else {
            return false;
        };
        match names {
            Ok(names) => {
                schedule.succeeded(now, ChangeDetection::ByEvent, jitter);
                let observed = self.observed.entry(address).or_default();
                let before = std::mem::replace(&mut observed.certificate_names, names);
                before != observed.certificate_names
            }
            Err(problem) => {
                schedule.failed(now, jitter);
                tracing::debug!(%address, %problem, "the serving certificate of a listed server was not read");
                false
            }
        }
    }

    /// A poll was answered at an address, by a bridge that has named the identity of its server or
    /// by a kube-apiserver. Returns whether that has changed.
    pub(super) fn on_answer(&mut self, address: SocketAddr, bridge_of: Option<Identity>) -> bool {
        if !self.listed.contains(&address) {
            return false;
        }
        let observed = self.observed.entry(address).or_default();
        let before = std::mem::replace(&mut observed.bridge_of, bridge_of);
        before != observed.bridge_of
    }
}

/// The DNS names of the serving certificate at an address, over a verified TLS connection on which
/// no request is sent.
pub(super) async fn certificate_names(
    state: &GatewayState,
    address: SocketAddr,
) -> Result<Vec<String>, String> {
    let targets = state.targets.load_full();
    let target = targets.peer.as_ref();
    let target =
        target.and_then(|it| it.at(address, Vec::new(), PeerConnectionIdentity::FrontProxy));
    let target = target.ok_or("there are no certificates for peers")?;
    let connected = timeout(CERTIFICATE_TIMEOUT, target.connect(ProtocolOffer::Either)).await;
    let connected = connected
        .map_err(|_| "no answer".to_owned())?
        .map_err(|error| error.to_string())?;
    let presented = connected.io.get_ref().1.peer_certificates();
    Ok(presented
        .and_then(<[_]>::first)
        .map(|certificate| dns_names(certificate))
        .unwrap_or_default())
}

fn dns_names(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = names.value.general_names.iter().filter_map(|it| match it {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    names.take(MAX_CERTIFICATE_NAMES).collect()
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::Ca;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn listed(own: OwnAddresses) -> ListedServers {
        ListedServers::new(own, true)
    }

    fn own() -> OwnAddresses {
        OwnAddresses {
            bridge: address("198.51.100.1:7443"),
            server: Some(address("198.51.100.1:6443")),
            local_port: None,
        }
    }

    #[test]
    fn the_addresses_of_this_host_are_its_own() {
        let servers = [
            "198.51.100.1:6443",
            "198.51.100.1:7443",
            "198.51.100.2:6443",
        ]
        .map(address);
        let mut both = listed(own());
        both.set_listed(servers.into(), Instant::now());
        let expected = [servers[0], servers[1]].into();
        assert_eq!(*both.own_addresses(), expected);
    }

    #[test]
    fn each_listed_address_is_probed_and_removed_when_it_is_no_longer_listed() {
        let now = Instant::now();
        let [own_server, other] = ["198.51.100.1:6443", "198.51.100.2:6443"].map(address);
        let mut servers = listed(own());
        servers.set_listed([own_server, other].into(), now);
        assert_eq!(servers.take_due(now), [other]);
        assert!(servers.take_due(now).is_empty(), "in progress");
        let names = || vec!["cp-2".to_owned()];
        assert!(servers.on_certificate(other, Ok(names()), now, 0.0));
        let later = now + Duration::from_mins(1);
        assert_eq!(servers.take_due(later), [other]);
        assert!(!servers.on_certificate(other, Ok(names()), later, 0.0));
        assert!(!servers.on_certificate(other, Err("refused".to_owned()), later, 0.0));
        assert_eq!(servers.observed()[&other].certificate_names, names());
        let identity = Identity::named("apiserver-b").unwrap();
        assert!(servers.on_answer(other, Some(identity.clone())));
        assert!(!servers.on_answer(other, Some(identity)));
        assert!(servers.on_answer(other, None));
        servers.set_listed([own_server].into(), later);
        assert!(servers.observed().is_empty());
        assert!(!servers.on_certificate(other, Ok(names()), later, 0.0));
        assert!(!servers.on_answer(other, None));
        assert!(servers.take_due(later + Duration::from_mins(1)).is_empty());
    }

    #[test]
    fn the_dns_names_of_a_certificate_are_read() {
        let leaf = Ca::new("ca").server(&["kubernetes.default.svc", "CP-2", "10.0.0.2"]);
        assert_eq!(
            dns_names(&leaf.chain_der[0]),
            ["kubernetes.default.svc", "cp-2"]
        );
        assert!(dns_names(b"junk").is_empty());
    }
}
