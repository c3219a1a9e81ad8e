//! After 101: bytes both ways, until both directions have ended.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use skewbridge_http_engine::server::ClientIo;
use skewbridge_http_engine::tunnel::{Direction, relay};

use crate::access_log::AccessLogEntry;
use crate::metrics::streams::{StreamEnd, StreamMetricsGuard};
use crate::upstream::Upgraded;

/// Relays until both directions have ended, and counts.
pub(crate) async fn run(
    client: ClientIo,
    sent: BytesMut,
    upstream: Upgraded,
    mut record: AccessLogEntry,
    stream_metrics: Option<StreamMetricsGuard>,
) {
    let down_bytes = AtomicUsize::new(0);
    let count = |direction, bytes| {
        if direction == Direction::ToClient {
            down_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        match (&stream_metrics, direction) {
            (Some(metrics), Direction::ToServer) => metrics.up(bytes),
            (Some(metrics), Direction::ToClient) => metrics.down(bytes),
            (None, _) => {}
        }
    };
    let ended = relay(client, sent, upstream, count).await;
    record.add_bytes(down_bytes.into_inner());
    if let Some(stream_metrics) = stream_metrics {
        stream_metrics.end(match &ended {
            Ok(()) => StreamEnd::Complete,
            Err(_) => StreamEnd::Disconnected,
        });
    }
    match ended {
        Ok(()) => record.complete(),
        Err(cut) => cut.close().await,
    }
}
