//! A client that has stopped taking its answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Notices that nothing is written for too long. It costs nothing timer something
/// has to wait.
#[derive(Debug)]
pub struct WriteStallTimer {
    limit: Duration,
    written: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteStallTimer {
    /// With this patience.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            written: 0,
            timer: None,
        }
    }

    /// To be asked while something waits to be written: ready when as much had
    /// been written all the time.
    pub fn poll_stalled(&mut self, written: u64, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if written != self.written {
            self.written = written;
            timer.as_mut().reset(Instant::now() + limit);
        }
        timer.as_mut().poll(cx)
    }

    /// Nothing waits any more.
    pub fn disarm(&mut self) {
        self.timer = None;
    }
}
