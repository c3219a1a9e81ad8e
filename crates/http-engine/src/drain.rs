//! Graceful shutdown: announces the drain and its deadline to all tasks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The shutdown phase of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Reports not ready, and still accepts clients.
    NotReady,
    /// Accepts nothing new, and aborts requests at this deadline.
    Draining {
        deadline: Instant,
    },
}

/// Starts the shutdown phases.
#[derive(Debug)]
pub struct DrainTrigger(watch::Sender<Phase>);

/// Observes the shutdown phases.
#[derive(Debug, Clone)]
pub struct Drain(watch::Receiver<Phase>);

/// A trigger and its observer.
pub fn drain_channel() -> (DrainTrigger, Drain) {
    let (sender, receiver) = watch::channel(Phase::Serving);
    (DrainTrigger(sender), Drain(receiver))
}

impl DrainTrigger {
    /// Reports not ready from now on.
    pub fn mark_not_ready(&self) {
        self.0.send_replace(Phase::NotReady);
    }

    /// Starts the drain: requests in flight have this much time.
    pub fn drain(&self, within: Duration) {
        let deadline = Instant::now() + within;
        self.0.send_replace(Phase::Draining { deadline });
    }
}

impl Drain {
    /// Never drains: for a server that is stopped abruptly.
    pub fn never() -> Self {
        drain_channel().1
    }

    /// Whether the process reports that it is not ready, so that new clients use another one.
    pub fn is_not_ready(&self) -> bool {
        *self.0.borrow() != Phase::Serving
    }

    /// Whether connections should end.
    pub fn is_draining(&self) -> bool {
        matches!(*self.0.borrow(), Phase::Draining { .. })
    }

    /// Waits until the process reports that it is not ready.
    pub async fn not_ready(&mut self) {
        if self
            .0
            .wait_for(|phase| *phase != Phase::Serving)
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until connections should end.
    pub async fn draining(&mut self) {
        let draining = |phase: &Phase| matches!(phase, Phase::Draining { .. });
        if self.0.wait_for(draining).await.is_err() {
            // The trigger was dropped: the drain never begins.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for the drain to begin, and returns its deadline.
    pub async fn deadline(mut self) -> Instant {
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

/// Counts requests in flight, so that the drain can end early.
#[derive(Debug, Clone, Default)]
pub struct InFlight(Arc<()>);

impl InFlight {
    /// Counts one more request until the guard is dropped.
    #[must_use]
    pub fn guard(&self) -> Self {
        self.clone()
    }

    /// The number of guards.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// Much longer than the times in these tests.
    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn readiness_ends_before_the_drain_starts() {
        let (trigger, mut drain) = drain_channel();
        assert!(!drain.is_not_ready() && !drain.is_draining());
        trigger.mark_not_ready();
        assert!(drain.is_not_ready() && !drain.is_draining());
        trigger.drain(TEST_TIMEOUT);
        assert!(drain.is_not_ready() && drain.is_draining());
        timeout(TEST_TIMEOUT, drain.draining()).await.unwrap();
    }

    #[test]
    fn guards_are_counted_until_they_are_dropped() {
        let running = InFlight::default();
        assert_eq!(running.count(), 0);
        let (one, two) = (running.guard(), running.guard());
        assert_eq!(running.count(), 2);
        drop((one, two));
        assert_eq!(running.count(), 0);
    }
}
