//! The timer of a stream's driver.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes a stream's driver. It is set for the earliest time at which something may be due, and
/// is not moved when traffic postpones that: resetting a timer for each message would cost more
/// than an occasional early wake-up.
#[derive(Debug)]
pub(crate) struct Timer(Pin<Box<Sleep>>);

impl Timer {
    /// A timer that has already expired.
    pub(crate) fn new() -> Self {
        Self(Box::pin(sleep_until(Instant::now())))
    }

    /// Ready when the timer has expired.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }

    /// Makes the timer expire at this time at the latest.
    pub(crate) fn bring_forward(&mut self, at: Instant, cx: &mut Context<'_>) {
        if at < self.0.deadline() {
            self.set(at, cx);
        }
    }

    /// Makes the timer expire at this time.
    pub(crate) fn set(&mut self, at: Instant, cx: &mut Context<'_>) {
        self.0.as_mut().reset(at);
        if self.0.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}
