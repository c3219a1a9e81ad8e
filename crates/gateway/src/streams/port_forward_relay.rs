//! Bytes on one side that are binary messages on the other: a port-forward, whose
//! SPDY travels inside a WebSocket (KEP-4006). Nothing of it is understood here, but
//! where its frames begin: pings are put between them, and are no reason to keep it.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_remotecommand::port_forward::tunnel::tunnel_payload;
use skewbridge_stream_io::{Buffered, DisconnectReason, FrameScanner, WebSocketConn};
use skewbridge_websocket::{Close, CloseCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::injected_pings::InjectedPings;
use super::timer::{StreamTimer, TimerEvent};
use crate::drain::Drain;

/// Two TLS records at once.
const READ_CHUNK: usize = 32 * 1024;

/// Which way bytes went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Inwards,
    Outwards,
}

/// Why it is over.
#[derive(Debug)]
pub(crate) enum RelayEnd {
    /// The side without messages has said its last.
    RawEnded,
    /// It was cut off.
    RawLost(io::Error),
    /// The WebSocket has been left.
    Disconnected(DisconnectReason),
    /// It carries something else than binary messages.
    NotBinary,
    /// Nobody is at the side without messages any more.
    RawDead,
    /// Nobody is at the WebSocket any more.
    Dead,
    /// Nothing came for too long.
    Idle,
    /// The bridge goes away.
    Shutdown,
}

/// Both sides, in one task.
pub(crate) struct Relay<R, S> {
    pub(crate) raw: Buffered<R>,
    pub(crate) socket: WebSocketConn<S>,
    /// The side without messages takes nothing any more. It may have said its last
    /// before, which is still to be read.
    write_failed: bool,
    idle: Duration,
    /// When something last passed that is no ping.
    last_activity: Instant,
    inwards: FrameScanner,
    outwards: FrameScanner,
    /// All has been read that has come from the side without messages.
    listens: bool,
    /// To the side without messages.
    pings: InjectedPings,
    timer: StreamTimer,
}

impl<R, S> Relay<R, S>
where
    R: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// Between these; of the side without messages, to which the pings go, some bytes
    /// have been read.
    pub(crate) fn new(
        raw: R,
        input: BytesMut,
        pings: InjectedPings,
        socket: WebSocketConn<S>,
        idle: Duration,
        drain: Drain,
    ) -> Self {
        let mut raw = Buffered::new(raw, READ_CHUNK);
        raw.input = input;
        let now = Instant::now();
        Self {
            raw,
            socket,
            write_failed: false,
            idle,
            last_activity: now,
            inwards: FrameScanner::default(),
            outwards: FrameScanner::default(),
            listens: true,
            pings,
            timer: StreamTimer::new(now, drain),
        }
    }

    /// Moves bytes until it is over.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut count: impl FnMut(Direction, usize),
    ) -> Poll<RelayEnd> {
        // Those that are left of a side that has ended come first.
        let raw = self.poll_inwards(cx, &mut count);
        let socket = self.poll_outwards(cx, &mut count);
        let was_full = (!self.raw.has_room(), !self.socket.has_room());
        let _ = self.poll_flush_raw(cx);
        if let Poll::Ready(Err(error)) = self.socket.poll_flush(cx) {
            return Poll::Ready(RelayEnd::Disconnected(DisconnectReason::ConnectionLost(
                error,
            )));
        }
        if (was_full.0 && self.raw.has_room()) || (was_full.1 && self.socket.has_room()) {
            // Nobody has asked the other side since.
            cx.waker().wake_by_ref();
        }
        match (raw, socket) {
            (Poll::Ready(over), _) | (Poll::Pending, Poll::Ready(over)) => Poll::Ready(over),
            (Poll::Pending, Poll::Pending) => self.poll_timer(cx),
        }
    }

    /// Into messages.
    fn poll_inwards(
        &mut self,
        cx: &mut Context<'_>,
        count: &mut impl FnMut(Direction, usize),
    ) -> Poll<RelayEnd> {
        self.listens = false;
        loop {
            while self.socket.has_room() {
                if self.raw.input.is_empty() {
                    match self.raw.poll_fill(cx) {
                        Poll::Pending => {
                            self.listens = true;
                            return Poll::Pending;
                        }
                        Poll::Ready(Ok(0)) => {
                            let rest = self.inwards.withheld_bytes();
                            if !rest.is_empty() {
                                self.socket.write_binary(rest);
                            }
                            return Poll::Ready(RelayEnd::RawEnded);
                        }
                        Poll::Ready(Ok(_)) => {}
                        Poll::Ready(Err(error)) => return Poll::Ready(RelayEnd::RawLost(error)),
                    }
                }
                let now = Instant::now();
                self.pings.heard(now);
                let data = self.raw.input.split().freeze();
                let carries = self.inwards.filter_pings(
                    data,
                    |id| self.pings.is_answer(id),
                    |data| {
                        count(Direction::Inwards, data.len());
                        self.socket.write_binary(data);
                    },
                );
                if carries {
                    self.last_activity = now;
                }
            }
            match self.socket.poll_flush(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(RelayEnd::Disconnected(DisconnectReason::ConnectionLost(
                        error,
                    )));
                }
            }
        }
    }

    /// Out of messages.
    fn poll_outwards(
        &mut self,
        cx: &mut Context<'_>,
        count: &mut impl FnMut(Direction, usize),
    ) -> Poll<RelayEnd> {
        loop {
            while self.write_failed || self.raw.has_room() {
                let chunk = match self.socket.poll_chunk(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(chunk)) => chunk,
                    Poll::Ready(Err(left)) => return Poll::Ready(RelayEnd::Disconnected(left)),
                };
                let Ok(data) = tunnel_payload(chunk) else {
                    return Poll::Ready(RelayEnd::NotBinary);
                };
                if self.write_failed {
                    continue;
                }
                count(Direction::Outwards, data.len());
                self.pass_outwards(data);
            }
            if self.poll_flush_raw(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// With pings between its frames, if it is time for some: when nothing more is there to
    /// be passed on, it may be the middle of one.
    fn pass_outwards(&mut self, mut data: Bytes) {
        let now = Instant::now();
        let pings = &mut self.pings;
        let passed = self
            .outwards
            .scan(&data, |frame, bytes| pings.sent(now, frame, bytes));
        if passed.has_non_ping {
            self.last_activity = now;
        }
        if let Some(between) = passed.last_frame_end {
            let pings = self.pings.look(now);
            if !pings.is_empty() {
                self.raw.push_data(data.split_to(between));
                self.raw.push_data(pings);
            }
        }
        self.raw.push_data(data);
    }

    /// Sends what is written, as long as it is taken.
    fn poll_flush_raw(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.write_failed {
            return Poll::Ready(());
        }
        self.raw.poll_flush(cx).map(|sent| {
            if let Err(error) = sent {
                tracing::debug!(%error, "a tunnel takes no more input");
                self.write_failed = true;
            }
        })
    }

    /// When to look after the side without messages again. In the middle of a frame nothing
    /// can be said to it.
    fn next_ping(&self) -> Option<Instant> {
        if self.can_be_asked() {
            self.pings.next()
        } else {
            self.pings.death()
        }
    }

    fn can_be_asked(&self) -> bool {
        !self.write_failed && self.outwards.at_frame_boundary()
    }

    fn next_deadline(&self) -> Instant {
        let socket = self.socket.next_deadline();
        self.next_ping().map_or(socket, |ping| ping.min(socket))
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        self.timer.set_earlier(self.next_deadline(), cx);
        let due = ready!(self.timer.poll_due(cx));
        if due == TimerEvent::Shutdown {
            return Poll::Ready(RelayEnd::Shutdown);
        }
        let now = Instant::now();
        let bored = self.last_activity + self.idle;
        if now >= bored {
            return Poll::Ready(RelayEnd::Idle);
        }
        if !self.socket.check_keepalive(now, self.raw.has_room()) {
            return Poll::Ready(RelayEnd::Dead);
        }
        if !self.listens {
            self.pings.excuse(now);
        }
        if self.pings.death().is_some_and(|death| death <= now) {
            return Poll::Ready(RelayEnd::RawDead);
        }
        if self.can_be_asked() {
            self.raw.push_data(self.pings.look(now));
        }
        let _ = self.poll_flush_raw(cx);
        if let Poll::Ready(Err(error)) = self.socket.poll_flush(cx) {
            return Poll::Ready(RelayEnd::Disconnected(DisconnectReason::ConnectionLost(
                error,
            )));
        }
        let next = self.next_deadline().min(bored);
        self.timer.set(next, cx);
        Poll::Pending
    }
}

/// What a WebSocket is closed with when the other side is over.
pub(crate) fn close_for(over: &RelayEnd) -> Option<Close> {
    let (code, reason) = match over {
        RelayEnd::RawEnded | RelayEnd::Disconnected(DisconnectReason::Closed(_)) => {
            (CloseCode::NORMAL, String::new())
        }
        RelayEnd::RawLost(error) => (CloseCode::INTERNAL_ERROR, error.to_string()),
        RelayEnd::RawDead => (
            CloseCode::INTERNAL_ERROR,
            "the other side does not answer pings".to_owned(),
        ),
        RelayEnd::NotBinary => (
            CloseCode::UNSUPPORTED_DATA,
            "a tunnel carries binary messages only".to_owned(),
        ),
        RelayEnd::Idle => (CloseCode::GOING_AWAY, "idle for too long".to_owned()),
        RelayEnd::Shutdown => (CloseCode::GOING_AWAY, "the gateway shuts down".to_owned()),
        RelayEnd::Disconnected(DisconnectReason::ProtocolViolation(violation)) => {
            (violation.close_code(), violation.to_string())
        }
        RelayEnd::Disconnected(DisconnectReason::ConnectionLost(_)) | RelayEnd::Dead => {
            return None;
        }
    };
    Some(Close::new(code, &reason))
}
