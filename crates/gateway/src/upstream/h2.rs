//! HTTP/2 towards upstream: many requests on one connection, which runs in a
//! task of its own.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

use super::pool::Slot;
use super::{Replay, SendError, UpstreamIo, UpstreamResponse};
use crate::body::{BodyError, BodySource, Frame, PollFrame, ResponseBody, poll_stream};
use crate::http_message::expects_continue;
use crate::metrics::Gauge;

/// Requests on one connection: what kube-apiserver allows.
const MAX_STREAMS: usize = 100;

/// What the openapi says while upstream's SETTINGS have not come: no SETTINGS say
/// this (they have 32 bits, and no limit is `usize::MAX`).
const NOT_SAID: usize = usize::MAX - 1;

/// How long upstream's SETTINGS, its first frame (RFC 9113, 3.4), may take.
const SETTINGS_PATIENCE: Duration = Duration::from_secs(10);

/// What upstream may send on one stream before the client has taken it. So
/// much of a stalled client's answer waits in the bridge.
const STREAM_WINDOW: u32 = 128 * 1024;

/// As much as all streams of a connection may hold together, so that stalled
/// clients cannot take the window away from the others.
#[allow(clippy::cast_possible_truncation)] // 100 × 128 KiB
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS as u32;

/// The openapi ends a connection on which many small DATA frames wait, to
/// defend itself against the peer. Watch events are small and clients stall,
/// and this peer is our own kube-apiserver: the windows bound what waits.
const DATA_FRAME_BUDGET: usize = usize::MAX >> 2;

/// What waits in one stream for upstream to take it.
const SEND_BUFFER: usize = 64 * 1024;

/// Answers' header blocks, as large as requests' may be.
const MAX_HEADER_LIST: u32 = 1 << 20;

/// How long upstream may stay silent on `Expect: 100-continue`.
const CONTINUE_PATIENCE: Duration = Duration::from_secs(1);

/// A connection that carries many requests.
#[derive(Debug)]
pub(crate) struct H2Connection {
    send: SendRequest<Bytes>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    active: AtomicUsize,
    /// Takes no new requests: closed, sick, or told GOAWAY.
    over: AtomicBool,
    streams: Gauge,
}

/// Why HTTP/2 did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Protocol(#[from] h2::Error),
    #[error("upstream sent no SETTINGS")]
    NoSettings,
}

/// A place for one request on a connection.
#[derive(Debug)]
pub(crate) struct Stream {
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
        self.0.streams.dec();
    }
}

impl H2Connection {
    /// Starts HTTP/2 on a fresh connection, and waits until upstream has said
    /// how many streams it allows.
    pub(crate) async fn start(
        io: UpstreamIo,
        slot: Slot,
        streams: Gauge,
        (ping, ping_timeout): (Duration, Duration),
    ) -> Result<Self, StartError> {
        let (send, mut connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(NOT_SAID)
            .max_header_list_size(MAX_HEADER_LIST)
            .max_send_buffer_size(SEND_BUFFER)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .handshake(io)
            .await?;
        let state = Arc::new(State {
            active: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            streams,
        });
        let pings = connection.ping_pong();
        let (said, settings) = oneshot::channel();
        let run = {
            let state = state.clone();
            let mut waiting = Some((send.clone(), said));
            async move {
                let run = poll_fn(|cx| {
                    let ended = Pin::new(&mut connection).poll(cx);
                    tell_settings(&mut waiting, cx);
                    ended
                });
                tokio::select! {
                    ended = run => if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to upstream ended");
                    },
                    () = keep_asking(pings, &state, ping, ping_timeout) => {
                        tracing::warn!("upstream did not answer a ping within {ping_timeout:?}; the connection is dropped");
                    }
                }
                state.over.store(true, Ordering::Relaxed);
                drop(slot);
            }
        };
        // Ends by itself: when the last handle is dropped and the last stream
        // is done, or when upstream goes away.
        tokio::spawn(run);
        match timeout(SETTINGS_PATIENCE, settings).await {
            Ok(Ok(())) => Ok(Self { send, state }),
            Ok(Err(_)) | Err(_) => Err(StartError::NoSettings),
        }
    }

    /// A place for a request, if there is one.
    pub(crate) fn reserve(&self) -> Option<Stream> {
        if self.is_over() {
            return None;
        }
        let room = self.send.current_max_send_streams().min(MAX_STREAMS);
        if self.active() >= room {
            return None;
        }
        let mut send = self.send.clone();
        // Whether upstream has said GOAWAY; a fresh handle never waits.
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(Err(_)) = send.poll_ready(&mut cx) {
            self.state.over.store(true, Ordering::Relaxed);
            return None;
        }
        self.state.active.fetch_add(1, Ordering::Relaxed);
        self.state.streams.inc();
        Some(Stream {
            send,
            guard: StreamGuard(self.state.clone(), None),
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.over.load(Ordering::Relaxed)
    }

    pub(crate) fn active(&self) -> usize {
        self.state.active.load(Ordering::Relaxed)
    }
}

/// Tells whoever waits for upstream's SETTINGS that they have come, or ends the
/// connection with the last handle if nobody waits any more.
fn tell_settings(
    waiting: &mut Option<(SendRequest<Bytes>, oneshot::Sender<()>)>,
    cx: &mut Context<'_>,
) {
    let Some((send, said)) = waiting else { return };
    if send.current_max_send_streams() != NOT_SAID {
        if let Some((_, said)) = waiting.take() {
            let _ = said.send(());
        }
    } else if said.poll_closed(cx).is_ready() {
        *waiting = None;
    }
}

/// Returns when upstream has not answered a ping in time.
async fn keep_asking(
    pings: Option<PingPong>,
    state: &State,
    ping: Duration,
    ping_timeout: Duration,
) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(ping).await;
        if state.active.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match timeout(ping_timeout, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection itself says how it ended.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

impl Stream {
    /// Holds this for as long as its request lasts.
    pub(crate) fn holding(mut self, permit: OwnedSemaphorePermit) -> Self {
        self.guard.1 = Some(permit);
        self
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        mut self,
        head: &Parts,
        body: &mut Replay,
    ) -> Result<Answered, SendError> {
        let over = |state: &State, error: &h2::Error| {
            // GOAWAY, or the end: no more requests on this connection.
            state.over.store(true, Ordering::Relaxed);
            SendError::GoneAway(error.to_string())
        };
        if let Err(error) = poll_fn(|cx| self.send.poll_ready(cx)).await {
            return Err(over(&self.guard.0, &error));
        }
        let request = request_of(head)?;
        let (response, stream) = self
            .send
            .send_request(request, body.is_done())
            .map_err(|error| over(&self.guard.0, &error))?;
        let mut sending = Sending {
            stream,
            waiting: None,
            done: body.is_done(),
            client: None,
            hold_until: (!body.is_done() && expects_continue(&head.headers))
                .then(|| Box::pin(tokio::time::sleep(CONTINUE_PATIENCE))),
        };
        let response = poll_answer(response, &mut sending, body)
            .await
            .map_err(|error| self.judge(error))?;
        Ok(Answered {
            response,
            sending,
            send: self.send,
            guard: self.guard,
        })
    }

    fn judge(&self, broken: Broken) -> SendError {
        let error = match broken {
            Broken::Client(cause) => return SendError::Client(cause),
            Broken::Upstream(error) => error,
        };
        // A remote GOAWAY reaches a stream as its error only if the stream is
        // above the last one that upstream has looked at (RFC 9113, 6.8);
        // REFUSED_STREAM says the same of one stream (8.7).
        let goaway = error.is_go_away() && error.is_remote();
        let refused =
            error.is_reset() && error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        if goaway || !error.is_reset() {
            self.guard.0.over.store(true, Ordering::Relaxed);
        }
        if goaway {
            SendError::GoneAway(error.to_string())
        } else if refused {
            SendError::NotProcessed(error.to_string())
        } else if error.is_library() {
            SendError::BadAnswer(error.to_string())
        } else {
            SendError::CutOff(error.to_string())
        }
    }
}

/// The request as HTTP/2 writes it: Host becomes `:authority`.
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

/// The part of a request that has not left yet.
struct Sending {
    stream: SendStream<Bytes>,
    waiting: Option<Bytes>,
    done: bool,
    client: Option<String>,
    /// The body waits for `100 Continue`.
    hold_until: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl std::fmt::Debug for Sending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sending")
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

impl Sending {
    /// Moves the body on, as far as it goes now. Errors of the stream are left
    /// to whoever waits for the answer.
    fn poll(&mut self, body: &mut Replay, cx: &mut Context<'_>) {
        if let Some(hold) = &mut self.hold_until {
            if hold.as_mut().poll(cx).is_pending() {
                return;
            }
            self.hold_until = None;
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
                    // A request that was cut must not look complete.
                    self.stream.send_reset(Reason::CANCEL);
                    self.client = Some(error.to_string());
                    self.done = true;
                }
            }
        }
    }
}

enum Broken {
    Client(String),
    Upstream(h2::Error),
}

async fn poll_answer(
    mut response: ResponseFuture,
    sending: &mut Sending,
    body: &mut Replay,
) -> Result<Response<RecvStream>, Broken> {
    poll_fn(|cx| {
        // Others may come before it, and the final answer would skip them all.
        while sending.hold_until.is_some()
            && let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx)
        {
            if interim.status() == StatusCode::CONTINUE {
                sending.hold_until = None;
            }
        }
        sending.poll(body, cx);
        if let Some(cause) = sending.client.take() {
            return Poll::Ready(Err(Broken::Client(cause)));
        }
        std::pin::Pin::new(&mut response)
            .poll(cx)
            .map_err(Broken::Upstream)
    })
    .await
}

/// An answer's head with its stream.
pub(crate) struct Answered {
    response: Response<RecvStream>,
    sending: Sending,
    send: SendRequest<Bytes>,
    guard: StreamGuard,
}

impl Answered {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Whether upstream has sent GOAWAY on this connection.
    pub(crate) fn is_going_away(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.send.poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// The reply, which from here on also carries the rest of the request.
    pub(crate) fn into_reply(self, request: Replay) -> UpstreamResponse {
        let Self {
            response,
            sending,
            guard,
            send: _,
        } = self;
        let status = response.status();
        let response = response.map(|stream| {
            if stream.is_end_stream() {
                ResponseBody::empty()
            } else {
                // What still waits for `100 Continue` is not wanted any more.
                let wanted = !sending.done
                    && sending.hold_until.is_none()
                    && request.is_wanted_after(status);
                let rest = wanted.then(|| Box::new((sending, request)));
                ResponseBody::stream(H2Body {
                    stream,
                    rest,
                    _guard: guard,
                })
            }
        });
        UpstreamResponse::Response(response)
    }
}

/// The body of an answer, and what of the request is still on its way.
#[derive(Debug)]
pub struct H2Body {
    stream: RecvStream,
    /// Boxed: watches are many, and have none.
    rest: Option<Box<(Sending, Replay)>>,
    _guard: StreamGuard,
}

impl BodySource for H2Body {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        self.poll_request(cx);
        let polled = poll_stream(&mut self.stream, cx, BodyError::Upstream);
        if polled.is_ready() && self.stream.is_end_stream() {
            // The answer is complete: the rest of the request is not wanted any more.
            self.rest = None;
        }
        polled
    }

    /// Moves the rest of the request on; upstream resets the stream when it does not want
    /// it any more.
    fn poll_request(&mut self, cx: &mut Context<'_>) {
        let Some((sending, request)) = self.rest.as_deref_mut() else {
            return;
        };
        sending.poll(request, cx);
        if sending.done || sending.stream.poll_reset(cx).is_ready() {
            self.rest = None;
        }
    }

    fn buffered(&mut self) -> usize {
        let rest = self.rest.as_deref_mut();
        let rest = rest.map_or(0, |(sending, request)| {
            sending.waiting.as_ref().map_or(0, Bytes::len) + request.buffered()
        });
        self.stream.flow_control().used_capacity() + rest
    }

    fn is_done(&self) -> bool {
        self.stream.is_end_stream()
    }
}
