//! When requests are sent, and from when their latency counts.

use std::time::{Duration, Instant};

/// The times at which one of several candidates sends its requests. All candidates have the same
/// rate, and their requests alternate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    first: Instant,
    interval: Duration,
}

impl Schedule {
    /// The schedule of candidate `index` of `candidates`, beginning at `start`.
    pub(super) fn of(start: Instant, per_second: u32, index: u32, candidates: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        Self {
            first: start + interval * index / candidates,
            interval,
        }
    }

    /// When request `number` is due.
    pub(super) fn due(&self, number: u32) -> Instant {
        self.first + self.interval * number
    }
}

/// From when the latency of a request counts. A timer that fires late delays the client, not the
/// server, so it does not count. If the previous response was still missing when the request was
/// due, the request had to wait for the server, and that counts.
pub(super) fn latency_start(due: Instant, previous_end: Option<Instant>, sent: Instant) -> Instant {
    match previous_end {
        Some(end) if end > due => due,
        _ => sent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_candidates_alternate() {
        let start = Instant::now();
        let schedules = [0, 1].map(|index| Schedule::of(start, 50, index, 2));
        let after = |index: usize, number| schedules[index].due(number) - start;
        let times = [after(0, 0), after(1, 0), after(0, 1), after(1, 1)];
        assert_eq!(times, [0, 10, 20, 30].map(Duration::from_millis));
    }

    #[test]
    fn latency_counts_from_the_due_time_only_if_the_server_was_late() {
        let due = Instant::now();
        let at = |micros| due + Duration::from_micros(micros);
        let sent = at(400);
        assert_eq!(latency_start(due, None, sent), sent);
        let early = due.checked_sub(Duration::from_millis(1));
        assert_eq!(latency_start(due, early, sent), sent);
        assert_eq!(latency_start(due, Some(at(300)), sent), due);
    }
}
