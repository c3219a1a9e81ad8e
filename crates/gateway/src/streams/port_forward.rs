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

use super::Care;
use super::interjected::{As, Interjected};
use super::metrics::{Ended, Tally};
use super::relay::{Over, Relay, Went, close_for};
use crate::drain::Drain;
use crate::record::Record;
use crate::serve::ClientIo;
use crate::upstream::h1::Upgraded;

/// How long upstream may take to hear that the client has left.
const GOODBYE: Duration = Duration::from_secs(2);

/// A port-forward that has begun above, and is about to here.
#[derive(Debug)]
pub(crate) struct PortForward {
    pub(crate) upstream: Upgraded,
    pub(crate) care: Care,
    pub(crate) drain: Drain,
    pub(crate) tally: Tally,
}

impl PortForward {
    /// Carries it to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, mut record: Record) {
        let Upgraded {
            io,
            input: sent,
            slot,
        } = self.upstream;
        let now = Instant::now();
        let socket = WebSocketConn::new(client, input, Role::Server, self.care.of_client(now));
        let pings = Interjected::new(As::Client, self.care.pace_of_upstream(), now);
        let mut relay = Relay::new(io, sent, pings, socket, self.care.idle, self.drain);
        let over = poll_fn(|cx| {
            relay.poll(cx, |went, bytes| match went {
                Went::Outwards => self.tally.up(bytes),
                Went::Inwards => {
                    self.tally.down(bytes);
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
            Over::RawEnded => Ended::Complete,
            Over::RawCut(_) | Over::RawDead => Ended::CutOff,
            Over::Disconnected(DisconnectReason::ProtocolViolation(_)) | Over::NotBinary => {
                Ended::ClientBroke
            }
            Over::Disconnected(_) | Over::Dead => Ended::ClientLeft,
            Over::Idle => Ended::Idle,
            Over::Leaving => Ended::Aborted,
        };
        if let Over::Disconnected(DisconnectReason::Closed(_)) = &over {
            // Upstream learns that it was no accident.
            let goodbye = async {
                poll_fn(|cx| raw.poll_flush(cx)).await?;
                poll_fn(|cx| Pin::new(&mut raw.io).poll_shutdown(cx)).await
            };
            let _ = timeout(GOODBYE, goodbye).await;
        }
        drop((raw, slot));
        let Some(close) = close_for(&over) else {
            self.tally.end(ended);
            return;
        };
        socket.close(close);
        let told = socket.finish(self.care.stall).await.is_ok();
        self.tally.end(ended.if_told(told));
        if told
            && matches!(
                over,
                Over::RawEnded | Over::Disconnected(DisconnectReason::Closed(_))
            )
        {
            record.complete();
        }
    }
}

/// A port-forward by SPDY that is carried upstream inside a WebSocket.
#[derive(Debug)]
pub(crate) struct PortForwardToWebSocket {
    pub(crate) upstream: Upgraded,
    pub(crate) care: Care,
    pub(crate) drain: Drain,
    pub(crate) tally: Tally,
}

impl PortForwardToWebSocket {
    /// Carries it to its end.
    pub(crate) async fn run(self, client: ClientIo, sent: BytesMut, mut record: Record) {
        let Upgraded { io, input, slot } = self.upstream;
        let now = Instant::now();
        let pulse = self.care.of_upstream(PingPolicy::Always, now);
        let socket = WebSocketConn::new(io, input, Role::Client, pulse);
        let pings = Interjected::new(As::Server, self.care.pace_of_client(), now);
        let mut relay = Relay::new(client, sent, pings, socket, self.care.idle, self.drain);
        let over = poll_fn(|cx| {
            relay.poll(cx, |went, bytes| match went {
                Went::Inwards => self.tally.up(bytes),
                Went::Outwards => {
                    self.tally.down(bytes);
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
            Over::RawEnded => true,
            Over::Disconnected(DisconnectReason::Closed(Some(close))) => {
                close.code() == CloseCode::NORMAL
            }
            _ => false,
        };
        self.tally.end(match &over {
            Over::RawEnded | Over::RawCut(_) | Over::RawDead => Ended::ClientLeft,
            Over::Disconnected(DisconnectReason::Closed(_)) if whole => Ended::Complete,
            Over::Idle => Ended::Idle,
            Over::Leaving => Ended::Aborted,
            _ => Ended::CutOff,
        });
        if let Some(close) = close_for(&over) {
            socket.close(close);
            let _ = socket.finish(GOODBYE).await;
        }
        drop(slot);
        if matches!(over, Over::RawDead) {
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
        if matches!(timeout(self.care.stall, goodbye).await, Ok(Ok(()))) && whole {
            record.complete();
        }
    }
}
