//! A WebSocket connection: messages in, frames out, and keepalive.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_websocket::{
    Close, Control, ControlPayload, Decoder, Encoder, Event, Frame, Limits, MessageChunk,
    MessageKind, Role, Violation,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

use crate::buffered::Buffered;
use crate::websocket_keepalive::{ByteMark, WebSocketKeepalive, WebSocketKeepaliveAction};
use crate::write_stall_timer::WriteStallTimer;

/// Two TLS records.
const READ_CHUNK_BYTES: usize = 32 * 1024;

/// Chunks are relayed as they arrive, so a message of any length is not buffered.
const LIMITS: Limits = Limits {
    frame: u64::MAX,
    message: u64::MAX,
};

/// One end of a WebSocket connection.
#[derive(Debug)]
pub struct WebSocketConn<T> {
    conn: Buffered<T>,
    role: Role,
    decoder: Decoder,
    encoder: Encoder,
    keepalive: WebSocketKeepalive,
    /// The payload of the last ping that was received.
    ping_payload: ControlPayload,
    /// That ping has not been answered.
    pong_pending: bool,
    received_ping: bool,
}

/// Why the other end disconnected.
#[derive(Debug)]
pub enum DisconnectReason {
    /// The other end sent a close frame.
    Closed(Option<Close>),
    /// The connection ended without a close frame.
    ConnectionLost(io::Error),
    /// The other end violated the protocol.
    ProtocolViolation(Violation),
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocketConn<T> {
    /// Starts after the handshake, of which `input` was read already.
    pub fn new(io: T, input: BytesMut, role: Role, keepalive: WebSocketKeepalive) -> Self {
        let mut conn = Buffered::new(io, READ_CHUNK_BYTES);
        conn.input = input;
        Self {
            conn,
            role,
            decoder: Decoder::new(role, LIMITS),
            encoder: Encoder::new(role),
            keepalive,
            ping_payload: ControlPayload::default(),
            pong_pending: false,
            received_ping: false,
        }
    }

    /// The next chunk of a message. To be called when there is capacity for it: until then the
    /// other end is not read.
    pub fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<MessageChunk, DisconnectReason>> {
        loop {
            match self.decoder.decode(&mut self.conn.input) {
                Ok(Some(Event::Chunk(chunk))) => return Poll::Ready(Ok(chunk)),
                Ok(Some(Event::Control(Control::Ping(payload)))) => {
                    self.ping_payload = payload;
                    self.pong_pending = true;
                    self.received_ping = true;
                }
                Ok(Some(Event::Control(Control::Pong(payload)))) => {
                    // RFC 6455, 5.5: pongs come in the order of the messages.
                    if let Ok(mark) = payload.bytes().as_ref().try_into() {
                        self.keepalive.on_pong(ByteMark(u64::from_be_bytes(mark)));
                    }
                }
                Ok(Some(Event::Control(Control::Close(close)))) => {
                    return Poll::Ready(Err(DisconnectReason::Closed(close)));
                }
                Ok(None) => match ready!(self.conn.poll_fill(cx)) {
                    Ok(0) => {
                        return Poll::Ready(Err(DisconnectReason::ConnectionLost(
                            closed_without_close_frame(),
                        )));
                    }
                    Ok(_) => self.keepalive.on_received(Instant::now()),
                    Err(error) => return Poll::Ready(Err(DisconnectReason::ConnectionLost(error))),
                },
                Err(violation) => {
                    return Poll::Ready(Err(DisconnectReason::ProtocolViolation(violation)));
                }
            }
        }
    }

    /// Whether more may be written.
    pub fn has_room(&self) -> bool {
        self.conn.has_room()
    }

    /// Writes a message with `encode`, which returns the part that is written without being
    /// copied.
    pub fn write(&mut self, encode: impl FnOnce(&mut BytesMut) -> Option<Bytes>) {
        let now = self.ping_before_send();
        let before = self.conn.unsent();
        if let Some(data) = encode(&mut self.conn.output) {
            self.conn.push_data(data);
        }
        let bytes = self.conn.unsent() - before;
        self.keepalive.on_sent(now, bytes);
    }

    /// Writes a binary message.
    pub fn write_binary(&mut self, data: Bytes) {
        let now = self.ping_before_send();
        let bytes = data.len();
        let (frame, output) = (Frame::Whole(MessageKind::Binary), &mut self.conn.output);
        match self.role {
            Role::Client => self.encoder.write(frame, &[&data], output),
            Role::Server => {
                let head = self.encoder.head(frame, data.len());
                output.extend_from_slice(head.as_bytes());
                self.conn.push_data(data);
            }
        }
        self.keepalive.on_sent(now, bytes);
    }

    /// Writes a binary message from these parts, which are copied.
    pub fn write_binary_parts(&mut self, parts: &[&[u8]]) {
        let now = self.ping_before_send();
        let frame = Frame::Whole(MessageKind::Binary);
        self.encoder.write(frame, parts, &mut self.conn.output);
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.keepalive.on_sent(now, bytes);
    }

    /// Sends a ping before data, if one is due.
    fn ping_before_send(&mut self) -> Instant {
        let now = Instant::now();
        let action = self.keepalive.check_before_send(now);
        self.write_ping(action);
        now
    }

    /// Sends no ping while much waits to be sent.
    fn write_ping(&mut self, action: WebSocketKeepaliveAction) {
        let WebSocketKeepaliveAction::Ping(mark) = action else {
            return;
        };
        let mark = Bytes::copy_from_slice(&mark.0.to_be_bytes());
        if self.conn.has_room()
            && let Some(payload) = ControlPayload::new(mark)
        {
            let ping = Control::Ping(payload);
            self.encoder.control(&ping, &mut self.conn.output);
        }
    }

    /// Sends everything that was written. Only the last of several pings is answered (RFC
    /// 6455, 5.5.3), so a client that sends pings and does not read cannot fill the memory.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pong_pending && self.conn.has_room() {
            self.pong_pending = false;
            let pong = Control::Pong(self.ping_payload.clone());
            self.encoder.control(&pong, &mut self.conn.output);
        }
        self.conn.poll_flush(cx)
    }

    /// When to call [`Self::check_keepalive`] again.
    pub fn next_deadline(&self) -> Instant {
        self.keepalive.next_deadline()
    }

    /// Sends a ping if one is due; returns `false` if the other end is dead. Without
    /// `reading`, the last ping of the other end is answered once more: it may wait for the
    /// pong to a ping that lies behind data that is not read (RFC 6455, 5.5.3, allows
    /// unsolicited pongs). A server gets these only if it has ever sent a ping: kube-apiserver
    /// never does and may have ended the command, while a bridge waits for its clients.
    pub fn check_keepalive(&mut self, now: Instant, reading: bool) -> bool {
        let is_time = self.keepalive.next_deadline() <= now;
        if !reading {
            self.keepalive.on_read_paused(now);
            let wants_pongs = self.role == Role::Server || self.received_ping;
            self.pong_pending |= is_time && wants_pongs;
        }
        let action = self.keepalive.check(now);
        self.write_ping(action);
        action != WebSocketKeepaliveAction::Dead
    }

    /// Writes a close frame.
    pub fn close(&mut self, close: Close) {
        let close = Control::Close(Some(close));
        self.encoder.control(&close, &mut self.conn.output);
    }

    /// Sends what is left and waits until the other end has received it, which its own close
    /// frame or the end of the connection shows. Closing the connection while the other end
    /// still sends would lose data in flight to it, which is much for a slow client. There is
    /// no limit while it reads; without progress there is one.
    pub async fn finish(mut self, limit: Duration) -> io::Result<()> {
        let mut stall = WriteStallTimer::new(limit);
        let mut reading = true;
        poll_fn(|cx| {
            let flushed = self.conn.poll_flush(cx);
            // A remote that writes before it reads must not wait for this side.
            while flushed.is_pending() && reading {
                match self.poll_chunk(cx) {
                    Poll::Pending => break,
                    Poll::Ready(chunk) => reading = chunk.is_ok(),
                }
            }
            if flushed.is_ready() {
                return flushed;
            }
            let stalled = stall.poll_stalled(self.conn.sent(), cx);
            stalled.map(|()| Err(io::ErrorKind::TimedOut.into()))
        })
        .await?;
        let io = &mut self.conn.io;
        timeout(limit, poll_fn(|cx| Pin::new(&mut *io).poll_shutdown(cx))).await??;
        let seen = poll_fn(|cx| {
            while reading {
                reading = ready!(self.poll_chunk(cx)).is_ok();
            }
            Poll::Ready(())
        });
        Ok(timeout(limit, seen).await?)
    }
}

fn closed_without_close_frame() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the connection ended without a close frame",
    )
}
