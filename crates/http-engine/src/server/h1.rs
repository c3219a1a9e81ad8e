//! HTTP/1.1 server connection: requests in sequence, each answered before the next is parsed.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, Request, StatusCode, Version};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate_error_format};
use skewbridge_stream_io::Buffered;
use tokio::io::AsyncWrite;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{ClientIo, ClientResponse, ClientTimeouts, ResponseRecord, Service, UpgradeHandler};
use crate::body::{BodyError, BodySource, Frame, PollFrame, RequestBody, ResponseBody};
use crate::buffer_budget::{ClientLimits, Eviction, Sample, StallGuard};
use crate::close_connection::CloseConnection;
use crate::drain::Drain;
use crate::error_response;
use crate::header_bounds::HeaderLimit;
use crate::http1::{
    BodyEvent, Decoder, Encoder, Framing, HeadError, HeadTerminator, RequestHead, parse_request,
    write_headers, write_status_line,
};
use crate::message_headers::{content_length, expects_continue};

/// Read size: a request is a head and perhaps an object.
const READ_CHUNK_BYTES: usize = 8 * 1024;

/// How much of pipelined requests is buffered. The rest stays in the socket buffer.
const MAX_PIPELINED_BYTES: usize = 64 * 1024;

/// After a response that closes the connection, this much further input is read and discarded, so
/// that a TCP reset does not destroy the response in transit (RFC 9112, 9.6).
const MAX_LINGER_BYTES: usize = 256 * 1024;
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

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
            Err(NoResponse::Disconnected | NoResponse::Evicted(Eviction::OverBudget)) => return,
            Err(NoResponse::Evicted(Eviction::TimedOut)) => {
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

/// The connection, shared by its loop and the request body. Both run in one task, so the lock is
/// never contended.
#[derive(Debug, Clone)]
struct Connection(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    stream: Buffered<ClientIo>,
    body: Decoder,
    /// The client waits for `100 Continue` before it sends its body.
    expects_continue: bool,
    /// The client disconnected before its body was complete.
    disconnected: bool,
    /// Bytes that the client has sent.
    received: u64,
}

impl Connection {
    fn new(io: ClientIo) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            stream: Buffered::new(io, READ_CHUNK_BYTES),
            body: Framing::Empty.decoder(),
            expects_continue: false,
            disconnected: false,
            received: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic while the lock is held ends the connection's task anyway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, head: RequestHead) -> Request<RequestBody> {
        let mut shared = self.lock();
        shared.body = head.framing.decoder();
        shared.expects_continue = head.version == Version::HTTP_11
            && head.framing != Framing::Empty
            && expects_continue(&head.headers);
        let body = if head.framing == Framing::Empty {
            RequestBody::Empty
        } else {
            RequestBody::Stream(Box::new(ClientBody(self.clone())))
        };
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.uri_mut() = head.uri;
        *request.version_mut() = head.version;
        *request.headers_mut() = head.headers;
        request
    }

    /// The stream itself, once nothing else uses it.
    fn into_parts(self) -> Option<(ClientIo, BytesMut)> {
        let shared = Arc::into_inner(self.0)?;
        let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        Some((shared.stream.io, shared.stream.input))
    }
}

impl Shared {
    fn poll_body(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if self.expects_continue {
            self.expects_continue = false;
            self.stream
                .output
                .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        loop {
            match self.body.decode(&mut self.stream.input) {
                Ok(Some(BodyEvent::Data(data))) => return Poll::Ready(Some(Ok(Frame::Data(data)))),
                Ok(Some(BodyEvent::Trailers(map))) => {
                    return Poll::Ready(Some(Ok(Frame::Trailers(map))));
                }
                Ok(Some(BodyEvent::End)) => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => {
                    return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
                }
            }
            // The interim response must be sent before the client sends more.
            if let Poll::Ready(Err(error)) = self.stream.poll_flush(cx) {
                return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
            }
            match self.stream.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    self.disconnected = true;
                    let closed = "the connection was closed".to_owned();
                    return Poll::Ready(Some(Err(BodyError::Client(closed))));
                }
                Poll::Ready(Ok(read)) => self.received += read as u64,
                Poll::Ready(Err(error)) => {
                    self.disconnected = true;
                    return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
                }
            }
        }
    }

    /// Ready when the client disconnects before the response.
    fn poll_disconnect(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.stream.input.len() < MAX_PIPELINED_BYTES {
            match self.stream.poll_fill(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(read)) => {
                    self.received += read as u64;
                    // The body has not read these bytes yet.
                    if !self.body.is_done() {
                        cx.waker().wake_by_ref();
                    }
                }
            }
        }
        Poll::Pending
    }
}

/// The body of the request that is being answered.
#[derive(Debug)]
pub struct ClientBody(Connection);

impl BodySource for ClientBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        self.0.lock().poll_body(cx)
    }

    /// Counted with the connection.
    fn buffered(&mut self) -> usize {
        0
    }

    fn is_done(&self) -> bool {
        self.0.lock().body.is_done()
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

async fn fill(connection: &Connection) -> io::Result<usize> {
    poll_fn(|cx| connection.lock().stream.poll_fill(cx)).await
}

/// Properties of a request that determine how its response is written.
struct RequestMeta {
    method: Method,
    version: Version,
    keep_alive: bool,
    /// The negotiated format of error responses.
    format: Format,
    /// Whether the request is an upgrade.
    switches: bool,
}

impl RequestMeta {
    fn of(head: &RequestHead) -> Self {
        Self {
            method: head.method.clone(),
            version: head.version,
            keep_alive: head.keep_alive,
            format: match head.framing {
                Framing::Empty => Format::Json,
                _ => negotiate_error_format(&head.headers),
            },
            switches: head.method == Method::CONNECT || head.headers.contains_key(UPGRADE),
        }
    }
}

/// Why a request has no response.
enum NoResponse {
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
) -> Result<ClientResponse<R>, NoResponse> {
    let mut guard = None;
    poll_fn(|cx| {
        if let Poll::Ready(mut response) = call.as_mut().poll(cx) {
            if !connection.lock().disconnected {
                return Poll::Ready(Ok(response));
            }
            response.record.client_left();
            return Poll::Ready(Err(NoResponse::Disconnected));
        }
        let mut shared = connection.lock();
        if shared.poll_disconnect(cx).is_ready() {
            return Poll::Ready(Err(NoResponse::Disconnected));
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
            .map(|eviction| Err(NoResponse::Evicted(eviction)))
    })
    .await
}

enum NextStep<R> {
    NextRequest,
    Close,
    Abort,
    Switch(UpgradeHandler<R>, R),
}

async fn reply<R: ResponseRecord>(
    connection: &Connection,
    meta: &RequestMeta,
    response: ClientResponse<R>,
    drain: &Drain,
    mut stall: StallGuard<'_>,
) -> NextStep<R> {
    let ClientResponse {
        response,
        switched,
        mut record,
    } = response;
    let (mut head, mut body) = response.into_parts();
    if let Some(switched) = switched {
        write_head(connection, Version::HTTP_11, &head);
        return match poll_fn(|cx| connection.lock().stream.poll_flush(cx)).await {
            Ok(()) => NextStep::Switch(switched, record),
            Err(_) => NextStep::Abort,
        };
    }
    let mut encoder = choose_framing(&mut head, meta);
    let closes = head.extensions.remove::<CloseConnection>().is_some();
    let keep = {
        let shared = connection.lock();
        meta.keep_alive
            // Bytes after a refused upgrade, or CONNECT, are not a request.
            && !meta.switches
            // An unread body would be parsed as the next request.
            && shared.body.is_done()
            && encoder != Encoder::UntilClose
            && !drain.is_draining()
            && !closes
    };
    head.headers.remove(CONNECTION);
    if !keep {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("close"));
    } else if meta.version == Version::HTTP_10 {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    }
    connection.lock().expects_continue = false;
    write_head(connection, meta.version, &head);
    let sent = poll_fn(|cx| {
        let sent = poll_send(connection, &mut body, &mut encoder, &mut record, cx);
        let shared = connection.lock();
        if sent.is_ready() || shared.stream.is_flushed() {
            stall.over();
            return sent;
        }
        let sample = || Sample {
            bytes: shared.stream.unsent() + shared.stream.input.len() + body.buffered(),
            waits_for_client: true,
        };
        let evicted = stall.poll_evicted(shared.stream.sent(), sample, cx);
        evicted.map(|_| Err(WriteAborted))
    })
    .await;
    match sent {
        Ok(()) => {
            record.complete();
            if keep {
                NextStep::NextRequest
            } else {
                NextStep::Close
            }
        }
        // Without its framed end the client detects that the response is truncated.
        Err(WriteAborted) => NextStep::Abort,
    }
}

fn write_head(connection: &Connection, version: Version, head: &http::response::Parts) {
    let output = &mut connection.lock().stream.output;
    write_status_line(output, version, head.status);
    write_headers(output, &head.headers);
    output.extend_from_slice(b"\r\n");
}

struct WriteAborted;

/// Forwards the response body to the client: received data is sent at once.
fn poll_send(
    connection: &Connection,
    body: &mut ResponseBody,
    encoder: &mut Encoder,
    record: &mut impl ResponseRecord,
    cx: &mut Context<'_>,
) -> Poll<Result<(), WriteAborted>> {
    loop {
        let mut ended = false;
        let mut pending = false;
        let mut cut = false;
        while connection.lock().stream.has_room() {
            match body.poll_frame(cx) {
                Poll::Pending => {
                    pending = true;
                    break;
                }
                Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                    record.add_bytes(data.len());
                    // A response to HEAD has no body, whatever arrives.
                    if *encoder == Encoder::Empty {
                        continue;
                    }
                    if encoder
                        .queue_data(&mut connection.lock().stream, data)
                        .is_err()
                    {
                        return Poll::Ready(Err(WriteAborted));
                    }
                }
                Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                    let output = &mut connection.lock().stream.output;
                    if encoder.finish(output, Some(&trailers)).is_err() {
                        return Poll::Ready(Err(WriteAborted));
                    }
                    ended = true;
                    break;
                }
                Poll::Ready(None) => {
                    let output = &mut connection.lock().stream.output;
                    if encoder.finish(output, None).is_err() {
                        return Poll::Ready(Err(WriteAborted));
                    }
                    ended = true;
                    break;
                }
                Poll::Ready(Some(Err(error))) => {
                    // Data received before the failure is still sent to the client.
                    *body = ResponseBody::failed(error);
                    cut = true;
                    break;
                }
            }
        }
        let mut shared = connection.lock();
        match shared.stream.poll_flush(cx) {
            Poll::Ready(Ok(())) if ended => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(())) if cut => return Poll::Ready(Err(WriteAborted)),
            Poll::Ready(Ok(())) if !pending => {}
            Poll::Ready(Err(_)) => return Poll::Ready(Err(WriteAborted)),
            Poll::Ready(Ok(())) | Poll::Pending => {
                if shared.poll_disconnect(cx).is_ready() {
                    return Poll::Ready(Err(WriteAborted));
                }
                if ended {
                    // The body has ended and must not be polled again; only the rest of the
                    // output is waited for.
                    *encoder = Encoder::Empty;
                    *body = ResponseBody::empty();
                }
                return Poll::Pending;
            }
        }
    }
}

/// Chooses the framing of the response body.
fn choose_framing(head: &mut http::response::Parts, meta: &RequestMeta) -> Encoder {
    head.headers.remove(TRANSFER_ENCODING);
    if meta.method == Method::HEAD
        || head.status == StatusCode::NO_CONTENT
        || head.status == StatusCode::NOT_MODIFIED
    {
        return Encoder::Empty;
    }
    if let Some(length) = content_length(&head.headers) {
        return Encoder::Length(length);
    }
    head.headers.remove(CONTENT_LENGTH);
    if meta.version == Version::HTTP_10 {
        return Encoder::UntilClose;
    }
    head.headers
        .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    Encoder::Chunked
}

/// Responds to an invalid request, and closes the connection.
async fn refuse(connection: &Connection, response: http::Response<bytes::Bytes>) {
    let (mut head, body) = response.into_parts();
    head.headers
        .insert(CONNECTION, HeaderValue::from_static("close"));
    write_head(connection, Version::HTTP_11, &head);
    connection.lock().stream.output.extend_from_slice(&body);
    let flush = poll_fn(|cx| connection.lock().stream.poll_flush(cx));
    if matches!(timeout(LINGER_TIMEOUT, flush).await, Ok(Ok(()))) {
        linger(connection).await;
    }
}

/// Closes a connection between two requests, with `close_notify`: without it the client would treat
/// the close as a truncation.
async fn close(connection: &Connection) {
    let shutdown = poll_fn(|cx| Pin::new(&mut connection.lock().stream.io).poll_shutdown(cx));
    let _ = timeout(LINGER_TIMEOUT, shutdown).await;
}

/// Closes a connection so that the client can still read the last response.
async fn linger(connection: &Connection) {
    let ended = async {
        poll_fn(|cx| Pin::new(&mut connection.lock().stream.io).poll_shutdown(cx)).await?;
        let mut left = MAX_LINGER_BYTES;
        loop {
            connection.lock().stream.input.clear();
            match fill(connection).await? {
                read if read > 0 && read < left => left -= read,
                _ => return io::Result::Ok(()),
            }
        }
    };
    let _ = timeout(LINGER_TIMEOUT, ended).await;
}
