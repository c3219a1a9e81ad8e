//! The deadline of a plugin call that several callers share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Stands for "never" when adding the timeout overflows the clock.
const FAR_FUTURE: Duration = Duration::from_hours(24 * 365);

/// The deadline of a shared call: its start plus the longest timeout of all callers. A caller
/// that joins later extends the timeout but not the start; otherwise steady requests would keep
/// a hanging plugin alive forever.
#[derive(Debug)]
pub(super) struct Deadline {
    started: Instant,
    timeout: Mutex<Duration>,
}

/// `started + timeout`, without overflow.
pub(super) fn deadline_after(started: Instant, timeout: Duration) -> Instant {
    started.checked_add(timeout).unwrap_or(started + FAR_FUTURE)
}

impl Deadline {
    /// The deadline of a call that starts now, with its first caller's timeout.
    pub(super) fn new(started: Instant, timeout: Duration) -> Self {
        Self {
            started,
            timeout: Mutex::new(timeout),
        }
    }

    /// Adds a caller with this timeout.
    pub(super) fn extend(&self, timeout: Duration) {
        let mut current = self.lock();
        *current = timeout.max(*current);
    }

    /// Whether the deadline has passed for all callers.
    pub(super) fn has_expired(&self) -> bool {
        self.instant() <= Instant::now()
    }

    /// Resolves when the deadline has passed.
    pub(super) async fn expired(&self) {
        while !self.has_expired() {
            // A caller with a longer timeout may have joined meanwhile.
            sleep_until(self.instant()).await;
        }
    }

    fn instant(&self) -> Instant {
        deadline_after(self.started, *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Duration> {
        self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole timeout in seconds, for error messages.
    pub(super) fn total_seconds(&self) -> f64 {
        let total = self.instant() - self.started;
        // Milliseconds are precise enough.
        (total.as_secs_f64() * 1000.0).round() / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_may_take_as_long_as_its_longest_timeout() {
        let started = Instant::now();
        let second = Duration::from_secs(1);
        let deadline = Arc::new(Deadline::new(started, 10 * second));
        let expired = tokio::spawn({
            let deadline = deadline.clone();
            async move { deadline.expired().await }
        });
        sleep_until(started + 5 * second).await;
        deadline.extend(3 * second);
        deadline.extend(60 * second);
        sleep_until(started + 11 * second).await;
        assert!(!deadline.has_expired());
        expired.await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 60);
        assert!((deadline.total_seconds() - 60.0).abs() < 0.001);
    }

    #[tokio::test(start_paused = true)]
    async fn new_callers_do_not_keep_a_hanging_call_alive() {
        let started = Instant::now();
        let second = Duration::from_secs(1);
        let deadline = Deadline::new(started, 10 * second);
        let new_waiters = async {
            loop {
                tokio::time::sleep(second).await;
                deadline.extend(10 * second);
            }
        };
        tokio::select! {
            () = deadline.expired() => {}
            () = new_waiters => {}
        }
        assert_eq!(started.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn the_maximum_timeout_does_not_overflow() {
        let deadline = Deadline::new(Instant::now(), Duration::MAX);
        assert!(!deadline.has_expired());
    }
}
