//! A tunnel: copies bytes in both directions after 101, until both have ended.

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

/// As many TLS records as are read ahead: bulk transfers would mostly wait for a system call per
/// record otherwise.
const BUFFER_BYTES: usize = READ_AHEAD_BYTES;

/// How long a client may take to read the last bytes and to close after upstream has ended. Closing
/// the connection while the client still sends would reset it, and the last bytes would be lost.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Copies until both directions have ended. The end of one direction is forwarded as a half-close:
/// stdin of exec ends long before its output. An upstream that reads no more may still send data (a
/// command that ends before its stdin): then input of the client is discarded, and the output is
/// still copied.
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
            match copy(&mut client_reader, &mut upstream_writer, count_up).await {
                Err(CopyError::Write(_)) => {
                    let lingered = async {
                        upstream_ended.notified().await;
                        sleep(LINGER_TIMEOUT).await;
                    };
                    tokio::select! {
                        discarded = discard(&mut client_reader) => discarded,
                        () = lingered => Ok(()),
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
            let ended = copy(&mut upstream_reader, &mut client_writer, count).await;
            upstream_ended.notify_one();
            ended
        });
        tokio::select! {
            ended = &mut up => match ended {
                Ok(()) => down.await,
                failed => failed,
            },
            ended = &mut down => match ended {
                Ok(()) => up.await,
                failed => failed,
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
        Err(CopyError::Read(error) | CopyError::Write(error)) => {
            tracing::debug!(%error, "a tunnel was disconnected");
            // After all copied output, without a TLS close_notify.
            let mut client = client_reader.unsplit(client_writer);
            let _ = timeout(LINGER_TIMEOUT, async {
                if client.io.cut().await.is_ok() {
                    let _ = discard(&mut client).await;
                }
            })
            .await;
        }
    }
    drop(slot);
}

/// The side of a direction that has failed.
enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies one direction to its end.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut count: impl FnMut(usize),
) -> Result<(), CopyError> {
    let mut from = CoalescingReader::new(from);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await.map_err(CopyError::Read)?;
        if length == 0 {
            return to.shutdown().await.map_err(CopyError::Write);
        }
        let piece = &buffer[..length];
        write_chunked(to, piece).await.map_err(CopyError::Write)?;
        to.flush().await.map_err(CopyError::Write)?;
        count(length);
    }
}

/// Reads and discards to the end.
async fn discard(from: &mut (impl AsyncRead + Unpin)) -> Result<(), CopyError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    while from.read(&mut buffer).await.map_err(CopyError::Read)? > 0 {}
    Ok(())
}
