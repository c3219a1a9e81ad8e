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
    in_flight: usize,
    idle_since: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            in_flight: 0,
            idle_since: Instant::now(),
        })))
    }
}

/// A request is in flight until this guard is dropped.
#[derive(Debug)]
pub(crate) struct ActivityGuard(Activity);

impl Activity {
    pub(crate) fn begin(&self) -> ActivityGuard {
        self.with(|state| state.in_flight += 1);
        ActivityGuard(self.clone())
    }

    /// How many requests are in flight.
    pub fn count(&self) -> usize {
        self.with(|state| state.in_flight)
    }

    /// Returns when no request has been in flight for this long.
    pub async fn wait_until_idle(&self, time: Duration) {
        loop {
            let until = self.with(|state| match state.in_flight {
                0 => state.idle_since + time,
                _ => Instant::now() + time,
            });
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    fn with<T>(&self, update: impl FnOnce(&mut State) -> T) -> T {
        // No code that can panic runs under this lock.
        update(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Held until the response has ended.
impl ResponseRecord for ActivityGuard {}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.in_flight -= 1;
            state.idle_since = Instant::now();
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
        activity.wait_until_idle(Duration::from_mins(1)).await;
        assert_eq!(begun.elapsed().as_secs(), 130);
        assert_eq!(activity.count(), 0);
    }
}
