//! The routing of a request in its context: the inputs of `routing`, and the destination that follows
//! from its decision.

use std::sync::Arc;
use std::time::Instant;

use http::request::Parts;

use super::super::error::ProxyError;
use super::super::outbound::Destination;
use super::super::request_context::RequestContext;
use crate::access_log::AccessLogEntry;
use crate::activity::tap::TapKind;
use crate::balancer::announce_outages;
use crate::cluster_state::ResyncHint;
use crate::placement_rule::{Rule, RuleSet};
use crate::routing::{self, HopState, PeerRoute, Refusal, Route};
use crate::upstream::{Pool, UpstreamIdentity};

/// The destination of a request, and the warnings for its response.
pub(super) struct RoutedRequest {
    pub(super) destination: Destination,
    /// The `Warning` headers of the response.
    pub(super) warnings: Vec<&'static str>,
    /// The rules that its best server does not satisfy.
    pub(super) unmet: RuleSet,
}

/// Whether a write must wait until servers that may have been replaced have been read again.
pub(super) fn needs_confirmation(context: &RequestContext<'_>) -> bool {
    if context.rerouted || !routing::depends_on_versions(&context.info, context.placement) {
        return false;
    }
    // An outage of another backend may have been noticed only by its own view.
    announce_outages(context.backends);
    let cluster = (context.bridge.cluster_handle.as_ref()).map(|it| it.cluster.load());
    cluster.is_some_and(|it| it.missing().is_none() && it.is_unconfirmed(Instant::now()))
}

pub(super) async fn confirm_servers(context: &RequestContext<'_>) {
    if let Some(cluster_handle) = &context.bridge.cluster_handle {
        cluster_handle.confirm_servers().await;
    }
}

/// Decides which server gets a request.
pub(super) fn route(
    context: &RequestContext<'_>,
    head: &Parts,
    record: &mut AccessLogEntry,
) -> Result<RoutedRequest, ProxyError> {
    let bridge = context.bridge;
    let input = routing::RouteInput {
        shutting_down: bridge.drain.is_not_ready(),
        can_assert: bridge.targets.load().front_proxy.is_some(),
        hop_state: match (bridge.via.is_present(&head.headers), context.rerouted) {
            (true, _) => HopState::Loop,
            (false, true) => HopState::FromPeer,
            (false, false) => HopState::First,
        },
        placement: context.placement,
    };
    let cluster = bridge.cluster_handle.as_ref().map(|it| it.cluster.load());
    let cluster = cluster.as_deref().map(|it| (&**it, Instant::now()));
    let route = routing::route(&context.info, &context.caller, input, cluster);
    record.route(route.as_str());
    match route {
        Route::Local { identity, unmet } => {
            record.unmet(unmet);
            Ok(RoutedRequest {
                destination: Destination::Local(local_pool(context, identity)?),
                warnings: note_unmet(context, unmet),
                unmet,
            })
        }
        Route::Peers(peers) => placed_destination(context, peers, record),
        Route::Refuse(refusal) => {
            if let Refusal::NotEnforced(_) = refusal {
                bridge.metrics.placement().unmet(Rule::Admission);
            }
            if refusal == Refusal::NotServed
                && let Some(cluster_handle) = &bridge.cluster_handle
            {
                // The peer has older discovery of the local server.
                cluster_handle.hint(ResyncHint::LocalChanged);
            }
            Err(ProxyError::refused(refusal))
        }
    }
}

fn local_pool(
    context: &RequestContext<'_>,
    identity: UpstreamIdentity,
) -> Result<Arc<Pool>, ProxyError> {
    let bridge = context.bridge;
    let (pools, targets) = (context.pools, &bridge.targets);
    let pool = if context.is_unauthenticated() {
        Some(pools.anonymous(targets, &bridge.metrics))
    } else {
        pools.of(identity, targets, &bridge.metrics)
    };
    // The certificate was removed since the routing decision.
    pool.ok_or_else(|| ProxyError::refused(Refusal::CannotAssert))
}

/// The destination of a request for which a peer ranks above the local server.
fn placed_destination(
    context: &RequestContext<'_>,
    route: PeerRoute,
    record: &mut AccessLogEntry,
) -> Result<RoutedRequest, ProxyError> {
    let PeerRoute {
        peers,
        fallback,
        rule,
        unmet,
        must_enforce,
    } = route;
    context.bridge.metrics.placement().placed(rule);
    record.placed(Some(rule));
    context.tap(TapKind::Rerouted, record);
    record.unmet(unmet);
    let destination = match fallback {
        Some(identity) => Destination::PeersOrLocal(peers, local_pool(context, identity)?),
        None if must_enforce => Destination::EnforcingPeers(peers),
        None => Destination::Peers(peers),
    };
    Ok(RoutedRequest {
        destination,
        warnings: note_unmet(context, unmet),
        unmet,
    })
}

/// Counts the rules that no available server satisfies for a request. Returns the warnings for its
/// client.
pub(super) fn note_unmet(context: &RequestContext<'_>, unmet: RuleSet) -> Vec<&'static str> {
    let metrics = context.bridge.metrics.placement();
    let noted = unmet.iter().filter_map(|rule| {
        metrics.unmet(rule);
        match rule {
            Rule::Version => {
                if let Some(component) = context.component {
                    context.bridge.log_older_server(component);
                }
                Some("299 - \"no available kube-apiserver is as new as this component\"")
            }
            Rule::Fields => {
                Some("299 - \"no available kube-apiserver has all fields of this kind\"")
            }
            // Such a request is not sent to any server.
            Rule::Available | Rule::Serves | Rule::Admission => None,
        }
    });
    noted.collect()
}
