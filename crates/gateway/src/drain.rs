//! Going away without anybody noticing: who serves learns that the bridge is
//! leaving, and how long there is to finish.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

/// Where the bridge is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Says that it is not ready, and serves on.
    Leaving,
    /// Takes nothing new, and cuts what still runs at this time.
    Draining {
        deadline: Instant,
    },
}

/// Announces the end.
#[derive(Debug)]
pub struct Leave(watch::Sender<Phase>);

/// Hears of the end.
#[derive(Debug, Clone)]
pub struct Drain(watch::Receiver<Phase>);

/// The two ends of one announcement.
pub fn announcement() -> (Leave, Drain) {
    let (sender, receiver) = watch::channel(Phase::Serving);
    (Leave(sender), Drain(receiver))
}

impl Leave {
    /// Not ready any more.
    pub fn leave(&self) {
        self.0.send_replace(Phase::Leaving);
    }

    /// Finish what is running.
    pub fn drain(&self, within: Duration) {
        let deadline = Instant::now() + within;
        self.0.send_replace(Phase::Draining { deadline });
    }
}

impl Drain {
    /// Whether new clients should go elsewhere.
    pub fn is_leaving(&self) -> bool {
        *self.0.borrow() != Phase::Serving
    }

    /// Whether connections should end.
    pub fn is_draining(&self) -> bool {
        matches!(*self.0.borrow(), Phase::Draining { .. })
    }

    /// Waits until connections should end.
    pub async fn draining(&mut self) {
        let draining = |phase: &Phase| matches!(phase, Phase::Draining { .. });
        if self.0.wait_for(draining).await.is_err() {
            // Nobody is left to announce anything: tests that never drain.
            std::future::pending::<()>().await;
        }
    }

    async fn watch_end(mut self) -> Instant {
        loop {
            if let Phase::Draining { deadline } = *self.0.borrow_and_update() {
                return deadline;
            }
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Ends a watch when the bridge goes away, at a moment of its own within the
/// first half of the time there is: a client then asks elsewhere, and not all
/// clients at once.
pub(crate) struct WatchEnd {
    state: State,
    /// 0 to 255: where in the span this watch ends.
    share: u8,
}

enum State {
    Listening(Pin<Box<dyn Future<Output = Instant> + Send>>),
    Ending(Pin<Box<Sleep>>),
}

impl std::fmt::Debug for WatchEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchEnd").finish_non_exhaustive()
    }
}

impl WatchEnd {
    pub(crate) fn new(drain: &Drain, share: u8) -> Self {
        Self {
            state: State::Listening(Box::pin(drain.clone().watch_end())),
            share,
        }
    }

    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.state {
                State::Listening(deadline) => match deadline.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(deadline) => {
                        let now = Instant::now();
                        let span = deadline.saturating_duration_since(now) / 2;
                        let at = now + span * u32::from(self.share) / 255;
                        self.state = State::Ending(Box::pin(tokio::time::sleep_until(at)));
                    }
                },
                State::Ending(sleep) => return sleep.as_mut().poll(cx),
            }
        }
    }
}

/// Counts what is still running, so that leaving can end early.
#[derive(Debug, Clone, Default)]
pub struct Running(Arc<()>);

impl Running {
    /// One more, until it is dropped.
    #[must_use]
    pub fn one(&self) -> Self {
        self.clone()
    }

    /// How many there are besides this one.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::timeout;

    use super::*;

    /// Long beside any span here.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn first_it_is_leaving_and_then_it_drains() {
        let (leave, mut drain) = announcement();
        assert!(!drain.is_leaving() && !drain.is_draining());
        leave.leave();
        assert!(drain.is_leaving() && !drain.is_draining());
        leave.drain(PATIENCE);
        assert!(drain.is_leaving() && drain.is_draining());
        timeout(PATIENCE, drain.draining()).await.unwrap();
    }

    #[tokio::test]
    async fn watches_end_one_by_one_in_the_first_half_of_the_drain() {
        let span = Duration::from_millis(400);
        let (leave, drain) = announcement();
        let mut ends = [0, 128, 255].map(|share| WatchEnd::new(&drain, share));
        leave.leave();
        for end in &mut ends {
            let polled = poll_fn(|cx| Poll::Ready(end.poll_end(cx))).await;
            assert!(polled.is_pending(), "not while it is only leaving");
        }
        leave.drain(span);
        let began = Instant::now();
        let mut after = Vec::new();
        for end in &mut ends {
            let ended = poll_fn(|cx| end.poll_end(cx));
            timeout(PATIENCE, ended).await.unwrap();
            after.push(began.elapsed());
        }
        // Each is polled when the one before has ended: its own half begins
        // there, and is shorter by what has passed.
        assert!(after[1] >= span / 5, "{after:?}");
        assert!(after[2] > after[1], "{after:?}");
    }

    #[test]
    fn what_runs_is_counted_until_it_is_dropped() {
        let running = Running::default();
        assert_eq!(running.count(), 0);
        let (one, two) = (running.one(), running.one());
        assert_eq!(running.count(), 2);
        drop((one, two));
        assert_eq!(running.count(), 0);
    }
}
