//! HTTP/2 towards upstream: many requests on one connection, which runs in a task
//! of its own.

use std::future::poll_fn;
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
use http::{Request, Response, Uri, Version};
use skewbridge_client::Stream;
use tokio::time::{sleep, timeout};

use super::Reply;
use super::body::{AnyBody, Body, Cut, Frame, PollFrame, empty, poll_stream};
use super::refusal::Refusal;

/// Requests on one connection: what kube-apiserver allows.
const MAX_STREAMS: usize = 100;

/// What upstream may send on one stream before the client has taken it.
const STREAM_WINDOW: u32 = 256 * 1024;

/// As much as all streams of a connection may hold together, so that one that is
/// not read cannot take the window away from the others.
#[allow(clippy::cast_possible_truncation)] // 100 × 256 KiB
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS as u32;

/// The library ends a connection on which many small DATA frames wait. Watch
/// events are small and clients stall; the windows bound what waits.
const DATA_FRAME_BUDGET: usize = usize::MAX >> 2;

/// What waits in one stream for upstream to take it.
const SEND_BUFFER: usize = 64 * 1024;

/// Answers' header blocks, as large as requests' may be.
const MAX_HEADER_LIST: u32 = 1 << 20;

/// How often a connection in use is asked whether it lives, and how long it may
/// take to say so: client-go's own times are 30 s and 15 s.
const PING: Duration = Duration::from_secs(15);

/// A connection that carries many requests.
pub(crate) struct H2Connection {
    send: SendRequest<Bytes>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    active: AtomicUsize,
    /// Takes no new requests: closed, sick, or told GOAWAY.
    over: AtomicBool,
}

/// A place for one request on a connection.
pub(crate) struct Place {
    send: SendRequest<Bytes>,
    guard: PlaceGuard,
}

struct PlaceGuard(Arc<State>);

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl H2Connection {
    /// Starts HTTP/2 on a fresh connection.
    pub(crate) async fn start(io: Stream) -> Result<Self, h2::Error> {
        let (send, mut connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_LIST)
            .max_send_buffer_size(SEND_BUFFER)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .handshake(io)
            .await?;
        let state = Arc::new(State::default());
        let pings = connection.ping_pong();
        let run = {
            let state = state.clone();
            async move {
                tokio::select! {
                    ended = connection => if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to the server ended");
                    },
                    () = keep_asking(pings, &state) => {
                        tracing::warn!("the server did not answer a ping within {PING:?}; the connection is dropped");
                    }
                }
                state.over.store(true, Ordering::Relaxed);
            }
        };
        // Ends by itself: when the last handle is dropped and the last stream is
        // done, or when upstream goes away.
        tokio::spawn(run);
        Ok(Self { send, state })
    }

    /// A place for a request, if there is one.
    pub(crate) fn reserve(&self) -> Option<Place> {
        let room = self.send.current_max_send_streams().min(MAX_STREAMS);
        if self.is_over() || self.active() >= room {
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
        Some(Place {
            send,
            guard: PlaceGuard(self.state.clone()),
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.over.load(Ordering::Relaxed)
    }

    pub(crate) fn active(&self) -> usize {
        self.state.active.load(Ordering::Relaxed)
    }
}

/// Returns when upstream has not answered a ping in time.
async fn keep_asking(pings: Option<PingPong>, state: &State) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        sleep(PING).await;
        if state.active.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match timeout(PING, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection itself says how it ended.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

impl Place {
    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(mut self, head: &Parts, body: AnyBody) -> Result<Reply, Refusal> {
        let over = |state: &State, error: &h2::Error| {
            state.over.store(true, Ordering::Relaxed);
            Refusal::NotProcessed(error.to_string())
        };
        if let Err(error) = poll_fn(|cx| self.send.poll_ready(cx)).await {
            return Err(over(&self.guard.0, &error));
        }
        let request = request_of(head)?;
        let done = body.is_done();
        let (response, stream) = self
            .send
            .send_request(request, done)
            .map_err(|error| over(&self.guard.0, &error))?;
        let mut sending = Sending {
            stream,
            body,
            waiting: None,
            done,
            client: None,
        };
        let response = poll_answer(response, &mut sending)
            .await
            .map_err(|lost| self.judge(lost))?;
        let (head, stream) = response.into_parts();
        let response = Response::from_parts(head, ());
        let body: AnyBody = if stream.is_end_stream() && sending.done {
            empty()
        } else {
            Box::new(H2Body {
                stream,
                sending,
                _place: self.guard,
            })
        };
        Ok(Reply::Response(response, body))
    }

    fn judge(&self, lost: Lost) -> Refusal {
        let error = match lost {
            Lost::Client(cause) => return Refusal::Body(cause),
            Lost::Upstream(error) => error,
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
        if goaway || refused {
            Refusal::NotProcessed(error.to_string())
        } else if error.is_library() {
            Refusal::BadAnswer(error.to_string())
        } else {
            Refusal::CutOff(error.to_string())
        }
    }
}

/// The request as HTTP/2 writes it: Host becomes `:authority`.
fn request_of(head: &Parts) -> Result<Request<()>, Refusal> {
    let invalid = |cause: &str| Refusal::NotARequest(cause.to_owned());
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
    body: AnyBody,
    waiting: Option<Bytes>,
    done: bool,
    client: Option<String>,
}

impl Sending {
    /// Moves the body on, as far as it goes now. Errors of the stream are left to
    /// whoever waits for the answer: it may have been given already.
    fn poll(&mut self, cx: &mut Context<'_>) {
        while !self.done {
            let Some(data) = &mut self.waiting else {
                match self.body.poll_frame(cx) {
                    Poll::Pending => {
                        // A reset ends the wait for the client's body too.
                        if self.stream.poll_reset(cx).is_ready() {
                            self.done = true;
                        }
                        return;
                    }
                    Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                        if !data.is_empty() {
                            self.stream.reserve_capacity(data.len());
                            self.waiting = Some(data);
                        }
                    }
                    Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                        self.done = true;
                        let _ = self.stream.send_trailers(trailers);
                    }
                    Poll::Ready(None) => {
                        self.done = true;
                        let _ = self.stream.send_data(Bytes::new(), true);
                    }
                    Poll::Ready(Some(Err(cut))) => {
                        // A request that is not whole must not look so.
                        self.done = true;
                        self.stream.send_reset(Reason::CANCEL);
                        self.client = Some(cut.to_string());
                    }
                }
                continue;
            };
            match self.stream.poll_capacity(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(room))) => {
                    let now = data.split_to(room.min(data.len()));
                    if data.is_empty() {
                        self.waiting = None;
                    }
                    let last = self.waiting.is_none() && self.body.is_done();
                    if self.stream.send_data(now, last).is_err() || last {
                        self.done = true;
                    }
                }
                Poll::Ready(_) => self.done = true,
            }
        }
    }
}

/// Why there is no answer.
enum Lost {
    Upstream(h2::Error),
    Client(String),
}

async fn poll_answer(
    mut response: ResponseFuture,
    sending: &mut Sending,
) -> Result<Response<RecvStream>, Lost> {
    poll_fn(|cx| {
        sending.poll(cx);
        if let Some(cause) = sending.client.take() {
            return Poll::Ready(Err(Lost::Client(cause)));
        }
        std::pin::Pin::new(&mut response)
            .poll(cx)
            .map_err(Lost::Upstream)
    })
    .await
}

/// The body of an answer, and what of the request is still on its way.
struct H2Body {
    stream: RecvStream,
    sending: Sending,
    _place: PlaceGuard,
}

impl Body for H2Body {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        self.sending.poll(cx);
        if let Some(cause) = self.sending.client.take() {
            return Poll::Ready(Some(Err(Cut(cause))));
        }
        let mut polled = poll_stream(&mut self.stream, cx);
        if let Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) = &mut polled {
            skewbridge_k8s_api::forwarding_headers::remove_hop_by_hop(trailers);
        }
        polled
    }

    fn is_done(&self) -> bool {
        self.stream.is_end_stream()
    }
}
