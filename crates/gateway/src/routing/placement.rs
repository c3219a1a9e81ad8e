//! Placement: which of the servers that serve a request should get it.
//!
//! A server that serves a request may still be the wrong one: Kubernetes' version skew policy does
//! not allow a component that is newer than its kube-apiserver. The local server is a candidate
//! like the others, and is preferred when it satisfies every rule.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::Peer;

use crate::cluster_state::Cluster;
use crate::placement_rule::Rule;

/// The server for a request that the local server serves.
#[derive(Debug, Clone)]
pub enum Placement {
    /// The local server. `Some` is a rule that it does not satisfy, as no available server does.
    Local(Option<Rule>),
    /// One of these peers, which satisfy a rule better than the local server.
    Peers {
        /// They satisfy the rules equally well.
        peers: Vec<Arc<Peer>>,
        /// The rule that none of them satisfies.
        unmet: Option<Rule>,
    },
}

/// A server that serves a request, as the explanation of a decision lists it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// `None` for the local server.
    pub peer: Option<Arc<Peer>>,
    /// Its version, if known.
    pub version: Option<Version>,
    /// Whether it can be sent requests now.
    pub available: bool,
    /// The rule that it does not satisfy.
    pub unmet: Option<Rule>,
}

/// Places a request that the local server serves. `component` is the version of the component that
/// sends it; `None` for clients that may be newer than their server.
pub fn place(
    request: &RequestInfo<'_>,
    component: Option<Version>,
    cluster: &Cluster,
    now: Instant,
) -> Placement {
    let local = cluster.local.as_ref().and_then(|local| local.version);
    // Most requests end here, without an allocation.
    // Custom resources and aggregated APIs are the same on every server.
    if unmet(component, local).is_none() || cluster.is_shared(request, now) {
        return Placement::Local(None);
    }
    let candidates = candidates(request, component, cluster, now);
    // If no server serves the request, the local server answers 404.
    let Some(best) = candidates.first() else {
        return Placement::Local(None);
    };
    if best.peer.is_none() {
        return Placement::Local(best.unmet);
    }
    let peers = candidates.iter().filter(|it| it.rank() == best.rank());
    Placement::Peers {
        peers: peers.filter_map(|it| it.peer.clone()).collect(),
        unmet: best.unmet,
    }
}

/// All servers that serve a request, the best first. The order does
/// not depend on the order in which servers were found.
pub fn candidates(
    request: &RequestInfo<'_>,
    component: Option<Version>,
    cluster: &Cluster,
    now: Instant,
) -> Vec<Candidate> {
    let local = cluster.local.as_ref().and_then(|local| local.version);
    let mut candidates = Vec::new();
    if cluster.is_served_locally(request, now) {
        candidates.push(Candidate {
            peer: None,
            version: local,
            available: true,
            unmet: unmet(component, local),
        });
    }
    let serving = (cluster.peers.peers.iter()).filter(|peer| peer.serves(request));
    candidates.extend(serving.map(|peer| {
        let version = peer.served.as_ref().and_then(|served| served.version);
        Candidate {
            peer: Some(peer.clone()),
            version,
            available: peer.is_available(now),
            unmet: component
                .filter(|component| !is_new_enough(*component, version))
                .map(|_| Rule::Version),
        }
    }));
    candidates.sort_by(|a, b| {
        let identity = |it: &Candidate| it.peer.as_ref().map(|peer| peer.identity.clone());
        (a.rank().cmp(&b.rank())).then_with(|| identity(a).cmp(&identity(b)))
    });
    candidates
}

/// The available peers that serve a request and are newer than the local server.
pub fn newer_peers(request: &RequestInfo<'_>, cluster: &Cluster, now: Instant) -> Vec<Arc<Peer>> {
    let local = cluster.local.as_ref().and_then(|local| local.version);
    let Some(local) = local.filter(|_| !cluster.is_shared(request, now)) else {
        return Vec::new();
    };
    let is_newer = |peer: &Peer| {
        let version = peer.served.as_ref().and_then(|served| served.version);
        version.is_some_and(|version| minor(version) > minor(local))
    };
    let peers = cluster.peers.peers.iter();
    peers
        .filter(|peer| is_newer(peer) && peer.serves(request) && peer.is_available(now))
        .cloned()
        .collect()
}

/// The lower, the better: available servers, those that satisfy all rules, then the newest. Of
/// equals the local server is the first.
type Rank = (bool, bool, Reverse<Option<(u16, u16)>>, bool);

impl Candidate {
    fn rank(&self) -> Rank {
        // Among servers that satisfy the rules, all versions are equally good.
        let newest = self.unmet.and(self.version.map(minor));
        (
            !self.available,
            self.unmet.is_some(),
            Reverse(newest),
            self.peer.is_some(),
        )
    }
}

/// The version skew policy compares minor versions: patch releases of one minor are compatible. A
/// local server of unknown version is not taken for an old one.
fn unmet(component: Option<Version>, server: Option<Version>) -> Option<Rule> {
    let is_older = minor(server?) < minor(component?);
    is_older.then_some(Rule::Version)
}

/// Whether a peer satisfies [`Rule::Version`]. A peer of unknown version does not.
pub fn is_new_enough(component: Version, server: Option<Version>) -> bool {
    server.is_some_and(|server| minor(server) >= minor(component))
}

fn minor(version: Version) -> (u16, u16) {
    (version.major, version.minor)
}

#[cfg(test)]
mod tests;
