//! A byte stream with the two buffers that a message-by-message reader and
//! writer needs: what has been read and not understood, what has been written
//! and not sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::poll_read_buf;

/// No more than this waits to be sent before the source is asked for more:
/// four TLS records.
pub(crate) const HIGH_WATER: usize = 64 * 1024;

/// A byte stream with its buffers.
#[derive(Debug)]
pub(crate) struct Buffered<T> {
    pub(crate) io: T,
    /// Read and not understood.
    pub(crate) input: BytesMut,
    /// Written and not sent.
    pub(crate) output: BytesMut,
    /// How much is asked for at once.
    chunk: usize,
    flushed: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Buffered<T> {
    pub(crate) fn new(io: T, chunk: usize) -> Self {
        Self {
            io,
            input: BytesMut::new(),
            output: BytesMut::new(),
            chunk,
            flushed: true,
        }
    }

    /// Reads some bytes into `input`; 0 is the end.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < self.chunk / 4 {
            self.input.reserve(self.chunk);
        }
        poll_read_buf(Pin::new(&mut self.io), cx, &mut self.input)
    }

    /// Whether the source may be asked for more.
    pub(crate) fn has_room(&self) -> bool {
        self.output.len() < HIGH_WATER
    }

    /// Sends all of `output`.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            self.flushed = false;
            let sent = ready!(Pin::new(&mut self.io).poll_write(cx, &self.output))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.advance(sent);
        }
        if !self.flushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// An idle connection keeps no buffers.
    pub(crate) fn release(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        if self.output.is_empty() {
            self.output = BytesMut::new();
        }
    }
}
