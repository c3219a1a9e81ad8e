//! Servers whose own addresses are listed: those without a known identity, those without a bridge,
//! and the servers behind bridges.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::PeerTable;
use super::entry::Entry;
use crate::identity::Identity;
use crate::peer::{ApiSource, Peer, PeerRecord};
use crate::registry::{AddressOrigin, Addresses};
use crate::served_apis::ServedApis;

/// Addresses of servers, from `EndpointSlices` and from entries of a file without a bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedAddresses {
    /// All of them.
    pub all: BTreeSet<SocketAddr>,
    /// Those of servers whose identities are known.
    pub identified: BTreeMap<Identity, SocketAddr>,
}

impl PeerTable {
    /// Sets the listed addresses of the servers themselves. While a server has a bridge, its own
    /// address is the fallback. The caller passes them to [`PeerTable::set_addresses`] for servers
    /// without a bridge.
    pub fn set_listed_addresses(&mut self, listed: ListedAddresses) {
        for (identity, entry) in &mut self.entries {
            if self.listed.identified.get(identity) != listed.identified.get(identity) {
                entry.fallback.health.record_success();
            }
        }
        self.listed = listed;
    }

    /// Whether the poll of a server in progress goes to the server itself, beside its bridge.
    pub fn polls_fallback(&self, identity: &Identity) -> bool {
        let entry = self.entries.get(identity);
        entry.is_some_and(|it| it.fallback.is_polled)
    }

    /// The address of the server itself beside that of its bridge.
    pub(super) fn fallback_address(&self, identity: &Identity) -> Option<SocketAddr> {
        let entry = self.entries.get(identity)?;
        let direct = self.listed.identified.get(identity)?;
        let used = self.address(identity)?.address;
        (entry.published && used != *direct).then_some(*direct)
    }

    /// Gives what a server has answered at an address to the server that has this address now: its
    /// identity may become known after its first answer.
    pub(super) fn move_answers(&mut self, all: &Addresses) {
        for (identity, advertised) in all {
            let entry = self.entries.get(identity);
            if !advertised.origin.is_server() || entry.is_some_and(|it| it.served.is_some()) {
                continue;
            }
            let is_same = |(other, entry): &(&Identity, &Entry)| {
                *other != identity
                    && !all.contains_key(*other)
                    && entry
                        .address
                        .is_some_and(|it| it.address == advertised.address && it.origin.is_server())
            };
            let before = self.entries.iter().find(is_same);
            let answer = before.and_then(|(_, it)| Some((it.served.clone()?, it.last_success)));
            if let Some((served, last_success)) = answer {
                let entry = self.entries.entry(identity.clone()).or_default();
                entry.served = Some(served);
                entry.last_success = last_success;
            }
        }
    }

    /// Omits Leases without a known address or record if at least as many servers at listed addresses
    /// have answered without a known identity, so that each server counts once. Such a Lease has no
    /// effect on requests once its server is not awaited any more. Returns whether that changed.
    pub(super) fn count_by_address(&mut self, at: Instant) -> bool {
        let has_answered = |entry: &&Entry| entry.listed_since.is_some() && entry.served.is_some();
        let unidentified = self.entries.values().filter(has_answered).count();
        let is_bare = |identity: &&Identity| {
            let peer = self.peer(identity);
            peer.is_some_and(|it| {
                it.address.is_none() && it.served.is_none() && it.awaited_until <= at
            })
        };
        let mut counted = BTreeSet::new();
        if unidentified > 0 {
            counted.extend(self.entries.keys().filter(is_bare).cloned());
        }
        if counted.len() > unidentified {
            counted.clear();
        }
        let before = std::mem::replace(&mut self.counted_by_address, counted);
        before != self.counted_by_address
    }

    /// The server of a peer itself, beside its bridge.
    pub(super) fn fallback(
        &self,
        identity: &Identity,
        entry: &Entry,
        known: Option<&(Arc<ServedApis>, ApiSource)>,
        alive_until: Instant,
    ) -> Option<Arc<Peer>> {
        let address = self.fallback_address(identity)?;
        Some(Arc::new(Peer {
            identity: identity.clone(),
            host: entry.host.clone(),
            address: Some(address),
            published: true,
            alive_until,
            awaited_until: alive_until,
            served: known.map(|(served, _)| served.clone()),
            record: PeerRecord {
                origin: Some(AddressOrigin::Endpoints),
                source: known.map(|(_, source)| *source),
                ..PeerRecord::default()
            },
            health: entry.fallback.health.clone(),
            last_success: entry.last_success,
            problem: None,
        }))
    }
}
