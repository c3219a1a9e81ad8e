//! Forwards a request to the local server. It is retried if the server has certainly not processed
//! it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::header_bounds;
use skewbridge_http_engine::header_bounds::HeaderLimit;
use skewbridge_k8s_api::request_info::Verb;
use skewbridge_peer_directory::Peer;
use tokio::time::sleep;

use super::error::ProxyError;
use super::forward_peer::{self, AfterLastPeer};
use super::request_context::RequestContext;
use crate::access_log::AccessLogEntry;
use crate::cluster_state::{ResyncHint, ServedBy};
use crate::placement_rule::Rule;
use crate::routing;
use crate::upstream::{Pool, ProtocolPreference, ReplayBody, SendError, UpstreamResponse};

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
    let newer = newer_peers(context, request);
    let outcome = match send(context, pool, prefer, request, !newer.is_empty()).await {
        Ok(UpstreamResponse::Response(response)) if may_be_unserved_404(context, &response) => {
            let checked = Box::pin(context.detect_false_404(response)).await;
            Ok(UpstreamResponse::Response(
                checked.map_err(|_| local_replaced(context))?,
            ))
        }
        outcome => outcome,
    };
    match outcome {
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
        Err(SendError::Declined(_)) => {
            Box::pin(forward_to_peers(context, prefer, request, record)).await
        }
        outcome => outcome.map_err(|error| {
            tracing::debug!(%error, "upstream gave no response");
            ProxyError::local(error)
        }),
    }
}

async fn send(
    context: &RequestContext<'_>,
    pool: &Arc<Pool>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    has_newer_peers: bool,
) -> Result<UpstreamResponse, SendError> {
    // A false 404: the server has been replaced by one that does not serve this any more, and
    // its discovery has not been polled yet.
    let declines = |status, headers: &_| {
        (has_newer_peers && is_rejected_option(status))
            || context.is_unknown_path(status, headers)
                && (context.rerouted || !matches!(context.served_by_peers(), ServedBy::Local))
    };
    let error = match pool.send_or_decline(request, prefer, declines).await {
        Err(error @ SendError::Declined(_)) => return Err(error),
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

/// Sends a request that the local server does not serve to the peers that do.
async fn forward_to_peers(
    context: &RequestContext<'_>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let error = local_replaced(context);
    match context.served_by_peers() {
        ServedBy::Peers(peers) if !context.rerouted && request.body_mut().rewind() => {
            record.route("peer");
            let peers = (peers, AfterLastPeer::Respond);
            forward_peer::forward(context, peers, prefer, request, record).await
        }
        _ => Err(error),
    }
}

/// Peers that may know an option of a list or watch that the local server rejects: field selectors
/// are added to resources with new versions.
fn newer_peers(context: &RequestContext<'_>, request: &Request<ReplayBody>) -> Vec<Arc<Peer>> {
    let has_options = matches!(context.info.verb, Verb::List | Verb::Watch)
        && request.uri().query().is_some_and(|query| !query.is_empty());
    match &context.bridge.cluster_handle {
        Some(cluster_handle) if has_options && !context.rerouted => {
            let cluster = cluster_handle.cluster.load();
            routing::newer_peers(&context.info, &cluster, Instant::now())
        }
        _ => Vec::new(),
    }
}

/// Whether a status can mean that the server does not know an option of the query.
fn is_rejected_option(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Sends a read whose options the local server has rejected to newer peers. If none accepts it, the
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
    record.placed(Some(Rule::Version));
    context.bridge.metrics.placement().placed(Rule::Version);
    let peers = (newer, AfterLastPeer::TryLocal);
    match forward_peer::forward(context, peers, prefer, request, record).await {
        Err(error) if error.is_unsent() && request.body_mut().rewind() => {
            context.clear_identity_for_peer(request.headers_mut());
            let identity_set = context.set_identity_for_local(request.headers_mut());
            identity_set.map_err(ProxyError::rejected)?;
            record.route("local");
            record.placed(None);
            let sent = send(context, pool, prefer, request, false).await;
            sent.map_err(ProxyError::local)
        }
        outcome => outcome,
    }
}

/// Whether a response is 404 for a request that a peer serves, or that a peer has rerouted.
fn may_be_unserved_404(context: &RequestContext<'_>, response: &Response<ResponseBody>) -> bool {
    response.status() == StatusCode::NOT_FOUND
        && (context.rerouted || !matches!(context.served_by_peers(), ServedBy::Local))
}

/// The local server has been replaced since its discovery was polled.
fn local_replaced(context: &RequestContext<'_>) -> ProxyError {
    if let Some(cluster_handle) = &context.bridge.cluster_handle {
        cluster_handle.hint(ResyncHint::LocalChanged);
    }
    ProxyError::local_replaced()
}
