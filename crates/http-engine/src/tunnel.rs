//! Bidirectional copy after 101, until both directions have ended.

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

/// Copy buffer: the read-ahead size, so that bulk data needs few system calls.
const BUFFER_BYTES: usize = READ_AHEAD_BYTES;

/// Timeout for a client to read the last bytes and close, after the server disconnected. Closing while it
/// still sends would reset the connection and lose those bytes.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// A direction of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Copies until both directions have ended. `count` is called with the number of forwarded bytes.
/// If a stream breaks, the caller must still close the client's connection ([`CutTunnel::close`]).
///
/// A half-close is forwarded: exec's stdin ends long before its output. A server that no longer reads may
/// still send (a command that exits before its stdin ends): further input is discarded, and the rest of the
/// output is forwarded. After an error the stream is closed without `close_notify`, so that the other end
/// detects the truncation.
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
            let count = |bytes| count(Direction::ToServer, bytes);
            match copy(&mut client_reader, &mut upstream_writer, count).await {
                Err(CopyError::Write(_)) => {
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
            let count = |bytes| count(Direction::ToClient, bytes);
            let ended = copy(&mut upstream_reader, &mut client_writer, count).await;
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
    let Err(CopyError::Read(error) | CopyError::Write(error)) = ended else {
        return Ok(());
    };
    tracing::debug!(%error, "a tunnel was cut");
    Err(CutTunnel(client_reader.unsplit(client_writer)))
}

/// The client of a tunnel that was cut.
#[must_use = "the client's connection must be closed, so that the client detects the cut"]
pub struct CutTunnel(Rewind<ClientIo>);

impl CutTunnel {
    /// Closes the client's connection after all bytes that came from the server, without
    /// `close_notify`.
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

/// The end of a direction that failed.
enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies one direction until it ends.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    count: impl Fn(usize),
) -> Result<(), CopyError> {
    let mut from = CoalescingReader::new(from);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await.map_err(CopyError::Read)?;
        if length == 0 {
            return to.shutdown().await.map_err(CopyError::Write);
        }
        let chunk = &buffer[..length];
        write_chunked(to, chunk).await.map_err(CopyError::Write)?;
        to.flush().await.map_err(CopyError::Write)?;
        count(length);
    }
}

/// Reads one direction to its end, and drops the bytes.
async fn discard(from: &mut (impl AsyncRead + Unpin)) -> Result<(), CopyError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    while from.read(&mut buffer).await.map_err(CopyError::Read)? > 0 {}
    Ok(())
}
