//! Whether what is known of a server is later than the last sign that the server may have been
//! replaced by another version.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A poll that failed after at least this time would keep every write waiting.
const HANGING_POLL_THRESHOLD: Duration = Duration::from_secs(1);

/// How long a poll that a running server has answered with an error counts for later writes: without it,
/// each of many writes would cause a poll. A server that does not answer may return at any time.
const ANSWERED_POLL_VALIDITY: Duration = Duration::from_millis(250);

/// Counts signs that a server may have changed, such as a failed request, and which of them a read of
/// its APIs has refuted. All threads share it.
#[derive(Debug)]
pub struct Confirmation {
    doubts: AtomicU64,
    /// The doubts when the last successful read began.
    refuted: AtomicU64,
}

impl Default for Confirmation {
    /// Nothing has been read yet.
    fn default() -> Self {
        Self {
            doubts: AtomicU64::new(1),
            refuted: AtomicU64::new(0),
        }
    }
}

impl Confirmation {
    /// The server may have been replaced since its APIs were read.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// The signs until now, which a read that begins now can refute.
    pub fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Acquire)
    }

    /// A read has succeeded that began when there were this many signs.
    pub fn refute(&self, doubts: u64) {
        self.refuted.fetch_max(doubts, Ordering::AcqRel);
    }

    /// Whether the APIs were read after the last sign of a change.
    pub fn is_confirmed(&self) -> bool {
        self.refuted.load(Ordering::Acquire) >= self.doubts()
    }
}

/// A poll of a server that has failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedPoll {
    began: Instant,
    is_hanging: bool,
    answer: FirstAnswer,
}

/// Whether the first request of a poll was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstAnswer {
    /// The server runs.
    Received,
    /// No server runs there, or it cannot be reached.
    Missing,
}

impl FailedPoll {
    /// A poll that has failed now.
    pub(crate) fn new(began: Instant, now: Instant, answer: FirstAnswer) -> Self {
        Self {
            began,
            is_hanging: now.saturating_duration_since(began) >= HANGING_POLL_THRESHOLD,
            answer,
        }
    }

    /// Whether a write that has come at this time need not wait for the server.
    pub(crate) fn is_settled(self, since: Instant) -> bool {
        let counts_until = match self.answer {
            FirstAnswer::Received => self.began + ANSWERED_POLL_VALIDITY,
            FirstAnswer::Missing => self.began,
        };
        self.is_hanging || counts_until >= since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_poll_of_a_running_server_counts_for_a_short_time_and_a_slow_one_until_the_next_result()
     {
        use FirstAnswer::{Missing, Received};
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        // Whether it was answered, when the poll began and failed, when the write came, expected.
        for (answer, began, failed, since, expected) in [
            (Missing, 100, 101, 100, true),
            (Missing, 100, 101, 101, false),
            (Missing, 100, 1_099, 101, false),
            (Missing, 100, 1_100, 101, true),
            (Received, 100, 101, 50, true),
            (Received, 100, 101, 350, true),
            (Received, 100, 101, 351, false),
            (Received, 100, 1_099, 351, false),
            (Received, 100, 1_100, 100_000, true),
        ] {
            let poll = FailedPoll::new(at(began), at(failed), answer);
            assert_eq!(
                poll.is_settled(at(since)),
                expected,
                "{answer:?} {began} {failed} {since}"
            );
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Doubt,
        Begin,
        Succeed,
    }
    use Step::{Begin, Doubt, Succeed};

    #[test]
    fn only_a_read_that_began_after_the_last_doubt_confirms() {
        let rows: [(&[Step], bool); 8] = [
            (&[], false),
            (&[Begin], false),
            (&[Begin, Succeed], true),
            (&[Begin, Doubt, Succeed], false),
            (&[Begin, Succeed, Doubt], false),
            (&[Begin, Succeed, Doubt, Begin], false),
            (&[Begin, Succeed, Doubt, Doubt, Begin, Succeed], true),
            // A read that ends later than a newer one takes nothing back.
            (&[Begin, Succeed, Doubt, Begin, Succeed, Succeed], true),
        ];
        for (steps, expected) in rows {
            let confirmation = Confirmation::default();
            let mut began = 0;
            for step in steps {
                match step {
                    Doubt => confirmation.doubt(),
                    Begin => began = confirmation.doubts(),
                    Succeed => confirmation.refute(began),
                }
            }
            assert_eq!(confirmation.is_confirmed(), expected, "{steps:?}");
        }
    }
}
