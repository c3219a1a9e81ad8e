//! HTTP/2 server connection: a task per stream, and one for the connection, which outlives them.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use skewbridge_k8s_api::content_negotiation::{Format, negotiate_error_format};
use skewbridge_k8s_api::status::Status;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::received_frames::ReceivedFrames;
use super::{ClientIo, ClientResponse, ClientTimeouts, ResponseRecord, Service};
use crate::body::{
    BodyError, BodySource, Frame, PollFrame, RequestBody, ResponseBody, poll_stream,
};
use crate::buffer_budget::{ClientLimits, Eviction, Sample, StallGuard};
use crate::close_connection::CloseConnection;
use crate::drain::Drain;
use crate::error_response;
use crate::header_bounds::{
    ExpansionDecision, HeaderCredit, HeaderLimit, MAX_HEADER_LIST_BYTES, MAX_JOINED_COOKIE_BYTES,
    list_bytes,
};
use crate::http1::MAX_FIELDS;
use crate::message_headers::expects_continue;

/// Flow-control window of a stream: kube-apiserver's (its 99th percentile of object sizes).
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// Flow-control window of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// The same for an unauthenticated client: the default and minimum of the protocol. It bounds the
/// memory that unauthenticated clients can use.
const UNAUTHENTICATED_CONNECTION_WINDOW_BYTES: u32 = 65_535;

/// Memory of a stream besides its buffers: its task, its state in the h2 crate and its access log
/// entry. Stalled streams with short responses use little else.
const STREAM_STATE_BYTES: usize = 4 * 1024;

/// Send buffer of a stream.
const MAX_SEND_BUFFER_BYTES: usize = 64 * 1024;

/// The h2 crate's own limit on header lists. It is above ours, so that a slightly too large list is
/// answered with a Status.
const MAX_DECODED_HEADER_LIST_BYTES: u32 = 2 << 20;

/// Maximum number of streams that the client has reset and that were not accepted yet. More is the
/// rapid reset attack (CVE-2023-44487), and the connection is closed.
const MAX_PENDING_RESETS: usize = 20;

/// Maximum number of streams reset because of protocol errors, per connection.
const MAX_ERROR_RESETS: usize = 256;

/// Streams that a client reset before the response, per connection: a slow rapid reset attack. The
/// connection is closed at this number, if they are the majority.
const MAX_EARLY_RESETS: usize = 500;

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

/// Counts the streams of a connection, and records since when there are none.
#[derive(Debug, Clone)]
struct StreamCounter(Arc<ActiveStreams>);

#[derive(Debug)]
struct ActiveStreams {
    count: AtomicUsize,
    opened: AtomicUsize,
    reset_early: AtomicUsize,
    idle_since: Mutex<Instant>,
    /// A stream has found that the client has authenticated.
    authenticated: AtomicBool,
    /// The connection closes after the responses in flight.
    closing: AtomicBool,
    /// Wakes the connection's own task.
    changed: ConnectionWaker,
}

/// Wakes the task of the connection. The task polls it for each frame and is notified twice per
/// connection, so it registers once, and an unset flag costs one load.
#[derive(Debug, Default)]
struct ConnectionWaker {
    is_set: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl ConnectionWaker {
    fn notify(&self) {
        self.is_set.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = &*task {
            task.wake_by_ref();
        }
    }

    /// `registered` is the task that was registered last.
    fn poll(&self, registered: &mut Option<Waker>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker();
        if !registered.as_ref().is_some_and(|it| it.will_wake(waker)) {
            let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            *registered = Some(waker.clone());
            task.clone_from(registered);
        }
        if self.is_set.load(Ordering::Relaxed) && self.is_set.swap(false, Ordering::Acquire) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Default for StreamCounter {
    fn default() -> Self {
        Self(Arc::new(ActiveStreams {
            count: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            reset_early: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            authenticated: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            changed: ConnectionWaker::default(),
        }))
    }
}

impl StreamCounter {
    fn begin(&self) -> ActiveStream {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        ActiveStream(self.clone())
    }

    fn is_reset_flood(&self) -> bool {
        let early = self.0.reset_early.load(Ordering::Relaxed);
        early >= MAX_EARLY_RESETS && early > self.0.opened.load(Ordering::Relaxed) / 2
    }

    fn is_closing(&self) -> bool {
        self.0.closing.load(Ordering::Relaxed)
    }

    fn idle_since(&self) -> Option<Instant> {
        (self.0.count.load(Ordering::Relaxed) == 0).then(|| {
            *self
                .0
                .idle_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        })
    }
}

#[derive(Debug)]
struct ActiveStream(StreamCounter);

impl ActiveStream {
    /// The connection's task widens the window once the client has authenticated.
    fn note_authentication(&self, limits: &ClientLimits) {
        let streams = &self.0.0;
        if limits.is_authenticated()
            && !streams.authenticated.load(Ordering::Relaxed)
            && !streams.authenticated.swap(true, Ordering::Relaxed)
        {
            streams.changed.notify();
        }
    }

    fn close_connection(&self) {
        self.0.0.closing.store(true, Ordering::Relaxed);
        self.0.0.changed.notify();
    }

    fn reset_early(&self) {
        self.0.0.reset_early.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        let streams = &self.0.0;
        if streams.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            *streams
                .idle_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }
}

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
        let body = StreamBody {
            stream: IncomingStream::new(stream),
            continues: expects_continue(&head.headers).then(|| respond.clone()),
        };
        incoming = Some(Incoming::new(&body, limits, &head.headers));
        RequestBody::Stream(Box::new(body))
    };
    // Boxed: the state that produces a response is freed while the response is sent.
    let mut call = Box::pin(service.call(Request::from_parts(head, body)));
    let answered = poll_fn(|cx| {
        // A reset or disconnect of the client is checked first: the end of its body would otherwise
        // be answered as a malformed request.
        if lock(&respond).send.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(NoResponse::Reset));
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
        Err(NoResponse::Reset) => {
            active.reset_early();
            return;
        }
        Err(NoResponse::Evicted(eviction, format)) => return evict(&respond, eviction, format),
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

fn check_header_size(fields: usize, size: usize) -> Result<(), Status> {
    if fields > MAX_FIELDS || size > MAX_HEADER_LIST_BYTES {
        return Err(Status::header_fields_too_large(format!(
            "the request's headers are larger than {MAX_HEADER_LIST_BYTES} bytes or more than {MAX_FIELDS}"
        )));
    }
    Ok(())
}

/// RFC 9113, 8.3.1: `:authority` replaces Host; if both are present and differ, the request is
/// rejected.
fn check_authority(head: &mut http::request::Parts) -> Result<(), &'static str> {
    let mut hosts = head.headers.get_all(HOST).iter();
    match (head.uri.authority(), hosts.next(), hosts.next()) {
        (_, _, Some(_)) => return Err("more than one Host"),
        (Some(authority), Some(host), None) if authority.as_str().as_bytes() != host.as_bytes() => {
            return Err("Host differs from :authority");
        }
        (Some(authority), _, None) => {
            let host =
                HeaderValue::from_str(authority.as_str()).map_err(|_| "invalid :authority")?;
            head.headers.insert(HOST, host);
        }
        (None, None, None) => return Err("missing :authority"),
        (None, Some(_), None) => {}
    }
    Ok(())
}

/// RFC 9113, 8.2.3: joins the fields of `Cookie`, as HTTP/1.1 requires.
fn join_cookies<S: Service>(head: &mut http::request::Parts, service: &S) -> Result<(), Status> {
    let crumbs: Vec<_> = head.headers.get_all(COOKIE).iter().collect();
    if crumbs.len() > 1 {
        let joined = crumbs
            .iter()
            .map(|crumb| crumb.as_bytes())
            .collect::<Vec<_>>()
            .join(&b"; "[..]);
        if joined.len() > MAX_JOINED_COOKIE_BYTES {
            service.met_header_limit(HeaderLimit::CookieTooLarge);
            return Err(Status::header_fields_too_large(format!(
                "the request's Cookie is larger than {MAX_JOINED_COOKIE_BYTES} bytes"
            )));
        }
        let mut joined =
            HeaderValue::from_bytes(&joined).map_err(|_| Status::bad_request("invalid Cookie"))?;
        joined.set_sensitive(true);
        head.headers.insert(COOKIE, joined);
    }
    Ok(())
}

/// Rejects values that the h2 crate accepts and an HTTP/1.1 server may interpret differently: a
/// repeated Content-Length, and an empty one.
fn check_length(head: &http::request::Parts) -> Result<(), &'static str> {
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (_, Some(_)) => Err("more than one Content-Length"),
        (Some(length), None) if length.is_empty() => Err("invalid Content-Length"),
        _ => Ok(()),
    }
}

type SharedRespond = Arc<Mutex<Responder>>;

/// Sends the response of a stream, and `100 Continue` before it.
struct Responder {
    send: SendResponse<Bytes>,
    answered: bool,
}

fn lock(respond: &SharedRespond) -> std::sync::MutexGuard<'_, Responder> {
    respond.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send_head(
    respond: &SharedRespond,
    response: Response<()>,
    end: bool,
) -> Result<SendStream<Bytes>, h2::Error> {
    let mut respond = lock(respond);
    respond.answered = true;
    respond.send.send_response(response, end)
}

struct WriteAborted;

/// Forwards a body to a stream, within the client's flow-control window.
async fn pump(
    body: &mut ResponseBody,
    stream: &mut SendStream<Bytes>,
    record: &mut impl ResponseRecord,
    mut stall: StallGuard<'_>,
) -> Result<(), WriteAborted> {
    let mut waiting: Option<Bytes> = None;
    let mut accepted = 0;
    poll_fn(|cx| {
        loop {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Err(WriteAborted));
            }
            let Some(data) = &mut waiting else {
                match body.poll_frame(cx) {
                    Poll::Pending => {
                        // The client has received everything: a watch may stay idle for hours.
                        stall.over();
                        return Poll::Pending;
                    }
                    Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                        record.add_bytes(data.len());
                        if !data.is_empty() {
                            stream.reserve_capacity(data.len());
                            waiting = Some(data);
                        }
                        continue;
                    }
                    Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                        return Poll::Ready(
                            stream.send_trailers(trailers).map_err(|_| WriteAborted),
                        );
                    }
                    Poll::Ready(None) => {
                        let end = stream.send_data(Bytes::new(), true);
                        return Poll::Ready(end.map_err(|_| WriteAborted));
                    }
                    Poll::Ready(Some(Err(_))) => {
                        // An end without END_STREAM: the client knows that the response is
                        // truncated.
                        stream.send_reset(Reason::INTERNAL_ERROR);
                        return Poll::Ready(Err(WriteAborted));
                    }
                }
            };
            let room = match stream.poll_capacity(cx) {
                Poll::Pending => {
                    body.poll_request(cx);
                    let sample = || Sample {
                        // At most this much of the accepted data is still unsent.
                        bytes: data.len()
                            + body.buffered()
                            + output_bytes(accepted)
                            + STREAM_STATE_BYTES,
                        waits_for_client: true,
                    };
                    return stall.poll_evicted(accepted, sample, cx).map(|eviction| {
                        stream.send_reset(match eviction {
                            Eviction::TimedOut => Reason::CANCEL,
                            Eviction::OverBudget => Reason::ENHANCE_YOUR_CALM,
                        });
                        Err(WriteAborted)
                    });
                }
                Poll::Ready(Some(Ok(room))) => room,
                Poll::Ready(_) => return Poll::Ready(Err(WriteAborted)),
            };
            let now = data.split_to(room.min(data.len()));
            accepted += now.len() as u64;
            let last = data.is_empty() && body.is_done();
            if data.is_empty() {
                waiting = None;
            }
            if stream.send_data(now, last).is_err() {
                return Poll::Ready(Err(WriteAborted));
            }
            if last {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await
}

/// Resets a stream, or responds with a Status, before the request is answered.
fn evict(respond: &SharedRespond, eviction: Eviction, format: Format) {
    match eviction {
        Eviction::OverBudget => lock(respond).send.send_reset(Reason::ENHANCE_YOUR_CALM),
        Eviction::TimedOut => {
            let (head, body) = error_response::slow_body(format).into_parts();
            if let Ok(mut stream) = send_head(respond, Response::from_parts(head, ()), false) {
                let _ = stream.send_data(body, true);
            }
        }
    }
}

/// The maximum of the accepted bytes that can be unsent.
fn output_bytes(accepted: u64) -> usize {
    usize::try_from(accepted).map_or(MAX_SEND_BUFFER_BYTES, |accepted| {
        accepted.min(MAX_SEND_BUFFER_BYTES)
    })
}

/// Why a request has no answer.
enum NoResponse {
    /// The client reset the stream or disconnected.
    Reset,
    /// Evicted; the client gets a Status in this format.
    Evicted(Eviction, Format),
}

/// The request body while the response is pending.
struct Incoming<'a> {
    stream: IncomingStream,
    limits: &'a ClientLimits,
    guard: Option<StallGuard<'a>>,
    /// The negotiated format of error responses.
    format: Format,
}

impl<'a> Incoming<'a> {
    fn new(body: &StreamBody, limits: &'a ClientLimits, headers: &HeaderMap) -> Self {
        Self {
            stream: body.stream.clone(),
            limits,
            guard: None,
            format: negotiate_error_format(headers),
        }
    }

    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<NoResponse> {
        if self.stream.is_done() {
            self.guard = None;
            return Poll::Pending;
        }
        // Not before the caller is authenticated, by its client certificate or otherwise.
        let guard = self.guard.get_or_insert_with(|| {
            StallGuard::new(self.limits, self.limits.request_body_timeout())
        });
        let sample = || {
            let bytes = self.stream.buffered();
            Sample {
                bytes,
                // Otherwise upstream does not read the received data.
                waits_for_client: bytes == 0,
            }
        };
        let evicted = guard.poll_evicted(self.stream.bytes_read(), sample, cx);
        evicted.map(|eviction| NoResponse::Evicted(eviction, self.format))
    }
}

/// The receiving half of a stream, shared with the task that watches it.
#[derive(Clone)]
struct IncomingStream(Arc<(Mutex<RecvStream>, AtomicU64)>);

impl IncomingStream {
    fn new(stream: RecvStream) -> Self {
        Self(Arc::new((Mutex::new(stream), AtomicU64::new(0))))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RecvStream> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_frame(&self, cx: &mut Context<'_>) -> PollFrame {
        let polled = poll_stream(&mut self.lock(), cx, BodyError::Client);
        if let Poll::Ready(Some(Ok(Frame::Data(data)))) = &polled {
            self.0.1.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        polled
    }

    /// Bytes that have been read.
    fn bytes_read(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }

    /// Bytes that have arrived and have not been read.
    fn buffered(&self) -> usize {
        self.lock().flow_control().used_capacity()
    }

    fn is_done(&self) -> bool {
        self.lock().is_end_stream()
    }
}

/// The body of a request on a stream.
pub struct StreamBody {
    stream: IncomingStream,
    /// Sends `100 Continue` before the first byte is read.
    continues: Option<SharedRespond>,
}

impl std::fmt::Debug for StreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamBody").finish_non_exhaustive()
    }
}

impl BodySource for StreamBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if let Some(respond) = self.continues.take() {
            let mut respond = lock(&respond);
            // An interim response after the final one violates the protocol.
            if !respond.answered {
                let mut interim = Response::new(());
                *interim.status_mut() = StatusCode::CONTINUE;
                let _ = respond.send.send_informational(interim);
            }
        }
        self.stream.poll_frame(cx)
    }

    fn buffered(&mut self) -> usize {
        self.stream.buffered()
    }

    fn is_done(&self) -> bool {
        self.stream.is_done()
    }
}
