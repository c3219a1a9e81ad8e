//! Everything that is known of the other servers of the cluster, as a state
//! machine: what is seen goes in, what to fetch and where to route comes out.
//!
//! Leases, addresses and discovery documents come by three ways and in any
//! order. Real kube-apiservers lose a peer for good when its Lease comes first
//! (they give up after some tries); here nobody is given up while its Lease
//! lives, and the last good answer of a peer counts until then.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::host_time::HostClock;
use crate::identity::Identity;
use crate::peer::{ApiSource, Peer, PeerRecord, Peers};
use crate::peer_health::PeerHealth;
use crate::refresh_schedule::RefreshSchedule;
use crate::registry::{AddressOrigin, Addresses, AdvertisedAddress};
use crate::served_apis::ServedApis;
use crate::served_record::{MAX_RECORDS, Records, ServedRecord};
use departures::Departure;

/// After this without a renewal a server is taken for dead. kube-apiserver
/// renews every 10 s; three may be lost.
const ALIVE: Duration = Duration::from_secs(40);

/// How long a server that runs may take to say where it is. One that has not by
/// then takes no part, such as one that has no bridge yet: what nobody else
/// serves is then not found, as it would be without us.
const TO_APPEAR: Duration = Duration::from_mins(1);

/// How long a server that says where it is may take to tell what it serves.
const TO_TELL: Duration = Duration::from_mins(5);

/// How long a server that has ended its Lease while its bridge stays may take to
/// come back: from 1.35 on a restart deletes the Lease, and what only this server
/// has must not be "not found" meanwhile.
const TO_RESTART: Duration = Duration::from_mins(2);

/// How long a server whose bridge announced that it leaves counts as before, unless it
/// answers directly. A rolling restart of bridges brings each one back within seconds,
/// one with an image pull within minutes. Afterwards the server counts as one that never
/// had a bridge.
pub const ROLLOUT_GRACE: Duration = Duration::from_mins(5);

/// How long a record is kept after the Lease of its server has ended. From 1.35 on
/// each restart ends the Lease, and a host that is being upgraded may be away for long.
/// Without a Lease a record has no effect, so the time costs only its few KiB.
pub const RECORD_RETENTION: Duration = Duration::from_hours(1);

/// A Lease that has not changed for its duration has run out, whoever forgets to
/// delete it.
const LEASE: Duration = Duration::from_hours(1);

/// What is known of all servers.
#[derive(Debug)]
pub struct PeerTable {
    own: Identity,
    listed: bool,
    entries: BTreeMap<Identity, Entry>,
    /// What bridges publish in the registry about their servers.
    published: Records,
    /// The last record of each server that this bridge has seen, now or before it
    /// started: what `--state-dir` has.
    stored: Records,
    /// Since when servers with a record have no Lease.
    unleased: BTreeMap<Identity, Instant>,
    /// Bridges that have left.
    departures: BTreeMap<Identity, Departure>,
    registry: RegistryRead,
    /// An administrator keeps the addresses in a file.
    addresses_in_file: bool,
    /// That file has been read.
    file_is_read: bool,
    /// The clock by which departures are stored; without it they count anew with each start.
    host_clock: Option<HostClock>,
}

/// Whether the registry has been read since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RegistryRead {
    /// No read is waited for.
    NotAwaited,
    /// No read has succeeded yet: a server may have an address that is not known.
    Pending,
    /// The first read succeeded at this time.
    At(Instant),
}

#[derive(Debug, Default)]
struct Entry {
    lease: Option<Life>,
    /// Of the last Lease that named one: it stays known while a server restarts.
    host: Option<String>,
    /// When its Lease ended, if we saw it.
    ended: Option<Instant>,
    address: Option<AdvertisedAddress>,
    /// Whether the registry still has the address.
    published: bool,
    /// What it has published that is not believed.
    refused: Option<SocketAddr>,
    served: Option<Arc<ServedApis>>,
    fetch: RefreshSchedule,
    succeeded: Option<SystemTime>,
    /// The `learnt` of the record that was known when the fetch under way began.
    fetch_supersedes: Option<SystemTime>,
    /// The same for the last answer: a published record with another one came later.
    superseded: Option<SystemTime>,
    problem: Option<String>,
    standing: Arc<PeerHealth>,
    /// Where the fetch under way asks.
    fetch_at: Option<SocketAddr>,
    /// Where a bridge has answered the last fetch.
    bridge_at: Option<SocketAddr>,
    /// The next fetch goes to the server itself, since its bridge does not answer.
    asks_server: bool,
    /// The fetch under way goes to the server itself.
    fetch_asks_server: bool,
    /// What has come of asking the server itself since its bridge left.
    direct: Direct,
}

/// What has come of asking a server itself since its bridge left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Direct {
    /// Nothing yet.
    #[default]
    Untried,
    /// It answers: it is a peer like any other.
    Answers,
    /// The bridge, whose address is in a file, answers all the same.
    BridgeAnswers,
    /// It has not answered within [`ROLLOUT_GRACE`]: it counts as one that never had a
    /// bridge.
    GivenUp,
}

/// A Lease as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSnapshot {
    /// Whose.
    pub identity: Identity,
    /// The host of the server, by the Lease's label `kubernetes.io/hostname`.
    pub host: Option<String>,
    /// New with each start of the server.
    pub holder: String,
    /// Changes with each renewal.
    pub resource_version: String,
}

#[derive(Debug)]
struct Life {
    holder: String,
    resource_version: String,
    /// When we first saw it, and when we saw it change: by our own clock, as
    /// clocks differ.
    first: Instant,
    changed: Instant,
}

impl PeerTable {
    /// Nobody is known yet.
    pub fn new(own: Identity) -> Self {
        Self {
            own,
            listed: false,
            entries: BTreeMap::new(),
            published: Records::new(),
            stored: Records::new(),
            unleased: BTreeMap::new(),
            departures: BTreeMap::new(),
            registry: RegistryRead::NotAwaited,
            addresses_in_file: false,
            file_is_read: false,
            host_clock: None,
        }
    }

    /// An administrator keeps the addresses in a file. Nothing else names addresses, and a
    /// server that is not in the file has no bridge.
    #[must_use]
    pub fn with_addresses_in_file(mut self) -> Self {
        self.addresses_in_file = true;
        self
    }

    /// Sets the clock by which departures are stored for the next process of this host.
    pub fn set_host_clock(&mut self, clock: Option<HostClock>) {
        self.host_clock = clock;
    }

    /// The registry has not been read yet. Until [`PeerTable::registry_read`], a server with
    /// a living Lease that has not answered may serve anything.
    pub fn await_registry(&mut self) {
        self.registry = RegistryRead::Pending;
    }

    /// Whether the registry has not been read yet.
    pub fn awaits_registry(&self) -> bool {
        self.registry == RegistryRead::Pending
    }

    /// Addresses and records of the registry have been read, and are known here.
    pub fn registry_read(&mut self, at: Instant) {
        if self.awaits_registry() {
            self.registry = RegistryRead::At(at);
        }
    }

    /// Keeps a record that an earlier process of this bridge stored.
    pub fn remember(&mut self, mut record: Arc<ServedRecord>) {
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

    /// Keeps the record of the last answer of a server. What its bridge says of itself
    /// stays.
    pub fn remember_answer(&mut self, mut answer: ServedRecord) {
        let identity = &answer.identity;
        let stored = self.stored.get(identity);
        let published = self.published.get(identity);
        let known = stored.and_then(|it| it.supersedes);
        if let Some(entry) = self.entries.get_mut(identity) {
            if let Some(published) = published
                && published.has_same_apis(&answer)
            {
                entry.superseded = Some(published.learnt);
            }
            answer.supersedes = entry.superseded.or(known);
        }
        if let Some(record) = published.or(stored) {
            answer = answer.with_bridge_of(record);
        }
        self.remember(Arc::new(answer));
    }

    /// Keeps a published record that has changed. It replaces what is stored, unless that
    /// is an answer that is later than this very record.
    fn remember_published(&mut self, published: &ServedRecord, at: Instant) {
        let learnt = published.learnt;
        let stored = self.stored.get(&published.identity);
        let answer = stored.filter(|it| it.supersedes != Some(it.learnt));
        let entry = self.entries.get_mut(&published.identity);
        if let Some(entry) = entry
            && entry.served.is_some()
            && entry.superseded != Some(learnt)
        {
            if answer.is_some_and(|it| it.has_same_apis(published)) {
                entry.superseded = Some(learnt);
            } else {
                // The server has changed: its own answer is to follow.
                entry.fetch.now(at);
            }
        }
        let is_answered = |it: &&Arc<ServedRecord>| it.supersedes == Some(learnt);
        let mut record = match answer.filter(is_answered) {
            Some(answer) => ServedRecord::clone(answer).with_bridge_of(published),
            None => published.clone(),
        };
        record.supersedes = Some(learnt);
        // Only what this host has stored.
        record.departure = None;
        self.remember(Arc::new(record));
    }

    /// The last record of each server that is known: what `--state-dir` has to have.
    pub fn stored_records(&self) -> &Records {
        &self.stored
    }

    /// Records in the registry without use: their servers have had no Lease for
    /// [`RECORD_RETENTION`].
    pub fn outdated_records(&self, at: Instant) -> impl Iterator<Item = &Arc<ServedRecord>> {
        self.published.values().filter(move |record| {
            let since = self.unleased.get(&record.identity);
            since.is_some_and(|since| *since + RECORD_RETENTION <= at)
        })
    }

    /// All records in the registry. A record counts where it has come later than what is
    /// known otherwise: the clocks of other hosts do not decide that.
    pub fn published_records(&mut self, all: &Records, at: Instant) {
        let before = std::mem::replace(&mut self.published, all.clone());
        self.published.remove(&self.own);
        for record in self.published.clone().values() {
            let known = before.get(&record.identity);
            if known.is_none_or(|known| known.learnt != record.learnt) {
                // A bridge has just written it: its server may be about to return.
                self.unleased.remove(&record.identity);
            }
            let is_same = |known: &Arc<ServedRecord>| {
                known.learnt == record.learnt && known.has_same_content(record)
            };
            if !known.is_some_and(is_same) {
                self.remember_published(record, at);
            }
        }
        self.update_departures(at);
        self.forget(at);
    }

    /// Whether the Leases have been read.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// All Leases there are.
    pub fn leases(&mut self, all: Vec<LeaseSnapshot>, at: Instant) {
        self.listed = true;
        for (identity, entry) in &mut self.entries {
            if !all.iter().any(|seen| seen.identity == *identity) {
                entry.end(at);
            }
        }
        for seen in all {
            self.lease(seen, at);
        }
        self.forget(at);
    }

    /// A Lease that is new, or has changed.
    pub fn lease(&mut self, seen: LeaseSnapshot, at: Instant) {
        if seen.identity == self.own {
            return;
        }
        let departure = self.departures.get(&seen.identity);
        let entry = self.entries.entry(seen.identity).or_default();
        entry.settle(departure, at);
        let (restarted, changed) = match &entry.lease {
            None => (true, at),
            Some(life) if life.resource_version == seen.resource_version => (false, life.changed),
            Some(life) => (life.holder != seen.holder, at),
        };
        let first = entry.lease.as_ref().map_or(at, |life| life.first);
        entry.ended = None;
        if seen.host.is_some() {
            entry.host = seen.host;
        }
        entry.lease = Some(Life {
            holder: seen.holder,
            resource_version: seen.resource_version,
            first,
            changed,
        });
        if restarted {
            entry.fetch.now(at);
        }
    }

    /// A Lease that is gone.
    pub fn lease_gone(&mut self, identity: &Identity, at: Instant) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.end(at);
        }
        self.forget(at);
    }

    /// All addresses there are. One that is no longer published is kept as the
    /// last resort: etcd may have been away, and a wrong one is found out by its
    /// certificate.
    pub fn addresses(&mut self, all: &Addresses, at: Instant) {
        if self.addresses_in_file {
            self.end_direct_answers(all, at);
        }
        for (identity, entry) in &mut self.entries {
            let was_published = entry.published;
            entry.published &= all.contains_key(identity);
            if was_published && !entry.published && self.departures.contains_key(identity) {
                // From now on the server itself is asked, where its address is known.
                entry.standing.forgive();
                entry.fetch.now(at);
            }
        }
        for (identity, address) in all {
            if *identity == self.own {
                continue;
            }
            let entry = self
                .entries
                .entry(identity.clone())
                .or_insert_with(|| Entry {
                    // Its server may be restarting.
                    ended: Some(at),
                    ..Entry::default()
                });
            if !self.departures.contains_key(identity) {
                entry.asks_server = false;
            }
            let had_bridge = entry.has_bridge();
            // Back at the same place it may be another version.
            let is_back = !std::mem::replace(&mut entry.published, true);
            if is_back || entry.address != Some(*address) {
                entry.address = Some(*address);
                entry.standing.forgive();
                entry.fetch.now(at);
            }
            if entry.has_bridge() {
                entry.direct = Direct::Untried;
                if !had_bridge
                    && !self.published.contains_key(identity)
                    && let Some(stored) = self.stored.get_mut(identity)
                    && stored.left.is_some()
                {
                    // The bridge is back, and has no record yet that says so.
                    Arc::make_mut(stored).left = None;
                    self.departures.remove(identity);
                }
            }
        }
        if self.addresses_in_file {
            self.file_is_read = true;
            self.update_departures(at);
        }
        self.forget(at);
    }

    /// All addresses that are published and not believed, since they are in none
    /// of the networks that an administrator allows.
    pub fn refuse(&mut self, all: &Addresses) {
        for (identity, entry) in &mut self.entries {
            entry.refused = all.get(identity).map(|it| it.address);
        }
    }

    /// Ends what has run out. Whether that was anything.
    pub fn expire(&mut self, at: Instant) -> bool {
        let mut any = false;
        for (identity, entry) in &mut self.entries {
            if (entry.lease.as_ref()).is_some_and(|life| life.changed + LEASE <= at) {
                entry.end(at);
                any = true;
            }
            let departure = (self.departures.get(identity)).filter(|_| !entry.has_bridge());
            let in_rollout = departure.is_some_and(|it| it.is_recent(at));
            if !in_rollout && entry.ended.is_some_and(|ended| ended + TO_RESTART <= at) {
                entry.ended = None;
                entry.served = None;
                any = true;
            }
            any |= entry.settle(departure, at);
        }
        self.retain_records(at);
        self.forget(at);
        any
    }

    /// Whom to ask now. Each is to be followed by [`PeerTable::fetched`].
    pub fn due(&mut self, at: Instant) -> Vec<Peer> {
        let mut due = Vec::new();
        let identities: Vec<_> = self.entries.keys().cloned().collect();
        for identity in identities {
            let address = self.address(&identity);
            let published = self.published.get(&identity).map(|it| it.learnt);
            let stored = self.stored.get(&identity);
            let known = published.or_else(|| stored.and_then(|it| it.supersedes));
            if let Some(entry) = self.entries.get_mut(&identity)
                && entry.lease.is_some()
                && address.is_some()
                && entry.fetch.begin(at)
            {
                entry.fetch_supersedes = known;
                entry.fetch_at = address.map(|it| it.address);
                entry.fetch_asks_server =
                    address.is_some_and(|it| it.origin == AddressOrigin::Server);
                due.extend(self.peer(&identity));
            }
        }
        due
    }

    /// What came of asking a peer. `jitter` spreads the next time: 0 to 1.
    pub fn fetched(
        &mut self,
        identity: &Identity,
        outcome: Result<ServedApis, String>,
        at: Instant,
        wall: SystemTime,
        jitter: f64,
    ) {
        let direct = self.direct_address(identity);
        let has_left = self.departures.contains_key(identity);
        let mut has_answered = false;
        let Some(entry) = self.entries.get_mut(identity) else {
            return;
        };
        match outcome {
            // Its Lease has ended meanwhile: back again, it has to tell anew.
            _ if entry.lease.is_none() => entry.fetch.failed(at, jitter),
            Ok(served) => {
                entry.fetch.succeeded(at, served.news(), jitter);
                entry.succeeded = Some(wall);
                entry.superseded = entry.fetch_supersedes;
                entry.bridge_at = entry.fetch_at.filter(|_| served.by_bridge);
                entry.standing.polled(at);
                entry.served = Some(Arc::new(served));
                entry.standing.reachable();
                if has_left && !entry.has_bridge() {
                    // The address may have changed since the poll began.
                    let listed = entry.address.map(|it| it.address);
                    let answers = if entry.fetch_asks_server {
                        (entry.fetch_at == direct).then_some(Direct::Answers)
                    } else {
                        (entry.is_in_file() && entry.fetch_at == listed)
                            .then_some(Direct::BridgeAnswers)
                    };
                    has_answered = answers.is_some();
                    entry.direct = answers.unwrap_or(entry.direct);
                }
                // Back again. One that tells what it serves and fails with
                // requests is not better for it.
                if entry.problem.take().is_some() {
                    entry.standing.forgive();
                }
            }
            Err(problem) => {
                entry.fetch.failed(at, jitter);
                // Another process may have the address when it answers again.
                entry.bridge_at = None;
                entry.problem = Some(problem);
                if entry.direct == Direct::BridgeAnswers {
                    entry.direct = Direct::Untried;
                }
                // Its bridge has crashed, or the registry has lost its address, or the file
                // still has the address of a bridge that has left: both places are tried in
                // turn.
                let has_two = (!entry.published && !has_left) || (entry.is_in_file() && has_left);
                if has_two && direct.is_some() {
                    entry.asks_server = !entry.asks_server;
                }
            }
        }
        if has_answered {
            self.restart_grace(identity, at);
        }
    }

    /// A peer has answered a poll, although not with what it serves: its server may be away,
    /// but its bridge has not left.
    pub fn answered(&mut self, identity: &Identity, at: Instant) {
        let has_left = self.departures.contains_key(identity);
        if let Some(entry) = self.entries.get_mut(identity)
            && has_left
            && entry.is_in_file()
            && !entry.fetch_asks_server
        {
            entry.direct = Direct::BridgeAnswers;
            self.restart_grace(identity, at);
        }
    }

    /// A request could not be brought to this peer: find out whether it is
    /// there, and what it is now.
    pub fn doubt(&mut self, identity: &Identity, at: Instant) {
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.fetch.doubt(at);
        }
    }

    /// What routing needs to know.
    pub fn snapshot(&self) -> Peers {
        Peers {
            listed: self.listed,
            peers: (self.entries.keys())
                .filter_map(|identity| self.peer(identity).map(Arc::new))
                .collect(),
        }
    }

    /// Entries without Lease and address are dropped, unless their bridge has just
    /// announced that it leaves.
    fn forget(&mut self, at: Instant) {
        let departures = &self.departures;
        self.entries.retain(|identity, entry| {
            let departure = departures.get(identity);
            entry.settle(departure, at);
            entry.lease.is_some() || entry.published || departure.is_some_and(|it| it.is_recent(at))
        });
    }

    fn retain_records(&mut self, at: Instant) {
        if !self.listed {
            return;
        }
        let entries = &self.entries;
        let has_lease = |identity: &Identity| {
            let entry = entries.get(identity);
            entry.is_some_and(|entry| entry.lease.is_some())
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

    /// The record that counts where the server has not been asked: the published one,
    /// unless an answer is stored that is later than that.
    fn record(&self, identity: &Identity) -> Option<(&Arc<ServedRecord>, ApiSource)> {
        match (self.published.get(identity), self.stored.get(identity)) {
            (Some(published), Some(stored))
                if stored.supersedes == Some(published.learnt)
                    && stored.learnt != published.learnt =>
            {
                Some((stored, ApiSource::Stored))
            }
            (Some(published), _) => Some((published, ApiSource::Published)),
            (None, Some(stored)) => Some((stored, ApiSource::Stored)),
            (None, None) => None,
        }
    }

    /// What a server serves, as last known: by its own answer, unless another record has
    /// been published since that was asked for.
    fn served(&self, identity: &Identity, entry: &Entry) -> Option<(Arc<ServedApis>, ApiSource)> {
        let published = self.published.get(identity).map(|record| record.learnt);
        let stored = self.stored.get(identity);
        let latest = published.or_else(|| stored.and_then(|record| record.supersedes));
        match (&entry.served, self.record(identity)) {
            (Some(asked), _) if latest.is_none() || latest == entry.superseded => {
                Some((asked.clone(), ApiSource::Polled))
            }
            (_, Some((record, source))) => Some((record.served.clone(), source)),
            (asked, None) => asked.clone().map(|asked| (asked, ApiSource::Polled)),
        }
    }

    /// Where a server is reached: at its published address; after its bridge has left,
    /// at the server itself; after a crash, at either in turn.
    fn address(&self, identity: &Identity) -> Option<AdvertisedAddress> {
        let entry = self.entries.get(identity)?;
        let direct = self
            .direct_address(identity)
            .map(AdvertisedAddress::by_server);
        let has_left = self.departures.contains_key(identity);
        if self.addresses_in_file {
            let listed = entry.address.filter(|_| entry.published);
            let direct = direct.filter(|_| has_left && entry.asks_server);
            direct.or(listed)
        } else if entry.published {
            entry.address
        } else if has_left {
            direct
        } else if entry.asks_server {
            direct.or(entry.address)
        } else {
            entry.address.or(direct)
        }
    }

    /// The address of the server itself. Where an administrator keeps the addresses, a
    /// writer of records cannot name others.
    fn direct_address(&self, identity: &Identity) -> Option<SocketAddr> {
        if self.addresses_in_file {
            let entry = self.entries.get(identity)?;
            let listed = entry.address.filter(|_| entry.published)?;
            return match listed.origin {
                AddressOrigin::File { server } => server,
                AddressOrigin::Bridge | AddressOrigin::Server => None,
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
        let without_bridge = entry.direct == Direct::GivenUp;
        let known = known.filter(|_| !without_bridge);
        let (alive_until, awaited_until) = match (&entry.lease, entry.ended) {
            (Some(life), _) => {
                let patience = match address {
                    None if without_bridge => Duration::ZERO,
                    Some(_) if without_bridge => TO_APPEAR,
                    Some(_) => TO_TELL,
                    None => TO_APPEAR,
                };
                let alive_until = life.changed + ALIVE;
                let awaited_until = match self.registry {
                    RegistryRead::NotAwaited => life.first + patience,
                    RegistryRead::Pending => alive_until,
                    RegistryRead::At(read) => life.first.max(read) + patience,
                };
                (alive_until, awaited_until)
            }
            // Known, and for the moment not there.
            (None, Some(ended)) if known.is_some() => (ended, ended),
            (None, _) => return None,
        };
        let departure = self.departures.get(identity);
        let answers = entry.has_bridge() || entry.direct == Direct::BridgeAnswers;
        let departure = departure.filter(|_| !answers);
        let bridge_left = departure.is_some();
        let departure_problem = departure.filter(|_| entry.direct != Direct::Answers);
        // A kube-apiserver may have taken over the address of a bridge that was killed.
        let is_bridge = advertised.is_some_and(|it| {
            it.origin != AddressOrigin::Server && entry.bridge_at == Some(it.address)
        });
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
                source: known.as_ref().map(|(_, source)| *source),
                bridge_left,
                is_bridge,
                // They are those of the bridge that has written the record: not of the
                // server behind it, and not of an older release that came after it.
                serving_keys: match published {
                    Some(record)
                        if is_published_by_bridge
                            && record.left.is_none()
                            && record.bridge == address =>
                    {
                        record.serving_keys.clone()
                    }
                    _ => Vec::new(),
                },
            },
            served: known.map(|(served, _)| served),
            standing: entry.standing.clone(),
            succeeded: entry.succeeded,
            problem: match (entry.refused, departure_problem, address) {
                (Some(refused), ..) => Some(format!(
                    "the address that it has published, {refused}, is refused: it is in none \
                     of the --peer-cidrs"
                )),
                (None, Some(departure), _) => Some(departure.problem().to_owned()),
                // `reachability` says why, by the status of the registry.
                (None, None, None) => None,
                (None, None, Some(_)) => entry.problem.clone(),
            },
        })
    }
}

impl Entry {
    /// Whether the registry has the address of the server's bridge.
    fn has_bridge(&self) -> bool {
        self.published && (self.address).is_some_and(|it| it.origin == AddressOrigin::Bridge)
    }

    /// Whether an administrator has written its address into a file.
    fn is_in_file(&self) -> bool {
        let origin = self.address.map(|it| it.origin);
        self.published && matches!(origin, Some(AddressOrigin::File { .. }))
    }

    /// Counts a server whose bridge left long ago as one that never had a bridge.
    /// Whether that is news.
    fn settle(&mut self, departure: Option<&Departure>, at: Instant) -> bool {
        let has_left = departure.is_some_and(|it| !it.is_recent(at)) && !self.has_bridge();
        let is_news = has_left && self.direct == Direct::Untried;
        if is_news {
            self.direct = Direct::GivenUp;
        }
        is_news
    }

    /// Its Lease has ended: what it served is served by it no more, unless its
    /// bridge waits for it to come back, or has announced that it leaves.
    fn end(&mut self, at: Instant) {
        if self.lease.take().is_some() {
            self.ended = Some(at);
        }
        if !self.published {
            self.served = None;
            self.address = None;
        }
    }
}

mod departures;
#[cfg(test)]
mod known_apis;
#[cfg(test)]
mod tests;
