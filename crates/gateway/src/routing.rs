//! The routing decision: a pure function over plain data, tested by a table of rules.

mod placement;

use std::sync::Arc;
use std::time::Instant;

use skewbridge_k8s_api::request_info::{Kind, RequestInfo};
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::{Identity, Peer};

pub use self::placement::{Candidate, Placement, candidates, is_new_enough, newer_peers, place};
use crate::authn::Caller;
use crate::cluster_state::{Cluster, ServedBy, UnsyncedInput};
use crate::placement_rule::Rule;
use crate::upstream::UpstreamIdentity;

/// Where a request goes.
#[derive(Debug, Clone)]
pub enum Route {
    /// To the local server.
    Local(UpstreamIdentity),
    /// To one of these peers, which serve a request that the local server does not serve.
    Peer(Vec<Arc<Peer>>),
    /// The local server serves the request, but a placement rule decides.
    Placed(Placed),
    /// To no server: the bridge rejects it.
    Refuse(Refusal),
}

impl Route {
    /// The metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Placed(placed) if placed.peers.is_empty() => "local",
            Self::Local(_) => "local",
            Self::Peer(_) | Self::Placed(_) => "peer",
            Self::Refuse(_) => "rejected",
        }
    }
}

/// A request that the local server serves and that a placement rule applies to.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The peers that satisfy the rule better than the local server; empty if there are none.
    pub peers: Vec<Arc<Peer>>,
    /// For the local server, which gets the request if none of these peers accepts it.
    pub fallback: UpstreamIdentity,
    /// The rule that applies.
    pub rule: Rule,
    /// No available server satisfies the rule.
    pub unmet: bool,
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
    /// The version of the component that sends the request, if its server must not be older.
    pub component: Option<Version>,
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
        return Route::Local(identity);
    };
    if request.kind == Kind::NonResource {
        return Route::Local(identity);
    }
    let rerouted = bridge.hop_state == HopState::FromPeer;
    match cluster.served_by(request, now) {
        ServedBy::TooEarly(missing) => Route::Refuse(Refusal::TooEarly(missing)),
        // KEP-4020, Risks 4: at most one hop.
        ServedBy::Peers(_) | ServedBy::Unknown(_) if rerouted => Route::Refuse(Refusal::NotServed),
        ServedBy::Local if rerouted && !cluster.is_served_locally(request, now) => {
            Route::Refuse(Refusal::NotServed)
        }
        // KEP-4020, Risks 4: the sending bridge has placed the request.
        ServedBy::Local if rerouted => Route::Local(identity),
        ServedBy::Local => match place(request, bridge.component, cluster, now) {
            Placement::Local(None) => Route::Local(identity),
            Placement::Local(Some(rule)) => Route::Placed(Placed {
                peers: Vec::new(),
                fallback: identity,
                rule,
                unmet: true,
            }),
            Placement::Peers { peers, unmet } => Route::Placed(Placed {
                peers,
                fallback: identity,
                rule: Rule::Version,
                unmet: unmet.is_some(),
            }),
        },
        ServedBy::Peers(peers) => Route::Peer(peers),
        ServedBy::Unknown(identity) => Route::Refuse(Refusal::PeerUnknown(identity)),
    }
}

#[cfg(test)]
mod tests;
