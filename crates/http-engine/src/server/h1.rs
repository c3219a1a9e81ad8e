//! HTTP/1.1 server connection: requests in sequence, each answered before the next is parsed.

mod close;
mod connection;
mod response;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::close::{close, linger, refuse};
use self::connection::{Connection, fill};
use self::response::{NextStep, RequestMeta, reply};
use super::{ClientIo, ClientResponse, ClientTimeouts, ResponseRecord, Service};
use crate::buffer_budget::{ClientLimits, Eviction, Sample, StallGuard};
use crate::drain::Drain;
use crate::error_response;
use crate::header_bounds::HeaderLimit;
use crate::http1::{HeadError, HeadTerminator, RequestHead, parse_request};

/// Timeout for the first request of a new connection while the server drains. Clients send it right
/// after the handshake.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves one connection to its end.
pub async fn serve<S: Service>(
    io: ClientIo,
    service: S,
    timeouts: ClientTimeouts,
    mut drain: Drain,
) {
    let limits = service.limits();
    let connection = Connection::new(io);
    if !first_bytes(&connection, timeouts, &mut drain).await {
        close(&connection).await;
        return;
    }
    loop {
        let head = match next_head(&connection, timeouts, limits, &mut drain).await {
            HeadResult::Head(head) => *head,
            HeadResult::Refused(error) => {
                if error == HeadError::TooLarge {
                    service.met_header_limit(HeaderLimit::RequestTooLarge);
                }
                let response = error_response::bad_head(error);
                service.refused(response.status());
                refuse(&connection, response).await;
                return;
            }
            HeadResult::TooSlow => {
                let response = error_response::slow_head(S::HEAD_TIMEOUT_FLAG);
                service.refused(response.status());
                refuse(&connection, response).await;
                return;
            }
            HeadResult::Disconnected => {
                close(&connection).await;
                return;
            }
        };
        let meta = RequestMeta::of(&head);
        let request = connection.begin(head);
        // Boxed: the state that produces a response is freed while the response is sent.
        let call = Box::pin(service.call(request));
        let response = match response_or_disconnect(&connection, call, limits).await {
            Ok(response) => response,
            Err(CallAborted::Disconnected | CallAborted::Evicted(Eviction::OverBudget)) => return,
            Err(CallAborted::Evicted(Eviction::TimedOut)) => {
                refuse(&connection, error_response::slow_body(meta.format)).await;
                return;
            }
        };
        let stall = StallGuard::new(limits, Some(limits.stall_timeout(timeouts.stall)));
        match reply(&connection, &meta, response, &drain, stall).await {
            NextStep::NextRequest => {}
            NextStep::Close => {
                linger(&connection).await;
                return;
            }
            NextStep::Switch(switched, record) => {
                if let Some((io, input)) = connection.into_parts() {
                    switched.run(io, input, record).await;
                }
                return;
            }
            NextStep::Abort => return,
        }
    }
}

/// Waits for the first request of a new client, also while the server drains: unlike on an idle
/// connection, the client would treat a close as a failure and not retry.
async fn first_bytes(connection: &Connection, timeouts: ClientTimeouts, drain: &mut Drain) -> bool {
    let leaving = async {
        drain.draining().await;
        sleep(FIRST_REQUEST_TIMEOUT).await;
    };
    tokio::select! {
        biased;
        filled = timeout(timeouts.idle, fill(connection)) => matches!(filled, Ok(Ok(read)) if read > 0),
        () = leaving => false,
    }
}

enum HeadResult {
    Head(Box<RequestHead>),
    Refused(HeadError),
    TooSlow,
    Disconnected,
}

async fn next_head(
    connection: &Connection,
    timeouts: ClientTimeouts,
    limits: &ClientLimits,
    drain: &mut Drain,
) -> HeadResult {
    let mut guard = StallGuard::new(limits, None);
    let mut end = HeadTerminator::default();
    let mut buffered = {
        let mut shared = connection.lock();
        shared.stream.release();
        !shared.stream.input.is_empty()
    };
    if !buffered {
        if drain.is_draining() {
            return HeadResult::Disconnected;
        }
        let first = async {
            tokio::select! {
                biased;
                filled = fill(connection) => filled,
                () = drain.draining() => Ok(0),
            }
        };
        match timeout(timeouts.idle, first).await {
            Ok(Ok(read)) if read > 0 => buffered = true,
            _ => return HeadResult::Disconnected,
        }
    }
    let deadline = Instant::now() + timeouts.head;
    loop {
        if buffered {
            let mut shared = connection.lock();
            if end.reached(&shared.stream.input) {
                match parse_request(&mut shared.stream.input) {
                    Ok(Some(head)) => return HeadResult::Head(Box::new(head)),
                    Ok(None) => end = HeadTerminator::default(),
                    Err(error) => return HeadResult::Refused(error),
                }
            }
        }
        // An incomplete head counts as buffered while it waits for the client.
        let filled = poll_fn(|cx| {
            let mut shared = connection.lock();
            if let Poll::Ready(filled) = shared.stream.poll_fill(cx) {
                return Poll::Ready(filled);
            }
            let sample = || Sample {
                bytes: shared.stream.input.len(),
                waits_for_client: true,
            };
            let evicted = guard.poll_evicted(0, sample, cx);
            evicted.map(|_| Ok(0))
        });
        match timeout_at(deadline, filled).await {
            Ok(Ok(0) | Err(_)) => return HeadResult::Disconnected,
            Ok(Ok(_)) => buffered = true,
            Err(_) => return HeadResult::TooSlow,
        }
    }
}

/// Why a request has no response.
enum CallAborted {
    /// The client disconnected.
    Disconnected,
    Evicted(Eviction),
}

/// Waits for the response. On a disconnect or eviction the request is dropped, which cancels it
/// upstream.
async fn response_or_disconnect<R: ResponseRecord>(
    connection: &Connection,
    mut call: Pin<Box<impl Future<Output = ClientResponse<R>>>>,
    limits: &ClientLimits,
) -> Result<ClientResponse<R>, CallAborted> {
    let mut guard = None;
    poll_fn(|cx| {
        if let Poll::Ready(mut response) = call.as_mut().poll(cx) {
            if !connection.lock().disconnected {
                return Poll::Ready(Ok(response));
            }
            response.record.client_left();
            return Poll::Ready(Err(CallAborted::Disconnected));
        }
        let mut shared = connection.lock();
        if shared.poll_disconnect(cx).is_ready() {
            return Poll::Ready(Err(CallAborted::Disconnected));
        }
        if shared.body.is_done() {
            guard = None;
            return Poll::Pending;
        }
        // Not before the caller is authenticated, by its client certificate or otherwise.
        let guard =
            guard.get_or_insert_with(|| StallGuard::new(limits, limits.request_body_timeout()));
        let bytes = shared.stream.input.len();
        let sample = || Sample {
            bytes,
            // Otherwise upstream does not read the received data.
            waits_for_client: bytes == 0,
        };
        guard
            .poll_evicted(shared.received, sample, cx)
            .map(|eviction| Err(CallAborted::Evicted(eviction)))
    })
    .await
}
