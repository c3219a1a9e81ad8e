//! Until when somebody waits for a call.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// As good as never, where a limit is beyond all clocks.
const FAR: Duration = Duration::from_hours(24 * 365);

/// The limit of a call: as long after its beginning as the most patient of those wait who
/// wait for it. Who comes later moves no end that is longer than that away, or a plugin that
/// hangs would never be ended where requests keep coming.
#[derive(Debug)]
pub(super) struct Deadline {
    since: Instant,
    patience: Mutex<Duration>,
}

/// When somebody has waited so long.
pub(super) fn after(since: Instant, patience: Duration) -> Instant {
    since.checked_add(patience).unwrap_or(since + FAR)
}

impl Deadline {
    /// For who begins the call then, and waits so long.
    pub(super) fn new(since: Instant, patience: Duration) -> Self {
        Self {
            since,
            patience: Mutex::new(patience),
        }
    }

    /// Somebody else waits, so long.
    pub(super) fn extend(&self, patience: Duration) {
        let mut before = self.lock();
        *before = patience.max(*before);
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_over(&self) -> bool {
        self.until() <= Instant::now()
    }

    /// Returns when nobody waits for it any more.
    pub(super) async fn passed(&self) {
        while !self.is_over() {
            // Meanwhile somebody may have come who waits longer.
            sleep_until(self.until()).await;
        }
    }

    fn until(&self) -> Instant {
        after(self.since, *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Duration> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, in seconds, for an error.
    pub(super) fn seconds(&self) -> f64 {
        let all = self.until() - self.since;
        // Nobody wants to know more exactly.
        (all.as_secs_f64() * 1000.0).round() / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_may_take_as_long_as_the_most_patient_waits() {
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        let deadline = Arc::new(Deadline::new(begun, 10 * second));
        let passed = tokio::spawn({
            let deadline = deadline.clone();
            async move { deadline.passed().await }
        });
        sleep_until(begun + 5 * second).await;
        deadline.extend(3 * second);
        deadline.extend(60 * second);
        sleep_until(begun + 11 * second).await;
        assert!(!deadline.is_over());
        passed.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 60);
        assert!((deadline.seconds() - 60.0).abs() < 0.001);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_however_many_come_while_it_hangs() {
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        let deadline = Deadline::new(begun, 10 * second);
        let coming = async {
            loop {
                tokio::time::sleep(second).await;
                deadline.extend(10 * second);
            }
        };
        tokio::select! {
            () = deadline.passed() => {}
            () = coming => {}
        }
        assert_eq!(begun.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_all_the_patience_there_is_waits() {
        let deadline = Deadline::new(Instant::now(), Duration::MAX);
        assert!(!deadline.is_over());
    }
}
