//! What a client is answered for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use skewbridge_e2e::{ControlPlane, Via};
use tokio::time::sleep;

/// Longer than every time limit after which a bridge once forgot a peer.
pub(crate) const POLL_DURATION: Duration = Duration::from_mins(2);

/// Between two requests.
const PAUSE: Duration = Duration::from_millis(500);

/// Answers by status (0 is none), and the longest wait for one.
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

/// Asks the bridge of a server for this path, again and again.
pub(crate) async fn watch(
    plane: &ControlPlane,
    server: usize,
    path: &str,
    duration: Duration,
) -> StatusCounts {
    let began = Instant::now();
    let mut answers = StatusCounts::default();
    while began.elapsed() < duration {
        let asked = Instant::now();
        let status = plane.status(server, Via::Bridge, path).await;
        let took = asked.elapsed();
        if answers.by_status.is_empty() {
            answers.first = took;
        } else {
            answers.slowest_later = answers.slowest_later.max(took);
        }
        *answers.by_status.entry(status).or_default() += 1;
        sleep(PAUSE).await;
    }
    answers
}
