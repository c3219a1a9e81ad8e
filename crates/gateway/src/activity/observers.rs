//! The viewers of the status: while there are any, servers are polled more often.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Event streams at the same time. Each holds a connection to the admin port, which has 64 of them
/// for scrapers and probes too.
pub(crate) const MAX_VIEWERS: usize = 16;

/// How long a single request for the status counts as a viewer: longer than the pause of a page
/// that reloads itself.
const POLLING_VIEWER_PERIOD: Duration = Duration::from_secs(8);

/// The viewers of the status.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observers(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    streams: AtomicUsize,
    requested_at: Mutex<Option<Instant>>,
}

/// Counts an event stream until it is dropped.
#[derive(Debug)]
pub(crate) struct ViewerGuard(Arc<Inner>);

impl Observers {
    /// A new event stream; `None` if there are too many.
    pub(crate) fn begin(&self) -> Option<ViewerGuard> {
        let relaxed = Ordering::Relaxed;
        let more = |streams: usize| (streams < MAX_VIEWERS).then_some(streams + 1);
        if self.0.streams.fetch_update(relaxed, relaxed, more).is_err() {
            return None;
        }
        Some(ViewerGuard(self.0.clone()))
    }

    /// A single request for the status.
    pub(crate) fn note_request(&self, now: Instant) {
        let requested_at = &self.0.requested_at;
        *requested_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// The open event streams.
    pub(crate) fn viewers(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    /// Whether the status is looked at.
    pub(crate) fn is_observed(&self, now: Instant) -> bool {
        let requested_at = &self.0.requested_at;
        let requested_at = *requested_at.lock().unwrap_or_else(PoisonError::into_inner);
        self.viewers() > 0 || requested_at.is_some_and(|at| now < at + POLLING_VIEWER_PERIOD)
    }
}

impl Drop for ViewerGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_viewers_is_bounded_until_streams_end() {
        let observers = Observers::default();
        let viewers: Vec<_> = (0..MAX_VIEWERS).filter_map(|_| observers.begin()).collect();
        assert_eq!(viewers.len(), MAX_VIEWERS);
        assert!(observers.begin().is_none());
        assert_eq!(observers.viewers(), MAX_VIEWERS);
        drop(viewers);
        assert_eq!(observers.viewers(), 0);
        assert!(observers.begin().is_some());
    }

    #[test]
    fn a_request_counts_as_a_viewer_for_a_while() {
        let observers = Observers::default();
        let now = Instant::now();
        assert!(!observers.is_observed(now));
        observers.note_request(now);
        assert!(observers.is_observed(now + Duration::from_secs(5)));
        assert!(!observers.is_observed(now + POLLING_VIEWER_PERIOD));
        let viewer = observers.begin();
        assert!(observers.is_observed(now + POLLING_VIEWER_PERIOD));
        drop(viewer);
    }
}
