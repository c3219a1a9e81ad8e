//! A command's streams over an SPDY connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use skewbridge_remotecommand::{Input, Output};
use skewbridge_stream_io::{ExecEvent, ExecResult, SpdyExecClient};
use tokio::time::{Instant, timeout};

use super::disconnect_message;
use super::exit_status::ExitStatus;
use super::stream_buffers::{OutputStream, StdinEvent, StreamBuffers};
use super::timer::Timer;
use crate::transport::Stream;

/// How long the final flush may take.
const CLOSE_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Drives a command until it has ended.
pub(crate) async fn drive(node: SpdyExecClient<Stream>, buffers: Arc<StreamBuffers>) {
    let mut session = Session {
        node,
        timer: Timer::new(),
        buffers: &buffers,
    };
    let session_end = poll_fn(|cx| session.poll(cx)).await;
    let node = session.node;
    match session_end {
        SessionEnd::Ended(verdict) => {
            let cause = || match node.handle.closed() {
                Some(closed) => disconnect_message::of_closed(&closed),
                None => "the streams ended without an exit status".to_owned(),
            };
            buffers.end(ExitStatus::from_outcome(verdict.outcome, || {
                buffers.disconnected(cause())
            }));
            let _ = timeout(CLOSE_FLUSH_TIMEOUT, node.disconnect()).await;
        }
        SessionEnd::Unresponsive => {
            buffers.end(ExitStatus::Disconnected(
                buffers.disconnected("the server does not answer any more"),
            ));
        }
    }
}

/// Why the session ended.
enum SessionEnd {
    Ended(ExecResult),
    /// The server does not answer pings.
    Unresponsive,
}

struct Session<'a> {
    node: SpdyExecClient<Stream>,
    timer: Timer,
    buffers: &'a StreamBuffers,
}

impl Session<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        self.buffers.register_driver(cx);
        self.node.drive(cx);
        if let Poll::Ready(verdict) = self.poll_incoming(cx) {
            return Poll::Ready(SessionEnd::Ended(verdict));
        }
        self.poll_outgoing(cx);
        self.node.drive(cx);
        // The connection may have received more meanwhile.
        if let Poll::Ready(verdict) = self.poll_incoming(cx) {
            return Poll::Ready(SessionEnd::Ended(verdict));
        }
        self.poll_timer(cx)
    }

    /// Moves output from the connection to its readers.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<ExecResult> {
        loop {
            let streams = [OutputStream::Stdout, OutputStream::Stderr];
            if !streams
                .into_iter()
                .all(|output_stream| self.buffers.has_room(output_stream))
            {
                return Poll::Pending;
            }
            match ready!(self.node.poll_event(cx)) {
                ExecEvent::Data(output, data) => {
                    let output_stream = match output {
                        Output::Stderr => OutputStream::Stderr,
                        Output::Stdout | Output::Error => OutputStream::Stdout,
                    };
                    self.buffers.push_output(output_stream, data);
                    // The buffer may have room for more output.
                    self.node.drive(cx);
                }
                ExecEvent::Ended(verdict) => return Poll::Ready(verdict),
            }
        }
    }

    /// Moves input from its writer to the connection, as much as it accepts.
    fn poll_outgoing(&mut self, cx: &mut Context<'_>) {
        while self.node.poll_ready(Input::Resize, cx).is_ready()
            && let Some(size) = self.buffers.take_resize()
        {
            self.node.write(Input::Resize, size.encode());
        }
        while self.node.poll_ready(Input::Stdin, cx).is_ready() {
            if self.node.is_closed(Input::Stdin) {
                self.buffers.close_stdin();
                return;
            }
            match self.buffers.take_stdin() {
                None => return,
                Some(StdinEvent::End) => self.node.close(Input::Stdin),
                Some(StdinEvent::Data(data)) => {
                    self.node.write(Input::Stdin, data.into());
                }
            }
        }
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        self.timer
            .bring_forward(self.node.pinger.next_deadline(), cx);
        ready!(self.timer.poll_expired(cx));
        if !self.node.pinger.check(Instant::now()) {
            return Poll::Ready(SessionEnd::Unresponsive);
        }
        self.node.drive(cx);
        self.timer.set(self.node.pinger.next_deadline(), cx);
        Poll::Pending
    }
}
