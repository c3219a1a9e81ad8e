//! Reads servers again that may have been replaced by another version, before writes are placed by what is
//! known of them.

use std::time::{Duration, Instant};

use skewbridge_peer_directory::ServedApis;
use skewbridge_peer_directory::refresh_schedule::ChangeDetection;
use tokio::sync::{mpsc, oneshot};

use super::PeerController;

/// A poll of the local server that failed after at least this time would keep every write waiting.
const HANGING_POLL_THRESHOLD: Duration = Duration::from_secs(1);

/// When a poll of the local server began.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalPoll {
    pub(super) began: Instant,
    /// The signs of a replaced server until then.
    pub(super) doubts: u64,
}

/// A poll of the local server that has failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailedLocalPoll {
    began: Instant,
    is_hanging: bool,
}

impl FailedLocalPoll {
    fn new(poll: LocalPoll, now: Instant) -> Self {
        Self {
            began: poll.began,
            is_hanging: now.saturating_duration_since(poll.began) >= HANGING_POLL_THRESHOLD,
        }
    }

    /// Whether a write that has come at this time need not wait for the local server.
    fn is_settled(self, since: Instant) -> bool {
        self.began >= since || self.is_hanging
    }
}

impl PeerController {
    pub(super) fn on_local_poll(
        &mut self,
        outcome: Result<ServedApis, String>,
        poll: LocalPoll,
        now: Instant,
        jitter: f64,
    ) {
        self.local_polled = true;
        match outcome {
            Ok(served) => {
                // The readiness probe and watch events detect changes.
                self.local_schedule
                    .succeeded(now, ChangeDetection::ByEvent, jitter);
                self.local = Some(served.into());
                self.local_discovery.polled_at = Some(poll.began);
                let local_health = &self.client.bridge.local_health;
                local_health.confirmation.refute(poll.doubts);
            }
            Err(problem) => {
                self.local_schedule.failed(now, jitter);
                self.failed_local_poll = Some(FailedLocalPoll::new(poll, now));
                tracing::debug!(%problem, "discovery of upstream failed");
            }
        }
    }

    /// A write waits until servers that may have been replaced have been read again: by a poll that
    /// begins now, because an earlier one may have met the previous version.
    pub(super) fn confirm_servers(
        &mut self,
        reply: oneshot::Sender<()>,
        others: &mut mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        let now = Instant::now();
        self.confirmation_waiters.push((now, reply));
        while let Ok(reply) = others.try_recv() {
            self.confirmation_waiters.push((now, reply));
        }
        self.notify_confirmation_waiters();
    }

    /// Notifies the writes that need not wait any more, and polls the servers that others wait for.
    pub(super) fn notify_confirmation_waiters(&mut self) {
        let now = Instant::now();
        let waiters = std::mem::take(&mut self.confirmation_waiters);
        for (since, reply) in waiters.into_iter().filter(|(_, reply)| !reply.is_closed()) {
            if !self.awaits_local(since) && !self.peer_table.awaits_confirmation(since) {
                let _ = reply.send(());
                continue;
            }
            if self.awaits_local(since) && !self.local_schedule.is_in_progress() {
                self.local_schedule.refresh_now(now);
            }
            self.peer_table.poll_unconfirmed(since, now);
            self.confirmation_waiters.push((since, reply));
        }
    }

    /// Whether the local server may have been replaced since its APIs were read, and no poll that began
    /// at this time or later has shown that it does not answer.
    fn awaits_local(&self, since: Instant) -> bool {
        !self.client.bridge.local_health.confirmation.is_confirmed()
            && !(self.failed_local_poll).is_some_and(|it| it.is_settled(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_waits_for_a_poll_that_begins_after_it_unless_the_server_hangs() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        // When the poll began and failed, when the write came, expected.
        for (began, failed, since, expected) in [
            (100, 101, 50, true),
            (100, 101, 100, true),
            (100, 101, 150, false),
            (100, 1_100, 150, true),
        ] {
            let poll = LocalPoll {
                began: at(began),
                doubts: 1,
            };
            let failed_poll = FailedLocalPoll::new(poll, at(failed));
            assert_eq!(
                failed_poll.is_settled(at(since)),
                expected,
                "{began} {since}"
            );
        }
    }
}
