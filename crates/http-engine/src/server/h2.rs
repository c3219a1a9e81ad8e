//! HTTP/2 server connection: a task per stream, and one for the connection, which outlives them.

mod active_streams;
mod request_body;
mod request_checks;
mod response;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, Version};
use skewbridge_k8s_api::content_negotiation::negotiate_error_format;
use skewbridge_k8s_api::status::Status;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::active_streams::{ActiveStream, StreamCounter};
use self::request_body::{CallAborted, Incoming, StreamBody};
use self::request_checks::{check_authority, check_header_size, check_length, join_cookies};
use self::response::{MAX_SEND_BUFFER_BYTES, Responder, evict, lock, pump, send_head};
use super::received_frames::ReceivedFrames;
use super::{ClientIo, ClientResponse, ClientTimeouts, ResponseRecord, Service};
use crate::body::RequestBody;
use crate::buffer_budget::{ClientLimits, StallGuard};
use crate::close_connection::CloseConnection;
use crate::drain::Drain;
use crate::error_response;
use crate::header_bounds::{ExpansionDecision, HeaderCredit, HeaderLimit, list_bytes};
use crate::message_headers::expects_continue;

/// Flow-control window of a stream: kube-apiserver's (its 99th percentile of object sizes).
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// Flow-control window of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// The same for an unauthenticated client: the default and minimum of the protocol. It bounds the
/// memory that unauthenticated clients can use.
const UNAUTHENTICATED_CONNECTION_WINDOW_BYTES: u32 = 65_535;

/// The h2 crate's own limit on header lists. It is above the limit of this server, so
/// that a slightly too large list is
/// answered with a Status.
const MAX_DECODED_HEADER_LIST_BYTES: u32 = 2 << 20;

/// Maximum number of streams that the client has reset and that were not accepted yet. More is the
/// rapid reset attack (CVE-2023-44487), and the connection is closed.
const MAX_PENDING_RESETS: usize = 20;

/// Maximum number of streams reset because of protocol errors, per connection.
const MAX_ERROR_RESETS: usize = 256;

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct H2Limits {
    /// Streams at one time.
    pub max_streams: u32,
    /// Times allowed to the client.
    pub timeouts: ClientTimeouts,
}

/// Serves one connection to its end.
pub async fn serve<S: Service>(
    io: ClientIo,
    service: S,
    connection_limits: H2Limits,
    mut drain: Drain,
) {
    let limits = service.limits();
    let mut window = connection_window(limits);
    let io = ReceivedFrames::new(
        io,
        limits,
        connection_limits.timeouts.head,
        MAX_DECODED_HEADER_LIST_BYTES as usize,
    );
    let received = io.counter();
    let mut credit = HeaderCredit::new(Instant::now());
    let handshake = Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(window)
        .max_concurrent_streams(connection_limits.max_streams)
        .max_header_list_size(MAX_DECODED_HEADER_LIST_BYTES)
        .max_send_buffer_size(MAX_SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(Some(MAX_ERROR_RESETS))
        .handshake::<_, Bytes>(io);
    let Ok(Ok(mut connection)) = timeout(connection_limits.timeouts.head, handshake).await else {
        return;
    };
    let active = StreamCounter::default();
    let mut registered = None;
    let mut goaway_sent = false;
    let mut is_ended = false;
    let mut idle = pin!(sleep_until(
        Instant::now() + connection_limits.timeouts.idle
    ));
    loop {
        tokio::select! {
            biased;
            accepted = poll_fn(|cx| connection.poll_accept(cx)) => {
                let Some(Ok((request, respond))) = accepted else { return };
                let size = list_bytes(request.headers());
                let pace = credit.charge(
                    size,
                    received.load(Ordering::Relaxed),
                    limits.is_authenticated(),
                    Instant::now(),
                );
                match pace {
                    ExpansionDecision::Delay(_) => service.met_header_limit(HeaderLimit::ExpansionDelayed),
                    ExpansionDecision::Close if !is_ended => {
                        is_ended = true;
                        service.met_header_limit(HeaderLimit::ExpansionEnded);
                    }
                    ExpansionDecision::Allow | ExpansionDecision::Close => {}
                }
                if active.is_reset_flood() || pace == ExpansionDecision::Close {
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    continue;
                }
                tokio::spawn(answer(
                    (request, size, pace),
                    respond,
                    service.clone(),
                    active.begin(),
                    connection_limits.timeouts,
                ));
            }
            () = poll_fn(|cx| active.0.changed.poll(&mut registered, cx)) => {
                let allowed = connection_window(limits);
                if allowed != window {
                    window = allowed;
                    connection.set_target_window_size(window);
                }
                if active.is_closing() && !goaway_sent {
                    goaway_sent = true;
                    connection.graceful_shutdown();
                    idle.as_mut().reset(Instant::now() + connection_limits.timeouts.idle);
                }
            }
            () = drain.draining(), if !goaway_sent => {
                goaway_sent = true;
                connection.graceful_shutdown();
                idle.as_mut().reset(Instant::now() + connection_limits.timeouts.idle);
            }
            () = idle.as_mut() => {
                let idle_since = active.idle_since();
                let closes = idle_since.unwrap_or_else(Instant::now) + connection_limits.timeouts.idle;
                if idle_since.is_some() && closes <= Instant::now() {
                    if goaway_sent {
                        // GOAWAY is sent with a ping, which the client did not answer.
                        return;
                    }
                    goaway_sent = true;
                    connection.graceful_shutdown();
                    idle.as_mut().reset(Instant::now() + connection_limits.timeouts.idle);
                } else {
                    idle.as_mut().reset(closes.max(Instant::now() + IDLE_CHECK_INTERVAL));
                }
            }
        }
    }
}

/// Flow-control window of a connection.
fn connection_window(limits: &ClientLimits) -> u32 {
    if limits.is_authenticated() {
        CONNECTION_WINDOW_BYTES
    } else {
        UNAUTHENTICATED_CONNECTION_WINDOW_BYTES
    }
}

/// Precision of the idle timeout.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Answers one stream.
async fn answer<S: Service>(
    (request, size, pace): (Request<RecvStream>, usize, ExpansionDecision),
    respond: SendResponse<Bytes>,
    service: S,
    active: ActiveStream,
    timeouts: ClientTimeouts,
) {
    let limits = service.limits();
    let respond = Arc::new(Mutex::new(Responder {
        send: respond,
        answered: false,
    }));
    if let ExpansionDecision::Delay(delay) = pace {
        sleep(delay).await;
    }
    let (mut head, stream) = request.into_parts();
    let method = head.method.clone();
    let checked = check_header_size(head.headers.len(), size)
        .inspect_err(|_| service.met_header_limit(HeaderLimit::RequestTooLarge))
        .and_then(|()| check_authority(&mut head).map_err(Status::bad_request))
        .and_then(|()| join_cookies(&mut head, &service))
        .and_then(|()| check_length(&head).map_err(Status::bad_request));
    if let Err(status) = checked {
        let bodiless = method == Method::HEAD;
        let format = negotiate_error_format(&head.headers);
        let (head, body) = error_response::status(&status, format).into_parts();
        service.refused(head.status);
        if let Ok(mut stream) = send_head(&respond, Response::from_parts(head, ()), bodiless)
            && !bodiless
        {
            let _ = stream.send_data(body, true);
        }
        return;
    }
    head.version = Version::HTTP_2;
    let mut incoming = None;
    let body = if stream.is_end_stream() {
        RequestBody::Empty
    } else {
        let continues = expects_continue(&head.headers).then(|| respond.clone());
        let body = StreamBody::new(stream, continues);
        incoming = Some(Incoming::new(&body, limits, &head.headers));
        RequestBody::Stream(Box::new(body))
    };
    // Boxed: the state that produces a response is freed while the response is sent.
    let mut call = Box::pin(service.call(Request::from_parts(head, body)));
    let answered = poll_fn(|cx| {
        // A reset or disconnect of the client is checked first: the end of its body would otherwise
        // be answered as a malformed request.
        if lock(&respond).send.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(CallAborted::Reset));
        }
        let answered = call.as_mut().poll(cx);
        active.note_authentication(limits);
        if let Poll::Ready(answer) = answered {
            return Poll::Ready(Ok(answer));
        }
        match &mut incoming {
            Some(incoming) => incoming.poll_evicted(cx).map(Err),
            None => Poll::Pending,
        }
    })
    .await;
    drop((call, incoming));
    let answer = match answered {
        Ok(answer) => answer,
        Err(CallAborted::Reset) => {
            active.reset_early();
            return;
        }
        Err(CallAborted::Evicted(eviction, format)) => return evict(&respond, eviction, format),
    };
    let ClientResponse {
        response,
        mut record,
        ..
    } = answer;
    let (mut head, mut body) = response.into_parts();
    head.version = Version::HTTP_2;
    head.headers.remove(TRANSFER_ENCODING);
    head.headers.remove(CONNECTION);
    if head.extensions.remove::<CloseConnection>().is_some() {
        active.close_connection();
    }
    let bodiless = method == Method::HEAD
        || head.status == StatusCode::NO_CONTENT
        || head.status == StatusCode::NOT_MODIFIED
        || (head.headers.get(CONTENT_LENGTH)).is_some_and(|length| length == "0");
    let Ok(mut stream) = send_head(&respond, Response::from_parts(head, ()), bodiless) else {
        return;
    };
    if bodiless {
        record.complete();
        // A body of an upstream connection must be read to its end, so that the connection can be
        // reused; this one is empty.
        return;
    }
    drop(respond);
    let stall = StallGuard::new(limits, Some(limits.stall_timeout(timeouts.stall)));
    if pump(&mut body, &mut stream, &mut record, stall)
        .await
        .is_ok()
    {
        record.complete();
    }
}
