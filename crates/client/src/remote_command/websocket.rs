//! A command's streams over a WebSocket, with version 5 of the protocol.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use skewbridge_remotecommand::{
    ChannelEvent, ErrorChannel, ErrorChannelEnd, FromServer, Input, Output, Protocol, ToServer,
    Version,
};
use skewbridge_stream_io::{DisconnectReason, PingPolicy, WebSocketConn};
use skewbridge_websocket::{Close, CloseCode, Role};
use tokio::time::{Instant, timeout};

use super::disconnect_message;
use super::exit_status::ExitStatus;
use super::keep_alive::KeepAlive;
use super::stream_buffers::{OutputStream, StdinEvent, StreamBuffers};
use super::timer::Timer;
use super::upgrade::Upgraded;
use crate::transport::Stream;

/// How long the server may take to close the connection after it has sent the exit status.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the final flush may take.
const CLOSE_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Drives a command until it has ended.
pub(crate) async fn drive(upgraded: Upgraded, buffers: Arc<StreamBuffers>, keep_alive: KeepAlive) {
    let Upgraded { io, input, .. } = upgraded;
    let mut session = Session {
        socket: WebSocketConn::new(
            io,
            input,
            Role::Client,
            keep_alive
                .websocket_keepalive()
                .with_policy(PingPolicy::AvoidNearEof),
        ),
        reader: FromServer::new(Protocol::V5),
        writer: ToServer::new(Protocol::V5),
        pending: None,
        write_error: None,
        error_channel: ErrorChannel::new(Version::V5),
        close_deadline: None,
        timer: Timer::new(),
        buffers: &buffers,
    };
    let session_end = poll_fn(|cx| session.poll(cx)).await;
    let Session {
        mut socket,
        error_channel,
        write_error,
        ..
    } = session;
    let end = match &session_end {
        SessionEnd::DisconnectReason(DisconnectReason::Closed(Some(close)))
            if close.code() == CloseCode::NORMAL =>
        {
            ErrorChannelEnd::Clean
        }
        _ => ErrorChannelEnd::Aborted,
    };
    // The exit status is published before the close handshake.
    let cause = || match write_error {
        Some(error) => format!(
            "{}; nothing more could be sent: {error}",
            session_end.cause()
        ),
        None => session_end.cause(),
    };
    buffers.end(ExitStatus::from_outcome(error_channel.end(end), || {
        buffers.disconnected(cause())
    }));
    if let SessionEnd::DisconnectReason(DisconnectReason::Closed(close)) = session_end {
        // RFC 6455, 5.5.1: with the same code.
        socket.close(close.unwrap_or_else(|| Close::new(CloseCode::NORMAL, "")));
        let _ = timeout(CLOSE_FLUSH_TIMEOUT, poll_fn(|cx| socket.poll_flush(cx))).await;
    }
}

/// Why the session ended.
enum SessionEnd {
    DisconnectReason(DisconnectReason),
    /// The server sent a partial exit status, and did not close the connection in time.
    StatusThenSilence,
    /// The server does not answer pings.
    Unresponsive,
    /// The server violated the protocol.
    ProtocolError(String),
}

impl SessionEnd {
    fn cause(&self) -> String {
        match self {
            Self::DisconnectReason(DisconnectReason::Closed(None)) => {
                "the server closed the stream".to_owned()
            }
            Self::DisconnectReason(DisconnectReason::Closed(Some(close))) => {
                let (code, reason) = (close.code().number(), close.reason());
                let colon = if reason.is_empty() { "" } else { ": " };
                format!("the server closed the stream ({code}{colon}{reason})")
            }
            Self::DisconnectReason(DisconnectReason::ConnectionLost(error)) => {
                disconnect_message::of_io(error)
            }
            Self::DisconnectReason(DisconnectReason::ProtocolViolation(violation)) => {
                violation.to_string()
            }
            Self::StatusThenSilence => "the server sent an incomplete exit status".to_owned(),
            Self::Unresponsive => "the server does not answer any more".to_owned(),
            Self::ProtocolError(message) => message.clone(),
        }
    }
}

struct Session<'a> {
    socket: WebSocketConn<Stream>,
    reader: FromServer,
    writer: ToServer,
    /// Received output that does not fit into its buffer.
    pending: Option<ChannelEvent<Output>>,
    /// Why writing failed. Output that the server sent before is still read.
    write_error: Option<std::io::Error>,
    error_channel: ErrorChannel,
    /// When the server must have closed the connection.
    close_deadline: Option<Instant>,
    timer: Timer,
    buffers: &'a StreamBuffers,
}

impl Session<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        self.buffers.register_driver(cx);
        if let Poll::Ready(session_end) = self.poll_incoming(cx) {
            return Poll::Ready(session_end);
        }
        self.poll_outgoing(cx);
        if let Poll::Ready(session_end) = self.poll_timer(cx) {
            return Poll::Ready(session_end);
        }
        if self.write_error.is_some() {
            // Output that the server sent before it closed is still read.
            return self.poll_incoming(cx);
        }
        Poll::Pending
    }

    /// Moves output from the connection to its readers.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        loop {
            match self.pending.take() {
                Some(ChannelEvent::Data(Output::Error, data)) => {
                    self.error_channel.push(&data);
                    if !data.is_empty() {
                        let deadline = Instant::now() + CLOSE_TIMEOUT;
                        self.close_deadline = Some(deadline);
                        self.timer
                            .set(deadline.min(self.socket.next_deadline()), cx);
                    }
                }
                Some(ChannelEvent::Data(output, data)) => {
                    let output_stream = output_stream(output);
                    if !self.buffers.has_room(output_stream) {
                        self.pending = Some(ChannelEvent::Data(output, data));
                        return Poll::Pending;
                    }
                    self.buffers.push_output(output_stream, data);
                }
                Some(ChannelEvent::Closed(_)) | None => {}
            }
            let piece = match ready!(self.socket.poll_chunk(cx)) {
                Ok(piece) => piece,
                Err(left) => return Poll::Ready(SessionEnd::DisconnectReason(left)),
            };
            match self.reader.read_chunk(piece) {
                Ok(event) => self.pending = event,
                Err(error) => return Poll::Ready(SessionEnd::ProtocolError(error.to_string())),
            }
        }
    }

    /// Moves input from its writer to the connection, as much as it accepts.
    fn poll_outgoing(&mut self, cx: &mut Context<'_>) {
        while self.write_error.is_none() {
            let (writer, socket) = (&mut self.writer, &mut self.socket);
            while let Some(size) = self.buffers.take_resize() {
                socket.write(|out| writer.frame(Input::Resize, size.encode(), out));
            }
            let mut has_more = true;
            while has_more && socket.has_room() {
                match self.buffers.take_stdin() {
                    Some(StdinEvent::Data(data)) => {
                        socket.write(|out| writer.frame_in_place(Input::Stdin, data, out));
                    }
                    Some(StdinEvent::End) => socket.write(|out| {
                        // Version 5 has a close signal for it.
                        let _ = writer.close(Input::Stdin, out);
                        None
                    }),
                    None => has_more = false,
                }
            }
            let flushed = socket.poll_flush(cx);
            self.buffers.set_write_pending(flushed.is_pending());
            match flushed {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if !has_more => return,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.write_error = Some(error);
                    self.buffers.close_stdin();
                }
            }
        }
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        self.timer.bring_forward(self.socket.next_deadline(), cx);
        ready!(self.timer.poll_expired(cx));
        let now = Instant::now();
        if self.close_deadline.is_some_and(|deadline| deadline <= now) {
            return Poll::Ready(SessionEnd::StatusThenSilence);
        }
        if !self.socket.check_keepalive(now, self.pending.is_none()) {
            return Poll::Ready(SessionEnd::Unresponsive);
        }
        self.poll_outgoing(cx);
        let next = self.socket.next_deadline();
        self.timer.set(
            self.close_deadline
                .map_or(next, |deadline| deadline.min(next)),
            cx,
        );
        Poll::Pending
    }
}

/// The error channel has no reader.
fn output_stream(output: Output) -> OutputStream {
    match output {
        Output::Stderr => OutputStream::Stderr,
        Output::Stdout | Output::Error => OutputStream::Stdout,
    }
}
