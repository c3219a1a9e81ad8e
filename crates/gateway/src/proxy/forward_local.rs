//! Forwards a request to the local server. It is retried if the server has certainly not processed
//! it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response, StatusCode};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::header_bounds;
use skewbridge_http_engine::header_bounds::HeaderLimit;
use skewbridge_k8s_api::request_info::Verb;
use skewbridge_peer_directory::Peer;
use tokio::time::sleep;

use super::error::ProxyError;
use super::forward_peer::{self, AfterLastPeer};
use super::rejected_options::{has_options, is_rejected_option};
use super::request_context::RequestContext;
use crate::access_log::AccessLogEntry;
use crate::activity::tap::TapKind;
use crate::bridge_headers::is_not_processed;
use crate::cluster_state::{ResyncHint, ServedBy};
use crate::placement_rule::Rule;
use crate::routing;
use crate::upstream::{
    Pool, ProtocolPreference, ReplayBody, RetryClass, SendError, UpstreamResponse,
};

/// The delay before a retry after a failed connect. A server that refuses connections is often just
/// starting.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// How often a request is sent if each attempt ends with GOAWAY, as in Go's HTTP/2 client.
/// kube-apiserver sends GOAWAY after each response to an anonymous request
/// (`UnauthenticatedHTTP2DOSMitigation`), so it is not rare for concurrent anonymous requests.
const MAX_GOAWAY_ATTEMPTS: u32 = 6;

/// The delay before the second retry, doubled before each further one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(2);

/// Sends a request to the local server, or to a peer if the local server does not serve it any
/// more.
pub(crate) async fn forward(
    context: &RequestContext<'_>,
    pool: &Arc<Pool>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let identity_set = context.set_identity_for_local(request.headers_mut());
    identity_set.map_err(ProxyError::rejected)?;
    let bytes = header_bounds::check_outgoing(request.method(), request.uri(), request.headers())
        .inspect_err(|_| context.met_header_limit(HeaderLimit::OutgoingTooLarge))
        .map_err(ProxyError::rejected)?;
    request.body_mut().set_header_bytes(bytes);
    record.local();
    let newer = newer_peers(context, request);
    let fallback = Fallback {
        has_newer_peers: !newer.is_empty(),
        may_use_peer: prefer != ProtocolPreference::Upgrade,
    };
    let outcome = match send(context, pool, prefer, request, fallback).await {
        Ok(UpstreamResponse::Response(response)) if may_be_unserved_404(context, &response) => {
            let checked = Box::pin(context.detect_false_404(response)).await;
            Ok(UpstreamResponse::Response(checked.map_err(|_| {
                if context.may_try_next_backend() {
                    ProxyError::not_served_by_backend()
                } else {
                    local_replaced(context)
                }
            })?))
        }
        outcome => outcome,
    };
    match outcome {
        Err(error) if is_unavailable(context, request, &error) => {
            // A denial proves nothing about the health of the server, and anyone can cause one.
            if !is_denial(&error) {
                context.bridge.local_health.note_failure();
            }
            let elsewhere = forward_elsewhere(context, (error, pool), prefer, request, record);
            Box::pin(elsewhere).await
        }
        Err(SendError::Declined(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)) => {
            Box::pin(forward_to_newer(
                context,
                (newer, pool),
                prefer,
                request,
                record,
            ))
            .await
        }
        // KEP-4020, Risks 4: at most one hop. The sender knows other servers.
        Err(error) if is_denial(&error) => Err(ProxyError::denied_at_start()),
        Err(SendError::Declined(_)) => {
            Box::pin(forward_to_peers(context, prefer, request, record)).await
        }
        outcome => outcome.map_err(|error| {
            tracing::debug!(%error, "upstream gave no response");
            ProxyError::local(error)
        }),
    }
}

/// Which other servers can get a request that the local server does not accept.
#[derive(Debug, Clone, Copy)]
struct Fallback {
    /// A newer peer, if the server rejects an option.
    has_newer_peers: bool,
    /// An available peer, if the server has not processed it.
    may_use_peer: bool,
}

impl Fallback {
    const NONE: Self = Self {
        has_newer_peers: false,
        may_use_peer: false,
    };
}

async fn send(
    context: &RequestContext<'_>,
    pool: &Arc<Pool>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    fallback: Fallback,
) -> Result<UpstreamResponse, SendError> {
    let Fallback {
        has_newer_peers,
        may_use_peer,
    } = fallback;
    // A false 404: the server has been replaced by one that does not serve this any more, and
    // its discovery has not been polled yet.
    let declines = |status, headers: &_| {
        (has_newer_peers && is_rejected_option(context.info.verb, status))
            || (is_unprocessed(context, status, headers)
                && (context.may_try_next_backend()
                    || (may_use_peer && !context.place_elsewhere().is_empty())))
            || is_denied_at_start(context, status)
            || context.is_unknown_path(status, headers)
                && (context.rerouted
                    || context.may_try_next_backend()
                    || !matches!(context.served_by_peers(), ServedBy::Local))
    };
    let error = match pool.send_or_decline(request, prefer, declines).await {
        Err(error @ SendError::Declined(_)) => return Err(error),
        // The request is sent to another backend without a retry here.
        Err(error @ SendError::Connect(_))
            if context.may_try_next_backend()
                || (may_use_peer && !context.place_elsewhere().is_empty()) =>
        {
            return Err(error);
        }
        Err(error) if error.is_safe_to_retry() && request.body_mut().rewind() => error,
        outcome => return outcome,
    };
    let retries = async {
        let (mut error, mut sent) = (error, 1);
        loop {
            tracing::debug!(%error, "upstream did not process a request; it is retried");
            context.bridge.metrics.upstream_retry();
            if matches!(error, SendError::Connect(_)) {
                sleep(RECONNECT_DELAY).await;
            } else if sent > 1 {
                sleep(FIRST_RETRY_DELAY * 2u32.pow(sent - 2)).await;
            }
            sent += 1;
            error = match pool.send_or_decline(request, prefer, declines).await {
                Err(error @ SendError::GoAway(_))
                    if sent < MAX_GOAWAY_ATTEMPTS && request.body_mut().rewind() =>
                {
                    error
                }
                outcome => return outcome,
            };
        }
    };
    // Boxed: retries are rare, and the future of watches should be small.
    Box::pin(retries).await
}

/// Whether an error means that the local server cannot be reached, or is shutting down, and has not
/// processed the request; or that the response to a read was lost.
fn is_unavailable(
    context: &RequestContext<'_>,
    request: &Request<ReplayBody>,
    error: &SendError,
) -> bool {
    match error {
        SendError::Connect(_)
        | SendError::NotProcessed(_)
        | SendError::GoAway(_)
        | SendError::Declined(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => {
            true
        }
        error if is_denial(error) => !context.rerouted,
        SendError::ConnectionLost(_) => {
            request.body().retry_class() == RetryClass::Idempotent
                && !context.info.is_long_running()
        }
        _ => false,
    }
}

/// Sends a request that the local server has not processed to the available peers. If none accepts it,
/// the client gets the response of the local server, or its error. The translation plan of a stream
/// depends on the version of its server, so streams are not moved: the client has to retry.
async fn forward_elsewhere(
    context: &RequestContext<'_>,
    (error, pool): (SendError, &Arc<Pool>),
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let peers = if prefer == ProtocolPreference::Upgrade {
        Vec::new()
    } else {
        context.place_elsewhere()
    };
    if !peers.is_empty() && request.body_mut().rewind() {
        tracing::debug!(%error, "the local server has not processed a request; an available peer gets it");
        record.route("peer");
        context.tap(TapKind::Rerouted, record);
        record.placed(Some(Rule::Available));
        context.bridge.metrics.placement().placed(Rule::Available);
        let peers = (peers, AfterLastPeer::TryLocal);
        match forward_peer::forward(context, peers, prefer, request, record).await {
            Err(error) if error.is_unsent() => {
                record.route("local");
                record.placed(None);
            }
            outcome => return outcome,
        }
    }
    if is_denial(&error) {
        return Err(ProxyError::denied_at_start());
    }
    if context.member.is_none() && matches!(error, SendError::Declined(_)) {
        context.clear_identity_for_peer(request.headers_mut());
        let identity_set = context.set_identity_for_local(request.headers_mut());
        identity_set.map_err(ProxyError::rejected)?;
        if request.body_mut().rewind() {
            let sent = send(context, pool, prefer, request, Fallback::NONE).await;
            return sent.map_err(ProxyError::local);
        }
    }
    tracing::debug!(%error, "upstream gave no response");
    Err(ProxyError::local(error))
}

/// Whether the local server is shutting down and has not processed a request.
fn is_unprocessed(context: &RequestContext<'_>, status: StatusCode, headers: &HeaderMap) -> bool {
    // A workload may send any response.
    !context.info.reaches_workload() && is_not_processed(status, headers)
}

/// Whether the local server may have denied a request only because it is starting: until a
/// kube-apiserver has read the RBAC objects, it denies requests of users who have the right. It is not
/// ready until then. A bridge without peers behaves like its server.
fn is_denied_at_start(context: &RequestContext<'_>, status: StatusCode) -> bool {
    status == StatusCode::FORBIDDEN
        && context.bridge.cluster_handle.is_some()
        && !context.info.reaches_workload()
        && context.bridge.local_health.may_be_starting(Instant::now())
}

/// Whether a request was declined by [`is_denied_at_start`].
fn is_denial(error: &SendError) -> bool {
    matches!(error, SendError::Declined(StatusCode::FORBIDDEN))
}

/// Sends a request that the local server does not serve to the peers that do.
async fn forward_to_peers(
    context: &RequestContext<'_>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let peers = context.place_among_peers();
    if peers.is_empty() && context.may_try_next_backend() {
        // The server of another backend may have been upgraded since its last poll.
        return Err(ProxyError::not_served_by_backend());
    }
    let error = local_replaced(context);
    if peers.is_empty() || context.rerouted || !request.body_mut().rewind() {
        return Err(error);
    }
    record.route("peer");
    context.tap(TapKind::Rerouted, record);
    record.placed(Some(Rule::Serves));
    context.bridge.metrics.placement().placed(Rule::Serves);
    let peers = (peers, AfterLastPeer::Respond);
    forward_peer::forward(context, peers, prefer, request, record).await
}

/// Peers that may know an option of a request for a collection that the local server rejects: field
/// selectors are added to resources with new versions.
fn newer_peers(context: &RequestContext<'_>, request: &Request<ReplayBody>) -> Vec<Arc<Peer>> {
    match &context.bridge.cluster_handle {
        Some(cluster_handle) if has_options(&context.info, request) && !context.rerouted => {
            let cluster = cluster_handle.cluster.load();
            let input = context.placement;
            routing::newer_peers(&context.info, input, &cluster, Instant::now())
        }
        _ => Vec::new(),
    }
}

/// Sends a request whose options the local server has rejected to newer peers. If none accepts it, the
/// client gets the response of the local server.
async fn forward_to_newer(
    context: &RequestContext<'_>,
    (newer, pool): (Vec<Arc<Peer>>, &Arc<Pool>),
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    if !request.body_mut().rewind() {
        return Err(local_replaced(context));
    }
    record.route("peer");
    context.tap(TapKind::Rerouted, record);
    record.placed(Some(Rule::Version));
    context.bridge.metrics.placement().placed(Rule::Version);
    let peers = (vec![newer], AfterLastPeer::TryLocal);
    match forward_peer::forward(context, peers, prefer, request, record).await {
        Err(error) if error.is_unsent() && request.body_mut().rewind() => {
            context.clear_identity_for_peer(request.headers_mut());
            let identity_set = context.set_identity_for_local(request.headers_mut());
            identity_set.map_err(ProxyError::rejected)?;
            record.route("local");
            record.placed(None);
            let sent = send(context, pool, prefer, request, Fallback::NONE).await;
            sent.map_err(ProxyError::local)
        }
        outcome => outcome,
    }
}

/// Whether a response is 404 for a request that a peer serves, or that a peer has rerouted.
fn may_be_unserved_404(context: &RequestContext<'_>, response: &Response<ResponseBody>) -> bool {
    // The body of a request has been consumed with the response.
    let is_read = matches!(context.info.verb, Verb::Get | Verb::List | Verb::Watch);
    response.status() == StatusCode::NOT_FOUND
        && (context.rerouted
            || (is_read && context.may_try_next_backend())
            || !matches!(context.served_by_peers(), ServedBy::Local))
}

/// The local server has been replaced since its discovery was polled.
fn local_replaced(context: &RequestContext<'_>) -> ProxyError {
    if let Some(cluster_handle) = &context.bridge.cluster_handle {
        cluster_handle.hint(ResyncHint::LocalChanged);
    }
    ProxyError::local_replaced()
}
