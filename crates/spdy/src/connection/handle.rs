//! Opening streams, and accepting those of the remote.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::shared::{IncomingStream, PingsBeforeData, Shared};
use super::stream::Stream;
use crate::error::{Closed, OpenError, StreamError};
use crate::frame::{Priority, ResetStatus, StreamId};
use crate::headers::Headers;
use crate::session::OpenOptions;

/// The most pings without a reply.
const MAX_OUTSTANDING_PINGS: usize = 256;

/// Opens streams. Clones refer to the same connection.
pub struct Handle(Arc<Shared>);

/// Why a ping has no reply.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PingError {
    /// Too many pings are without a reply already.
    #[error("too many unanswered pings")]
    TooMany,
    /// The connection has ended.
    #[error(transparent)]
    Closed(#[from] Closed),
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.lock().users += 1;
        Self(shared)
    }

    /// Opens a stream. Does not wait: data is sent once the remote has accepted the stream.
    pub fn open(&self, options: impl Into<OpenOptions>) -> Result<Stream, OpenError> {
        let options = options.into();
        let id = self
            .0
            .update_and_wake(|state| state.session.open(options))?;
        Ok(Stream::new(self.0.clone(), id))
    }

    /// Waits until the remote has answered a ping; returns the round-trip time.
    ///
    /// A missing reply does not mean that the remote is dead, nor does a reply mean that everything
    /// sent before was processed: moby/spdystream hands frames to five workers, pings round-robin.
    /// A worker whose stream is not read answers no pings, and once 50 frames wait for it, the
    /// connection is no longer read.
    pub async fn ping(&self) -> Result<Duration, PingError> {
        let (sender, receiver) = oneshot::channel();
        let start = Instant::now();
        let id = self.0.update_and_wake(|state| {
            if let Some(closed) = state.session.closed() {
                return Err(closed.clone().into());
            }
            if state.pings.len() >= MAX_OUTSTANDING_PINGS {
                return Err(PingError::TooMany);
            }
            let id = state.session.ping();
            state.pings.insert(id, sender);
            Ok(id)
        })?;
        let _pending = PendingPing(&self.0, id);
        match receiver.await {
            Ok(()) => Ok(start.elapsed()),
            Err(_) => Err(self.closed().unwrap_or(Closed::Local).into()),
        }
    }

    /// Sends pings without waiting for their replies.
    pub fn send_pings(&self, count: usize) {
        self.0.update_and_wake(|state| state.ping(count));
    }

    /// Sets a callback that is called before data of a stream is sent, and returns how many
    /// such pings to send before it.
    pub fn set_pings_before_data(&self, count: impl FnMut() -> usize + Send + 'static) {
        self.0.lock().pings_before_data = Some(PingsBeforeData(Box::new(count)));
    }

    /// Resets a stream that was never opened. The remote ignores it, but middleboxes see
    /// traffic, also where a ping would wait behind data that is not read.
    pub fn send_noop_reset(&self, stream: StreamId) {
        self.0
            .update_and_wake(|state| state.session.send_noop_reset(stream));
    }

    /// Accepts and opens no more streams. The connection ends once the open streams have ended
    /// and everything is sent.
    pub fn close(&self) {
        let waiting = self.0.update_and_wake(|state| {
            state.session.shut_down();
            state.opened_waker.take()
        });
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    /// Whether the connection is not read now, because too much waits here: for the reader of
    /// a stream ([`super::Receiver::is_over_limit`]), or to be sent. Meanwhile nothing is
    /// received, including replies to pings.
    pub fn is_read_paused(&self) -> bool {
        !self.0.lock().session.wants_input()
    }

    /// Why the connection has ended, if it has.
    pub fn closed(&self) -> Option<Closed> {
        self.0.lock().session.closed().cloned()
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        shut_down_if_last(&self.0);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

fn shut_down_if_last(shared: &Shared) {
    shared.update_and_wake(|state| {
        state.users -= 1;
        if state.users == 0 {
            state.session.shut_down();
        }
    });
}

/// Removes a ping whose caller has been cancelled.
struct PendingPing<'a>(&'a Shared, u32);

impl Drop for PendingPing<'_> {
    fn drop(&mut self) {
        self.0.lock().pings.remove(&self.1);
    }
}

/// The streams that the remote opens. When this is dropped, they are refused.
pub struct Incoming(Arc<Shared>);

impl Incoming {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.lock().users += 1;
        Self(shared)
    }

    /// The next stream; `None` when no more can come.
    pub async fn next(&mut self) -> Option<Request> {
        let opened = poll_fn(|context| {
            let mut state = self.0.lock();
            if let Some(opened) = state.opened.pop_front() {
                return Poll::Ready(Some(opened));
            }
            if state.session.accepts_no_streams() {
                return Poll::Ready(None);
            }
            state.opened_waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await?;
        Some(Request {
            shared: self.0.clone(),
            opened: Some(opened),
        })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.0.update_and_wake(|state| {
            state.accepts = false;
            for opened in std::mem::take(&mut state.opened) {
                state.refuse(opened.stream);
            }
        });
        shut_down_if_last(&self.0);
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

/// A request of the remote to open a stream. When this is dropped, it is refused.
pub struct Request {
    shared: Arc<Shared>,
    opened: Option<IncomingStream>,
}

/// The headers of a request that was answered.
static NO_HEADERS: Headers = Headers::new();

impl Request {
    /// The headers of the stream.
    pub fn headers(&self) -> &Headers {
        self.opened.as_ref().map_or(&NO_HEADERS, |it| &it.headers)
    }

    /// The priority of the stream.
    pub fn priority(&self) -> Priority {
        self.opened
            .as_ref()
            .map(|it| it.priority)
            .unwrap_or_default()
    }

    /// Accepts the stream.
    pub fn accept(mut self, headers: Headers) -> Result<Stream, StreamError> {
        let Some(opened) = self.opened.take() else {
            return Err(Closed::Local.into());
        };
        let stream = Stream::new(self.shared.clone(), opened.stream);
        self.shared
            .update_and_wake(|state| state.session.accept(opened.stream, headers))?;
        Ok(stream)
    }

    /// Refuses the stream with this status.
    pub fn refuse(mut self, status: ResetStatus) {
        if let Some(opened) = self.opened.take() {
            self.shared.update_and_wake(|state| {
                state.session.reset(opened.stream, status);
                state.refuse(opened.stream);
            });
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(opened) = self.opened.take() {
            self.shared
                .update_and_wake(|state| state.refuse(opened.stream));
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.opened).finish()
    }
}
