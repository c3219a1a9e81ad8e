//! Fewer system calls below TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

/// Four TLS records.
pub const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Reads ahead: rustls reads 4 KiB at a time, which would be five system calls for each full
/// record. The buffer is allocated only while it holds bytes.
#[derive(Debug)]
pub struct ReadAhead<T> {
    io: T,
    buffer: BytesMut,
}

impl<T> ReadAhead<T> {
    /// Reads from `io`.
    pub fn new(io: T) -> Self {
        Self {
            io,
            buffer: BytesMut::new(),
        }
    }

    /// Yields these bytes, which were read from `io` before, and then reads from it.
    pub fn with_buffered(bytes: BytesMut, io: T) -> Self {
        Self { io, buffer: bytes }
    }

    /// The underlying stream.
    pub fn get_ref(&self) -> &T {
        &self.io
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadAhead<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.buffer.is_empty() {
            if buf.remaining() >= READ_AHEAD_BYTES {
                return Pin::new(&mut this.io).poll_read(cx, buf);
            }
            this.buffer.reserve(READ_AHEAD_BYTES);
            let read = poll_read_buf(Pin::new(&mut this.io), cx, &mut this.buffer);
            if read.is_pending() {
                this.buffer = BytesMut::new();
            }
            ready!(read)?;
        }
        let length = this.buffer.len().min(buf.remaining());
        buf.put_slice(&this.buffer[..length]);
        this.buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadAhead<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
