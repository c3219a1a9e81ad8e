//! How a peer does with the requests that it gets: shared by all threads, and
//! kept while the rest of what is known of it is replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a peer that failed is not asked first: doubled with each failure,
/// never longer than the second. It is still asked when there is no other.
const FIRST_PENALTY: Duration = Duration::from_millis(500);
pub(crate) const MAX_PENALTY: Duration = Duration::from_secs(5);

/// A failure that took longer than this kept a client waiting: a peer that is stopped,
/// or behind a firewall. Reachable peers take or refuse a connection within milliseconds.
const SLOW_FAILURE: Duration = Duration::from_secs(1);

/// A peer's health and load.
#[derive(Debug)]
pub struct PeerHealth {
    began: Instant,
    in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Milliseconds after `began`.
    shunned_until: AtomicU64,
    /// Requests have waited in vain for an answer: until the peer answers a fetch, no
    /// further request waits for it.
    unreachable: AtomicBool,
    /// When a request last failed and when a poll last succeeded: milliseconds
    /// after `began`, and one; 0 is never.
    failed_at: AtomicU64,
    polled_at: AtomicU64,
}

impl Default for PeerHealth {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            shunned_until: AtomicU64::new(0),
            unreachable: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
        }
    }
}

/// Counts a request while it lasts.
#[derive(Debug)]
pub struct InFlightGuard(Arc<PeerHealth>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PeerHealth {
    /// A request goes there.
    pub fn burden(self: &Arc<Self>) -> InFlightGuard {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self.clone())
    }

    /// How many requests it has.
    pub fn load(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// It did not take a request.
    pub fn failed(&self, at: Instant) {
        self.failed_at.store(self.stamp(at), Ordering::Relaxed);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let penalty = FIRST_PENALTY
            .saturating_mul(1 << failures.min(16))
            .min(MAX_PENALTY);
        let until = (at + penalty).saturating_duration_since(self.began);
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.shunned_until.fetch_max(until, Ordering::Relaxed);
    }

    /// A request or a fetch waited for an answer that did not come. A failure that
    /// came at once (a refused connection) costs the next request nothing, and is no
    /// reason to refuse it.
    pub fn record_timeout(&self, waited: Duration) {
        if waited >= SLOW_FAILURE {
            self.unreachable.store(true, Ordering::Relaxed);
        }
    }

    /// It answered a fetch.
    pub fn reachable(&self) {
        self.unreachable.store(false, Ordering::Relaxed);
    }

    /// Whether a request may be sent to it. If not, the peer does not answer, and
    /// fetches in the background find out when it does.
    pub fn is_reachable(&self) -> bool {
        !self.unreachable.load(Ordering::Relaxed)
    }

    /// It answered, or is somewhere else now.
    pub fn forgive(&self) {
        self.reachable();
        if self.failures.swap(0, Ordering::Relaxed) > 0 {
            self.shunned_until.store(0, Ordering::Relaxed);
        }
    }

    /// A discovery poll succeeded.
    pub fn polled(&self, at: Instant) {
        self.polled_at.store(self.stamp(at), Ordering::Relaxed);
    }

    /// When a discovery poll last succeeded.
    pub fn polled_at(&self) -> Option<Instant> {
        let stamp = self.polled_at.load(Ordering::Relaxed);
        Some(self.began + Duration::from_millis(stamp.checked_sub(1)?))
    }

    /// Whether the last request failed, and neither a request nor a poll has
    /// succeeded since.
    pub fn is_failing(&self) -> bool {
        let failed = self.failed_at.load(Ordering::Relaxed);
        self.failures.load(Ordering::Relaxed) > 0 && failed > self.polled_at.load(Ordering::Relaxed)
    }

    fn stamp(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.began).as_millis();
        u64::try_from(after).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Whether it is worth asking first.
    pub fn is_healthy(&self, at: Instant) -> bool {
        let now = at.saturating_duration_since(self.began).as_millis();
        self.is_reachable() && u128::from(self.shunned_until.load(Ordering::Relaxed)) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_lets_requests_wait_gets_none_until_it_answers_a_fetch() {
        type Event = fn(&PeerHealth);
        let slow: Event = |it| it.record_timeout(SLOW_FAILURE);
        let fast: Event = |it| it.record_timeout(Duration::from_millis(5));
        let refused: Event = |it| it.failed(Instant::now());
        let fetched: Event = PeerHealth::reachable;
        let answered: Event = PeerHealth::forgive;
        for (events, reachable) in [
            (&[][..], true),
            (&[fast, refused], true),
            (&[slow], false),
            (&[slow, fast, refused], false),
            (&[slow, slow, fetched], true),
            // A request that was under way.
            (&[slow, answered], true),
            (&[slow, fetched, slow], false),
        ] {
            let standing = PeerHealth::default();
            for event in events {
                event(&standing);
            }
            assert_eq!(standing.is_reachable(), reachable);
            let later = Instant::now() + 2 * MAX_PENALTY;
            assert_eq!(standing.is_healthy(later), reachable);
        }
    }

    #[test]
    fn the_penalty_is_bounded() {
        let standing = PeerHealth::default();
        let now = Instant::now();
        for _ in 0..1_000 {
            standing.failed(now);
        }
        assert!(!standing.is_healthy(now));
        assert!(standing.is_healthy(now + MAX_PENALTY + Duration::from_millis(1)));
    }
}
