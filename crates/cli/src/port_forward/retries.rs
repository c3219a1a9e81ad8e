//! Backoff of reconnects, and their limit.

use std::time::{Duration, Instant};

/// The first and the longest delay before a reconnect: each is twice the previous one.
const BACKOFF_RANGE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// One outage: from the loss of a stable connection until there is another stable one. Connections
/// that are lost at once belong to the outage; otherwise a server that accepts and closes would be
/// retried without a pause, forever.
#[derive(Debug)]
pub(super) struct Retries {
    max_wait: Duration,
    /// When the outage is given up.
    until: Instant,
    /// The delay before the next attempt; none before the first.
    pause: Duration,
}

/// The lifetime of a connection that was lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Uptime {
    pub(super) time: Duration,
    /// Whether the connection has carried data.
    pub(super) served: bool,
}

impl Retries {
    pub(super) fn new(max_wait: Duration, now: Instant) -> Self {
        Self {
            max_wait,
            until: now + max_wait,
            pause: Duration::ZERO,
        }
    }

    /// A connection is lost.
    pub(super) fn on_disconnect(&mut self, uptime: Uptime, now: Instant) {
        if uptime.time >= self.stable_uptime(uptime.served) {
            *self = Self::new(self.max_wait, now);
        }
    }

    /// The lifetime of a connection that ends an outage: longer than any delay, or than the
    /// shortest one if it has carried data, but not longer than the limit.
    fn stable_uptime(&self, served: bool) -> Duration {
        let (shortest, longest) = BACKOFF_RANGE;
        let steady = if served { shortest } else { longest };
        steady.min(self.max_wait)
    }

    /// The delay before the next attempt; `None` if the limit is reached.
    pub(super) fn next(&mut self, now: Instant) -> Option<Duration> {
        let pause = self.pause;
        if now + pause >= self.until {
            return None;
        }
        let (first, longest) = BACKOFF_RANGE;
        self.pause = (pause * 2).clamp(first, longest);
        Some(pause)
    }

    /// Time limit of an attempt.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.until.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events, in milliseconds.
    enum Event {
        /// A connection is lost after this lifetime.
        Lost(u64, u64),
        /// The same, of a connection that has carried data.
        LostInUse(u64, u64),
        /// An attempt is due: the delay before it, or `None` at the limit.
        Attempt(u64, Option<u64>),
    }
    use Event::{Attempt, Lost, LostInUse};

    const MILLIS_PER_MINUTE: u64 = 60_000;

    /// The limit in milliseconds, and the events.
    const ROWS: [(&str, u64, &[Event]); 7] = [
        (
            "no server answers",
            2_000,
            &[
                Lost(0, MILLIS_PER_MINUTE),
                Attempt(0, Some(0)),
                Attempt(100, Some(200)),
                Attempt(400, Some(400)),
                Attempt(900, Some(800)),
                Attempt(1_800, None),
            ],
        ),
        (
            "each is lost at once",
            2_000,
            &[
                Lost(0, MILLIS_PER_MINUTE),
                Attempt(0, Some(0)),
                Lost(1, 1),
                Attempt(1, Some(200)),
                Lost(202, 1),
                Attempt(202, Some(400)),
                Lost(603, 1),
                Attempt(603, Some(800)),
                Lost(1_404, 1),
                Attempt(1_404, None),
            ],
        ),
        (
            "the delay does not grow beyond the maximum",
            10 * MILLIS_PER_MINUTE,
            &[
                Lost(0, MILLIS_PER_MINUTE),
                Attempt(0, Some(0)),
                Attempt(0, Some(200)),
                Attempt(0, Some(400)),
                Attempt(0, Some(800)),
                Attempt(0, Some(1_600)),
                Attempt(0, Some(3_200)),
                Attempt(0, Some(6_400)),
                Attempt(0, Some(10_000)),
                Attempt(0, Some(10_000)),
                // It was stable, so the backoff is reset.
                Lost(5 * MILLIS_PER_MINUTE, 10_000),
                Attempt(5 * MILLIS_PER_MINUTE, Some(0)),
                Lost(5 * MILLIS_PER_MINUTE, 9_999),
                Attempt(5 * MILLIS_PER_MINUTE, Some(200)),
                Attempt(15 * MILLIS_PER_MINUTE - 1, None),
            ],
        ),
        (
            "a connection that is lost every few seconds after it has carried data",
            MILLIS_PER_MINUTE,
            &[
                LostInUse(0, 5_000),
                Attempt(0, Some(0)),
                LostInUse(50_000, 5_000),
                Attempt(50_000, Some(0)),
                LostInUse(100_000, 5_000),
                Attempt(100_000, Some(0)),
            ],
        ),
        (
            "a server that sends a byte and closes",
            MILLIS_PER_MINUTE,
            &[
                LostInUse(0, MILLIS_PER_MINUTE),
                Attempt(0, Some(0)),
                LostInUse(1, 1),
                Attempt(1, Some(200)),
                LostInUse(202, 1),
                Attempt(202, Some(400)),
            ],
        ),
        (
            "lost after the retry timeout",
            MILLIS_PER_MINUTE,
            &[
                Lost(0, MILLIS_PER_MINUTE),
                Attempt(0, Some(0)),
                Lost(MILLIS_PER_MINUTE, 5_000),
                Attempt(MILLIS_PER_MINUTE, None),
            ],
        ),
        (
            "with a short limit, a short lifetime is stable",
            1_000,
            &[
                Lost(0, MILLIS_PER_MINUTE),
                Attempt(0, Some(0)),
                Lost(1_500, 1_000),
                Attempt(1_500, Some(0)),
            ],
        ),
    ];

    #[test]
    fn backoff_grows_until_a_stable_connection_or_the_limit() {
        for (what, max_wait, events) in ROWS {
            let start = Instant::now();
            let at = |time: u64| start + millis(time);
            let mut retries = Retries::new(millis(max_wait), start);
            for event in events {
                match *event {
                    Lost(time, uptime) => retries.on_disconnect(after(uptime, false), at(time)),
                    LostInUse(time, uptime) => retries.on_disconnect(after(uptime, true), at(time)),
                    Attempt(time, expected) => {
                        let pause = retries.next(at(time));
                        assert_eq!(pause, expected.map(millis), "{what}, at {time}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_attempt_does_not_exceed_the_remaining_time() {
        let now = Instant::now();
        let retries = Retries::new(millis(500), now);
        assert_eq!(retries.remaining(now + millis(200)), millis(300));
        assert_eq!(retries.remaining(now + millis(700)), Duration::ZERO);
    }

    fn after(uptime: u64, served: bool) -> Uptime {
        let time = millis(uptime);
        Uptime { time, served }
    }

    fn millis(time: u64) -> Duration {
        Duration::from_millis(time)
    }
}
