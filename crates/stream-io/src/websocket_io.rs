//! A WebSocket as a byte stream: writes become binary messages, and the payloads of binary
//! messages are read. Port-forward by WebSocket carries SPDY this way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use skewbridge_remotecommand::port_forward::tunnel::tunnel_payload;
use skewbridge_websocket::{Close, CloseCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::websocket_conn::{DisconnectReason, WebSocketConn};

/// The longest message: messages may be split anywhere, so none need be longer than one write.
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

/// A WebSocket as a byte stream. It sends no pings of its own, so keepalive belongs to the
/// protocol inside; pings of the other end are answered.
#[derive(Debug)]
pub struct WebSocketIo<T> {
    socket: WebSocketConn<T>,
    /// Received and not read.
    chunk: Bytes,
    closed: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocketIo<T> {
    /// For this WebSocket.
    pub fn new(socket: WebSocketConn<T>) -> Self {
        Self {
            socket,
            chunk: Bytes::new(),
            closed: false,
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.socket.has_room() {
            return Poll::Ready(Ok(()));
        }
        self.socket.poll_flush(cx)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.chunk.is_empty() {
            let chunk = match this.socket.poll_chunk(cx) {
                Poll::Pending => {
                    // Answers pings even if nothing else is to be sent.
                    let _ = this.socket.poll_flush(cx)?;
                    return Poll::Pending;
                }
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(DisconnectReason::Closed(close))) => {
                    let clean = close.is_none_or(|close| close.code() == CloseCode::NORMAL);
                    return Poll::Ready(if clean {
                        Ok(())
                    } else {
                        Err(io::ErrorKind::ConnectionAborted.into())
                    });
                }
                Poll::Ready(Err(DisconnectReason::ConnectionLost(error))) => {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Err(DisconnectReason::ProtocolViolation(violation))) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
                }
            };
            this.chunk = tunnel_payload(chunk)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        let length = this.chunk.len().min(buf.remaining());
        buf.put_slice(&this.chunk[..length]);
        this.chunk.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_room(cx))?;
        let length = bytes.len().min(MAX_MESSAGE_BYTES);
        this.socket.write_binary_parts(&[&bytes[..length]]);
        Poll::Ready(Ok(length))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        /// How many slices make one message.
        const MAX_SLICES: usize = 16;
        let this = self.get_mut();
        ready!(this.poll_room(cx))?;
        let mut parts: [&[u8]; MAX_SLICES] = [&[]; MAX_SLICES];
        let (mut count, mut length) = (0, 0);
        for slice in slices.iter().take(MAX_SLICES) {
            let part = slice.len().min(MAX_MESSAGE_BYTES - length);
            parts[count] = &slice[..part];
            (count, length) = (count + 1, length + part);
        }
        this.socket.write_binary_parts(&parts[..count]);
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().socket.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.closed {
            this.closed = true;
            this.socket.close(Close::new(CloseCode::NORMAL, ""));
        }
        this.socket.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::BytesMut;
    use skewbridge_websocket::Role;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;
    use crate::websocket_keepalive::WebSocketKeepalive;

    fn end(io: tokio::io::DuplexStream, role: Role) -> WebSocketIo<tokio::io::DuplexStream> {
        let keepalive = WebSocketKeepalive::new(
            Instant::now(),
            Duration::from_secs(10),
            Duration::from_secs(5),
        );
        WebSocketIo::new(WebSocketConn::new(io, BytesMut::new(), role, keepalive))
    }

    #[tokio::test]
    async fn bytes_arrive_unchanged_and_end_with_a_close_frame() {
        let (local, remote) = tokio::io::duplex(1000);
        let mut client = end(local, Role::Client);
        let mut server = end(remote, Role::Server);
        let sent: Vec<u8> = (0..200_000u32).map(|it| (it % 251) as u8).collect();
        let all = sent.clone();
        let writing = async move {
            client.write_all(&all).await?;
            client.shutdown().await
        };
        let mut received = Vec::new();
        let (written, read) = tokio::join!(writing, server.read_to_end(&mut received));
        written.unwrap();
        read.unwrap();
        assert!(received == sent);
    }

    #[tokio::test]
    async fn an_end_without_a_close_frame_is_an_error() {
        let (local, remote) = tokio::io::duplex(1000);
        let mut client = end(local, Role::Client);
        let mut server = end(remote, Role::Server);
        client.write_all(b"x").await.unwrap();
        client.flush().await.unwrap();
        drop(client);
        let mut received = Vec::new();
        let error = server.read_to_end(&mut received).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(received, b"x");
    }
}
