//! OpenOptions streams, and taking those of the other side.

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

/// The most pings that wait for an answer.
const MAX_OUTSTANDING_PINGS: usize = 256;

/// Opens streams. Clones are the same connection.
pub struct Handle(Arc<Shared>);

/// Why a ping has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PingError {
    /// So many wait already that one more would not tell anything.
    #[error("too many pings without an answer")]
    TooMany,
    /// The connection is over.
    #[error(transparent)]
    Closed(#[from] Closed),
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.lock().users += 1;
        Self(shared)
    }

    /// Opens a stream. Nothing waits: what is written to it is sent when the other
    /// side has answered.
    pub fn open(&self, opening: impl Into<OpenOptions>) -> Result<Stream, OpenError> {
        let opening = opening.into();
        let id = self
            .0
            .update_and_wake(|state| state.session.open(opening))?;
        Ok(Stream::new(self.0.clone(), id))
    }

    /// Waits until the other side has answered a ping; gives how long it took.
    ///
    /// That there is no answer does not mean that nobody is there, nor does an answer
    /// mean that all was taken that was sent before: moby/spdystream gives what it reads
    /// to five workers, pings to each in turn. One whose stream nobody reads answers
    /// nothing, and when 50 frames wait for it, nothing more is read at all.
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
        let _forget = PendingPing(&self.0, id);
        match receiver.await {
            Ok(()) => Ok(start.elapsed()),
            Err(_) => Err(self.closed().unwrap_or(Closed::Local).into()),
        }
    }

    /// Sends so many pings, for whose answers nobody here waits.
    pub fn send_pings(&self, count: usize) {
        self.0.update_and_wake(|state| state.ping(count));
    }

    /// Whenever data of a stream is about to be sent, this says how many such pings go
    /// before it.
    pub fn set_pings_before_data(&self, count: impl FnMut() -> usize + Send + 'static) {
        self.0.lock().pings_before_data = Some(PingsBeforeData(Box::new(count)));
    }

    /// Ends a stream that never was, if it is none. The other side makes nothing of it, but
    /// those who stand between hear that the connection lives, also where a ping would wait
    /// behind what nobody reads.
    pub fn send_noop_reset(&self, stream: StreamId) {
        self.0
            .update_and_wake(|state| state.session.send_noop_reset(stream));
    }

    /// Takes and opens no more streams. When those that there are have ended, and
    /// all is sent, the connection ends.
    pub fn close(&self) {
        let waiting = self.0.update_and_wake(|state| {
            state.session.shut_down();
            state.opened_waker.take()
        });
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    /// Whether nothing is read from the connection just now, because more waits here
    /// than should: for the reader of a stream ([`super::Receiver::is_over_limit`]), or to
    /// be sent. What the other side says meanwhile, answers to pings included, is not
    /// heard.
    pub fn is_read_paused(&self) -> bool {
        !self.0.lock().session.wants_input()
    }

    /// Why the connection is over, when it is.
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

/// A ping for whose answer nobody waits any longer.
struct PendingPing<'a>(&'a Shared, u32);

impl Drop for PendingPing<'_> {
    fn drop(&mut self) {
        self.0.lock().pings.remove(&self.1);
    }
}

/// The streams that the other side opens. When this is dropped, they are refused.
pub struct Incoming(Arc<Shared>);

impl Incoming {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.lock().users += 1;
        Self(shared)
    }

    /// The next one; `None` when no more can come.
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

/// A stream that the other side asks for. When this is dropped, it is refused.
pub struct Request {
    shared: Arc<Shared>,
    opened: Option<IncomingStream>,
}

/// What a request says that has been answered: nothing any more.
static NO_HEADERS: Headers = Headers::new();

impl Request {
    /// What it is for.
    pub fn headers(&self) -> &Headers {
        self.opened.as_ref().map_or(&NO_HEADERS, |it| &it.headers)
    }

    /// How much it matters to the other side.
    pub fn priority(&self) -> Priority {
        self.opened
            .as_ref()
            .map(|it| it.priority)
            .unwrap_or_default()
    }

    /// Answers it.
    pub fn accept(mut self, headers: Headers) -> Result<Stream, StreamError> {
        let Some(opened) = self.opened.take() else {
            return Err(Closed::Local.into());
        };
        let stream = Stream::new(self.shared.clone(), opened.stream);
        self.shared
            .update_and_wake(|state| state.session.accept(opened.stream, headers))?;
        Ok(stream)
    }

    /// Refuses it for a reason of its own.
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
