//! One HTTP/2 connection to one endpoint, and calls on it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE, USER_AGENT};
use http::{Method, Request, Uri, Version};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::endpoint::{Endpoint, Transport};
use crate::error::Failure;
use crate::first_read::FirstRead;
use crate::grpc::Decoder;
use crate::status::Status;

/// TCP, TLS and the HTTP/2 preface together. etcd is nearby.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a connection with a watch is pinged. etcd closes connections with more than one
/// ping in 5 s (its `--grpc-keepalive-min-time`).
const PING_INTERVAL: Duration = Duration::from_secs(6);

/// How long the reply to a ping may take: together with the interval, a dead connection is
/// detected within 10 s.
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// How much etcd may send on one stream before it is read.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// Room for this many unread watches beside active calls.
const CONNECTION_WINDOW_BYTES: u32 = 16 * STREAM_WINDOW_BYTES;

/// h2 closes a connection on which many small DATA frames wait. Watch events are small, and
/// etcd is trusted: the windows bound what waits.
const DATA_FRAME_BUDGET: usize = usize::MAX >> 2;

/// Headers and trailers, including the status message.
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;

/// A connection. Its task ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    send: SendRequest<Bytes>,
    endpoint: Endpoint,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    watches: AtomicUsize,
    over: AtomicBool,
    /// Set before the streams end.
    cause: OnceLock<String>,
}

/// Counts a watch while it exists.
#[derive(Debug)]
pub(crate) struct WatchGuard(Arc<State>);

/// What the caller sends after its first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// Nothing: the server ends the stream with its response, within this time.
    AfterResponse(Duration),
    /// Further messages: the stream stays open.
    Streaming,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WatchGuard {
    fn new(state: &Arc<State>) -> Self {
        state.watches.fetch_add(1, Ordering::Relaxed);
        Self(state.clone())
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Connects, and checks that the server answers HTTP/2.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, Failure> {
        match timeout(CONNECT_TIMEOUT, Self::dial(endpoint, tls)).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::Timeout(format!(
                "not open within {} s",
                CONNECT_TIMEOUT.as_secs()
            ))),
        }
    }

    async fn dial(endpoint: &Endpoint, tls: Option<&Arc<ClientConfig>>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::Connection(error.to_string());
        let tcp = TcpStream::connect((endpoint.host.as_str(), endpoint.port))
            .await
            .map_err(failed)?;
        // Without the option the socket still works.
        let _ = tcp.set_nodelay(true);
        match (&endpoint.transport, tls) {
            (Transport::Plain, _) => Self::start(endpoint, tcp).await,
            (Transport::Tls(name), Some(tls)) => {
                let io = TlsConnector::from(tls.clone())
                    .connect(name.clone(), tcp)
                    .await
                    .map_err(|error| Failure::Connection(format!("TLS: {error}")))?;
                let (io, has_read) = FirstRead::new(io);
                let started = Self::start(endpoint, io).await;
                started.map_err(|failure| {
                    if has_read.load(Ordering::Relaxed) {
                        failure
                    } else {
                        closed_after_handshake(failure)
                    }
                })
            }
            (Transport::Tls(_), None) => Err(Failure::Connection("no CA is set".to_owned())),
        }
    }

    async fn start<T>(endpoint: &Endpoint, io: T) -> Result<Self, Failure>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let failed = |error: h2::Error| Failure::Connection(error.to_string());
        let (send, mut connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(MAX_HEADER_LIST_BYTES)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .handshake(io)
            .await
            .map_err(failed)?;
        let mut pings = connection
            .ping_pong()
            .ok_or_else(|| Failure::Connection("no pings".to_owned()))?;
        tokio::select! {
            ended = &mut connection => return Err(match ended {
                Ok(()) => Failure::Connection("closed at once".to_owned()),
                Err(error) => failed(error),
            }),
            pong = pings.ping(Ping::opaque()) => { pong.map_err(failed)?; }
        }
        let state = Arc::new(State::default());
        let task = tokio::spawn({
            let state = state.clone();
            async move {
                let cause = tokio::select! {
                    ended = &mut connection => match ended {
                        Ok(()) => "closed by etcd".to_owned(),
                        Err(error) => error.to_string(),
                    },
                    () = wait_for_ping_timeout(pings, &state) => {
                        format!("no answer to a ping within {} s", PING_TIMEOUT.as_secs())
                    }
                };
                state.over.store(true, Ordering::Relaxed);
                let _ = state.cause.set(cause);
                drop(connection);
            }
        });
        Ok(Self {
            send,
            endpoint: endpoint.clone(),
            state,
            task,
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether it accepts no more calls: closed, or after a GOAWAY.
    pub(crate) fn is_closed(&self) -> bool {
        // A new handle is never pending.
        let mut cx = Context::from_waker(Waker::noop());
        self.state.over.load(Ordering::Relaxed)
            || matches!(self.send.clone().poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// Enables pings until the guard is dropped.
    pub(crate) fn watch_guard(&self) -> WatchGuard {
        WatchGuard::new(&self.state)
    }

    /// Starts a call with its first message, which is framed already.
    pub(crate) async fn call(
        &self,
        method: &'static str,
        frame: Bytes,
        then: CallEnd,
    ) -> Result<(SendStream<Bytes>, ResponseStream), Failure> {
        let failed = |error: h2::Error| self.failed(&error);
        let request = self.request(method, then)?;
        let mut send = self.send.clone();
        poll_fn(|cx| send.poll_ready(cx)).await.map_err(failed)?;
        let (response, mut stream) = send.send_request(request, false).map_err(failed)?;
        // h2 buffers what the window does not allow yet, at most one message.
        stream
            .send_data(frame, matches!(then, CallEnd::AfterResponse(_)))
            .map_err(failed)?;
        let responses = ResponseStream {
            state: self.state.clone(),
            source: Source::Head(response),
            decoder: Decoder::default(),
        };
        Ok((stream, responses))
    }

    fn request(&self, method: &'static str, then: CallEnd) -> Result<Request<()>, Failure> {
        /// etcd's header for a call that should fail without a leader, instead of waiting (a
        /// watch: without end) on an isolated member.
        const HAS_LEADER: HeaderName = HeaderName::from_static("hasleader");
        const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
        let invalid = |error: http::Error| Failure::Malformed(error.to_string());
        let uri = Uri::builder()
            .scheme(self.endpoint.scheme())
            .authority(self.endpoint.authority.clone())
            .path_and_query(method)
            .build()
            .map_err(invalid)?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_2;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(USER_AGENT, HeaderValue::from_static("skewbridge"));
        headers.insert(HAS_LEADER, HeaderValue::from_static("true"));
        if let CallEnd::AfterResponse(limit) = then {
            let limit = HeaderValue::from_str(&format!("{}m", limit.as_millis()))
                .map_err(|error| invalid(error.into()))?;
            headers.insert(TIMEOUT, limit);
        }
        Ok(request)
    }

    fn failed(&self, error: &h2::Error) -> Failure {
        self.state.failed(error)
    }
}

/// The failure of a connection on which the server sent nothing after the TLS handshake. With TLS
/// 1.3 the handshake of a client ends before the server verifies its certificate (RFC 8446,
/// section 2), and a reset of the connection can discard the alert with which the server refuses
/// it.
fn closed_after_handshake(failure: Failure) -> Failure {
    match failure {
        Failure::Connection(cause) if !cause.contains("alert") => Failure::Connection(format!(
            "closed by the server after the TLS handshake; it may have refused the client \
             certificate ({cause})"
        )),
        other => other,
    }
}

impl State {
    /// The end of the connection explains the end of its streams.
    fn failed(&self, error: &h2::Error) -> Failure {
        if error.is_go_away() {
            self.over.store(true, Ordering::Relaxed);
        }
        Failure::Connection(match self.cause.get() {
            Some(cause) => cause.clone(),
            None => error.to_string(),
        })
    }
}

/// Returns when a ping was not answered in time while there was a watch.
async fn wait_for_ping_timeout(mut pings: PingPong, state: &State) {
    loop {
        tokio::time::sleep(PING_INTERVAL).await;
        if state.watches.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection itself reports why it ended.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

/// The response messages of a call.
#[derive(Debug)]
pub(crate) struct ResponseStream {
    state: Arc<State>,
    source: Source,
    decoder: Decoder,
}

#[derive(Debug)]
enum Source {
    Head(ResponseFuture),
    Body(RecvStream),
}

impl ResponseStream {
    /// The next message, or `None` if the call succeeded. Reading releases flow control capacity.
    /// Cancelling loses no message.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let stream = match &mut self.source {
                Source::Body(stream) => stream,
                Source::Head(response) => {
                    let response = response.await.map_err(|error| self.state.failed(&error))?;
                    let (head, stream) = response.into_parts();
                    self.source = Source::Body(stream);
                    if let Some(status) = Status::from_headers(&head.headers) {
                        return call_result(status);
                    }
                    if !is_grpc(&head) {
                        return Err(Failure::Status(Status::from_http_status(head.status)));
                    }
                    continue;
                }
            };
            if let Some(message) = self.decoder.next()? {
                return Ok(Some(message));
            }
            let failed = |error: h2::Error| self.state.failed(&error);
            if let Some(chunk) = poll_fn(|cx| stream.poll_data(cx)).await {
                let chunk = chunk.map_err(failed)?;
                stream
                    .flow_control()
                    .release_capacity(chunk.len())
                    .map_err(failed)?;
                self.decoder.push(&chunk);
                continue;
            }
            let trailers = stream.trailers().await.map_err(failed)?;
            let status = trailers
                .as_ref()
                .and_then(Status::from_headers)
                .ok_or_else(|| Failure::Malformed("an end without a status".to_owned()))?;
            let ended = call_result(status)?;
            self.decoder.finish()?;
            return Ok(ended);
        }
    }
}

fn is_grpc(head: &http::response::Parts) -> bool {
    head.status.is_success()
        && head
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn call_result(status: Status) -> Result<Option<Bytes>, Failure> {
    if status.code == crate::status::Code::OK {
        Ok(None)
    } else {
        Err(Failure::Status(status))
    }
}
