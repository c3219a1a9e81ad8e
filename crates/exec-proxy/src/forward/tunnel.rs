//! After 101: bytes both ways, until both sides have said their last.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_client::Stream;
use skewbridge_stream_io::{CoalescingReader, write_chunked};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::sync::Notify;
use tokio::time::sleep;

/// Four TLS records: a system call for each is what bulk would mostly wait for.
const BUFFER: usize = 64 * 1024;

/// How long a client may go on sending when upstream is gone: closing on what it
/// still sends would reset the connection, and the last bytes with it.
const LINGER: Duration = Duration::from_secs(5);

/// Upstream after 101.
pub(crate) struct Upgraded {
    pub(crate) io: Stream,
    /// What it sent right behind its 101.
    pub(crate) input: BytesMut,
}

/// Copies until both directions have ended; an end in one is passed on as an end
/// in that one (exec's stdin ends long before its output). An upstream that no
/// longer listens may still have much to say: what the client sends then goes
/// nowhere, and the rest comes down. What breaks is dropped without TLS's
/// farewell, so that the other side knows that it was cut.
pub(crate) async fn run(client: Stream, sent: BytesMut, upstream: Upgraded) {
    let (mut client_reader, mut client_writer) = split(client);
    let (mut upstream_reader, mut upstream_writer) = split(upstream.io);
    let upstream_ended = Notify::new();
    let mut up = pin!(async {
        match pass(sent, &mut client_reader, &mut upstream_writer).await {
            Err(Broken::Write(_)) => {
                let bound = async {
                    upstream_ended.notified().await;
                    sleep(LINGER).await;
                };
                tokio::select! {
                    swallowed = swallow(&mut client_reader) => swallowed,
                    () = bound => Ok(()),
                }
            }
            ended => ended,
        }
    });
    let mut down = pin!(async {
        let ended = pass(upstream.input, &mut upstream_reader, &mut client_writer).await;
        upstream_ended.notify_one();
        ended
    });
    let ended = tokio::select! {
        ended = &mut up => match ended {
            Ok(()) => down.await,
            gone => gone,
        },
        ended = &mut down => match ended {
            Ok(()) => up.await,
            cut => cut,
        },
    };
    if let Err(Broken::Read(error) | Broken::Write(error)) = ended {
        tracing::debug!(%error, "a tunnel was cut");
    }
}

/// Which end of a direction has failed.
enum Broken {
    Read(io::Error),
    Write(io::Error),
}

/// One direction, to its end.
async fn pass(
    first: BytesMut,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Broken> {
    if !first.is_empty() {
        to.write_all(&first).await.map_err(Broken::Write)?;
        to.flush().await.map_err(Broken::Write)?;
    }
    drop(first);
    let mut from = CoalescingReader::new(from);
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await.map_err(Broken::Read)?;
        if length == 0 {
            return to.shutdown().await.map_err(Broken::Write);
        }
        let piece = &buffer[..length];
        write_chunked(to, piece).await.map_err(Broken::Write)?;
        to.flush().await.map_err(Broken::Write)?;
    }
}

/// One direction, to nowhere.
async fn swallow(from: &mut (impl AsyncRead + Unpin)) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER];
    while from.read(&mut buffer).await.map_err(Broken::Read)? > 0 {}
    Ok(())
}
