//! Detects a client that has stopped reading its response.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Expires if no bytes are written for a while. It allocates nothing until a write has to
/// wait.
#[derive(Debug)]
pub struct WriteStallTimer {
    limit: Duration,
    written: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteStallTimer {
    /// Expires after `limit` without progress.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            written: 0,
            timer: None,
        }
    }

    /// To be polled while a write waits; ready if `written` has not changed for the whole
    /// limit.
    pub fn poll_stalled(&mut self, written: u64, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if written != self.written {
            self.written = written;
            timer.as_mut().reset(Instant::now() + limit);
        }
        timer.as_mut().poll(cx)
    }

    /// Stops the timer: no write waits.
    pub fn disarm(&mut self) {
        self.timer = None;
    }
}
