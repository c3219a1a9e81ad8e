//! The state of the other servers of the cluster, as a state machine: the input is observed
//! Leases, addresses, records and poll results; the output is which servers to poll and the
//! snapshot for routing.
//!
//! Leases, addresses and discovery documents arrive from three sources and in any order. A real
//! kube-apiserver drops a peer permanently when its Lease arrives first (it stops after some
//! retries). This table keeps a peer while its Lease is valid, and uses its last successful poll
//! until then.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::confirmation::{FailedPoll, FirstAnswer};
use crate::host_time::HostClock;
use crate::identity::Identity;
use crate::peer::{ApiSource, Peer, PeerRecord, Peers};
use crate::peer_health::PeerHealth;
use crate::refresh_schedule::RefreshSchedule;
use crate::registry::{AddressOrigin, Addresses, AdvertisedAddress};
use crate::served_apis::ServedApis;
use crate::served_record::{MAX_RECORDS, Records, ServedRecord};
use departures::Departure;
use listed_servers::Fallback;
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
    unleased: BTreeMap<Identity, Instant>,
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

#[derive(Debug, Default)]
struct Entry {
    lease: Option<LeaseState>,
    /// From the last Lease with a host name: it is kept while a server restarts.
    host: Option<String>,
    /// Since when its address is listed, if its Lease is not known: it runs while it is listed.
    listed_since: Option<Instant>,
    /// When its address was last removed from the `EndpointSlices`, if its Lease was known.
    delisted_at: Option<Instant>,
    /// When its Lease ended, or its address was no longer listed, if that was observed.
    lease_ended_at: Option<Instant>,
    address: Option<AdvertisedAddress>,
    /// Whether the registry still has the address.
    published: bool,
    /// A published address that is in none of the allowed networks.
    refused_address: Option<SocketAddr>,
    served: Option<Arc<ServedApis>>,
    fetch: RefreshSchedule,
    last_success: Option<SystemTime>,
    /// The `observed_at` of the record that was known when the current poll began.
    fetch_supersedes: Option<SystemTime>,
    /// The same for the last answer: a published record with another value is later.
    superseded: Option<SystemTime>,
    problem: Option<String>,
    health: Arc<PeerHealth>,
    /// The address of the current poll.
    fetch_at: Option<SocketAddr>,
    /// When the current poll began, and the signs of a change until then.
    fetch_began: Option<(Instant, u64)>,
    /// The last poll, if it has failed, and the server has shown no sign of a restart since.
    failed_fetch: Option<FailedPoll>,
    /// The address at which a bridge answered the last poll.
    bridge_at: Option<SocketAddr>,
    /// The next poll goes to the server itself, because its bridge does not answer.
    next_fetch_is_direct: bool,
    /// The current poll goes to the server itself.
    fetch_is_direct: bool,
    /// The result of polling the server itself since its bridge departed.
    direct: DirectPoll,
    /// The server itself, beside its bridge.
    fallback: Fallback,
}

/// The result of polling a server itself since its bridge departed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum DirectPoll {
    /// No result yet.
    #[default]
    Untried,
    /// The server answers: it is a peer like any other.
    ServerAnswers,
    /// The bridge, whose address is in a file, still answers.
    BridgeAnswers,
    /// The server has not answered within [`ROLLOUT_GRACE`]: it counts as one that never had a
    /// bridge.
    GraceExpired,
}

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

#[derive(Debug)]
struct LeaseState {
    holder: String,
    resource_version: String,
    /// When the Lease was first observed, and when a change was last observed: by the local clock,
    /// because the clocks of hosts differ.
    first: Instant,
    changed: Instant,
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
            unleased: BTreeMap::new(),
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

    /// Keeps a record that an earlier process of this bridge stored.
    pub fn store_record(&mut self, mut record: Arc<ServedRecord>) {
        let stored = self.stored.get(&record.identity);
        let has_room = stored.is_some() || self.stored.len() < MAX_RECORDS;
        if record.identity != self.own && has_room {
            if let Some(departure) = stored.and_then(|it| it.departure.clone())
                && record.departure.is_none()
            {
                Arc::make_mut(&mut record).departure = Some(departure);
            }
            self.stored.insert(record.identity.clone(), record);
        }
    }

    /// Stores the record of the last answer of a server, and keeps the data of its bridge.
    pub fn store_polled_record(&mut self, mut answer: ServedRecord) {
        let identity = &answer.identity;
        let stored = self.stored.get(identity);
        let published = self.published.get(identity);
        let known = stored.and_then(|it| it.supersedes);
        if let Some(entry) = self.entries.get_mut(identity) {
            if let Some(published) = published
                && published.has_same_apis(&answer)
            {
                entry.superseded = Some(published.observed_at);
            }
            answer.supersedes = entry.superseded.or(known);
        }
        if let Some(record) = published.or(stored) {
            answer = answer.with_bridge_of(record);
        }
        self.store_record(Arc::new(answer));
    }

    /// Stores a published record that has changed. It replaces the stored record, unless that is an
    /// answer that is later than this record.
    fn store_published_record(&mut self, published: &ServedRecord, at: Instant) {
        let observed_at = published.observed_at;
        let stored = self.stored.get(&published.identity);
        let answer = stored.filter(|it| it.supersedes != Some(it.observed_at));
        let entry = self.entries.get_mut(&published.identity);
        if let Some(entry) = entry
            && entry.served.is_some()
            && entry.superseded != Some(observed_at)
        {
            if answer.is_some_and(|it| it.has_same_apis(published)) {
                entry.superseded = Some(observed_at);
            } else {
                // The server has changed: poll it.
                entry.poll_again(at);
            }
        }
        let is_answered = |it: &&Arc<ServedRecord>| it.supersedes == Some(observed_at);
        let mut record = match answer.filter(is_answered) {
            Some(answer) => ServedRecord::clone(answer).with_bridge_of(published),
            None => published.clone(),
        };
        record.supersedes = Some(observed_at);
        // Only departures that this host has stored.
        record.departure = None;
        self.store_record(Arc::new(record));
    }

    /// The last known record of each server: the content for `--state-dir`.
    pub fn stored_records(&self) -> &Records {
        &self.stored
    }

    /// The served records in the registry.
    pub fn published_records(&self) -> &Records {
        &self.published
    }

    /// Records in the registry whose servers have had no Lease for [`RECORD_RETENTION`].
    pub fn outdated_records(&self, at: Instant) -> impl Iterator<Item = &Arc<ServedRecord>> {
        self.published.values().filter(move |record| {
            let since = self.unleased.get(&record.identity);
            since.is_some_and(|since| *since + RECORD_RETENTION <= at)
        })
    }

    /// Sets all records in the registry. A record is used if it arrived later than other data,
    /// regardless of the clocks of other hosts.
    pub fn set_published_records(&mut self, all: &Records, at: Instant) {
        let before = std::mem::replace(&mut self.published, all.clone());
        self.published.remove(&self.own);
        for record in self.published.clone().values() {
            let known = before.get(&record.identity);
            if known.is_none_or(|known| known.observed_at != record.observed_at) {
                // A bridge has just written it: its server may be about to return.
                self.unleased.remove(&record.identity);
            }
            let is_same = |known: &Arc<ServedRecord>| {
                known.observed_at == record.observed_at && known.has_same_content(record)
            };
            if !known.is_some_and(is_same) {
                self.store_published_record(record, at);
            }
        }
        self.update_departures(at);
        self.remove_unused_entries(at);
    }

    /// Whether the Leases have been listed.
    pub fn leases_are_listed(&self) -> bool {
        self.leases_listed
    }

    /// Sets all Leases.
    pub fn set_leases(&mut self, all: Vec<LeaseSnapshot>, at: Instant) {
        self.leases_listed = true;
        for (identity, entry) in &mut self.entries {
            let has_lease = all.iter().any(|seen| seen.identity == *identity);
            if !has_lease && identity.address().is_none() {
                entry.end_lease(at);
            }
        }
        for seen in all {
            self.update_lease(seen, at);
        }
        self.remove_unused_entries(at);
    }

    /// Adds or updates a Lease.
    pub fn update_lease(&mut self, seen: LeaseSnapshot, at: Instant) {
        if seen.identity == self.own {
            return;
        }
        let departure = self.departures.get(&seen.identity);
        let entry = self.entries.entry(seen.identity).or_default();
        entry.end_grace(departure, at);
        let (restarted, changed) = match &entry.lease {
            None => (true, at),
            Some(state) if state.resource_version == seen.resource_version => {
                (false, state.changed)
            }
            Some(state) => (state.holder != seen.holder, at),
        };
        let first = entry.lease.as_ref().map_or(at, |state| state.first);
        entry.lease_ended_at = None;
        if seen.host.is_some() {
            entry.host = seen.host;
        }
        entry.lease = Some(LeaseState {
            holder: seen.holder,
            resource_version: seen.resource_version,
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
                entry.next_fetch_is_direct = false;
            }
            let had_bridge = entry.has_bridge();
            // A server that returns at the same address may have another version.
            let is_back = !std::mem::replace(&mut entry.published, true);
            if is_back || entry.address != Some(*address) {
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
                && entry.fetch.begin_if_due(at)
            {
                let is_fallback = std::mem::take(&mut entry.fallback.is_polled_next);
                entry.fetch_supersedes = known;
                entry.fetch_at = address.map(|it| it.address);
                entry.fetch_began = Some((at, entry.health.confirmation().doubts()));
                entry.fetch_is_direct = address.is_some_and(|it| it.origin.is_server());
                entry.fallback.is_polled = false;
                let peer = self.peer(&identity);
                let fallback = peer.as_ref().and_then(|it| it.record.fallback.clone());
                match (fallback, self.entries.get_mut(&identity)) {
                    (Some(fallback), Some(entry)) if is_fallback => {
                        entry.fetch_at = fallback.address;
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
            _ if !entry.runs() => entry.fetch.failed(at, jitter),
            outcome if entry.fallback.is_polled => {
                // The bridge is polled next: `problem` and `health` are those of the bridge.
                entry.fetch.failed(at, jitter);
                if let Ok(served) = outcome {
                    entry.last_success = Some(wall);
                    entry.superseded = entry.fetch_supersedes;
                    entry.served = Some(Arc::new(served));
                    entry.fallback.health.record_poll(at);
                    entry.fallback.health.record_success();
                }
            }
            Ok(served) => {
                entry.fetch.succeeded(at, served.change_detection(), jitter);
                entry.last_success = Some(wall);
                entry.superseded = entry.fetch_supersedes;
                entry.bridge_at = entry.fetch_at.filter(|_| served.by_bridge);
                entry.health.record_poll(at);
                entry.served = Some(Arc::new(served));
                entry.health.mark_reachable();
                // It is not polled while its bridge answers.
                entry.fallback.health.mark_reachable();
                if has_left && !entry.has_bridge() {
                    // The address may have changed since the poll began.
                    let listed = entry.address.map(|it| it.address);
                    let answers = if entry.fetch_is_direct {
                        let is_current = entry.fetch_at == direct
                            || (entry.published && entry.fetch_at == listed);
                        is_current.then_some(DirectPoll::ServerAnswers)
                    } else {
                        (entry.is_in_file() && entry.fetch_at == listed)
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
                entry.fetch.failed(at, jitter);
                // Another process may have the address at the next answer.
                entry.bridge_at = None;
                entry.problem = Some(problem);
                entry.fallback.is_polled_next = has_fallback;
                if entry.direct == DirectPoll::BridgeAnswers {
                    entry.direct = DirectPoll::Untried;
                }
                // Its bridge has crashed, or the registry has lost its address, or the file
                // still has the address of a departed bridge: both addresses are tried
                // alternately.
                let has_two = (!entry.published && !has_left) || (entry.is_in_file() && has_left);
                if has_two && direct.is_some() {
                    entry.next_fetch_is_direct = !entry.next_fetch_is_direct;
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
            && !entry.fetch_is_direct
        {
            entry.direct = DirectPoll::BridgeAnswers;
            self.restart_grace(identity, at);
        }
    }

    /// A request to this peer failed: poll it soon.
    pub fn recheck(&mut self, identity: &Identity, at: Instant) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.health.confirmation().doubt();
            entry.fetch.recheck(at);
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
                && (!entry.fetch.is_in_progress()
                    || entry.fetch_began.is_none_or(|(began, _)| began < since))
            {
                entry.fetch.refresh_now(at);
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
            && !entry.failed_fetch.is_some_and(|it| it.is_settled(since))
    }

    /// An administrator looks at the state of the servers: poll all of them soon, also those that do
    /// not answer.
    pub fn recheck_observed(&mut self, at: Instant) {
        for entry in self.entries.values_mut() {
            entry.fetch.recheck_observed(at);
        }
    }

    /// The snapshot for routing.
    pub fn snapshot(&self) -> Peers {
        Peers {
            leases_listed: self.leases_listed,
            peers: (self.entries.keys())
                .filter(|identity| !self.counted_by_address.contains(*identity))
                .filter_map(|identity| self.peer(identity).map(Arc::new))
                .collect(),
        }
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

    fn retain_records(&mut self, at: Instant) {
        if !self.leases_listed {
            return;
        }
        let entries = &self.entries;
        let has_lease = |identity: &Identity| {
            let entry = entries.get(identity);
            entry.is_some_and(Entry::runs)
        };
        self.unleased.retain(|identity, _| {
            let is_kept =
                self.stored.contains_key(identity) || self.published.contains_key(identity);
            is_kept && !has_lease(identity)
        });
        for identity in self.stored.keys().chain(self.published.keys()) {
            if !has_lease(identity) {
                self.unleased.entry(identity.clone()).or_insert(at);
            }
        }
        let unleased = &self.unleased;
        self.stored.retain(|identity, _| {
            let since = unleased.get(identity);
            since.is_none_or(|since| *since + RECORD_RETENTION > at)
        });
    }

    /// The record that is used if the server has not been polled: the published one, unless a later
    /// answer is stored.
    fn record(&self, identity: &Identity) -> Option<(&Arc<ServedRecord>, ApiSource)> {
        match (self.published.get(identity), self.stored.get(identity)) {
            (Some(published), Some(stored))
                if stored.supersedes == Some(published.observed_at)
                    && stored.observed_at != published.observed_at =>
            {
                Some((stored, ApiSource::Stored))
            }
            (Some(published), _) => Some((published, ApiSource::Published)),
            (None, Some(stored)) => Some((stored, ApiSource::Stored)),
            (None, None) => None,
        }
    }

    /// The last known served APIs of a server: its own answer, unless another record was published
    /// since that poll began.
    fn served(&self, identity: &Identity, entry: &Entry) -> Option<(Arc<ServedApis>, ApiSource)> {
        let published = self
            .published
            .get(identity)
            .map(|record| record.observed_at);
        let stored = self.stored.get(identity);
        let latest = published.or_else(|| stored.and_then(|record| record.supersedes));
        match (&entry.served, self.record(identity)) {
            (Some(polled), _) if latest.is_none() || latest == entry.superseded => {
                Some((polled.clone(), ApiSource::Polled))
            }
            (_, Some((record, source))) => Some((record.served.clone(), source)),
            (polled, None) => polled.clone().map(|polled| (polled, ApiSource::Polled)),
        }
    }

    /// The address of a server: the published one; after its bridge has departed, that of the server
    /// itself; after a crash of the bridge, both alternately.
    fn address(&self, identity: &Identity) -> Option<AdvertisedAddress> {
        let entry = self.entries.get(identity)?;
        let direct = self
            .direct_address(identity)
            .map(AdvertisedAddress::by_server);
        let has_left = self.departures.contains_key(identity);
        if self.addresses_in_file {
            let listed = entry.address.filter(|_| entry.published);
            let direct = direct.filter(|_| has_left && entry.next_fetch_is_direct);
            direct.or(listed)
        } else if entry.published {
            entry.address
        } else if has_left {
            direct
        } else if entry.next_fetch_is_direct {
            direct.or(entry.address)
        } else {
            entry.address.or(direct)
        }
    }

    /// The address of the server itself. With addresses in a file, a writer of records cannot set
    /// others.
    fn direct_address(&self, identity: &Identity) -> Option<SocketAddr> {
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

    fn peer(&self, identity: &Identity) -> Option<Peer> {
        let entry = self.entries.get(identity)?;
        let advertised = self.address(identity);
        let address = advertised.map(|it| it.address);
        let known = self.served(identity, entry);
        let without_bridge = entry.direct == DirectPoll::GraceExpired;
        let known = known.filter(|_| !without_bridge);
        let awaited = |first: Instant, alive_until, grace| match self.registry {
            RegistryRead::NotAwaited => first + grace,
            RegistryRead::Pending => alive_until,
            RegistryRead::At(read) => first.max(read) + grace,
        };
        let ended_at = entry.lease_ended_at;
        let (alive_until, awaited_until) = match (&entry.lease, ended_at) {
            (None, _) if let Some(listed) = entry.listed_since => {
                let alive_until = listed + LISTED_DURATION;
                (alive_until, awaited(listed, alive_until, DISCOVERY_GRACE))
            }
            (Some(state), _) => {
                let grace = match address {
                    None if without_bridge => Duration::ZERO,
                    Some(_) if without_bridge => ADDRESS_GRACE,
                    Some(_) => DISCOVERY_GRACE,
                    None => ADDRESS_GRACE,
                };
                // A server that is listed runs, even if only a killed bridge has renewed its Lease.
                let is_listed = self.listed.identified.contains_key(identity);
                let renewal_timeout = if is_listed {
                    LISTED_DURATION
                } else {
                    RENEWAL_TIMEOUT
                };
                let alive_until = state.changed + renewal_timeout;
                (alive_until, awaited(state.first, alive_until, grace))
            }
            // Known, and currently without a Lease.
            (None, Some(lease_ended_at)) if known.is_some() => (lease_ended_at, lease_ended_at),
            (None, _) => return None,
        };
        let departure = self.departures.get(identity);
        let answers = entry.has_bridge() || entry.direct == DirectPoll::BridgeAnswers;
        let departure = departure.filter(|_| !answers);
        let bridge_left = departure.is_some();
        let departure_problem = departure.filter(|_| entry.direct != DirectPoll::ServerAnswers);
        // A kube-apiserver may use the address of a killed bridge now.
        let is_bridge = advertised.is_some_and(|it| {
            it.origin != AddressOrigin::Server && entry.bridge_at == Some(it.address)
        });
        let origin = advertised.map(|it| it.origin);
        let is_published_by_bridge =
            advertised.is_some_and(|it| it.origin == AddressOrigin::Bridge);
        let published = self.published.get(identity);
        Some(Peer {
            identity: identity.clone(),
            host: entry.host.clone(),
            address,
            published: entry.published,
            alive_until,
            awaited_until,
            record: PeerRecord {
                origin,
                // A Lease that was found may be old.
                renewed_at: (entry.lease.as_ref())
                    .filter(|state| state.changed > state.first)
                    .map(|state| state.changed),
                fallback: self.fallback(identity, entry, known.as_ref(), alive_until),
                source: known.as_ref().map(|(_, source)| *source),
                bridge_left,
                is_bridge,
                // The keys belong to the bridge that wrote the record: not to the server behind
                // it, and not to a later bridge of an older release.
                serving_keys: match published {
                    Some(record)
                        if is_published_by_bridge
                            && record.bridge_left_at.is_none()
                            && record.bridge == address =>
                    {
                        record.serving_keys.clone()
                    }
                    _ => Vec::new(),
                },
            },
            served: known.map(|(served, _)| served),
            health: entry.health.clone(),
            last_success: entry.last_success,
            problem: match (entry.refused_address, departure_problem, address) {
                (Some(refused_address), ..) => Some(format!(
                    "the address that it has published, {refused_address}, is refused: it is in none \
                     of the --peer-cidrs"
                )),
                (None, Some(departure), _) => Some(departure.problem().to_owned()),
                // `reachability` derives the reason from the status of the registry.
                (None, None, None) => None,
                (None, None, Some(_)) => entry.problem.clone(),
            },
        })
    }
}

impl Entry {
    /// Whether the server is expected to run: it has a Lease, or its address is listed.
    fn runs(&self) -> bool {
        self.lease.is_some() || self.listed_since.is_some()
    }

    /// The server may have been replaced: polls it now.
    fn poll_again(&mut self, at: Instant) {
        self.failed_fetch = None;
        self.health.confirmation().doubt();
        self.fetch.refresh_now(at);
    }

    /// The current poll has ended. One that began before the last sign of a change confirms nothing.
    fn record_confirmation(&mut self, has_succeeded: bool, has_fallback: bool, at: Instant) {
        let Some((began, doubts)) = self.fetch_began else {
            return;
        };
        if has_succeeded {
            self.health.confirmation().refute(doubts);
            self.failed_fetch = None;
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
            self.failed_fetch = Some(FailedPoll::new(began, at, answer));
        }
    }

    /// Whether the registry has the address of the server's bridge.
    fn has_bridge(&self) -> bool {
        self.published && (self.address).is_some_and(|it| it.origin == AddressOrigin::Bridge)
    }

    /// Whether its address is from a registry file.
    fn is_in_file(&self) -> bool {
        let origin = self.address.map(|it| it.origin);
        self.published && matches!(origin, Some(AddressOrigin::File { .. }))
    }

    /// Treats a server whose bridge departed long ago as one that never had a bridge.
    /// Returns whether that changed.
    fn end_grace(&mut self, departure: Option<&Departure>, at: Instant) -> bool {
        let has_left = departure.is_some_and(|it| !it.is_recent(at)) && !self.has_bridge();
        let is_news = has_left && self.direct == DirectPoll::Untried;
        if is_news {
            self.direct = DirectPoll::GraceExpired;
        }
        is_news
    }

    /// Whether its address was in an `EndpointSlice` until recently: a server that ends removes it
    /// before its Lease, also for a restart.
    fn was_listed(&self, at: Instant) -> bool {
        self.delisted_at.is_some_and(|it| it + RESTART_GRACE > at)
    }

    /// The Lease has ended: the server no longer serves its APIs, unless its bridge is still
    /// published and waits for it to return, or the server may be restarting.
    fn end_lease(&mut self, at: Instant) {
        if self.lease.take().is_some() {
            self.lease_ended_at = Some(at);
        }
        if !self.published && !self.was_listed(at) {
            self.served = None;
            self.address = None;
        }
    }
}

mod departures;
#[cfg(test)]
mod known_apis;
mod listed_servers;
#[cfg(test)]
mod tests;
