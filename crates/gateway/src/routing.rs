//! The routing decision: a pure function over plain data, tested by a table of rules.

mod placement;

use std::sync::Arc;
use std::time::Instant;

use skewbridge_k8s_api::request_info::{Kind, RequestInfo};
use skewbridge_peer_directory::{Identity, Peer};

pub use self::placement::{
    Candidate, Placement, PlacementInput, candidates, depends_on_versions, newer_peers, place,
    place_among_peers, place_elsewhere, unmet_by,
};
use crate::authn::Caller;
use crate::cluster_state::{Cluster, ServedBy, UnsyncedInput};
use crate::placement_rule::{Rule, RuleSet};
use crate::upstream::UpstreamIdentity;

/// Where a request goes.
#[derive(Debug, Clone)]
pub enum Route {
    /// To the local server.
    Local {
        /// The identity that the connection presents.
        identity: UpstreamIdentity,
        /// The rules that the local server does not satisfy, and neither does any other available server.
        unmet: RuleSet,
    },
    /// To a peer.
    Peers(PeerRoute),
    /// To no server: the bridge rejects it.
    Refuse(Refusal),
}

impl Route {
    /// The metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Peers(_) => "peer",
            Self::Refuse(_) => "rejected",
        }
    }
}

/// The peers for a request.
#[derive(Debug, Clone)]
pub struct PeerRoute {
    /// Groups of equally good peers, the best first.
    pub peers: Vec<Vec<Arc<Peer>>>,
    /// For the local server, which gets the request if no peer accepts it.
    pub fallback: Option<UpstreamIdentity>,
    /// The weightiest rule that the local server does not satisfy.
    pub rule: Rule,
    /// The rules that the best of the peers does not satisfy.
    pub unmet: RuleSet,
    /// The local server does not enforce the policies in force: if no peer accepts the request, its client
    /// gets that reason.
    pub must_enforce: bool,
}

/// Why the bridge rejects a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The certificate is not valid, and there is no other credential.
    Unauthorized,
    /// An identity must be asserted, but there is no front-proxy certificate.
    CannotAssert,
    /// `/readyz`, while the bridge itself is not ready.
    NotReady,
    /// The request has passed this bridge before.
    Loop,
    /// The cluster state is not complete yet.
    TooEarly(UnsyncedInput),
    /// A peer has rerouted the request, and the local server does not serve it.
    NotServed,
    /// The APIs of this peer, which runs, are not known yet.
    PeerUnknown(Identity),
    /// Nothing is known of this peer, which runs: the write may need its fields or policies.
    PeerUnread(Identity),
    /// No server that may get the request enforces these kinds of admission policies, which match it.
    NotEnforced(String),
}

/// Inputs of the decision besides the request and the caller.
#[derive(Debug, Clone, Copy)]
pub struct RouteInput {
    /// The bridge is shutting down.
    pub shutting_down: bool,
    /// The bridge has a front-proxy certificate.
    pub can_assert: bool,
    /// The previous hops of the request.
    pub hop_state: HopState,
    /// Inputs of the placement rules.
    pub placement: PlacementInput,
}

/// The previous hops of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopState {
    /// No bridge has forwarded it.
    First,
    /// A peer has rerouted it. The hop header only counts on a connection of a peer.
    FromPeer,
    /// This bridge has forwarded it: its `Via` header contains the token of this bridge.
    Loop,
}

/// Decides where a request goes. Without a cluster (the feature gate is off, or certificates for
/// peers are missing) every request goes to the local server.
pub fn route(
    request: &RequestInfo<'_>,
    caller: &Caller,
    bridge: RouteInput,
    cluster: Option<(&Cluster, Instant)>,
) -> Route {
    if bridge.hop_state == HopState::Loop {
        return Route::Refuse(Refusal::Loop);
    }
    if bridge.shutting_down && request.is_readyz() {
        return Route::Refuse(Refusal::NotReady);
    }
    let identity = match caller {
        Caller::Unauthorized => return Route::Refuse(Refusal::Unauthorized),
        Caller::Bearer | Caller::Anonymous => UpstreamIdentity::Plain,
        Caller::Asserted(_) | Caller::Certificate(_) | Caller::Signed(_) if bridge.can_assert => {
            UpstreamIdentity::FrontProxy
        }
        Caller::Asserted(_) | Caller::Certificate(_) | Caller::Signed(_) => {
            return Route::Refuse(Refusal::CannotAssert);
        }
    };
    // KEP-4020, Aggregation Layer, 2: these requests are always handled by the local server.
    let Some((cluster, now)) = cluster else {
        return Route::local(identity);
    };
    if request.kind == Kind::NonResource {
        return Route::local(identity);
    }
    let rerouted = bridge.hop_state == HopState::FromPeer;
    match cluster.served_by(request, now) {
        ServedBy::TooEarly(missing) => Route::Refuse(Refusal::TooEarly(missing)),
        // KEP-4020, Risks 4: at most one hop.
        ServedBy::Peers(_) | ServedBy::Unknown(_) if rerouted => Route::Refuse(Refusal::NotServed),
        ServedBy::Local if rerouted && !cluster.is_served_locally(request, now) => {
            Route::Refuse(Refusal::NotServed)
        }
        // KEP-4020, Risks 4: the sender has placed the request. A kube-apiserver that reroutes requests
        // itself does not place by policies.
        ServedBy::Local if rerouted => {
            let unmet = unmet_by(request, bridge.placement, cluster, now, None);
            if unmet.contains(Rule::Admission) {
                return Route::not_enforced(request, cluster);
            }
            Route::local(identity)
        }
        ServedBy::Local | ServedBy::Peers(_) => {
            if depends_on_versions(request, bridge.placement)
                && let Some(unread) = cluster.unread_peer(now)
            {
                return Route::Refuse(Refusal::PeerUnread(unread.clone()));
            }
            let placement = place(request, bridge.placement, cluster, now);
            if placement.unmet.contains(Rule::Admission) {
                return Route::not_enforced(request, cluster);
            }
            Route::placed(placement, identity)
        }
        ServedBy::Unknown(identity) => Route::Refuse(Refusal::PeerUnknown(identity)),
    }
}

impl Route {
    fn local(identity: UpstreamIdentity) -> Self {
        Self::Local {
            identity,
            unmet: RuleSet::EMPTY,
        }
    }

    fn not_enforced(request: &RequestInfo<'_>, cluster: &Cluster) -> Self {
        let kinds = cluster.policies.describe_matching(request);
        Self::Refuse(Refusal::NotEnforced(kinds))
    }

    fn placed(placement: Placement, identity: UpstreamIdentity) -> Self {
        let Placement {
            peers,
            local,
            unmet_by_local,
            unmet,
        } = placement;
        match unmet_by_local.first() {
            Some(rule) if !peers.is_empty() => Self::Peers(PeerRoute {
                peers,
                fallback: local.then_some(identity),
                rule,
                unmet,
                // Another rule may outweigh this one.
                must_enforce: !local && unmet_by_local.contains(Rule::Admission),
            }),
            // If no server serves the request, the local server answers 404.
            _ => Self::Local { identity, unmet },
        }
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
