//! After 101: bytes both ways, until both sides have said their last.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};

use crate::record::Record;
use crate::serve::ClientIo;
use crate::upstream::h1::Upgraded;

/// One TLS record each way.
const BUFFER: usize = 16 * 1024;

/// Copies until both directions have ended; an end in one is passed on as an
/// end in that one (exec's stdin ends long before its output).
pub(crate) async fn run(client: ClientIo, sent: BytesMut, upstream: Upgraded, mut record: Record) {
    let mut client = Prefixed {
        prefix: sent,
        io: client,
    };
    let Upgraded { io, input, slot } = upstream;
    let mut upstream = Prefixed { prefix: input, io };
    match copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await {
        Ok((_, down)) => {
            record.add_bytes(usize::try_from(down).unwrap_or(usize::MAX));
            record.complete();
        }
        Err(error) => tracing::debug!(%error, "a tunnel was cut"),
    }
    drop(slot);
}

/// A stream whose first bytes have been read already.
struct Prefixed<T> {
    prefix: BytesMut,
    io: T,
}

impl<T: AsyncRead + Unpin> AsyncRead for Prefixed<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.prefix.is_empty() {
            return Pin::new(&mut this.io).poll_read(cx, buf);
        }
        let length = this.prefix.len().min(buf.remaining());
        buf.put_slice(&this.prefix[..length]);
        this.prefix.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Prefixed<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
