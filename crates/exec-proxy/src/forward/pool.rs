//! Connections to upstream that are open, and which of them takes the next
//! request.
//!
//! HTTP/2 is spoken wherever upstream does: a handshake may cost a touch of a
//! hardware key, so there are to be few of them. Upgrades need HTTP/1.1 and a
//! connection of their own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::Instant;

use super::body::AnyBody;
use super::dial::{Dial, DialError, Offer, Protocol, Standing};
use super::overheard::Overheard;
use super::refusal::Refusal;
use super::upstream_h1::H1Connection;
use super::upstream_h2::{H2Connection, Place};
use super::{Repeat, Reply};

/// An unused connection is closed well before upstream would do it
/// (kube-apiserver: 90 s), so that the two do not meet on the wire.
const IDLE: Duration = Duration::from_secs(45);

/// Unused HTTP/1.1 connections that are kept: client-go keeps 25 a host.
const MAX_IDLE: usize = 32;

pub(crate) struct Pool {
    dial: Box<dyn Dial>,
    idle: Mutex<VecDeque<(Instant, H1Connection)>>,
    shared: Mutex<Vec<Shared>>,
    /// One connection is opened at a time; who waits shares its outcome.
    opening: Arc<tokio::sync::Mutex<LastFailure>>,
    /// Upstream does not speak HTTP/2.
    h1_only: AtomicBool,
}

/// When a connection could not be opened, and why.
type LastFailure = Option<(Instant, DialError)>;

/// A connection for many requests.
struct Shared {
    used: Instant,
    connection: H2Connection,
    standing: OpenedWith,
}

/// What a connection was opened with.
pub(crate) type OpenedWith = Option<Arc<dyn Standing>>;

enum Channel {
    H1(H1Connection),
    H2(Place, OpenedWith),
}

impl Channel {
    fn standing(&self) -> &OpenedWith {
        match self {
            Self::H1(connection) => connection.standing(),
            Self::H2(_, standing) => standing,
        }
    }
}

impl Pool {
    pub(crate) fn new(dial: Box<dyn Dial>) -> Arc<Self> {
        Arc::new(Self {
            dial,
            idle: Mutex::default(),
            shared: Mutex::default(),
            opening: Arc::default(),
            h1_only: AtomicBool::new(false),
        })
    }

    /// Sends a request and gives the head of its answer.
    pub(crate) async fn send(
        self: &Arc<Self>,
        head: &Parts,
        body: AnyBody,
        repeat: Repeat,
        offer: Offer,
    ) -> Result<Reply, Refusal> {
        let channel = match offer {
            Offer::Http1 => self.fresh().await,
            Offer::Either => self.open().await,
        };
        let channel = channel.map_err(|error| Refusal::Unreachable(error.to_string()))?;
        let standing = channel.standing().clone();
        let reply = match channel {
            Channel::H1(connection) => connection.send(head, body, repeat, self).await,
            Channel::H2(place, _) => place.send(head, body).await,
        }?;
        match (reply, standing) {
            (Reply::Response(response, body), Some(standing))
                if response.status() == StatusCode::UNAUTHORIZED =>
            {
                let body: AnyBody = if standing.is_passed_on(head.uri.path()) {
                    Box::new(Overheard::new(body, standing, head.headers.clone()))
                } else {
                    standing.refused(&head.headers);
                    body
                };
                Ok(Reply::Response(response, body))
            }
            (reply, _) => Ok(reply),
        }
    }

    /// An upgrade takes its connection away for good, and its request must not
    /// meet one that upstream is about to close: it gets a new one.
    async fn fresh(self: &Arc<Self>) -> Result<Channel, DialError> {
        self.begin(Offer::Http1, None).await
    }

    async fn open(self: &Arc<Self>) -> Result<Channel, DialError> {
        self.tidy();
        if let Some(channel) = self.waiting() {
            return Ok(channel);
        }
        if self.h1_only.load(Ordering::Relaxed) {
            return self.begin(Offer::Either, None).await;
        }
        let asked = Instant::now();
        let turn = self.opening.clone().lock_owned().await;
        if let Some(channel) = self.waiting() {
            return Ok(channel);
        }
        if let Some((at, error)) = &*turn
            && *at >= asked
        {
            return Err(error.clone());
        }
        self.begin(Offer::Either, Some(turn)).await
    }

    /// Opens a connection in a task of its own, which has the turn until it is open: whoever
    /// has begun it may leave, and others wait for it. A key may have been touched for it, so
    /// it is kept then. Whoever dials has set a time limit, and with it to the task.
    async fn begin(
        self: &Arc<Self>,
        offer: Offer,
        turn: Option<OwnedMutexGuard<LastFailure>>,
    ) -> Result<Channel, DialError> {
        let (tell, told) = oneshot::channel();
        let pool = self.clone();
        tokio::spawn(async move {
            let opened = pool.connect(offer).await;
            let mut turn = turn;
            if let (Some(turn), Err(error)) = (&mut turn, &opened) {
                **turn = Some((Instant::now(), error.clone()));
            }
            // What has places for many is among the others already.
            if let Err(Ok(Channel::H1(connection))) = tell.send(opened) {
                pool.give_back(connection);
            }
        });
        told.await
            .unwrap_or_else(|_| Err(DialError::new("opening a connection was broken off")))
    }

    async fn connect(&self, offer: Offer) -> Result<Channel, DialError> {
        let dialled = self.dial.dial(offer).await?;
        let spoken = match offer {
            Offer::Http1 => Protocol::Http1,
            Offer::Either => {
                let is_h1 = dialled.protocol == Protocol::Http1;
                self.h1_only.store(is_h1, Ordering::Relaxed);
                dialled.protocol
            }
        };
        if spoken == Protocol::Http1 {
            let connection = H1Connection::new(dialled.stream, dialled.standing);
            return Ok(Channel::H1(connection));
        }
        let failed = |cause: String| DialError::new(format!("HTTP/2 to the server: {cause}"));
        let connection = H2Connection::start(dialled.stream)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let place = connection.reserve();
        let place = place.ok_or_else(|| failed("it allows no stream at all".to_owned()))?;
        let standing = dialled.standing;
        lock(&self.shared).push(Shared {
            used: Instant::now(),
            connection,
            standing: standing.clone(),
        });
        Ok(Channel::H2(place, standing))
    }

    /// What is open and has room.
    fn waiting(&self) -> Option<Channel> {
        let place = {
            let mut shared = lock(&self.shared);
            // What is under way on one that is let go ends in its own time.
            shared.retain(|it| !it.connection.is_over() && is_good(&it.standing));
            // Fuller ones come first, so that others run empty and can be closed.
            shared.iter_mut().find_map(|it| {
                let place = it.connection.reserve()?;
                it.used = Instant::now();
                Some(Channel::H2(place, it.standing.clone()))
            })
        };
        if place.is_some() {
            return place;
        }
        loop {
            // The one that was used last: the others run out.
            let (_, mut connection) = lock(&self.idle).pop_back()?;
            if is_good(connection.standing()) && !connection.is_stale() {
                return Some(Channel::H1(connection));
            }
        }
    }

    pub(crate) fn give_back(&self, mut connection: H1Connection) {
        connection.rest();
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE {
            idle.push_back((Instant::now(), connection));
        }
    }

    /// Closes what has not been used for a while.
    fn tidy(&self) {
        let now = Instant::now();
        lock(&self.idle).retain(|(since, _)| now - *since < IDLE);
        lock(&self.shared).retain_mut(|it| {
            if it.connection.active() > 0 {
                it.used = now;
            }
            !it.connection.is_over() && now - it.used < IDLE
        });
    }
}

fn is_good(standing: &OpenedWith) -> bool {
    standing.as_ref().is_none_or(|standing| standing.is_good())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics is done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
