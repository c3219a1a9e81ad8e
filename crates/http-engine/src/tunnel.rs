//! After 101: bytes both ways, until both directions have ended.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_stream_io::{CoalescingReader, READ_AHEAD_BYTES, Rewind, write_chunked};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::client::h1::Upgraded;
use crate::server::ClientIo;

/// As many TLS records as are read ahead: bulk would mostly wait for a system call for each.
const BUFFER_BYTES: usize = READ_AHEAD_BYTES;

/// How long a client may take for the last bytes, and to close, when the server is gone. Closing
/// on what it still sends would reset the connection, and the last bytes with it.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// A direction of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// Copies until both directions have ended. `count` is called with the bytes that were passed on.
/// If a stream breaks, the client's connection is still to be closed ([`CutTunnel::close`]).
///
/// An end in one direction is passed on as an end in that one: exec's stdin ends long before its
/// output. A server that no longer reads may still have much to send (a command that ends before
/// its stdin does): what the client sends is then discarded, and the rest is sent to the client.
/// A stream that breaks is closed without TLS's `close_notify`, so that the other end knows that
/// it was cut.
pub async fn relay<Io: AsyncRead + AsyncWrite + Unpin>(
    client: ClientIo,
    input: BytesMut,
    upstream: Upgraded<Io>,
    count: impl Fn(Direction, usize) + Sync,
) -> Result<(), CutTunnel> {
    let (mut client_reader, mut client_writer) = split(Rewind {
        prefix: input,
        io: client,
    });
    let Upgraded { io, input, guard } = upstream;
    let (mut upstream_reader, mut upstream_writer) = split(Rewind { prefix: input, io });
    let upstream_ended = Notify::new();
    let ended = {
        let mut up = pin!(async {
            let count = |bytes| count(Direction::Up, bytes);
            match pass(&mut client_reader, &mut upstream_writer, count).await {
                Err(Broken::Write(_)) => {
                    let bound = async {
                        upstream_ended.notified().await;
                        sleep(LINGER_TIMEOUT).await;
                    };
                    tokio::select! {
                        discarded = discard(&mut client_reader) => discarded,
                        () = bound => Ok(()),
                    }
                }
                ended => ended,
            }
        });
        let mut down = pin!(async {
            let count = |bytes| count(Direction::Down, bytes);
            let ended = pass(&mut upstream_reader, &mut client_writer, count).await;
            upstream_ended.notify_one();
            ended
        });
        tokio::select! {
            ended = &mut up => match ended {
                Ok(()) => down.await,
                gone => gone,
            },
            ended = &mut down => match ended {
                Ok(()) => up.await,
                cut => cut,
            },
        }
    };
    drop((upstream_reader, upstream_writer, guard));
    let Err(Broken::Read(error) | Broken::Write(error)) = ended else {
        return Ok(());
    };
    tracing::debug!(%error, "a tunnel was cut");
    Err(CutTunnel(client_reader.unsplit(client_writer)))
}

/// The client of a tunnel that was cut.
#[must_use = "the client has to learn that the tunnel was cut"]
pub struct CutTunnel(Rewind<ClientIo>);

impl CutTunnel {
    /// Ends the client's connection behind all that came from the server, without a clean end of
    /// TLS.
    pub async fn close(self) {
        let Self(mut client) = self;
        let _ = timeout(LINGER_TIMEOUT, async {
            if client.io.cut().await.is_ok() {
                let _ = discard(&mut client).await;
            }
        })
        .await;
    }
}

impl std::fmt::Debug for CutTunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CutTunnel").finish_non_exhaustive()
    }
}

/// Which end of a direction has failed.
enum Broken {
    Read(io::Error),
    Write(io::Error),
}

/// One direction, to its end.
async fn pass(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    count: impl Fn(usize),
) -> Result<(), Broken> {
    let mut from = CoalescingReader::new(from);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await.map_err(Broken::Read)?;
        if length == 0 {
            return to.shutdown().await.map_err(Broken::Write);
        }
        let chunk = &buffer[..length];
        write_chunked(to, chunk).await.map_err(Broken::Write)?;
        to.flush().await.map_err(Broken::Write)?;
        count(length);
    }
}

/// Reads one direction to its end, and drops the bytes.
async fn discard(from: &mut (impl AsyncRead + Unpin)) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER_BYTES];
    while from.read(&mut buffer).await.map_err(Broken::Read)? > 0 {}
    Ok(())
}
