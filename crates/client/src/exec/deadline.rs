//! Until when somebody waits for a call.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The limit of a call: that of the one who waits longest for it.
#[derive(Debug)]
pub(super) struct Deadline {
    since: Instant,
    until: Mutex<Instant>,
}

impl Deadline {
    /// For who has begun the call, and waits so long.
    pub(super) fn new(patience: Duration) -> Self {
        let since = Instant::now();
        Self {
            since,
            until: Mutex::new(since + patience),
        }
    }

    /// Somebody else waits, until then.
    pub(super) fn extend(&self, until: Instant) {
        let mut before = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *before = until.max(*before);
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
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
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
        let deadline = Arc::new(Deadline::new(10 * second));
        let passed = tokio::spawn({
            let deadline = deadline.clone();
            async move { deadline.passed().await }
        });
        sleep_until(begun + 5 * second).await;
        deadline.extend(begun + 8 * second);
        deadline.extend(begun + 65 * second);
        sleep_until(begun + 11 * second).await;
        assert!(!deadline.is_over());
        passed.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 65);
        assert!((deadline.seconds() - 65.0).abs() < 0.001);
    }
}
