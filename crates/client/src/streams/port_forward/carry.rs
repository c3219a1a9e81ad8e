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
use tokio::time::timeout;

use super::local::{Closing, Local};
use super::stream::{CHUNK, Company, ErrorEnd, Incoming, PortStream};

/// How long the local program has for reading the last bytes and ending, too: what it
/// still sends nobody takes, and a socket that is closed with something unread in it
/// resets, which may overtake them.
const LINGER: Duration = Duration::from_secs(2);

impl PortStream {
    /// Carries a local connection to the port and back until both have ended, or one
    /// has failed. Each direction ends by itself, after its last byte: the end of one is
    /// none of the other. What was cut off, or left by dropping this, ends by a reset
    /// here ([`Local`]), and never as if it were whole.
    ///
    /// A local program that takes nothing for as long as the pod may take to answer a
    /// ping ([`KeepAlive`](crate::streams::KeepAlive)) and keeps other connections waiting by that is
    /// given up.
    pub async fn carry<T: Local>(mut self, local: T) -> io::Result<()> {
        local.closes(Closing::ByReset);
        let (mut read, mut write) = tokio::io::split(local);
        let reader_ended = {
            let Self {
                sender,
                incoming,
                company,
                patience,
                ..
            } = &mut self;
            let given_all = AtomicBool::new(false);
            let mut up = pin!(take(sender, &mut read));
            let mut down = pin!(async {
                give(incoming, &mut write, company, *patience).await?;
                // Whoever waits for more is told that there is none.
                write.shutdown().await?;
                given_all.store(true, Ordering::Relaxed);
                // Nobody takes anything any more when the pod is done with it.
                match poll_fn(|cx| incoming.error.poll_end(cx)).await {
                    ErrorEnd::Clean | ErrorEnd::Reset => Ok(()),
                    ErrorEnd::Lost => Err(io::Error::new(
                        io::ErrorKind::ConnectionAborted,
                        "the connection to the pod was lost before all was sent",
                    )),
                }
            });
            let mut taken = None;
            poll_fn(|cx| {
                if taken.is_none()
                    && let Poll::Ready(ended) = up.as_mut().poll(cx)
                {
                    taken = Some(ended?);
                }
                let over = down.as_mut().poll(cx)?.is_ready();
                let both = taken.is_some() && given_all.load(Ordering::Relaxed);
                if over || both {
                    return Poll::Ready(Ok::<_, io::Error>(taken == Some(Taken::All)));
                }
                Poll::Pending
            })
            .await?
        };
        if !reader_ended {
            let mut rest = BytesMut::new();
            let ending = async {
                while let Ok(1..) = read.read_buf(&mut rest).await {
                    rest.clear();
                }
            };
            let _ = timeout(LINGER, ending).await;
        }
        read.unsplit(write).closes(Closing::Cleanly);
        Ok(())
    }
}

/// What became of the direction to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The local side has sent its last, and it is on its way.
    All,
    /// The pod takes no more. What it still has to say comes the other way.
    Some,
}

/// From the local side to the pod. Only the local side can fail here.
async fn take(sender: &mut Sender, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Taken> {
    let mut buffer = BytesMut::new();
    loop {
        if poll_fn(|cx| sender.poll_ready(cx)).await.is_err() {
            return Ok(Taken::Some);
        }
        buffer.reserve(CHUNK);
        if from.read_buf(&mut buffer).await? == 0 {
            // One that the other side has ended needs no end.
            let _ = sender.finish();
            return Ok(Taken::All);
        }
        if sender.send(buffer.split().freeze()).is_err() {
            return Ok(Taken::Some);
        }
    }
}

/// From the pod to the local side, to a clean end.
async fn give(
    incoming: &mut Incoming,
    to: &mut (impl AsyncWrite + Unpin),
    company: &Company,
    patience: Duration,
) -> io::Result<()> {
    while let Some(mut piece) = poll_fn(|cx| incoming.poll_piece(cx)).await? {
        company.served();
        while !piece.is_empty() {
            match timeout(patience, to.write(&piece)).await {
                Ok(written) => advance(&mut piece, written?)?,
                Err(_) if incoming.data.is_over_limit() && company.is_any() => {
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

fn advance(piece: &mut Bytes, written: usize) -> io::Result<()> {
    if written == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    piece.advance(written);
    Ok(())
}
