//! The other servers of the cluster, as routing sees them: their state, which of them serve a
//! request, and the order in which they are tried.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use skewbridge_k8s_api::request_info::RequestInfo;

use crate::identity::Identity;
use crate::peer_health::PeerHealth;
use crate::peer_name::PeerName;
use crate::served_apis::ServedApis;
use crate::served_record::KeyDigest;

/// The source of the served APIs of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiSource {
    /// This process polled the server.
    Polled,
    /// The server's bridge published it in the registry.
    Published,
    /// An earlier process of this bridge stored it in `--state-dir`.
    Stored,
}

/// The other servers, as an immutable snapshot for routing.
#[derive(Debug, Default)]
pub struct Peers {
    /// Whether the Leases have been listed.
    pub leases_listed: bool,
    /// Ordered by identity.
    pub peers: Vec<Arc<Peer>>,
}

/// Another server of the cluster.
#[derive(Debug)]
pub struct Peer {
    /// The name of its Lease.
    pub identity: Identity,
    /// The host name in its Lease.
    pub host: Option<String>,
    /// The address of the server or of its bridge.
    pub address: Option<SocketAddr>,
    /// Whether the registry currently has that address.
    pub published: bool,
    /// Until when the server counts as running after the last renewal of its Lease.
    pub alive_until: Instant,
    /// Until when requests wait for the first poll of the server.
    pub awaited_until: Instant,
    /// The APIs that it serves, as last known.
    pub served: Option<Arc<ServedApis>>,
    /// The source of `served`, and other data from the bridge of the peer.
    pub record: PeerRecord,
    /// Health and load.
    pub health: Arc<PeerHealth>,
    /// When a poll last succeeded.
    pub last_success: Option<SystemTime>,
    /// Why the last poll failed, or why the peer cannot be polled.
    pub problem: Option<String>,
}

/// The source of the served APIs of a peer, and other data from its bridge.
#[derive(Debug, Clone, Default)]
pub struct PeerRecord {
    /// The source of the served APIs.
    pub source: Option<ApiSource>,
    /// The bridge of the peer announced its departure and has not returned.
    pub bridge_left: bool,
    /// A bridge answered the last poll at the address of the peer. Otherwise the address may belong
    /// to a kube-apiserver, which gets tokens without the front-proxy certificate.
    pub is_bridge: bool,
    /// Digests of the serving keys of the peer's bridge. Empty if unknown.
    pub serving_keys: Vec<KeyDigest>,
}

/// Which peers serve a request.
#[derive(Debug, Clone)]
pub enum PeerLookup {
    /// The cluster has no other server.
    NoPeers,
    /// These peers serve the request.
    Found(Vec<Arc<Peer>>),
    /// No polled peer serves the request, but this running peer has not been polled yet.
    Unknown(Identity),
    /// No peer serves the request.
    NotServed,
}

impl Peers {
    /// The peer of this identity.
    pub fn get(&self, identity: &Identity) -> Option<&Arc<Peer>> {
        self.peers.iter().find(|peer| peer.identity == *identity)
    }

    /// Which peers serve this request. [`PeerLookup::NotServed`] is only returned when that is certain.
    pub fn lookup(&self, request: &RequestInfo<'_>, now: Instant) -> PeerLookup {
        if self.peers.is_empty() {
            return PeerLookup::NoPeers;
        }
        let serving: Vec<_> = self
            .peers
            .iter()
            .filter(|peer| peer.serves(request))
            .cloned()
            .collect();
        if !serving.is_empty() {
            return PeerLookup::Found(serving);
        }
        let silent = self
            .peers
            .iter()
            .find(|peer| peer.is_unconfirmed() && peer.is_awaited(now));
        match silent {
            Some(peer) => PeerLookup::Unknown(peer.identity.clone()),
            None => PeerLookup::NotServed,
        }
    }
}

impl Peer {
    /// Host and identity, for logs and messages.
    pub fn name(&self) -> PeerName<'_> {
        PeerName::new(&self.identity, self.host.as_deref())
    }

    /// Whether the peer runs and its first poll is still awaited.
    pub(crate) fn is_awaited(&self, now: Instant) -> bool {
        self.alive_until > now && self.awaited_until > now
    }

    /// Whether this process has not polled the peer yet. A record may be older than the version
    /// that the server runs now.
    fn is_unconfirmed(&self) -> bool {
        let source = self.record.source;
        self.served.is_none() || matches!(source, Some(ApiSource::Published | ApiSource::Stored))
    }

    /// Whether the peer runs and is expected to answer: a request that the local server could
    /// answer too is sent only to such a peer.
    pub fn is_available(&self, now: Instant) -> bool {
        self.address.is_some()
            && self.published
            && self.alive_until > now
            && self.health.is_reachable()
            && self.health.is_healthy(now)
    }

    /// Whether the peer is known to serve this request.
    pub fn serves(&self, request: &RequestInfo<'_>) -> bool {
        let served = self.served.as_ref();
        served.is_some_and(|served| served.index.serves(request))
    }
}

/// The order in which peers that serve a request are tried. Healthy peers come first, and of two
/// random healthy peers the one with fewer requests in flight (power of two choices). Peers without
/// an address are left out.
pub fn order_candidates(mut serving: Vec<Arc<Peer>>, random: u64, now: Instant) -> Vec<Arc<Peer>> {
    serving.retain(|peer| peer.address.is_some());
    shuffle(&mut serving, random);
    serving.sort_by_key(|peer| !(peer.published && peer.health.is_healthy(now)));
    let good = |peer: &Arc<Peer>| peer.published && peer.health.is_healthy(now);
    if let [first, second, ..] = serving.as_slice()
        && good(first)
        && good(second)
        && second.health.in_flight() < first.health.in_flight()
    {
        serving.swap(0, 1);
    }
    serving
}

/// Fisher-Yates, with a generator that is good enough to spread load.
fn shuffle<T>(items: &mut [T], mut random: u64) {
    for last in (1..items.len()).rev() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // The high bits are the random ones; a list is never longer than usize.
        let below = u64::try_from(last + 1).unwrap_or(1);
        let pick = usize::try_from((random >> 33) % below).unwrap_or(0);
        items.swap(last, pick);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::peer_health::MAX_BACKOFF;

    fn peer(name: &str) -> Arc<Peer> {
        Arc::new(Peer {
            identity: Identity::named(name).unwrap(),
            host: None,
            address: Some(([127, 0, 0, 1], 6443).into()),
            published: true,
            alive_until: Instant::now(),
            awaited_until: Instant::now(),
            served: None,
            record: PeerRecord::default(),
            health: Arc::default(),
            last_success: None,
            problem: None,
        })
    }

    fn first(peers: &[Arc<Peer>], random: u64) -> String {
        let order = order_candidates(peers.to_vec(), random, Instant::now());
        order[0].identity.to_string()
    }

    #[test]
    fn equally_healthy_peers_share_the_load() {
        let peers = ["a", "b", "c"].map(peer);
        let chosen: HashSet<_> = (0..100).map(|turn| first(&peers, turn)).collect();
        assert_eq!(chosen.len(), 3);
    }

    #[test]
    fn of_two_healthy_peers_the_one_with_fewer_requests_in_flight_is_chosen() {
        let peers = ["a", "b"].map(peer);
        let guards = [
            peers[0].health.track_request(),
            peers[0].health.track_request(),
        ];
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        drop(guards);
        assert_eq!(peers[0].health.in_flight(), 0);
    }

    #[test]
    fn a_failed_peer_comes_last_until_it_succeeds_or_the_backoff_ends() {
        let peers = ["a", "b"].map(peer);
        let now = Instant::now();
        peers[0].health.record_failure(now);
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        assert!(peers[0].health.is_healthy(now + MAX_BACKOFF));
        // A failed peer is never left out.
        assert_eq!(order_candidates(peers.to_vec(), 0, now).len(), 2);
        peers[0].health.record_success();
        assert!(peers[0].health.is_healthy(now));
    }

    #[test]
    fn a_peer_without_an_address_is_left_out_and_a_withdrawn_address_comes_last() {
        let mut peers = ["a", "b"].map(peer).to_vec();
        Arc::get_mut(&mut peers[0]).unwrap().published = false;
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        Arc::get_mut(&mut peers[0]).unwrap().address = None;
        assert_eq!(order_candidates(peers, 0, Instant::now()).len(), 1);
    }
}
