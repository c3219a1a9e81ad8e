//! A property test over a simulated cluster: no sequence of starts, stops, crashes, partitions and
//! restarts makes an API "not found" that a server with a valid Lease was last known to serve.
//! After a bridge has announced its departure, that holds for exactly [`ROLLOUT_GRACE`],
//! regardless of the clocks of the hosts. The same holds with addresses in a file when an
//! administrator removes one.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use http::Method;
use proptest::prelude::*;
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use super::*;
use crate::peer::PeerLookup;
use crate::registry::AdvertisedAddress;
use crate::served_apis::ServedApis;
use crate::served_record::ServedRecord;
use crate::served_record::tests::record;

const SERVER_NAMES: [&str; 2] = ["apiserver-a", "apiserver-b"];
const GROUPS: [&str; 3] = ["one", "two", "three"];
const LEASE_SECONDS: u64 = 3600;

#[derive(Debug, Clone)]
enum Step {
    /// Server, served groups, and whether the server publishes its own address, as servers do
    /// since 1.36. It listens on loopback.
    StartServer(usize, BTreeSet<usize>, bool),
    CrashServer(usize),
    /// A clean shutdown: since 1.35 the server deletes its Lease.
    EndServer(usize),
    StartBridge(usize),
    CrashBridge(usize),
    /// A clean shutdown: the bridge announces its departure.
    StopBridge(usize),
    /// Interrupts the network between the server's host and the bridge under test.
    Partition(usize),
    Heal(usize),
    LoseRegistry,
    FindRegistry,
    /// The record of a server disappears, as with a Lease that is deleted and created again.
    LoseRecord(usize),
    /// The clock of a host is slow by this many seconds. The last host is that of the bridge
    /// under test.
    SetClock(usize, u64),
    /// Restarts the bridge under test: only its state directory and the registry are kept.
    Restart,
    /// The same with a reboot of its host.
    Reboot,
    /// The same without `--state-dir`.
    RestartWithoutState,
    /// Only with addresses in a file.
    AddToFile(usize),
    RemoveFromFile(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let server = 0..SERVER_NAMES.len();
    let apis = prop::collection::btree_set(0..GROUPS.len(), 0..=GROUPS.len());
    let step = prop_oneof![
        3 => (server.clone(), apis, any::<bool>())
            .prop_map(|(server, apis, publishes)| Step::StartServer(server, apis, publishes)),
        2 => server.clone().prop_map(Step::CrashServer),
        1 => server.clone().prop_map(Step::EndServer),
        4 => server.clone().prop_map(Step::StartBridge),
        2 => server.clone().prop_map(Step::CrashBridge),
        2 => server.clone().prop_map(Step::StopBridge),
        1 => server.clone().prop_map(Step::LoseRecord),
        1 => (0..=SERVER_NAMES.len(), prop::sample::select(vec![0, 90, 1000, 5000]))
            .prop_map(|(host, clock_lag)| Step::SetClock(host, clock_lag)),
        1 => server.clone().prop_map(Step::Partition),
        1 => server.clone().prop_map(Step::AddToFile),
        1 => server.clone().prop_map(Step::RemoveFromFile),
        1 => server.prop_map(Step::Heal),
        1 => Just(Step::LoseRegistry),
        1 => Just(Step::FindRegistry),
        3 => Just(Step::Restart),
        1 => Just(Step::Reboot),
        1 => Just(Step::RestartWithoutState),
        4 => prop::sample::select(vec![1, 30, 90, 400, 2000]).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..40)
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // independent of each other
struct Server {
    runs: bool,
    serves: BTreeSet<usize>,
    /// The number of the Lease, and when it was renewed.
    lease: Option<(u64, u64)>,
    publishes: bool,
    bridge: bool,
    /// When the bridge announced its departure.
    announced: Option<u64>,
    /// No record that withdraws the announcement has been written since.
    announcement_is_current: bool,
    /// The departure as far as the bridge under test can know it.
    possibly_departed_at: Option<u64>,
    /// Since when the bridge under test, or an earlier process that has stored it, knows the
    /// departure.
    departure_known_since: Option<u64>,
    /// Whether this process knows the departure.
    departure_known: bool,
    /// Whether the file of addresses contains the server.
    in_file: bool,
    partitioned: bool,
    /// The APIs that the bridge under test last read, while the Lease is valid.
    known: BTreeSet<usize>,
    known_at: u64,
    /// When the served record was written.
    written_at: u64,
}

/// Where addresses are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressStorage {
    /// Bridges and servers publish and withdraw them.
    Published,
    /// An administrator writes them to a file.
    InFile,
}

struct SimulatedCluster {
    storage: AddressStorage,
    boots: u64,
    start: (Instant, SystemTime),
    seconds: u64,
    writes: u64,
    servers: [Server; 2],
    registry: Records,
    registry_is_lost: bool,
    /// By how many seconds the clock of each host is slow.
    clock_lag: [u64; 3],
    table: PeerTable,
}

impl SimulatedCluster {
    fn new(storage: AddressStorage) -> Self {
        let mut cluster = Self {
            storage,
            boots: 0,
            // Whole milliseconds, like the times in records.
            start: (
                Instant::now(),
                SystemTime::UNIX_EPOCH + Duration::from_hours(500_000),
            ),
            seconds: 0,
            writes: 0,
            servers: Default::default(),
            registry: Records::new(),
            registry_is_lost: false,
            clock_lag: [0; 3],
            table: PeerTable::new(Identity::named("apiserver-me").unwrap()),
        };
        for server in &mut cluster.servers {
            server.in_file = true;
        }
        cluster.restart();
        cluster
    }

    fn at(&self) -> Instant {
        self.start.0 + Duration::from_secs(self.seconds)
    }

    /// The clock of a host.
    fn wall(&self, host: usize) -> SystemTime {
        self.start.1 + Duration::from_secs(self.seconds) - Duration::from_secs(self.clock_lag[host])
    }

    /// Starts a new process of the bridge under test without any state.
    fn restart(&mut self) {
        let table = PeerTable::new(Identity::named("apiserver-me").unwrap());
        self.table = match self.storage {
            AddressStorage::Published => table,
            AddressStorage::InFile => table.with_addresses_in_file(),
        };
        self.table.set_host_clock(Some(HostClock {
            at: self.at(),
            time: crate::HostTime {
                boot: self.boots.to_string(),
                millis: i64::try_from(self.seconds * 1000).unwrap(),
            },
        }));
        for server in &mut self.servers {
            server.departure_known = false;
        }
    }

    fn restart_with_state(&mut self) {
        let stored = self.table.stored_records().clone();
        self.restart();
        for (server, name) in self.servers.iter_mut().zip(SERVER_NAMES) {
            if !stored.contains_key(&Identity::named(name).unwrap()) {
                server.departure_known_since = None;
            }
        }
        for record in stored.into_values() {
            // Encoded and decoded as in a file.
            let bytes = record.encode().unwrap();
            let record = ServedRecord::decode(&bytes).unwrap();
            self.table.store_record(Arc::new(record));
        }
    }

    fn forget_departure_times(&mut self) {
        for server in &mut self.servers {
            server.departure_known_since = None;
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::StartServer(at, serves, publishes) => {
                self.servers[*at].runs = true;
                self.servers[*at].publishes = *publishes;
                self.servers[*at].serves.clone_from(serves);
            }
            Step::CrashServer(at) => self.servers[*at].runs = false,
            Step::EndServer(at) => {
                self.servers[*at].runs = false;
                self.servers[*at].lease = None;
            }
            Step::StartBridge(at) => {
                let is_missing =
                    self.storage == AddressStorage::InFile && !self.servers[*at].in_file;
                self.servers[*at].bridge = true;
                self.servers[*at].announced = None;
                if !is_missing {
                    self.servers[*at].departure_known_since = None;
                }
            }
            Step::CrashBridge(at) => self.servers[*at].bridge = false,
            Step::StopBridge(at) => {
                let server = &mut self.servers[*at];
                // An announcement on a Lease needs the server.
                let can_announce = self.storage == AddressStorage::Published || server.runs;
                if std::mem::take(&mut server.bridge) && can_announce {
                    server.announced = Some(self.seconds);
                    server.announcement_is_current = true;
                    server.possibly_departed_at.get_or_insert(self.seconds);
                }
            }
            Step::LoseRecord(at) => {
                self.registry
                    .remove(&Identity::named(SERVER_NAMES[*at]).unwrap());
            }
            Step::SetClock(host, clock_lag) => self.clock_lag[*host] = *clock_lag,
            Step::Partition(at) => self.servers[*at].partitioned = true,
            Step::Heal(at) => self.servers[*at].partitioned = false,
            // Records in annotations are read with the Leases.
            Step::LoseRegistry => self.registry_is_lost = self.storage == AddressStorage::Published,
            Step::FindRegistry => self.registry_is_lost = false,
            Step::AddToFile(at) => {
                let server = &mut self.servers[*at];
                server.in_file = true;
                if server.announced.is_none() {
                    server.departure_known_since = None;
                }
            }
            Step::RemoveFromFile(at) => {
                self.servers[*at].in_file = false;
                if self.storage == AddressStorage::InFile {
                    (self.servers[*at].possibly_departed_at).get_or_insert(self.seconds);
                }
            }
            Step::Restart => self.restart_with_state(),
            Step::Reboot => {
                self.boots += 1;
                self.restart_with_state();
                self.forget_departure_times();
            }
            Step::RestartWithoutState => {
                self.restart();
                self.forget_departure_times();
                for server in &mut self.servers {
                    server.known.clear();
                    server.known_at = 0;
                }
            }
            Step::Wait(seconds) => {
                for _ in 0..seconds / 10 {
                    self.seconds += 10;
                    self.advance();
                }
            }
        }
        self.seconds += 1;
        self.advance();
    }

    /// Servers renew their Leases, bridges publish, the bridge under test updates its table.
    fn advance(&mut self) {
        for at in 0..SERVER_NAMES.len() {
            self.publish(at);
        }
        let now = self.at();
        let mut leases = Vec::new();
        for (server, name) in self.servers.iter_mut().zip(SERVER_NAMES) {
            let expired = |(_, renewed): (u64, u64)| renewed + LEASE_SECONDS <= self.seconds;
            if server.lease.is_some_and(expired) {
                server.lease = None;
            }
            match server.lease {
                None => server.known.clear(),
                Some((number, _)) => leases.push(LeaseSnapshot {
                    identity: Identity::named(name).unwrap(),
                    host: None,
                    holder: "h".to_owned(),
                    resource_version: number.to_string(),
                }),
            }
        }
        self.table.set_leases(leases, now);
        if !self.registry_is_lost {
            let address = |(server, name): (&Server, &str)| {
                let port = |port| SocketAddr::from(([127, 0, 0, 1], port));
                let advertised = match server {
                    Server { in_file, .. } if self.storage == AddressStorage::InFile => {
                        return in_file.then(|| {
                            let advertised = AdvertisedAddress::by_file(port(1), None);
                            (Identity::named(name).unwrap(), advertised)
                        });
                    }
                    Server { bridge: true, .. } => AdvertisedAddress::by_bridge(port(1)),
                    Server {
                        runs: true,
                        publishes: true,
                        ..
                    } => AdvertisedAddress::by_server(port(2)),
                    _ => return None,
                };
                Some((Identity::named(name).unwrap(), advertised))
            };
            let servers = self.servers.iter().zip(SERVER_NAMES);
            let addresses = servers.filter_map(address).collect();
            self.table.set_addresses(&addresses, now);
            self.table.set_published_records(&self.registry, now);
            self.on_records();
            for (server, name) in self.servers.iter_mut().zip(SERVER_NAMES) {
                let record = self.registry.get(&Identity::named(name).unwrap());
                let is_running = match self.storage {
                    AddressStorage::Published => server.bridge,
                    // Addresses in a file do not show whether a bridge runs.
                    AddressStorage::InFile => false,
                };
                let is_missing = self.storage == AddressStorage::InFile && !server.in_file;
                if !is_missing
                    && (is_running || record.is_some_and(|it| it.bridge_left_at.is_none()))
                {
                    server.possibly_departed_at = None;
                }
            }
        }
        self.table.expire(now);
        for peer in self.table.take_due(now) {
            self.fetch(&peer.identity);
        }
    }

    fn publish(&mut self, at: usize) {
        let (seconds, wall) = (self.seconds, self.wall(at));
        let identity = Identity::named(SERVER_NAMES[at]).unwrap();
        let server = &mut self.servers[at];
        if server.runs {
            self.writes += 1;
            server.lease = Some((self.writes, seconds));
        }
        if server.bridge && server.runs {
            let fresh = record(SERVER_NAMES[at], &groups(&server.serves), wall);
            server.announcement_is_current = false;
            let known = self.registry.get(&identity);
            if known.is_none_or(|known| !known.has_same_content(&fresh)) {
                server.written_at = seconds;
                self.registry.insert(identity, Arc::new(fresh));
            }
        } else if server.bridge && self.storage == AddressStorage::Published {
            // A starting bridge withdraws its announcement. On a Lease that needs the server.
            if let Some(known) = self.registry.get_mut(&identity) {
                Arc::make_mut(known).bridge_left_at = None;
            }
        } else if server.announced.is_some()
            && let Some(known) = self.registry.get_mut(&identity)
            && known.bridge_left_at.is_none()
        {
            Arc::make_mut(known).bridge_left_at = Some(wall);
        }
    }

    fn on_records(&mut self) {
        for (server, name) in self.servers.iter_mut().zip(SERVER_NAMES) {
            let Some(record) = self.registry.get(&Identity::named(name).unwrap()) else {
                continue;
            };
            let is_missing = self.storage == AddressStorage::InFile && !server.in_file;
            server.departure_known =
                is_missing || (record.bridge_left_at.is_some() && !server.bridge);
            if server.departure_known {
                server.departure_known_since.get_or_insert(self.seconds);
            }
            if server.lease.is_some() && server.written_at > server.known_at {
                server.known_at = server.written_at;
                let serves = |at: &usize| {
                    let document = &record.served.documents[1];
                    document.group(GROUPS[*at]).is_some()
                };
                server.known = (0..GROUPS.len()).filter(serves).collect();
            }
        }
    }

    fn fetch(&mut self, identity: &Identity) {
        let (now, wall) = (self.at(), self.wall(SERVER_NAMES.len()));
        let at = SERVER_NAMES
            .iter()
            .position(|name| *name == identity.as_str());
        let server = &mut self.servers[at.unwrap()];
        let is_polled = self.storage == AddressStorage::Published || server.in_file;
        let bridge_is_reachable = is_polled && server.bridge && !server.partitioned;
        let answers = bridge_is_reachable && server.runs;
        let outcome = if answers {
            let fresh = record(identity.as_str(), &groups(&server.serves), wall);
            server.known.clone_from(&server.serves);
            server.known_at = self.seconds;
            Ok(fresh)
        } else {
            Err("no answer".to_owned())
        };
        let answer = outcome.clone().map(|fresh| ServedApis {
            index: fresh.served.index.clone(),
            documents: fresh.served.documents.clone(),
            etags: [None, None],
            version: None,
            version_suffix: Arc::default(),
            by_bridge: server.bridge,
        });
        self.table.record_poll(identity, answer, now, wall, 0.5);
        if bridge_is_reachable && self.storage == AddressStorage::InFile {
            // If the bridge has announced its departure, that may have been after this answer.
            let stands = server.announcement_is_current;
            server.possibly_departed_at = stands.then_some(self.seconds);
            self.table.record_bridge_answer(identity, now);
        }
        if let Ok(fresh) = outcome {
            self.table.store_polled_record(fresh);
        }
    }

    /// APIs that are "not found" although a server with a valid Lease is known to serve them, and
    /// its bridge has not departed or departed recently.
    fn wrongly_not_found(&self) -> Vec<String> {
        let peers = self.table.snapshot();
        let is_not_found = |api: &usize| {
            let path = format!("/apis/{}/v1/things", GROUPS[*api]);
            let path = DecodedPath::new(&path).unwrap();
            let request = RequestInfo::parse(&Method::GET, &path, None);
            let place = peers.lookup(&request, self.at());
            matches!(place, PeerLookup::NotServed | PeerLookup::NoPeers)
        };
        let servers = self.servers.iter().zip(SERVER_NAMES);
        let bound = servers.filter(|(server, _)| {
            let is_in_rollout = |left: u64| self.seconds < left + ROLLOUT_GRACE.as_secs();
            server.lease.is_some() && server.possibly_departed_at.is_none_or(is_in_rollout)
        });
        bound
            .flat_map(|(server, name)| {
                let apis = server.known.iter().filter(|api| is_not_found(api));
                apis.map(move |api| format!("{} of {name}", GROUPS[*api]))
            })
            .collect()
    }
}

impl SimulatedCluster {
    /// Servers that are still in the table long after the bridge under test has observed that their
    /// bridges have departed. None of them can be reached without a bridge.
    fn kept_after_grace(&self) -> Vec<&str> {
        let peers = self.table.snapshot();
        let servers = self.servers.iter().zip(SERVER_NAMES);
        let over = servers.filter(|(server, name)| {
            let since = server
                .departure_known_since
                .filter(|_| server.departure_known);
            let is_over = since.is_some_and(|it| it + ROLLOUT_GRACE.as_secs() < self.seconds);
            let peer = peers.get(&Identity::named(name).unwrap());
            is_over && peer.is_some_and(|peer| peer.served.is_some())
        });
        over.map(|(_, name)| name).collect()
    }
}

fn groups(apis: &BTreeSet<usize>) -> Vec<&'static str> {
    apis.iter().map(|at| GROUPS[*at]).collect()
}

fn check(steps: &[Step]) -> Result<(), TestCaseError> {
    check_with_storage(AddressStorage::Published, steps)?;
    check_with_storage(AddressStorage::InFile, steps)
}

fn check_with_storage(storage: AddressStorage, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut cluster = SimulatedCluster::new(storage);
    for (at, step) in steps.iter().enumerate() {
        cluster.apply(step);
        let wrong = cluster.wrongly_not_found();
        prop_assert!(
            wrong.is_empty(),
            "{storage:?}, after {:?}: {wrong:?}",
            &steps[..=at]
        );
        let wrong = cluster.kept_after_grace();
        prop_assert!(
            wrong.is_empty(),
            "503, {storage:?}, after {:?}: {wrong:?}",
            &steps[..=at]
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_makes_a_known_api_not_found(steps in steps()) {
        check(&steps)?;
    }
}

/// Observed with 1.34.4 and 1.36.4: the only server of an API is killed, then the bridge restarts;
/// with and without the bridge of that server.
#[test]
fn a_restart_beside_a_dead_peer_keeps_its_apis() {
    for bridge_crashes in [false, true] {
        for registry_is_lost in [false, true] {
            let mut steps = vec![
                Step::StartServer(0, [0].into(), false),
                Step::StartBridge(0),
                Step::Wait(30),
                Step::CrashServer(0),
            ];
            if bridge_crashes {
                steps.push(Step::CrashBridge(0));
            }
            if registry_is_lost {
                steps.push(Step::LoseRegistry);
            }
            steps.extend([Step::Restart, Step::Wait(2000), Step::Wait(400)]);
            check(&steps).unwrap();
        }
    }
}

#[test]
fn apis_of_a_peer_that_was_never_reachable_are_known_from_the_registry() {
    let steps = [
        Step::Partition(0),
        Step::StartServer(0, [0, 2].into(), false),
        Step::StartBridge(0),
        Step::Wait(2000),
        Step::Restart,
        Step::Wait(2000),
    ];
    check(&steps).unwrap();
}

/// A partitioned server is replaced by another version; the clock of its host is slow.
#[test]
fn a_later_record_counts_regardless_of_clocks() {
    let steps = [
        Step::StartServer(0, [1].into(), false),
        Step::StartBridge(0),
        Step::Wait(30),
        Step::Partition(0),
        Step::SetClock(0, 1000),
        Step::StartServer(0, [0].into(), false),
        Step::Wait(30),
        Step::CrashServer(0),
        Step::Restart,
        Step::Wait(400),
    ];
    check(&steps).unwrap();
}
