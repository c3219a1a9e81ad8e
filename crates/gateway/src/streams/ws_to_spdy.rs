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

use super::busy_poll::{BusyPoll, BusyPollArbiter, Direction};
use super::metrics::{StreamEnd, StreamMetricsGuard};
use super::timer::{StreamTimer, TimerEvent};
use super::translation_plan::Kind;
use super::{StreamTimeouts, termination_status};
use crate::access_log::AccessLogEntry;
use crate::drain::Drain;
use crate::metrics::Metrics;
use crate::serve::ClientIo;
use crate::upstream::{Slot, UpstreamIo};

/// How long what a client has sent may take to reach the node when it has left.
const LEAVING: Duration = Duration::from_secs(5);

/// A command that has begun above, and is about to here.
#[derive(Debug)]
pub(crate) struct WsToSpdyExec {
    pub(crate) kind: Kind,
    pub(crate) protocol: Protocol,
    pub(crate) options: Options,
    pub(crate) node: SpdyExecClient<UpstreamIo>,
    /// Counted as a connection of upstream's while it lasts.
    pub(crate) slot: Slot,
    pub(crate) timeouts: StreamTimeouts,
    pub(crate) arbiter: Arc<BusyPollArbiter>,
    pub(crate) drain: Drain,
    pub(crate) metrics: Metrics,
    pub(crate) stream_metrics: StreamMetricsGuard,
}

/// Why it is over.
#[derive(Debug)]
enum ExchangeEnd {
    /// The node has said its last.
    Ended(ExecResult),
    /// The node does not answer any more.
    NodeDead,
    /// The client has said that it leaves.
    ClientClosed(Option<Close>),
    /// The client is gone, or does not answer any more.
    ClientLost,
    /// The client said something that it may not.
    ClientError(CloseCode, String),
    /// Nothing was said for too long.
    Idle,
    /// The bridge goes away.
    Shutdown,
}

impl WsToSpdyExec {
    /// Carries it to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, mut record: AccessLogEntry) {
        let now = Instant::now();
        let mut exchange = Exchange {
            client: WebSocketConn::new(
                client,
                input,
                Role::Server,
                self.timeouts.client_ws_keepalive(now),
            ),
            reader: FromClient::new(self.protocol),
            writer: ToClient::new(self.protocol),
            waiting: None,
            node: self.node,
            idle: self.timeouts.idle,
            last_activity: now,
            timer: StreamTimer::new(now, self.drain),
            busy_poll: BusyPoll::new(self.arbiter, now),
            stream_metrics: &self.stream_metrics,
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
        if matches!(over, ExchangeEnd::ClientClosed(_) | ExchangeEnd::ClientLost) {
            // What it has sent before is the command's.
            let _ = timeout(LEAVING, node.disconnect()).await;
        } else {
            // What is still open above is reset, and the command with it.
            drop(node);
        }
        drop(self.slot);
        let (ended, code) = match &over {
            ExchangeEnd::Ended(verdict) => ended(&verdict.outcome),
            ExchangeEnd::NodeDead => (StreamEnd::Disconnected, StatusCode::INTERNAL_SERVER_ERROR),
            ExchangeEnd::Idle => (StreamEnd::Idle, StatusCode::GATEWAY_TIMEOUT),
            ExchangeEnd::Shutdown => (StreamEnd::Aborted, StatusCode::SERVICE_UNAVAILABLE),
            ExchangeEnd::ClientClosed(_) | ExchangeEnd::ClientLost => {
                (StreamEnd::ClientLeft, StatusCode::OK)
            }
            ExchangeEnd::ClientError(..) => (StreamEnd::ClientError, StatusCode::BAD_REQUEST),
        };
        self.metrics.streams().translated(self.kind, code);
        let close = last_words(over, self.protocol, &mut writer, &mut client, self.timeouts);
        let Some(close) = close else {
            self.stream_metrics.end(ended);
            return;
        };
        let normal = close.code() == CloseCode::NORMAL;
        client.close(close);
        let told = client.finish(self.timeouts.stall).await.is_ok();
        self.stream_metrics.end(ended.if_delivered(told));
        if told && normal {
            record.complete();
        }
    }
}

/// Tells the client how it ended, and gives what to close with; `None` if nobody is
/// there. A client of Kubernetes takes a normal close for success unless the error
/// channel says otherwise: so what was cut off says so in both.
fn last_words(
    over: ExchangeEnd,
    protocol: Protocol,
    writer: &mut ToClient,
    client: &mut WebSocketConn<ClientIo>,
    timeouts: StreamTimeouts,
) -> Option<Close> {
    let version = protocol.version();
    let (words, close) = match over {
        ExchangeEnd::ClientLost => return None,
        // RFC 6455, 5.5.1: with the same code.
        ExchangeEnd::ClientClosed(close) => return Some(close.unwrap_or_else(normal)),
        ExchangeEnd::ClientError(code, why) => return Some(Close::new(code, &why)),
        ExchangeEnd::Ended(verdict) => match &verdict.outcome {
            Outcome::Disconnected => (verdict.outcome.encode(version), cut_off()),
            // Word for word where it can be: there may be more in it than we know.
            _ if version.has_status() => (verdict.error_bytes, normal()),
            outcome => (outcome.encode(version), normal()),
        },
        ExchangeEnd::NodeDead => (Outcome::Disconnected.encode(version), cut_off()),
        ExchangeEnd::Idle => {
            let close = Close::new(CloseCode::GOING_AWAY, "idle for too long");
            (
                termination_status::idle_timeout(timeouts).encode(version),
                close,
            )
        }
        ExchangeEnd::Shutdown => {
            let close = Close::new(CloseCode::GOING_AWAY, "the gateway shuts down");
            (termination_status::shutdown().encode(version), close)
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
    let reason = "the connection was lost before the result of the command was known";
    Close::new(CloseCode::INTERNAL_ERROR, reason)
}

/// PingRole kube-apiserver counts it: an exit code is no failure of the translator's.
fn ended(outcome: &Outcome) -> (StreamEnd, StatusCode) {
    let internal = StatusCode::INTERNAL_SERVER_ERROR;
    match outcome {
        Outcome::Success => (StreamEnd::Complete, StatusCode::OK),
        Outcome::Exited(_) => (StreamEnd::Exited, StatusCode::OK),
        Outcome::Failed(failure) => {
            let code = failure.code.and_then(|it| StatusCode::from_u16(it).ok());
            (StreamEnd::Failed, code.unwrap_or(internal))
        }
        Outcome::Disconnected => (StreamEnd::Disconnected, internal),
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
    last_activity: Instant,
    timer: StreamTimer,
    busy_poll: BusyPoll,
    stream_metrics: &'a StreamMetricsGuard,
    record: &'a mut AccessLogEntry,
}

impl Exchange<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        self.node.drive(cx);
        if let Poll::Ready(over) = self.poll_down(cx) {
            return Poll::Ready(over);
        }
        let was_full = !self.client.has_room();
        if let Poll::Ready(over) = self.poll_up(cx) {
            return Poll::Ready(over);
        }
        if let Poll::Ready(Err(_)) = self.client.poll_flush(cx) {
            return Poll::Ready(ExchangeEnd::ClientLost);
        }
        // What has just been written above leaves in this turn.
        self.node.drive(cx);
        let over = self.poll_timer(cx);
        if was_full && self.client.has_room() {
            // Nobody has asked the node since.
            cx.waker().wake_by_ref();
        }
        self.busy_poll.keep(cx);
        over
    }

    /// From the node to the client: as much as the client takes.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        loop {
            while self.client.has_room() {
                match self.node.poll_event(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ExecEvent::Ended(verdict)) => {
                        return Poll::Ready(ExchangeEnd::Ended(verdict));
                    }
                    Poll::Ready(ExecEvent::Data(output, data)) => {
                        let now = Instant::now();
                        self.last_activity = now;
                        self.busy_poll.carried(now, Direction::Down, data.len());
                        self.stream_metrics.down(data.len());
                        self.record.add_bytes(data.len());
                        let writer = &mut self.writer;
                        self.client.write(|out| writer.frame(output, data, out));
                    }
                }
            }
            match self.client.poll_flush(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(ExchangeEnd::ClientLost),
                // It takes no more, so no more is taken from the node.
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// From the client to the node: as much as the node takes.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        loop {
            if let Some(heard) = self.waiting.take() {
                match heard {
                    Heard::Data(input, data) => {
                        if self.node.poll_ready(input, cx).is_pending() {
                            self.waiting = Some(Heard::Data(input, data));
                            return Poll::Pending;
                        }
                        let now = Instant::now();
                        self.last_activity = now;
                        self.busy_poll.carried(now, Direction::Up, data.len());
                        self.stream_metrics.up(data.len());
                        self.node.write(input, data);
                    }
                    Heard::Closed(input) => self.node.close(input),
                }
            }
            let chunk = match self.client.poll_chunk(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(DisconnectReason::Closed(close))) => {
                    return Poll::Ready(ExchangeEnd::ClientClosed(close));
                }
                Poll::Ready(Err(DisconnectReason::ConnectionLost(error))) => {
                    tracing::debug!(%error, "a client was lost");
                    return Poll::Ready(ExchangeEnd::ClientLost);
                }
                Poll::Ready(Err(DisconnectReason::ProtocolViolation(violation))) => {
                    let why = violation.to_string();
                    return Poll::Ready(ExchangeEnd::ClientError(violation.close_code(), why));
                }
            };
            self.waiting = match self.reader.read_chunk(chunk) {
                Ok(heard) => heard,
                Err(error) => return Poll::Ready(refused(error)),
            };
        }
    }

    /// What is to be done now and then.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        self.timer.set_earlier(self.next_deadline(), cx);
        let due = ready!(self.timer.poll_due(cx));
        if due == TimerEvent::Shutdown {
            return Poll::Ready(ExchangeEnd::Shutdown);
        }
        let now = Instant::now();
        if now >= self.last_activity + self.idle {
            return Poll::Ready(ExchangeEnd::Idle);
        }
        let heeded = self.waiting.is_none();
        if !self.client.check_keepalive(now, heeded) {
            return Poll::Ready(ExchangeEnd::ClientLost);
        }
        if !self.node.pinger.check(now) {
            return Poll::Ready(ExchangeEnd::NodeDead);
        }
        if let Poll::Ready(Err(_)) = self.client.poll_flush(cx) {
            return Poll::Ready(ExchangeEnd::ClientLost);
        }
        self.node.drive(cx);
        let next = (self.last_activity + self.idle).min(self.next_deadline());
        self.timer.set(next, cx);
        Poll::Pending
    }

    /// When either side is to be looked after.
    fn next_deadline(&self) -> Instant {
        self.client
            .next_deadline()
            .min(self.node.pinger.next_deadline())
    }
}

fn refused(error: ReaderError) -> ExchangeEnd {
    ExchangeEnd::ClientError(CloseCode::PROTOCOL_ERROR, error.to_string())
}
