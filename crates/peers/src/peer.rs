//! The other servers of the cluster, as routing sees them: their state, which of them serve a
//! request, and the order in which they are tried.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use skewbridge_api::request_info::RequestInfo;

use crate::identity::Identity;
use crate::peer_health::PeerHealth;
use crate::peer_name::PeerName;
use crate::served_apis::ServedApis;
use crate::served_record::KeyDigest;

/// How it is known what a server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiSource {
    /// This process asked the server.
    Polled,
    /// The server's bridge published it in the registry.
    Published,
    /// An earlier process of this bridge stored it in `--state-dir`.
    Stored,
}

/// The other servers, as routing sees them: replaced as a whole.
#[derive(Debug, Default)]
pub struct Peers {
    /// Whether the Leases have been read.
    pub listed: bool,
    /// In the order of their identities.
    pub peers: Vec<Arc<Peer>>,
}

/// Another server of the cluster, whose Lease lives.
#[derive(Debug)]
pub struct Peer {
    /// The name of its Lease.
    pub identity: Identity,
    /// The host that it runs on, where its Lease says so.
    pub host: Option<String>,
    /// Where it, or its bridge, is reached.
    pub address: Option<SocketAddr>,
    /// Whether the registry has that address now.
    pub published: bool,
    /// Until when its last renewal lets us believe that it runs.
    pub alive_until: Instant,
    /// Until when it is waited for to tell what it serves.
    pub awaited_until: Instant,
    /// What it serves, as last heard.
    pub served: Option<Arc<ServedApis>>,
    /// How that is known, and what its bridge has published beside it.
    pub record: PeerRecord,
    /// How it does with the requests that it gets.
    pub standing: Arc<PeerHealth>,
    /// When it last told what it serves.
    pub succeeded: Option<SystemTime>,
    /// Why it has not since.
    pub problem: Option<String>,
}

/// How it is known what a peer serves, and what its bridge has published.
#[derive(Debug, Clone, Default)]
pub struct PeerRecord {
    /// How it is known what the peer serves.
    pub source: Option<ApiSource>,
    /// The bridge of the peer announced that it leaves, and has not come back.
    pub bridge_left: bool,
    /// A bridge has answered the last poll at the address of the peer. Else a kube-apiserver
    /// may be there, which gets tokens without the front-proxy certificate.
    pub is_bridge: bool,
    /// Digests of the keys with which the peer's bridge serves. Empty: not known.
    pub serving_keys: Vec<KeyDigest>,
}

/// Who of the others serves a request.
#[derive(Debug, Clone)]
pub enum PeerLookup {
    /// There is nobody else.
    NoPeers,
    /// These do.
    Found(Vec<Arc<Peer>>),
    /// None of those that have told; but one that runs has not told yet.
    Unknown(Identity),
    /// Nobody.
    NotServed,
}

impl Peers {
    /// The peer of this identity.
    pub fn get(&self, identity: &Identity) -> Option<&Arc<Peer>> {
        self.peers.iter().find(|peer| peer.identity == *identity)
    }

    /// Who serves this request. "Nobody" is only said for certain.
    pub fn serving(&self, request: &RequestInfo<'_>, now: Instant) -> PeerLookup {
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
    /// Host and identity, for texts.
    pub fn name(&self) -> PeerName<'_> {
        PeerName::new(&self.identity, self.host.as_deref())
    }

    /// Whether it runs and may still tell that it serves something.
    pub(crate) fn is_awaited(&self, now: Instant) -> bool {
        self.alive_until > now && self.awaited_until > now
    }

    /// Whether this process has not heard from it yet. A record may be older than
    /// the version that the server runs now.
    fn is_unconfirmed(&self) -> bool {
        let source = self.record.source;
        self.served.is_none() || matches!(source, Some(ApiSource::Published | ApiSource::Stored))
    }

    /// Whether it has said that it serves this.
    pub fn serves(&self, request: &RequestInfo<'_>) -> bool {
        let served = self.served.as_ref();
        served.is_some_and(|served| served.index.serves(request))
    }
}

/// In which order to ask the peers that serve a request. Those that do well come
/// first, and of two of them that chance picks the one with less to do (power of
/// two choices); those without an address not at all.
pub fn order(mut serving: Vec<Arc<Peer>>, random: u64, now: Instant) -> Vec<Arc<Peer>> {
    serving.retain(|peer| peer.address.is_some());
    shuffle(&mut serving, random);
    serving.sort_by_key(|peer| !(peer.published && peer.standing.is_healthy(now)));
    let good = |peer: &Arc<Peer>| peer.published && peer.standing.is_healthy(now);
    if let [first, second, ..] = serving.as_slice()
        && good(first)
        && good(second)
        && second.standing.load() < first.standing.load()
    {
        serving.swap(0, 1);
    }
    serving
}

/// Fisher and Yates, with a generator that is good enough to spread load.
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
    use crate::peer_health::MAX_PENALTY;

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
            standing: Arc::default(),
            succeeded: None,
            problem: None,
        })
    }

    fn first(peers: &[Arc<Peer>], random: u64) -> String {
        let order = order(peers.to_vec(), random, Instant::now());
        order[0].identity.to_string()
    }

    #[test]
    fn equals_share_the_work() {
        let peers = ["a", "b", "c"].map(peer);
        let chosen: HashSet<_> = (0..100).map(|turn| first(&peers, turn)).collect();
        assert_eq!(chosen.len(), 3);
    }

    #[test]
    fn of_two_the_one_with_less_to_do_is_chosen() {
        let peers = ["a", "b"].map(peer);
        let burdens = [peers[0].standing.burden(), peers[0].standing.burden()];
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        drop(burdens);
        assert_eq!(peers[0].standing.load(), 0);
    }

    #[test]
    fn who_failed_comes_last_until_it_answers_or_time_has_passed() {
        let peers = ["a", "b"].map(peer);
        let now = Instant::now();
        peers[0].standing.failed(now);
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        assert!(peers[0].standing.is_healthy(now + MAX_PENALTY));
        // It is never left out.
        assert_eq!(order(peers.to_vec(), 0, now).len(), 2);
        peers[0].standing.forgive();
        assert!(peers[0].standing.is_healthy(now));
    }

    #[test]
    fn who_has_no_address_is_not_asked_and_who_took_it_back_comes_last() {
        let mut peers = ["a", "b"].map(peer).to_vec();
        Arc::get_mut(&mut peers[0]).unwrap().published = false;
        assert!((0..100).all(|turn| first(&peers, turn) == "b"));
        Arc::get_mut(&mut peers[0]).unwrap().address = None;
        assert_eq!(order(peers, 0, Instant::now()).len(), 1);
    }
}
