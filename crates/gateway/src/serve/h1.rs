//! HTTP/1.1 towards a client: one request after the other, each answered
//! before the next is looked at.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, Request, StatusCode, Version};
use skewbridge_h1::{
    Decoder, Encoder, Framing, HeadEnd, HeadError, Piece, RequestHead, parse_request,
    write_headers, write_status_line,
};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate_error_format};
use skewbridge_stream_io::Buffered;
use tokio::io::AsyncWrite;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{ClientIo, ClientResponse, HeaderLimit, Service, UpgradeHandler};
use crate::access_log::AccessLogEntry;
use crate::body::{BodyError, BodySource, Frame, PollFrame, RequestBody, ResponseBody};
use crate::buffer_budget::{ClientLimits, Sample, StallGuard};
use crate::drain::Drain;
use crate::error_response;
use crate::http_message::{CloseConnection, expects_continue};
use crate::metrics::buffers::Eviction;

/// Requests are small: a head and perhaps an object.
const READ_CHUNK: usize = 8 * 1024;

/// What a client may send ahead while its request is being answered. More than
/// that waits in the kernel.
const MAX_PIPELINED: usize = 64 * 1024;

/// After an answer that ends the connection, so much of what the client still
/// sends is read and thrown away, so that a reset does not destroy the answer
/// on its way (RFC 9112, 9.6).
const LINGER_BYTES: usize = 256 * 1024;
const LINGER_TIME: Duration = Duration::from_secs(2);

/// How long a client that has just connected has for its first request once the
/// bridge is leaving: it sends it right behind the handshake.
const FIRST_REQUEST_TIME: Duration = Duration::from_secs(1);

/// Times allowed to a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientTimeouts {
    /// From a request's first byte to the end of its head.
    pub head: Duration,
    /// Between requests.
    pub idle: Duration,
    /// To take a byte of an answer that waits.
    pub stall: Duration,
}

/// Serves one connection to its end.
pub async fn serve<S: Service>(
    io: ClientIo,
    service: S,
    patience: ClientTimeouts,
    mut drain: Drain,
) {
    let limits = service.limits();
    let wire = Wire::new(io);
    if !first_bytes(&wire, patience, &mut drain).await {
        farewell(&wire).await;
        return;
    }
    loop {
        let head = match next_head(&wire, patience, limits, &mut drain).await {
            Next::Head(head) => *head,
            Next::Refused(error) => {
                if error == HeadError::TooLarge {
                    service.met_header_limit(HeaderLimit::RequestTooLarge);
                }
                let response = error_response::bad_head(error);
                service.refused(response.status());
                refuse(&wire, response).await;
                return;
            }
            Next::TooSlow => {
                let response = error_response::slow_head();
                service.refused(response.status());
                refuse(&wire, response).await;
                return;
            }
            Next::Gone => {
                farewell(&wire).await;
                return;
            }
        };
        let asks = Asks::of(&head);
        let request = wire.begin(head);
        // Boxed: what it takes to get an answer is not kept while the answer lasts.
        let call = Box::pin(service.call(request));
        let answer = match answer_or_gone(&wire, call, limits).await {
            Ok(answer) => answer,
            Err(Unserved::Gone | Unserved::Evicted(Eviction::OverBudget)) => return,
            Err(Unserved::Evicted(Eviction::TimedOut)) => {
                refuse(&wire, error_response::slow_body(asks.format)).await;
                return;
            }
        };
        let stall = StallGuard::new(limits, Some(limits.stall_timeout(patience.stall)));
        match reply(&wire, &asks, answer, &drain, stall).await {
            After::NextRequest => {}
            After::Close => {
                linger(&wire).await;
                return;
            }
            After::Switch(switched, record) => {
                if let Some((io, input)) = wire.into_parts() {
                    switched.run(io, input, record).await;
                }
                return;
            }
            After::Cut => return,
        }
    }
}

/// The connection, shared between the loop above and the body of the request
/// that it is answering; both run in one task, so the lock is never contended.
#[derive(Debug, Clone)]
struct Wire(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    stream: Buffered<ClientIo>,
    body: Decoder,
    /// The client waits for `100 Continue` before it sends its body.
    expects_continue: bool,
    /// The client left in the midst of its body.
    gone: bool,
    /// Bytes that the client has sent.
    received: u64,
}

impl Wire {
    fn new(io: ClientIo) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            stream: Buffered::new(io, READ_CHUNK),
            body: Framing::Empty.decoder(),
            expects_continue: false,
            gone: false,
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
            RequestBody::Stream(Box::new(WireBody(self.clone())))
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
                Ok(Some(Piece::Data(data))) => return Poll::Ready(Some(Ok(Frame::Data(data)))),
                Ok(Some(Piece::Trailers(map))) => {
                    return Poll::Ready(Some(Ok(Frame::Trailers(map))));
                }
                Ok(Some(Piece::End)) => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => {
                    return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
                }
            }
            // The interim answer has to leave before the client sends more.
            if let Poll::Ready(Err(error)) = self.stream.poll_flush(cx) {
                return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
            }
            match self.stream.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    self.gone = true;
                    let gone = "the connection was closed".to_owned();
                    return Poll::Ready(Some(Err(BodyError::Client(gone))));
                }
                Poll::Ready(Ok(read)) => self.received += read as u64,
                Poll::Ready(Err(error)) => {
                    self.gone = true;
                    return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
                }
            }
        }
    }

    /// Ready when the client has left while its request is being answered.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.stream.input.len() < MAX_PIPELINED {
            match self.stream.poll_fill(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(read)) => {
                    self.received += read as u64;
                    // Who waits for more of the body has not seen these yet.
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
pub struct WireBody(Wire);

impl BodySource for WireBody {
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

/// Waits for a new client's first request, also when the bridge is leaving:
/// unlike on an idle connection, the client would take a close for a failure
/// and not ask again elsewhere.
async fn first_bytes(wire: &Wire, patience: ClientTimeouts, drain: &mut Drain) -> bool {
    let leaving = async {
        drain.draining().await;
        sleep(FIRST_REQUEST_TIME).await;
    };
    tokio::select! {
        biased;
        filled = timeout(patience.idle, fill(wire)) => matches!(filled, Ok(Ok(read)) if read > 0),
        () = leaving => false,
    }
}

enum Next {
    Head(Box<RequestHead>),
    Refused(HeadError),
    TooSlow,
    Gone,
}

async fn next_head(
    wire: &Wire,
    patience: ClientTimeouts,
    limits: &ClientLimits,
    drain: &mut Drain,
) -> Next {
    let mut guard = StallGuard::new(limits, None);
    let mut end = HeadEnd::default();
    let mut buffered = {
        let mut shared = wire.lock();
        shared.stream.release();
        !shared.stream.input.is_empty()
    };
    if !buffered {
        if drain.is_draining() {
            return Next::Gone;
        }
        let first = async {
            tokio::select! {
                biased;
                filled = fill(wire) => filled,
                () = drain.draining() => Ok(0),
            }
        };
        match timeout(patience.idle, first).await {
            Ok(Ok(read)) if read > 0 => buffered = true,
            _ => return Next::Gone,
        }
    }
    let deadline = Instant::now() + patience.head;
    loop {
        if buffered {
            let mut shared = wire.lock();
            if end.reached(&shared.stream.input) {
                match parse_request(&mut shared.stream.input) {
                    Ok(Some(head)) => return Next::Head(Box::new(head)),
                    Ok(None) => end = HeadEnd::default(),
                    Err(error) => return Next::Refused(error),
                }
            }
        }
        // A head that is not complete counts as long as it waits for the client.
        let filled = poll_fn(|cx| {
            let mut shared = wire.lock();
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
            Ok(Ok(0) | Err(_)) => return Next::Gone,
            Ok(Ok(_)) => buffered = true,
            Err(_) => return Next::TooSlow,
        }
    }
}

async fn fill(wire: &Wire) -> io::Result<usize> {
    poll_fn(|cx| wire.lock().stream.poll_fill(cx)).await
}

/// What of the request decides how its answer is written.
struct Asks {
    method: Method,
    version: Version,
    keep_alive: bool,
    /// In which form it reads a Status about its body.
    format: Format,
    /// The client may go on in another protocol.
    switches: bool,
}

impl Asks {
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

/// Why a request has no answer.
enum Unserved {
    /// The client left first.
    Gone,
    Evicted(Eviction),
}

/// Waits for the answer. Where there is none the request is dropped, which cancels it
/// upstream.
async fn answer_or_gone(
    wire: &Wire,
    mut call: Pin<Box<impl Future<Output = ClientResponse>>>,
    limits: &ClientLimits,
) -> Result<ClientResponse, Unserved> {
    let mut guard = None;
    poll_fn(|cx| {
        if let Poll::Ready(mut answer) = call.as_mut().poll(cx) {
            if !wire.lock().gone {
                return Poll::Ready(Ok(answer));
            }
            answer.record.client_left();
            return Poll::Ready(Err(Unserved::Gone));
        }
        let mut shared = wire.lock();
        if shared.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(Unserved::Gone));
        }
        if shared.body.is_done() {
            guard = None;
            return Poll::Pending;
        }
        // Not before the caller is known: then a client certificate counts.
        let guard =
            guard.get_or_insert_with(|| StallGuard::new(limits, limits.request_body_timeout()));
        let bytes = shared.stream.input.len();
        let sample = || Sample {
            bytes,
            // Otherwise it is upstream that does not take what has arrived.
            waits_for_client: bytes == 0,
        };
        guard
            .poll_evicted(shared.received, sample, cx)
            .map(|eviction| Err(Unserved::Evicted(eviction)))
    })
    .await
}

enum After {
    NextRequest,
    Close,
    Cut,
    Switch(UpgradeHandler, AccessLogEntry),
}

async fn reply(
    wire: &Wire,
    asks: &Asks,
    answer: ClientResponse,
    drain: &Drain,
    mut stall: StallGuard<'_>,
) -> After {
    let ClientResponse {
        response,
        switched,
        mut record,
    } = answer;
    let (mut head, mut body) = response.into_parts();
    if let Some(switched) = switched {
        write_head(wire, Version::HTTP_11, &head);
        return match poll_fn(|cx| wire.lock().stream.poll_flush(cx)).await {
            Ok(()) => After::Switch(switched, record),
            Err(_) => After::Cut,
        };
    }
    let mut encoder = frame(&mut head, asks);
    let closes = head.extensions.remove::<CloseConnection>().is_some();
    let keep = {
        let shared = wire.lock();
        asks.keep_alive
            // What follows a refused upgrade, or CONNECT, is not a request.
            && !asks.switches
            // A body that nobody read would be taken for the next request.
            && shared.body.is_done()
            && encoder != Encoder::UntilClose
            && !drain.is_draining()
            && !closes
    };
    head.headers.remove(CONNECTION);
    if !keep {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("close"));
    } else if asks.version == Version::HTTP_10 {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    }
    wire.lock().expects_continue = false;
    write_head(wire, asks.version, &head);
    let sent = poll_fn(|cx| {
        let sent = poll_send(wire, &mut body, &mut encoder, &mut record, cx);
        let shared = wire.lock();
        if sent.is_ready() || shared.stream.is_flushed() {
            stall.over();
            return sent;
        }
        let sample = || Sample {
            bytes: shared.stream.unsent() + shared.stream.input.len() + body.buffered(),
            waits_for_client: true,
        };
        let evicted = stall.poll_evicted(shared.stream.sent(), sample, cx);
        evicted.map(|_| Err(Unsent))
    })
    .await;
    match sent {
        Ok(()) => {
            record.complete();
            if keep {
                After::NextRequest
            } else {
                After::Close
            }
        }
        // Without the end that was announced the client knows that the answer
        // is not whole.
        Err(Unsent) => After::Cut,
    }
}

fn write_head(wire: &Wire, version: Version, head: &http::response::Parts) {
    let output = &mut wire.lock().stream.output;
    write_status_line(output, version, head.status);
    write_headers(output, &head.headers);
    output.extend_from_slice(b"\r\n");
}

struct Unsent;

/// Moves the answer's body to the client: as much as has arrived goes out at
/// once, and nothing waits for more to come.
fn poll_send(
    wire: &Wire,
    body: &mut ResponseBody,
    encoder: &mut Encoder,
    record: &mut AccessLogEntry,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Unsent>> {
    loop {
        let mut ended = false;
        let mut pending = false;
        while wire.lock().stream.has_room() {
            match body.poll_frame(cx) {
                Poll::Pending => {
                    pending = true;
                    break;
                }
                Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                    record.add_bytes(data.len());
                    // An answer to HEAD has no body, whatever arrives.
                    if *encoder == Encoder::Empty {
                        continue;
                    }
                    if wire.lock().stream.write_data(encoder, data).is_err() {
                        return Poll::Ready(Err(Unsent));
                    }
                }
                Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                    let output = &mut wire.lock().stream.output;
                    if encoder.finish(output, Some(&trailers)).is_err() {
                        return Poll::Ready(Err(Unsent));
                    }
                    ended = true;
                    break;
                }
                Poll::Ready(None) => {
                    let output = &mut wire.lock().stream.output;
                    if encoder.finish(output, None).is_err() {
                        return Poll::Ready(Err(Unsent));
                    }
                    ended = true;
                    break;
                }
                Poll::Ready(Some(Err(_))) => {
                    // What came before the cut still belongs to the client.
                    let _ = wire.lock().stream.poll_flush(cx);
                    return Poll::Ready(Err(Unsent));
                }
            }
        }
        let mut shared = wire.lock();
        match shared.stream.poll_flush(cx) {
            Poll::Ready(Ok(())) if ended => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(())) if !pending => {}
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Unsent)),
            Poll::Ready(Ok(())) | Poll::Pending => {
                if shared.poll_gone(cx).is_ready() {
                    return Poll::Ready(Err(Unsent));
                }
                if ended {
                    // The body is finished and must not be asked again; only
                    // the rest of the output is waited for.
                    *encoder = Encoder::Empty;
                    *body = ResponseBody::empty();
                }
                return Poll::Pending;
            }
        }
    }
}

/// Chooses how the client is told where the body ends.
fn frame(head: &mut http::response::Parts, asks: &Asks) -> Encoder {
    head.headers.remove(TRANSFER_ENCODING);
    if asks.method == Method::HEAD
        || head.status == StatusCode::NO_CONTENT
        || head.status == StatusCode::NOT_MODIFIED
    {
        return Encoder::Empty;
    }
    let length = head
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok());
    if let Some(length) = length {
        return Encoder::Length(length);
    }
    head.headers.remove(CONTENT_LENGTH);
    if asks.version == Version::HTTP_10 {
        return Encoder::UntilClose;
    }
    head.headers
        .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    Encoder::Chunked
}

/// Answers what was not a request, and ends the connection.
async fn refuse(wire: &Wire, response: http::Response<bytes::Bytes>) {
    let (mut head, body) = response.into_parts();
    head.headers
        .insert(CONNECTION, HeaderValue::from_static("close"));
    write_head(wire, Version::HTTP_11, &head);
    wire.lock().stream.output.extend_from_slice(&body);
    let flush = poll_fn(|cx| wire.lock().stream.poll_flush(cx));
    if matches!(timeout(LINGER_TIME, flush).await, Ok(Ok(()))) {
        linger(wire).await;
    }
}

/// Ends a connection between two requests: without TLS's farewell the client
/// would have to take it for cut.
async fn farewell(wire: &Wire) {
    let shutdown = poll_fn(|cx| Pin::new(&mut wire.lock().stream.io).poll_shutdown(cx));
    let _ = timeout(LINGER_TIME, shutdown).await;
}

/// Ends a connection so that the client can still read its last answer.
async fn linger(wire: &Wire) {
    let ended = async {
        poll_fn(|cx| Pin::new(&mut wire.lock().stream.io).poll_shutdown(cx)).await?;
        let mut left = LINGER_BYTES;
        loop {
            wire.lock().stream.input.clear();
            match fill(wire).await? {
                read if read > 0 && read < left => left -= read,
                _ => return io::Result::Ok(()),
            }
        }
    };
    let _ = timeout(LINGER_TIME, ended).await;
}
