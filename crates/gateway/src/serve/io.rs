//! The byte stream to a client.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use skewbridge_stream_io::ReadAhead;

/// The byte stream to a client: TLS, or plain TCP for the admin listener.
#[derive(Debug)]
pub enum ClientIo {
    /// The main port.
    Tls(Box<TlsStream<ReadAhead<TcpStream>>>),
    /// The admin listener on loopback.
    Plain(TcpStream),
}

impl ClientIo {
    /// Ends what is sent without TLS's farewell: it was not the whole.
    pub(crate) async fn cut(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(io) => io.get_mut().0.shutdown().await,
            Self::Plain(io) => io.shutdown().await,
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(io) => Pin::new(io).poll_read(cx, buf),
            Self::Plain(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(io) => Pin::new(io).poll_write(cx, buf),
            Self::Plain(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tls(io) => io.is_write_vectored(),
            Self::Plain(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(io) => Pin::new(io).poll_flush(cx),
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(io) => Pin::new(io).poll_shutdown(cx),
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
