//! When to look after a stream again.

use std::future::Future as _;
use std::pin::Pin;
use std::task::Context;

use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes the task of a stream. It is set for the earliest moment at which something
/// could be due, and left there though that becomes later with everything that is
/// said: setting a timer for each message would cost more than looking once too often.
#[derive(Debug)]
pub(crate) struct Clock(Pin<Box<Sleep>>);

impl Clock {
    /// Due at once.
    pub(crate) fn new(now: Instant) -> Self {
        Self(Box::pin(sleep_until(now)))
    }

    /// Whether it is time to look.
    pub(crate) fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.as_mut().poll(cx).is_ready()
    }

    /// To be due then.
    pub(crate) fn set(&mut self, at: Instant, cx: &mut Context<'_>) {
        self.0.as_mut().reset(at);
        if self.is_due(cx) {
            cx.waker().wake_by_ref();
        }
    }
}
