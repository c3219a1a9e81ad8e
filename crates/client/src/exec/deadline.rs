//! Until when somebody waits for a call.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// As good as never, where a limit is beyond all clocks.
const FAR_FUTURE: Duration = Duration::from_hours(24 * 365);

/// The limit of a call: as long after its beginning as the most patient of those wait who
/// wait for it. Who comes later moves no end that is longer than that away, or a plugin that
/// hangs would never be ended where requests keep coming.
#[derive(Debug)]
pub(super) struct Deadline {
    started: Instant,
    timeout: Mutex<Duration>,
}

/// When somebody has waited so long.
pub(super) fn deadline_after(started: Instant, timeout: Duration) -> Instant {
    started.checked_add(timeout).unwrap_or(started + FAR_FUTURE)
}

impl Deadline {
    /// For who begins the call then, and waits so long.
    pub(super) fn new(started: Instant, timeout: Duration) -> Self {
        Self {
            started,
            timeout: Mutex::new(timeout),
        }
    }

    /// Somebody else waits, so long.
    pub(super) fn extend(&self, timeout: Duration) {
        let mut current = self.lock();
        *current = timeout.max(*current);
    }

    /// Whether nobody waits for it any more.
    pub(super) fn has_expired(&self) -> bool {
        self.instant() <= Instant::now()
    }

    /// Returns when nobody waits for it any more.
    pub(super) async fn expired(&self) {
        while !self.has_expired() {
            // Meanwhile somebody may have come who waits longer.
            sleep_until(self.instant()).await;
        }
    }

    fn instant(&self) -> Instant {
        deadline_after(self.started, *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Duration> {
        self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, in seconds, for an error.
    pub(super) fn total_seconds(&self) -> f64 {
        let total = self.instant() - self.started;
        // Nobody wants to know more exactly.
        (total.as_secs_f64() * 1000.0).round() / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_may_take_as_long_as_the_most_patient_waits() {
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
    async fn a_call_ends_however_many_come_while_it_hangs() {
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
    async fn who_has_all_the_patience_there_is_waits() {
        let deadline = Deadline::new(Instant::now(), Duration::MAX);
        assert!(!deadline.has_expired());
    }
}
