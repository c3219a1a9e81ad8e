//! Forwards a request to a peer that serves it: the best candidate first, then the next ones as
//! long as no server has processed the request.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_http_engine::header_bounds;
use skewbridge_http_engine::header_bounds::HeaderLimit;
use skewbridge_k8s_api::forwarding_headers::PEER_PROXIED;
use skewbridge_k8s_api::status::Status;
use skewbridge_peer_directory::{Peer, order_candidates};

use super::error::ProxyError;
use super::rejected_options::{has_options, is_rejected_option};
use super::request_context::{LIVENESS_CHECK_DELAY, RequestContext};
use crate::access_log::{AccessLogEntry, STATUS_CLIENT_CLOSED_REQUEST};
use crate::authn::Caller;
use crate::bridge_headers::{is_marked_not_processed, is_not_processed};
use crate::cluster_state::ResyncHint;
use crate::metrics::peers::PeerErrorType;
use crate::upstream::{
    PeerConnectionIdentity, ProtocolPreference, ReplayBody, RetryClass, SendError, UpstreamResponse,
};

/// Responses to reads up to this size are buffered until they are complete: most objects and most
/// pages of lists.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;

/// What happens to a request that the last peer declines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterLastPeer {
    /// The client gets the response of that peer.
    Respond,
    /// The caller sends the request to the local server.
    TryLocal,
}

/// Sends a request to one of these peers: groups of equally good ones, the best first.
pub(crate) async fn forward(
    context: &RequestContext<'_>,
    (groups, after): (Vec<Vec<Arc<Peer>>>, AfterLastPeer),
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let mut attempt = Attempt::new(context);
    let result = try_peers(
        context,
        (groups, after),
        prefer,
        request,
        &mut attempt,
        record,
    )
    .await;
    attempt.end(&result);
    result
}

/// Counts a rerouted request that no peer answers, with the status code that the client gets. A
/// request that a peer answers is counted with the status code of the peer.
struct Attempt<'a> {
    context: &'a RequestContext<'a>,
    began: Instant,
    /// The peer that was tried last.
    peer: Option<Arc<Peer>>,
    ended: bool,
}

impl<'a> Attempt<'a> {
    fn new(context: &'a RequestContext<'a>) -> Self {
        Self {
            context,
            began: Instant::now(),
            peer: None,
            ended: false,
        }
    }

    fn end(&mut self, result: &Result<UpstreamResponse, ProxyError>) {
        self.ended = true;
        if let Err(error) = result {
            self.count(error.status(self.context.bridge).code);
        }
    }

    fn count(&self, code: u16) {
        let metrics = self.context.bridge.metrics.peers();
        let peer = self.peer.as_deref();
        metrics.not_rerouted(peer, &self.context.info, code);
    }
}

impl Drop for Attempt<'_> {
    /// Dropped before its end: at the deadline, or because the client has disconnected.
    fn drop(&mut self) {
        if !self.ended {
            let timed_out = self.began.elapsed() >= self.context.bridge.limits.request_timeout;
            self.count(if timed_out {
                StatusCode::GATEWAY_TIMEOUT.as_u16()
            } else {
                STATUS_CLIENT_CLOSED_REQUEST
            });
        }
    }
}

async fn try_peers(
    context: &RequestContext<'_>,
    (groups, after): (Vec<Vec<Arc<Peer>>>, AfterLastPeer),
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    attempt: &mut Attempt<'_>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    if let Some(conflict) = context.bridge.live.conflicts.of_peering() {
        return Err(ProxyError::no_peer(format!(
            "peering is disabled: {conflict}"
        )));
    }
    if groups.iter().flatten().all(|peer| peer.address.is_none()) {
        let names: Vec<_> = (groups.iter().flatten())
            .map(|peer| peer.name().to_string())
            .collect();
        context.count_error(PeerErrorType::NoAddress);
        let cluster_handle = context.bridge.cluster_handle.as_ref();
        let why = match cluster_handle.and_then(|it| it.registry_problem()) {
            Some(why) => why.to_owned(),
            None => format!(
                "none of them has published an address: {}",
                names.join(", ")
            ),
        };
        return Err(ProxyError::no_peer(format!(
            "{} servers serve this; {why}",
            names.len()
        )));
    }
    let seed = context.bridge.next_lb_seed();
    let groups = groups.into_iter();
    let mut order: Vec<_> = groups
        .flat_map(|peers| order_candidates(peers, seed, attempt.began))
        .collect();
    let mut unreachable = None;
    order.retain(|peer| {
        let reachable = peer.health.is_reachable();
        if !reachable && unreachable.is_none() {
            unreachable = Some(peer.clone());
        }
        reachable
    });
    if let (Some(unreachable), true) = (unreachable, order.is_empty()) {
        context.count_error(PeerErrorType::Connect);
        let message = format!(
            "{} does not answer; it gets requests again after a successful poll",
            unreachable.name()
        );
        attempt.peer = Some(unreachable);
        return Err(ProxyError::no_peer(message));
    }
    if let Some(refusal) = check_anonymous_access(context, request).await? {
        return Ok(refusal);
    }
    request
        .headers_mut()
        .insert(PEER_PROXIED, HeaderValue::from_static("true"));
    let mut failures = Vec::new();
    let mut rejected_by = None;
    let last = order.len() - 1;
    let has_options = has_options(&context.info, request);
    for (index, peer) in order.iter().enumerate() {
        attempt.peer = Some(peer.clone());
        let fallback = Fallback {
            is_last: index == last && after == AfterLastPeer::Respond,
            has_newer: has_options && has_newer(&order[index + 1..], peer),
        };
        let error = match send(context, peer, prefer, request, fallback, record).await {
            Ok(response) => return Ok(response),
            Err(error) => match error.into_source()? {
                SendError::Client(cause) => {
                    return Err(ProxyError::rejected(Status::bad_request(cause)));
                }
                error => error,
            },
        };
        tracing::warn!(peer = %peer.name(), address = peer.address.map(tracing::field::display), %error, "a peer did not accept a request");
        if is_option_rejection(&error) {
            rejected_by.get_or_insert(peer);
        }
        let certain = error.is_safe_to_retry();
        let idempotent = request.body().retry_class() == RetryClass::Idempotent;
        failures.push(format!("{}: {error}", peer.name()));
        if !certain && !idempotent {
            // The request may have been processed, so the response does not request the client to
            // retry.
            let why = format!(
                "{}; the request may have been processed",
                failures.join("; ")
            );
            return Err(ProxyError::peer_lost(why));
        }
        if !request.body_mut().rewind() {
            break;
        }
    }
    if let Some(peer) = rejected_by
        && request.body_mut().rewind()
    {
        // No newer peer has accepted the request: the client gets the reason of the older one.
        attempt.peer = Some(peer.clone());
        return send(context, peer, prefer, request, Fallback::NONE, record).await;
    }
    Err(ProxyError::no_peer(failures.join("; ")))
}

/// Which other servers can get a request that a peer does not accept.
#[derive(Debug, Clone, Copy)]
struct Fallback {
    /// None: the client gets the response of this peer.
    is_last: bool,
    /// A newer peer, if this one rejects an option.
    has_newer: bool,
}

impl Fallback {
    const NONE: Self = Self {
        is_last: true,
        has_newer: false,
    };
}

/// Whether one of these peers has a newer minor version.
fn has_newer(others: &[Arc<Peer>], peer: &Peer) -> bool {
    let minor = |peer: &Peer| peer.version().map(|it| (it.major, it.minor));
    others.iter().any(|other| minor(other) > minor(peer))
}

/// Whether a peer has answered that it does not know an option, and a newer one can be tried.
fn is_option_rejection(error: &SendError) -> bool {
    matches!(
        error,
        SendError::Declined(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
    )
}

/// Whether the local server accepts anonymous requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnonymousAccess {
    /// It has accepted the anonymous request: the anonymous user may be asserted to a peer.
    Permitted,
    /// It has rejected it: its response goes to the client.
    Refused,
    /// The response does not show it; the client may retry.
    Undecided,
}

/// kube-apiserver answers 2xx, 403 and 404 after it has accepted an anonymous request, and 401 if
/// it rejects it. 429 and 503 are also sent before authentication, with `Retry-After`. All other
/// responses do not depend on authentication.
fn anonymous_access(status: StatusCode) -> AnonymousAccess {
    match status {
        status if status.is_success() => AnonymousAccess::Permitted,
        StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => AnonymousAccess::Permitted,
        StatusCode::UNAUTHORIZED
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE => AnonymousAccess::Refused,
        _ => AnonymousAccess::Undecided,
    }
}

/// The anonymous user has to be asserted to peers, and a peer accepts every asserted user. So the
/// request is first sent to the local server without credentials, which checks
/// `--anonymous-auth`. Returns its response if that has to go to the client.
async fn check_anonymous_access(
    context: &RequestContext<'_>,
    request: &Request<ReplayBody>,
) -> Result<Option<UpstreamResponse>, ProxyError> {
    if !matches!(context.caller, Caller::Anonymous) {
        return Ok(None);
    }
    let bridge = context.bridge;
    let pool = (context.pools).anonymous(&bridge.targets, &bridge.metrics);
    let mut probe = Request::new(request.body().empty());
    *probe.uri_mut() = request.uri().clone();
    *probe.headers_mut() = request.headers().clone();
    for name in [
        CONTENT_LENGTH,
        CONTENT_TYPE,
        TRANSFER_ENCODING,
        UPGRADE,
        EXPECT,
    ] {
        probe.headers_mut().remove(name);
    }
    let response = pool.send(&mut probe, ProtocolPreference::H2).await;
    let response = response.map_err(|error| anonymous_access_unknown(&error.to_string()))?;
    match anonymous_access(response.status()) {
        AnonymousAccess::Permitted => Ok(None),
        AnonymousAccess::Refused => Ok(Some(response)),
        AnonymousAccess::Undecided => Err(anonymous_access_unknown(&format!(
            "it answered {}",
            response.status()
        ))),
    }
}

fn anonymous_access_unknown(cause: &str) -> ProxyError {
    ProxyError::no_peer(format!(
        "it is not known whether the local kube-apiserver accepts anonymous requests: \
         {cause}"
    ))
}

/// The identity of the connection to a peer. The front-proxy certificate is presented for asserted
/// users, and to bridges.
fn connection_identity(
    caller: &Caller,
    is_bridge: bool,
    is_unauthenticated: bool,
) -> PeerConnectionIdentity {
    match caller {
        Caller::Asserted(_) | Caller::Certificate(_) | Caller::Signed(_) | Caller::Anonymous => {
            PeerConnectionIdentity::FrontProxy
        }
        Caller::Bearer if is_bridge => PeerConnectionIdentity::FrontProxy,
        Caller::Bearer | Caller::Unauthorized if is_unauthenticated => {
            PeerConnectionIdentity::UnauthenticatedToken
        }
        Caller::Bearer | Caller::Unauthorized => PeerConnectionIdentity::Token,
    }
}

async fn send(
    context: &RequestContext<'_>,
    peer: &Arc<Peer>,
    prefer: ProtocolPreference,
    request: &mut Request<ReplayBody>,
    fallback: Fallback,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let bridge = context.bridge;
    let version = peer.served.as_ref().and_then(|it| it.version.as_ref());
    let identity_set = context.set_identity_for_peer(request.headers_mut(), version);
    identity_set.map_err(ProxyError::rejected)?;
    let bytes = header_bounds::check_outgoing(request.method(), request.uri(), request.headers())
        .inspect_err(|_| context.met_header_limit(HeaderLimit::OutgoingTooLarge))
        .map_err(ProxyError::rejected)?;
    request.body_mut().set_header_bytes(bytes);
    let identity = connection_identity(
        &context.caller,
        peer.record.is_bridge,
        context.has_unauthenticated_token,
    );
    let Some(pool) = (context.pools).to(peer, identity, &bridge.targets, &bridge.metrics) else {
        // The certificates were removed since the routing decision.
        return Err(ProxyError::peer_lost("there are no certificates for peers"));
    };
    let prefer = match prefer {
        ProtocolPreference::Upgrade => ProtocolPreference::Upgrade,
        ProtocolPreference::H1 | ProtocolPreference::H2 => ProtocolPreference::H2,
    };
    let idempotent = request.body().retry_class() == RetryClass::Idempotent;
    // The peer or its server is shutting down: the request is retried at another peer, or the
    // response has Retry-After. A read can always be retried, a write only if the peer
    // has certainly not processed it.
    let Fallback { is_last, has_newer } = fallback;
    let declines = |status: StatusCode, headers: &HeaderMap| {
        context.is_unknown_path(status, headers)
            || (status == StatusCode::BAD_GATEWAY && idempotent)
            || (status == StatusCode::SERVICE_UNAVAILABLE && idempotent && !is_last)
            || (has_newer && is_rejected_option(context.info.verb, status))
            || (is_unprocessed(context, peer, status, headers) && !is_last)
    };
    let in_flight = peer.health.track_request();
    let began = Instant::now();
    let retry = retry_copy(context, request);
    let mut outcome = {
        let sending = pin!(pool.send_or_decline(request, prefer, declines));
        match retry {
            Some(_) => send_unless_unreachable(context, peer, began, sending).await,
            None => Some(sending.await),
        }
    }
    .unwrap_or_else(|| {
        let cause = "its server does not answer".to_owned();
        Err(SendError::ConnectionLost(cause))
    });
    if let (Err(SendError::ConnectionLost(_)), Some(retry)) = (&outcome, &retry) {
        // The cancelled send has consumed the request.
        *request = copy_request(retry);
    }
    if let Ok(UpstreamResponse::Response(response)) = outcome {
        outcome = match retry {
            Some(_) => buffer_short_response(response).await,
            None => Ok(UpstreamResponse::Response(response)),
        };
        if let Ok(UpstreamResponse::Response(response)) = outcome {
            outcome = context
                .detect_false_404(response)
                .await
                .map(UpstreamResponse::Response);
        }
        match retry {
            Some(retry) => *request = retry,
            // The request has not been processed, but its body has been consumed.
            None if outcome.is_err() => {
                let why = format!("{} does not serve this any more", peer.name());
                return Err(ProxyError::not_processed_by_peer(why));
            }
            None => {}
        }
    }
    match outcome {
        Ok(response) => {
            if has_processed(context, peer, &response) {
                peer.health.record_success();
            } else {
                peer.health.record_failure(Instant::now());
                request_repoll(context, peer);
            }
            record.peer(peer, in_flight);
            let metrics = bridge.metrics.peers();
            metrics.rerouted(peer, &context.info, response.status(), began.elapsed());
            Ok(response)
        }
        // The client has not sent its complete body: this is not a failure of the peer.
        Err(error @ SendError::Client(_)) => Err(ProxyError::peer(error)),
        Err(error) if is_option_rejection(&error) => Err(ProxyError::peer(error)),
        Err(error) => {
            // A peer that does not serve this any more is healthy otherwise.
            if !matches!(error, SendError::Declined(StatusCode::NOT_FOUND)) {
                peer.health.record_failure(Instant::now());
            }
            if matches!(error, SendError::Connect(_) | SendError::ConnectionLost(_)) {
                peer.health.record_timeout(began.elapsed());
            }
            context.count_error(peer_error(&error));
            request_repoll(context, peer);
            Err(ProxyError::peer(error))
        }
    }
}

/// Whether the peer has certainly not processed the request. A workload may send any response: of those
/// only the mark of a bridge counts, which removes it from what its server sends.
fn is_unprocessed(
    context: &RequestContext<'_>,
    peer: &Peer,
    status: StatusCode,
    headers: &HeaderMap,
) -> bool {
    if context.info.reaches_workload() {
        peer.record.is_bridge && is_marked_not_processed(status, headers)
    } else {
        is_not_processed(status, headers)
    }
}

/// Whether the peer has processed the request. The response is forwarded either way, but the server
/// may have been replaced.
fn has_processed(context: &RequestContext<'_>, peer: &Peer, response: &UpstreamResponse) -> bool {
    match response {
        UpstreamResponse::Response(response) => {
            !is_unprocessed(context, peer, response.status(), response.headers())
        }
        UpstreamResponse::Upgraded(..) => true,
    }
}

/// Waits for the response to a read that can be retried. A peer that has not answered after
/// [`LIVENESS_CHECK_DELAY`] is polled. Returns `None` if the poll fails too: the bridge of the peer
/// runs, but not the server behind it. The timer of [`super::request_context::Deadline`] polls this
/// future periodically.
async fn send_unless_unreachable<T>(
    context: &RequestContext<'_>,
    peer: &Peer,
    began: Instant,
    mut response: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut repolled = false;
    poll_fn(|cx| {
        if let Poll::Ready(response) = response.as_mut().poll(cx) {
            return Poll::Ready(Some(response));
        }
        if repolled {
            if !peer.health.is_reachable() {
                return Poll::Ready(None);
            }
        } else if began.elapsed() >= LIVENESS_CHECK_DELAY {
            request_repoll(context, peer);
            repolled = true;
        }
        Poll::Pending
    })
    .await
}

/// Requests a poll of a peer.
fn request_repoll(context: &RequestContext<'_>, peer: &Peer) {
    if let Some(cluster_handle) = &context.bridge.cluster_handle {
        peer.health.confirmation().doubt();
        cluster_handle.hint(ResyncHint::PeerChanged(peer.identity.clone()));
    }
}

/// A copy of a read, for a retry if its response is lost. Long-running requests are not
/// retried.
fn retry_copy(
    context: &RequestContext<'_>,
    request: &Request<ReplayBody>,
) -> Option<Request<ReplayBody>> {
    let body = request.body();
    let is_short = body.retry_class() == RetryClass::Idempotent
        && body.is_done()
        && !context.info.is_long_running();
    is_short.then(|| copy_request(request))
}

/// A copy of a request without a body.
fn copy_request(request: &Request<ReplayBody>) -> Request<ReplayBody> {
    let mut retry = Request::new(request.body().empty());
    *retry.method_mut() = request.method().clone();
    *retry.uri_mut() = request.uri().clone();
    *retry.version_mut() = request.version();
    *retry.headers_mut() = request.headers().clone();
    retry
}

/// Buffers a response of up to [`MAX_BUFFERED_BYTES`] until it is complete: until then the request
/// can be retried at another peer without the client noticing.
async fn buffer_short_response(
    response: Response<ResponseBody>,
) -> Result<UpstreamResponse, SendError> {
    let (head, body) = response.into_parts();
    let body = body.buffer_start(MAX_BUFFERED_BYTES).await;
    let body = body.map_err(|error| SendError::ConnectionLost(error.to_string()))?;
    Ok(UpstreamResponse::Response(Response::from_parts(head, body)))
}

/// The metric label of a failed send.
fn peer_error(error: &SendError) -> PeerErrorType {
    match error {
        SendError::Connect(_) => PeerErrorType::Connect,
        SendError::NotProcessed(_) | SendError::GoAway(_) | SendError::Declined(_) => {
            PeerErrorType::Declined
        }
        SendError::ConnectionLost(_) | SendError::InvalidResponse(_) | SendError::Client(_) => {
            PeerErrorType::ConnectionLost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_anonymous_user_is_asserted_only_if_the_local_server_accepts_it() {
        use AnonymousAccess::{Permitted, Refused, Undecided};
        for (status, expected) in [
            (101, Undecided),
            (200, Permitted),
            (204, Permitted),
            (301, Undecided),
            (307, Undecided),
            (400, Undecided),
            (401, Refused),
            (403, Permitted),
            (404, Permitted),
            (405, Undecided),
            (408, Undecided),
            (429, Refused),
            (431, Undecided),
            (500, Undecided),
            (502, Undecided),
            (503, Refused),
            (504, Undecided),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(anonymous_access(status), expected, "{status}");
        }
    }
}
