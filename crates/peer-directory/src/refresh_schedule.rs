//! When to poll a server again: at once after an event, with backoff after failures, and
//! periodically after successes.

use std::time::{Duration, Instant};

/// The interval between successful polls. KEP-4020 has 30 minutes and relies on events. Polls are
/// conditional requests: most get 304.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// The same for a server whose restart causes no event, so that changed APIs are known within
/// 5 s.
const SHORT_REFRESH_INTERVAL: Duration = Duration::from_secs(4);

/// How a change of a server is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeDetection {
    /// An event reports it.
    ByEvent,
    /// Only a poll detects it.
    ByPolling,
}

/// The backoff after failed polls: the first value doubles each time, up to the second, so that a
/// server that returns is found within seconds.
const INITIAL_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(3);

/// The shortest time between a successful poll and a recheck: a server that fails every request
/// must not be polled for each of them.
const MIN_RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two polls while an administrator looks at the status.
const OBSERVED_INTERVAL: Duration = Duration::from_millis(500);

/// The time of the next poll, and whether one is in progress.
#[derive(Debug, Default)]
pub struct RefreshSchedule {
    due: Option<Instant>,
    failures: u32,
    in_progress: bool,
    /// When a poll last succeeded.
    last_success: Option<Instant>,
    /// When a poll last ended.
    last_end: Option<Instant>,
    /// An event arrived during the poll: how long after its end to poll again.
    rerun_after: Option<Duration>,
}

impl RefreshSchedule {
    /// An event occurred: polls now.
    pub fn refresh_now(&mut self, at: Instant) {
        self.due = Some(at);
        self.failures = 0;
        self.rerun_after = self.in_progress.then_some(Duration::ZERO);
    }

    /// A request failed: polls soon, unless polls are failing already.
    pub fn recheck(&mut self, at: Instant) {
        if self.failures > 0 {
            return;
        }
        if self.in_progress {
            self.rerun_after.get_or_insert(MIN_RECHECK_INTERVAL);
        } else {
            let soonest = self
                .last_success
                .map_or(at, |it| at.max(it + MIN_RECHECK_INTERVAL));
            self.due = Some(self.due.map_or(soonest, |due| due.min(soonest)));
        }
    }

    /// Whether a poll has begun and not ended.
    pub fn is_in_progress(&self) -> bool {
        self.in_progress
    }

    /// An administrator looks at the state of the server: polls soon, also if polls are failing.
    /// Nothing before the first event.
    pub fn recheck_observed(&mut self, at: Instant) {
        if let (Some(due), Some(last_end)) = (self.due, self.last_end) {
            self.due = Some(due.min(at.max(last_end + OBSERVED_INTERVAL)));
        }
    }

    /// When the next poll is due, unless one is in progress.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.in_progress)
    }

    /// Begins a poll if one is due, and returns whether it did.
    pub fn begin_if_due(&mut self, at: Instant) -> bool {
        let begins = self.due().is_some_and(|due| due <= at);
        if begins {
            self.in_progress = true;
            self.rerun_after = None;
        }
        begins
    }

    /// The poll succeeded. `jitter`, from 0 to 1, spreads the next one.
    pub fn succeeded(&mut self, at: Instant, detection: ChangeDetection, jitter: f64) {
        self.failures = 0;
        self.last_success = Some(at);
        let refresh = match detection {
            ChangeDetection::ByEvent => REFRESH_INTERVAL,
            ChangeDetection::ByPolling => SHORT_REFRESH_INTERVAL,
        };
        self.finish(at, refresh.mul_f64(1.0 - jitter / 5.0));
    }

    /// The poll failed.
    pub fn failed(&mut self, at: Instant, jitter: f64) {
        let wait = INITIAL_BACKOFF.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.finish(at, wait.min(MAX_BACKOFF).mul_f64(1.0 - jitter / 2.0));
    }

    fn finish(&mut self, at: Instant, wait: Duration) {
        self.in_progress = false;
        self.last_end = Some(at);
        self.due = Some(
            at + self
                .rerun_after
                .take()
                .map_or(wait, |again| again.min(wait)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn no_poll_is_due_before_the_first_event() {
        let start = Instant::now();
        let mut schedule = RefreshSchedule::default();
        assert!(!schedule.begin_if_due(start));
        schedule.refresh_now(start);
        assert!(schedule.begin_if_due(start));
        assert!(!schedule.begin_if_due(start), "one at a time");
    }

    #[test]
    fn failed_polls_are_retried_within_the_maximum_backoff() {
        let mut at = Instant::now();
        let mut schedule = RefreshSchedule::default();
        schedule.refresh_now(at);
        for _ in 0..1_000 {
            assert!(schedule.begin_if_due(at));
            schedule.failed(at, 0.0);
            let due = schedule.due().unwrap();
            assert!(due > at && due <= at + MAX_BACKOFF);
            at = due;
        }
    }

    #[test]
    fn an_event_during_a_poll_causes_another_poll() {
        let start = Instant::now();
        for succeeds in [true, false] {
            let mut schedule = RefreshSchedule::default();
            schedule.refresh_now(start);
            assert!(schedule.begin_if_due(start));
            schedule.refresh_now(start);
            if succeeds {
                schedule.succeeded(start, ChangeDetection::ByEvent, 0.5);
            } else {
                schedule.failed(start, 0.5);
            }
            assert!(schedule.begin_if_due(start), "{succeeds}");
        }
    }

    #[test]
    fn a_successful_poll_is_repeated_after_the_refresh_interval() {
        let start = Instant::now();
        for (detection, least, most) in [
            (ChangeDetection::ByEvent, 20, 30),
            (ChangeDetection::ByPolling, 3, 4),
        ] {
            for jitter in [0.0, 0.5, 1.0] {
                let mut schedule = RefreshSchedule::default();
                schedule.refresh_now(start);
                assert!(schedule.begin_if_due(start));
                schedule.succeeded(start, detection, jitter);
                let due = schedule.due().unwrap();
                assert!(due > start + least * SECOND && due <= start + most * SECOND);
            }
        }
    }

    #[test]
    fn a_recheck_does_not_shorten_the_backoff() {
        let start = Instant::now();
        let mut schedule = RefreshSchedule::default();
        schedule.refresh_now(start);
        assert!(schedule.begin_if_due(start));
        schedule.failed(start, 0.0);
        let due = schedule.due();
        schedule.recheck(start);
        assert_eq!(schedule.due(), due);
    }

    #[test]
    fn rechecks_keep_the_minimum_interval() {
        let start = Instant::now();
        let mut schedule = RefreshSchedule::default();
        schedule.refresh_now(start);
        assert!(schedule.begin_if_due(start));
        // During a poll, and just after it succeeded.
        schedule.recheck(start);
        schedule.succeeded(start, ChangeDetection::ByEvent, 0.0);
        schedule.recheck(start + SECOND / 10);
        assert_eq!(schedule.due(), Some(start + MIN_RECHECK_INTERVAL));
        assert!(schedule.begin_if_due(start + MIN_RECHECK_INTERVAL));
        schedule.succeeded(start + MIN_RECHECK_INTERVAL, ChangeDetection::ByEvent, 0.0);
        // Later, the recheck is immediate.
        let later = start + 9 * SECOND;
        schedule.recheck(later);
        assert!(schedule.begin_if_due(later));
        // A recheck never delays a retry after a failure.
        schedule.recheck(later);
        schedule.failed(later, 0.0);
        assert_eq!(schedule.due(), Some(later + INITIAL_BACKOFF));
    }

    #[test]
    fn an_observed_server_is_polled_at_most_twice_a_second() {
        let start = Instant::now();
        let mut schedule = RefreshSchedule::default();
        schedule.recheck_observed(start);
        assert_eq!(schedule.due(), None, "nothing is known of it");
        schedule.refresh_now(start);
        assert!(schedule.begin_if_due(start));
        schedule.recheck_observed(start);
        assert_eq!(schedule.due(), None, "in progress");
        schedule.succeeded(start, ChangeDetection::ByEvent, 0.0);
        schedule.recheck_observed(start);
        assert_eq!(schedule.due(), Some(start + OBSERVED_INTERVAL));
        // After failures too, and never later than the backoff demands.
        let mut at = start + SECOND;
        for failures in 1..8 {
            assert!(schedule.begin_if_due(at));
            schedule.failed(at, 0.0);
            let backoff = schedule.due().unwrap();
            schedule.recheck_observed(at);
            let expected = backoff.min(at + OBSERVED_INTERVAL);
            assert_eq!(schedule.due(), Some(expected), "{failures}");
            at += SECOND;
        }
    }
}
