//! When to look after a stream again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::drain::Drain;

/// How long before the end of a drain streams are ended, so that their clients still
/// hear of it.
const FAREWELL: Duration = Duration::from_millis(500);

/// Wakes the task of a stream. It is set for the earliest moment at which something
/// could be due, and left there though that becomes later with everything that is
/// said: setting a timer for each message would cost more than looking once too often.
pub(crate) struct StreamTimer {
    sleep: Pin<Box<Sleep>>,
    leaving: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// What it is time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerEvent {
    /// To look, and to set the clock again.
    Check,
    /// To end: the bridge goes away.
    Shutdown,
}

impl StreamTimer {
    /// TimerEvent at once.
    pub(crate) fn new(now: Instant, drain: Drain) -> Self {
        Self {
            sleep: Box::pin(sleep_until(now)),
            leaving: Box::pin(async move {
                let end = drain.deadline().await;
                sleep_until(end - FAREWELL).await;
            }),
        }
    }

    /// Waits for its time.
    pub(crate) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<TimerEvent> {
        if self.leaving.as_mut().poll(cx).is_ready() {
            return Poll::Ready(TimerEvent::Shutdown);
        }
        self.sleep.as_mut().poll(cx).map(|()| TimerEvent::Check)
    }

    /// To be due then at the latest.
    pub(crate) fn set_earlier(&mut self, at: Instant, cx: &mut Context<'_>) {
        if at < self.sleep.deadline() {
            self.set(at, cx);
        }
    }

    /// To be due then.
    pub(crate) fn set(&mut self, at: Instant, cx: &mut Context<'_>) {
        self.sleep.as_mut().reset(at);
        if self.sleep.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

impl fmt::Debug for StreamTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamTimer")
            .field(&self.sleep.deadline())
            .finish()
    }
}
