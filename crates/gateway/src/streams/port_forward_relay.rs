//! Relays bytes on one side as binary messages on the other: a port-forward, whose SPDY is
//! inside a WebSocket (KEP-4006). Only frame boundaries are parsed: pings are injected there,
//! and do not count as activity.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_http_engine::drain::Drain;
use skewbridge_remotecommand::port_forward::tunnel::tunnel_payload;
use skewbridge_stream_io::{Buffered, DisconnectReason, FrameScanner, WebSocketConn};
use skewbridge_websocket::{Close, CloseCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::injected_pings::InjectedPings;
use super::timer::{StreamTimer, TimerEvent};

/// Two TLS records.
const READ_CHUNK_BYTES: usize = 32 * 1024;

/// Which way bytes were relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Inwards,
    Outwards,
}

/// Why the relay ended.
#[derive(Debug)]
pub(crate) enum RelayEnd {
    /// The raw side ended cleanly.
    RawEnded,
    /// The raw side was lost.
    RawLost(io::Error),
    /// The WebSocket side disconnected.
    Disconnected(DisconnectReason),
    /// The WebSocket side sent a message that is not binary.
    NotBinary,
    /// The raw side is dead.
    RawDead,
    /// The WebSocket side is dead.
    WebSocketDead,
    /// Idle timeout.
    Idle,
    /// The bridge shuts down.
    Shutdown,
}

/// Both sides, in one task.
pub(crate) struct Relay<R, S> {
    pub(crate) raw: Buffered<R>,
    pub(crate) socket: WebSocketConn<S>,
    /// The raw side accepts no more data. What it sent before is still read.
    write_failed: bool,
    idle: Duration,
    /// When anything but a ping was last relayed.
    last_activity: Instant,
    inwards: FrameScanner,
    outwards: FrameScanner,
    /// Whether everything received from the raw side was read.
    raw_is_drained: bool,
    /// To the raw side.
    pings: InjectedPings,
    timer: StreamTimer,
}

impl<R, S> Relay<R, S>
where
    R: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// Relays between these; `input` was read from the raw side, to which the pings go,
    /// already.
    pub(crate) fn new(
        raw: R,
        input: BytesMut,
        pings: InjectedPings,
        socket: WebSocketConn<S>,
        idle: Duration,
        drain: Drain,
    ) -> Self {
        let mut raw = Buffered::new(raw, READ_CHUNK_BYTES);
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
            raw_is_drained: true,
            pings,
            timer: StreamTimer::new(now, drain),
        }
    }

    /// Relays until one side ends.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut count: impl FnMut(Direction, usize),
    ) -> Poll<RelayEnd> {
        // The remaining data of a side that has ended is relayed first.
        let raw = self.poll_bytes_to_messages(cx, &mut count);
        let socket = self.poll_messages_to_bytes(cx, &mut count);
        let was_full = (!self.raw.has_room(), !self.socket.has_room());
        let _ = self.poll_flush_raw(cx);
        if let Poll::Ready(Err(error)) = self.socket.poll_flush(cx) {
            return Poll::Ready(RelayEnd::Disconnected(DisconnectReason::ConnectionLost(
                error,
            )));
        }
        if (was_full.0 && self.raw.has_room()) || (was_full.1 && self.socket.has_room()) {
            // The other side was not polled since.
            cx.waker().wake_by_ref();
        }
        match (raw, socket) {
            (Poll::Ready(end), _) | (Poll::Pending, Poll::Ready(end)) => Poll::Ready(end),
            (Poll::Pending, Poll::Pending) => self.poll_timer(cx),
        }
    }

    /// Bytes into messages.
    fn poll_bytes_to_messages(
        &mut self,
        cx: &mut Context<'_>,
        count: &mut impl FnMut(Direction, usize),
    ) -> Poll<RelayEnd> {
        self.raw_is_drained = false;
        loop {
            while self.socket.has_room() {
                if self.raw.input.is_empty() {
                    match self.raw.poll_fill(cx) {
                        Poll::Pending => {
                            self.raw_is_drained = true;
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
                self.pings.on_received(now);
                let data = self.raw.input.split().freeze();
                let has_non_ping = self.inwards.filter_pings(
                    data,
                    |id| self.pings.on_ping_received(id),
                    |data| {
                        count(Direction::Inwards, data.len());
                        self.socket.write_binary(data);
                    },
                );
                if has_non_ping {
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

    /// Messages into bytes.
    fn poll_messages_to_bytes(
        &mut self,
        cx: &mut Context<'_>,
        count: &mut impl FnMut(Direction, usize),
    ) -> Poll<RelayEnd> {
        loop {
            while self.write_failed || self.raw.has_room() {
                let chunk = match self.socket.poll_chunk(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(chunk)) => chunk,
                    Poll::Ready(Err(reason)) => return Poll::Ready(RelayEnd::Disconnected(reason)),
                };
                let Ok(data) = tunnel_payload(chunk) else {
                    return Poll::Ready(RelayEnd::NotBinary);
                };
                if self.write_failed {
                    continue;
                }
                count(Direction::Outwards, data.len());
                self.write_bytes(data);
            }
            if self.poll_flush_raw(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Injects pings at a frame boundary if they are due: at the end of the data, a frame may
    /// be incomplete.
    fn write_bytes(&mut self, mut data: Bytes) {
        let now = Instant::now();
        let pings = &mut self.pings;
        let scanned = self
            .outwards
            .scan(&data, |frame, bytes| pings.on_sent(now, frame, bytes));
        if scanned.has_non_ping {
            self.last_activity = now;
        }
        if let Some(frame_end) = scanned.last_frame_end {
            let pings = self.pings.check(now);
            if !pings.is_empty() {
                self.raw.push_data(data.split_to(frame_end));
                self.raw.push_data(pings);
            }
        }
        self.raw.push_data(data);
    }

    /// Sends what is written, unless writing has failed.
    fn poll_flush_raw(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.write_failed {
            return Poll::Ready(());
        }
        self.raw.poll_flush(cx).map(|sent| {
            if let Err(error) = sent {
                tracing::debug!(%error, "the raw side of a tunnel accepts no more data");
                self.write_failed = true;
            }
        })
    }

    /// When to check the raw side again. Inside of a frame nothing can be injected.
    fn next_ping(&self) -> Option<Instant> {
        if self.can_inject() {
            self.pings.next_deadline()
        } else {
            self.pings.dead_at()
        }
    }

    fn can_inject(&self) -> bool {
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
        let idle_at = self.last_activity + self.idle;
        if now >= idle_at {
            return Poll::Ready(RelayEnd::Idle);
        }
        if !self.socket.check_keepalive(now, self.raw.has_room()) {
            return Poll::Ready(RelayEnd::WebSocketDead);
        }
        if !self.raw_is_drained {
            self.pings.on_read_paused(now);
        }
        if self.pings.dead_at().is_some_and(|death| death <= now) {
            return Poll::Ready(RelayEnd::RawDead);
        }
        if self.can_inject() {
            self.raw.push_data(self.pings.check(now));
        }
        let _ = self.poll_flush_raw(cx);
        if let Poll::Ready(Err(error)) = self.socket.poll_flush(cx) {
            return Poll::Ready(RelayEnd::Disconnected(DisconnectReason::ConnectionLost(
                error,
            )));
        }
        let next = self.next_deadline().min(idle_at);
        self.timer.set(next, cx);
        Poll::Pending
    }
}

/// The close frame of the WebSocket for each end; `None` if the WebSocket is lost.
pub(crate) fn close_for(end: &RelayEnd) -> Option<Close> {
    let (code, reason) = match end {
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
        RelayEnd::Idle => (CloseCode::GOING_AWAY, "idle timeout".to_owned()),
        RelayEnd::Shutdown => (
            CloseCode::GOING_AWAY,
            "the bridge is shutting down".to_owned(),
        ),
        RelayEnd::Disconnected(DisconnectReason::ProtocolViolation(violation)) => {
            (violation.close_code(), violation.to_string())
        }
        RelayEnd::Disconnected(DisconnectReason::ConnectionLost(_)) | RelayEnd::WebSocketDead => {
            return None;
        }
    };
    Some(Close::new(code, &reason))
}
