//! Forwards a request to a peer that serves what the local server does not: the best candidate
//! first, and the next one while it is certain that no server has processed the request.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use skewbridge_k8s_api::forwarding_headers::PEER_PROXIED;
use skewbridge_k8s_api::status::Status;
use skewbridge_peer_directory::{Peer, order_candidates};

use super::error::ProxyError;
use super::request_context::{LIVENESS_CHECK_DELAY, RequestContext};
use crate::access_log::{AccessLogEntry, CLIENT_LEFT};
use crate::authn::Caller;
use crate::body::ResponseBody;
use crate::bridge_headers::is_not_processed;
use crate::cluster_state::ResyncHint;
use crate::header_bounds;
use crate::metrics::headers::HeaderLimit;
use crate::metrics::peers::PeerError;
use crate::upstream::{
    PeerConnectionIdentity, ProtocolPreference, Replay, RetryClass, SendError, UpstreamResponse,
};

/// How much of the answer to a read is held back until it is whole: most objects
/// and most pages of lists.
const HELD: usize = 64 * 1024;

/// Sends a request to one of these peers.
pub(crate) async fn forward(
    context: &RequestContext<'_>,
    serving: Vec<Arc<Peer>>,
    prefer: ProtocolPreference,
    request: &mut Request<Replay>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let mut attempt = Attempt::new(context);
    let answered = try_each(context, serving, prefer, request, &mut attempt, record).await;
    attempt.end(&answered);
    answered
}

/// Counts a rerouted request that no peer answers, by the code that the client gets
/// instead. One that a peer answers is counted with the peer's code.
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

    fn end(&mut self, answered: &Result<UpstreamResponse, ProxyError>) {
        self.ended = true;
        if let Err(unanswered) = answered {
            self.count(unanswered.status(self.context.bridge).code);
        }
    }

    fn count(&self, code: u16) {
        let metrics = self.context.bridge.metrics.peers();
        let peer = self.peer.as_deref();
        metrics.not_rerouted(peer, &self.context.info, code);
    }
}

impl Drop for Attempt<'_> {
    /// Dropped before its end: at the deadline, or since the client has left.
    fn drop(&mut self) {
        if !self.ended {
            let timed_out = self.began.elapsed() >= self.context.bridge.limits.request_timeout;
            self.count(if timed_out {
                StatusCode::GATEWAY_TIMEOUT.as_u16()
            } else {
                CLIENT_LEFT
            });
        }
    }
}

async fn try_each(
    context: &RequestContext<'_>,
    serving: Vec<Arc<Peer>>,
    prefer: ProtocolPreference,
    request: &mut Request<Replay>,
    attempt: &mut Attempt<'_>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    if let Some(conflict) = context.bridge.live.conflicts.of_peering() {
        return Err(ProxyError::no_peer(format!(
            "peering is switched off: {conflict}"
        )));
    }
    if serving.iter().all(|peer| peer.address.is_none()) {
        let names: Vec<_> = serving.iter().map(|peer| peer.name().to_string()).collect();
        context.count_error(PeerError::NoAddress);
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
    let mut order = order_candidates(serving, context.bridge.next_lb_seed(), attempt.began);
    let mut silent = None;
    order.retain(|peer| {
        let reachable = peer.health.is_reachable();
        if !reachable && silent.is_none() {
            silent = Some(peer.clone());
        }
        reachable
    });
    if let (Some(silent), true) = (silent, order.is_empty()) {
        context.count_error(PeerError::Connect);
        let message = format!(
            "{} does not answer; requests go there again when it does",
            silent.name()
        );
        attempt.peer = Some(silent);
        return Err(ProxyError::no_peer(message));
    }
    if let Some(refusal) = refused_here(context, request).await? {
        return Ok(refusal);
    }
    request
        .headers_mut()
        .insert(PEER_PROXIED, HeaderValue::from_static("true"));
    let mut failures = Vec::new();
    let last = order.len() - 1;
    for (turn, peer) in order.iter().enumerate() {
        attempt.peer = Some(peer.clone());
        let error = match send(context, peer, prefer, request, turn == last, record).await {
            Ok(reply) => return Ok(reply),
            Err(error) => match error.into_source()? {
                SendError::Client(cause) => {
                    return Err(ProxyError::rejected(Status::bad_request(cause)));
                }
                error => error,
            },
        };
        tracing::warn!(peer = %peer.name(), address = peer.address.map(tracing::field::display), %error, "a peer did not take a request");
        let certain = error.is_safe_to_repeat();
        let harmless = request.body().repeat() == RetryClass::Idempotent;
        failures.push(format!("{}: {error}", peer.name()));
        if !certain && !harmless {
            // It may have been done. Told to come again, a client would do it
            // twice: so it is not told.
            let why = format!("{}; it may have been done", failures.join("; "));
            return Err(ProxyError::peer_lost(why));
        }
        if !request.body_mut().rewind() {
            break;
        }
    }
    Err(ProxyError::no_peer(failures.join("; ")))
}

/// What the local server's answer to an anonymous question permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnonymousAccess {
    /// It has authenticated the request as anonymous: that may be asserted to a peer.
    Permitted,
    /// Its answer is the answer to the client.
    Refused,
    /// It has not decided; the client may try again.
    Undecided,
}

/// kube-apiserver answers 2xx, 403 and 404 after it has accepted an anonymous request.
/// 401 refuses it; 429 and 503 are written before authentication too, and say when to try
/// again. All other answers say nothing about authentication.
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

/// To peers anonymity has to be asserted, and a peer believes what is asserted: so the
/// local server is asked first whether it accepts this request without a credential
/// (`--anonymous-auth`). Gives its answer where that is the answer to the client.
async fn refused_here(
    context: &RequestContext<'_>,
    request: &Request<Replay>,
) -> Result<Option<UpstreamResponse>, ProxyError> {
    if !matches!(context.caller, Caller::Anonymous) {
        return Ok(None);
    }
    let bridge = context.bridge;
    let pool = (context.pools).anonymous(&bridge.live.targets, &bridge.metrics);
    let mut question = Request::new(request.body().empty());
    *question.uri_mut() = request.uri().clone();
    *question.headers_mut() = request.headers().clone();
    for name in [
        CONTENT_LENGTH,
        CONTENT_TYPE,
        TRANSFER_ENCODING,
        UPGRADE,
        EXPECT,
    ] {
        question.headers_mut().remove(name);
    }
    let asked = pool.send(&mut question, ProtocolPreference::H2).await;
    let reply = asked.map_err(|error| undecided(&error.to_string()))?;
    match anonymous_access(reply.status()) {
        AnonymousAccess::Permitted => Ok(None),
        AnonymousAccess::Refused => Ok(Some(reply)),
        AnonymousAccess::Undecided => Err(undecided(&format!("it answered {}", reply.status()))),
    }
}

fn undecided(cause: &str) -> ProxyError {
    ProxyError::no_peer(format!(
        "the local kube-apiserver did not say whether it accepts anonymous requests: \
         {cause}"
    ))
}

/// Which connection to a peer a request takes. The front-proxy certificate goes along with
/// what it asserts, and to bridges.
fn leg(caller: &Caller, is_bridge: bool, is_unproven: bool) -> PeerConnectionIdentity {
    match caller {
        Caller::Peer(_) | Caller::Certificate(_) | Caller::Signed(_) | Caller::Anonymous => {
            PeerConnectionIdentity::FrontProxy
        }
        Caller::Bearer if is_bridge => PeerConnectionIdentity::FrontProxy,
        Caller::Bearer | Caller::Unauthorized if is_unproven => {
            PeerConnectionIdentity::UnprovenToken
        }
        Caller::Bearer | Caller::Unauthorized => PeerConnectionIdentity::Token,
    }
}

async fn send(
    context: &RequestContext<'_>,
    peer: &Arc<Peer>,
    prefer: ProtocolPreference,
    request: &mut Request<Replay>,
    last: bool,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ProxyError> {
    let bridge = context.bridge;
    let version = peer.served.as_ref().and_then(|it| it.version.as_ref());
    let introduced = context.set_identity_for_peer(request.headers_mut(), version);
    introduced.map_err(ProxyError::rejected)?;
    let bytes = header_bounds::check_outgoing(request.method(), request.uri(), request.headers())
        .inspect_err(|_| context.met_header_limit(HeaderLimit::OutgoingTooLarge))
        .map_err(ProxyError::rejected)?;
    request.body_mut().set_header_bytes(bytes);
    let leg = leg(
        &context.caller,
        peer.record.is_bridge,
        context.has_unproven_token,
    );
    let Some(pool) = (context.pools).to(peer, leg, &bridge.live.targets, &bridge.metrics) else {
        // Certificates went away between two looks at them.
        return Err(ProxyError::peer_lost("there are no certificates for peers"));
    };
    let prefer = match prefer {
        ProtocolPreference::Upgrade => ProtocolPreference::Upgrade,
        ProtocolPreference::H1 | ProtocolPreference::H2 => ProtocolPreference::H2,
    };
    let harmless = request.body().repeat() == RetryClass::Idempotent;
    // A peer that is going away, or whose server is: another one may still serve
    // it, or the client is told to come again. A read does no harm twice; a write
    // goes on only if the peer is certain.
    let declines = |status: StatusCode, headers: &_| {
        context.is_unknown_path(status, headers)
            || (status == StatusCode::BAD_GATEWAY && harmless)
            || (status == StatusCode::SERVICE_UNAVAILABLE && harmless && !last)
            || (is_not_processed(status, headers) && !last)
    };
    let in_flight = peer.health.track_request();
    let began = Instant::now();
    let again = copy(context, request);
    let mut outcome = {
        let sending = pin!(pool.send_unless(request, prefer, declines));
        match again {
            Some(_) => unless_silent(context, peer, began, sending).await,
            None => Some(sending.await),
        }
    }
    .unwrap_or_else(|| {
        let cause = "its server does not answer".to_owned();
        Err(SendError::CutOff(cause))
    });
    if let (Err(SendError::CutOff(_)), Some(again)) = (&outcome, &again) {
        // The cancelled send has consumed the request.
        *request = copy_of(again);
    }
    if let Ok(UpstreamResponse::Response(response)) = outcome {
        outcome = match again {
            Some(_) => buffer_short_response(response).await,
            None => Ok(UpstreamResponse::Response(response)),
        };
        if let Ok(UpstreamResponse::Response(response)) = outcome {
            outcome = context
                .detect_unserved_404(response)
                .await
                .map(UpstreamResponse::Response);
        }
        match again {
            Some(again) => *request = again,
            // Nothing has been done, and what was sent cannot be sent again.
            None if outcome.is_err() => {
                let why = format!("{} does not serve this any more", peer.name());
                return Err(ProxyError::no_peer(why));
            }
            None => {}
        }
    }
    match outcome {
        Ok(reply) => {
            let status = match &reply {
                UpstreamResponse::Response(response) => {
                    // The response is forwarded, but the server may have been replaced. A
                    // workload's response says nothing about that.
                    let its_own = !context.info.reaches_workload();
                    if its_own && is_not_processed(response.status(), response.headers()) {
                        request_repoll(context, peer);
                    }
                    response.status()
                }
                UpstreamResponse::Upgraded(..) => StatusCode::SWITCHING_PROTOCOLS,
            };
            peer.health.record_success();
            record.peer(peer, in_flight);
            let metrics = bridge.metrics.peers();
            metrics.rerouted(peer, &context.info, status, began.elapsed());
            Ok(reply)
        }
        // The client's own body broke off: no fault of the peer's.
        Err(error @ SendError::Client(_)) => Err(ProxyError::peer(error)),
        Err(error) => {
            // One that does not serve this any more may do well otherwise.
            if !matches!(error, SendError::Declined(StatusCode::NOT_FOUND)) {
                peer.health.record_failure(Instant::now());
            }
            if matches!(error, SendError::Connect(_) | SendError::CutOff(_)) {
                peer.health.record_timeout(began.elapsed());
            }
            context.count_error(peer_error(&error));
            request_repoll(context, peer);
            Err(ProxyError::peer(error))
        }
    }
}

/// Waits for the answer to a read that may be asked for elsewhere. A peer that has not
/// answered after [`LIVENESS_CHECK_DELAY`] is asked what it serves; if it does not answer that
/// either, `None`: its bridge lives, and the server behind it does not. The request's deadline
/// has this polled from time to time.
async fn unless_silent<T>(
    context: &RequestContext<'_>,
    peer: &Peer,
    began: Instant,
    mut answer: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut asked = false;
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        if asked {
            if !peer.health.is_reachable() {
                return Poll::Ready(None);
            }
        } else if began.elapsed() >= LIVENESS_CHECK_DELAY {
            request_repoll(context, peer);
            asked = true;
        }
        Poll::Pending
    })
    .await
}

/// Has discovery of a peer read again.
fn request_repoll(context: &RequestContext<'_>, peer: &Peer) {
    if let Some(cluster_handle) = &context.bridge.cluster_handle {
        cluster_handle.hint(ResyncHint::PeerChanged(peer.identity.clone()));
    }
}

/// A read once more, for when its answer is cut off. Answers that come when
/// there is something to say are not waited for, so they need none.
fn copy(context: &RequestContext<'_>, request: &Request<Replay>) -> Option<Request<Replay>> {
    let body = request.body();
    let is_short = body.repeat() == RetryClass::Idempotent
        && body.is_done()
        && !context.info.is_long_running();
    is_short.then(|| copy_of(request))
}

/// A request without a body once more.
fn copy_of(request: &Request<Replay>) -> Request<Replay> {
    let mut again = Request::new(request.body().empty());
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.version_mut() = request.version();
    *again.headers_mut() = request.headers().clone();
    again
}

/// An answer that is not longer than [`HELD`] only when all of it has arrived:
/// until then another peer can be asked, and the client knows of nothing.
async fn buffer_short_response(
    response: Response<ResponseBody>,
) -> Result<UpstreamResponse, SendError> {
    let (head, body) = response.into_parts();
    let body = body.held(HELD).await;
    let body = body.map_err(|error| SendError::CutOff(error.to_string()))?;
    Ok(UpstreamResponse::Response(Response::from_parts(head, body)))
}

/// A failure to send, as it is counted.
fn peer_error(error: &SendError) -> PeerError {
    match error {
        SendError::Connect(_) => PeerError::Connect,
        SendError::NotProcessed(_) | SendError::GoneAway(_) | SendError::Declined(_) => {
            PeerError::Declined
        }
        SendError::CutOff(_) | SendError::BadAnswer(_) | SendError::Client(_) => PeerError::CutOff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymity_is_asserted_only_after_the_local_server_accepted_it() {
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
