//! Connections that are open, and which of them takes the next request.
//!
//! Each worker has its own pools, so nothing here is ever contended; the locks
//! are there because tasks are `Send`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::connect::Spoken;
use super::h1::{H1Connection, headers_for_h1};
use super::h2::{self, H2Connection, Stream};
use super::{
    ConnectError, ProtocolPreference, Replay, RetryClass, SendError, Target, UpstreamIo,
    UpstreamResponse,
};
use crate::header_bounds;
use crate::http_message::CloseConnection;
use crate::metrics::headers::{HeaderLimit, HeaderMetrics};
use crate::metrics::{Gauge, Metrics};

/// An unused connection is closed well before upstream would do it
/// (kube-apiserver: 90 s), so that the two do not meet on the wire.
const IDLE: Duration = Duration::from_secs(45);

/// Unused HTTP/1.1 connections that are kept.
const MAX_IDLE: usize = 256;

/// Requests with large headers at one time: each has a connection of its own.
const MAX_EXCLUSIVE: usize = 64;

/// How long the first answer to a caller without an identity is held until it is known
/// whether upstream ends the connection with it. Both leave upstream within a millisecond.
const GOAWAY_WAIT: Duration = Duration::from_millis(100);
const GOAWAY_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The connections of one worker to one server, on one leg.
#[derive(Debug)]
pub struct Pool {
    target: Target,
    idle: Mutex<VecDeque<(Instant, H1Connection)>>,
    shared: Mutex<Vec<(Instant, H2Connection)>>,
    dial: tokio::sync::Mutex<Option<(Instant, ConnectError)>>,
    /// Upstream has refused a protocol when it was offered alone.
    h1_only: AtomicBool,
    h2_only: AtomicBool,
    /// Whether upstream ends an HTTP/2 connection after an answer to a caller without an
    /// identity; `UNKNOWN` until it has answered one.
    ends_anonymous: AtomicU8,
    exclusive: Arc<Semaphore>,
    gauges: Gauges,
    headers: HeaderMetrics,
}

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

#[derive(Debug)]
struct Gauges {
    h1: Gauge,
    h2: Gauge,
    streams: Gauge,
}

/// Counts a connection while it is open.
#[derive(Debug)]
pub(crate) struct Slot(Gauge);

impl Slot {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Pool {
    /// No connections yet.
    pub fn new(target: Target, leg: &'static str, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            target,
            idle: Mutex::default(),
            shared: Mutex::default(),
            dial: tokio::sync::Mutex::default(),
            h1_only: AtomicBool::new(false),
            h2_only: AtomicBool::new(false),
            ends_anonymous: AtomicU8::new(UNKNOWN),
            exclusive: Arc::new(Semaphore::new(MAX_EXCLUSIVE)),
            gauges: Gauges {
                h1: metrics.upstream_connections(leg, "http/1.1"),
                h2: metrics.upstream_connections(leg, "h2"),
                streams: metrics.upstream_streams(leg),
            },
            headers: metrics.headers().clone(),
        })
    }

    /// Sends a request. On an error that is safe to repeat, the request comes
    /// back with it.
    pub async fn send(
        self: &Arc<Self>,
        request: &mut Request<Replay>,
        prefer: ProtocolPreference,
    ) -> Result<UpstreamResponse, SendError> {
        self.send_unless(request, prefer, |_, _| false).await
    }

    /// The same, where some answers say that nothing has been done: they are an
    /// error, with which the request comes back too.
    pub async fn send_unless(
        self: &Arc<Self>,
        request: &mut Request<Replay>,
        prefer: ProtocolPreference,
        declines: impl Fn(StatusCode, &HeaderMap) -> bool,
    ) -> Result<UpstreamResponse, SendError> {
        // The parts are borrowed by the connection and needed again if it
        // fails: taken out, and put back.
        let empty = Request::new(request.body().empty());
        let (mut head, mut body) = std::mem::replace(request, empty).into_parts();
        let channel = if prefer == ProtocolPreference::Upgrade
            || header_bounds::may_share(&head, body.header_bytes())
        {
            self.channel(prefer).await
        } else {
            // Boxed: it happens seldom, and each watch would have room for it.
            Box::pin(self.exclusive_channel(body.repeat())).await
        };
        let error = match channel {
            Err(error) => error.into(),
            Ok(Channel::H1(connection)) => {
                headers_for_h1(&mut head, prefer);
                match connection.send(&head, &mut body, self).await {
                    Ok(answered) if declines(answered.status(), answered.headers()) => {
                        SendError::Declined(answered.status())
                    }
                    Ok(answered) => {
                        body.forget();
                        let closes = body.is_anonymous(answered.status()) && answered.closes();
                        return Ok(closing(answered.into_reply(body), closes));
                    }
                    Err(error) => error,
                }
            }
            Ok(Channel::H2(stream)) => match stream.send(&head, &mut body).await {
                Ok(answered) if declines(answered.status(), answered.headers()) => {
                    SendError::Declined(answered.status())
                }
                Ok(mut answered) => {
                    body.forget();
                    let closes = body.is_anonymous(answered.status())
                        // Boxed: watches are many, and do not come here.
                        && Box::pin(self.is_ended_with(&mut answered)).await;
                    return Ok(closing(answered.into_reply(body), closes));
                }
                Err(error) => error,
            },
        };
        *request = Request::from_parts(head, body);
        Err(error)
    }

    async fn channel(&self, prefer: ProtocolPreference) -> Result<Channel, ConnectError> {
        let opened = self.open(prefer).await;
        if opened.is_err() {
            // What comes back may be another server, which speaks more.
            self.h1_only.store(false, Ordering::Relaxed);
            self.h2_only.store(false, Ordering::Relaxed);
            self.ends_anonymous.store(UNKNOWN, Ordering::Relaxed);
        }
        opened
    }

    /// Whether upstream ends HTTP/2 connections after answers to callers without an
    /// identity (`UnauthenticatedHTTP2DOSMitigation`), as far as is known.
    pub(crate) fn ends_anonymous_connections(&self) -> bool {
        self.ends_anonymous.load(Ordering::Relaxed) == YES
    }

    /// Whether upstream ends the connection after this answer to a caller without an
    /// identity. Answer and GOAWAY race, so it is remembered once it is known.
    async fn is_ended_with(&self, answered: &mut h2::Answered) -> bool {
        let known = self.ends_anonymous.load(Ordering::Relaxed);
        let deadline = Instant::now() + GOAWAY_WAIT;
        loop {
            if known == YES || answered.is_going_away() {
                self.ends_anonymous.store(YES, Ordering::Relaxed);
                return true;
            }
            if known == NO || Instant::now() >= deadline {
                self.ends_anonymous.store(NO, Ordering::Relaxed);
                return false;
            }
            sleep(GOAWAY_CHECK_INTERVAL).await;
        }
    }

    /// A connection for one request alone: HTTP/1.1, or HTTP/2 where upstream speaks
    /// nothing else.
    async fn exclusive_channel(&self, repeat: RetryClass) -> Result<Channel, ConnectError> {
        let Ok(permit) = self.exclusive.clone().try_acquire_owned() else {
            self.headers.met(HeaderLimit::OwnConnectionRefused);
            let cause = format_args!("{MAX_EXCLUSIVE} requests with large headers are under way");
            return Err(self.target.failed(cause));
        };
        self.headers.met(HeaderLimit::OwnConnection);
        if !self.h2_only.load(Ordering::Relaxed) {
            // A connection that upstream is about to close fails a write for good.
            if repeat == RetryClass::Idempotent
                && let Some(connection) = self.take_idle()
            {
                return Ok(Channel::H1(connection.holding(permit)));
            }
            match self.target.connect(&["http/1.1"]).await {
                Ok((io, _)) => {
                    let connection = H1Connection::new(io, Slot::new(&self.gauges.h1));
                    return Ok(Channel::H1(connection.holding(permit)));
                }
                Err(error) if error.no_common_protocol => {
                    self.h2_only.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        let (io, _) = self.target.connect(&["h2"]).await?;
        let (_, stream) = self.start_h2(io).await?;
        Ok(Channel::H2(stream.holding(permit)))
    }

    async fn open(&self, prefer: ProtocolPreference) -> Result<Channel, ConnectError> {
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

    async fn h1(&self, prefer: ProtocolPreference) -> Result<Channel, ConnectError> {
        // An upgrade takes its connection away for good, and its request must
        // not meet one that upstream is about to close: it gets a new one.
        if prefer != ProtocolPreference::Upgrade
            && let Some(connection) = self.take_idle()
        {
            return Ok(Channel::H1(connection));
        }
        match self.target.connect(&["http/1.1"]).await {
            Ok((io, _)) => Ok(Channel::H1(H1Connection::new(
                io,
                Slot::new(&self.gauges.h1),
            ))),
            Err(error) if error.no_common_protocol && prefer == ProtocolPreference::H1 => {
                self.h2_only.store(true, Ordering::Relaxed);
                self.h2().await
            }
            Err(error) => Err(error),
        }
    }

    /// The one that was used last: the others run out.
    fn take_idle(&self) -> Option<H1Connection> {
        loop {
            let (_, mut connection) = lock(&self.idle).pop_back()?;
            if !connection.is_stale() {
                return Some(connection);
            }
        }
    }

    async fn h2(&self) -> Result<Channel, ConnectError> {
        if let Some(stream) = self.reserve() {
            return Ok(Channel::H2(stream));
        }
        // One connection is opened at a time; who waits shares its outcome.
        let asked = Instant::now();
        let mut last_failure = self.dial.lock().await;
        if let Some(stream) = self.reserve() {
            return Ok(Channel::H2(stream));
        }
        if let Some((at, error)) = &*last_failure
            && *at >= asked
        {
            return Err(error.clone());
        }
        let opened = self.open_h2().await;
        if let Err(error) = &opened {
            *last_failure = Some((Instant::now(), error.clone()));
        }
        opened
    }

    async fn open_h2(&self) -> Result<Channel, ConnectError> {
        let (io, spoken) = self.target.connect(&["h2", "http/1.1"]).await?;
        if spoken == Spoken::H1 {
            self.h1_only.store(true, Ordering::Relaxed);
            return Ok(Channel::H1(H1Connection::new(
                io,
                Slot::new(&self.gauges.h1),
            )));
        }
        let (connection, stream) = self.start_h2(io).await?;
        lock(&self.shared).push((Instant::now(), connection));
        Ok(Channel::H2(stream))
    }

    async fn start_h2(&self, io: UpstreamIo) -> Result<(H2Connection, Stream), ConnectError> {
        let slot = Slot::new(&self.gauges.h2);
        let pings = (self.target.ping, self.target.ping_timeout);
        let connection = H2Connection::start(io, slot, self.gauges.streams.clone(), pings)
            .await
            .map_err(|error| self.target.failed(format_args!("HTTP/2: {error}")))?;
        let stream = connection.reserve().ok_or_else(|| {
            self.target
                .failed("HTTP/2: upstream allows no stream at all")
        })?;
        Ok((connection, stream))
    }

    /// A place on the first connection that has one: fuller ones come first,
    /// so that others run empty and can be closed.
    fn reserve(&self) -> Option<Stream> {
        let mut shared = lock(&self.shared);
        shared.retain(|(_, connection)| !connection.is_over());
        shared.iter_mut().find_map(|(used, connection)| {
            let stream = connection.reserve()?;
            *used = Instant::now();
            Some(stream)
        })
    }

    pub(crate) fn give_back(&self, mut connection: H1Connection) {
        connection.rest();
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE {
            idle.push_back((Instant::now(), connection));
        }
    }

    /// Closes what has not been used for a while.
    pub fn tidy(&self) {
        let now = Instant::now();
        lock(&self.idle).retain(|(since, _)| now - *since < IDLE);
        lock(&self.shared).retain_mut(|(used, connection)| {
            if connection.active() > 0 {
                *used = now;
            }
            !connection.is_over() && now - *used < IDLE
        });
    }
}

enum Channel {
    H1(H1Connection),
    H2(Stream),
}

/// Has the client's connection end with this reply.
fn closing(mut reply: UpstreamResponse, closes: bool) -> UpstreamResponse {
    if closes && let UpstreamResponse::Response(response) = &mut reply {
        response.extensions_mut().insert(CloseConnection);
    }
    reply
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
