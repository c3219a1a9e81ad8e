//! The published addresses, and which of them is used for a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::PeerTable;
use super::entry::{DirectPoll, Entry};
use crate::identity::Identity;
use crate::registry::{AddressOrigin, Addresses, AdvertisedAddress};

impl PeerTable {
    /// Sets all addresses. An address that is no longer published is kept as a last resort: etcd may
    /// have been unavailable, and the certificate check detects a wrong address.
    pub fn set_addresses(&mut self, all: &Addresses, at: Instant) {
        self.move_answers(all);
        if self.addresses_in_file {
            self.end_direct_polls(all, at);
        }
        for (identity, entry) in &mut self.entries {
            let was_published = entry.published;
            entry.published &= all.contains_key(identity);
            if !entry.published && entry.listed_since.take().is_some() {
                entry.lease_ended_at = Some(at);
            }
            if !entry.published
                && identity.address().is_none()
                && let Some(listed) = entry.address
                && listed.origin == AddressOrigin::Endpoints
            {
                if !self.listed.all.contains(&listed.address) {
                    entry.delisted_at = Some(at);
                }
                // Another server may have the address now.
                entry.address = None;
            }
            if was_published && !entry.published && self.departures.contains_key(identity) {
                // From now on the server itself is polled, if its address is known.
                entry.health.record_success();
                entry.poll_again(at);
            }
        }
        // The identity of the server has become known, or is that of the local server.
        let listed = &self.listed.all;
        self.entries.retain(|identity, _| {
            let is_listed = identity.address().is_some_and(|it| listed.contains(&it));
            !is_listed || all.contains_key(identity)
        });
        for (identity, address) in all {
            if *identity == self.own {
                continue;
            }
            let entry = self
                .entries
                .entry(identity.clone())
                .or_insert_with(|| Entry {
                    // Its server may be restarting.
                    lease_ended_at: Some(at),
                    ..Entry::default()
                });
            if identity.address().is_some() {
                entry.listed_since.get_or_insert(at);
                entry.lease_ended_at = None;
            }
            if !self.departures.contains_key(identity) {
                entry.next_poll_is_direct = false;
            }
            let had_bridge = entry.has_bridge();
            // A server that returns at the same address may have another version.
            let was_unpublished = !std::mem::replace(&mut entry.published, true);
            if was_unpublished || entry.address != Some(*address) {
                entry.address = Some(*address);
                entry.health.record_success();
                entry.poll_again(at);
            }
            if entry.has_bridge() {
                entry.direct = DirectPoll::Untried;
                if !had_bridge
                    && !self.published.contains_key(identity)
                    && let Some(stored) = self.stored.get_mut(identity)
                    && stored.bridge_left_at.is_some()
                {
                    // The bridge has returned and has not updated its record yet.
                    Arc::make_mut(stored).bridge_left_at = None;
                    self.departures.remove(identity);
                }
            }
        }
        if self.addresses_in_file {
            self.file_is_read = true;
            self.update_departures(at);
        }
        self.remove_unused_entries(at);
    }

    /// Sets the published addresses that are ignored, because they are in none of the networks that
    /// an administrator allows.
    pub fn set_refused_addresses(&mut self, all: &Addresses) {
        for (identity, entry) in &mut self.entries {
            entry.refused_address = all.get(identity).map(|it| it.address);
        }
    }

    /// The address of a server: the published one; after its bridge has departed, that of the server
    /// itself; after a crash of the bridge, both alternately.
    pub(super) fn address(&self, identity: &Identity) -> Option<AdvertisedAddress> {
        let entry = self.entries.get(identity)?;
        let direct = self
            .direct_address(identity)
            .map(AdvertisedAddress::by_server);
        let has_left = self.departures.contains_key(identity);
        if self.addresses_in_file {
            let listed = entry.address.filter(|_| entry.published);
            let direct = direct.filter(|_| has_left && entry.next_poll_is_direct);
            direct.or(listed)
        } else if entry.published {
            entry.address
        } else if has_left {
            direct
        } else if entry.next_poll_is_direct {
            direct.or(entry.address)
        } else {
            entry.address.or(direct)
        }
    }

    /// The address of the server itself. With addresses in a file, a writer of records cannot set
    /// others.
    pub(super) fn direct_address(&self, identity: &Identity) -> Option<SocketAddr> {
        if let Some(listed) = self.listed.identified.get(identity) {
            return Some(*listed);
        }
        if self.addresses_in_file {
            let entry = self.entries.get(identity)?;
            let listed = entry.address.filter(|_| entry.published)?;
            return match listed.origin {
                AddressOrigin::File { server } => server,
                AddressOrigin::Server | AddressOrigin::Endpoints => Some(listed.address),
                AddressOrigin::Bridge => None,
            };
        }
        let published = self.published.get(identity);
        let record = published.or_else(|| self.stored.get(identity));
        record.and_then(|record| record.server)
    }
}
