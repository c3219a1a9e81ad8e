//! A command whose streams are those of an SPDY connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use skewbridge_remotecommand::{Input, Output};
use skewbridge_stream_io::{ExecEvent, ExecResult, SpdyExecClient};
use tokio::time::{Instant, timeout};

use super::clock::Clock;
use super::lost;
use super::process::ExitStatus;
use super::shared::{Next, Shared, Which};
use crate::connection::Stream;

/// How long our own last word may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Carries a command to its end.
pub(crate) async fn drive(node: SpdyExecClient<Stream>, shared: Arc<Shared>) {
    let mut exchange = Exchange {
        node,
        clock: Clock::new(),
        shared: &shared,
    };
    let over = poll_fn(|cx| exchange.poll(cx)).await;
    let node = exchange.node;
    match over {
        Over::Ended(verdict) => {
            let cause = || match node.handle.closed() {
                Some(closed) => lost::of_closed(&closed),
                None => "the streams ended, but nobody said how the command did".to_owned(),
            };
            shared.end(ExitStatus::of(verdict.outcome, || shared.cut(cause())));
            let _ = timeout(FAREWELL, node.disconnect()).await;
        }
        Over::Dead => {
            shared.end(ExitStatus::Cut(
                shared.cut("the server does not answer any more"),
            ));
        }
    }
}

/// Why it is over.
enum Over {
    Ended(ExecResult),
    /// Nobody answers.
    Dead,
}

struct Exchange<'a> {
    node: SpdyExecClient<Stream>,
    clock: Clock,
    shared: &'a Shared,
}

impl Exchange<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        self.shared.drives(cx);
        self.node.drive(cx);
        if let Poll::Ready(verdict) = self.poll_down(cx) {
            return Poll::Ready(Over::Ended(verdict));
        }
        self.poll_up(cx);
        self.node.drive(cx);
        // What the connection has brought meanwhile.
        if let Poll::Ready(verdict) = self.poll_down(cx) {
            return Poll::Ready(Over::Ended(verdict));
        }
        self.poll_clock(cx)
    }

    /// From the node to those who read.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<ExecResult> {
        loop {
            let both = [Which::Stdout, Which::Stderr];
            if !both.into_iter().all(|which| self.shared.has_room(which)) {
                return Poll::Pending;
            }
            match ready!(self.node.poll_event(cx)) {
                ExecEvent::Data(output, data) => {
                    let which = match output {
                        Output::Stderr => Which::Stderr,
                        Output::Stdout | Output::Error => Which::Stdout,
                    };
                    self.shared.give(which, data);
                    // There may be room for more of it.
                    self.node.drive(cx);
                }
                ExecEvent::Ended(verdict) => return Poll::Ready(verdict),
            }
        }
    }

    /// From those who write to the node: as much as it takes.
    fn poll_up(&mut self, cx: &mut Context<'_>) {
        while self.node.poll_ready(Input::Resize, cx).is_ready()
            && let Some(size) = self.shared.take_size()
        {
            self.node.write(Input::Resize, size.encode());
        }
        while self.node.poll_ready(Input::Stdin, cx).is_ready() {
            if self.node.is_closed(Input::Stdin) {
                self.shared.refuse_input();
                return;
            }
            match self.shared.take_input() {
                None => return,
                Some(Next::End) => self.node.close(Input::Stdin),
                Some(Next::Data(data)) => {
                    self.node.write(Input::Stdin, data.into());
                }
            }
        }
    }

    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        self.clock.hurry(self.node.pinger.next_deadline(), cx);
        ready!(self.clock.poll_due(cx));
        if !self.node.pinger.check(Instant::now()) {
            return Poll::Ready(Over::Dead);
        }
        self.node.drive(cx);
        self.clock.set(self.node.pinger.next_deadline(), cx);
        Poll::Pending
    }
}
