//! A remote command over SPDY to the client and over WebSocket upstream, for a bridge whose
//! path to its kube-apiserver carries nothing else (`--upstream-streams=websocket`).

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skewbridge_http_engine::drain::Drain;
use skewbridge_http_engine::server::ClientIo;
use skewbridge_remotecommand::{
    ChannelEvent, ErrorChannel, ErrorChannelEnd, FromServer, Input, Options, Outcome, Output,
    Protocol, SpdyProtocol, ToServer, Version,
};
use skewbridge_spdy::connection::{self, Driver, Sender};
use skewbridge_spdy::{Config, Role as SpdyRole, StreamError};
use skewbridge_stream_io::{
    CommandStreams, DisconnectReason, ObservedIo, PingPolicy, Rewind, SpdyPinger, WebSocketConn,
};
use skewbridge_websocket::{CloseCode, Role};
use tokio::time::{Instant, timeout};

use super::timer::{StreamTimer, TimerEvent};
use super::{StreamTimeouts, termination_status};
use crate::access_log::AccessLogEntry;
use crate::metrics::streams::{StreamEnd, StreamMetricsGuard};
use crate::upstream::Upgraded;
use crate::upstream::UpstreamIo;

/// How long the input of a client may take to reach upstream after the client has
/// disconnected.
const INPUT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client may take to open its streams, as with kubelets.
const OPEN_STREAMS_TIMEOUT: Duration = Duration::from_secs(30);

/// A command whose upstream connection is open.
#[derive(Debug)]
pub(crate) struct SpdyToWsExec {
    pub(crate) protocol: SpdyProtocol,
    pub(crate) options: Options,
    pub(crate) upstream: Upgraded,
    pub(crate) timeouts: StreamTimeouts,
    pub(crate) drain: Drain,
    pub(crate) stream_metrics: StreamMetricsGuard,
}

type ClientDriver = Driver<ObservedIo<Rewind<ClientIo>>>;

impl SpdyToWsExec {
    /// Relays it to its end.
    pub(crate) async fn run(self, client: ClientIo, input: BytesMut, mut record: AccessLogEntry) {
        let io = Rewind {
            prefix: input,
            io: client,
        };
        let config = Config {
            linger: self.timeouts.stall,
            ..Config::default()
        };
        let io = ObservedIo::new(
            io,
            SpdyRole::Server,
            self.timeouts.client_keepalive(),
            PingPolicy::Always,
        );
        let keepalive = io.keepalive_handle();
        let (handle, mut incoming, mut driver) = connection::server(io, config);
        let Upgraded { io, input, guard } = self.upstream;
        let now = Instant::now();
        let upstream_keepalive = self
            .timeouts
            .upstream_ws_keepalive(PingPolicy::AvoidNearEof, now);
        let upstream = WebSocketConn::new(io, input, Role::Client, upstream_keepalive);
        let opened = {
            let opening = pin!(CommandStreams::accept(
                &mut incoming,
                self.options,
                self.protocol
            ));
            tokio::select! {
                opened = timeout(OPEN_STREAMS_TIMEOUT, opening) => opened.ok(),
                _ = &mut driver => None,
            }
        };
        let Some(streams) = opened else {
            self.stream_metrics.end(StreamEnd::ClientLeft);
            return;
        };
        // Further streams are refused, or each would buffer a window of data.
        drop(incoming);
        let mut exchange = Exchange {
            pings: SpdyPinger::new(handle.clone(), keepalive),
            driver: Some(driver),
            streams,
            upstream,
            reader: FromServer::new(Protocol::V5),
            writer: ToServer::new(Protocol::V5),
            pending: None,
            write_failed: false,
            error_channel: ErrorChannel::new(Version::V5),
            idle: self.timeouts.idle,
            last_activity: now,
            timer: StreamTimer::new(now, self.drain),
            stream_metrics: &self.stream_metrics,
            record: &mut record,
        };
        let end_reason = poll_fn(|cx| exchange.poll(cx)).await;
        let Exchange {
            driver,
            streams,
            mut upstream,
            error_channel,
            ..
        } = exchange;
        let error_bytes = error_channel.bytes().to_vec();
        let end = end_reason.error_channel_end();
        let outcome = error_channel.end(end);
        let stream_end = end_reason.stream_end(&outcome);
        let client_left = matches!(end_reason, ExchangeEnd::ClientLeft);
        if client_left {
            // The command still gets the input that was sent.
            let _ = timeout(INPUT_FLUSH_TIMEOUT, poll_fn(|cx| upstream.poll_flush(cx))).await;
        }
        // Drops the connection like a client that is killed: kube-apiserver continues the
        // command for a client that sends a close frame and reads on.
        drop((upstream, guard));
        if client_left {
            self.stream_metrics.end(stream_end);
            return;
        }
        let version = self.protocol.version();
        let error_bytes = end_reason.error_bytes(outcome, error_bytes, version, self.timeouts);
        let closing = async {
            let mut driver = driver?;
            tokio::select! {
                biased;
                // The client has disconnected.
                _ = &mut driver => return None,
                () = streams.finish(error_bytes) => {}
            }
            handle.close();
            drop(handle);
            driver.await.ok()
        };
        // A slow client gets time: much may be in flight to it.
        let delivered = matches!(timeout(self.timeouts.stall, closing).await, Ok(Some(())));
        self.stream_metrics.end(stream_end.if_delivered(delivered));
        if delivered && end == ErrorChannelEnd::Clean {
            record.complete();
        }
    }
}

fn output_of(streams: &mut CommandStreams, output: Output) -> &mut Option<Sender> {
    match output {
        Output::Stdout => &mut streams.stdout,
        Output::Stderr => &mut streams.stderr,
        Output::Error => &mut streams.error,
    }
}

/// Why the exchange ended.
#[derive(Debug)]
enum ExchangeEnd {
    Upstream(DisconnectReason),
    UpstreamDead,
    UpstreamError,
    ClientLeft,
    Idle,
    Shutdown,
}

impl ExchangeEnd {
    fn error_channel_end(&self) -> ErrorChannelEnd {
        match self {
            Self::Upstream(DisconnectReason::Closed(Some(close)))
                if close.code() == CloseCode::NORMAL =>
            {
                ErrorChannelEnd::Clean
            }
            _ => ErrorChannelEnd::Aborted,
        }
    }

    /// The content of the error channel for the client, from the result and the received bytes.
    fn error_bytes(
        &self,
        outcome: Outcome,
        received: Vec<u8>,
        version: Version,
        timeouts: StreamTimeouts,
    ) -> Bytes {
        match (self, outcome) {
            (Self::Idle, _) => termination_status::idle_timeout(timeouts).encode(version),
            (Self::Shutdown, _) => termination_status::shutdown().encode(version),
            (_, Outcome::Disconnected) => Outcome::Disconnected.encode(version),
            // Byte for byte where possible: the Status may have fields that are unknown here.
            _ if version.has_status() => received.into(),
            (_, outcome) => outcome.encode(version),
        }
    }

    /// The metric label, given the result of the command.
    fn stream_end(&self, outcome: &Outcome) -> StreamEnd {
        match (self, outcome) {
            (Self::ClientLeft, _) => StreamEnd::ClientLeft,
            (Self::Idle, _) => StreamEnd::Idle,
            (Self::Shutdown, _) => StreamEnd::Aborted,
            (_, Outcome::Success) => StreamEnd::Complete,
            (_, Outcome::Exited(_)) => StreamEnd::Exited,
            (_, Outcome::Failed(_)) => StreamEnd::Failed,
            (_, Outcome::Disconnected) => StreamEnd::Disconnected,
        }
    }
}

/// Both sides of a command, in one task.
struct Exchange<'a> {
    driver: Option<ClientDriver>,
    pings: SpdyPinger,
    streams: CommandStreams,
    upstream: WebSocketConn<UpstreamIo>,
    reader: FromServer,
    writer: ToServer,
    /// An event from upstream for which the client has no room.
    pending: Option<ChannelEvent<Output>>,
    /// Upstream accepts no more data. What it sent before is still read.
    write_failed: bool,
    error_channel: ErrorChannel,
    idle: Duration,
    last_activity: Instant,
    timer: StreamTimer,
    stream_metrics: &'a StreamMetricsGuard,
    record: &'a mut AccessLogEntry,
}

impl Exchange<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        self.drive(cx);
        let down = self.poll_down(cx);
        if down.is_ready() {
            return down;
        }
        let up = self.poll_up(cx);
        if up.is_ready() {
            return up;
        }
        let was_full = !self.upstream.has_room();
        let _ = self.poll_flush(cx);
        if self.write_failed {
            let down = self.poll_down(cx);
            if down.is_ready() {
                return down;
            }
        }
        self.drive(cx);
        if self.driver.is_none() {
            return Poll::Ready(ExchangeEnd::ClientLeft);
        }
        let end_reason = self.poll_timer(cx);
        if was_full && self.upstream.has_room() {
            // The client was not polled since.
            cx.waker().wake_by_ref();
        }
        end_reason
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        self.pings.before_drive();
        if let Some(driver) = &mut self.driver
            && Pin::new(driver).poll(cx).is_ready()
        {
            self.driver = None;
        }
    }

    /// Sends what is written, unless writing has failed; returns whether there may be more.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.write_failed {
            return Poll::Pending;
        }
        self.upstream.poll_flush(cx).map(|sent| {
            if let Err(error) = sent {
                tracing::debug!(%error, "upstream accepts no more input");
                self.write_failed = true;
                // Discarded from now on.
                self.streams.stdin = None;
                self.streams.resize = None;
            }
        })
    }

    /// From upstream to the client.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        loop {
            match self.pending.take() {
                Some(ChannelEvent::Data(Output::Error, data)) => self.error_channel.push(&data),
                Some(ChannelEvent::Data(output, data)) => {
                    let sender = output_of(&mut self.streams, output);
                    match sender.as_mut().map(|it| it.poll_ready(cx)) {
                        Some(Poll::Pending) => {
                            self.pending = Some(ChannelEvent::Data(output, data));
                            return Poll::Pending;
                        }
                        Some(Poll::Ready(Ok(()))) => {
                            let now = Instant::now();
                            self.last_activity = now;
                            self.stream_metrics.down(data.len());
                            self.record.add_bytes(data.len());
                            if let Some(sender) = sender {
                                let _ = sender.send(data);
                            }
                        }
                        // The client does not read this stream any more.
                        Some(Poll::Ready(Err(_))) | None => {}
                    }
                }
                Some(ChannelEvent::Closed(_)) | None => {}
            }
            let chunk = match self.upstream.poll_chunk(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(reason)) => return Poll::Ready(ExchangeEnd::Upstream(reason)),
            };
            match self.reader.read_chunk(chunk) {
                Ok(event) => self.pending = event,
                Err(_) => return Poll::Ready(ExchangeEnd::UpstreamError),
            }
        }
    }

    /// From the client to upstream.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        loop {
            let mut progress = false;
            for input in [Input::Stdin, Input::Resize] {
                if !self.upstream.has_room() {
                    break;
                }
                let half = match input {
                    Input::Stdin => &mut self.streams.stdin,
                    Input::Resize => &mut self.streams.resize,
                };
                let Some(receiver) = half else { continue };
                let writer = &mut self.writer;
                match receiver.poll_read(cx) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(Some(data))) => {
                        let now = Instant::now();
                        self.last_activity = now;
                        self.stream_metrics.up(data.len());
                        self.upstream.write(|out| writer.frame(input, data, out));
                        progress = true;
                    }
                    Poll::Ready(Err(StreamError::Closed(_))) => {
                        return Poll::Ready(ExchangeEnd::ClientLeft);
                    }
                    // Clients disconnect by resetting all streams; an interrupted input must
                    // not look complete.
                    Poll::Ready(Err(_)) if input == Input::Stdin => {
                        return Poll::Ready(ExchangeEnd::ClientLeft);
                    }
                    Poll::Ready(Ok(None)) if input == Input::Stdin => {
                        *half = None;
                        self.upstream.write(|out| {
                            // Version 5 has a close signal.
                            let _ = writer.close(input, out);
                            None
                        });
                    }
                    Poll::Ready(Ok(None) | Err(_)) => *half = None,
                }
            }
            if progress {
                continue;
            }
            if self.upstream.has_room() {
                return Poll::Pending;
            }
            if self.poll_flush(cx).is_pending() || self.write_failed {
                return Poll::Pending;
            }
        }
    }

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
        if !self.upstream.check_keepalive(now, reading) {
            return Poll::Ready(ExchangeEnd::UpstreamDead);
        }
        if !self.upstream.has_room() {
            // The client is not read now: its replies may be pending.
            self.pings.on_read_paused();
        }
        if !self.pings.check(now) {
            return Poll::Ready(ExchangeEnd::ClientLeft);
        }
        let _ = self.poll_flush(cx);
        self.drive(cx);
        let next = (self.last_activity + self.idle).min(self.next_deadline());
        self.timer.set(next, cx);
        Poll::Pending
    }

    /// When the next keepalive check of either side is due.
    fn next_deadline(&self) -> Instant {
        self.upstream
            .next_deadline()
            .min(self.pings.next_deadline())
    }
}
