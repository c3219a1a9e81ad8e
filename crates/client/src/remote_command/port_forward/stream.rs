//! One stream to a port.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use skewbridge_spdy::StreamError;
use skewbridge_spdy::connection::{Receiver, Sender, Stream};
use skewbridge_spdy::frame::ResetStatus;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The longest error message from the pod.
const MAX_ERROR_BYTES: usize = 4 * 1024;

/// The largest single write.
pub(super) const WRITE_CHUNK_BYTES: usize = 32 * 1024;

/// How long to wait for the error message of a reset stream: the pod sends the two together.
const ERROR_STREAM_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream to a port. After shutdown it accepts no more data but can still be read. Dropping
/// it resets it unless it was shut down.
///
/// It must be read or dropped: if the pod ignores flow-control windows (as every kubelet does),
/// unread data blocks all streams to the pod. [`PortStream::forward`] takes care of that.
#[derive(Debug)]
pub struct PortStream {
    pub(super) sender: Sender,
    pub(super) incoming: Incoming,
    /// Received but not read.
    chunk: Bytes,
    pub(super) guard: StreamGuard,
    /// How long a local program may block other streams.
    pub(super) timeout: Duration,
}

/// The receiving side of a stream.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) data: Receiver,
    pub(super) error: ErrorStream,
    /// Set when the data stream was reset: how long to wait for the error stream.
    reset_timer: Option<Pin<Box<Sleep>>>,
}

/// The error stream of a connection.
#[derive(Debug)]
pub(super) struct ErrorStream {
    receiver: Receiver,
    text: Vec<u8>,
    end: Option<ErrorEnd>,
}

/// How the error stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorEnd {
    /// Cleanly: its message, if any, is complete.
    Clean,
    /// With a reset: there is no further message.
    Reset,
    /// With the connection to the pod.
    Lost,
}

/// All streams that share a connection to a pod.
#[derive(Debug, Default)]
pub(super) struct StreamSet {
    open: AtomicUsize,
    /// Whether data has arrived for any of them.
    received: AtomicBool,
}

impl StreamSet {
    /// Whether data has arrived for any stream.
    pub(super) fn has_received_data(&self) -> bool {
        self.received.load(Ordering::Relaxed)
    }
}

/// Counts a stream while it is open.
#[derive(Debug)]
pub(super) struct StreamGuard(Arc<StreamSet>);

impl StreamGuard {
    /// Adds a stream, until the guard is dropped.
    pub(super) fn join(set: &Arc<StreamSet>) -> Self {
        set.open.fetch_add(1, Ordering::Relaxed);
        Self(set.clone())
    }

    /// Whether there are other streams.
    pub(super) fn has_others(&self) -> bool {
        self.0.open.load(Ordering::Relaxed) > 1
    }

    /// Records that data has arrived.
    pub(super) fn mark_received(&self) {
        self.0.received.store(true, Ordering::Relaxed);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PortStream {
    pub(super) fn new(
        data: Stream,
        error: Receiver,
        guard: StreamGuard,
        timeout: Duration,
    ) -> Self {
        Self {
            sender: data.sender,
            incoming: Incoming {
                data: data.receiver,
                error: ErrorStream {
                    receiver: error,
                    text: Vec::new(),
                    end: None,
                },
                reset_timer: None,
            },
            chunk: Bytes::new(),
            guard,
            timeout,
        }
    }
}

impl Incoming {
    /// The next bytes; `None` at a clean end.
    ///
    /// Servers end the data stream of a finished connection, or reset it after they have
    /// reported the outcome on the error stream. A reset without a clean end of the error
    /// stream means that data was lost.
    pub(super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let reset = match ready!(self.data.poll_read(cx)) {
            Ok(Some(chunk)) => return Poll::Ready(Ok(Some(chunk))),
            Ok(None) => {
                // The error message is sent before the data ends, so there is nothing to wait
                // for.
                let _ = self.error.poll_end(cx);
                return Poll::Ready(self.error.error().map_or(Ok(None), Err));
            }
            Err(reset @ StreamError::ResetByRemote(ResetStatus::Cancel)) => reset,
            Err(error) => {
                let _ = self.error.poll_end(cx);
                return Poll::Ready(Err(self
                    .error
                    .error()
                    .unwrap_or_else(|| stream_error(error))));
            }
        };
        let timer = self
            .reset_timer
            .get_or_insert_with(|| Box::pin(sleep(ERROR_STREAM_TIMEOUT)));
        let end = match self.error.poll_end(cx) {
            Poll::Ready(end) => end,
            Poll::Pending => {
                ready!(timer.as_mut().poll(cx));
                ErrorEnd::Reset
            }
        };
        Poll::Ready(match (self.error.error(), end) {
            (Some(error), _) => Err(error),
            (None, ErrorEnd::Clean) => Ok(None),
            (None, ErrorEnd::Reset | ErrorEnd::Lost) => Err(stream_error(reset)),
        })
    }
}

impl ErrorStream {
    /// Reads the error message; ready at its end.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<ErrorEnd> {
        loop {
            if let Some(end) = self.end {
                return Poll::Ready(end);
            }
            match ready!(self.receiver.poll_read(cx)) {
                Ok(Some(chunk)) => {
                    let room = MAX_ERROR_BYTES - self.text.len();
                    self.text.extend_from_slice(&chunk[..chunk.len().min(room)]);
                }
                Ok(None) => self.end = Some(ErrorEnd::Clean),
                Err(StreamError::Closed(_)) => self.end = Some(ErrorEnd::Lost),
                Err(_) => self.end = Some(ErrorEnd::Reset),
            }
        }
    }

    /// The error message, if there is one.
    pub(super) fn error(&self) -> Option<io::Error> {
        if self.text.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(&self.text);
        Some(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            text.trim().to_owned(),
        ))
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.chunk.is_empty() {
            match ready!(this.incoming.poll_chunk(cx))? {
                Some(chunk) => {
                    this.guard.mark_received();
                    this.chunk = chunk;
                }
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = this.chunk.len().min(buf.remaining());
        buf.put_slice(&this.chunk[..length]);
        this.chunk.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.sender.poll_ready(cx)).map_err(stream_error)?;
        let length = bytes.len().min(WRITE_CHUNK_BYTES);
        this.sender
            .send(Bytes::copy_from_slice(&bytes[..length]))
            .map_err(stream_error)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The driver sends all queued data.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A stream that the remote end has closed, or that was finished before, needs no
        // end-of-file.
        let _ = self.get_mut().sender.finish();
        Poll::Ready(Ok(()))
    }
}

#[allow(clippy::needless_pass_by_value)] // as it is used
pub(super) fn stream_error(error: StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error.to_string())
}
