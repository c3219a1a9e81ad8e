//! The rule of placement, over a simulated cluster: no sequence of starts, stops,
//! crashes, partitions and restarts makes an API "not found" that a server with a
//! living Lease was last known to serve. After a bridge has announced that it leaves, that
//! holds for [`ROLLOUT_GRACE`], and not for longer, whatever the clocks of the hosts say. The
//! same where an administrator keeps the addresses in a file, and removes one.

use std::collections::BTreeSet;

use http::Method;
use proptest::prelude::*;
use skewbridge_k8s_api::request_info::{DecodedPath, RequestInfo};

use super::*;
use crate::peer::PeerLookup;
use crate::served_record::tests::record;

const NAMES: [&str; 2] = ["apiserver-a", "apiserver-b"];
const GROUPS: [&str; 3] = ["one", "two", "three"];
const LEASE_SECONDS: u64 = 3600;

#[derive(Debug, Clone)]
enum Step {
    /// Whether it publishes its own address, as a server since 1.36 does. It listens on
    /// loopback.
    StartServer(usize, BTreeSet<usize>, bool),
    CrashServer(usize),
    /// As a server since 1.35 does: it deletes its Lease.
    EndServer(usize),
    StartBridge(usize),
    CrashBridge(usize),
    /// It announces that it leaves.
    StopBridge(usize),
    /// Between the server's host and the bridge under test.
    Partition(usize),
    Heal(usize),
    LoseRegistry,
    FindRegistry,
    /// The record of a server goes, as with a Lease that is deleted and made again.
    LoseRecord(usize),
    /// The clock of a host is this many seconds late. The last host is that of the bridge
    /// under test.
    SetClock(usize, u64),
    /// The bridge under test: only what it stored and what is in the registry stays.
    Restart,
    /// The same after its host was booted.
    Reboot,
    /// The same without `--state-dir`.
    RestartWithoutState,
    /// Where addresses are in a file.
    AddToFile(usize),
    RemoveFromFile(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let server = 0..NAMES.len();
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
        1 => (0..=NAMES.len(), prop::sample::select(vec![0, 90, 1000, 5000]))
            .prop_map(|(host, late)| Step::SetClock(host, late)),
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
#[allow(clippy::struct_excessive_bools)] // each can be so by itself
struct Server {
    runs: bool,
    serves: BTreeSet<usize>,
    /// Its number, and when it was renewed.
    lease: Option<(u64, u64)>,
    publishes: bool,
    bridge: bool,
    /// When it announced that it leaves.
    announced: Option<u64>,
    /// No record that takes the announcement back has been written since.
    announcement_stands: bool,
    /// The same as far as the bridge under test can know.
    may_have_left: Option<u64>,
    /// Since when the bridge under test knows that the bridge has left, or an earlier process
    /// that has stored it.
    is_told_since: Option<u64>,
    /// Whether this process knows it.
    is_told: bool,
    /// Whether the file of addresses has it.
    in_file: bool,
    partitioned: bool,
    /// What the bridge under test last learnt of it, while its Lease lives.
    known: BTreeSet<usize>,
    known_at: u64,
    /// When its record was written.
    written_at: u64,
}

/// Where addresses are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Bridges and servers publish and withdraw them.
    Published,
    /// In a file.
    InFile,
}

struct World {
    kept: Kept,
    boots: u64,
    start: (Instant, SystemTime),
    seconds: u64,
    writes: u64,
    servers: [Server; 2],
    registry: Records,
    registry_is_lost: bool,
    /// By how many seconds the clock of each host is late.
    late: [u64; 3],
    table: PeerTable,
}

impl World {
    fn new(kept: Kept) -> Self {
        let mut world = Self {
            kept,
            boots: 0,
            // Whole milliseconds, as records have them.
            start: (
                Instant::now(),
                SystemTime::UNIX_EPOCH + Duration::from_hours(500_000),
            ),
            seconds: 0,
            writes: 0,
            servers: Default::default(),
            registry: Records::new(),
            registry_is_lost: false,
            late: [0; 3],
            table: PeerTable::new(Identity::named("apiserver-me").unwrap()),
        };
        for server in &mut world.servers {
            server.in_file = true;
        }
        world.restart();
        world
    }

    fn at(&self) -> Instant {
        self.start.0 + Duration::from_secs(self.seconds)
    }

    /// The clock of a host.
    fn wall(&self, host: usize) -> SystemTime {
        self.start.1 + Duration::from_secs(self.seconds) - Duration::from_secs(self.late[host])
    }

    /// A new process of the bridge under test, which knows nothing yet.
    fn restart(&mut self) {
        let table = PeerTable::new(Identity::named("apiserver-me").unwrap());
        self.table = match self.kept {
            Kept::Published => table,
            Kept::InFile => table.with_addresses_in_file(),
        };
        self.table.set_host_clock(Some(HostClock {
            at: self.at(),
            time: crate::HostTime {
                boot: self.boots.to_string(),
                millis: i64::try_from(self.seconds * 1000).unwrap(),
            },
        }));
        for server in &mut self.servers {
            server.is_told = false;
        }
    }

    fn restart_with_state(&mut self) {
        let stored = self.table.stored_records().clone();
        self.restart();
        for (server, name) in self.servers.iter_mut().zip(NAMES) {
            if !stored.contains_key(&Identity::named(name).unwrap()) {
                server.is_told_since = None;
            }
        }
        for record in stored.into_values() {
            // As a file.
            let bytes = record.encode().unwrap();
            let record = ServedRecord::decode(&bytes).unwrap();
            self.table.store_record(Arc::new(record));
        }
    }

    fn forget_since_when_bridges_have_left(&mut self) {
        for server in &mut self.servers {
            server.is_told_since = None;
        }
    }

    fn take(&mut self, step: &Step) {
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
                let is_missing = self.kept == Kept::InFile && !self.servers[*at].in_file;
                self.servers[*at].bridge = true;
                self.servers[*at].announced = None;
                if !is_missing {
                    self.servers[*at].is_told_since = None;
                }
            }
            Step::CrashBridge(at) => self.servers[*at].bridge = false,
            Step::StopBridge(at) => {
                let server = &mut self.servers[*at];
                // On a Lease it needs its server for the announcement.
                let can_announce = self.kept == Kept::Published || server.runs;
                if std::mem::take(&mut server.bridge) && can_announce {
                    server.announced = Some(self.seconds);
                    server.announcement_stands = true;
                    server.may_have_left.get_or_insert(self.seconds);
                }
            }
            Step::LoseRecord(at) => {
                self.registry.remove(&Identity::named(NAMES[*at]).unwrap());
            }
            Step::SetClock(host, late) => self.late[*host] = *late,
            Step::Partition(at) => self.servers[*at].partitioned = true,
            Step::Heal(at) => self.servers[*at].partitioned = false,
            // Records in annotations come with the Leases.
            Step::LoseRegistry => self.registry_is_lost = self.kept == Kept::Published,
            Step::FindRegistry => self.registry_is_lost = false,
            Step::AddToFile(at) => {
                let server = &mut self.servers[*at];
                server.in_file = true;
                if server.announced.is_none() {
                    server.is_told_since = None;
                }
            }
            Step::RemoveFromFile(at) => {
                self.servers[*at].in_file = false;
                if self.kept == Kept::InFile {
                    (self.servers[*at].may_have_left).get_or_insert(self.seconds);
                }
            }
            Step::Restart => self.restart_with_state(),
            Step::Reboot => {
                self.boots += 1;
                self.restart_with_state();
                self.forget_since_when_bridges_have_left();
            }
            Step::RestartWithoutState => {
                self.restart();
                self.forget_since_when_bridges_have_left();
                for server in &mut self.servers {
                    server.known.clear();
                    server.known_at = 0;
                }
            }
            Step::Wait(seconds) => {
                for _ in 0..seconds / 10 {
                    self.seconds += 10;
                    self.pass();
                }
            }
        }
        self.seconds += 1;
        self.pass();
    }

    /// Servers renew, bridges publish, the bridge under test learns.
    fn pass(&mut self) {
        for at in 0..NAMES.len() {
            self.publish(at);
        }
        let now = self.at();
        let mut leases = Vec::new();
        for (server, name) in self.servers.iter_mut().zip(NAMES) {
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
                    Server { in_file, .. } if self.kept == Kept::InFile => {
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
            let servers = self.servers.iter().zip(NAMES);
            let addresses = servers.filter_map(address).collect();
            self.table.set_addresses(&addresses, now);
            self.table.set_published_records(&self.registry, now);
            self.on_records();
            for (server, name) in self.servers.iter_mut().zip(NAMES) {
                let record = self.registry.get(&Identity::named(name).unwrap());
                let is_running = match self.kept {
                    Kept::Published => server.bridge,
                    // Addresses do not tell.
                    Kept::InFile => false,
                };
                let is_missing = self.kept == Kept::InFile && !server.in_file;
                if !is_missing
                    && (is_running || record.is_some_and(|it| it.bridge_left_at.is_none()))
                {
                    server.may_have_left = None;
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
        let identity = Identity::named(NAMES[at]).unwrap();
        let server = &mut self.servers[at];
        if server.runs {
            self.writes += 1;
            server.lease = Some((self.writes, seconds));
        }
        if server.bridge && server.runs {
            let fresh = record(NAMES[at], &groups(&server.serves), wall);
            server.announcement_stands = false;
            let known = self.registry.get(&identity);
            if known.is_none_or(|known| !known.has_same_content(&fresh)) {
                server.written_at = seconds;
                self.registry.insert(identity, Arc::new(fresh));
            }
        } else if server.bridge && self.kept == Kept::Published {
            // A bridge that starts takes back its announcement. On a Lease it needs its
            // server for that.
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
        for (server, name) in self.servers.iter_mut().zip(NAMES) {
            let Some(record) = self.registry.get(&Identity::named(name).unwrap()) else {
                continue;
            };
            let is_missing = self.kept == Kept::InFile && !server.in_file;
            server.is_told = is_missing || (record.bridge_left_at.is_some() && !server.bridge);
            if server.is_told {
                server.is_told_since.get_or_insert(self.seconds);
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
        let (now, wall) = (self.at(), self.wall(NAMES.len()));
        let at = NAMES.iter().position(|name| *name == identity.as_str());
        let server = &mut self.servers[at.unwrap()];
        let is_asked = self.kept == Kept::Published || server.in_file;
        let is_there = is_asked && server.bridge && !server.partitioned;
        let answers = is_there && server.runs;
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
            by_bridge: server.bridge,
        });
        self.table.record_poll(identity, answer, now, wall, 0.5);
        if is_there && self.kept == Kept::InFile {
            // If it has announced that it leaves, it may have done so after this answer.
            let stands = server.announcement_stands;
            server.may_have_left = stands.then_some(self.seconds);
            self.table.record_bridge_answer(identity, now);
        }
        if let Ok(fresh) = outcome {
            self.table.store_polled_record(fresh);
        }
    }

    /// APIs that are "not found" although a server with a living Lease is known to
    /// serve them, and its bridge has not announced that it leaves, or not for long.
    fn falsely_not_found(&self) -> Vec<String> {
        let peers = self.table.snapshot();
        let is_not_found = |api: &usize| {
            let path = format!("/apis/{}/v1/things", GROUPS[*api]);
            let path = DecodedPath::new(&path).unwrap();
            let request = RequestInfo::parse(&Method::GET, &path, None);
            let place = peers.lookup(&request, self.at());
            matches!(place, PeerLookup::NotServed | PeerLookup::NoPeers)
        };
        let servers = self.servers.iter().zip(NAMES);
        let bound = servers.filter(|(server, _)| {
            let is_in_rollout = |left: u64| self.seconds < left + ROLLOUT_GRACE.as_secs();
            server.lease.is_some() && server.may_have_left.is_none_or(is_in_rollout)
        });
        bound
            .flat_map(|(server, name)| {
                let apis = server.known.iter().filter(|api| is_not_found(api));
                apis.map(move |api| format!("{} of {name}", GROUPS[*api]))
            })
            .collect()
    }
}

impl World {
    /// Servers that still count long after the bridge under test has learnt that their
    /// bridges have left. None of them can be reached without a bridge.
    fn counted_without_end(&self) -> Vec<&str> {
        let peers = self.table.snapshot();
        let servers = self.servers.iter().zip(NAMES);
        let over = servers.filter(|(server, name)| {
            let since = server.is_told_since.filter(|_| server.is_told);
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
    check_kept(Kept::Published, steps)?;
    check_kept(Kept::InFile, steps)
}

fn check_kept(kept: Kept, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(kept);
    for (at, step) in steps.iter().enumerate() {
        world.take(step);
        let wrong = world.falsely_not_found();
        prop_assert!(
            wrong.is_empty(),
            "{kept:?}, after {:?}: {wrong:?}",
            &steps[..=at]
        );
        let wrong = world.counted_without_end();
        prop_assert!(
            wrong.is_empty(),
            "503, {kept:?}, after {:?}: {wrong:?}",
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

/// As it was seen with 1.34.4 and 1.36.4: the only server of an API is killed, then the
/// bridge restarts; with and without the bridge of that server.
#[test]
fn a_restart_beside_a_dead_peer_keeps_its_apis() {
    for bridge_dies in [false, true] {
        for registry_is_lost in [false, true] {
            let mut steps = vec![
                Step::StartServer(0, [0].into(), false),
                Step::StartBridge(0),
                Step::Wait(30),
                Step::CrashServer(0),
            ];
            if bridge_dies {
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

/// A partitioned server becomes another version; the clock of its host is late.
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
