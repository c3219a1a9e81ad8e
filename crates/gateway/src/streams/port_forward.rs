//! Port-forward over WebSocket to the client and over SPDY upstream, which the WebSocket
//! already carries (KEP-4006); and the reverse.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_http_engine::drain::Drain;
use skewbridge_http_engine::server::ClientIo;
use skewbridge_stream_io::{DisconnectReason, PingPolicy, WebSocketConn};
use skewbridge_websocket::{CloseCode, Role};
use tokio::io::{AsyncWrite as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use super::StreamTimeouts;
use super::injected_pings::{InjectedPings, PingRole};
use super::port_forward_relay::{Direction, Relay, RelayEnd, close_for};
use crate::access_log::AccessLogEntry;
use crate::metrics::streams::{StreamEnd, StreamMetricsGuard};
use crate::upstream::Upgraded;

/// How long upstream may take to receive the close after the client has disconnected.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A port-forward whose upstream connection is open.
#[derive(Debug)]
pub(crate) struct WsToSpdyPortForward {
    pub(crate) upstream: Upgraded,
    pub(crate) timeouts: StreamTimeouts,
    pub(crate) drain: Drain,
    pub(crate) stream_metrics: StreamMetricsGuard,
}

impl WsToSpdyPortForward {
    /// Relays it to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, mut record: AccessLogEntry) {
        let Upgraded {
            io,
            input: received,
            guard,
        } = self.upstream;
        let now = Instant::now();
        let socket = WebSocketConn::new(
            client,
            input,
            Role::Server,
            self.timeouts.client_ws_keepalive(now),
        );
        let pings = InjectedPings::new(PingRole::Client, self.timeouts.upstream_keepalive(), now);
        let mut relay = Relay::new(io, received, pings, socket, self.timeouts.idle, self.drain);
        let end = poll_fn(|cx| {
            relay.poll(cx, |direction, bytes| match direction {
                Direction::Outwards => self.stream_metrics.up(bytes),
                Direction::Inwards => {
                    self.stream_metrics.down(bytes);
                    record.add_bytes(bytes);
                }
            })
        })
        .await;
        let Relay {
            mut raw,
            mut socket,
            ..
        } = relay;
        let stream_end = match &end {
            RelayEnd::RawEnded => StreamEnd::Complete,
            RelayEnd::RawLost(_) | RelayEnd::RawDead => StreamEnd::Disconnected,
            RelayEnd::Disconnected(DisconnectReason::ProtocolViolation(_))
            | RelayEnd::NotBinary => StreamEnd::ClientError,
            RelayEnd::Disconnected(_) | RelayEnd::WebSocketDead => StreamEnd::ClientLeft,
            RelayEnd::Idle => StreamEnd::Idle,
            RelayEnd::Shutdown => StreamEnd::Aborted,
        };
        if let RelayEnd::Disconnected(DisconnectReason::Closed(_)) = &end {
            // Upstream receives a clean close.
            let closing = async {
                poll_fn(|cx| raw.poll_flush(cx)).await?;
                poll_fn(|cx| Pin::new(&mut raw.io).poll_shutdown(cx)).await
            };
            let _ = timeout(CLOSE_TIMEOUT, closing).await;
        }
        drop((raw, guard));
        let Some(close) = close_for(&end) else {
            self.stream_metrics.end(stream_end);
            return;
        };
        socket.close(close);
        let delivered = socket.finish(self.timeouts.stall).await.is_ok();
        self.stream_metrics.end(stream_end.if_delivered(delivered));
        if delivered
            && matches!(
                end,
                RelayEnd::RawEnded | RelayEnd::Disconnected(DisconnectReason::Closed(_))
            )
        {
            record.complete();
        }
    }
}

/// Port-forward over SPDY to the client and inside a WebSocket upstream.
#[derive(Debug)]
pub(crate) struct SpdyToWsPortForward {
    pub(crate) upstream: Upgraded,
    pub(crate) timeouts: StreamTimeouts,
    pub(crate) drain: Drain,
    pub(crate) stream_metrics: StreamMetricsGuard,
}

impl SpdyToWsPortForward {
    /// Relays it to its end.
    pub(crate) async fn run(
        self,
        client: ClientIo,
        received: BytesMut,
        mut record: AccessLogEntry,
    ) {
        let Upgraded { io, input, guard } = self.upstream;
        let now = Instant::now();
        let keepalive = self.timeouts.upstream_ws_keepalive(PingPolicy::Always, now);
        let socket = WebSocketConn::new(io, input, Role::Client, keepalive);
        let pings = InjectedPings::new(PingRole::Server, self.timeouts.client_keepalive(), now);
        let mut relay = Relay::new(
            client,
            received,
            pings,
            socket,
            self.timeouts.idle,
            self.drain,
        );
        let end = poll_fn(|cx| {
            relay.poll(cx, |direction, bytes| match direction {
                Direction::Inwards => self.stream_metrics.up(bytes),
                Direction::Outwards => {
                    self.stream_metrics.down(bytes);
                    record.add_bytes(bytes);
                }
            })
        })
        .await;
        let Relay {
            mut raw,
            mut socket,
            ..
        } = relay;
        let is_complete = match &end {
            RelayEnd::RawEnded => true,
            RelayEnd::Disconnected(DisconnectReason::Closed(Some(close))) => {
                close.code() == CloseCode::NORMAL
            }
            _ => false,
        };
        self.stream_metrics.end(match &end {
            RelayEnd::RawEnded | RelayEnd::RawLost(_) | RelayEnd::RawDead => StreamEnd::ClientLeft,
            RelayEnd::Disconnected(DisconnectReason::Closed(_)) if is_complete => {
                StreamEnd::Complete
            }
            RelayEnd::Idle => StreamEnd::Idle,
            RelayEnd::Shutdown => StreamEnd::Aborted,
            _ => StreamEnd::Disconnected,
        });
        if let Some(close) = close_for(&end) {
            socket.close(close);
            let _ = socket.finish(CLOSE_TIMEOUT).await;
        }
        drop(guard);
        if matches!(end, RelayEnd::RawDead) {
            return;
        }
        let closing = async {
            poll_fn(|cx| raw.poll_flush(cx)).await?;
            if is_complete {
                raw.io.shutdown().await
            } else {
                raw.io.cut().await
            }
        };
        if matches!(timeout(self.timeouts.stall, closing).await, Ok(Ok(()))) && is_complete {
            record.complete();
        }
    }
}
