//! Open connections to a server, and the choice of one for a request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep};

use super::connector::{
    ConnectError, Connected, ConnectionCredential, ConnectionGuard, Connector, PoolMetrics,
    Protocol, ProtocolOffer,
};
use super::h1::{ConnectionReturn, H1Connection, headers_for_h1};
use super::h2::{H2Connection, H2Response, Stream};
use super::{ProtocolPreference, ReplayBody, RetryClass, SendError, UpstreamResponse};
use crate::body::ResponseBody;
use crate::close_connection::CloseConnection;
use crate::header_bounds::{self, HeaderLimit};

/// Idle timeout, well below the server's (kube-apiserver: 90 s), so that a close and a request do not
/// race.
const MAX_IDLE_TIME: Duration = Duration::from_secs(45);

/// Maximum number of concurrent requests with large headers: each uses its own connection.
const MAX_EXCLUSIVE_REQUESTS: usize = 64;

/// How long the first response to an anonymous caller is delayed, to detect whether the server closes the
/// connection after it. The server sends both within a millisecond.
const GOAWAY_TIMEOUT: Duration = Duration::from_millis(100);
const GOAWAY_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Settings of a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolConfig {
    /// Unused HTTP/1.1 connections that are kept.
    pub max_idle_connections: usize,
    /// Completes and keeps a connection whose request was cancelled: opening it may have required a touch of
    /// a hardware key.
    pub finish_cancelled_connects: bool,
    /// What the server may send on one HTTP/2 stream before the client has taken it. This much of
    /// a stalled client's response waits in the process; a connection may hold as much for each of
    /// its streams, so that stalled clients cannot take the window away from the others.
    pub h2_stream_window_bytes: u32,
    /// Whether the client's connection ends with a response to a caller without an identity, if
    /// the server's connection does.
    pub mirrors_close: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            max_idle_connections: 256,
            finish_cancelled_connects: false,
            h2_stream_window_bytes: 128 * 1024,
            mirrors_close: true,
        }
    }
}

/// The connections to one server with one identity. The gateway has pools per worker, so the locks are
/// uncontended; they exist because tasks are `Send`.
pub struct Pool<C: Connector> {
    connector: C,
    config: PoolConfig,
    idle: Mutex<VecDeque<(Instant, H1Connection<C::Io>)>>,
    shared: Mutex<Vec<(Instant, H2Connection)>>,
    /// One HTTP/2 connection is opened at a time. Requests that wait for it share a failure.
    opening: Arc<tokio::sync::Mutex<LastFailure>>,
    /// The server has refused a protocol when it was offered alone.
    h1_only: AtomicBool,
    h2_only: AtomicBool,
    /// Whether the server ends an HTTP/2 connection after a response to a caller without an
    /// identity; `ENDS_ANONYMOUS_UNKNOWN` until it has answered one.
    ends_anonymous: AtomicU8,
    exclusive: Arc<Semaphore>,
    metrics: Arc<dyn PoolMetrics>,
}

/// When a connection could not be opened, and why.
type LastFailure = Option<(Instant, ConnectError)>;

type Credential = Option<Arc<dyn ConnectionCredential>>;

const ENDS_ANONYMOUS_UNKNOWN: u8 = 0;
const ENDS_ANONYMOUS_NO: u8 = 1;
const ENDS_ANONYMOUS_YES: u8 = 2;

impl<C: Connector> Pool<C> {
    /// No connections yet.
    pub fn new(connector: C, config: PoolConfig, metrics: Arc<dyn PoolMetrics>) -> Arc<Self> {
        Arc::new(Self {
            connector,
            config,
            idle: Mutex::default(),
            shared: Mutex::default(),
            opening: Arc::default(),
            h1_only: AtomicBool::new(false),
            h2_only: AtomicBool::new(false),
            ends_anonymous: AtomicU8::new(ENDS_ANONYMOUS_UNKNOWN),
            exclusive: Arc::new(Semaphore::new(MAX_EXCLUSIVE_REQUESTS)),
            metrics,
        })
    }

    /// Sends a request. On an error that is safe to retry, the request is put back.
    pub async fn send(
        self: &Arc<Self>,
        request: &mut Request<ReplayBody>,
        prefer: ProtocolPreference,
    ) -> Result<UpstreamResponse<C::Io>, SendError> {
        self.send_or_decline(request, prefer, |_, _| false).await
    }

    /// Like [`Pool::send`], but responses that decline the request are errors, after which the request can be
    /// retried.
    pub async fn send_or_decline(
        self: &Arc<Self>,
        request: &mut Request<ReplayBody>,
        prefer: ProtocolPreference,
        declines: impl Fn(StatusCode, &HeaderMap) -> bool,
    ) -> Result<UpstreamResponse<C::Io>, SendError> {
        // The connection borrows the parts, and a retry needs them: taken out, and put back.
        let empty = Request::new(request.body().placeholder());
        let (mut head, mut body) = std::mem::replace(request, empty).into_parts();
        if body.retry_class() == RetryClass::OnlyIfUnsent {
            // A write on a connection that the server has closed may not be retried. The end of a connection
            // that has arrived together with the request is handled first.
            tokio::task::yield_now().await;
        }
        let channel = if prefer == ProtocolPreference::Upgrade
            || header_bounds::may_share(&head, body.header_bytes())
        {
            self.channel(prefer).await
        } else {
            // Boxed: this is rare, and every watch would carry its state.
            Box::pin(self.exclusive_channel(body.retry_class())).await
        };
        let error = match channel {
            Err(error) => error.into(),
            Ok(Channel::H1(connection)) => {
                headers_for_h1(&mut head, prefer);
                let credential = connection.credential();
                match connection.send(&head, &mut body, self.clone()).await {
                    Ok(answered) if declines(answered.status(), answered.headers()) => {
                        SendError::Declined(answered.status())
                    }
                    Ok(answered) => {
                        body.stop_recording();
                        let closes =
                            self.mirrors_close(&body, answered.status()) && answered.closes();
                        let response = match answered.into_response(body) {
                            UpstreamResponse::Response(response) => UpstreamResponse::Response(
                                finish_response(response, closes, &head, credential),
                            ),
                            upgraded @ UpstreamResponse::Upgraded(..) => upgraded,
                        };
                        return Ok(response);
                    }
                    Err(error) => error,
                }
            }
            Ok(Channel::H2(stream)) => {
                let credential = stream.credential();
                match stream.send(&head, &mut body).await {
                    Ok(answered) if declines(answered.status(), answered.headers()) => {
                        SendError::Declined(answered.status())
                    }
                    Ok(mut answered) => {
                        body.stop_recording();
                        let closes = self.mirrors_close(&body, answered.status())
                            // Boxed: watches are numerous and do not get here.
                            && Box::pin(self.closes_after_response(&mut answered)).await;
                        let response = answered.into_response(body);
                        let response = finish_response(response, closes, &head, credential);
                        return Ok(UpstreamResponse::Response(response));
                    }
                    Err(error) => error,
                }
            }
        };
        *request = Request::from_parts(head, body);
        Err(error)
    }

    fn mirrors_close(&self, body: &ReplayBody, status: StatusCode) -> bool {
        self.config.mirrors_close && body.is_anonymous(status)
    }

    async fn channel(
        self: &Arc<Self>,
        prefer: ProtocolPreference,
    ) -> Result<Channel<C::Io>, ConnectError> {
        let opened = self.open(prefer).await;
        if opened.is_err() {
            // A restarted server may support other protocols.
            self.h1_only.store(false, Ordering::Relaxed);
            self.h2_only.store(false, Ordering::Relaxed);
            self.ends_anonymous
                .store(ENDS_ANONYMOUS_UNKNOWN, Ordering::Relaxed);
        }
        opened
    }

    /// Whether the server closes HTTP/2 connections after responses to anonymous callers
    /// (`UnauthenticatedHTTP2DOSMitigation`), as observed.
    pub fn ends_anonymous_connections(&self) -> bool {
        self.ends_anonymous.load(Ordering::Relaxed) == ENDS_ANONYMOUS_YES
    }

    /// Whether the server closes the connection after this response to an anonymous caller. The response and
    /// GOAWAY race, so the result is cached.
    async fn closes_after_response(&self, answered: &mut H2Response) -> bool {
        let known = self.ends_anonymous.load(Ordering::Relaxed);
        let deadline = Instant::now() + GOAWAY_TIMEOUT;
        loop {
            if known == ENDS_ANONYMOUS_YES || answered.is_going_away() {
                self.ends_anonymous
                    .store(ENDS_ANONYMOUS_YES, Ordering::Relaxed);
                return true;
            }
            if known == ENDS_ANONYMOUS_NO || Instant::now() >= deadline {
                self.ends_anonymous
                    .store(ENDS_ANONYMOUS_NO, Ordering::Relaxed);
                return false;
            }
            sleep(GOAWAY_CHECK_INTERVAL).await;
        }
    }

    /// A connection for one request alone: HTTP/1.1, or HTTP/2 where the server speaks nothing
    /// else.
    async fn exclusive_channel(
        self: &Arc<Self>,
        retry_class: RetryClass,
    ) -> Result<Channel<C::Io>, ConnectError> {
        let Ok(permit) = self.exclusive.clone().try_acquire_owned() else {
            let limit = HeaderLimit::OwnConnectionRefused;
            self.metrics.met_header_limit(limit);
            let cause =
                format_args!("{MAX_EXCLUSIVE_REQUESTS} requests with large headers are under way");
            return Err(self.connector.error(&cause));
        };
        self.metrics.met_header_limit(HeaderLimit::OwnConnection);
        if !self.h2_only.load(Ordering::Relaxed) {
            // A write on a connection that the server is closing cannot be retried.
            if retry_class == RetryClass::Idempotent
                && let Some(connection) = self.take_idle()
            {
                return Ok(Channel::H1(connection.with_permit(permit)));
            }
            match self.connect(ProtocolOffer::Http1, None).await {
                Ok(channel) => return Ok(channel.with_permit(permit)),
                Err(error) if error.no_common_protocol => {
                    self.h2_only.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        let channel = self.connect(ProtocolOffer::Http2, None).await?;
        Ok(channel.with_permit(permit))
    }

    async fn open(
        self: &Arc<Self>,
        prefer: ProtocolPreference,
    ) -> Result<Channel<C::Io>, ConnectError> {
        let h2_only = self.h2_only.load(Ordering::Relaxed);
        let h1_only = self.h1_only.load(Ordering::Relaxed);
        match prefer {
            ProtocolPreference::H2 if !h1_only => self.h2().await,
            ProtocolPreference::H1 if h2_only => self.h2().await,
            ProtocolPreference::H1 | ProtocolPreference::H2 | ProtocolPreference::Upgrade => {
                self.h1(prefer).await
            }
        }
    }

    async fn h1(
        self: &Arc<Self>,
        prefer: ProtocolPreference,
    ) -> Result<Channel<C::Io>, ConnectError> {
        // An upgrade consumes its connection, and must not use one that the server is about to close: it gets a
        // new one.
        if prefer != ProtocolPreference::Upgrade
            && let Some(connection) = self.take_idle()
        {
            return Ok(Channel::H1(connection));
        }
        // The server may have been replaced by one that speaks HTTP/2.
        let offer = match prefer {
            ProtocolPreference::H2 => ProtocolOffer::Either,
            ProtocolPreference::H1 | ProtocolPreference::Upgrade => ProtocolOffer::Http1,
        };
        match self.connect(offer, None).await {
            Err(error) if error.no_common_protocol && prefer == ProtocolPreference::H1 => {
                self.h2_only.store(true, Ordering::Relaxed);
                self.h2().await
            }
            connected => connected,
        }
    }

    /// The most recently used connection: the others expire.
    fn take_idle(&self) -> Option<H1Connection<C::Io>> {
        loop {
            let (_, mut connection) = lock(&self.idle).pop_back()?;
            if !connection.is_stale() && connection.is_valid() {
                return Some(connection);
            }
        }
    }

    async fn h2(self: &Arc<Self>) -> Result<Channel<C::Io>, ConnectError> {
        if let Some(stream) = self.reserve() {
            return Ok(Channel::H2(stream));
        }
        let began = Instant::now();
        let connect_lock = self.opening.clone().lock_owned().await;
        if let Some(stream) = self.reserve() {
            return Ok(Channel::H2(stream));
        }
        // The server spoke HTTP/1.1 to the request that had the lock, or a connection was opened
        // for a request that was cancelled.
        if (self.h1_only.load(Ordering::Relaxed) || self.config.finish_cancelled_connects)
            && let Some(connection) = self.take_idle()
        {
            return Ok(Channel::H1(connection));
        }
        if let Some((at, error)) = &*connect_lock
            && *at >= began
        {
            return Err(error.clone());
        }
        self.connect(ProtocolOffer::Either, Some(connect_lock))
            .await
    }

    /// Opens a connection. `connect_lock` is held until it is open.
    async fn connect(
        self: &Arc<Self>,
        offer: ProtocolOffer,
        mut connect_lock: Option<OwnedMutexGuard<LastFailure>>,
    ) -> Result<Channel<C::Io>, ConnectError> {
        let pool = self.clone();
        let open = async move {
            let opened = pool.open_channel(offer).await;
            if let (Some(connect_lock), Err(error)) = (&mut connect_lock, &opened) {
                **connect_lock = Some((Instant::now(), error.clone()));
            }
            (opened, connect_lock)
        };
        if !self.config.finish_cancelled_connects {
            return open.await.0;
        }
        let (sender, result) = oneshot::channel();
        let pool = self.clone();
        tokio::spawn(async move {
            let (opened, connect_lock) = open.await;
            // A shared connection is in the pool already.
            if let Err(Ok(Channel::H1(connection))) = sender.send(opened) {
                pool.return_connection(connection);
            }
            drop(connect_lock);
        });
        let aborted = || ConnectError::new("opening a connection was aborted");
        result.await.unwrap_or_else(|_| Err(aborted()))
    }

    async fn open_channel(&self, offer: ProtocolOffer) -> Result<Channel<C::Io>, ConnectError> {
        let connected = self.connector.connect(offer).await?;
        if offer == ProtocolOffer::Either {
            let h1_only = connected.protocol == Protocol::Http1;
            self.h1_only.store(h1_only, Ordering::Relaxed);
        }
        if connected.protocol == Protocol::Http1 {
            return Ok(Channel::H1(self.start_h1(connected)));
        }
        let (connection, stream) = self.start_h2(connected).await?;
        // HTTP/2 alone is offered for a request that shares its connection with no other.
        if offer != ProtocolOffer::Http2 {
            lock(&self.shared).push((Instant::now(), connection));
        }
        Ok(Channel::H2(stream))
    }

    fn start_h1(&self, connected: Connected<C::Io>) -> H1Connection<C::Io> {
        let guard = ConnectionGuard::new(&self.metrics, Protocol::Http1);
        H1Connection::new(connected.io, connected.credential, Some(guard))
    }

    async fn start_h2(
        &self,
        connected: Connected<C::Io>,
    ) -> Result<(H2Connection, Stream), ConnectError> {
        let guard = ConnectionGuard::new(&self.metrics, Protocol::Http2);
        let connection = H2Connection::start(
            connected.io,
            connected.credential,
            guard,
            self.metrics.clone(),
            (
                self.connector.keepalive(),
                self.config.h2_stream_window_bytes,
            ),
        )
        .await
        .map_err(|error| self.connector.error(&format_args!("HTTP/2: {error}")))?;
        let stream = connection.reserve().ok_or_else(|| {
            self.connector
                .error(&"HTTP/2: upstream allows no stream at all")
        })?;
        Ok((connection, stream))
    }

    /// Reserves a stream on the first connection with capacity. Fuller connections come first, so that others
    /// become idle and can be closed.
    fn reserve(&self) -> Option<Stream> {
        let mut shared = lock(&self.shared);
        shared.retain(|(_, connection)| !connection.is_closed() && connection.is_valid());
        shared.iter_mut().find_map(|(used, connection)| {
            let stream = connection.reserve()?;
            *used = Instant::now();
            Some(stream)
        })
    }

    /// Closes connections that have not been used for a while.
    pub fn evict_idle(&self) {
        let now = Instant::now();
        lock(&self.idle).retain(|(since, _)| now - *since < MAX_IDLE_TIME);
        lock(&self.shared).retain_mut(|(used, connection)| {
            if connection.active() > 0 {
                *used = now;
            }
            !connection.is_closed() && now - *used < MAX_IDLE_TIME
        });
    }
}

impl<C: Connector> ConnectionReturn<C::Io> for Pool<C> {
    fn return_connection(&self, mut connection: H1Connection<C::Io>) {
        connection.park();
        let mut idle = lock(&self.idle);
        if connection.is_valid() && idle.len() < self.config.max_idle_connections {
            idle.push_back((Instant::now(), connection));
        }
    }
}

impl<C: Connector> std::fmt::Debug for Pool<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("connector", &self.connector)
            .finish_non_exhaustive()
    }
}

enum Channel<Io> {
    H1(H1Connection<Io>),
    H2(Stream),
}

impl<Io: AsyncRead + AsyncWrite + Send + Unpin + 'static> Channel<Io> {
    /// Holds this for as long as its request lasts.
    fn with_permit(self, permit: OwnedSemaphorePermit) -> Self {
        match self {
            Self::H1(connection) => Self::H1(connection.with_permit(permit)),
            Self::H2(stream) => Self::H2(stream.with_permit(permit)),
        }
    }
}

/// Closes the client's connection after this response if the server closes its own, and reports a 401 to
/// the credential of the connection.
fn finish_response(
    mut response: Response<ResponseBody>,
    closes: bool,
    request: &Parts,
    credential: Credential,
) -> Response<ResponseBody> {
    if closes {
        response.extensions_mut().insert(CloseConnection);
    }
    match credential {
        Some(credential) if response.status() == StatusCode::UNAUTHORIZED => {
            response.map(|body| credential.unauthorized(request, body))
        }
        _ => response,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
