//! Forwards a local connection to a port.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use skewbridge_spdy::connection::Sender;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time;

use super::local::{CloseMode, LocalStream};
use super::stream::{ErrorEnd, Incoming, PortStream, StreamGuard, WRITE_CHUNK_BYTES};

/// How long the local program has to read the last bytes and close. Its further data is
/// discarded: closing a socket with unread data sends a reset, which may overtake the last
/// bytes.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

impl PortStream {
    /// Forwards a local connection to the port until both directions have ended, or one has
    /// failed. Each direction ends on its own, after its last byte. If the connection is lost,
    /// or this future is dropped, the local connection is reset ([`LocalStream`]): truncated
    /// data never looks complete.
    ///
    /// A local program that reads nothing for the keepalive timeout
    /// ([`KeepAlive`](crate::remote_command::KeepAlive)) and thereby blocks other connections is
    /// disconnected.
    pub async fn forward<T: LocalStream>(mut self, local: T) -> io::Result<()> {
        local.set_close_mode(CloseMode::Reset);
        let (mut read, mut write) = tokio::io::split(local);
        let local_sent_all = {
            let Self {
                sender,
                incoming,
                guard,
                timeout,
                ..
            } = &mut self;
            let delivered_all = AtomicBool::new(false);
            let mut to_pod = pin!(copy_to_pod(sender, &mut read));
            let mut to_local = pin!(async {
                copy_to_local(incoming, &mut write, guard, *timeout).await?;
                // Sends end-of-file to the local program.
                write.shutdown().await?;
                delivered_all.store(true, Ordering::Relaxed);
                // When the pod is done, no further data is accepted.
                match poll_fn(|cx| incoming.error.poll_end(cx)).await {
                    ErrorEnd::Clean | ErrorEnd::Reset => Ok(()),
                    ErrorEnd::Lost => Err(io::Error::new(
                        io::ErrorKind::ConnectionAborted,
                        "the connection to the pod was lost before all data was sent",
                    )),
                }
            });
            let mut send_end = None;
            poll_fn(|cx| {
                if send_end.is_none()
                    && let Poll::Ready(ended) = to_pod.as_mut().poll(cx)
                {
                    send_end = Some(ended?);
                }
                let pod_done = to_local.as_mut().poll(cx)?.is_ready();
                let both_ended = send_end.is_some() && delivered_all.load(Ordering::Relaxed);
                if pod_done || both_ended {
                    return Poll::Ready(Ok::<_, io::Error>(send_end == Some(SendEnd::LocalEof)));
                }
                Poll::Pending
            })
            .await?
        };
        if !local_sent_all {
            let mut rest = BytesMut::new();
            let drain = async {
                while let Ok(1..) = read.read_buf(&mut rest).await {
                    rest.clear();
                }
            };
            let _ = time::timeout(LINGER_TIMEOUT, drain).await;
        }
        read.unsplit(write).set_close_mode(CloseMode::Graceful);
        Ok(())
    }
}

/// How the direction to the pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendEnd {
    /// The local side has sent its last byte, which is on its way.
    LocalEof,
    /// The pod accepts no more data. The other direction carries the reason.
    RemoteClosed,
}

/// Copies from the local side to the pod. Only the local side can fail here.
async fn copy_to_pod(
    sender: &mut Sender,
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<SendEnd> {
    let mut buffer = BytesMut::new();
    loop {
        if poll_fn(|cx| sender.poll_ready(cx)).await.is_err() {
            return Ok(SendEnd::RemoteClosed);
        }
        buffer.reserve(WRITE_CHUNK_BYTES);
        if from.read_buf(&mut buffer).await? == 0 {
            // A stream that the remote end has closed needs no end-of-file.
            let _ = sender.finish();
            return Ok(SendEnd::LocalEof);
        }
        if sender.send(buffer.split().freeze()).is_err() {
            return Ok(SendEnd::RemoteClosed);
        }
    }
}

/// Copies from the pod to the local side, up to a clean end.
async fn copy_to_local(
    incoming: &mut Incoming,
    to: &mut (impl AsyncWrite + Unpin),
    guard: &StreamGuard,
    timeout: Duration,
) -> io::Result<()> {
    while let Some(mut chunk) = poll_fn(|cx| incoming.poll_chunk(cx)).await? {
        guard.mark_received();
        while !chunk.is_empty() {
            match time::timeout(timeout, to.write(&chunk)).await {
                Ok(written) => advance(&mut chunk, written?)?,
                Err(_) if incoming.data.is_over_limit() && guard.has_others() => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the local side reads nothing and blocks other connections",
                    ));
                }
                Err(_) => {}
            }
        }
    }
    Ok(())
}

fn advance(chunk: &mut Bytes, written: usize) -> io::Result<()> {
    if written == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    chunk.advance(written);
    Ok(())
}
