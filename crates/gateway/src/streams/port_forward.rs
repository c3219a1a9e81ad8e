//! A port-forward by WebSocket that is carried upstream by SPDY, which is what the
//! WebSocket carries already (KEP-4006); and the other way round.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_stream_io::{DisconnectReason, PingPolicy, WebSocketConn};
use skewbridge_websocket::{CloseCode, Role};
use tokio::io::{AsyncWrite as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use super::StreamTimeouts;
use super::injected_pings::{InjectedPings, PingRole};
use super::metrics::{StreamEnd, StreamMetricsGuard};
use super::port_forward_relay::{Direction, Relay, RelayEnd, close_for};
use crate::access_log::AccessLogEntry;
use crate::drain::Drain;
use crate::serve::ClientIo;
use crate::upstream::h1::Upgraded;

/// How long upstream may take to hear that the client has left.
const GOODBYE: Duration = Duration::from_secs(2);

/// A port-forward that has begun above, and is about to here.
#[derive(Debug)]
pub(crate) struct WsToSpdyPortForward {
    pub(crate) upstream: Upgraded,
    pub(crate) timeouts: StreamTimeouts,
    pub(crate) drain: Drain,
    pub(crate) stream_metrics: StreamMetricsGuard,
}

impl WsToSpdyPortForward {
    /// Carries it to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, mut record: AccessLogEntry) {
        let Upgraded {
            io,
            input: sent,
            slot,
        } = self.upstream;
        let now = Instant::now();
        let socket = WebSocketConn::new(
            client,
            input,
            Role::Server,
            self.timeouts.client_ws_keepalive(now),
        );
        let pings = InjectedPings::new(PingRole::Client, self.timeouts.upstream_keepalive(), now);
        let mut relay = Relay::new(io, sent, pings, socket, self.timeouts.idle, self.drain);
        let over = poll_fn(|cx| {
            relay.poll(cx, |went, bytes| match went {
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
        let ended = match &over {
            RelayEnd::RawEnded => StreamEnd::Complete,
            RelayEnd::RawLost(_) | RelayEnd::RawDead => StreamEnd::Disconnected,
            RelayEnd::Disconnected(DisconnectReason::ProtocolViolation(_))
            | RelayEnd::NotBinary => StreamEnd::ClientError,
            RelayEnd::Disconnected(_) | RelayEnd::Dead => StreamEnd::ClientLeft,
            RelayEnd::Idle => StreamEnd::Idle,
            RelayEnd::Shutdown => StreamEnd::Aborted,
        };
        if let RelayEnd::Disconnected(DisconnectReason::Closed(_)) = &over {
            // Upstream learns that it was no accident.
            let goodbye = async {
                poll_fn(|cx| raw.poll_flush(cx)).await?;
                poll_fn(|cx| Pin::new(&mut raw.io).poll_shutdown(cx)).await
            };
            let _ = timeout(GOODBYE, goodbye).await;
        }
        drop((raw, slot));
        let Some(close) = close_for(&over) else {
            self.stream_metrics.end(ended);
            return;
        };
        socket.close(close);
        let told = socket.finish(self.timeouts.stall).await.is_ok();
        self.stream_metrics.end(ended.if_delivered(told));
        if told
            && matches!(
                over,
                RelayEnd::RawEnded | RelayEnd::Disconnected(DisconnectReason::Closed(_))
            )
        {
            record.complete();
        }
    }
}

/// A port-forward by SPDY that is carried upstream inside a WebSocket.
#[derive(Debug)]
pub(crate) struct SpdyToWsPortForward {
    pub(crate) upstream: Upgraded,
    pub(crate) timeouts: StreamTimeouts,
    pub(crate) drain: Drain,
    pub(crate) stream_metrics: StreamMetricsGuard,
}

impl SpdyToWsPortForward {
    /// Carries it to its end.
    pub(crate) async fn run(self, client: ClientIo, sent: BytesMut, mut record: AccessLogEntry) {
        let Upgraded { io, input, slot } = self.upstream;
        let now = Instant::now();
        let pulse = self.timeouts.upstream_ws_keepalive(PingPolicy::Always, now);
        let socket = WebSocketConn::new(io, input, Role::Client, pulse);
        let pings = InjectedPings::new(PingRole::Server, self.timeouts.client_keepalive(), now);
        let mut relay = Relay::new(client, sent, pings, socket, self.timeouts.idle, self.drain);
        let over = poll_fn(|cx| {
            relay.poll(cx, |went, bytes| match went {
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
        let whole = match &over {
            RelayEnd::RawEnded => true,
            RelayEnd::Disconnected(DisconnectReason::Closed(Some(close))) => {
                close.code() == CloseCode::NORMAL
            }
            _ => false,
        };
        self.stream_metrics.end(match &over {
            RelayEnd::RawEnded | RelayEnd::RawLost(_) | RelayEnd::RawDead => StreamEnd::ClientLeft,
            RelayEnd::Disconnected(DisconnectReason::Closed(_)) if whole => StreamEnd::Complete,
            RelayEnd::Idle => StreamEnd::Idle,
            RelayEnd::Shutdown => StreamEnd::Aborted,
            _ => StreamEnd::Disconnected,
        });
        if let Some(close) = close_for(&over) {
            socket.close(close);
            let _ = socket.finish(GOODBYE).await;
        }
        drop(slot);
        if matches!(over, RelayEnd::RawDead) {
            return;
        }
        let goodbye = async {
            poll_fn(|cx| raw.poll_flush(cx)).await?;
            if whole {
                raw.io.shutdown().await
            } else {
                raw.io.cut().await
            }
        };
        if matches!(timeout(self.timeouts.stall, goodbye).await, Ok(Ok(()))) && whole {
            record.complete();
        }
    }
}
