//! A connection that fails after a given number of written bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};

#[derive(Debug)]
pub(super) struct FaultyIo<T> {
    io: T,
    remaining: Option<usize>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> FaultyIo<T> {
    pub(super) fn new(io: T, remaining: Option<usize>) -> Self {
        Self { io, remaining }
    }

    /// Writes bytes that do not count towards the limit.
    pub(super) async fn write_uncounted(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.write_all(bytes).await
    }

    fn has_failed(&self) -> bool {
        self.remaining == Some(0)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for FaultyIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.remaining == Some(0) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for FaultyIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.has_failed() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let length = self.remaining.unwrap_or(usize::MAX).min(bytes.len());
        let written = std::task::ready!(Pin::new(&mut self.io).poll_write(cx, &bytes[..length]))?;
        if let Some(remaining) = &mut self.remaining {
            *remaining -= written;
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_failed() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
