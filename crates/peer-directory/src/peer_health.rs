//! Health and load of a peer. All threads share it, and it survives the replacement of the other
//! state of the peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::confirmation::Confirmation;

/// How long a failed peer is ordered after healthy ones: the first value doubles with each
/// failure, up to the second. The peer is still tried when there is no other.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// A failure that took at least this long kept a client waiting: the peer is stopped, or behind
/// a firewall. Reachable peers accept or refuse a connection within milliseconds.
const SLOW_FAILURE_THRESHOLD: Duration = Duration::from_secs(1);

/// A peer's health and load.
#[derive(Debug)]
pub struct PeerHealth {
    created_at: Instant,
    in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Milliseconds after `created_at`.
    backoff_until: AtomicU64,
    /// A request has timed out. No further request is sent until the peer answers a poll.
    unreachable: AtomicBool,
    /// The last poll was not answered: no server runs there, or it cannot be reached.
    unanswered: AtomicBool,
    /// When a request last failed and when a poll last succeeded: milliseconds after
    /// `created_at`, plus one; 0 means never.
    failed_at: AtomicU64,
    polled_at: AtomicU64,
    /// Whether its APIs were read after the last failure or restart.
    confirmation: Confirmation,
}

impl Default for PeerHealth {
    fn default() -> Self {
        Self {
            created_at: Instant::now(),
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            backoff_until: AtomicU64::new(0),
            unreachable: AtomicBool::new(false),
            unanswered: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
            confirmation: Confirmation::default(),
        }
    }
}

/// Counts a request as in flight until it is dropped.
#[derive(Debug)]
pub struct InFlightGuard(Arc<PeerHealth>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PeerHealth {
    /// Counts a request to the peer as in flight.
    pub fn track_request(self: &Arc<Self>) -> InFlightGuard {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self.clone())
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How long the peer has been known.
    pub fn known_for(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.created_at)
    }

    /// Whether the APIs of the peer were read after the last sign that it may have been replaced.
    pub fn confirmation(&self) -> &Confirmation {
        &self.confirmation
    }

    /// A request to the peer failed.
    pub fn record_failure(&self, at: Instant) {
        self.confirmation.doubt();
        self.failed_at.store(self.stamp(at), Ordering::Relaxed);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let backoff = INITIAL_BACKOFF
            .saturating_mul(1 << failures.min(16))
            .min(MAX_BACKOFF);
        let until = (at + backoff).saturating_duration_since(self.created_at);
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.backoff_until.fetch_max(until, Ordering::Relaxed);
    }

    /// A request or a poll got no answer after this time. An immediate failure, such as a refused
    /// connection, costs the next request nothing and does not make the peer unreachable.
    pub fn record_timeout(&self, waited: Duration) {
        if waited >= SLOW_FAILURE_THRESHOLD {
            self.unreachable.store(true, Ordering::Relaxed);
        }
    }

    /// A poll was not answered.
    pub fn record_unanswered_poll(&self) {
        self.unanswered.store(true, Ordering::Relaxed);
    }

    /// Whether the last poll was not answered.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// The peer answered a poll.
    pub fn mark_reachable(&self) {
        self.unanswered.store(false, Ordering::Relaxed);
        self.unreachable.store(false, Ordering::Relaxed);
    }

    /// Whether requests may be sent to the peer. If not, the peer does not answer, and background
    /// polls detect when it does.
    pub fn is_reachable(&self) -> bool {
        !self.unreachable.load(Ordering::Relaxed)
    }

    /// The peer answered a request, or has a new address: earlier failures are cleared.
    pub fn record_success(&self) {
        self.mark_reachable();
        if self.failures.swap(0, Ordering::Relaxed) > 0 {
            self.backoff_until.store(0, Ordering::Relaxed);
        }
    }

    /// A discovery poll succeeded.
    pub fn record_poll(&self, at: Instant) {
        self.polled_at.store(self.stamp(at), Ordering::Relaxed);
    }

    /// When a discovery poll last succeeded.
    pub fn last_poll(&self) -> Option<Instant> {
        let stamp = self.polled_at.load(Ordering::Relaxed);
        Some(self.created_at + Duration::from_millis(stamp.checked_sub(1)?))
    }

    /// Whether the last request failed, and neither a request nor a poll has
    /// succeeded since.
    pub fn is_failing(&self) -> bool {
        let failed = self.failed_at.load(Ordering::Relaxed);
        self.failures.load(Ordering::Relaxed) > 0 && failed > self.polled_at.load(Ordering::Relaxed)
    }

    fn stamp(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.created_at).as_millis();
        u64::try_from(after).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Whether the peer is reachable and not in backoff.
    pub fn is_healthy(&self, at: Instant) -> bool {
        let now = at.saturating_duration_since(self.created_at).as_millis();
        self.is_reachable() && u128::from(self.backoff_until.load(Ordering::Relaxed)) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_times_out_gets_no_request_until_it_answers_a_poll() {
        type Event = fn(&PeerHealth);
        let slow: Event = |it| it.record_timeout(SLOW_FAILURE_THRESHOLD);
        let fast: Event = |it| it.record_timeout(Duration::from_millis(5));
        let refused: Event = |it| it.record_failure(Instant::now());
        let fetched: Event = PeerHealth::mark_reachable;
        let answered: Event = PeerHealth::record_success;
        for (events, reachable) in [
            (&[][..], true),
            (&[fast, refused], true),
            (&[slow], false),
            (&[slow, fast, refused], false),
            (&[slow, slow, fetched], true),
            // A request that was in flight.
            (&[slow, answered], true),
            (&[slow, fetched, slow], false),
        ] {
            let health = PeerHealth::default();
            for event in events {
                event(&health);
            }
            assert_eq!(health.is_reachable(), reachable);
            let later = Instant::now() + 2 * MAX_BACKOFF;
            assert_eq!(health.is_healthy(later), reachable);
        }
    }

    #[test]
    fn the_backoff_is_bounded() {
        let health = PeerHealth::default();
        let now = Instant::now();
        for _ in 0..1_000 {
            health.record_failure(now);
        }
        assert!(!health.is_healthy(now));
        assert!(health.is_healthy(now + MAX_BACKOFF + Duration::from_millis(1)));
    }
}
