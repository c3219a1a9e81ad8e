//! How long something takes, on a machine that may be busy with something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{PATIENCE, eventually};

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(10);

/// Steps that may each have to wait for a processor, one after the other, in what is
/// measured: the kernel ends a process, another one wakes up in one thread, then in
/// another, ends, and is noticed to have ended.
const STEPS: u32 = 8;

/// Measures time, and by how much this machine was late meanwhile: a thread sleeps for a
/// moment, again and again, and counts how much longer it took.
#[derive(Debug)]
pub struct Stopwatch {
    begun: Instant,
    /// In microseconds.
    late: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Stopwatch {
    /// From now on.
    pub fn start() -> Self {
        let watch = Self {
            begun: Instant::now(),
            late: Arc::default(),
            over: Arc::default(),
        };
        let (late, over) = (watch.late.clone(), watch.over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                std::thread::sleep(TICK);
                let by = before.elapsed().saturating_sub(TICK);
                // A little is normal.
                if by > TICK {
                    let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
                    late.fetch_add(by, Ordering::Relaxed);
                }
            }
        });
        watch
    }

    /// Waits for a condition that has to hold within `limit`, or later by as much as this
    /// machine is late.
    ///
    /// # Panics
    /// If it does not.
    pub async fn within(&self, limit: Duration, what: &str, condition: impl AsyncFnMut() -> bool) {
        eventually(what, PATIENCE, condition).await;
        let took = self.begun.elapsed();
        let late = Duration::from_micros(self.late.load(Ordering::Relaxed));
        println!("{what} took {took:?}; this machine was late by {late:?}");
        assert!(
            is_within(limit, took, late),
            "{what} took {took:?}, and the limit is {limit:?}; this machine was late by {late:?}"
        );
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn is_within(limit: Duration, took: Duration, late: Duration) -> bool {
    took <= limit + late * STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_late_machine_is_an_excuse() {
        let ms = Duration::from_millis;
        assert!(is_within(ms(2000), ms(2000), ms(0)));
        assert!(!is_within(ms(2000), ms(2001), ms(0)));
        assert!(is_within(ms(2000), ms(2800), ms(100)));
        assert!(!is_within(ms(2000), ms(2801), ms(100)));
        let watch = Stopwatch::start();
        watch.within(PATIENCE, "nothing", async || true).await;
    }
}
