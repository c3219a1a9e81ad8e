//! To a peer that serves what the local server does not: the best one first,
//! and the next one for as long as it is certain that nothing has been done.

use std::sync::Arc;
use std::time::Instant;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use skewbridge_api::status::Status;
use skewbridge_peers::{Peer, order};

use crate::body::ResponseBody;
use crate::caller::Caller;
use crate::cluster::Hint;
use crate::envoy::{Envoy, Unanswered, is_not_processed};
use crate::peer_metrics::PeerError;
use crate::record::Record;
use crate::respond;
use crate::upstream::{Leg, Prefer, Repeat, Replay, Reply, SendError};

/// As it is on the wire; KEP-4020 names another.
const HOP: HeaderName = HeaderName::from_static("x-kubernetes-peer-proxied");

/// KEP-4020, Aggregation Layer, 5.
const FAILED: &str = "Error while proxying request to destination apiserver";

/// How much of the answer to a read is held back until it is whole: most objects
/// and most pages of lists.
const HELD: usize = 64 * 1024;

/// Sends a request to one of these and gives the reply, or says what to answer
/// instead.
pub(crate) async fn forward(
    envoy: &Envoy<'_>,
    serving: Vec<Arc<Peer>>,
    request: &mut Request<Replay>,
    record: &mut Record,
) -> Result<Reply, Unanswered> {
    let known = serving.len();
    let order = order(serving, envoy.bridge.chance(), Instant::now());
    if order.is_empty() {
        envoy.count_error(PeerError::NoAddress);
        return Err(untouched(format!(
            "{FAILED}: none of the {known} servers that serve this has published an address"
        )));
    }
    if let Some(refusal) = refused_here(envoy, request).await? {
        return Ok(refusal);
    }
    request
        .headers_mut()
        .insert(HOP, HeaderValue::from_static("true"));
    let mut failures = Vec::new();
    let last = order.len() - 1;
    for (turn, peer) in order.iter().enumerate() {
        let error = match send(envoy, peer, request, turn == last, record).await {
            Ok(reply) => return Ok(reply),
            Err(Failed::Status(status)) => return Err(Unanswered::perhaps_done(status)),
            Err(Failed::Untouched) => {
                return Err(untouched(format!(
                    "{FAILED}: {} does not serve this any more",
                    peer.identity
                )));
            }
            Err(Failed::Send(SendError::Client(cause))) => {
                return Err(Unanswered::perhaps_done(Status::bad_request(cause)));
            }
            Err(Failed::Send(error)) => error,
        };
        tracing::warn!(peer = %peer.identity, address = peer.address.map(tracing::field::display), %error, "a peer did not take a request");
        let certain = error.is_safe_to_repeat();
        let harmless = request.body().repeat() == Repeat::Harmless;
        failures.push(format!("{}: {error}", peer.identity));
        if !certain && !harmless {
            // It may have been done. Told to come again, a client would do it
            // twice: so it is not told.
            let message = format!("{FAILED}: {}; it may have been done", failures.join("; "));
            return Err(Unanswered::perhaps_done(Status::unavailable(message)));
        }
        if !request.body_mut().rewind() {
            break;
        }
    }
    Err(untouched(format!("{FAILED}: {}", failures.join("; "))))
}

/// To peers anonymity has to be asserted, and what is asserted is believed: so
/// the local server is asked first whether it lets in anybody without a name
/// (`--anonymous-auth`). Its 401 is the answer then.
async fn refused_here(
    envoy: &Envoy<'_>,
    request: &Request<Replay>,
) -> Result<Option<Reply>, Unanswered> {
    if !matches!(envoy.caller, Caller::Anonymous) {
        return Ok(None);
    }
    let bridge = envoy.bridge;
    let Some(pool) = (envoy.pools).of(Leg::Plain, &bridge.live, &bridge.metrics) else {
        return Ok(None);
    };
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
    let asked = pool.send(&mut question, Prefer::H2).await;
    match asked.map_err(|error| untouched(format!("{FAILED}: {error}")))? {
        Reply::Response(response) if response.status() == StatusCode::UNAUTHORIZED => {
            Ok(Some(Reply::Response(response)))
        }
        _ => Ok(None),
    }
}

enum Failed {
    Send(SendError),
    Status(Status),
    /// Nothing has been done, and what was sent cannot be sent again.
    Untouched,
}

async fn send(
    envoy: &Envoy<'_>,
    peer: &Arc<Peer>,
    request: &mut Request<Replay>,
    last: bool,
    record: &mut Record,
) -> Result<Reply, Failed> {
    let bridge = envoy.bridge;
    let version = peer.served.as_ref().and_then(|it| it.version.as_ref());
    let introduced = envoy.introduce_there(request.headers_mut(), version);
    introduced.map_err(Failed::Status)?;
    let Some(pool) = envoy.pools.to(peer, &bridge.live, &bridge.metrics) else {
        // Certificates went away between two looks at them.
        let message = format!("{FAILED}: there are no certificates for peers");
        return Err(Failed::Status(Status::unavailable(message)));
    };
    let prefer = match envoy.prefer {
        Prefer::Upgrade => Prefer::Upgrade,
        Prefer::H1 | Prefer::H2 => Prefer::H2,
    };
    let harmless = request.body().repeat() == Repeat::Harmless;
    // A peer that is going away, or whose server is: another one may still serve
    // it, or the client is told to come again. A read does no harm twice; a write
    // goes on only if the peer is certain.
    let declines = |status: StatusCode, headers: &_| {
        envoy.subject.is_unknown(status, headers)
            || (status == StatusCode::BAD_GATEWAY && harmless)
            || (status == StatusCode::SERVICE_UNAVAILABLE && harmless && !last)
            || (is_not_processed(status, headers) && !last)
    };
    let burden = peer.standing.burden();
    let began = Instant::now();
    let again = copy(envoy, request);
    let mut outcome = pool.send_unless(request, prefer, declines).await;
    if let Ok(Reply::Response(response)) = outcome {
        outcome = match again {
            Some(_) => whole(response).await,
            None => Ok(Reply::Response(response)),
        };
        if let Ok(Reply::Response(response)) = outcome {
            outcome = envoy.unmask(response).await.map(Reply::Response);
        }
        match again {
            Some(again) => *request = again,
            None if outcome.is_err() => return Err(Failed::Untouched),
            None => {}
        }
    }
    match outcome {
        Ok(reply) => {
            let status = match &reply {
                Reply::Response(response) => {
                    // Its words are passed on, but it may be another than it was.
                    // A workload can say anything.
                    let its_own = (envoy.subject)
                        .read(|info| !info.reaches_workload())
                        .unwrap_or_default();
                    if its_own && is_not_processed(response.status(), response.headers()) {
                        doubt(envoy, peer);
                    }
                    response.status()
                }
                Reply::Upgraded(..) => StatusCode::SWITCHING_PROTOCOLS,
            };
            peer.standing.forgive();
            record.peer(&peer.identity, burden);
            envoy.subject.read(|info| {
                let metrics = bridge.metrics.peers();
                metrics.rerouted(&peer.identity, info, status, began.elapsed());
            });
            Ok(reply)
        }
        // The client's own body broke off: no fault of the peer's.
        Err(error @ SendError::Client(_)) => Err(Failed::Send(error)),
        Err(error) => {
            // One that does not serve this any more may do well otherwise.
            if !matches!(error, SendError::Declined(StatusCode::NOT_FOUND)) {
                peer.standing.failed(Instant::now());
            }
            envoy.count_error(PeerError::of(&error));
            doubt(envoy, peer);
            Err(Failed::Send(error))
        }
    }
}

/// Has a peer asked again what it serves.
fn doubt(envoy: &Envoy<'_>, peer: &Peer) {
    if let Some(interop) = &envoy.bridge.interop {
        interop.hint(Hint::Doubt(peer.identity.clone()));
    }
}

/// A read once more, for when its answer is cut off. Answers that come when
/// there is something to say are not waited for, so they need none.
fn copy(envoy: &Envoy<'_>, request: &Request<Replay>) -> Option<Request<Replay>> {
    let body = request.body();
    let is_short = body.repeat() == Repeat::Harmless
        && body.is_done()
        && envoy.subject.read(|info| !info.is_long_running()) == Some(true);
    is_short.then(|| {
        let mut again = Request::new(body.empty());
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.version_mut() = request.version();
        *again.headers_mut() = request.headers().clone();
        again
    })
}

/// An answer that is not longer than [`HELD`] only when all of it has arrived:
/// until then another peer can be asked, and the client knows of nothing.
async fn whole(response: Response<ResponseBody>) -> Result<Reply, SendError> {
    let (head, body) = response.into_parts();
    let body = body.held(HELD).await;
    let body = body.map_err(|error| SendError::CutOff(error.to_string()))?;
    Ok(Reply::Response(Response::from_parts(head, body)))
}

fn untouched(message: String) -> Unanswered {
    Unanswered {
        status: respond::later(message),
        untouched: true,
    }
}
