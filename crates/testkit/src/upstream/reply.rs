use std::sync::Arc;

use bytes::Bytes;
use h2::Reason;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::wire::Fields;
use crate::{Connection, PATIENCE};

/// What an [`ApiServer`](super::ApiServer) answers.
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

/// The test's end of a streamed body: the events of a watch, one by one. Dropping it breaks the
/// answer off, as a crash of the server would; [`BodySender::finish`] ends it in good order.
#[derive(Debug)]
pub struct BodySender {
    pieces: mpsc::Sender<Piece>,
    state: watch::Receiver<StreamState>,
}

/// The client went away before the body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

/// The test's end of an upgraded connection.
#[derive(Debug)]
pub struct Upgrade(oneshot::Receiver<Connection>);

#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    End(Fields),
}

/// The server's end of a streamed body. Dropped before the end, it says that the client
/// cancelled.
#[derive(Debug)]
pub(super) struct BodyStream {
    pub(super) pieces: mpsc::Receiver<Piece>,
    state: watch::Sender<StreamState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Open,
    Finished,
    Cancelled,
}

impl Reply {
    /// An answer without a body.
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

    /// 200 with a body that the test sends piece by piece.
    pub fn stream() -> (Self, BodySender) {
        // One piece waits while another is written: a test feels the client's windows.
        let (sender, pieces) = mpsc::channel(1);
        let (state, watched) = watch::channel(StreamState::Open);
        let mut reply = Self::new(200);
        reply.payload = Payload::Stream(BodyStream { pieces, state });
        let sender = BodySender {
            pieces: sender,
            state: watched,
        };
        (reply, sender)
    }

    /// 101 for an HTTP/1.1 request; the connection is the test's from there on.
    pub fn upgrade(protocol: &str) -> (Self, Upgrade) {
        let (sender, receiver) = oneshot::channel();
        let mut reply = Self::new(101)
            .header("Connection", "Upgrade")
            .header("Upgrade", protocol);
        reply.payload = Payload::Upgrade(sender);
        (reply, Upgrade(receiver))
    }

    /// No answer: over HTTP/2 the stream is reset for this reason, over HTTP/1.1 the
    /// connection is closed.
    pub fn reset(reason: Reason) -> Self {
        let mut reply = Self::new(500);
        reply.payload = Payload::Reset(reason);
        reply
    }

    /// The same with another status.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// The same with one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.payload = Payload::Whole(body.into());
        self
    }

    /// The same with one more trailer; over HTTP/1.1 the body is chunked then.
    #[must_use]
    pub fn trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, sent only after `notify.notify_one()`, be it before the request or after.
    #[must_use]
    pub fn after(mut self, notify: &Arc<Notify>) -> Self {
        self.after = Some(Arc::clone(notify));
        self
    }
}

impl BodySender {
    /// Sends a piece: over HTTP/1.1 one chunk, over HTTP/2 one DATA or more. At most one piece
    /// waits; the next send waits for the client to take it.
    pub async fn send(&self, piece: impl Into<Bytes>) -> Result<(), Cancelled> {
        let piece = Piece::Data(piece.into());
        self.pieces.send(piece).await.map_err(|_| Cancelled)
    }

    /// Ends the body.
    pub async fn finish(self) -> Result<(), Cancelled> {
        self.finish_with(&[]).await
    }

    /// Ends the body with trailers.
    pub async fn finish_with(self, trailers: &[(&str, &str)]) -> Result<(), Cancelled> {
        let owned = trailers.iter().map(|&(n, v)| (n.to_owned(), v.to_owned()));
        let end = Piece::End(owned.collect());
        self.pieces.send(end).await.map_err(|_| Cancelled)
    }

    /// Waits until the client has cancelled the answer: reset its stream, or left.
    ///
    /// # Panics
    /// When that takes longer than [`PATIENCE`].
    pub async fn cancelled(&self) {
        let mut state = self.state.clone();
        let cancelled = state.wait_for(|state| *state == StreamState::Cancelled);
        assert!(
            matches!(tokio::time::timeout(PATIENCE, cancelled).await, Ok(Ok(_))),
            "the client did not cancel the answer"
        );
    }

    /// Whether the client has cancelled the answer by now.
    pub fn is_cancelled(&self) -> bool {
        *self.state.borrow() == StreamState::Cancelled
    }
}

impl Upgrade {
    /// The connection, once 101 is sent.
    ///
    /// # Panics
    /// When the server did not send it.
    pub async fn connection(self) -> Connection {
        match tokio::time::timeout(PATIENCE, self.0).await {
            Ok(Ok(connection)) => connection,
            _ => panic!("the connection was not upgraded"),
        }
    }
}

impl BodyStream {
    /// The whole body is written.
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
