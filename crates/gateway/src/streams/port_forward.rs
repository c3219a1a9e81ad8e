//! A port-forward by WebSocket that is carried upstream by SPDY, which is what the
//! WebSocket carries already (KEP-4006).

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_websocket::Role;
use tokio::io::AsyncWrite as _;
use tokio::time::{Instant, timeout};

use super::Care;
use super::metrics::{Ended, Tally};
use super::relay::{Over, Relay, Went, close_for};
use super::socket::{Left, Socket};
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
        let pulse = self.care.of_client(Instant::now());
        let socket = Socket::new(client, input, Role::Server, pulse);
        let mut relay = Relay::new(io, sent, socket, self.care.idle);
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
        self.tally.end(match &over {
            Over::RawEnded => Ended::Complete,
            Over::RawCut(_) => Ended::CutOff,
            Over::Left(Left::Broke(_)) | Over::NotBinary => Ended::ClientBroke,
            Over::Left(_) | Over::Dead => Ended::ClientLeft,
            Over::Idle => Ended::Idle,
        });
        if let Over::Left(Left::Closed(_)) = &over {
            // Upstream learns that it was no accident.
            let shutdown = poll_fn(|cx| Pin::new(&mut raw.io).poll_shutdown(cx));
            let _ = timeout(GOODBYE, shutdown).await;
        }
        drop((raw, slot));
        let Some(close) = close_for(&over) else {
            return;
        };
        socket.close(close);
        let whole = matches!(over, Over::RawEnded | Over::Left(Left::Closed(_)));
        if socket.finish(self.care.stall).await.is_ok() && whole {
            record.complete();
        }
    }
}
