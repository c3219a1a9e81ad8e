//! The identity Leases of the other servers.

use std::time::Instant;

use super::PeerTable;
use super::entry::LeaseState;
use crate::identity::Identity;

/// The fields of an identity Lease that the table needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSnapshot {
    /// The server.
    pub identity: Identity,
    /// The host of the server, by the Lease's label `kubernetes.io/hostname`.
    pub host: Option<String>,
    /// Changes with each start of the server.
    pub holder: String,
    /// Changes with each renewal.
    pub resource_version: String,
}

impl PeerTable {
    /// Whether the Leases have been listed.
    pub fn leases_are_listed(&self) -> bool {
        self.leases_listed
    }

    /// Sets all Leases.
    pub fn set_leases(&mut self, all: Vec<LeaseSnapshot>, at: Instant) {
        self.leases_listed = true;
        for (identity, entry) in &mut self.entries {
            let has_lease = all.iter().any(|lease| lease.identity == *identity);
            if !has_lease && identity.address().is_none() {
                entry.end_lease(at);
            }
        }
        for lease in all {
            self.update_lease(lease, at);
        }
        self.remove_unused_entries(at);
    }

    /// Adds or updates a Lease.
    pub fn update_lease(&mut self, lease: LeaseSnapshot, at: Instant) {
        if lease.identity == self.own {
            return;
        }
        let departure = self.departures.get(&lease.identity);
        let entry = self.entries.entry(lease.identity).or_default();
        entry.end_grace(departure, at);
        let (restarted, changed) = match &entry.lease {
            None => (true, at),
            Some(state) if state.resource_version == lease.resource_version => {
                (false, state.changed)
            }
            Some(state) => (state.holder != lease.holder, at),
        };
        let first = entry.lease.as_ref().map_or(at, |state| state.first);
        entry.lease_ended_at = None;
        if lease.host.is_some() {
            entry.host = lease.host;
        }
        entry.lease = Some(LeaseState {
            holder: lease.holder,
            resource_version: lease.resource_version,
            first,
            changed,
        });
        if restarted {
            entry.poll_again(at);
        }
    }

    /// A Lease was deleted.
    pub fn remove_lease(&mut self, identity: &Identity, at: Instant) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.end_lease(at);
        }
        self.remove_unused_entries(at);
    }
}
