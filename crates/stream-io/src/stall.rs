//! A client that has stopped taking its answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Notices that nothing is taken for too long. It costs nothing until something
/// has to wait.
#[derive(Debug)]
pub struct Stall {
    limit: Duration,
    taken: u64,
    until: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    /// With this patience.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            taken: 0,
            until: None,
        }
    }

    /// To be asked while something waits to be taken: ready when as much had
    /// been taken all the time.
    pub fn poll_too_long(&mut self, taken: u64, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(limit)));
        if taken != self.taken {
            self.taken = taken;
            until.as_mut().reset(Instant::now() + limit);
        }
        until.as_mut().poll(cx)
    }

    /// Nothing waits any more.
    pub fn over(&mut self) {
        self.until = None;
    }
}
