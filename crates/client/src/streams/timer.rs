//! When a stream is to be looked after.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes the driver of a stream. It is set for the earliest moment at which something
/// could be due, and left there though that becomes later with everything that is said:
/// setting a timer for each message would cost more than looking once too often.
#[derive(Debug)]
pub(crate) struct Timer(Pin<Box<Sleep>>);

impl Timer {
    /// Due at once.
    pub(crate) fn new() -> Self {
        Self(Box::pin(sleep_until(Instant::now())))
    }

    /// Waits for its time.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }

    /// To be due then at the latest.
    pub(crate) fn bring_forward(&mut self, at: Instant, cx: &mut Context<'_>) {
        if at < self.0.deadline() {
            self.set(at, cx);
        }
    }

    /// To be due then.
    pub(crate) fn set(&mut self, at: Instant, cx: &mut Context<'_>) {
        self.0.as_mut().reset(at);
        if self.0.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}
