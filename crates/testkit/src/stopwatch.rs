//! Measures durations on a machine that may be busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{TEST_TIMEOUT, eventually};

/// The sleep of the thread that measures scheduling delay.
const SLEEP_INTERVAL: Duration = Duration::from_millis(10);

/// The number of consecutive steps in a measured operation that may each wait for a processor: the
/// kernel ends a process, another process wakes up in one thread, then in another, exits, and its
/// exit is detected.
const MAX_DELAYED_STEPS: u32 = 8;

/// Measures time and the scheduling delay of this machine: a thread sleeps repeatedly and
/// adds up how much longer each sleep took.
#[derive(Debug)]
pub struct Stopwatch {
    started: Instant,
    /// The scheduling delay in microseconds.
    delay: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
}

impl Stopwatch {
    /// Starts measuring.
    pub fn start() -> Self {
        let watch = Self {
            started: Instant::now(),
            delay: Arc::default(),
            stopped: Arc::default(),
        };
        let (delay, stopped) = (watch.delay.clone(), watch.stopped.clone());
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let before = Instant::now();
                std::thread::sleep(SLEEP_INTERVAL);
                let excess = before.elapsed().saturating_sub(SLEEP_INTERVAL);
                // A small delay is normal.
                if excess > SLEEP_INTERVAL {
                    let excess = u64::try_from(excess.as_micros()).unwrap_or(u64::MAX);
                    delay.fetch_add(excess, Ordering::Relaxed);
                }
            }
        });
        watch
    }

    /// Waits for a condition that must hold within `limit`, extended by the scheduling
    /// delay of this machine.
    ///
    /// # Panics
    /// If it does not hold in time.
    pub async fn within(&self, limit: Duration, what: &str, condition: impl AsyncFnMut() -> bool) {
        eventually(what, TEST_TIMEOUT, condition).await;
        let elapsed = self.started.elapsed();
        let delay = Duration::from_micros(self.delay.load(Ordering::Relaxed));
        println!("{what} took {elapsed:?}; scheduling delay {delay:?}");
        assert!(
            is_within(limit, elapsed, delay),
            "{what} took {elapsed:?}, and the limit is {limit:?}; scheduling delay {delay:?}"
        );
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

fn is_within(limit: Duration, took: Duration, delay: Duration) -> bool {
    took <= limit + delay * MAX_DELAYED_STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_scheduling_delay_extends_the_limit() {
        let ms = Duration::from_millis;
        assert!(is_within(ms(2000), ms(2000), ms(0)));
        assert!(!is_within(ms(2000), ms(2001), ms(0)));
        assert!(is_within(ms(2000), ms(2800), ms(100)));
        assert!(!is_within(ms(2000), ms(2801), ms(100)));
        let watch = Stopwatch::start();
        watch.within(TEST_TIMEOUT, "nothing", async || true).await;
    }
}
