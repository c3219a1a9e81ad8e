//! Polls a path and counts the statuses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use skewbridge_e2e::{ControlPlane, Via};
use tokio::time::sleep;

/// Longer than any period after which a bridge drops the state of a peer.
pub(crate) const POLL_DURATION: Duration = Duration::from_mins(2);

/// The interval between two requests.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

/// Responses by status (0 is none), and the longest wait for one.
#[derive(Debug, Default)]
pub(crate) struct StatusCounts {
    by_status: BTreeMap<u16, usize>,
    pub(crate) first: Duration,
    pub(crate) slowest_later: Duration,
}

impl StatusCounts {
    pub(crate) fn count(&self, status: u16) -> usize {
        self.by_status.get(&status).copied().unwrap_or_default()
    }
}

/// Polls the bridge of a server for this path.
pub(crate) async fn poll(
    plane: &ControlPlane,
    server: usize,
    path: &str,
    duration: Duration,
) -> StatusCounts {
    let started = Instant::now();
    let mut counts = StatusCounts::default();
    while started.elapsed() < duration {
        let sent = Instant::now();
        let status = plane.status(server, Via::Bridge, path).await;
        let elapsed = sent.elapsed();
        if counts.by_status.is_empty() {
            counts.first = elapsed;
        } else {
            counts.slowest_later = counts.slowest_later.max(elapsed);
        }
        *counts.by_status.entry(status).or_default() += 1;
        sleep(REQUEST_INTERVAL).await;
    }
    counts
}
