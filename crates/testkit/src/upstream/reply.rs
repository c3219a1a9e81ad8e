use std::sync::Arc;

use bytes::Bytes;
use h2::Reason;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::h1_codec::Fields;
use crate::{Connection, TEST_TIMEOUT};

/// The response of an [`ApiServer`](super::ApiServer).
#[derive(Debug)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Fields,
    pub(super) trailers: Fields,
    pub(super) payload: Payload,
    pub(super) after: Option<Arc<Notify>>,
}

#[derive(Debug)]
pub(super) enum Payload {
    Whole(Bytes),
    Stream(BodyStream),
    Upgrade(oneshot::Sender<Connection>),
    Reset(Reason),
}

/// The test's end of a streamed body, for example the events of a watch. Dropping it aborts
/// the response, as a server crash would; [`BodySender::finish`] ends it cleanly.
#[derive(Debug)]
pub struct BodySender {
    parts: mpsc::Sender<BodyPart>,
    state: watch::Receiver<StreamState>,
}

/// The client disconnected before the body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

/// The test's end of an upgraded connection.
#[derive(Debug)]
pub struct Upgrade(oneshot::Receiver<Connection>);

#[derive(Debug)]
pub(super) enum BodyPart {
    Data(Bytes),
    End(Fields),
}

/// The server's end of a streamed body. Dropping it early means that the client has cancelled.
#[derive(Debug)]
pub(super) struct BodyStream {
    pub(super) parts: mpsc::Receiver<BodyPart>,
    state: watch::Sender<StreamState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Open,
    Finished,
    Cancelled,
}

impl Reply {
    /// A response without a body.
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            trailers: Vec::new(),
            payload: Payload::Whole(Bytes::new()),
            after: None,
        }
    }

    /// 200 with a JSON document.
    pub fn json(body: impl Into<Bytes>) -> Self {
        Self::new(200)
            .header("Content-Type", "application/json")
            .body(body)
    }

    /// 200 with a body that the test sends in parts.
    pub fn stream() -> (Self, BodySender) {
        // One part is queued while another is written, so that the client's flow control
        // has an effect.
        let (sender, parts) = mpsc::channel(1);
        let (state, watched) = watch::channel(StreamState::Open);
        let mut reply = Self::new(200);
        reply.payload = Payload::Stream(BodyStream { parts, state });
        let sender = BodySender {
            parts: sender,
            state: watched,
        };
        (reply, sender)
    }

    /// 101 for an HTTP/1.1 request; the connection then belongs to the test.
    pub fn upgrade(protocol: &str) -> (Self, Upgrade) {
        let (sender, receiver) = oneshot::channel();
        let mut reply = Self::new(101)
            .header("Connection", "Upgrade")
            .header("Upgrade", protocol);
        reply.payload = Payload::Upgrade(sender);
        (reply, Upgrade(receiver))
    }

    /// No response: over HTTP/2 the stream is reset with this reason, over HTTP/1.1 the
    /// connection is closed.
    pub fn reset(reason: Reason) -> Self {
        let mut reply = Self::new(500);
        reply.payload = Payload::Reset(reason);
        reply
    }

    /// Sets the status.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.payload = Payload::Whole(body.into());
        self
    }

    /// Adds a trailer; over HTTP/1.1 the body is chunked then.
    #[must_use]
    pub fn trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Delays the response until `notify.notify_one()` is called, before or after the request.
    #[must_use]
    pub fn after(mut self, notify: &Arc<Notify>) -> Self {
        self.after = Some(Arc::clone(notify));
        self
    }
}

impl BodySender {
    /// Sends a part: over HTTP/1.1 one chunk, over HTTP/2 at least one DATA. At most one
    /// part is queued; the next send waits until the client has read it.
    pub async fn send(&self, part: impl Into<Bytes>) -> Result<(), Cancelled> {
        let part = BodyPart::Data(part.into());
        self.parts.send(part).await.map_err(|_| Cancelled)
    }

    /// Ends the body.
    pub async fn finish(self) -> Result<(), Cancelled> {
        self.finish_with(&[]).await
    }

    /// Ends the body with trailers.
    pub async fn finish_with(self, trailers: &[(&str, &str)]) -> Result<(), Cancelled> {
        let owned = trailers.iter().map(|&(n, v)| (n.to_owned(), v.to_owned()));
        let end = BodyPart::End(owned.collect());
        self.parts.send(end).await.map_err(|_| Cancelled)
    }

    /// Waits until the client has cancelled the response: reset its stream, or disconnected.
    ///
    /// # Panics
    /// When that takes longer than [`TEST_TIMEOUT`].
    pub async fn cancelled(&self) {
        let mut state = self.state.clone();
        let cancelled = state.wait_for(|state| *state == StreamState::Cancelled);
        assert!(
            matches!(
                tokio::time::timeout(TEST_TIMEOUT, cancelled).await,
                Ok(Ok(_))
            ),
            "the client did not cancel the answer"
        );
    }

    /// Whether the client has cancelled the response.
    pub fn is_cancelled(&self) -> bool {
        *self.state.borrow() == StreamState::Cancelled
    }
}

impl Upgrade {
    /// The connection, after the 101 is sent.
    ///
    /// # Panics
    /// When the server did not send it.
    pub async fn connection(self) -> Connection {
        match tokio::time::timeout(TEST_TIMEOUT, self.0).await {
            Ok(Ok(connection)) => connection,
            _ => panic!("the connection was not upgraded"),
        }
    }
}

impl BodyStream {
    /// The whole body has been written.
    pub(super) fn finished(&self) {
        self.state.send_replace(StreamState::Finished);
    }
}

impl Drop for BodyStream {
    fn drop(&mut self) {
        self.state.send_if_modified(|state| {
            let cut = *state == StreamState::Open;
            if cut {
                *state = StreamState::Cancelled;
            }
            cut
        });
    }
}
