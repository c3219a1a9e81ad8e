//! One connection to a port.

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

/// The longest reason why there is no connection to a port.
const LONGEST_ERROR: usize = 4 * 1024;

/// What is written at once.
pub(super) const CHUNK: usize = 32 * 1024;

/// How long it may take to be told why a connection was reset: the two go out together.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One connection to a port. Ended (shut down) it takes no more, and still gives what
/// comes; dropped, it is reset unless it was ended.
///
/// It is to be read, or to be dropped: where the pod heeds no windows (that is, with
/// every kubelet), what waits here for its reader keeps all connections to the pod
/// waiting. [`PortStream::carry`] sees to that.
#[derive(Debug)]
pub struct PortStream {
    pub(super) sender: Sender,
    pub(super) incoming: Incoming,
    /// Come, and not read.
    piece: Bytes,
    pub(super) company: Company,
    /// How long a local program may keep the others waiting.
    pub(super) patience: Duration,
}

/// What comes from the pod.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) data: Receiver,
    pub(super) error: PortError,
    /// The data were reset; the error stream is waited for.
    cancelled: Option<Pin<Box<Sleep>>>,
}

/// What the other side has to say of a connection, beside its data.
#[derive(Debug)]
pub(super) struct PortError {
    receiver: Receiver,
    text: Vec<u8>,
    end: Option<ErrorEnd>,
}

/// How the stream for errors ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorEnd {
    /// All has been said: nothing, if nothing was.
    Clean,
    /// The other side wants to say no more.
    Reset,
    /// The connection to the pod is over.
    Lost,
}

/// All connections that share the one to the pod.
#[derive(Debug, Default)]
pub(super) struct Everybody {
    open: AtomicUsize,
    /// One of them has been given something.
    served: AtomicBool,
}

impl Everybody {
    /// Whether anything has come for any of them.
    pub(super) fn was_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }
}

/// One of the connections that share the one to the pod, and how many they are.
#[derive(Debug)]
pub(super) struct Company(Arc<Everybody>);

impl Company {
    /// One more, until it is dropped.
    pub(super) fn join(all: &Arc<Everybody>) -> Self {
        all.open.fetch_add(1, Ordering::Relaxed);
        Self(all.clone())
    }

    /// Whether there are others.
    pub(super) fn is_any(&self) -> bool {
        self.0.open.load(Ordering::Relaxed) > 1
    }

    /// Something has come for this one.
    pub(super) fn served(&self) {
        self.0.served.store(true, Ordering::Relaxed);
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PortStream {
    pub(super) fn new(data: Stream, error: Receiver, company: Company, patience: Duration) -> Self {
        Self {
            sender: data.sender,
            incoming: Incoming {
                data: data.receiver,
                error: PortError {
                    receiver: error,
                    text: Vec::new(),
                    end: None,
                },
                cancelled: None,
            },
            piece: Bytes::new(),
            company,
            patience,
        }
    }
}

impl Incoming {
    /// The next bytes; `None` at a clean end.
    ///
    /// Servers end the data of a connection that is over, or reset them when they have
    /// told on the stream for errors how it went. One that is reset while nobody says
    /// that all is well was cut.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let reset = match ready!(self.data.poll_read(cx)) {
            Ok(Some(piece)) => return Poll::Ready(Ok(Some(piece))),
            Ok(None) => {
                // It is written before the data end, so nothing is waited for.
                let _ = self.error.poll_end(cx);
                return Poll::Ready(self.error.told().map_or(Ok(None), Err));
            }
            Err(reset @ StreamError::ResetByRemote(ResetStatus::Cancel)) => reset,
            Err(error) => {
                let _ = self.error.poll_end(cx);
                return Poll::Ready(Err(self.error.told().unwrap_or_else(|| failed(error))));
            }
        };
        let late = self
            .cancelled
            .get_or_insert_with(|| Box::pin(sleep(LAST_WORDS)));
        let end = match self.error.poll_end(cx) {
            Poll::Ready(end) => end,
            Poll::Pending => {
                ready!(late.as_mut().poll(cx));
                ErrorEnd::Reset
            }
        };
        Poll::Ready(match (self.error.told(), end) {
            (Some(told), _) => Err(told),
            (None, ErrorEnd::Clean) => Ok(None),
            (None, ErrorEnd::Reset | ErrorEnd::Lost) => Err(failed(reset)),
        })
    }
}

impl PortError {
    /// Takes what has come; ready at its end.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<ErrorEnd> {
        loop {
            if let Some(end) = self.end {
                return Poll::Ready(end);
            }
            match ready!(self.receiver.poll_read(cx)) {
                Ok(Some(piece)) => {
                    let room = LONGEST_ERROR - self.text.len();
                    self.text.extend_from_slice(&piece[..piece.len().min(room)]);
                }
                Ok(None) => self.end = Some(ErrorEnd::Clean),
                Err(StreamError::Closed(_)) => self.end = Some(ErrorEnd::Lost),
                Err(_) => self.end = Some(ErrorEnd::Reset),
            }
        }
    }

    /// What was said, if anything was.
    pub(super) fn told(&self) -> Option<io::Error> {
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
        while this.piece.is_empty() {
            match ready!(this.incoming.poll_piece(cx))? {
                Some(piece) => {
                    this.company.served();
                    this.piece = piece;
                }
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = this.piece.len().min(buf.remaining());
        buf.put_slice(&this.piece[..length]);
        this.piece.advance(length);
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
        ready!(this.sender.poll_ready(cx)).map_err(failed)?;
        let length = bytes.len().min(CHUNK);
        this.sender
            .send(Bytes::copy_from_slice(&bytes[..length]))
            .map_err(failed)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The driver sends what there is.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // One that the other side has ended needs no end, and none a second time.
        let _ = self.get_mut().sender.finish();
        Poll::Ready(Ok(()))
    }
}

#[allow(clippy::needless_pass_by_value)] // as it is used
pub(super) fn failed(error: StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error.to_string())
}
