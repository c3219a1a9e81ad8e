//! Connections that are open, and which of them takes the next request.
//!
//! Each worker has its own pools, so nothing here is ever contended; the locks
//! are there because tasks are `Send`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use tokio::time::Instant;

use super::connect::Spoken;
use super::h1::{H1Connection, headers_for_h1};
use super::h2::{H2Connection, Stream};
use super::{ConnectError, Prefer, Replay, Reply, SendError, Target};
use crate::metrics::{Gauge, Metrics};

/// An unused connection is closed well before upstream would do it
/// (kube-apiserver: 90 s), so that the two do not meet on the wire.
const IDLE: Duration = Duration::from_secs(45);

/// Unused HTTP/1.1 connections that are kept.
const MAX_IDLE: usize = 256;

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
    gauges: Gauges,
}

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
            gauges: Gauges {
                h1: metrics.upstream_connections(leg, "http/1.1"),
                h2: metrics.upstream_connections(leg, "h2"),
                streams: metrics.upstream_streams(leg),
            },
        })
    }

    /// Sends a request. On an error that is safe to repeat, the request comes
    /// back with it.
    pub async fn send(
        self: &Arc<Self>,
        request: &mut Request<Replay>,
        prefer: Prefer,
    ) -> Result<Reply, SendError> {
        self.send_unless(request, prefer, |_, _| false).await
    }

    /// The same, where some answers say that nothing has been done: they are an
    /// error, with which the request comes back too.
    pub async fn send_unless(
        self: &Arc<Self>,
        request: &mut Request<Replay>,
        prefer: Prefer,
        declines: impl Fn(StatusCode, &HeaderMap) -> bool,
    ) -> Result<Reply, SendError> {
        // The parts are borrowed by the connection and needed again if it
        // fails: taken out, and put back.
        let empty = Request::new(request.body().empty());
        let (mut head, mut body) = std::mem::replace(request, empty).into_parts();
        let error = match self.channel(prefer).await {
            Err(error) => error.into(),
            Ok(Channel::H1(connection)) => {
                headers_for_h1(&mut head, prefer);
                match connection.send(&head, &mut body, self).await {
                    Ok(answered) if declines(answered.status(), answered.headers()) => {
                        SendError::Declined(answered.status())
                    }
                    Ok(answered) => {
                        body.forget();
                        return Ok(answered.into_reply(body));
                    }
                    Err(error) => error,
                }
            }
            Ok(Channel::H2(stream)) => match stream.send(&head, &mut body).await {
                Ok(answered) if declines(answered.status(), answered.headers()) => {
                    SendError::Declined(answered.status())
                }
                Ok(answered) => {
                    body.forget();
                    return Ok(answered.into_reply(body));
                }
                Err(error) => error,
            },
        };
        *request = Request::from_parts(head, body);
        Err(error)
    }

    async fn channel(&self, prefer: Prefer) -> Result<Channel, ConnectError> {
        let opened = self.open(prefer).await;
        if opened.is_err() {
            // What comes back may be another server, which speaks more.
            self.h1_only.store(false, Ordering::Relaxed);
            self.h2_only.store(false, Ordering::Relaxed);
        }
        opened
    }

    async fn open(&self, prefer: Prefer) -> Result<Channel, ConnectError> {
        let h2_only = self.h2_only.load(Ordering::Relaxed);
        let h1_only = self.h1_only.load(Ordering::Relaxed);
        match prefer {
            Prefer::H2 if !h1_only => self.h2().await,
            Prefer::H1 if h2_only => self.h2().await,
            Prefer::H1 | Prefer::H2 | Prefer::Upgrade => self.h1(prefer).await,
        }
    }

    async fn h1(&self, prefer: Prefer) -> Result<Channel, ConnectError> {
        // An upgrade takes its connection away for good, and its request must
        // not meet one that upstream is about to close: it gets a new one.
        if prefer != Prefer::Upgrade
            && let Some(connection) = self.take_idle()
        {
            return Ok(Channel::H1(connection));
        }
        match self.target.connect(&["http/1.1"]).await {
            Ok((io, _)) => Ok(Channel::H1(H1Connection::new(
                io,
                Slot::new(&self.gauges.h1),
            ))),
            Err(error) if error.no_common_protocol && prefer == Prefer::H1 => {
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
        let slot = Slot::new(&self.gauges.h2);
        let connection =
            H2Connection::start(io, slot, self.gauges.streams.clone(), self.target.ping)
                .await
                .map_err(|error| self.target.failed(format_args!("HTTP/2: {error}")))?;
        let stream = connection.reserve().ok_or_else(|| {
            self.target
                .failed("HTTP/2: upstream allows no stream at all")
        })?;
        lock(&self.shared).push((Instant::now(), connection));
        Ok(Channel::H2(stream))
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
