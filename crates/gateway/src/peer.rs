//! To a peer that serves what the local server does not: the best one first,
//! and the next one for as long as it is certain that nothing has been done.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderName, HeaderValue, Request, StatusCode};
use skewbridge_api::status::Status;
use skewbridge_peers::{Peer, order};

use crate::cluster::Hint;
use crate::envoy::{Envoy, Unanswered, is_not_processed};
use crate::peer_metrics::PeerError;
use crate::record::Record;
use crate::respond;
use crate::upstream::{Prefer, Repeat, Replay, Reply, SendError};

/// As it is on the wire; KEP-4020 names another.
const HOP: HeaderName = HeaderName::from_static("x-kubernetes-peer-proxied");

/// KEP-4020, Aggregation Layer, 5.
const FAILED: &str = "Error while proxying request to destination apiserver";

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
    request
        .headers_mut()
        .insert(HOP, HeaderValue::from_static("true"));
    let mut failures = Vec::new();
    let last = order.len() - 1;
    for (turn, peer) in order.iter().enumerate() {
        let error = match send(envoy, peer, request, turn == last, record).await {
            Ok(reply) => return Ok(reply),
            Err(Failed::Status(status)) => return Err(Unanswered::perhaps_done(status)),
            Err(Failed::Send(SendError::Client(cause))) => {
                return Err(Unanswered::perhaps_done(Status::bad_request(cause)));
            }
            Err(Failed::Send(error)) => error,
        };
        tracing::warn!(peer = %peer.identity, address = ?peer.address, %error, "a peer did not take a request");
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

enum Failed {
    Send(SendError),
    Status(Status),
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
    // it. A read does no harm twice; a write goes on only if the peer is certain.
    let declines = |status: StatusCode, headers: &_| {
        let failing = matches!(
            status,
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE
        );
        envoy.subject.is_unknown(status, headers)
            || (failing && !last && (harmless || is_not_processed(headers)))
    };
    let burden = peer.standing.burden();
    let began = Instant::now();
    match pool.send_unless(request, prefer, declines).await {
        Ok(reply) => {
            let status = match &reply {
                Reply::Response(response) => response.status(),
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
        Err(error) => {
            peer.standing.failed(Instant::now());
            envoy.count_error(PeerError::of(&error));
            if let Some(interop) = &bridge.interop {
                interop.hint(Hint::Doubt(peer.identity.clone()));
            }
            Err(Failed::Send(error))
        }
    }
}

fn untouched(message: String) -> Unanswered {
    Unanswered {
        status: respond::later(message),
        untouched: true,
    }
}
