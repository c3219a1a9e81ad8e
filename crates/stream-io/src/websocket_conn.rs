//! A WebSocket on its connection: events in, frames out, and whether the other
//! end still lives.

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

/// Two TLS records at once.
const READ_CHUNK: usize = 32 * 1024;

/// Pieces are passed on as they come, so that nothing has to be kept of a message,
/// however long it is.
const LIMITS: Limits = Limits {
    frame: u64::MAX,
    message: u64::MAX,
};

/// One end of a WebSocket.
#[derive(Debug)]
pub struct WebSocketConn<T> {
    conn: Buffered<T>,
    role: Role,
    decoder: Decoder,
    encoder: Encoder,
    keepalive: WebSocketKeepalive,
    /// What the other end last asked with.
    ping_payload: ControlPayload,
    /// It has not been answered.
    pong_pending: bool,
    received_ping: bool,
}

/// How the other end left.
#[derive(Debug)]
pub enum DisconnectReason {
    /// It has said so.
    Closed(Option<Close>),
    /// The connection ended without a word.
    ConnectionLost(io::Error),
    /// It broke the rules.
    ProtocolViolation(Violation),
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocketConn<T> {
    /// After the handshake; these bytes have been read already.
    pub fn new(io: T, input: BytesMut, role: Role, keepalive: WebSocketKeepalive) -> Self {
        let mut conn = Buffered::new(io, READ_CHUNK);
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

    /// The next chunk of a message. Whoever asks has room for it: until then the
    /// other end waits.
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
                    // RFC 6455, 5.5: in the order in which all was sent.
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

    /// Writes a message by what encodes it: that gives back what is to follow as it
    /// is.
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

    /// Writes a binary message from these parts, by copying them.
    pub fn write_binary_parts(&mut self, parts: &[&[u8]]) {
        let now = self.ping_before_send();
        let frame = Frame::Whole(MessageKind::Binary);
        self.encoder.write(frame, parts, &mut self.conn.output);
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.keepalive.on_sent(now, bytes);
    }

    /// Asks before, if that is a good time.
    fn ping_before_send(&mut self) -> Instant {
        let now = Instant::now();
        let action = self.keepalive.check_before_send(now);
        self.write_ping(action);
        now
    }

    /// Who has enough to take is not asked.
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

    /// Sends what has been written. Only the last of several pings is answered (RFC
    /// 6455, 5.5.3), so that who asks and takes no answers does not fill our memory.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pong_pending && self.conn.has_room() {
            self.pong_pending = false;
            let pong = Control::Pong(self.ping_payload.clone());
            self.encoder.control(&pong, &mut self.conn.output);
        }
        self.conn.poll_flush(cx)
    }

    /// When to look after it again.
    pub fn next_deadline(&self) -> Instant {
        self.keepalive.next_deadline()
    }

    /// Asks whether it lives, when it is time; `false` if it does not. What it last
    /// asked itself is answered once more if it is not `reading`: it may wait for an
    /// answer to what lies behind data that nobody takes (RFC 6455, 5.5.3, has pongs
    /// that were not asked for). A server only if it has ever asked: kube-apiserver never
    /// does, and may have ended, and a bridge waits for its clients.
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

    /// Says the last word.
    pub fn close(&mut self, close: Close) {
        let close = Control::Close(Some(close));
        self.encoder.control(&close, &mut self.conn.output);
    }

    /// Sends what is left, and waits until the other end has seen it: it says so by
    /// its own close, or leaves. One that is closed upon while it still sends would
    /// lose what is on its way to it, and a slow one has much of that. It may take
    /// its time as long as it takes anything; then there is a limit.
    pub async fn finish(mut self, limit: Duration) -> io::Result<()> {
        let mut stall = WriteStallTimer::new(limit);
        let mut reading = true;
        poll_fn(|cx| {
            let flushed = self.conn.poll_flush(cx);
            // One that writes before it reads must not wait for us.
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
