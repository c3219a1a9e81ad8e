//! HTTP/2 client connection: concurrent requests on one connection, which has its own task.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use skewbridge_k8s_api::forwarding_headers;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

use super::connector::{ConnectionCredential, ConnectionGuard, Keepalive, PoolMetrics};
use super::{ReplayBody, SendError};
use crate::body::{BodyError, BodySource, Frame, PollFrame, ResponseBody, poll_stream};
use crate::message_headers::expects_continue;

/// Requests on one connection: what kube-apiserver allows.
const MAX_STREAMS: u32 = 100;

/// The value that the h2 crate reports until the server's SETTINGS arrive. SETTINGS cannot have it:
/// they have 32 bits, and no limit is `usize::MAX`.
const SETTINGS_PENDING: usize = usize::MAX - 1;

/// Timeout for the server's SETTINGS, its first frame (RFC 9113, 3.4).
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);

/// Effectively disables the h2 crate's limit on buffered small DATA frames, which would close the
/// connection. Watch events are small and clients stall; the flow-control windows bound the buffers.
const DATA_FRAME_BUDGET: usize = usize::MAX >> 2;

/// Send buffer of a stream.
const MAX_SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Maximum header list of a response, the same as for requests.
const MAX_HEADER_LIST_BYTES: u32 = 1 << 20;

/// Timeout for a reaction to `Expect: 100-continue`.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection for concurrent requests.
#[derive(Debug)]
pub(super) struct H2Connection {
    send: SendRequest<Bytes>,
    state: Arc<State>,
}

struct State {
    active: AtomicUsize,
    /// Accepts no new requests: closed, ping timeout, or GOAWAY received.
    over: AtomicBool,
    credential: Option<Arc<dyn ConnectionCredential>>,
    metrics: Arc<dyn PoolMetrics>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("active", &self.active)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

/// Why HTTP/2 did not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Protocol(#[from] h2::Error),
    #[error("upstream sent no SETTINGS")]
    NoSettings,
}

/// A reserved stream for one request.
#[derive(Debug)]
pub(super) struct Stream {
    send: SendRequest<Bytes>,
    guard: StreamGuard,
}

#[derive(Debug)]
struct StreamGuard(
    Arc<State>,
    /// Held by a request with large headers.
    #[allow(dead_code)] // dropped with the stream
    Option<OwnedSemaphorePermit>,
);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.stream_closed();
    }
}

impl H2Connection {
    /// Starts HTTP/2 on a new connection, and waits for the stream limit of the server.
    pub(super) async fn start(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        credential: Option<Arc<dyn ConnectionCredential>>,
        guard: ConnectionGuard,
        metrics: Arc<dyn PoolMetrics>,
        (keepalive, stream_window): (Keepalive, u32),
    ) -> Result<Self, StartError> {
        let (send, mut connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(stream_window)
            .initial_connection_window_size(stream_window.saturating_mul(MAX_STREAMS))
            .initial_max_send_streams(SETTINGS_PENDING)
            .max_header_list_size(MAX_HEADER_LIST_BYTES)
            .max_send_buffer_size(MAX_SEND_BUFFER_BYTES)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .handshake(io)
            .await?;
        let state = Arc::new(State {
            active: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            credential,
            metrics,
        });
        let pings = connection.ping_pong();
        let (settings_received, settings) = oneshot::channel();
        let run = {
            let state = state.clone();
            let mut waiting = Some((send.clone(), settings_received));
            async move {
                let run = poll_fn(|cx| {
                    let ended = Pin::new(&mut connection).poll(cx);
                    notify_settings(&mut waiting, cx);
                    ended
                });
                tokio::select! {
                    ended = run => if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to the server ended");
                    },
                    () = ping_until_unanswered(pings, &state, keepalive) => {
                        let timeout = keepalive.ping_timeout;
                        tracing::warn!("the server did not answer a ping within {timeout:?}; the connection is dropped");
                    }
                }
                state.over.store(true, Ordering::Relaxed);
                drop(guard);
            }
        };
        // The task ends when the last handle is dropped and the last stream is done, or when the server
        // disconnects.
        tokio::spawn(run);
        match timeout(SETTINGS_TIMEOUT, settings).await {
            Ok(Ok(())) => Ok(Self { send, state }),
            Ok(Err(_)) | Err(_) => Err(StartError::NoSettings),
        }
    }

    /// Reserves a stream, if the limit allows.
    pub(super) fn reserve(&self) -> Option<Stream> {
        if self.is_closed() {
            return None;
        }
        let room = self
            .send
            .current_max_send_streams()
            .min(MAX_STREAMS as usize);
        if self.active() >= room {
            return None;
        }
        let mut send = self.send.clone();
        // Detects a GOAWAY; a new handle is always ready.
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(Err(_)) = send.poll_ready(&mut cx) {
            self.state.over.store(true, Ordering::Relaxed);
            return None;
        }
        self.state.active.fetch_add(1, Ordering::Relaxed);
        self.state.metrics.stream_opened();
        Some(Stream {
            send,
            guard: StreamGuard(self.state.clone(), None),
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.over.load(Ordering::Relaxed)
    }

    /// Whether the credential it was opened with is valid. The request for which the connection was
    /// opened is sent even if it is not.
    pub(super) fn is_valid(&self) -> bool {
        let credential = self.state.credential.as_ref();
        credential.is_none_or(|credential| credential.is_valid())
    }

    pub(super) fn active(&self) -> usize {
        self.state.active.load(Ordering::Relaxed)
    }
}

/// Notifies the task that waits for the server's SETTINGS. If that task has ended, drops the last
/// handle, which ends the connection.
fn notify_settings(
    waiting: &mut Option<(SendRequest<Bytes>, oneshot::Sender<()>)>,
    cx: &mut Context<'_>,
) {
    let Some((send, received)) = waiting else {
        return;
    };
    if send.current_max_send_streams() != SETTINGS_PENDING {
        if let Some((_, received)) = waiting.take() {
            let _ = received.send(());
        }
    } else if received.poll_closed(cx).is_ready() {
        *waiting = None;
    }
}

/// Returns when the server has not answered a ping in time.
async fn ping_until_unanswered(pings: Option<PingPong>, state: &State, keepalive: Keepalive) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(keepalive.ping_interval).await;
        if state.active.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match timeout(keepalive.ping_timeout, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection itself reports how it ended.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

impl Stream {
    /// The credential that its connection was opened with.
    pub(super) fn credential(&self) -> Option<Arc<dyn ConnectionCredential>> {
        self.guard.0.credential.clone()
    }

    /// Keeps the permit until the request is complete.
    pub(super) fn with_permit(mut self, permit: OwnedSemaphorePermit) -> Self {
        self.guard.1 = Some(permit);
        self
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(
        mut self,
        head: &Parts,
        body: &mut ReplayBody,
    ) -> Result<H2Response, SendError> {
        let over = |state: &State, error: &h2::Error| {
            // GOAWAY, or the end: no more requests on this connection.
            state.over.store(true, Ordering::Relaxed);
            SendError::GoAway(error.to_string())
        };
        if let Err(error) = poll_fn(|cx| self.send.poll_ready(cx)).await {
            return Err(over(&self.guard.0, &error));
        }
        let request = request_of(head)?;
        let (response, stream) = self
            .send
            .send_request(request, body.is_done())
            .map_err(|error| over(&self.guard.0, &error))?;
        let mut sender = RequestSender {
            stream,
            waiting: None,
            done: body.is_done(),
            client: None,
            awaiting_continue: (!body.is_done() && expects_continue(&head.headers))
                .then(|| Box::pin(tokio::time::sleep(CONTINUE_TIMEOUT))),
        };
        let response = poll_response(response, &mut sender, body)
            .await
            .map_err(|error| self.send_error(error))?;
        Ok(H2Response {
            response,
            sender,
            send: self.send,
            guard: self.guard,
        })
    }

    fn send_error(&self, failure: H2Failure) -> SendError {
        let error = match failure {
            H2Failure::Client(cause) => return SendError::Client(cause),
            H2Failure::Upstream(error) => error,
        };
        // A remote GOAWAY reaches a stream as its error only if the stream is above the last one
        // that the server has processed (RFC 9113, 6.8); REFUSED_STREAM means the same for one
        // stream (8.7).
        let goaway = error.is_go_away() && error.is_remote();
        let refused =
            error.is_reset() && error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        if goaway || !error.is_reset() {
            self.guard.0.over.store(true, Ordering::Relaxed);
        }
        if goaway {
            SendError::GoAway(error.to_string())
        } else if refused {
            SendError::NotProcessed(error.to_string())
        } else if error.is_library() {
            SendError::InvalidResponse(error.to_string())
        } else {
            SendError::ConnectionLost(error.to_string())
        }
    }
}

/// The request in HTTP/2 form: Host becomes `:authority`.
fn request_of(head: &Parts) -> Result<Request<()>, SendError> {
    let invalid = |cause: &str| SendError::Client(cause.to_owned());
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(Scheme::HTTPS);
    uri.path_and_query = head.uri.path_and_query().cloned();
    uri.authority = match head.headers.get(HOST) {
        Some(host) => Some(
            Authority::try_from(host.as_bytes())
                .map_err(|_| invalid("Host is not an authority"))?,
        ),
        None => head.uri.authority().cloned(),
    };
    let mut request = Request::new(());
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = Uri::from_parts(uri).map_err(|error| invalid(&error.to_string()))?;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = head.headers.clone();
    for name in [HOST, CONNECTION, TRANSFER_ENCODING] {
        request.headers_mut().remove(name);
    }
    Ok(request)
}

/// Sends a request: the part that has not been sent yet.
struct RequestSender {
    stream: SendStream<Bytes>,
    waiting: Option<Bytes>,
    done: bool,
    client: Option<String>,
    /// The body waits for `100 Continue`.
    awaiting_continue: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl std::fmt::Debug for RequestSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestSender")
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl RequestSender {
    /// Sends as much of the body as can be sent now. Errors of the stream reach the task that
    /// waits for the response.
    fn poll(&mut self, body: &mut ReplayBody, cx: &mut Context<'_>) {
        if let Some(hold) = &mut self.awaiting_continue {
            if hold.as_mut().poll(cx).is_pending() {
                return;
            }
            self.awaiting_continue = None;
        }
        while !self.done {
            if let Some(data) = &mut self.waiting {
                match self.stream.poll_capacity(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Some(Ok(room))) => {
                        let now = data.split_to(room.min(data.len()));
                        if data.is_empty() {
                            self.waiting = None;
                        }
                        if self.stream.send_data(now, false).is_err() {
                            self.done = true;
                        }
                    }
                    Poll::Ready(_) => self.done = true,
                }
                continue;
            }
            match body.poll_frame(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                    if !data.is_empty() {
                        self.stream.reserve_capacity(data.len());
                        self.waiting = Some(data);
                    }
                }
                Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                    let _ = self.stream.send_trailers(trailers);
                    self.done = true;
                }
                Poll::Ready(None) => {
                    let _ = self.stream.send_data(Bytes::new(), true);
                    self.done = true;
                }
                Poll::Ready(Some(Err(error))) => {
                    // A truncated request must not appear complete.
                    self.stream.send_reset(Reason::CANCEL);
                    self.client = Some(error.to_string());
                    self.done = true;
                }
            }
        }
    }
}

/// Why a request has no response.
enum H2Failure {
    Client(String),
    Upstream(h2::Error),
}

async fn poll_response(
    mut response: ResponseFuture,
    sender: &mut RequestSender,
    body: &mut ReplayBody,
) -> Result<Response<RecvStream>, H2Failure> {
    poll_fn(|cx| {
        // Other interim responses may precede it, and awaiting the final response would skip them.
        while sender.awaiting_continue.is_some()
            && let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx)
        {
            if interim.status() == StatusCode::CONTINUE {
                sender.awaiting_continue = None;
            }
        }
        sender.poll(body, cx);
        if let Some(cause) = sender.client.take() {
            return Poll::Ready(Err(H2Failure::Client(cause)));
        }
        std::pin::Pin::new(&mut response)
            .poll(cx)
            .map_err(H2Failure::Upstream)
    })
    .await
}

/// The head of a response, with its stream.
pub(super) struct H2Response {
    response: Response<RecvStream>,
    sender: RequestSender,
    send: SendRequest<Bytes>,
    guard: StreamGuard,
}

impl H2Response {
    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Whether the server has sent GOAWAY on this connection.
    pub(super) fn is_going_away(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.send.poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// The response, whose body from here on also sends the rest of the request.
    pub(super) fn into_response(self, request: ReplayBody) -> Response<ResponseBody> {
        let Self {
            response,
            sender,
            guard,
            send: _,
        } = self;
        let status = response.status();
        response.map(|stream| {
            if stream.is_end_stream() {
                ResponseBody::empty()
            } else {
                // A body that still waits for `100 Continue` is no longer needed.
                let wanted = !sender.done
                    && sender.awaiting_continue.is_none()
                    && request.is_wanted_after(status);
                let rest = wanted.then(|| Box::new((sender, request)));
                ResponseBody::stream(H2Body {
                    stream,
                    rest,
                    _guard: guard,
                })
            }
        })
    }
}

/// The response body, which also sends the rest of the request.
#[derive(Debug)]
struct H2Body {
    stream: RecvStream,
    /// Boxed: watches are numerous and have no request body.
    rest: Option<Box<(RequestSender, ReplayBody)>>,
    _guard: StreamGuard,
}

impl BodySource for H2Body {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        self.poll_request(cx);
        let mut polled = poll_stream(&mut self.stream, cx, BodyError::Upstream);
        if let Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) = &mut polled {
            forwarding_headers::remove_hop_by_hop(trailers);
            trailers.remove(CONTENT_LENGTH);
        }
        if polled.is_ready() && self.stream.is_end_stream() {
            // The response is complete: the rest of the request is no longer needed.
            self.rest = None;
        }
        polled
    }

    /// Continues sending the request. The server resets the stream if it no longer reads it.
    fn poll_request(&mut self, cx: &mut Context<'_>) {
        let Some((sender, request)) = self.rest.as_deref_mut() else {
            return;
        };
        sender.poll(request, cx);
        if sender.done || sender.stream.poll_reset(cx).is_ready() {
            self.rest = None;
        }
    }

    fn buffered(&mut self) -> usize {
        let rest = self.rest.as_deref_mut();
        let rest = rest.map_or(0, |(sender, request)| {
            sender.waiting.as_ref().map_or(0, Bytes::len) + request.buffered()
        });
        self.stream.flow_control().used_capacity() + rest
    }

    fn is_done(&self) -> bool {
        self.stream.is_end_stream()
    }
}
