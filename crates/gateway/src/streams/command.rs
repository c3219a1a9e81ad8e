//! A remote command by WebSocket that is carried upstream by SPDY (KEP-4006): the
//! WebSocket ends here, and each of its channels becomes a stream.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use http::StatusCode;
use skewbridge_remotecommand::{
    ChannelEvent as Heard, FromClient, Input, Options, Outcome, Output, Protocol, ReaderError,
    ToClient,
};
use skewbridge_stream_io::{
    DisconnectReason, ExecEvent, ExecResult, SpdyExecClient, WebSocketConn,
};
use skewbridge_websocket::{Close, CloseCode, Role};
use tokio::time::{Instant, timeout};

use super::clock::{Clock, Due};
use super::metrics::{Ended, Tally};
use super::plan::Kind;
use super::vigil::{Floor, Heading, Vigil};
use super::{Care, farewell};
use crate::drain::Drain;
use crate::metrics::Metrics;
use crate::record::Record;
use crate::serve::ClientIo;
use crate::upstream::{Slot, UpstreamIo};

/// How long what a client has sent may take to reach the node when it has left.
const LEAVING: Duration = Duration::from_secs(5);

/// A command that has begun above, and is about to here.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) kind: Kind,
    pub(crate) protocol: Protocol,
    pub(crate) options: Options,
    pub(crate) node: SpdyExecClient<UpstreamIo>,
    /// Counted as a connection of upstream's while it lasts.
    pub(crate) slot: Slot,
    pub(crate) care: Care,
    pub(crate) floor: Arc<Floor>,
    pub(crate) drain: Drain,
    pub(crate) metrics: Metrics,
    pub(crate) tally: Tally,
}

/// Why it is over.
#[derive(Debug)]
enum Over {
    /// The node has said its last.
    Ended(ExecResult),
    /// The node does not answer any more.
    NodeDead,
    /// The client has said that it leaves.
    ClientClosed(Option<Close>),
    /// The client is gone, or does not answer any more.
    ClientLost,
    /// The client said something that it may not.
    ClientBroke(CloseCode, String),
    /// Nothing was said for too long.
    Idle,
    /// The bridge goes away.
    Leaving,
}

impl Command {
    /// Carries it to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, mut record: Record) {
        let now = Instant::now();
        let mut exchange = Exchange {
            client: WebSocketConn::new(client, input, Role::Server, self.care.of_client(now)),
            reader: FromClient::new(self.protocol),
            writer: ToClient::new(self.protocol),
            waiting: None,
            node: self.node,
            idle: self.care.idle,
            quiet_since: now,
            clock: Clock::new(now, self.drain),
            vigil: Vigil::new(self.floor, now),
            tally: &self.tally,
            record: &mut record,
        };
        // The first message of a server, so that a client knows that it is there.
        let (writer, options) = (&mut exchange.writer, self.options);
        exchange.client.write(|out| {
            writer.open(options, out);
            None
        });
        let over = poll_fn(|cx| exchange.poll(cx)).await;
        let Exchange {
            mut client,
            mut writer,
            node,
            ..
        } = exchange;
        if matches!(over, Over::ClientClosed(_) | Over::ClientLost) {
            // What it has sent before is the command's.
            let _ = timeout(LEAVING, node.disconnect()).await;
        } else {
            // What is still open above is reset, and the command with it.
            drop(node);
        }
        drop(self.slot);
        let (ended, code) = match &over {
            Over::Ended(verdict) => ended(&verdict.outcome),
            Over::NodeDead => (Ended::CutOff, StatusCode::INTERNAL_SERVER_ERROR),
            Over::Idle => (Ended::Idle, StatusCode::GATEWAY_TIMEOUT),
            Over::Leaving => (Ended::Aborted, StatusCode::SERVICE_UNAVAILABLE),
            Over::ClientClosed(_) | Over::ClientLost => (Ended::ClientLeft, StatusCode::OK),
            Over::ClientBroke(..) => (Ended::ClientBroke, StatusCode::BAD_REQUEST),
        };
        self.metrics.streams().translated(self.kind, code);
        let close = last_words(over, self.protocol, &mut writer, &mut client, self.care);
        let Some(close) = close else {
            self.tally.end(ended);
            return;
        };
        let normal = close.code() == CloseCode::NORMAL;
        client.close(close);
        let told = client.finish(self.care.stall).await.is_ok();
        self.tally.end(ended.if_told(told));
        if told && normal {
            record.complete();
        }
    }
}

/// Tells the client how it ended, and gives what to close with; `None` if nobody is
/// there. A client of Kubernetes takes a normal close for success unless the error
/// channel says otherwise: so what was cut off says so in both.
fn last_words(
    over: Over,
    protocol: Protocol,
    writer: &mut ToClient,
    client: &mut WebSocketConn<ClientIo>,
    care: Care,
) -> Option<Close> {
    let version = protocol.version();
    let (words, close) = match over {
        Over::ClientLost => return None,
        // RFC 6455, 5.5.1: with the same code.
        Over::ClientClosed(close) => return Some(close.unwrap_or_else(normal)),
        Over::ClientBroke(code, why) => return Some(Close::new(code, &why)),
        Over::Ended(verdict) => match &verdict.outcome {
            Outcome::Disconnected => (verdict.outcome.encode(version), cut_off()),
            // Word for word where it can be: there may be more in it than we know.
            _ if version.has_status() => (verdict.error_bytes, normal()),
            outcome => (outcome.encode(version), normal()),
        },
        Over::NodeDead => (Outcome::Disconnected.encode(version), cut_off()),
        Over::Idle => {
            let close = Close::new(CloseCode::GOING_AWAY, "idle for too long");
            (farewell::idle(care).encode(version), close)
        }
        Over::Leaving => {
            let close = Close::new(CloseCode::GOING_AWAY, "the gateway shuts down");
            (farewell::leaving().encode(version), close)
        }
    };
    if !words.is_empty() {
        client.write(|out| writer.frame(Output::Error, words, out));
    }
    Some(close)
}

fn normal() -> Close {
    Close::new(CloseCode::NORMAL, "")
}

fn cut_off() -> Close {
    let reason = "the stream was cut off before it was known how the command ended";
    Close::new(CloseCode::INTERNAL_ERROR, reason)
}

/// As kube-apiserver counts it: an exit code is no failure of the translator's.
fn ended(outcome: &Outcome) -> (Ended, StatusCode) {
    let internal = StatusCode::INTERNAL_SERVER_ERROR;
    match outcome {
        Outcome::Success => (Ended::Complete, StatusCode::OK),
        Outcome::Exited(_) => (Ended::Exited, StatusCode::OK),
        Outcome::Failed(failure) => {
            let code = failure.code.and_then(|it| StatusCode::from_u16(it).ok());
            (Ended::Failed, code.unwrap_or(internal))
        }
        Outcome::Disconnected => (Ended::CutOff, internal),
    }
}

/// Both sides of a command, in one task.
struct Exchange<'a> {
    client: WebSocketConn<ClientIo>,
    reader: FromClient,
    writer: ToClient,
    /// What the client said and there is no room for above.
    waiting: Option<Heard<Input>>,
    node: SpdyExecClient<UpstreamIo>,
    idle: Duration,
    /// When something was last said that is no ping.
    quiet_since: Instant,
    clock: Clock,
    vigil: Vigil,
    tally: &'a Tally,
    record: &'a mut Record,
}

impl Exchange<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        self.node.drive(cx);
        if let Poll::Ready(over) = self.poll_down(cx) {
            return Poll::Ready(over);
        }
        let was_full = !self.client.has_room();
        if let Poll::Ready(over) = self.poll_up(cx) {
            return Poll::Ready(over);
        }
        if let Poll::Ready(Err(_)) = self.client.poll_flush(cx) {
            return Poll::Ready(Over::ClientLost);
        }
        // What has just been written above leaves in this turn.
        self.node.drive(cx);
        let over = self.poll_clock(cx);
        if was_full && self.client.has_room() {
            // Nobody has asked the node since.
            cx.waker().wake_by_ref();
        }
        self.vigil.keep(cx);
        over
    }

    /// From the node to the client: as much as the client takes.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        loop {
            while self.client.has_room() {
                match self.node.poll_event(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ExecEvent::Ended(verdict)) => {
                        return Poll::Ready(Over::Ended(verdict));
                    }
                    Poll::Ready(ExecEvent::Data(output, data)) => {
                        let now = Instant::now();
                        self.quiet_since = now;
                        self.vigil.carried(now, Heading::Down, data.len());
                        self.tally.down(data.len());
                        self.record.add_bytes(data.len());
                        let writer = &mut self.writer;
                        self.client.write(|out| writer.frame(output, data, out));
                    }
                }
            }
            match self.client.poll_flush(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Over::ClientLost),
                // It takes no more, so no more is taken from the node.
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// From the client to the node: as much as the node takes.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        loop {
            if let Some(heard) = self.waiting.take() {
                match heard {
                    Heard::Data(input, data) => {
                        if self.node.poll_ready(input, cx).is_pending() {
                            self.waiting = Some(Heard::Data(input, data));
                            return Poll::Pending;
                        }
                        let now = Instant::now();
                        self.quiet_since = now;
                        self.vigil.carried(now, Heading::Up, data.len());
                        self.tally.up(data.len());
                        self.node.write(input, data);
                    }
                    Heard::Closed(input) => self.node.close(input),
                }
            }
            let chunk = match self.client.poll_chunk(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(DisconnectReason::Closed(close))) => {
                    return Poll::Ready(Over::ClientClosed(close));
                }
                Poll::Ready(Err(DisconnectReason::ConnectionLost(error))) => {
                    tracing::debug!(%error, "a client was lost");
                    return Poll::Ready(Over::ClientLost);
                }
                Poll::Ready(Err(DisconnectReason::ProtocolViolation(violation))) => {
                    let why = violation.to_string();
                    return Poll::Ready(Over::ClientBroke(violation.close_code(), why));
                }
            };
            self.waiting = match self.reader.read_chunk(chunk) {
                Ok(heard) => heard,
                Err(error) => return Poll::Ready(refused(error)),
            };
        }
    }

    /// What is to be done now and then.
    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        self.clock.hurry(self.next_look(), cx);
        let due = ready!(self.clock.poll_due(cx));
        if due == Due::Leave {
            return Poll::Ready(Over::Leaving);
        }
        let now = Instant::now();
        if now >= self.quiet_since + self.idle {
            return Poll::Ready(Over::Idle);
        }
        let heeded = self.waiting.is_none();
        if !self.client.check_keepalive(now, heeded) {
            return Poll::Ready(Over::ClientLost);
        }
        if !self.node.pinger.check(now) {
            return Poll::Ready(Over::NodeDead);
        }
        if let Poll::Ready(Err(_)) = self.client.poll_flush(cx) {
            return Poll::Ready(Over::ClientLost);
        }
        self.node.drive(cx);
        let next = (self.quiet_since + self.idle).min(self.next_look());
        self.clock.set(next, cx);
        Poll::Pending
    }

    /// When either side is to be looked after.
    fn next_look(&self) -> Instant {
        self.client
            .next_deadline()
            .min(self.node.pinger.next_deadline())
    }
}

fn refused(error: ReaderError) -> Over {
    Over::ClientBroke(CloseCode::PROTOCOL_ERROR, error.to_string())
}
