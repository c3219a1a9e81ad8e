//! From a local connection to a port and back.

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

/// How long the local program has for reading the last bytes and ending, too: what it
/// still sends nobody takes, and a socket that is closed with something unread in it
/// resets, which may overtake them.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

impl PortStream {
    /// Carries a local connection to the port and back until both have ended, or one
    /// has failed. Each direction ends by itself, after its last byte: the end of one is
    /// none of the other. What was cut off, or left by dropping this, ends by a reset
    /// here ([`LocalStream`]), and never as if it were whole.
    ///
    /// A local program that takes nothing for as long as the pod may take to answer a
    /// ping ([`KeepAlive`](crate::streams::KeepAlive)) and keeps other connections waiting by that is
    /// given up.
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
                // Whoever waits for more is told that there is none.
                write.shutdown().await?;
                delivered_all.store(true, Ordering::Relaxed);
                // Nobody takes anything any more when the pod is done with it.
                match poll_fn(|cx| incoming.error.poll_end(cx)).await {
                    ErrorEnd::Clean | ErrorEnd::Reset => Ok(()),
                    ErrorEnd::Lost => Err(io::Error::new(
                        io::ErrorKind::ConnectionAborted,
                        "the connection to the pod was lost before all was sent",
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

/// What became of the direction to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendEnd {
    /// The local side has sent its last, and it is on its way.
    LocalEof,
    /// The pod takes no more. What it still has to say comes the other way.
    RemoteClosed,
}

/// From the local side to the pod. Only the local side can fail here.
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
            // One that the other side has ended needs no end.
            let _ = sender.finish();
            return Ok(SendEnd::LocalEof);
        }
        if sender.send(buffer.split().freeze()).is_err() {
            return Ok(SendEnd::RemoteClosed);
        }
    }
}

/// From the pod to the local side, to a clean end.
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
                Err(_) if incoming.data.is_overfull() && guard.has_others() => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the local side reads nothing, and other connections wait for that",
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
