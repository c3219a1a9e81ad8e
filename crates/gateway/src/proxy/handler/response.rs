//! The response to a request: what the bridge changes in it before it goes to the client.

use std::sync::atomic::Ordering;
use std::time::Instant;

use http::Response;
use http::header::DATE;
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::http_date;
use skewbridge_k8s_api::forwarding_headers;
use skewbridge_k8s_api::request_info::Verb;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Identity, reachability};

use super::super::proxied_response::ProxiedResponse;
use super::super::request_context::RequestContext;
use crate::access_log::AccessLogEntry;
use crate::balancer::{Backends, BalancedBackend, find_by_identity};
use crate::bridge_headers::{mark_by_bridge, mark_reached, remove_between_bridges};
use crate::cluster_state::Cluster;
use crate::health;
use crate::streams::UpgradedStream;
use crate::upstream::UpstreamResponse;
use crate::watch_drain::WatchEnd;

/// Counts the request at the backend that has answered it. That may be another backend than the
/// chosen one, because of the placement rules or of what each serves.
pub(super) fn count_at_answering_backend<'a>(
    context: &RequestContext<'a>,
    record: &mut AccessLogEntry,
) -> Option<&'a BalancedBackend> {
    let chosen = context.member?;
    let answering = (record.answered_by()).and_then(|identity| {
        find_by_identity(context.backends, identity)?
            .member
            .as_ref()
    });
    let member = answering.unwrap_or(chosen);
    record.answered_by_backend(member.load());
    Some(member)
}

/// Completes the response: `/readyz` also fails if the bridge is not ready, and a watch ends in its
/// slot of the drain.
pub(super) fn finish(
    context: &RequestContext<'_>,
    member: Option<&BalancedBackend>,
    mut response: UpstreamResponse,
) -> ProxiedResponse {
    let bridge = context.bridge;
    if let UpstreamResponse::Response(response) = &mut response
        && context.rerouted
    {
        let local = bridge.cluster_handle.as_ref();
        let identity = local.map(|it| it.local.identity.clone());
        // The poll of a peer begins with it.
        let is_poll = context.info.path == "/version";
        let reached = local.filter(|_| is_poll);
        let reached = reached.map(|it| reached_peers(&it.cluster.load()));
        response
            .extensions_mut()
            .insert(ToPeer { identity, reached });
    }
    if let UpstreamResponse::Response(response) = &mut response
        && response.status().is_success()
    {
        if context.info.is_readyz()
            && let Some(problem) = bridge.unreadiness()
        {
            return ProxiedResponse::new(health::not_ready(&problem).map(ResponseBody::full));
        }
        if context.info.verb == Verb::Watch {
            let slot = bridge.next_drain_slot.fetch_add(97, Ordering::Relaxed);
            let end = WatchEnd::new(&bridge.drain, slot, response.headers());
            let end = match member {
                None => end,
                Some(member) => end.or_when(member.end_of_watch(bridge.next_lb_seed())),
            };
            response.body_mut().end_early(end);
        }
    }
    match response {
        UpstreamResponse::Response(response) => ProxiedResponse::new(response),
        UpstreamResponse::Upgraded(response, upgraded) => {
            ProxiedResponse::switching(response, UpgradedStream::Tunnel(upgraded, None))
        }
    }
}

/// Whether the connection of an HTTP/2 request ends after the requests in flight on it, as with
/// `--goaway-chance` of kube-apiserver: its client opens another one, maybe to another bridge.
pub(super) fn goes_away(chance: f64, backends: &Backends) -> bool {
    chance > 0.0 && is_below(backends.random(), chance)
}

/// Whether a random number is in this share of all.
fn is_below(random: u64, chance: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "any rounding spreads the ends")]
    let position = random as f64 / u64::MAX as f64;
    position < chance
}

/// Sets the headers of a response that does not switch protocols.
pub(super) fn finish_headers(response: &mut Response<ResponseBody>) {
    forwarding_headers::remove_hop_by_hop(response.headers_mut());
    // These headers are valid for one hop: those of the upstream bridge end here.
    remove_between_bridges(response.headers_mut());
    if let Some(ToPeer { identity, reached }) = response.extensions_mut().remove::<ToPeer>() {
        mark_by_bridge(response.headers_mut(), identity.as_ref());
        if let Some(reached) = reached {
            mark_reached(response.headers_mut(), reached.iter());
        }
    }
    // RFC 9110, 6.6.1: a forwarded response has a Date.
    let headers = response.headers_mut();
    headers.entry(DATE).or_insert_with(http_date::now);
}

/// Marks a response to a request that a peer has rerouted.
#[derive(Debug, Clone)]
struct ToPeer {
    /// The identity of the local server.
    identity: Option<Identity>,
    /// The peers that this bridge reaches, in the response to a poll.
    reached: Option<Vec<Identity>>,
}

fn reached_peers(cluster: &Cluster) -> Vec<Identity> {
    // The reachability of a peer with an address does not depend on the registry.
    let registry = RegistryStatus::up("none");
    let now = Instant::now();
    let peers = cluster.peers.peers.iter();
    let reached = peers.filter(|peer| reachability(peer, &registry, now).is_reachable());
    reached.map(|peer| peer.identity.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_end_with_the_given_chance() {
        for (chance, random, expected) in [
            (0.02, 0, true),
            (0.02, u64::MAX / 51, true),
            (0.02, u64::MAX / 49, false),
            (0.02, u64::MAX, false),
        ] {
            assert_eq!(is_below(random, chance), expected, "{chance} {random}");
        }
    }
}
