//! The timer of a stream.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use skewbridge_http_engine::drain::Drain;

/// How long before the end of a drain streams are ended, so that their clients still get the
/// reason.
const TERMINATION_LEAD_TIME: Duration = Duration::from_millis(500);

/// Wakes the task of a stream. It is set to the earliest time at which something could be due,
/// and stays there although each message postpones that: resetting a timer for each message
/// costs more than one unneeded check.
pub(crate) struct StreamTimer {
    sleep: Pin<Box<Sleep>>,
    shutdown: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Why the timer fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerEvent {
    /// A check is due, after which the timer has to be set again.
    Check,
    /// The bridge shuts down.
    Shutdown,
}

impl StreamTimer {
    /// Fires at once.
    pub(crate) fn new(now: Instant, drain: Drain) -> Self {
        Self {
            sleep: Box::pin(sleep_until(now)),
            shutdown: Box::pin(async move {
                let end = drain.deadline().await;
                sleep_until(end - TERMINATION_LEAD_TIME).await;
            }),
        }
    }

    /// Waits until the timer fires.
    pub(crate) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<TimerEvent> {
        if self.shutdown.as_mut().poll(cx).is_ready() {
            return Poll::Ready(TimerEvent::Shutdown);
        }
        self.sleep.as_mut().poll(cx).map(|()| TimerEvent::Check)
    }

    /// Fires at this time at the latest.
    pub(crate) fn set_earlier(&mut self, at: Instant, cx: &mut Context<'_>) {
        if at < self.sleep.deadline() {
            self.set(at, cx);
        }
    }

    /// Fires at this time.
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
