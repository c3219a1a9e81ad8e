//! To the kube-apiserver behind this bridge: once, or again if it is certain
//! that the first time had no effect.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::sleep;

use crate::access_log::Record;
use crate::body::ResponseBody;
use crate::cluster_state::{Hint, Place};
use crate::error_response;
use crate::forward_peer;
use crate::header_bounds;
use crate::header_metrics::HeaderLimit;
use crate::request_context::{Envoy, Unanswered};
use crate::upstream::{Pool, Replay, Reply, SendError};

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
    envoy: &Envoy<'_>,
    pool: &Arc<Pool>,
    request: &mut Request<Replay>,
    record: &mut Record,
) -> Result<Reply, Unanswered> {
    let introduced = envoy.introduce_here(request.headers_mut());
    introduced.map_err(Unanswered::perhaps_done)?;
    let bytes = header_bounds::check_outgoing(request.method(), request.uri(), request.headers())
        .inspect_err(|_| envoy.met_header_limit(HeaderLimit::OutgoingTooLarge))
        .map_err(Unanswered::perhaps_done)?;
    request.body_mut().set_header_bytes(bytes);
    let outcome = match send(envoy, pool, request).await {
        Ok(Reply::Response(response)) if is_doubtful(envoy, &response) => {
            let unmasked = Box::pin(envoy.unmask(response)).await;
            Ok(Reply::Response(unmasked.map_err(|_| not_here(envoy))?))
        }
        outcome => outcome,
    };
    match outcome {
        Err(SendError::Declined(_)) => Box::pin(elsewhere(envoy, request, record)).await,
        outcome => outcome.map_err(|error| {
            tracing::debug!(%error, "no answer from upstream");
            Unanswered {
                status: error_response::send_error(&error, &envoy.bridge.upstream_name()),
                untouched: error.is_safe_to_repeat(),
            }
        }),
    }
}

async fn send(
    envoy: &Envoy<'_>,
    pool: &Arc<Pool>,
    request: &mut Request<Replay>,
) -> Result<Reply, SendError> {
    // A false 404: the server has been replaced by one that does not serve this
    // any more, before we have heard what it does serve.
    let declines = |status, headers: &_| {
        envoy.subject.is_unknown(status, headers)
            && (envoy.subject.hopped || !matches!(envoy.elsewhere(), Place::Here))
    };
    let error = match pool.send_unless(request, envoy.prefer, declines).await {
        Err(error @ SendError::Declined(_)) => return Err(error),
        Err(error) if error.is_safe_to_repeat() && request.body_mut().rewind() => error,
        outcome => return outcome,
    };
    let repeating = async {
        let (mut error, mut sent) = (error, 1);
        loop {
            tracing::debug!(%error, "upstream did not take a request; it is sent once more");
            envoy.bridge.metrics.upstream_retry();
            if matches!(error, SendError::Connect(_)) {
                sleep(BEFORE_RECONNECT).await;
            } else if sent > 1 {
                sleep(BEFORE_REPEATING * 2u32.pow(sent - 2)).await;
            }
            sent += 1;
            error = match pool.send_unless(request, envoy.prefer, declines).await {
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
    envoy: &Envoy<'_>,
    request: &mut Request<Replay>,
    record: &mut Record,
) -> Result<Reply, Unanswered> {
    let gone = not_here(envoy);
    match envoy.elsewhere() {
        Place::There(peers) if !envoy.subject.hopped && request.body_mut().rewind() => {
            record.route("peer");
            forward_peer::forward(envoy, peers, request, record).await
        }
        _ => Err(gone),
    }
}

/// A 404 for what another server serves, or what a peer sent here.
fn is_doubtful(envoy: &Envoy<'_>, response: &Response<ResponseBody>) -> bool {
    response.status() == StatusCode::NOT_FOUND
        && (envoy.subject.hopped || !matches!(envoy.elsewhere(), Place::Here))
}

/// The local server has been replaced, and we had not heard of it.
fn not_here(envoy: &Envoy<'_>) -> Unanswered {
    if let Some(interop) = &envoy.bridge.interop {
        interop.hint(Hint::LocalChanged);
    }
    Unanswered {
        status: error_response::later(format!(
            "{} does not serve this any more; which servers do is being found out",
            envoy.bridge.upstream_name()
        )),
        untouched: true,
    }
}
