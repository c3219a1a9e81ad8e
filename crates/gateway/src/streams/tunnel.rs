//! After 101: bytes both ways, until both sides have said their last.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_stream_io::{CoalescingReader, READ_AHEAD_BYTES, Rewind, write_chunked};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::access_log::AccessLogEntry;
use crate::metrics::streams::{StreamEnd, StreamMetricsGuard};
use crate::serve::ClientIo;
use crate::upstream::h1::Upgraded;

/// As many TLS records as are read ahead: a system call for each of them is what bulk
/// would mostly wait for.
const BUFFER: usize = READ_AHEAD_BYTES;

/// How long a client may take for the last bytes, and to close, when upstream
/// is gone. Closing on what it still sends would reset the connection, and the
/// last bytes with it.
const LINGER: Duration = Duration::from_secs(5);

/// Copies until both directions have ended; an end in one is passed on as an
/// end in that one (exec's stdin ends long before its output). An upstream that
/// no longer listens may still have much to say (a command that ends before its
/// stdin does): what the client sends then goes nowhere, and the rest comes down.
pub(crate) async fn run(
    client: ClientIo,
    sent: BytesMut,
    upstream: Upgraded,
    mut record: AccessLogEntry,
    stream_metrics: Option<StreamMetricsGuard>,
) {
    let Upgraded { io, input, slot } = upstream;
    let (mut client_reader, mut client_writer) = split(Rewind {
        prefix: sent,
        io: client,
    });
    let (mut upstream_reader, mut upstream_writer) = split(Rewind { prefix: input, io });
    let mut down_bytes = 0;
    let upstream_ended = Notify::new();
    let count_up = |bytes| {
        if let Some(stream_metrics) = &stream_metrics {
            stream_metrics.up(bytes);
        }
    };
    let ended = {
        let mut up = pin!(async {
            match pass(&mut client_reader, &mut upstream_writer, count_up).await {
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
            let count = |bytes| {
                down_bytes += bytes;
                if let Some(stream_metrics) = &stream_metrics {
                    stream_metrics.down(bytes);
                }
            };
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
    record.add_bytes(down_bytes);
    drop((upstream_reader, upstream_writer));
    if let Some(stream_metrics) = stream_metrics {
        stream_metrics.end(match &ended {
            Ok(()) => StreamEnd::Complete,
            Err(_) => StreamEnd::Disconnected,
        });
    }
    match ended {
        Ok(()) => record.complete(),
        Err(Broken::Read(error) | Broken::Write(error)) => {
            tracing::debug!(%error, "a tunnel was cut");
            // Behind all that came down, and without a clean end of TLS.
            let mut client = client_reader.unsplit(client_writer);
            let _ = timeout(LINGER, async {
                if client.io.cut().await.is_ok() {
                    let _ = swallow(&mut client).await;
                }
            })
            .await;
        }
    }
    drop(slot);
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
    mut count: impl FnMut(usize),
) -> Result<(), Broken> {
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
        count(length);
    }
}

/// One direction, to nowhere.
async fn swallow(from: &mut (impl AsyncRead + Unpin)) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER];
    while from.read(&mut buffer).await.map_err(Broken::Read)? > 0 {}
    Ok(())
}
