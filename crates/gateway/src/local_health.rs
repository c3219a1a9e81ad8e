//! Whether the local server can be expected to answer: by the last probe of its readiness, and by the
//! requests that have failed since.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use skewbridge_peer_directory::Confirmation;
use tokio::sync::Notify;

/// How long after its last availability a server may be starting: kubelet starts a static pod again
/// within minutes. A server that is not ready for longer has another problem.
const MAX_START_DURATION: Duration = Duration::from_mins(5);

/// The health of the local server, for placement. Until the first probe the server counts as
/// available.
#[derive(Debug, Default)]
pub struct LocalHealth {
    /// The last probe has failed.
    is_not_ready: AtomicBool,
    pub(crate) failure_signal: FailureSignal,
    /// Whether its APIs were read after it was last not available: it may have another version then.
    pub(crate) confirmation: Confirmation,
    /// The doubts that the views of all other backends know.
    announced_doubts: AtomicU64,
    /// When the server was first not available, since it last was.
    unavailable_since: Mutex<Option<Instant>>,
}

impl LocalHealth {
    /// Whether requests are sent to the local server, if a peer is available.
    pub fn is_available(&self) -> bool {
        !self.is_not_ready.load(Ordering::Relaxed) && !self.failure_signal.is_raised()
    }

    /// Whether the server is not available, and has not been for so short a time that it may be starting.
    pub(crate) fn may_be_starting(&self, now: Instant) -> bool {
        let since = *self.unavailable_since();
        let is_recent = |since| now.saturating_duration_since(since) < MAX_START_DURATION;
        !self.is_available() && since.is_some_and(is_recent)
    }

    fn unavailable_since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        let since = self.unavailable_since.lock();
        since.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its APIs were read after its last outage, and the views of all other backends know of the
    /// outage.
    pub(crate) fn is_confirmed_everywhere(&self) -> bool {
        self.confirmation.is_confirmed() && self.is_announced()
    }

    /// Whether the views of all other backends know of its last outage.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced_doubts.load(Ordering::Acquire) >= self.confirmation.doubts()
    }

    /// The views of all other backends know these doubts.
    pub(crate) fn note_announced(&self, doubts: u64) {
        self.announced_doubts.fetch_max(doubts, Ordering::AcqRel);
    }

    /// A request has not reached the server, or the server is shutting down.
    pub(crate) fn note_failure(&self) {
        self.confirmation.doubt();
        self.unavailable_since().get_or_insert_with(Instant::now);
        self.failure_signal.raise();
    }

    /// Records a probe result. `failures` is the number of failures when the probe began.
    pub fn probed(&self, is_ready: bool, failures: u64) {
        if !is_ready {
            self.confirmation.doubt();
            self.unavailable_since().get_or_insert_with(Instant::now);
        }
        self.is_not_ready.store(!is_ready, Ordering::Relaxed);
        self.failure_signal.refute(failures);
        if self.is_available() {
            *self.unavailable_since() = None;
        }
    }
}

/// Whether a request to the local server has failed since the start of the last answered probe.
#[derive(Debug, Default)]
pub(crate) struct FailureSignal {
    /// Failures since the start.
    failures: AtomicU64,
    /// The failures before the last probe that was answered.
    refuted: AtomicU64,
    probe_now: Notify,
}

impl FailureSignal {
    /// A request has not reached the server, or the server is shutting down.
    pub(crate) fn raise(&self) {
        let was_raised = self.is_raised();
        self.failures.fetch_add(1, Ordering::Relaxed);
        if !was_raised {
            self.probe_now.notify_one();
        }
    }

    /// The failures until now, which a probe that begins now can refute.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Records that a probe was answered that began when there were this many failures.
    pub(crate) fn refute(&self, failures: u64) {
        self.refuted.store(failures, Ordering::Relaxed);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > self.refuted.load(Ordering::Relaxed)
    }

    /// Waits until a probe is due because of a failure.
    pub(crate) async fn raised(&self) {
        self.probe_now.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_server_is_available_unless_its_probe_or_a_request_has_failed() {
        let health = LocalHealth::default();
        assert!(health.is_available(), "not probed yet");
        health.probed(false, 0);
        assert!(!health.is_available());
        health.probed(true, 0);
        assert!(health.is_available());
        health.failure_signal.raise();
        assert!(!health.is_available());
        health.probed(true, 0);
        assert!(!health.is_available(), "the probe began before the failure");
        health.probed(true, health.failure_signal.failures());
        assert!(health.is_available());
    }

    #[test]
    fn a_server_may_be_starting_until_it_is_available_or_not_ready_for_long() {
        let health = LocalHealth::default();
        let now = Instant::now;
        assert!(!health.may_be_starting(now()), "not probed yet");
        health.probed(false, 0);
        assert!(health.may_be_starting(now()));
        health.probed(false, 0);
        assert!(!health.may_be_starting(now() + MAX_START_DURATION));
        health.probed(true, 0);
        assert!(!health.may_be_starting(now()));
        health.note_failure();
        assert!(health.may_be_starting(now()));
        health.probed(true, 0);
        assert!(health.may_be_starting(now()), "the probe began before");
        health.probed(true, health.failure_signal.failures());
        assert!(!health.may_be_starting(now()));
    }

    #[test]
    fn the_apis_are_doubted_after_each_outage_until_they_are_read() {
        type Outage = fn(&LocalHealth);
        let outages: [Outage; 2] = [|it| it.probed(false, 0), LocalHealth::note_failure];
        for outage in outages {
            let health = LocalHealth::default();
            assert!(!health.confirmation.is_confirmed(), "not read yet");
            health.confirmation.refute(health.confirmation.doubts());
            assert!(health.confirmation.is_confirmed());
            outage(&health);
            health.probed(true, health.failure_signal.failures());
            assert!(health.is_available());
            assert!(!health.confirmation.is_confirmed());
        }
    }

    #[tokio::test]
    async fn only_a_probe_that_begins_after_a_failure_refutes_it() {
        let failure_signal = FailureSignal::default();
        assert!(!failure_signal.is_raised());
        let before = failure_signal.failures();
        failure_signal.raise();
        failure_signal.raise();
        failure_signal.raised().await;
        failure_signal.refute(before);
        assert!(failure_signal.is_raised(), "the probe began before");
        failure_signal.refute(failure_signal.failures());
        assert!(!failure_signal.is_raised());
        failure_signal.raise();
        failure_signal.raised().await;
    }
}
