//! Forwards a request to the local kube-apiserver: once, or again if it is certain that the first
//! attempt had no effect.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::sleep;

use super::error::ProxyError;
use super::forward_peer;
use super::request_context::RequestContext;
use crate::access_log::AccessLogEntry;
use crate::cluster_state::{ResyncHint, ServedBy};
use crate::upstream::{Pool, ProtocolPreference, ReplayBody, SendError, UpstreamResponse};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::header_bounds;
use skewbridge_http_engine::header_bounds::HeaderLimit;

/// A server that refuses connections is often one that is just starting.
const BEFORE_RECONNECT: Duration = Duration::from_millis(100);

/// How often a request is sent that meets a GOAWAY each time, as Go's own clients do it.
/// kube-apiserver sends one after each answer to somebody without a name
/// (`UnauthenticatedHTTP2DOSMitigation`): where several of them ask at once, that is not rare.
const MOST_GOAWAYS: u32 = 6;

/// Before the second repetition; twice as long before each further one.
const BEFORE_REPEATING: Duration = Duration::from_millis(2);

/// Sends a request to the local server, or to a peer where the local server does not serve it.
pub(crate) async fn forward(
    context: &RequestContext<'_>,
    pool: &Arc<Pool>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let introduced = context.set_identity_for_local(request.headers_mut());
    introduced.map_err(ProxyError::rejected)?;
    let bytes = header_bounds::check_outgoing(request.method(), request.uri(), request.headers())
        .inspect_err(|_| context.met_header_limit(HeaderLimit::OutgoingTooLarge))
        .map_err(ProxyError::rejected)?;
    request.body_mut().set_header_bytes(bytes);
    let outcome = match send(context, pool, prefer, request).await {
        Ok(UpstreamResponse::Response(response)) if is_doubtful(context, &response) => {
            let unmasked = Box::pin(context.detect_unserved_404(response)).await;
            Ok(UpstreamResponse::Response(
                unmasked.map_err(|_| not_here(context))?,
            ))
        }
        outcome => outcome,
    };
    match outcome {
        Err(SendError::Declined(_)) => Box::pin(elsewhere(context, prefer, request, record)).await,
        outcome => outcome.map_err(|error| {
            tracing::debug!(%error, "no answer from upstream");
            ProxyError::local(error)
        }),
    }
}

async fn send(
    context: &RequestContext<'_>,
    pool: &Arc<Pool>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
) -> Result<UpstreamResponse, SendError> {
    // A false 404: the server has been replaced by one that does not serve this
    // any more, before we have heard what it does serve.
    let declines = |status, headers: &_| {
        context.is_unknown_path(status, headers)
            && (context.hopped || !matches!(context.elsewhere(), ServedBy::Local))
    };
    let error = match pool.send_or_decline(request, prefer, declines).await {
        Err(error @ SendError::Declined(_)) => return Err(error),
        Err(error) if error.is_safe_to_retry() && request.body_mut().rewind() => error,
        outcome => return outcome,
    };
    let repeating = async {
        let (mut error, mut sent) = (error, 1);
        loop {
            tracing::debug!(%error, "upstream did not take a request; it is sent once more");
            context.bridge.metrics.upstream_retry();
            if matches!(error, SendError::Connect(_)) {
                sleep(BEFORE_RECONNECT).await;
            } else if sent > 1 {
                sleep(BEFORE_REPEATING * 2u32.pow(sent - 2)).await;
            }
            sent += 1;
            error = match pool.send_or_decline(request, prefer, declines).await {
                Err(error @ SendError::GoneAway(_))
                    if sent < MOST_GOAWAYS && request.body_mut().rewind() =>
                {
                    error
                }
                outcome => return outcome,
            };
        }
    };
    // Boxed: it happens seldom, and each watch would have room for it.
    Box::pin(repeating).await
}

/// The local server knows no such path, and another one does.
async fn elsewhere(
    context: &RequestContext<'_>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let gone = not_here(context);
    match context.elsewhere() {
        ServedBy::Peers(peers) if !context.hopped && request.body_mut().rewind() => {
            record.route("peer");
            forward_peer::forward(context, peers, prefer, request, record).await
        }
        _ => Err(gone),
    }
}

/// A 404 for what another server serves, or what a peer sent here.
fn is_doubtful(context: &RequestContext<'_>, response: &Response<ResponseBody>) -> bool {
    response.status() == StatusCode::NOT_FOUND
        && (context.hopped || !matches!(context.elsewhere(), ServedBy::Local))
}

/// The local server has been replaced, and we had not heard of it.
fn not_here(context: &RequestContext<'_>) -> ProxyError {
    if let Some(cluster_handle) = &context.bridge.cluster_handle {
        cluster_handle.hint(ResyncHint::LocalChanged);
    }
    ProxyError::local_replaced()
}
