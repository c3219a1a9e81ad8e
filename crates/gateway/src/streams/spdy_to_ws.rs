//! A remote command by SPDY that is carried upstream by WebSocket, for a bridge whose
//! way to its kube-apiserver carries nothing else (`--upstream-streams=websocket`).

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use skewbridge_remotecommand::{
    ChannelEvent, ErrorChannel, ErrorChannelEnd, FromServer, Input, Options, Outcome, Output,
    Protocol, SpdyProtocol, ToServer, Version,
};
use skewbridge_spdy::connection::{self, Driver, Sender};
use skewbridge_spdy::{Config, Role as Spdy, StreamError};
use skewbridge_stream_io::{
    CommandStreams, DisconnectReason, ObservedIo, PingPolicy, Rewind, SpdyPinger, WebSocketConn,
};
use skewbridge_websocket::{CloseCode, Role};
use tokio::time::{Instant, timeout};

use super::metrics::{StreamEnd, StreamMetricsGuard};
use super::timer::{StreamTimer, TimerEvent};
use super::{StreamTimeouts, termination_status};
use crate::access_log::AccessLogEntry;
use crate::drain::Drain;
use crate::serve::ClientIo;
use crate::upstream::UpstreamIo;
use crate::upstream::h1::Upgraded;

/// How long what a client has sent may take to leave here when it has left itself.
const LEAVING: Duration = Duration::from_secs(5);

/// How long a client may take to open its streams, as with kubelets.
const OPENING: Duration = Duration::from_secs(30);

/// A command that has begun upstream, and is about to here.
#[derive(Debug)]
pub(crate) struct SpdyToWsExec {
    pub(crate) protocol: SpdyProtocol,
    pub(crate) options: Options,
    pub(crate) upstream: Upgraded,
    pub(crate) timeouts: StreamTimeouts,
    pub(crate) drain: Drain,
    pub(crate) stream_metrics: StreamMetricsGuard,
}

type Here = Driver<ObservedIo<Rewind<ClientIo>>>;

impl SpdyToWsExec {
    /// Carries it to its end.
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
            Spdy::Server,
            self.timeouts.client_keepalive(),
            PingPolicy::Always,
        );
        let keepalive = io.keepalive_handle();
        let (handle, mut incoming, mut driver) = connection::server(io, config);
        let Upgraded { io, input, slot } = self.upstream;
        let now = Instant::now();
        let pulse = self
            .timeouts
            .upstream_ws_keepalive(PingPolicy::AvoidNearEof, now);
        let upstream = WebSocketConn::new(io, input, Role::Client, pulse);
        let opened = {
            let opening = pin!(CommandStreams::accept(
                &mut incoming,
                self.options,
                self.protocol
            ));
            tokio::select! {
                opened = timeout(OPENING, opening) => opened.ok(),
                _ = &mut driver => None,
            }
        };
        let Some(streams) = opened else {
            self.stream_metrics.end(StreamEnd::ClientLeft);
            return;
        };
        // Further ones are refused, or each would keep a window full of data.
        drop(incoming);
        let mut exchange = Exchange {
            pings: SpdyPinger::new(handle.clone(), keepalive),
            driver: Some(driver),
            streams,
            upstream,
            reader: FromServer::new(Protocol::V5),
            writer: ToServer::new(Protocol::V5),
            waiting: None,
            write_failed: false,
            told: ErrorChannel::new(Version::V5),
            idle: self.timeouts.idle,
            last_activity: now,
            timer: StreamTimer::new(now, self.drain),
            stream_metrics: &self.stream_metrics,
            record: &mut record,
        };
        let over = poll_fn(|cx| exchange.poll(cx)).await;
        let Exchange {
            driver,
            streams,
            mut upstream,
            told,
            ..
        } = exchange;
        let words = told.bytes().to_vec();
        let end = match &over {
            ExchangeEnd::Upstream(DisconnectReason::Closed(Some(close)))
                if close.code() == CloseCode::NORMAL =>
            {
                ErrorChannelEnd::Clean
            }
            _ => ErrorChannelEnd::Aborted,
        };
        let outcome = told.end(end);
        let ended = over.counted(&outcome);
        let has_left = matches!(over, ExchangeEnd::ClientLeft);
        if has_left {
            // What it has sent is for the command, whatever became of the rest.
            let _ = timeout(LEAVING, poll_fn(|cx| upstream.poll_flush(cx))).await;
        }
        // PingRole a client that is killed leaves: kube-apiserver goes on with the command for
        // one that says goodbye and takes what still comes.
        drop((upstream, slot));
        if has_left {
            self.stream_metrics.end(ended);
            return;
        }
        let version = self.protocol.version();
        let words = match outcome {
            _ if matches!(over, ExchangeEnd::Idle) => {
                termination_status::idle_timeout(self.timeouts).encode(version)
            }
            _ if matches!(over, ExchangeEnd::Shutdown) => {
                termination_status::shutdown().encode(version)
            }
            // Word for word where it can be: there may be more in it than we know.
            Outcome::Disconnected => Outcome::Disconnected.encode(version),
            _ if version.has_status() => words.into(),
            outcome => outcome.encode(version),
        };
        let said = async {
            let mut driver = driver?;
            tokio::select! {
                biased;
                // The client is gone.
                _ = &mut driver => return None,
                () = streams.finish(words) => {}
            }
            handle.close();
            drop(handle);
            driver.await.ok()
        };
        // A slow client has its time: much may be on its way to it.
        let told = matches!(timeout(self.timeouts.stall, said).await, Ok(Some(())));
        self.stream_metrics.end(ended.if_delivered(told));
        if told && end == ErrorChannelEnd::Clean {
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

/// Why it is over.
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
    /// PingRole it is counted, if the command ended like this.
    fn counted(&self, outcome: &Outcome) -> StreamEnd {
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
    driver: Option<Here>,
    pings: SpdyPinger,
    streams: CommandStreams,
    upstream: WebSocketConn<UpstreamIo>,
    reader: FromServer,
    writer: ToServer,
    /// What came from above and there is no room for here.
    waiting: Option<ChannelEvent<Output>>,
    /// What is above takes nothing any more. It may have said its last before, which
    /// is still to be read.
    write_failed: bool,
    told: ErrorChannel,
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
        let over = self.poll_timer(cx);
        if was_full && self.upstream.has_room() {
            // Nobody has asked the client since.
            cx.waker().wake_by_ref();
        }
        over
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        self.pings.before_drive();
        if let Some(driver) = &mut self.driver
            && Pin::new(driver).poll(cx).is_ready()
        {
            self.driver = None;
        }
    }

    /// Sends what is written, as long as it is taken; says whether there may be more.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.write_failed {
            return Poll::Pending;
        }
        self.upstream.poll_flush(cx).map(|sent| {
            if let Err(error) = sent {
                tracing::debug!(%error, "upstream takes no more input");
                self.write_failed = true;
                // Thrown away from now on.
                self.streams.stdin = None;
                self.streams.resize = None;
            }
        })
    }

    /// From above to the client.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        loop {
            match self.waiting.take() {
                Some(ChannelEvent::Data(Output::Error, data)) => self.told.push(&data),
                Some(ChannelEvent::Data(output, data)) => {
                    let sender = output_of(&mut self.streams, output);
                    match sender.as_mut().map(|it| it.poll_ready(cx)) {
                        Some(Poll::Pending) => {
                            self.waiting = Some(ChannelEvent::Data(output, data));
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
                        // The client does not want it any more.
                        Some(Poll::Ready(Err(_))) | None => {}
                    }
                }
                Some(ChannelEvent::Closed(_)) | None => {}
            }
            let chunk = match self.upstream.poll_chunk(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(left)) => return Poll::Ready(ExchangeEnd::Upstream(left)),
            };
            match self.reader.read_chunk(chunk) {
                Ok(said) => self.waiting = said,
                Err(_) => return Poll::Ready(ExchangeEnd::UpstreamError),
            }
        }
    }

    /// From the client upwards.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        loop {
            let mut said = false;
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
                        said = true;
                    }
                    Poll::Ready(Err(StreamError::Closed(_))) => {
                        return Poll::Ready(ExchangeEnd::ClientLeft);
                    }
                    // Clients leave by resetting all; an input that was broken off must
                    // not look complete.
                    Poll::Ready(Err(_)) if input == Input::Stdin => {
                        return Poll::Ready(ExchangeEnd::ClientLeft);
                    }
                    Poll::Ready(Ok(None)) if input == Input::Stdin => {
                        *half = None;
                        self.upstream.write(|out| {
                            // The fifth version has a signal for it.
                            let _ = writer.close(input, out);
                            None
                        });
                    }
                    Poll::Ready(Ok(None) | Err(_)) => *half = None,
                }
            }
            if said {
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
        let heeded = self.waiting.is_none();
        if !self.upstream.check_keepalive(now, heeded) {
            return Poll::Ready(ExchangeEnd::UpstreamDead);
        }
        if !self.upstream.has_room() {
            // Nothing is read from the client: its answer may be there.
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

    /// When either side is to be looked after.
    fn next_deadline(&self) -> Instant {
        self.upstream
            .next_deadline()
            .min(self.pings.next_deadline())
    }
}
