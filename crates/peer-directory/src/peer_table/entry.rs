//! What is known of one server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::RESTART_GRACE;
use crate::confirmation::{FailedPoll, FirstAnswer};
use crate::peer_health::PeerHealth;
use crate::refresh_schedule::RefreshSchedule;
use crate::registry::{AddressOrigin, AdvertisedAddress};
use crate::served_apis::ServedApis;

/// What is known of one server.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) lease: Option<LeaseState>,
    /// From the last Lease with a host name: it is kept while a server restarts.
    pub(super) host: Option<String>,
    /// Since when its address is listed, if its Lease is not known: it runs while it is listed.
    pub(super) listed_since: Option<Instant>,
    /// When its address was last removed from the `EndpointSlices`, if its Lease was known.
    pub(super) delisted_at: Option<Instant>,
    /// When its Lease ended, or its address was no longer listed, if that was observed.
    pub(super) lease_ended_at: Option<Instant>,
    pub(super) address: Option<AdvertisedAddress>,
    /// Whether the registry still has the address.
    pub(super) published: bool,
    /// A published address that is in none of the allowed networks.
    pub(super) refused_address: Option<SocketAddr>,
    pub(super) served: Option<Arc<ServedApis>>,
    pub(super) schedule: RefreshSchedule,
    pub(super) last_success: Option<SystemTime>,
    /// The `observed_at` of the record that was known when the current poll began.
    pub(super) poll_supersedes: Option<SystemTime>,
    /// The same for the last answer: a published record with another value is later.
    pub(super) superseded: Option<SystemTime>,
    pub(super) problem: Option<String>,
    pub(super) health: Arc<PeerHealth>,
    /// The address of the current poll.
    pub(super) polled_address: Option<SocketAddr>,
    /// When the current poll began, and the signs of a change until then.
    pub(super) poll_began: Option<(Instant, u64)>,
    /// The last poll, if it has failed, and the server has shown no sign of a restart since.
    pub(super) failed_poll: Option<FailedPoll>,
    /// The address at which a bridge answered the last poll.
    pub(super) bridge_address: Option<SocketAddr>,
    /// The next poll goes to the server itself, because its bridge does not answer.
    pub(super) next_poll_is_direct: bool,
    /// The current poll goes to the server itself.
    pub(super) poll_is_direct: bool,
    /// The result of polling the server itself since its bridge departed.
    pub(super) direct: DirectPoll,
    /// The server itself, beside its bridge.
    pub(super) fallback: Fallback,
}

/// The result of polling a server itself since its bridge departed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum DirectPoll {
    /// No result yet.
    #[default]
    Untried,
    /// The server answers: it is a peer like any other.
    ServerAnswers,
    /// The bridge, whose address is in a file, still answers.
    BridgeAnswers,
    /// The server has not answered within [`super::ROLLOUT_GRACE`]: it counts as one that never had a
    /// bridge.
    GraceExpired,
}

/// An identity Lease, and when it was observed.
#[derive(Debug)]
pub(super) struct LeaseState {
    pub(super) holder: String,
    pub(super) resource_version: String,
    /// When the Lease was first observed, and when a change was last observed: by the local clock,
    /// because the clocks of hosts differ.
    pub(super) first: Instant,
    pub(super) changed: Instant,
}

/// A server itself, beside its bridge.
#[derive(Debug, Default)]
pub(super) struct Fallback {
    /// Its health.
    pub(super) health: Arc<PeerHealth>,
    /// The next poll goes to it, because its bridge has not answered.
    pub(super) is_polled_next: bool,
    /// The current poll goes to it.
    pub(super) is_polled: bool,
}

impl Entry {
    /// Whether the server is expected to run: it has a Lease, or its address is listed.
    pub(super) fn runs(&self) -> bool {
        self.lease.is_some() || self.listed_since.is_some()
    }

    /// The server may have been replaced: polls it now.
    pub(super) fn poll_again(&mut self, at: Instant) {
        self.failed_poll = None;
        self.health.confirmation().doubt();
        self.schedule.refresh_now(at);
    }

    /// The current poll has ended. One that began before the last sign of a change confirms nothing.
    pub(super) fn record_confirmation(
        &mut self,
        has_succeeded: bool,
        has_fallback: bool,
        at: Instant,
    ) {
        let Some((began, doubts)) = self.poll_began else {
            return;
        };
        if has_succeeded {
            self.health.confirmation().refute(doubts);
            self.failed_poll = None;
            return;
        }
        self.health.confirmation().doubt();
        // Next, the server itself is polled beside its bridge.
        if self.fallback.is_polled || !has_fallback {
            let answer = if self.health.is_unanswered() {
                FirstAnswer::Missing
            } else {
                FirstAnswer::Received
            };
            self.failed_poll = Some(FailedPoll::new(began, at, answer));
        }
    }

    /// Whether the registry has the address of the server's bridge.
    pub(super) fn has_bridge(&self) -> bool {
        self.published && (self.address).is_some_and(|it| it.origin == AddressOrigin::Bridge)
    }

    /// Whether its address is from a registry file.
    pub(super) fn is_in_file(&self) -> bool {
        let origin = self.address.map(|it| it.origin);
        self.published && matches!(origin, Some(AddressOrigin::File { .. }))
    }

    /// Whether its address was in an `EndpointSlice` until recently: a server that ends removes it
    /// before its Lease, also for a restart.
    pub(super) fn was_listed(&self, at: Instant) -> bool {
        self.delisted_at.is_some_and(|it| it + RESTART_GRACE > at)
    }

    /// The Lease has ended: the server no longer serves its APIs, unless its bridge is still
    /// published and waits for it to return, or the server may be restarting.
    pub(super) fn end_lease(&mut self, at: Instant) {
        if self.lease.take().is_some() {
            self.lease_ended_at = Some(at);
        }
        if !self.published && !self.was_listed(at) {
            self.served = None;
            self.address = None;
        }
    }
}
