//! When to ask somebody again: at once when something happened, later and later
//! when there is no answer, now and then when there is.

use std::time::{Duration, Instant};

/// What was learnt is asked for again now and then. KEP-4020 has 30 minutes and
/// relies on events. The question is conditional: mostly it costs a 304.
const REFRESH: Duration = Duration::from_secs(30);

/// The same of one whose restart is no event: what it serves then is to be known
/// within 5 s.
const OFTEN: Duration = Duration::from_secs(4);

/// How it is learnt that somebody has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeDetection {
    /// There is an event.
    ByEvent,
    /// Only by asking.
    ByPolling,
}

/// Between two tries of somebody who does not answer: doubled each time, never
/// longer than the second, so that one that returns is found within seconds.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(3);

/// After an answer nobody is doubted again before this: one that refuses requests as fast
/// as they come is not to be asked as often.
const DOUBT_AFTER: Duration = Duration::from_secs(1);

/// The next time, and whether one is under way.
#[derive(Debug, Default)]
pub struct RefreshSchedule {
    due: Option<Instant>,
    failures: u32,
    under_way: bool,
    /// When there was an answer.
    answered: Option<Instant>,
    /// Something has happened since it began: how long after its end to ask again.
    again: Option<Duration>,
}

impl RefreshSchedule {
    /// Something has happened.
    pub fn now(&mut self, at: Instant) {
        self.due = Some(at);
        self.failures = 0;
        self.again = self.under_way.then_some(Duration::ZERO);
    }

    /// Something looks wrong: ask soon, unless it is known already.
    pub fn doubt(&mut self, at: Instant) {
        if self.failures > 0 {
            return;
        }
        if self.under_way {
            self.again.get_or_insert(DOUBT_AFTER);
        } else {
            let soonest = self.answered.map_or(at, |it| at.max(it + DOUBT_AFTER));
            self.due = Some(self.due.map_or(soonest, |due| due.min(soonest)));
        }
    }

    /// When to begin, unless something happens.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.under_way)
    }

    /// Whether to begin now; if so, it has begun.
    pub fn begin(&mut self, at: Instant) -> bool {
        let begins = self.due().is_some_and(|due| due <= at);
        if begins {
            self.under_way = true;
            self.again = None;
        }
        begins
    }

    /// There was an answer. `jitter`, from 0 to 1, spreads the next time.
    pub fn succeeded(&mut self, at: Instant, news: ChangeDetection, jitter: f64) {
        self.failures = 0;
        self.answered = Some(at);
        let refresh = match news {
            ChangeDetection::ByEvent => REFRESH,
            ChangeDetection::ByPolling => OFTEN,
        };
        self.end(at, refresh.mul_f64(1.0 - jitter / 5.0));
    }

    /// There was none.
    pub fn failed(&mut self, at: Instant, jitter: f64) {
        let wait = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.end(at, wait.min(MAX_BACKOFF).mul_f64(1.0 - jitter / 2.0));
    }

    fn end(&mut self, at: Instant, wait: Duration) {
        self.under_way = false;
        self.due = Some(at + self.again.take().map_or(wait, |again| again.min(wait)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_due_until_something_happens() {
        let start = Instant::now();
        let mut schedule = RefreshSchedule::default();
        assert!(!schedule.begin(start));
        schedule.now(start);
        assert!(schedule.begin(start));
        assert!(!schedule.begin(start), "one at a time");
    }

    #[test]
    fn failures_are_repeated_sooner_than_every_few_seconds_for_ever() {
        let mut at = Instant::now();
        let mut schedule = RefreshSchedule::default();
        schedule.now(at);
        for _ in 0..1_000 {
            assert!(schedule.begin(at));
            schedule.failed(at, 0.0);
            let due = schedule.due().unwrap();
            assert!(due > at && due <= at + MAX_BACKOFF);
            at = due;
        }
    }

    #[test]
    fn what_happens_meanwhile_is_looked_at_afterwards() {
        let start = Instant::now();
        for succeeds in [true, false] {
            let mut schedule = RefreshSchedule::default();
            schedule.now(start);
            assert!(schedule.begin(start));
            schedule.now(start);
            if succeeds {
                schedule.succeeded(start, ChangeDetection::ByEvent, 0.5);
            } else {
                schedule.failed(start, 0.5);
            }
            assert!(schedule.begin(start), "{succeeds}");
        }
    }

    #[test]
    fn what_is_known_is_asked_for_again_in_time() {
        let start = Instant::now();
        for (news, least, most) in [
            (ChangeDetection::ByEvent, 20, 30),
            (ChangeDetection::ByPolling, 3, 4),
        ] {
            for jitter in [0.0, 0.5, 1.0] {
                let mut schedule = RefreshSchedule::default();
                schedule.now(start);
                assert!(schedule.begin(start));
                schedule.succeeded(start, news, jitter);
                let due = schedule.due().unwrap();
                assert!(due > start + least * SECOND && due <= start + most * SECOND);
            }
        }
    }

    #[test]
    fn a_doubt_does_not_hurry_what_is_failing_already() {
        let start = Instant::now();
        let mut schedule = RefreshSchedule::default();
        schedule.now(start);
        assert!(schedule.begin(start));
        schedule.failed(start, 0.0);
        let due = schedule.due();
        schedule.doubt(start);
        assert_eq!(schedule.due(), due);
    }

    #[test]
    fn doubts_come_no_faster_than_answers_are_worth() {
        let start = Instant::now();
        let mut schedule = RefreshSchedule::default();
        schedule.now(start);
        assert!(schedule.begin(start));
        // While it is asked, and just after it has answered.
        schedule.doubt(start);
        schedule.succeeded(start, ChangeDetection::ByEvent, 0.0);
        schedule.doubt(start + SECOND / 10);
        assert_eq!(schedule.due(), Some(start + DOUBT_AFTER));
        assert!(schedule.begin(start + DOUBT_AFTER));
        schedule.succeeded(start + DOUBT_AFTER, ChangeDetection::ByEvent, 0.0);
        // Later at once.
        let later = start + 9 * SECOND;
        schedule.doubt(later);
        assert!(schedule.begin(later));
        // And never later than one that does not answer is asked anyway.
        schedule.doubt(later);
        schedule.failed(later, 0.0);
        assert_eq!(schedule.due(), Some(later + FIRST_BACKOFF));
    }
}
