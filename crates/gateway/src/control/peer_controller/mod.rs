//! Learns what the cluster is: which servers there are, where, and what each of
//! them serves; and tells them about the one behind this bridge.
//!
//! One task owns all of that knowledge. Others ask and listen for it, and tell
//! it by [`Event`]; what requests need to know is published as a whole.

mod discovery_fetch;
mod host_boot;
mod informer;
mod own_lease;
mod records;
mod state_dir;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use skewbridge_peer_directory::peer_table::ROLLOUT_GRACE;
use skewbridge_peer_directory::refresh_schedule::{ChangeDetection, RefreshSchedule};
use skewbridge_peer_directory::registry::{
    Activity, Addresses, AdvertisedAddress, Registry, StatusReporter,
};
use skewbridge_peer_directory::served_record::MAX_RECORDS;
use skewbridge_peer_directory::watch::WatchEvent;
use skewbridge_peer_directory::{
    ApiService, CustomResourceDefinition, Identity, IdentityLease, LeaseSnapshot, PeerTable,
    Records, ServedApis, ServedRecord, SharedGroupVersionTracker, SharedGroupVersions, lease,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use self::discovery_fetch::{ask_version, discover};
use self::host_boot::HostBoot;
use self::informer::{Change, Kind};
use self::own_lease::{Annotations, OwnLease};
use self::records::RecordKeeper;
pub(crate) use self::records::Stored;
pub(crate) use self::state_dir::StateDir;
use crate::cluster_state::{Cluster, Requests, ResyncHint};
use crate::control::internal_client::{InternalClient, InternalTarget};
use crate::control::openapi_merger;
use crate::discovery_view::View;
use crate::health::UpstreamHealth;
use crate::metrics::peers::SyncError;
use crate::peer_config::{Membership, PeerRegistry};
use crate::state::GatewayState;

/// How often it is looked whether something is due.
const TICK: Duration = Duration::from_millis(200);

/// How long after an event a server may take to show what was made or deleted, and
/// how often it is asked meanwhile.
const SETTLING: Duration = Duration::from_secs(5);
const SETTLING_LOOK: Duration = Duration::from_secs(1);

/// Ticks between two times of closing unused connections: 5 s.
const TIDY_TICKS: u32 = 25;

/// How long a server may take to tell what it serves.
const FETCH_PATIENCE: Duration = Duration::from_secs(10);

/// The same for a peer that has answered before: it is asked for news only, and a request
/// may be waiting to be sent elsewhere.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the registry and the Lease may take to be cleared when we leave.
const FAREWELL: Duration = Duration::from_secs(4);

/// How often a bridge that drains looks whether its server has ended.
const LEFT_LEASE_INTERVAL: Duration = Duration::from_millis(500);

/// Events that wait; whoever tells more, waits.
const EVENTS: usize = 256;

const LEASES: Kind = Kind {
    path: lease::LEASES_PATH,
    selector: "&labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver",
    page: 500,
    what: "identity Leases",
};
const API_SERVICES: Kind = Kind {
    path: "/apis/apiregistration.k8s.io/v1/apiservices",
    selector: "",
    page: 500,
    what: "APIServices",
};
/// Each may be as large as an object can be: a small page bounds the memory.
const CUSTOM_RESOURCES: Kind = Kind {
    path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    selector: "",
    page: 20,
    what: "CustomResourceDefinitions",
};

/// What has been learnt.
enum Event {
    Lease(Change<IdentityLease>),
    ApiService(Change<ApiService>),
    CustomResource(Change<CustomResourceDefinition>),
    Peer(Identity, PeerAnswer),
    Local(Result<ServedApis, String>),
}

/// What came of polling a peer.
struct PeerAnswer {
    outcome: Result<ServedApis, String>,
    /// Whether it has answered at all.
    has_answered: bool,
}

impl From<Change<IdentityLease>> for Event {
    fn from(change: Change<IdentityLease>) -> Self {
        Self::Lease(change)
    }
}

impl From<Change<ApiService>> for Event {
    fn from(change: Change<ApiService>) -> Self {
        Self::ApiService(change)
    }
}

impl From<Change<CustomResourceDefinition>> for Event {
    fn from(change: Change<CustomResourceDefinition>) -> Self {
        Self::CustomResource(change)
    }
}

/// Learns until the bridge leaves; then takes back what it has told others.
pub(crate) async fn run(
    bridge: Arc<GatewayState>,
    membership: Membership,
    health: Arc<ArcSwap<UpstreamHealth>>,
    requests: Requests,
    stored: Option<Stored>,
    parted: oneshot::Sender<()>,
) {
    tracing::info!(identity = %membership.identity, address = %membership.address, "this bridge is a peer among kube-apiservers");
    let own = Arc::new(InternalClient::new(bridge.clone()));
    let (tell, mut events) = mpsc::channel(EVENTS);
    let mut tasks = JoinSet::new();
    spawn_informers(&mut tasks, &own, &tell);
    tasks.spawn(openapi_merger::run(own.clone(), requests.orders));
    let (mut hints, mut looks) = (requests.hints, requests.looks);

    let (publish, published) =
        watch::channel(Some((membership.identity.clone(), membership.address)));
    let (found, mut addresses) = watch::channel(Addresses::new());
    let registry_status = membership.registry_status();
    let registry_reporter = membership.registry_reporter();
    let stored = stored.map(|stored| stored.permitted(&membership.networks));
    let (registry, annotations) = kept_in(membership.whereabouts);
    let with_records = registry.clone();
    let with_records = with_records.filter(|_| annotations == Annotations::Nothing);
    let registry = registry.map(|it| tokio::spawn(async move { it.run(published, found).await }));
    let host = HostBoot::read();
    let mut peer_table = empty_peer_table(&membership.identity, annotations, &host);
    let (records, mut found_records) = RecordKeeper::start(
        membership.identity.clone(),
        (membership.server, membership.address),
        bridge.live.serving_keys.load_full(),
        with_records,
        stored,
        &mut peer_table,
    );
    let lease_status = membership.lease_status;
    let mut learner = PeerController {
        peer_table,
        records,
        exclusions: SharedGroupVersionTracker::new(),
        read: Read::default(),
        local: None,
        local_schedule: RefreshSchedule::default(),
        leases: BTreeMap::new(),
        ended: EndedLeases::default(),
        own_lease: OwnLease::new(
            own.clone(),
            &membership.identity,
            &membership.hostname,
            membership.address,
            annotations,
            registry_reporter,
        ),
        annotations,
        host,
        networks: membership.networks,
        lease_status,
        was_ready: false,
        identity: membership.identity,
        shared: None,
        view: None,
        unsettled_until: None,
        next_settling_look: Instant::now(),
        looking: Vec::new(),
        looking_next: Vec::new(),
        looked: false,
        telling: BTreeSet::new(),
        refused: Addresses::new(),
        own,
        tell,
    };
    let mut drain = bridge.drain.clone();
    let mut ticks = interval(TICK);
    let mut count = 0;
    loop {
        tokio::select! {
            () = drain.leaving() => break,
            Some(event) = events.recv() => learner.learn_all(event, &mut events),
            Some(hint) = hints.recv() => learner.hear(hint),
            Some(reply) = looks.recv() => learner.look(reply, &mut looks),
            Ok(()) = addresses.changed() => {
                learner.on_addresses(addresses.borrow_and_update().clone());
            }
            Ok(()) = found_records.changed() => {
                learner.on_records(found_records.borrow_and_update().clone());
            }
            _ = ticks.tick() => {
                count += 1;
                if registry_status.borrow().read {
                    learner.on_registry_read(&mut addresses, &mut found_records);
                }
                learner.tick(count, &health.load());
            }
        }
        learner.fetch(&mut tasks);
        while tasks.try_join_next().is_some() {}
    }
    let withdraw = async move {
        publish.send_replace(None);
        if let Some(registry) = registry {
            let _ = registry.await;
        }
    };
    learner.leave(withdraw, parted).await;
}

/// The registry, and what is in annotations of Leases instead.
fn kept_in(whereabouts: PeerRegistry) -> (Option<Arc<dyn Registry>>, Annotations) {
    match whereabouts {
        PeerRegistry::Registry(registry) => (Some(registry.into()), Annotations::Nothing),
        PeerRegistry::File(registry) => (Some(registry.into()), Annotations::Records),
        PeerRegistry::Leases => (None, Annotations::AddressesAndRecords),
    }
}

/// A peer table that awaits the registry.
fn empty_peer_table(own: &Identity, annotations: Annotations, host: &HostBoot) -> PeerTable {
    let peer_table = PeerTable::new(own.clone());
    let mut peer_table = match annotations {
        Annotations::Records => peer_table.with_addresses_in_file(),
        Annotations::Nothing | Annotations::AddressesAndRecords => peer_table,
    };
    peer_table.set_host_clock(host.clock());
    peer_table.await_registry();
    peer_table
}

fn spawn_informers(tasks: &mut JoinSet<()>, own: &Arc<InternalClient>, tell: &mpsc::Sender<Event>) {
    let follow = |own: &Arc<InternalClient>| (own.clone(), tell.clone());
    let (api, to) = follow(own);
    tasks.spawn(async move { informer::follow::<IdentityLease, _>(&api, LEASES, &to).await });
    let (api, to) = follow(own);
    tasks.spawn(async move { informer::follow::<ApiService, _>(&api, API_SERVICES, &to).await });
    let (api, to) = follow(own);
    tasks.spawn(async move {
        informer::follow::<CustomResourceDefinition, _>(&api, CUSTOM_RESOURCES, &to).await;
    });
}

/// Which kinds have been read once.
#[derive(Debug, Default)]
struct Read {
    api_services: bool,
    custom_resources: bool,
}

/// Owns all that is known.
struct PeerController {
    own: Arc<InternalClient>,
    tell: mpsc::Sender<Event>,
    peer_table: PeerTable,
    records: RecordKeeper,
    exclusions: SharedGroupVersionTracker,
    read: Read,
    local: Option<Arc<ServedApis>>,
    local_schedule: RefreshSchedule,
    leases: BTreeMap<Identity, IdentityLease>,
    /// Leases that were deleted, for what they had in annotations.
    ended: EndedLeases,
    own_lease: OwnLease,
    /// What is in annotations of Leases.
    annotations: Annotations,
    /// The boot of this host, for times that outlive the process.
    host: HostBoot,
    /// Networks that addresses must be in; none permits any.
    networks: Vec<IpNet>,
    /// Where the Leases are the registry.
    lease_status: Arc<StatusReporter>,
    was_ready: bool,
    identity: Identity,
    shared: Option<Arc<SharedGroupVersions>>,
    view: Option<Arc<View>>,
    /// Until when what was made or deleted may still become visible.
    unsettled_until: Option<Instant>,
    next_settling_look: Instant,
    /// Who wait for the look at the local server that is under way, and for the next.
    looking: Vec<oneshot::Sender<()>>,
    looking_next: Vec<oneshot::Sender<()>>,
    /// The look has ended.
    looked: bool,
    /// Peers whose last answer was good, to say it once.
    telling: BTreeSet<Identity>,
    /// Addresses that were refused, to say it once.
    refused: Addresses,
}

impl PeerController {
    /// Announces that the bridge leaves, and takes back what it has published. `parted`
    /// hears of it. Then, for as long as the bridge drains, deletes the Lease of its server
    /// if that has ended.
    async fn leave(&mut self, withdraw: impl Future<Output = ()>, parted: oneshot::Sender<()>) {
        let farewell = async {
            // First, so that no peer misses the bridge before it knows why.
            self.records.leave().await;
            let lease = self.own_lease.leave(self.records.annotation());
            tokio::join!(withdraw, lease);
        };
        if timeout(FAREWELL, farewell).await.is_err() {
            tracing::warn!(
                "peers were not told that this bridge leaves: its record runs out by itself"
            );
        }
        let peers = self.peer_table.snapshot();
        let removal = timeout(FAREWELL, self.own_lease.remove_of_ended_server(&peers));
        let mut is_removed = removal.await.unwrap_or(false);
        let _ = parted.send(());
        while !is_removed {
            sleep(LEFT_LEASE_INTERVAL).await;
            is_removed = self.own_lease.remove_of_ended_server(&peers).await;
        }
    }

    /// What has come together is published together.
    fn learn_all(&mut self, first: Event, others: &mut mpsc::Receiver<Event>) {
        self.learn(first);
        while let Ok(event) = others.try_recv() {
            self.learn(event);
        }
        self.publish();
        self.tell_who_looked();
    }

    fn learn(&mut self, event: Event) {
        let now = Instant::now();
        let jitter = self.jitter();
        match event {
            Event::Lease(change) => self.lease(change, now),
            Event::ApiService(change) => {
                self.unsettle(now);
                match change {
                    Change::All(all) => {
                        self.exclusions.set_api_services(&all, now);
                        self.read.api_services = true;
                    }
                    Change::Event(event) => {
                        if !self.exclusions.on_api_service(&event, now) {
                            // Only its status: every server serves the same.
                            return self.local_schedule.refresh_now(now);
                        }
                    }
                    Change::Lost(_) => return,
                }
                self.share();
                self.local_schedule.refresh_now(now);
            }
            Event::CustomResource(change) => {
                self.unsettle(now);
                match change {
                    Change::All(all) => {
                        self.exclusions.set_crds(&all, now);
                        self.read.custom_resources = true;
                    }
                    Change::Event(event) => {
                        if !self.exclusions.on_crd(&event, now) {
                            return self.local_schedule.refresh_now(now);
                        }
                    }
                    Change::Lost(_) => return,
                }
                self.share();
                self.local_schedule.refresh_now(now);
            }
            Event::Peer(identity, answer) => {
                let PeerAnswer {
                    outcome,
                    has_answered,
                } = answer;
                let has_failed = outcome.is_err();
                let metrics = self.own.bridge.metrics.peers();
                let name = self.name_of(&identity);
                if let Err(problem) = &outcome {
                    metrics.sync_error(SyncError::Fetch);
                    if self.telling.remove(&identity) {
                        tracing::warn!(peer = %name, %problem, "discovery of a peer failed; its last result stays in use");
                    } else {
                        tracing::debug!(peer = %name, %problem, "discovery of a peer failed");
                    }
                } else if self.telling.insert(identity.clone()) {
                    tracing::info!(peer = %name, "discovery of a peer succeeded");
                }
                if outcome.is_ok() {
                    self.records.answered(&identity);
                }
                self.peer_table
                    .record_poll(&identity, outcome, now, SystemTime::now(), jitter);
                if has_failed && has_answered {
                    // Its bridge answers in its server's stead.
                    self.peer_table.record_bridge_answer(&identity, now);
                }
            }
            Event::Local(outcome) => {
                self.looked = true;
                match outcome {
                    Ok(served) => {
                        // Its health is looked at all the time.
                        self.local_schedule
                            .succeeded(now, ChangeDetection::ByEvent, jitter);
                        self.local = Some(Arc::new(served));
                    }
                    Err(problem) => {
                        self.local_schedule.failed(now, jitter);
                        tracing::debug!(%problem, "upstream does not tell what it serves");
                    }
                }
            }
        }
    }

    fn lease(&mut self, change: Change<IdentityLease>, now: Instant) {
        match change {
            Change::All(mut all) => {
                self.lease_status.succeeded(Activity::Read);
                self.own_lease.remove_stale(&all);
                for (identity, lease) in &self.leases {
                    if !all.iter().any(|it| it.identity() == identity) {
                        self.ended.add(lease.clone(), now);
                    }
                }
                // What ran out before we looked is nobody's.
                let wall = SystemTime::now();
                all.retain(|lease| !lease.is_expired(wall));
                self.peer_table
                    .set_leases(all.iter().map(seen).collect(), now);
                self.leases = all
                    .into_iter()
                    .map(|lease| (lease.identity().clone(), lease))
                    .collect();
            }
            Change::Event(WatchEvent::Deleted(lease)) => {
                self.peer_table.remove_lease(lease.identity(), now);
                self.leases.remove(lease.identity());
                self.ended.add(lease, now);
            }
            Change::Event(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => {
                self.peer_table.update_lease(seen(&lease), now);
                self.leases.insert(lease.identity().clone(), lease);
            }
            Change::Event(_) => {}
            Change::Lost(problem) => {
                self.lease_status.failed(Activity::Read, problem);
                let metrics = self.own.bridge.metrics.peers();
                metrics.sync_error(SyncError::Leases);
            }
        }
        if self.annotations == Annotations::Nothing {
            // The Lease of a refused address may come after the address.
            return self.peer_table.set_refused_addresses(&self.refused);
        }
        let leases = self.ended.with_living(&self.leases, now);
        let mut records = self.records.annotated(&leases, &self.networks);
        match self.annotations {
            Annotations::AddressesAndRecords => {
                let addresses = annotated(&leases, &records);
                self.addresses(addresses, now);
            }
            _ => records.values_mut().for_each(without_addresses),
        }
        self.records.heard(&records);
        self.peer_table.set_published_records(&records, now);
    }

    fn tick(&mut self, count: u32, health: &UpstreamHealth) {
        if count.is_multiple_of(TIDY_TICKS) {
            self.own.tidy();
            // Anew, since the clock that the process counts by stands while a host sleeps.
            self.peer_table.set_host_clock(self.host.clock());
        }
        self.look_at_upstream(health);
    }

    fn on_addresses(&mut self, all: Addresses) {
        self.addresses(all, Instant::now());
        self.publish();
    }

    /// What the registry has of all servers.
    fn on_records(&mut self, all: Option<Records>) {
        if let Some(mut all) = all {
            for record in all.values_mut() {
                if (record.server).is_some_and(|it| !is_permitted(it, &self.networks)) {
                    keep_permitted_server(Arc::make_mut(record), &self.networks);
                }
            }
            self.records.heard(&all);
            self.peer_table.set_published_records(&all, Instant::now());
            self.publish();
        }
    }

    /// The registry has been read. The first time, nothing that was read may be still on
    /// its way.
    fn on_registry_read(
        &mut self,
        addresses: &mut watch::Receiver<Addresses>,
        records: &mut watch::Receiver<Option<Records>>,
    ) {
        if !self.peer_table.awaits_registry() {
            return;
        }
        if self.annotations != Annotations::AddressesAndRecords {
            self.on_addresses(addresses.borrow_and_update().clone());
        }
        if self.annotations == Annotations::Nothing {
            self.on_records(records.borrow_and_update().clone());
        }
        self.peer_table.mark_registry_read(Instant::now());
        self.publish();
    }

    /// All addresses that are published now.
    fn addresses(&mut self, published: Addresses, now: Instant) {
        let (permitted, refused) = within(published, &self.networks);
        for (identity, advertised) in &refused {
            if self.refused.get(identity) != Some(advertised) {
                let address = advertised.address;
                tracing::warn!(peer = %self.name_of(identity), %address, "an address outside of --peer-cidrs is refused");
            }
        }
        self.peer_table.set_addresses(&permitted, now);
        self.peer_table.set_refused_addresses(&refused);
        self.refused = refused;
    }

    /// Somebody wants to be sure of what the local server serves.
    fn look(
        &mut self,
        reply: oneshot::Sender<()>,
        others: &mut mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        self.looking_next.push(reply);
        while let Ok(reply) = others.try_recv() {
            self.looking_next.push(reply);
        }
        self.local_schedule.refresh_now(Instant::now());
    }

    fn tell_who_looked(&mut self) {
        if std::mem::take(&mut self.looked) {
            for reply in self.looking.drain(..) {
                let _ = reply.send(());
            }
        }
    }

    fn hear(&mut self, hint: ResyncHint) {
        let now = Instant::now();
        match hint {
            ResyncHint::LocalChanged => self.local_schedule.recheck(now),
            ResyncHint::Doubt(identity) => self.peer_table.recheck(&identity, now),
        }
    }

    /// What is behind us may be another version after each start.
    fn look_at_upstream(&mut self, health: &UpstreamHealth) {
        let now = Instant::now();
        let ready = *health == UpstreamHealth::Ready;
        let is_unsettled = self.unsettled_until.is_some_and(|until| now < until);
        if is_unsettled && now >= self.next_settling_look {
            self.next_settling_look = now + SETTLING_LOOK;
            self.local_schedule.refresh_now(now);
        }
        if ready && !self.was_ready {
            self.local_schedule.refresh_now(now);
        }
        self.was_ready = ready;
        if self.peer_table.leases_are_listed() {
            self.own_lease
                .look(&self.leases, ready, self.records.annotation());
        }
        if let (Some(local), Some(shared)) = (&self.local, &self.shared) {
            self.records.look_at_own(local, shared);
        }
        self.records
            .look_at_keys(&self.own.bridge.live.serving_keys.load_full());
        self.records
            .look(&mut self.peer_table, self.shared.as_ref());
        let expired = self.peer_table.expire(now) | self.records.gives_up(now);
        if self.exclusions.prune(now) {
            self.share();
            self.publish();
        } else if expired {
            self.publish();
        }
    }

    /// Asks whom it is time to ask.
    fn fetch(&mut self, tasks: &mut JoinSet<()>) {
        let now = Instant::now();
        if self.local_schedule.begin_if_due(now) {
            self.looking.append(&mut self.looking_next);
            let (own, tell) = (self.own.clone(), self.tell.clone());
            let (known, shared) = (self.local.clone(), self.shared.clone());
            tasks.spawn(async move {
                let party = InternalTarget::Upstream;
                let first = ask_version(&own, party);
                let rest =
                    |version| discover(&own, party, version, known.as_deref(), shared.as_deref());
                let (outcome, _) = poll(FETCH_PATIENCE, first, rest).await;
                let _ = tell.send(Event::Local(outcome)).await;
            });
        }
        for peer in self.peer_table.take_due(now) {
            let (own, tell) = (self.own.clone(), self.tell.clone());
            let shared = self.shared.clone();
            tasks.spawn(async move {
                let began = Instant::now();
                let has_etags = |it: &Arc<ServedApis>| it.etags.iter().all(Option::is_some);
                let patience = match &peer.served {
                    Some(served) if has_etags(served) => REFRESH_TIMEOUT,
                    _ => FETCH_PATIENCE,
                };
                let party = InternalTarget::Peer(&peer);
                let first = ask_version(&own, party);
                let rest = |version| {
                    // Whatever becomes of the poll, the peer answers requests.
                    peer.health.mark_reachable();
                    let known = peer.served.as_deref();
                    discover(&own, party, version, known, shared.as_deref())
                };
                let (outcome, has_answered) = poll(patience, first, rest).await;
                let metrics = own.bridge.metrics.peers();
                metrics.polled(&peer, outcome.is_ok());
                if !has_answered {
                    peer.health.record_timeout(began.elapsed());
                }
                let answer = PeerAnswer {
                    outcome,
                    has_answered,
                };
                let _ = tell.send(Event::Peer(peer.identity.clone(), answer)).await;
            });
        }
    }

    fn publish(&mut self) {
        let Some(cluster_handle) = &self.own.bridge.cluster_handle else {
            return;
        };
        let peers = self.peer_table.snapshot();
        self.own.bridge.metrics.peers().without_bridge(&peers);
        self.records.log_departures(&peers);
        let began = Instant::now();
        let view = match (&self.local, &self.shared) {
            (Some(local), Some(shared)) if peers.leases_listed => {
                View::of(&self.identity, local, &peers, shared, self.view.as_ref())
            }
            _ => None,
        };
        let is_new = match (&self.view, &view) {
            (Some(before), Some(view)) => !Arc::ptr_eq(before, view),
            (before, view) => before.is_some() != view.is_some(),
        };
        if is_new {
            let metrics = self.own.bridge.metrics.discovery();
            metrics.recomputed(view.as_deref().map(View::sizes), began.elapsed());
        }
        self.view.clone_from(&view);
        cluster_handle.cluster.store(Arc::new(Cluster {
            local: self.local.clone(),
            peers,
            shared: self.shared.clone(),
            view,
            awaits_registry: self.records.is_awaiting(Instant::now()),
        }));
    }

    /// Something that all servers share was made or deleted. Each of them shows it
    /// in its own time, and tells nobody when.
    fn unsettle(&mut self, now: Instant) {
        self.unsettled_until = Some(now + SETTLING);
    }

    /// After a change of what all servers share.
    fn share(&mut self) {
        if self.read.api_services && self.read.custom_resources {
            self.shared = Some(self.exclusions.snapshot());
        }
    }

    /// Host and identity of a peer, for the log.
    fn name_of(&self, identity: &Identity) -> String {
        match &self.own.bridge.cluster_handle {
            Some(cluster_handle) => cluster_handle.name_of(identity),
            None => identity.to_string(),
        }
    }

    /// From 0 to 1.
    #[allow(clippy::cast_precision_loss)] // it only spreads
    fn jitter(&self) -> f64 {
        self.own.bridge.next_lb_seed() as f64 / u64::MAX as f64
    }
}

fn seen(lease: &IdentityLease) -> LeaseSnapshot {
    use skewbridge_peer_directory::WatchedObject as _;
    LeaseSnapshot {
        identity: lease.identity().clone(),
        host: lease.hostname().map(str::to_owned),
        holder: lease.holder().unwrap_or_default().to_owned(),
        resource_version: lease.resource_version().to_owned(),
    }
}

/// Addresses in annotations of Leases. A bridge that keeps the Lease itself writes the
/// annotation that is otherwise the server's: its record names the same address.
fn annotated(leases: &BTreeMap<Identity, IdentityLease>, records: &Records) -> Addresses {
    let advertised = |(identity, lease): (&Identity, &IdentityLease)| {
        let address = lease.peer_address()?;
        let is_bridge = lease.bridge_address().is_some()
            || (records.get(identity))
                .is_some_and(|it| it.bridge_left_at.is_none() && it.bridge == Some(address));
        let advertised = if is_bridge {
            AdvertisedAddress::by_bridge(address)
        } else {
            AdvertisedAddress::by_server(address)
        };
        Some((identity.clone(), advertised))
    };
    leases.iter().filter_map(advertised).collect()
}

/// Leases that were deleted. Where Leases are the registry, the address of a bridge and
/// the record of its server go with the Lease, but a server since 1.35 that restarts
/// deletes its Lease, too. The peer table judges how long a server counts without a Lease:
/// annotations are kept for the longest of these times.
#[derive(Debug, Default)]
struct EndedLeases(BTreeMap<Identity, (IdentityLease, Instant)>);

impl EndedLeases {
    fn add(&mut self, lease: IdentityLease, now: Instant) {
        // Leases that are made and deleted in a loop would add up.
        if self.0.len() < MAX_RECORDS || self.0.contains_key(lease.identity()) {
            self.0.insert(lease.identity().clone(), (lease, now));
        }
    }

    /// Living Leases, and those that have ended a short time ago.
    fn with_living(
        &mut self,
        living: &BTreeMap<Identity, IdentityLease>,
        now: Instant,
    ) -> BTreeMap<Identity, IdentityLease> {
        self.0.retain(|identity, (_, ended)| {
            !living.contains_key(identity) && *ended + ROLLOUT_GRACE > now
        });
        let ended = self.0.iter();
        let ended = ended.map(|(identity, (lease, _))| (identity.clone(), lease.clone()));
        ended.chain(living.clone()).collect()
    }
}

/// Whether an address is in one of these networks. A client that may write to the registry
/// could point peers anywhere (KEP-4020, Risks 5): only into these networks. No networks
/// permit every address.
fn is_permitted(address: SocketAddr, networks: &[IpNet]) -> bool {
    networks.is_empty() || networks.iter().any(|net| net.contains(&address.ip()))
}

/// The addresses that are permitted, and those that are refused.
fn within(published: Addresses, networks: &[IpNet]) -> (Addresses, Addresses) {
    published
        .into_iter()
        .partition(|(_, advertised)| is_permitted(advertised.address, networks))
}

/// Removes the address of a server that is not permitted from its record.
fn keep_permitted_server(record: &mut ServedRecord, networks: &[IpNet]) {
    record.server = record.server.filter(|it| is_permitted(*it, networks));
}

/// Removes what a record says of where its server is, and with which keys. Where an
/// administrator keeps the addresses, a writer of Leases has no say in that.
fn without_addresses(record: &mut Arc<ServedRecord>) {
    if record.server.is_some() || record.bridge.is_some() || !record.serving_keys.is_empty() {
        let record = Arc::make_mut(record);
        record.server = None;
        record.bridge = None;
        record.serving_keys.clear();
    }
}

/// Asks a server a first question, and then the rest. Gives the outcome, and whether the
/// first question was answered: a server that fails later does answer requests.
async fn poll<A, T, F: Future<Output = Result<T, String>>>(
    patience: Duration,
    first: impl Future<Output = Result<A, String>>,
    rest: impl FnOnce(A) -> F,
) -> (Result<T, String>, bool) {
    let mut has_answered = false;
    let all = async {
        let answer = first.await?;
        has_answered = true;
        rest(answer).await
    };
    let outcome = timeout(patience, all).await;
    let outcome = outcome.unwrap_or_else(|_| Err(no_answer(patience)));
    (outcome, has_answered)
}

fn no_answer(patience: Duration) -> String {
    format!("no answer within {} s", patience.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer is closed to requests only if the first question of a poll has no answer.
    #[tokio::test]
    async fn a_poll_that_fails_after_the_first_answer_is_no_silence() {
        use std::future::{pending, ready};
        const NO_ANSWER: Duration = Duration::from_millis(10);
        const ANSWER: Duration = Duration::from_mins(1);
        let fails = || ready(Err::<(), _>("500".to_owned()));
        let good = || ready(Ok::<(), String>(()));
        let outcome = poll(ANSWER, good(), |()| good()).await;
        assert_eq!(outcome, (Ok(()), true));
        let outcome = poll(ANSWER, good(), |()| fails()).await;
        assert_eq!(outcome, (Err("500".to_owned()), true));
        let (outcome, has_answered) =
            poll(NO_ANSWER, good(), |()| pending::<Result<(), _>>()).await;
        assert!(outcome.is_err() && has_answered);
        let outcome = poll(ANSWER, fails(), |()| good()).await;
        assert_eq!(outcome, (Err("500".to_owned()), false));
        let silent = pending::<Result<(), String>>();
        let (outcome, has_answered) = poll(NO_ANSWER, silent, |()| good()).await;
        assert!(outcome.is_err() && !has_answered);
    }

    #[test]
    fn the_number_of_ended_leases_is_bounded() {
        let now = Instant::now();
        let mut ended = EndedLeases::default();
        for number in 0..MAX_RECORDS + 9 {
            let identity = Identity::named(&format!("apiserver-{number}")).unwrap();
            let lease = IdentityLease::new(&identity, "host", "holder", SystemTime::UNIX_EPOCH);
            ended.add(lease, now);
        }
        assert_eq!(ended.with_living(&BTreeMap::new(), now).len(), MAX_RECORDS);
    }

    #[test]
    fn a_record_beside_a_file_of_addresses_names_none() {
        let served = ServedApis {
            index: Arc::default(),
            documents: [Arc::default(), Arc::default()],
            etags: [None, None],
            version: None,
            by_bridge: false,
        };
        let identity = Identity::named("apiserver-a").unwrap();
        let left = SystemTime::UNIX_EPOCH;
        let mut record = ServedRecord::new(identity, &served, |_, _| false, left);
        record.server = "10.0.0.1:6443".parse().ok();
        record.bridge = "10.0.0.1:7443".parse().ok();
        record.serving_keys = vec![[7; 32]];
        record.bridge_left_at = Some(left);
        let mut record = Arc::new(record);
        without_addresses(&mut record);
        assert_eq!((record.server, record.bridge), (None, None));
        assert!(record.serving_keys.is_empty());
        assert_eq!(record.bridge_left_at, Some(left), "the announcement counts");
        let before = record.clone();
        without_addresses(&mut record);
        assert!(Arc::ptr_eq(&record, &before), "nothing to remove");
    }

    #[test]
    fn addresses_are_permitted_by_network() {
        let identity = |name: &str| Identity::named(name).unwrap();
        let published: Addresses = [
            ("a", "10.0.0.1:6443"),
            ("b", "10.1.0.1:6443"),
            ("c", "[fd00::1]:6443"),
        ]
        .map(|(name, address)| {
            let advertised = AdvertisedAddress::by_bridge(address.parse().unwrap());
            (identity(name), advertised)
        })
        .into();
        let rows: [(&[&str], &[&str]); 4] = [
            (&[], &["a", "b", "c"]),
            (&["10.0.0.0/24"], &["a"]),
            (&["10.0.0.0/8", "fd00::/64"], &["a", "b", "c"]),
            (&["192.0.2.0/24"], &[]),
        ];
        for (networks, expected) in rows {
            let networks: Vec<IpNet> = networks.iter().map(|net| net.parse().unwrap()).collect();
            let (permitted, refused) = within(published.clone(), &networks);
            let names: Vec<_> = permitted.keys().map(ToString::to_string).collect();
            assert_eq!(names, expected, "{networks:?}");
            assert_eq!(permitted.len() + refused.len(), published.len());
            for (identity, advertised) in &published {
                let permitted = permitted.contains_key(identity);
                assert_eq!(is_permitted(advertised.address, &networks), permitted);
            }
        }
    }
}
