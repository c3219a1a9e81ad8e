//! The state of the other servers of the cluster, as a state machine: the input is observed
//! Leases, addresses, records and poll results; the output is which servers to poll and the
//! snapshot for routing.
//!
//! Leases, addresses and discovery documents arrive from three sources and in any order. A real
//! kube-apiserver drops a peer permanently when its Lease arrives first (it stops after some
//! retries). This table keeps a peer while its Lease is valid, and uses its last successful poll
//! until then.

mod addresses;
mod departures;
mod entry;
#[cfg(test)]
mod known_apis;
mod leases;
mod listed_servers;
mod polls;
mod records;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::host_time::HostClock;
use crate::identity::Identity;
use crate::served_record::Records;
use departures::Departure;
use entry::Entry;
pub use leases::LeaseSnapshot;
pub use listed_servers::ListedAddresses;

/// A server whose Lease was not renewed for this long counts as not running. kube-apiserver renews
/// every 10 s; three renewals may be lost.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(40);

/// How long a running server may take to publish an address. After that it does not take part in
/// peering, for example because it has no bridge yet: APIs that no other server serves get 404, as
/// without the bridge.
const ADDRESS_GRACE: Duration = Duration::from_mins(1);

/// How long a server with an address may take to answer its first poll.
const DISCOVERY_GRACE: Duration = Duration::from_mins(5);

/// How long a server may be without a Lease while its bridge stays: from 1.35 on a restart deletes
/// the Lease, and APIs that only this server serves must not get 404 meanwhile.
const RESTART_GRACE: Duration = Duration::from_mins(2);

/// How long a server whose bridge announced its departure counts as before, unless the server
/// answers directly. A rolling restart of bridges brings each one back within seconds,
/// one with an image pull within minutes. Afterwards the server counts as one that never
/// had a bridge.
pub const ROLLOUT_GRACE: Duration = Duration::from_mins(5);

/// How long a record is kept after the Lease of its server has ended. From 1.35 on
/// each restart ends the Lease, and a host that is being upgraded may be away for long.
/// Without a Lease a record has no effect, so the time costs only its few KiB.
pub const RECORD_RETENTION: Duration = Duration::from_hours(1);

/// A server without a known Lease runs until its address is no longer listed; an event reports that.
const LISTED_DURATION: Duration = Duration::from_hours(24 * 3650);

/// A Lease that has not changed for this long has expired, even if it is not deleted.
const LEASE_DURATION: Duration = Duration::from_hours(1);

/// The state of all other servers.
#[derive(Debug)]
pub struct PeerTable {
    own: Identity,
    leases_listed: bool,
    entries: BTreeMap<Identity, Entry>,
    /// The served records in the registry.
    published: Records,
    /// The last record of each server, from this process or an earlier one: the content of
    /// `--state-dir`.
    stored: Records,
    /// Since when servers with a record have no Lease.
    without_lease_since: BTreeMap<Identity, Instant>,
    /// Departures of bridges.
    departures: BTreeMap<Identity, Departure>,
    registry: RegistryRead,
    /// Whether an administrator maintains the addresses in a file.
    addresses_in_file: bool,
    /// Whether that file has been read.
    file_is_read: bool,
    /// The clock by which departures are stored. Without it they restart with each process.
    host_clock: Option<HostClock>,
    /// The listed addresses of the servers themselves.
    listed: ListedAddresses,
    /// Servers that are probably among those whose addresses are listed and whose identities are
    /// not known.
    counted_by_address: BTreeSet<Identity>,
}

/// Whether the registry has been read since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RegistryRead {
    /// No read is awaited.
    NotAwaited,
    /// No read has succeeded yet: a server may have an unknown address.
    Pending,
    /// The first read succeeded at this time.
    At(Instant),
}

impl PeerTable {
    /// An empty table.
    pub fn new(own: Identity) -> Self {
        Self {
            own,
            leases_listed: false,
            entries: BTreeMap::new(),
            published: Records::new(),
            stored: Records::new(),
            without_lease_since: BTreeMap::new(),
            departures: BTreeMap::new(),
            registry: RegistryRead::NotAwaited,
            addresses_in_file: false,
            file_is_read: false,
            host_clock: None,
            listed: ListedAddresses::default(),
            counted_by_address: BTreeSet::new(),
        }
    }

    /// Takes addresses only from a file that an administrator maintains. A server that is not in
    /// the file has no bridge.
    #[must_use]
    pub fn with_addresses_in_file(mut self) -> Self {
        self.addresses_in_file = true;
        self
    }

    /// Sets the clock by which departures are stored for the next process of this host.
    pub fn set_host_clock(&mut self, clock: Option<HostClock>) {
        self.host_clock = clock;
    }

    /// The registry has not been read yet. Until [`PeerTable::mark_registry_read`], a server with
    /// a valid Lease that has not answered may serve any API.
    pub fn await_registry(&mut self) {
        self.registry = RegistryRead::Pending;
    }

    /// Whether the registry has not been read yet.
    pub fn awaits_registry(&self) -> bool {
        self.registry == RegistryRead::Pending
    }

    /// Addresses and records of the registry have been read and passed to the table.
    pub fn mark_registry_read(&mut self, at: Instant) {
        if self.awaits_registry() {
            self.registry = RegistryRead::At(at);
        }
    }

    /// Removes expired state. Returns whether anything expired.
    pub fn expire(&mut self, at: Instant) -> bool {
        let mut any = false;
        for (identity, entry) in &mut self.entries {
            if (entry.lease.as_ref()).is_some_and(|state| state.changed + LEASE_DURATION <= at) {
                entry.end_lease(at);
                any = true;
            }
            let departure = (self.departures.get(identity)).filter(|_| !entry.has_bridge());
            let in_rollout = departure.is_some_and(|it| it.is_recent(at));
            if !in_rollout
                && entry
                    .lease_ended_at
                    .is_some_and(|lease_ended_at| lease_ended_at + RESTART_GRACE <= at)
            {
                entry.lease_ended_at = None;
                entry.served = None;
                any = true;
            }
            any |= entry.end_grace(departure, at);
        }
        any |= self.count_by_address(at);
        self.retain_records(at);
        self.remove_unused_entries(at);
        any
    }

    /// Removes entries without Lease and address, unless their bridge announced its departure
    /// recently.
    fn remove_unused_entries(&mut self, at: Instant) {
        let departures = &self.departures;
        self.entries.retain(|identity, entry| {
            let departure = departures.get(identity);
            entry.end_grace(departure, at);
            // A listed server that restarts is listed again.
            let was_listed = identity.address().is_some() || entry.was_listed(at);
            let may_return = was_listed && entry.lease_ended_at.is_some();
            let has_left = departure.is_some_and(|it| it.is_recent(at));
            entry.lease.is_some() || entry.published || has_left || may_return
        });
    }
}
