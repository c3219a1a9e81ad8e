//! To the kube-apiserver behind this bridge: once, or again if it is certain
//! that the first time had no effect.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::sleep;

use skewbridge_api::status::Status;

use crate::access_log::AccessLogEntry;
use crate::body::ResponseBody;
use crate::cluster_state::{ResyncHint, ServedBy};
use crate::error_response;
use crate::forward_peer;
use crate::header_bounds;
use crate::metrics::headers::HeaderLimit;
use crate::request_context::{ForwardError, RequestContext};
use crate::upstream::{Pool, Replay, SendError, UpstreamResponse};

/// A server that refuses connections is often one that is just starting.
const BEFORE_RECONNECT: Duration = Duration::from_millis(100);

/// How often a request is sent that meets a GOAWAY each time, as Go's own clients do it.
/// kube-apiserver sends one after each answer to somebody without a name
/// (`UnauthenticatedHTTP2DOSMitigation`): where several of them ask at once, that is not rare.
const MOST_GOAWAYS: u32 = 6;

/// Before the second repetition; twice as long before each further one.
const BEFORE_REPEATING: Duration = Duration::from_millis(2);

/// Sends a request up and gives the reply, or says what to answer instead.
pub(crate) async fn forward(
    context: &RequestContext<'_>,
    pool: &Arc<Pool>,
    request: &mut Request<Replay>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ForwardError> {
    let introduced = context.set_identity_for_local(request.headers_mut());
    introduced.map_err(ForwardError::perhaps_done)?;
    let bytes = header_bounds::check_outgoing(request.method(), request.uri(), request.headers())
        .inspect_err(|_| context.met_header_limit(HeaderLimit::OutgoingTooLarge))
        .map_err(ForwardError::perhaps_done)?;
    request.body_mut().set_header_bytes(bytes);
    let outcome = match send(context, pool, request).await {
        Ok(UpstreamResponse::Response(response)) if is_doubtful(context, &response) => {
            let unmasked = Box::pin(context.detect_unserved_404(response)).await;
            Ok(UpstreamResponse::Response(
                unmasked.map_err(|_| not_here(context))?,
            ))
        }
        outcome => outcome,
    };
    match outcome {
        Err(SendError::Declined(_)) => Box::pin(elsewhere(context, request, record)).await,
        outcome => outcome.map_err(|error| {
            tracing::debug!(%error, "no answer from upstream");
            ForwardError {
                status: send_error(&error, &context.bridge.upstream_name()),
                untouched: error.is_safe_to_repeat(),
            }
        }),
    }
}

async fn send(
    context: &RequestContext<'_>,
    pool: &Arc<Pool>,
    request: &mut Request<Replay>,
) -> Result<UpstreamResponse, SendError> {
    // A false 404: the server has been replaced by one that does not serve this
    // any more, before we have heard what it does serve.
    let declines = |status, headers: &_| {
        context.subject.is_unknown(status, headers)
            && (context.subject.hopped || !matches!(context.elsewhere(), ServedBy::Local))
    };
    let error = match pool.send_unless(request, context.prefer, declines).await {
        Err(error @ SendError::Declined(_)) => return Err(error),
        Err(error) if error.is_safe_to_repeat() && request.body_mut().rewind() => error,
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
            error = match pool.send_unless(request, context.prefer, declines).await {
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
    request: &mut Request<Replay>,
    record: &mut AccessLogEntry,
) -> Result<UpstreamResponse, ForwardError> {
    let gone = not_here(context);
    match context.elsewhere() {
        ServedBy::Peers(peers) if !context.subject.hopped && request.body_mut().rewind() => {
            record.route("peer");
            forward_peer::forward(context, peers, request, record).await
        }
        _ => Err(gone),
    }
}

/// A 404 for what another server serves, or what a peer sent here.
fn is_doubtful(context: &RequestContext<'_>, response: &Response<ResponseBody>) -> bool {
    response.status() == StatusCode::NOT_FOUND
        && (context.subject.hopped || !matches!(context.elsewhere(), ServedBy::Local))
}

/// The local server has been replaced, and we had not heard of it.
fn not_here(context: &RequestContext<'_>) -> ForwardError {
    if let Some(interop) = &context.bridge.interop {
        interop.hint(ResyncHint::LocalChanged);
    }
    ForwardError {
        status: error_response::later(format!(
            "{} does not serve this any more; which servers do is being found out",
            context.bridge.upstream_name()
        )),
        untouched: true,
    }
}

/// Upstream, which has this name, gave no answer.
fn send_error(error: &SendError, name: &str) -> Status {
    match error {
        SendError::Connect(_)
        | SendError::NotProcessed(_)
        | SendError::GoneAway(_)
        | SendError::Declined(_) => {
            error_response::later(format!("{name} cannot be reached: {error}"))
        }
        SendError::CutOff(_) | SendError::BadAnswer(_) => Status::bad_gateway(error.to_string()),
        SendError::Client(cause) => Status::bad_request(cause.clone()),
    }
}
