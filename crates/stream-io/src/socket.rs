//! A WebSocket on its connection: events in, frames out, and whether the other
//! end still lives.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_websocket::{
    Close, Control, ControlPayload, Decoder, Encoder, Event, Frame, Kind, Limits, Piece, Role,
    Violation,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

use crate::buffered::Buffered;
use crate::pulse::{Beat, Mark, Pulse};
use crate::stall::Stall;

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
pub struct Socket<T> {
    wire: Buffered<T>,
    role: Role,
    decoder: Decoder,
    encoder: Encoder,
    pulse: Pulse,
    /// What the other end last asked with.
    echo: ControlPayload,
    /// It has not been answered.
    owes_pong: bool,
    has_asked: bool,
}

/// How the other end left.
#[derive(Debug)]
pub enum Left {
    /// It has said so.
    Closed(Option<Close>),
    /// The connection ended without a word.
    Cut(io::Error),
    /// It broke the rules.
    Broke(Violation),
}

impl<T: AsyncRead + AsyncWrite + Unpin> Socket<T> {
    /// After the handshake; these bytes have been read already.
    pub fn new(io: T, input: BytesMut, role: Role, pulse: Pulse) -> Self {
        let mut wire = Buffered::new(io, READ_CHUNK);
        wire.input = input;
        Self {
            wire,
            role,
            decoder: Decoder::new(role, LIMITS),
            encoder: Encoder::new(role),
            pulse,
            echo: ControlPayload::default(),
            owes_pong: false,
            has_asked: false,
        }
    }

    /// The next piece of a message. Whoever asks has room for it: until then the
    /// other end waits.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, Left>> {
        loop {
            match self.decoder.decode(&mut self.wire.input) {
                Ok(Some(Event::Piece(piece))) => return Poll::Ready(Ok(piece)),
                Ok(Some(Event::Control(Control::Ping(payload)))) => {
                    self.echo = payload;
                    self.owes_pong = true;
                    self.has_asked = true;
                }
                Ok(Some(Event::Control(Control::Pong(payload)))) => {
                    // RFC 6455, 5.5: in the order in which all was sent.
                    if let Ok(mark) = payload.bytes().as_ref().try_into() {
                        self.pulse.answered(Mark(u64::from_be_bytes(mark)));
                    }
                }
                Ok(Some(Event::Control(Control::Close(close)))) => {
                    return Poll::Ready(Err(Left::Closed(close)));
                }
                Ok(None) => match ready!(self.wire.poll_fill(cx)) {
                    Ok(0) => return Poll::Ready(Err(Left::Cut(cut()))),
                    Ok(_) => self.pulse.heard(Instant::now()),
                    Err(error) => return Poll::Ready(Err(Left::Cut(error))),
                },
                Err(violation) => return Poll::Ready(Err(Left::Broke(violation))),
            }
        }
    }

    /// Whether more may be written.
    pub fn has_room(&self) -> bool {
        self.wire.has_room()
    }

    /// Writes a message by what encodes it: that gives back what is to follow as it
    /// is.
    pub fn write(&mut self, encode: impl FnOnce(&mut BytesMut) -> Option<Bytes>) {
        let now = self.about_to_send();
        let before = self.wire.unsent();
        if let Some(data) = encode(&mut self.wire.output) {
            self.wire.push_data(data);
        }
        let bytes = self.wire.unsent() - before;
        self.pulse.sent(now, bytes);
    }

    /// Writes a binary message.
    pub fn binary(&mut self, data: Bytes) {
        let now = self.about_to_send();
        let bytes = data.len();
        let (frame, output) = (Frame::Whole(Kind::Binary), &mut self.wire.output);
        match self.role {
            Role::Client => self.encoder.write(frame, &[&data], output),
            Role::Server => {
                let head = self.encoder.head(frame, data.len());
                output.extend_from_slice(head.as_bytes());
                self.wire.push_data(data);
            }
        }
        self.pulse.sent(now, bytes);
    }

    /// Writes a binary message from these parts, by copying them.
    pub fn binary_from(&mut self, parts: &[&[u8]]) {
        let now = self.about_to_send();
        let frame = Frame::Whole(Kind::Binary);
        self.encoder.write(frame, parts, &mut self.wire.output);
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.pulse.sent(now, bytes);
    }

    /// Asks before, if that is a good time.
    fn about_to_send(&mut self) -> Instant {
        let now = Instant::now();
        let beat = self.pulse.look_ahead(now);
        self.ping(beat);
        now
    }

    /// Who has enough to take is not asked.
    fn ping(&mut self, beat: Beat) {
        let Beat::Ping(mark) = beat else {
            return;
        };
        let mark = Bytes::copy_from_slice(&mark.0.to_be_bytes());
        if self.wire.has_room()
            && let Some(payload) = ControlPayload::new(mark)
        {
            let ping = Control::Ping(payload);
            self.encoder.control(&ping, &mut self.wire.output);
        }
    }

    /// Sends what has been written. Only the last of several pings is answered (RFC
    /// 6455, 5.5.3), so that who asks and takes no answers does not fill our memory.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.owes_pong && self.wire.has_room() {
            self.owes_pong = false;
            let pong = Control::Pong(self.echo.clone());
            self.encoder.control(&pong, &mut self.wire.output);
        }
        self.wire.poll_flush(cx)
    }

    /// When to look after it again.
    pub fn next_look(&self) -> Instant {
        self.pulse.next()
    }

    /// Asks whether it lives, when it is time; `false` if it does not. What it last
    /// asked itself is answered once more if it is not `heeded`: it may wait for an
    /// answer to what lies behind data that nobody takes (RFC 6455, 5.5.3, has pongs
    /// that were not asked for). A server only if it has ever asked: kube-apiserver never
    /// does, and may have ended, and a bridge waits for its clients.
    pub fn look(&mut self, now: Instant, heeded: bool) -> bool {
        let is_time = self.pulse.next() <= now;
        if !heeded {
            self.pulse.excuse(now);
            let wants_pongs = self.role == Role::Server || self.has_asked;
            self.owes_pong |= is_time && wants_pongs;
        }
        let beat = self.pulse.look(now);
        self.ping(beat);
        beat != Beat::Dead
    }

    /// Says the last word.
    pub fn close(&mut self, close: Close) {
        let close = Control::Close(Some(close));
        self.encoder.control(&close, &mut self.wire.output);
    }

    /// Sends what is left, and waits until the other end has seen it: it says so by
    /// its own close, or leaves. One that is closed upon while it still sends would
    /// lose what is on its way to it, and a slow one has much of that. It may take
    /// its time as long as it takes anything; then there is a limit.
    pub async fn finish(mut self, limit: Duration) -> io::Result<()> {
        let mut stall = Stall::new(limit);
        let mut hears = true;
        poll_fn(|cx| {
            let flushed = self.wire.poll_flush(cx);
            // One that writes before it reads must not wait for us.
            while flushed.is_pending() && hears {
                match self.poll_piece(cx) {
                    Poll::Pending => break,
                    Poll::Ready(piece) => hears = piece.is_ok(),
                }
            }
            if flushed.is_ready() {
                return flushed;
            }
            let stalled = stall.poll_too_long(self.wire.sent(), cx);
            stalled.map(|()| Err(io::ErrorKind::TimedOut.into()))
        })
        .await?;
        let io = &mut self.wire.io;
        timeout(limit, poll_fn(|cx| Pin::new(&mut *io).poll_shutdown(cx))).await??;
        let seen = poll_fn(|cx| {
            while hears {
                hears = ready!(self.poll_piece(cx)).is_ok();
            }
            Poll::Ready(())
        });
        Ok(timeout(limit, seen).await?)
    }
}

fn cut() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the connection ended without a close frame",
    )
}
