//! A remote command over WebSocket to the client and over SPDY upstream (KEP-4006): the
//! WebSocket ends here, and each channel becomes a stream.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use http::StatusCode;
use skewbridge_http_engine::drain::Drain;
use skewbridge_http_engine::server::ClientIo;
use skewbridge_remotecommand::{
    ChannelEvent, FromClient, Input, Options, Outcome, Output, Protocol, ReaderError, ToClient,
};
use skewbridge_stream_io::{
    DisconnectReason, ExecEvent, ExecResult, SpdyExecClient, WebSocketConn,
};
use skewbridge_websocket::{Close, CloseCode, Role};
use tokio::time::{Instant, timeout};

use super::busy_poll::{BusyPoll, BusyPollArbiter, Direction};
use super::timer::{StreamTimer, TimerEvent};
use super::{StreamTimeouts, termination_status};
use crate::access_log::AccessLogEntry;
use crate::metrics::Metrics;
use crate::metrics::streams::{StreamEnd, StreamMetricsGuard};
use crate::stream_kind::StreamKind;
use crate::upstream::{ConnectionGuard, UpstreamIo};

/// How long the input of a client may take to reach the node after the client has
/// disconnected.
const INPUT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A command whose upstream connection is open.
#[derive(Debug)]
pub(crate) struct WsToSpdyExec {
    pub(crate) kind: StreamKind,
    pub(crate) protocol: Protocol,
    pub(crate) options: Options,
    pub(crate) node: SpdyExecClient<UpstreamIo>,
    /// Counts as an upstream connection while it lasts.
    pub(crate) guard: Option<ConnectionGuard>,
    pub(crate) timeouts: StreamTimeouts,
    pub(crate) arbiter: Arc<BusyPollArbiter>,
    pub(crate) drain: Drain,
    pub(crate) metrics: Metrics,
    pub(crate) stream_metrics: StreamMetricsGuard,
}

/// Why the exchange ended.
#[derive(Debug)]
enum ExchangeEnd {
    /// The command has ended.
    Ended(ExecResult),
    /// The node does not answer pings any more.
    NodeDead,
    /// The client sent a close frame.
    ClientClosed(Option<Close>),
    /// The client has disconnected, or does not answer pings any more.
    ClientLost,
    /// The client violated the protocol.
    ClientError(CloseCode, String),
    /// Idle timeout.
    Idle,
    /// The bridge shuts down.
    Shutdown,
}

impl WsToSpdyExec {
    /// Relays it to its end.
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
            pending: None,
            node: self.node,
            idle: self.timeouts.idle,
            last_activity: now,
            timer: StreamTimer::new(now, self.drain),
            busy_poll: BusyPoll::new(self.arbiter, now),
            stream_metrics: &self.stream_metrics,
            record: &mut record,
        };
        // The first message of a server, which shows the client that it is connected.
        let (writer, options) = (&mut exchange.writer, self.options);
        exchange.client.write(|out| {
            writer.open(options, out);
            None
        });
        let end = poll_fn(|cx| exchange.poll(cx)).await;
        let Exchange {
            mut client,
            mut writer,
            node,
            ..
        } = exchange;
        if matches!(end, ExchangeEnd::ClientClosed(_) | ExchangeEnd::ClientLost) {
            // The command still gets the input that was sent before.
            let _ = timeout(INPUT_FLUSH_TIMEOUT, node.disconnect()).await;
        } else {
            // Open upstream streams are reset, which ends the command.
            drop(node);
        }
        drop(self.guard);
        let (stream_end, code) = match &end {
            ExchangeEnd::Ended(result) => stream_end(&result.outcome),
            ExchangeEnd::NodeDead => (StreamEnd::Disconnected, StatusCode::INTERNAL_SERVER_ERROR),
            ExchangeEnd::Idle => (StreamEnd::Idle, StatusCode::GATEWAY_TIMEOUT),
            ExchangeEnd::Shutdown => (StreamEnd::Aborted, StatusCode::SERVICE_UNAVAILABLE),
            ExchangeEnd::ClientClosed(_) | ExchangeEnd::ClientLost => {
                (StreamEnd::ClientLeft, StatusCode::OK)
            }
            ExchangeEnd::ClientError(..) => (StreamEnd::ClientError, StatusCode::BAD_REQUEST),
        };
        self.metrics.streams().translated(self.kind, code);
        let close = write_result(end, self.protocol, &mut writer, &mut client, self.timeouts);
        let Some(close) = close else {
            self.stream_metrics.end(stream_end);
            return;
        };
        let normal = close.code() == CloseCode::NORMAL;
        client.close(close);
        let delivered = client.finish(self.timeouts.stall).await.is_ok();
        self.stream_metrics.end(stream_end.if_delivered(delivered));
        if delivered && normal {
            record.complete();
        }
    }
}

/// Writes the result to the client, and returns the close frame; `None` if the client has
/// disconnected. A Kubernetes client treats a normal close as success unless the error channel
/// reports a failure: therefore both show an interrupted stream.
fn write_result(
    end: ExchangeEnd,
    protocol: Protocol,
    writer: &mut ToClient,
    client: &mut WebSocketConn<ClientIo>,
    timeouts: StreamTimeouts,
) -> Option<Close> {
    let version = protocol.version();
    let (error_bytes, close) = match end {
        ExchangeEnd::ClientLost => return None,
        // RFC 6455, 5.5.1: with the same code.
        ExchangeEnd::ClientClosed(close) => return Some(close.unwrap_or_else(normal_close)),
        ExchangeEnd::ClientError(code, why) => return Some(Close::new(code, &why)),
        ExchangeEnd::Ended(result) => match &result.outcome {
            Outcome::Disconnected => (result.outcome.encode(version), disconnected_close()),
            // Byte for byte where possible: the Status may have fields that are unknown here.
            _ if version.has_status() => (result.error_bytes, normal_close()),
            outcome => (outcome.encode(version), normal_close()),
        },
        ExchangeEnd::NodeDead => (Outcome::Disconnected.encode(version), disconnected_close()),
        ExchangeEnd::Idle => {
            let close = Close::new(CloseCode::GOING_AWAY, "idle timeout");
            (
                termination_status::idle_timeout(timeouts).encode(version),
                close,
            )
        }
        ExchangeEnd::Shutdown => {
            let close = Close::new(CloseCode::GOING_AWAY, "the bridge is shutting down");
            (termination_status::shutdown().encode(version), close)
        }
    };
    if !error_bytes.is_empty() {
        client.write(|out| writer.frame(Output::Error, error_bytes, out));
    }
    Some(close)
}

fn normal_close() -> Close {
    Close::new(CloseCode::NORMAL, "")
}

fn disconnected_close() -> Close {
    let reason = "the connection was lost before the result of the command was known";
    Close::new(CloseCode::INTERNAL_ERROR, reason)
}

/// The metric labels. As in kube-apiserver, an exit code is not a failure of the translator.
fn stream_end(outcome: &Outcome) -> (StreamEnd, StatusCode) {
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
    /// An event from the client for which the node has no room.
    pending: Option<ChannelEvent<Input>>,
    node: SpdyExecClient<UpstreamIo>,
    idle: Duration,
    /// When anything but a ping was last relayed.
    last_activity: Instant,
    timer: StreamTimer,
    busy_poll: BusyPoll,
    stream_metrics: &'a StreamMetricsGuard,
    record: &'a mut AccessLogEntry,
}

impl Exchange<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        self.node.drive(cx);
        if let Poll::Ready(end) = self.poll_down(cx) {
            return Poll::Ready(end);
        }
        let was_full = !self.client.has_room();
        if let Poll::Ready(end) = self.poll_up(cx) {
            return Poll::Ready(end);
        }
        if let Poll::Ready(Err(_)) = self.client.poll_flush(cx) {
            return Poll::Ready(ExchangeEnd::ClientLost);
        }
        // Sends the data that was just written upstream without waiting for the next poll.
        self.node.drive(cx);
        let end = self.poll_timer(cx);
        if was_full && self.client.has_room() {
            // The node was not polled since.
            cx.waker().wake_by_ref();
        }
        self.busy_poll.schedule(cx);
        end
    }

    /// From the node to the client, as far as the client reads.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        loop {
            while self.client.has_room() {
                match self.node.poll_event(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ExecEvent::Ended(result)) => {
                        return Poll::Ready(ExchangeEnd::Ended(result));
                    }
                    Poll::Ready(ExecEvent::Data(output, data)) => {
                        let now = Instant::now();
                        self.last_activity = now;
                        self.busy_poll.on_relayed(now, Direction::Down, data.len());
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
                // The client does not read, so the node is not read either.
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// From the client to the node, as far as the node reads.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        loop {
            if let Some(event) = self.pending.take() {
                match event {
                    ChannelEvent::Data(input, data) => {
                        if self.node.poll_ready(input, cx).is_pending() {
                            self.pending = Some(ChannelEvent::Data(input, data));
                            return Poll::Pending;
                        }
                        let now = Instant::now();
                        self.last_activity = now;
                        self.busy_poll.on_relayed(now, Direction::Up, data.len());
                        self.stream_metrics.up(data.len());
                        self.node.write(input, data);
                    }
                    ChannelEvent::Closed(input) => self.node.close(input),
                }
            }
            let chunk = match self.client.poll_chunk(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(DisconnectReason::Closed(close))) => {
                    return Poll::Ready(ExchangeEnd::ClientClosed(close));
                }
                Poll::Ready(Err(DisconnectReason::ConnectionLost(error))) => {
                    tracing::debug!(%error, "client connection lost");
                    return Poll::Ready(ExchangeEnd::ClientLost);
                }
                Poll::Ready(Err(DisconnectReason::ProtocolViolation(violation))) => {
                    let why = violation.to_string();
                    return Poll::Ready(ExchangeEnd::ClientError(violation.close_code(), why));
                }
            };
            self.pending = match self.reader.read_chunk(chunk) {
                Ok(event) => event,
                Err(error) => return Poll::Ready(protocol_error(error)),
            };
        }
    }

    /// Keepalive, idle timeout and shutdown.
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
        let reading = self.pending.is_none();
        if !self.client.check_keepalive(now, reading) {
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

    /// When the next keepalive check of either side is due.
    fn next_deadline(&self) -> Instant {
        self.client
            .next_deadline()
            .min(self.node.pinger.next_deadline())
    }
}

fn protocol_error(error: ReaderError) -> ExchangeEnd {
    ExchangeEnd::ClientError(CloseCode::PROTOCOL_ERROR, error.to_string())
}
