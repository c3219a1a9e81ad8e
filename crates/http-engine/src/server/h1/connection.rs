//! The connection: its stream, and the body of the request that is being answered.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::BytesMut;
use http::{Request, Version};
use skewbridge_stream_io::Buffered;

use crate::body::{BodyError, BodySource, Frame, PollFrame, RequestBody};
use crate::http1::{BodyEvent, Decoder, Framing, RequestHead};
use crate::message_headers::expects_continue;
use crate::server::ClientIo;

/// Read size: a request is a head and perhaps an object.
const READ_CHUNK_BYTES: usize = 8 * 1024;

/// How much of pipelined requests is buffered. The rest stays in the socket buffer.
const MAX_PIPELINED_BYTES: usize = 64 * 1024;

/// The connection, shared by its loop and the request body. Both run in one task, so the lock is
/// never contended.
#[derive(Debug, Clone)]
pub(super) struct Connection(Arc<Mutex<Shared>>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stream: Buffered<ClientIo>,
    pub(super) body: Decoder,
    /// The client waits for `100 Continue` before it sends its body.
    pub(super) expects_continue: bool,
    /// The client disconnected before its body was complete.
    pub(super) disconnected: bool,
    /// Bytes that the client has sent.
    pub(super) received: u64,
}

impl Connection {
    pub(super) fn new(io: ClientIo) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            stream: Buffered::new(io, READ_CHUNK_BYTES),
            body: Framing::Empty.decoder(),
            expects_continue: false,
            disconnected: false,
            received: 0,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic while the lock is held ends the connection's task anyway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, head: RequestHead) -> Request<RequestBody> {
        let mut shared = self.lock();
        shared.body = head.framing.decoder();
        shared.expects_continue = head.version == Version::HTTP_11
            && head.framing != Framing::Empty
            && expects_continue(&head.headers);
        let body = if head.framing == Framing::Empty {
            RequestBody::Empty
        } else {
            RequestBody::Stream(Box::new(ClientBody(self.clone())))
        };
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.uri_mut() = head.uri;
        *request.version_mut() = head.version;
        *request.headers_mut() = head.headers;
        request
    }

    /// The stream itself, once nothing else uses it.
    pub(super) fn into_parts(self) -> Option<(ClientIo, BytesMut)> {
        let shared = Arc::into_inner(self.0)?;
        let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        Some((shared.stream.io, shared.stream.input))
    }
}

impl Shared {
    fn poll_body(&mut self, cx: &mut Context<'_>) -> PollFrame {
        if self.expects_continue {
            self.expects_continue = false;
            self.stream
                .output
                .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        loop {
            match self.body.decode(&mut self.stream.input) {
                Ok(Some(BodyEvent::Data(data))) => return Poll::Ready(Some(Ok(Frame::Data(data)))),
                Ok(Some(BodyEvent::Trailers(map))) => {
                    return Poll::Ready(Some(Ok(Frame::Trailers(map))));
                }
                Ok(Some(BodyEvent::End)) => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => {
                    return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
                }
            }
            // The interim response must be sent before the client sends more.
            if let Poll::Ready(Err(error)) = self.stream.poll_flush(cx) {
                return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
            }
            match self.stream.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    self.disconnected = true;
                    let closed = "the connection was closed".to_owned();
                    return Poll::Ready(Some(Err(BodyError::Client(closed))));
                }
                Poll::Ready(Ok(read)) => self.received += read as u64,
                Poll::Ready(Err(error)) => {
                    self.disconnected = true;
                    return Poll::Ready(Some(Err(BodyError::Client(error.to_string()))));
                }
            }
        }
    }

    /// Ready when the client disconnects before the response.
    pub(super) fn poll_disconnect(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.stream.input.len() < MAX_PIPELINED_BYTES {
            match self.stream.poll_fill(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(read)) => {
                    self.received += read as u64;
                    // The body has not read these bytes yet.
                    if !self.body.is_done() {
                        cx.waker().wake_by_ref();
                    }
                }
            }
        }
        Poll::Pending
    }
}

/// The body of the request that is being answered.
#[derive(Debug)]
pub(super) struct ClientBody(Connection);

impl BodySource for ClientBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PollFrame {
        self.0.lock().poll_body(cx)
    }

    /// Counted with the connection.
    fn buffered(&mut self) -> usize {
        0
    }

    fn is_done(&self) -> bool {
        self.0.lock().body.is_done()
    }
}

/// Reads more bytes; 0 at the end of the stream.
pub(super) async fn fill(connection: &Connection) -> io::Result<usize> {
    poll_fn(|cx| connection.lock().stream.poll_fill(cx)).await
}
