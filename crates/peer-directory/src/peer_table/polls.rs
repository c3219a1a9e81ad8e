//! Which servers to poll, and the results.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::PeerTable;
use super::entry::DirectPoll;
use crate::identity::Identity;
use crate::peer::Peer;
use crate::served_apis::ServedApis;

impl PeerTable {
    /// The peers to poll now. The caller reports each result to [`PeerTable::record_poll`].
    pub fn take_due(&mut self, at: Instant) -> Vec<Arc<Peer>> {
        let mut due = Vec::new();
        let identities: Vec<_> = self.entries.keys().cloned().collect();
        for identity in identities {
            let address = self.address(&identity);
            let published = self.published.get(&identity).map(|it| it.observed_at);
            let stored = self.stored.get(&identity);
            let known = published.or_else(|| stored.and_then(|it| it.supersedes));
            if let Some(entry) = self.entries.get_mut(&identity)
                && entry.runs()
                && address.is_some()
                && entry.schedule.begin_if_due(at)
            {
                let is_fallback = std::mem::take(&mut entry.fallback.is_polled_next);
                entry.poll_supersedes = known;
                entry.polled_address = address.map(|it| it.address);
                entry.poll_began = Some((at, entry.health.confirmation().doubts()));
                entry.poll_is_direct = address.is_some_and(|it| it.origin.is_server());
                entry.fallback.is_polled = false;
                let peer = self.peer(&identity);
                let fallback = peer.as_ref().and_then(|it| it.record.fallback.clone());
                match (fallback, self.entries.get_mut(&identity)) {
                    (Some(fallback), Some(entry)) if is_fallback => {
                        entry.polled_address = fallback.address;
                        entry.fallback.is_polled = true;
                        due.push(fallback);
                    }
                    _ => due.extend(peer.map(Arc::new)),
                }
            }
        }
        due
    }

    /// The result of a poll. `jitter`, from 0 to 1, spreads the next one.
    pub fn record_poll(
        &mut self,
        identity: &Identity,
        outcome: Result<ServedApis, String>,
        at: Instant,
        wall: SystemTime,
        jitter: f64,
    ) {
        let direct = self.direct_address(identity);
        let has_fallback = self.fallback_address(identity).is_some();
        let has_left = self.departures.contains_key(identity);
        let mut has_answered = false;
        let Some(entry) = self.entries.get_mut(identity) else {
            return;
        };
        entry.record_confirmation(outcome.is_ok(), has_fallback, at);
        match outcome {
            // The Lease has ended meanwhile: if it returns, the server is polled again.
            _ if !entry.runs() => entry.schedule.failed(at, jitter),
            outcome if entry.fallback.is_polled => {
                // The bridge is polled next: `problem` and `health` are those of the bridge.
                entry.schedule.failed(at, jitter);
                if let Ok(served) = outcome {
                    entry.last_success = Some(wall);
                    entry.superseded = entry.poll_supersedes;
                    entry.served = Some(Arc::new(served));
                    entry.fallback.health.record_poll(at);
                    entry.fallback.health.record_success();
                }
            }
            Ok(served) => {
                entry
                    .schedule
                    .succeeded(at, served.change_detection(), jitter);
                entry.last_success = Some(wall);
                entry.superseded = entry.poll_supersedes;
                entry.bridge_address = entry.polled_address.filter(|_| served.by_bridge);
                entry.health.record_poll(at);
                entry.served = Some(Arc::new(served));
                entry.health.mark_reachable();
                // It is not polled while its bridge answers.
                entry.fallback.health.mark_reachable();
                if has_left && !entry.has_bridge() {
                    // The address may have changed since the poll began.
                    let listed = entry.address.map(|it| it.address);
                    let answers = if entry.poll_is_direct {
                        let is_current = entry.polled_address == direct
                            || (entry.published && entry.polled_address == listed);
                        is_current.then_some(DirectPoll::ServerAnswers)
                    } else {
                        (entry.is_in_file() && entry.polled_address == listed)
                            .then_some(DirectPoll::BridgeAnswers)
                    };
                    has_answered = answers.is_some();
                    entry.direct = answers.unwrap_or(entry.direct);
                }
                // The peer is back. If polls succeeded before, a success does not clear failed
                // requests.
                if entry.problem.take().is_some() {
                    entry.health.record_success();
                }
            }
            Err(problem) => {
                entry.schedule.failed(at, jitter);
                // Another process may have the address at the next answer.
                entry.bridge_address = None;
                entry.problem = Some(problem);
                entry.fallback.is_polled_next = has_fallback;
                if entry.direct == DirectPoll::BridgeAnswers {
                    entry.direct = DirectPoll::Untried;
                }
                // Its bridge has crashed, or the registry has lost its address, or the file
                // still has the address of a departed bridge: both addresses are tried
                // alternately.
                let has_two_addresses =
                    (!entry.published && !has_left) || (entry.is_in_file() && has_left);
                if has_two_addresses && direct.is_some() {
                    entry.next_poll_is_direct = !entry.next_poll_is_direct;
                }
            }
        }
        if has_answered {
            self.restart_grace(identity, at);
        }
    }

    /// A peer answered a poll, but without discovery: its server may be unavailable, but its bridge
    /// has not departed.
    pub fn record_bridge_answer(&mut self, identity: &Identity, at: Instant) {
        let has_left = self.departures.contains_key(identity);
        if let Some(entry) = self.entries.get_mut(identity)
            && has_left
            && entry.is_in_file()
            && !entry.poll_is_direct
        {
            entry.direct = DirectPoll::BridgeAnswers;
            self.restart_grace(identity, at);
        }
    }

    /// A request to this peer failed: poll it soon.
    pub fn recheck(&mut self, identity: &Identity, at: Instant) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.health.confirmation().doubt();
            entry.schedule.recheck(at);
        }
    }

    /// The server of this peer has returned and may have another version: poll it now.
    pub fn refresh(&mut self, identity: &Identity, at: Instant) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.poll_again(at);
        }
    }

    /// Whether a peer may have been replaced since its APIs were read, and no current poll has shown that
    /// it does not answer.
    pub fn awaits_confirmation(&self, since: Instant) -> bool {
        let mut identities = self.entries.keys();
        identities.any(|identity| self.is_unconfirmed(identity, since))
    }

    /// Polls these peers now.
    pub fn poll_unconfirmed(&mut self, since: Instant, at: Instant) {
        let identities: Vec<_> = (self.entries.keys())
            .filter(|identity| self.is_unconfirmed(identity, since))
            .cloned()
            .collect();
        for identity in identities {
            if let Some(entry) = self.entries.get_mut(&identity)
                && (!entry.schedule.is_in_progress()
                    || entry.poll_began.is_none_or(|(began, _)| began < since))
            {
                entry.schedule.refresh_now(at);
            }
        }
    }

    fn is_unconfirmed(&self, identity: &Identity, since: Instant) -> bool {
        let Some(entry) = self.entries.get(identity) else {
            return false;
        };
        let is_pollable = entry.runs() && self.address(identity).is_some();
        is_pollable
            && !entry.health.confirmation().is_confirmed()
            // One that hangs would keep every write waiting.
            && entry.health.is_reachable()
            && !entry.failed_poll.is_some_and(|it| it.is_settled(since))
    }

    /// An administrator looks at the state of the servers: poll all of them soon, also those that do
    /// not answer.
    pub fn recheck_observed(&mut self, at: Instant) {
        for entry in self.entries.values_mut() {
            entry.schedule.recheck_observed(at);
        }
    }
}
