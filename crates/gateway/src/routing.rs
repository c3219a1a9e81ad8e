//! The routing decision: a pure function over plain data, so that every rule is a row of a test.

use std::sync::Arc;
use std::time::Instant;

use skewbridge_k8s_api::request_info::{Kind, RequestInfo};
use skewbridge_peer_directory::{Identity, Peer};

use crate::authn::Caller;
use crate::cluster_state::{Cluster, ServedBy, UnsyncedInput};
use crate::upstream::UpstreamIdentity;

/// Where a request goes.
#[derive(Debug, Clone)]
pub enum Route {
    /// To the kube-apiserver behind this bridge.
    Local(UpstreamIdentity),
    /// To one of these, which serve what the local server does not.
    Peer(Vec<Arc<Peer>>),
    /// Nowhere.
    Refuse(Refusal),
}

impl Route {
    /// As a metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Peer(_) => "peer",
            Self::Refuse(_) => "rejected",
        }
    }
}

/// Why a request goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The certificate is not good and there is nothing else.
    Unauthorized,
    /// An identity would have to be asserted, and there is no front-proxy
    /// certificate to do it with.
    CannotAssert,
    /// `/readyz`, while the bridge itself is not ready.
    NotReady,
    /// The request has been here before.
    Loop,
    /// It is too early to tell who serves it.
    TooEarly(UnsyncedInput),
    /// A peer sent it here, and it is not served here.
    NotHere,
    /// This peer, which runs, has not told yet what it serves.
    PeerUnknown(Identity),
}

/// What the bridge knows of itself, and of the request.
#[derive(Debug, Clone, Copy)]
pub struct RouteInput {
    /// It takes no new clients.
    pub leaving: bool,
    /// It has a front-proxy certificate.
    pub can_assert: bool,
    /// Where the request has been.
    pub hop_state: HopState,
}

/// Where a request has been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopState {
    /// Nowhere that matters.
    First,
    /// A peer has passed it on already. Said by anybody else it is not so.
    FromPeer,
    /// Here: it carries this bridge's own mark.
    Loop,
}

/// Where this request of this caller goes. Without a cluster (the gate is off,
/// or certificates for peers are missing) everything is local.
pub fn route(
    request: &RequestInfo<'_>,
    caller: &Caller,
    bridge: RouteInput,
    cluster: Option<(&Cluster, Instant)>,
) -> Route {
    if bridge.hop_state == HopState::Loop {
        return Route::Refuse(Refusal::Loop);
    }
    if bridge.leaving && request.is_readyz() {
        return Route::Refuse(Refusal::NotReady);
    }
    let leg = match caller {
        Caller::Unauthorized => return Route::Refuse(Refusal::Unauthorized),
        Caller::Bearer | Caller::Anonymous => UpstreamIdentity::Plain,
        Caller::Peer(_) | Caller::Certificate(_) | Caller::Signed(_) if bridge.can_assert => {
            UpstreamIdentity::FrontProxy
        }
        Caller::Peer(_) | Caller::Certificate(_) | Caller::Signed(_) => {
            return Route::Refuse(Refusal::CannotAssert);
        }
    };
    // KEP-4020, Aggregation Layer, 2: what is handled here, whoever serves it.
    let Some((cluster, now)) = cluster else {
        return Route::Local(leg);
    };
    if request.kind == Kind::NonResource {
        return Route::Local(leg);
    }
    let hopped = bridge.hop_state == HopState::FromPeer;
    match cluster.served_by(request, now) {
        ServedBy::TooEarly(missing) => Route::Refuse(Refusal::TooEarly(missing)),
        // KEP-4020, Risks 4: at most one hop.
        ServedBy::Peers(_) | ServedBy::Unknown(_) if hopped => Route::Refuse(Refusal::NotHere),
        ServedBy::Local if hopped && !cluster.is_served_locally(request, now) => {
            Route::Refuse(Refusal::NotHere)
        }
        ServedBy::Local => Route::Local(leg),
        ServedBy::Peers(peers) => Route::Peer(peers),
        ServedBy::Unknown(identity) => Route::Refuse(Refusal::PeerUnknown(identity)),
    }
}

#[cfg(test)]
mod tests;
