//! A byte stream with what has been read and not understood, and what has been
//! written and not sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use skewbridge_client::Stream;
use tokio::io::{AsyncRead as _, AsyncWrite as _};
use tokio_util::io::poll_read_buf;

/// No more than this waits to be sent before the source is asked for more: four
/// TLS records.
const HIGH_WATER: usize = 64 * 1024;

/// What is asked for at once: two TLS records.
const CHUNK: usize = 32 * 1024;

/// A byte stream with its buffers.
pub(crate) struct Wire {
    io: Stream,
    pub(crate) input: BytesMut,
    pub(crate) output: BytesMut,
    /// What was written below has also left TLS.
    flushed: bool,
    /// How often something has been handed to the stream below.
    handed: u64,
}

impl Wire {
    pub(crate) fn new(io: Stream) -> Self {
        Self {
            io,
            input: BytesMut::new(),
            output: BytesMut::new(),
            flushed: true,
            handed: 0,
        }
    }

    /// Reads some bytes into `input`; 0 is the end.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < CHUNK / 4 {
            self.input.reserve(CHUNK);
        }
        poll_read_buf(Pin::new(&mut self.io), cx, &mut self.input)
    }

    /// Sends all that has been written.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            self.flushed = false;
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.output));
            // Also if it has failed: TLS may have sent some of it before.
            self.handed += 1;
            let written = written?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.advance(written);
        }
        if !self.flushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Says goodbye, so that the other end does not take it for a cut.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    /// Whether the source may be asked for more.
    pub(crate) fn has_room(&self) -> bool {
        self.output.len() < HIGH_WATER
    }

    /// How often something has been handed to the stream below, whatever came of it. As
    /// long as this stays the same, nothing can have left.
    pub(crate) fn handed(&self) -> u64 {
        self.handed
    }

    /// Whether the other end has closed it, or said what nobody asked for.
    pub(crate) fn is_stale(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(std::task::Waker::noop());
        !self.input.is_empty()
            || Pin::new(&mut self.io)
                .poll_read(&mut cx, &mut tokio::io::ReadBuf::new(&mut byte))
                .is_ready()
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

    /// The stream, and what of it has been read already.
    pub(crate) fn into_parts(self) -> (Stream, BytesMut) {
        (self.io, self.input)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;

    /// As TLS does: some of it leaves, and then the connection is lost, all in one call.
    struct LostInTheMiddle;

    impl AsyncRead for LostInTheMiddle {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for LostInTheMiddle {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_tls_was_given_may_have_left_though_it_failed() {
        let mut wire = Wire::new(Box::new(LostInTheMiddle));
        let before = wire.handed();
        poll_fn(|cx| wire.poll_flush(cx)).await.unwrap();
        assert_eq!(wire.handed(), before, "there was nothing to hand over");
        wire.output.extend_from_slice(b"POST / HTTP/1.1\r\n\r\n");
        assert!(poll_fn(|cx| wire.poll_flush(cx)).await.is_err());
        assert_ne!(wire.handed(), before);
    }
}
