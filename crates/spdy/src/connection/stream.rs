//! A stream and its two halves.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::shared::Shared;
use crate::error::StreamError;
use crate::frame::{ResetStatus, StreamId};
use crate::headers::Headers;
use crate::session::Half;

/// A stream. Its halves can be moved out and used separately.
#[derive(Debug)]
pub struct Stream {
    /// The half for writing.
    pub sender: Sender,
    /// The half for reading.
    pub receiver: Receiver,
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, id: StreamId) -> Self {
        Self {
            sender: Sender {
                shared: shared.clone(),
                id,
            },
            receiver: Receiver { shared, id },
        }
    }

    /// The stream id.
    pub fn id(&self) -> StreamId {
        self.sender.id
    }

    /// Waits until the remote has accepted a stream that was opened locally; returns the
    /// headers of its reply.
    pub async fn accepted(&mut self) -> Result<Headers, StreamError> {
        poll_fn(|context| {
            let mut state = self.sender.shared.lock();
            let reply = state.session.poll_reply(self.sender.id);
            if reply.is_pending() {
                state.wait(self.sender.id, Half::Sender, context);
            }
            reply
        })
        .await
    }

    /// Resets the stream in both directions.
    pub fn reset(self, status: ResetStatus) {
        self.sender.reset(status);
    }
}

/// The half of a stream for writing. Dropped before [`Sender::finish`], it resets the stream.
pub struct Sender {
    shared: Arc<Shared>,
    id: StreamId,
}

impl Sender {
    /// Waits for capacity, and queues `data`. It may be of any size and is not copied.
    ///
    /// If it is cancelled while it waits, no data was written.
    pub async fn write(&mut self, data: Bytes) -> Result<(), StreamError> {
        let mut data = Some(data);
        poll_fn(|context| {
            ready!(self.poll_ready(context))?;
            Poll::Ready(self.send(data.take().unwrap_or_default()))
        })
        .await
    }

    /// Whether there is capacity for more.
    pub fn poll_ready(&mut self, context: &Context<'_>) -> Poll<Result<(), StreamError>> {
        let mut state = self.shared.lock();
        let room = state.session.poll_capacity(self.id);
        if room.is_pending() {
            state.wait(self.id, Half::Sender, context);
        }
        room
    }

    /// Waits until nothing more can be written: the remote has reset the stream, or the connection
    /// has ended. An application without data to write would not detect that otherwise.
    pub async fn stopped(&mut self) -> StreamError {
        poll_fn(|context| {
            let mut state = self.shared.lock();
            if let Poll::Ready(Err(error)) = state.session.poll_capacity(self.id) {
                return Poll::Ready(error);
            }
            state.wait(self.id, Half::Sender, context);
            Poll::Pending
        })
        .await
    }

    /// Queues `data` even without capacity. A caller that does not use
    /// [`Sender::poll_ready`] is responsible for the memory.
    pub fn send(&mut self, data: Bytes) -> Result<(), StreamError> {
        self.shared
            .update_and_wake_if_needed(|state| state.session.write(self.id, data))
    }

    /// Closes this half after everything that was written. The other half stays open.
    pub fn finish(&mut self) -> Result<(), StreamError> {
        self.shared
            .update_and_wake_if_needed(|state| state.session.finish(self.id))
    }

    /// Waits until everything that was written has been handed to the connection, or can no longer
    /// be.
    pub async fn flushed(&mut self) {
        poll_fn(|context| {
            let mut state = self.shared.lock();
            let sent = state.session.poll_sent(self.id);
            if sent.is_pending() {
                state.wait(self.id, Half::Sender, context);
            }
            sent
        })
        .await;
    }

    /// Resets the stream in both directions.
    pub fn reset(self, status: ResetStatus) {
        self.shared
            .update_and_wake(|state| state.session.reset(self.id, status));
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared
            .update_and_wake(|state| state.release(self.id, Half::Sender));
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&self.id).finish()
    }
}

/// The half of a stream for reading.
pub struct Receiver {
    shared: Arc<Shared>,
    id: StreamId,
}

impl Receiver {
    /// The next bytes, never empty; `None` at the end of the stream.
    ///
    /// Only `None` is a clean end. Data received before a reset or a failure is returned
    /// first, then the error. Kubernetes' servers end all streams of an exec with
    /// [`ResetStatus::Cancel`] after they have reported its result.
    ///
    /// If it is cancelled, no data was read.
    pub async fn read(&mut self) -> Result<Option<Bytes>, StreamError> {
        poll_fn(|context| self.poll_read(context)).await
    }

    /// The poll version of [`Receiver::read`].
    pub fn poll_read(&mut self, context: &Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        self.shared.update_and_wake_if_needed(|state| {
            let read = state.session.poll_read(self.id);
            if read.is_pending() {
                state.wait(self.id, Half::Receiver, context);
            }
            read
        })
    }

    /// Whether so much waits to be read here that the connection is not read any more, for any
    /// of its streams. This happens only with a remote that has no flow control.
    pub fn is_over_limit(&self) -> bool {
        self.shared.lock().session.is_over_limit(self.id)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared
            .update_and_wake(|state| state.release(self.id, Half::Receiver));
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&self.id).finish()
    }
}
