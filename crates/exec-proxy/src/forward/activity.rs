//! Counts requests in flight, and records when the last one ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skewbridge_http_engine::server::ResponseRecord;
use tokio::time::{Instant, sleep_until};

/// Counts requests and streams in flight. An idle connection does not count.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    busy: usize,
    quiet_since: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            busy: 0,
            quiet_since: Instant::now(),
        })))
    }
}

/// A request is in flight while this lives.
#[derive(Debug)]
pub(crate) struct ActivityGuard(Activity);

impl Activity {
    pub(crate) fn begin(&self) -> ActivityGuard {
        self.with(|state| state.busy += 1);
        ActivityGuard(self.clone())
    }

    /// How many requests are in flight.
    pub fn count(&self) -> usize {
        self.with(|state| state.busy)
    }

    /// Returns when no request has been in flight for this long.
    pub async fn idle(&self, time: Duration) {
        loop {
            let until = self.with(|state| match state.busy {
                0 => state.quiet_since + time,
                _ => Instant::now() + time,
            });
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        // Nothing that panics is done under this lock.
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Held until the response has ended.
impl ResponseRecord for ActivityGuard {}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.busy -= 1;
            state.quiet_since = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idleness_begins_when_the_last_request_has_ended() {
        let activity = Activity::default();
        let begun = Instant::now();
        let first = activity.begin();
        let second = activity.begin();
        tokio::spawn(async move {
            sleep_until(begun + Duration::from_secs(40)).await;
            drop(first);
            sleep_until(begun + Duration::from_secs(70)).await;
            drop(second);
        });
        activity.idle(Duration::from_mins(1)).await;
        assert_eq!(begun.elapsed().as_secs(), 130);
        assert_eq!(activity.count(), 0);
    }
}
