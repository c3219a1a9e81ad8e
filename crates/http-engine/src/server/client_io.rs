//! The byte stream to a client.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use skewbridge_stream_io::ReadAhead;

use crate::byte_stream::Stream;

/// The byte stream to a client.
pub enum ClientIo {
    /// TLS over TCP.
    Tls(Box<TlsStream<ReadAhead<TcpStream>>>),
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS over any stream, such as a Unix socket.
    TlsOver(Box<TlsStream<Stream>>),
}

impl std::fmt::Debug for ClientIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tls(_) => "ClientIo::Tls",
            Self::Plain(_) => "ClientIo::Plain",
            Self::TlsOver(_) => "ClientIo::TlsOver",
        })
    }
}

impl ClientIo {
    /// Closes the write half without `close_notify`: the client detects the truncation.
    pub async fn cut(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(io) => io.get_mut().0.shutdown().await,
            Self::Plain(io) => io.shutdown().await,
            Self::TlsOver(io) => io.get_mut().0.shutdown().await,
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
            Self::TlsOver(io) => Pin::new(io).poll_read(cx, buf),
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
            Self::TlsOver(io) => Pin::new(io).poll_write(cx, buf),
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
            Self::TlsOver(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tls(io) => io.is_write_vectored(),
            Self::Plain(io) => io.is_write_vectored(),
            Self::TlsOver(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(io) => Pin::new(io).poll_flush(cx),
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::TlsOver(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(io) => Pin::new(io).poll_shutdown(cx),
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::TlsOver(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
