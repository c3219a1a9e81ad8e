//! The other servers of the cluster, as routing sees them: their state, which of them serve a
//! request, and the order in which they are tried.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_k8s_api::version::Version;

use crate::identity::Identity;
use crate::peer_health::PeerHealth;
use crate::peer_name::PeerName;
use crate::registry::AddressOrigin;
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

/// A poll that succeeded within this time takes precedence over a missing renewal of the Lease: the
/// longest interval between two polls (30 s) plus a slow answer. The watch of Leases may have
/// failed instead, for example because the local server is down.
const MAX_POLL_AGE: Duration = Duration::from_secs(45);

/// How long a server of which nothing is known, and which answers polls with errors, may be newer than
/// all others: a server that has crashed stops counting as running in this time.
const FIRST_POLL_GRACE: Duration = Duration::from_secs(40);

/// How long other servers list the address of a server that has crashed (15 s), and how long the change
/// takes to arrive.
const LISTING_DELAY: Duration = Duration::from_secs(20);

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
    /// The name of its Lease, or its address if its Lease is not known.
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

/// The source of the served APIs of a peer, data from its bridge, and its other address.
#[derive(Debug, Clone, Default)]
pub struct PeerRecord {
    /// The component that has published the address of the peer.
    pub origin: Option<AddressOrigin>,
    /// The same server without its bridge: it gets requests that its bridge does not accept.
    pub fallback: Option<Arc<Peer>>,
    /// The source of the served APIs.
    pub source: Option<ApiSource>,
    /// The bridge of the peer announced its departure and has not returned.
    pub bridge_left: bool,
    /// A bridge answered the last poll at the address of the peer. Otherwise the address may belong
    /// to a kube-apiserver, which gets tokens without the front-proxy certificate.
    pub is_bridge: bool,
    /// Digests of the serving keys of the peer's bridge. Empty if unknown.
    pub serving_keys: Vec<KeyDigest>,
    /// When this process last observed a renewal of its Lease.
    pub renewed_at: Option<Instant>,
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

    /// Whether a peer may have been replaced by another version since its APIs were read.
    pub fn has_unconfirmed(&self, now: Instant) -> bool {
        self.peers.iter().any(|peer| {
            let is_confirmed = peer.health.confirmation().is_confirmed();
            !is_confirmed
                && peer.address.is_some()
                && peer.health.is_reachable()
                && peer.is_running(now)
        })
    }

    /// A peer of which nothing is known, and that may be newer than all others.
    pub fn unread(&self, now: Instant) -> Option<&Arc<Peer>> {
        self.peers.iter().find(|peer| peer.is_unread(now))
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
        let unpolled = self
            .peers
            .iter()
            .find(|peer| peer.is_unconfirmed() && peer.is_awaited(now));
        match unpolled {
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

    /// The version of the server, if known.
    pub fn version(&self) -> Option<Version> {
        self.served.as_ref()?.version
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

    /// Whether nothing is known of the peer, although it runs and its first poll has not ended, or was
    /// answered with an error. After `FIRST_POLL_GRACE` it counts as one that does not take part.
    pub fn is_unread(&self, now: Instant) -> bool {
        self.served.is_none()
            && self.address.is_some()
            && self.is_awaited(now)
            && !self.health.is_unanswered()
            && self.health.known_for(now) < FIRST_POLL_GRACE
    }

    /// Whether the server runs, as currently known: its Lease is renewed, or it has answered a poll.
    pub fn is_running(&self, now: Instant) -> bool {
        let polled = self.health.last_poll();
        self.alive_until > now || polled.is_some_and(|polled| polled + MAX_POLL_AGE > now)
    }

    /// A time at which the server certainly ran, by what others report: it has renewed its Lease, or
    /// other servers list its address.
    pub fn reported_alive_at(&self, now: Instant) -> Option<Instant> {
        let is_listed = self.published && self.record.origin == Some(AddressOrigin::Endpoints);
        let listed_at = now.checked_sub(LISTING_DELAY).filter(|_| is_listed);
        self.record.renewed_at.max(listed_at)
    }

    /// Whether the peer runs and is expected to answer, its bridge or the server itself: a request
    /// that the local server could answer too is sent only to such a peer.
    pub fn is_available(&self, now: Instant) -> bool {
        let is_available = self.address.is_some()
            && self.published
            && self.is_running(now)
            && self.health.is_reachable()
            && self.health.is_healthy(now);
        let fallback = self.record.fallback.as_ref();
        is_available || fallback.is_some_and(|it| it.is_available(now))
    }

    /// Whether requests may be sent to this address of the peer.
    pub fn is_at(&self, address: SocketAddr) -> bool {
        let fallback = self.record.fallback.as_ref();
        self.address == Some(address) || fallback.is_some_and(|it| it.is_at(address))
    }

    /// Whether the peer is known to serve this request.
    pub fn serves(&self, request: &RequestInfo<'_>) -> bool {
        let served = self.served.as_ref();
        served.is_some_and(|served| served.index.serves(request))
    }
}

/// The order in which peers that serve a request are tried. Healthy peers come first, and of two
/// random healthy peers the one with fewer requests in flight (power of two choices). Peers without
/// an address are left out. Servers whose bridges do not accept the request follow the bridges.
pub fn order_candidates(serving: Vec<Arc<Peer>>, random: u64, now: Instant) -> Vec<Arc<Peer>> {
    let fallbacks: Vec<_> = serving
        .iter()
        .filter_map(|peer| peer.record.fallback.clone())
        .collect();
    let mut all = order_equals(serving, random, now);
    if !fallbacks.is_empty() {
        all.extend(order_equals(fallbacks, random, now));
        all.sort_by_key(|peer| !is_preferred(peer, now));
    }
    all
}

fn is_preferred(peer: &Peer, now: Instant) -> bool {
    peer.published && peer.health.is_healthy(now)
}

fn order_equals(mut serving: Vec<Arc<Peer>>, random: u64, now: Instant) -> Vec<Arc<Peer>> {
    serving.retain(|peer| peer.address.is_some());
    shuffle(&mut serving, random);
    let good = |peer: &Arc<Peer>| is_preferred(peer, now);
    serving.sort_by_key(|peer| !good(peer));
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
    fn the_server_itself_follows_its_bridge_unless_the_bridge_has_failed() {
        let server = peer("a");
        let mut bridge = peer("a");
        let entry = Arc::get_mut(&mut bridge).unwrap();
        entry.address = Some(([127, 0, 0, 1], 7443).into());
        entry.record.fallback = Some(server);
        let ports = |peers: &[Arc<Peer>], random| {
            let order = order_candidates(peers.to_vec(), random, Instant::now());
            let ports = order.iter().map(|it| it.address.unwrap().port());
            ports.collect::<Vec<_>>()
        };
        let peers = [bridge, peer("b")];
        assert!((0..100).all(|turn| ports(&peers[..1], turn) == [7443, 6443]));
        assert!((0..100).all(|turn| ports(&peers, turn)[2] == 6443));
        peers[0].health.record_failure(Instant::now());
        assert!((0..100).all(|turn| ports(&peers[..1], turn) == [6443, 7443]));
        assert!((0..100).all(|turn| ports(&peers, turn)[2] == 7443));
        assert!(peers[0].is_at(([127, 0, 0, 1], 6443).into()));
        assert!(!peers[0].is_at(([127, 0, 0, 1], 1).into()));
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
