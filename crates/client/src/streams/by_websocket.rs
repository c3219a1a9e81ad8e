//! A command whose streams are the channels of a WebSocket, in the fifth version of the
//! protocol.

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

use super::clock::Clock;
use super::keep_alive::KeepAlive;
use super::lost;
use super::process::ExitStatus;
use super::shared::{Next, Shared, Which};
use super::upgrade::Upgraded;
use crate::connection::Stream;

/// How long a server may take to close the connection when it has told how the command
/// ended.
const CLOSING: Duration = Duration::from_secs(5);

/// How long our own last word may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Carries a command to its end.
pub(crate) async fn drive(upgraded: Upgraded, shared: Arc<Shared>, keep_alive: KeepAlive) {
    let Upgraded { io, input, .. } = upgraded;
    let mut exchange = Exchange {
        socket: WebSocketConn::new(
            io,
            input,
            Role::Client,
            keep_alive.pulse().with_policy(PingPolicy::AvoidNearEof),
        ),
        reader: FromServer::new(Protocol::V5),
        writer: ToServer::new(Protocol::V5),
        waiting: None,
        deaf: None,
        told: ErrorChannel::new(Version::V5),
        told_until: None,
        clock: Clock::new(),
        shared: &shared,
    };
    let over = poll_fn(|cx| exchange.poll(cx)).await;
    let Exchange {
        mut socket,
        told,
        deaf,
        ..
    } = exchange;
    let end = match &over {
        Over::Disconnected(DisconnectReason::Closed(Some(close)))
            if close.code() == CloseCode::NORMAL =>
        {
            ErrorChannelEnd::Clean
        }
        _ => ErrorChannelEnd::Aborted,
    };
    // What is known is told before goodbye is said.
    let cause = || match deaf {
        Some(error) => format!("{}; nothing more could be sent: {error}", over.cause()),
        None => over.cause(),
    };
    shared.end(ExitStatus::of(told.end(end), || shared.cut(cause())));
    if let Over::Disconnected(DisconnectReason::Closed(close)) = over {
        // RFC 6455, 5.5.1: with the same code.
        socket.close(close.unwrap_or_else(|| Close::new(CloseCode::NORMAL, "")));
        let _ = timeout(FAREWELL, poll_fn(|cx| socket.poll_flush(cx))).await;
    }
}

/// Why it is over.
enum Over {
    Disconnected(DisconnectReason),
    /// The server has told how the command ended, and then nothing.
    Told,
    /// Nobody answers.
    Dead,
    /// It said what it may not.
    Broke(String),
}

impl Over {
    fn cause(&self) -> String {
        match self {
            Self::Disconnected(DisconnectReason::Closed(None)) => {
                "the server closed the stream".to_owned()
            }
            Self::Disconnected(DisconnectReason::Closed(Some(close))) => {
                let (code, reason) = (close.code().number(), close.reason());
                let colon = if reason.is_empty() { "" } else { ": " };
                format!("the server closed the stream ({code}{colon}{reason})")
            }
            Self::Disconnected(DisconnectReason::ConnectionLost(error)) => lost::of_io(error),
            Self::Disconnected(DisconnectReason::ProtocolViolation(violation)) => {
                violation.to_string()
            }
            Self::Told => "the server told only half of how the command ended".to_owned(),
            Self::Dead => "the server does not answer any more".to_owned(),
            Self::Broke(what) => what.clone(),
        }
    }
}

struct Exchange<'a> {
    socket: WebSocketConn<Stream>,
    reader: FromServer,
    writer: ToServer,
    /// What came and there is no room for.
    waiting: Option<ChannelEvent<Output>>,
    /// Why the server takes nothing any more. It may have said its last before, which is
    /// still to be read.
    deaf: Option<std::io::Error>,
    told: ErrorChannel,
    /// When the server is to have closed.
    told_until: Option<Instant>,
    clock: Clock,
    shared: &'a Shared,
}

impl Exchange<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        self.shared.drives(cx);
        if let Poll::Ready(over) = self.poll_down(cx) {
            return Poll::Ready(over);
        }
        self.poll_up(cx);
        if let Poll::Ready(over) = self.poll_clock(cx) {
            return Poll::Ready(over);
        }
        if self.deaf.is_some() {
            // What the server said before it went is to be read.
            return self.poll_down(cx);
        }
        Poll::Pending
    }

    /// From the server to those who read.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        loop {
            match self.waiting.take() {
                Some(ChannelEvent::Data(Output::Error, data)) => {
                    self.told.push(&data);
                    if !data.is_empty() {
                        let until = Instant::now() + CLOSING;
                        self.told_until = Some(until);
                        self.clock.set(until.min(self.socket.next_deadline()), cx);
                    }
                }
                Some(ChannelEvent::Data(output, data)) => {
                    let which = which(output);
                    if !self.shared.has_room(which) {
                        self.waiting = Some(ChannelEvent::Data(output, data));
                        return Poll::Pending;
                    }
                    self.shared.give(which, data);
                }
                Some(ChannelEvent::Closed(_)) | None => {}
            }
            let piece = match ready!(self.socket.poll_chunk(cx)) {
                Ok(piece) => piece,
                Err(left) => return Poll::Ready(Over::Disconnected(left)),
            };
            match self.reader.read_chunk(piece) {
                Ok(said) => self.waiting = said,
                Err(error) => return Poll::Ready(Over::Broke(error.to_string())),
            }
        }
    }

    /// From those who write to the server: as much as it takes.
    fn poll_up(&mut self, cx: &mut Context<'_>) {
        while self.deaf.is_none() {
            let (writer, socket) = (&mut self.writer, &mut self.socket);
            while let Some(size) = self.shared.take_size() {
                socket.write(|out| writer.frame(Input::Resize, size.encode(), out));
            }
            let mut more = true;
            while more && socket.has_room() {
                match self.shared.take_input() {
                    Some(Next::Data(data)) => {
                        socket.write(|out| writer.frame_in_place(Input::Stdin, data, out));
                    }
                    Some(Next::End) => socket.write(|out| {
                        // The fifth version has a signal for it.
                        let _ = writer.close(Input::Stdin, out);
                        None
                    }),
                    None => more = false,
                }
            }
            let flushed = socket.poll_flush(cx);
            self.shared.input_leaves(flushed.is_pending());
            match flushed {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if !more => return,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.deaf = Some(error);
                    self.shared.refuse_input();
                }
            }
        }
    }

    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        self.clock.hurry(self.socket.next_deadline(), cx);
        ready!(self.clock.poll_due(cx));
        let now = Instant::now();
        if self.told_until.is_some_and(|until| until <= now) {
            return Poll::Ready(Over::Told);
        }
        if !self.socket.check_keepalive(now, self.waiting.is_none()) {
            return Poll::Ready(Over::Dead);
        }
        self.poll_up(cx);
        let next = self.socket.next_deadline();
        self.clock
            .set(self.told_until.map_or(next, |until| until.min(next)), cx);
        Poll::Pending
    }
}

/// What is told of errors has no reader.
fn which(output: Output) -> Which {
    match output {
        Output::Stderr => Which::Stderr,
        Output::Stdout | Output::Error => Which::Stdout,
    }
}
