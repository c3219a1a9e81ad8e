//! The peer controller maintains the cluster snapshot: which servers exist, their addresses and
//! the APIs of each. It also publishes the address and the served record of the local server.
//!
//! One task owns this state. Other tasks poll servers and watch objects, and send it an [`Event`]
//! for each result. The snapshot for requests is replaced as a whole.

mod discovery_fetch;
mod host_boot;
mod informer;
mod leases;
mod own_lease;
mod permitted_networks;
mod records;
mod state_dir;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use skewbridge_peer_directory::refresh_schedule::{ChangeDetection, RefreshSchedule};
use skewbridge_peer_directory::registry::{Activity, Addresses, Registry, StatusReporter};
use skewbridge_peer_directory::watch::WatchEvent;
use skewbridge_peer_directory::{
    ApiService, CustomResourceDefinition, Identity, IdentityLease, PeerTable, Records, ServedApis,
    SharedGroupVersionTracker, SharedGroupVersions, lease,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use self::discovery_fetch::fetch_version;
use self::host_boot::HostBoot;
use self::informer::{Change, WatchTarget};
use self::leases::{EndedLeases, annotated_addresses, lease_snapshot};
use self::own_lease::{Annotations, OwnLease};
use self::permitted_networks::{
    is_permitted, keep_permitted_server, partition_permitted, remove_addresses,
};
use self::records::RecordStore;
pub(crate) use self::records::StoredRecords;
pub(crate) use self::state_dir::StateDir;
use crate::cluster_state::{Cluster, ControllerRequests, ResyncHint};
use crate::control::internal_client::{InternalClient, InternalTarget};
use crate::control::openapi_merger;
use crate::discovery_view::View;
use crate::health::UpstreamHealth;
use crate::metrics::peers::SyncError;
use crate::peer_config::{PeerRegistry, PeeringConfig};
use crate::state::GatewayState;

/// The interval between two checks for due work.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// How long after the creation or deletion of a CRD or `APIService` discovery of the local server may
/// take to show it.
const SETTLING_PERIOD: Duration = Duration::from_secs(5);

/// The interval between two polls of the local server during [`SETTLING_PERIOD`].
const SETTLING_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Ticks between two checks for idle connections: 5 s.
const IDLE_CHECK_TICKS: u32 = 25;

/// The timeout of a poll of a server.
const POLL_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a poll of a peer whose documents are known: its requests are conditional, and a
/// client request may be waiting for the result.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout for announcing the departure and for clearing the registry and the Lease.
const DEPARTURE_TIMEOUT: Duration = Duration::from_secs(4);

/// The interval at which a draining bridge checks whether its server has ended.
const ENDED_SERVER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The size of the event queue. Senders wait while it is full.
const EVENT_QUEUE_LEN: usize = 256;

const LEASES: WatchTarget = WatchTarget {
    path: lease::LEASES_PATH,
    selector: "&labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver",
    page_size: 500,
    description: "identity Leases",
};
const API_SERVICES: WatchTarget = WatchTarget {
    path: "/apis/apiregistration.k8s.io/v1/apiservices",
    selector: "",
    page_size: 500,
    description: "APIServices",
};
/// Each can have the maximum size of an object: a small page bounds the memory.
const CUSTOM_RESOURCES: WatchTarget = WatchTarget {
    path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    selector: "",
    page_size: 20,
    description: "CustomResourceDefinitions",
};

/// An input of the controller.
enum Event {
    Lease(Change<IdentityLease>),
    ApiService(Change<ApiService>),
    CustomResource(Change<CustomResourceDefinition>),
    Peer(Identity, PeerPoll),
    Local(Result<ServedApis, String>),
}

/// The result of polling a peer.
struct PeerPoll {
    outcome: Result<ServedApis, String>,
    /// Whether the peer has answered the first request.
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

/// Maintains the cluster snapshot until the bridge departs. Then it announces the departure and
/// withdraws the published address; `departed` is notified when that is done.
pub(crate) async fn run(
    bridge: Arc<GatewayState>,
    peering_config: PeeringConfig,
    health: Arc<ArcSwap<UpstreamHealth>>,
    requests: ControllerRequests,
    stored: Option<StoredRecords>,
    departed: oneshot::Sender<()>,
) {
    tracing::info!(identity = %peering_config.identity, address = %peering_config.address, "peering is enabled");
    let client = Arc::new(InternalClient::new(bridge.clone()));
    let (event_sender, mut events) = mpsc::channel(EVENT_QUEUE_LEN);
    let mut tasks = JoinSet::new();
    spawn_informers(&mut tasks, &client, &event_sender);
    tasks.spawn(openapi_merger::run(client.clone(), requests.merges));
    let (mut hints, mut refreshes) = (requests.hints, requests.refreshes);

    let (publish, published) = watch::channel(Some((
        peering_config.identity.clone(),
        peering_config.address,
    )));
    let (found, mut addresses) = watch::channel(Addresses::new());
    let registry_status = peering_config.registry_status();
    let registry_reporter = peering_config.registry_reporter();
    let stored = stored.map(|stored| stored.keep_permitted(&peering_config.networks));
    let (registry, annotations) = registry_and_annotations(peering_config.registry);
    let record_registry = registry.clone();
    let record_registry = record_registry.filter(|_| annotations == Annotations::Nothing);
    let registry = registry.map(|it| tokio::spawn(async move { it.run(published, found).await }));
    let host = HostBoot::read();
    let mut peer_table = empty_peer_table(&peering_config.identity, annotations, &host);
    let (records, mut found_records) = RecordStore::start(
        peering_config.identity.clone(),
        (peering_config.server, peering_config.address),
        bridge.live.serving_keys.load_full(),
        record_registry,
        stored,
        &mut peer_table,
    );
    let lease_status = peering_config.lease_status;
    let mut controller = PeerController {
        peer_table,
        records,
        shared_tracker: SharedGroupVersionTracker::new(),
        listed: ListedKinds::default(),
        local: None,
        local_schedule: RefreshSchedule::default(),
        leases: BTreeMap::new(),
        ended: EndedLeases::default(),
        own_lease: OwnLease::new(
            client.clone(),
            &peering_config.identity,
            &peering_config.hostname,
            peering_config.address,
            annotations,
            registry_reporter,
        ),
        annotations,
        host,
        networks: peering_config.networks,
        lease_status,
        was_ready: false,
        identity: peering_config.identity,
        shared: None,
        view: None,
        settling_until: None,
        next_settling_poll: Instant::now(),
        refresh_waiters: Vec::new(),
        next_refresh_waiters: Vec::new(),
        local_polled: false,
        discovered: BTreeSet::new(),
        rejected: Addresses::new(),
        client,
        events: event_sender,
    };
    let mut drain = bridge.drain.clone();
    let mut ticks = interval(TICK_INTERVAL);
    let mut count = 0;
    loop {
        tokio::select! {
            () = drain.not_ready() => break,
            Some(event) = events.recv() => controller.handle_events(event, &mut events),
            Some(hint) = hints.recv() => controller.on_hint(hint),
            Some(reply) = refreshes.recv() => controller.refresh_local(reply, &mut refreshes),
            Ok(()) = addresses.changed() => {
                controller.on_addresses(addresses.borrow_and_update().clone());
            }
            Ok(()) = found_records.changed() => {
                controller.on_records(found_records.borrow_and_update().clone());
            }
            _ = ticks.tick() => {
                count += 1;
                if registry_status.borrow().read {
                    controller.on_registry_read(&mut addresses, &mut found_records);
                }
                controller.tick(count, &health.load());
            }
        }
        controller.start_polls(&mut tasks);
        while tasks.try_join_next().is_some() {}
    }
    let withdraw = async move {
        publish.send_replace(None);
        if let Some(registry) = registry {
            let _ = registry.await;
        }
    };
    controller.depart(withdraw, departed).await;
}

/// The registry, and what is stored in annotations of Leases instead.
fn registry_and_annotations(registry: PeerRegistry) -> (Option<Arc<dyn Registry>>, Annotations) {
    match registry {
        PeerRegistry::Registry(registry) => (Some(registry.into()), Annotations::Nothing),
        PeerRegistry::File(registry) => (Some(registry.into()), Annotations::Records),
        PeerRegistry::Leases => (None, Annotations::AddressesAndRecords),
    }
}

/// An empty peer table that waits for the registry to be read.
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

fn spawn_informers(
    tasks: &mut JoinSet<()>,
    client: &Arc<InternalClient>,
    events: &mpsc::Sender<Event>,
) {
    let handles = || (client.clone(), events.clone());
    let (api, to) = handles();
    tasks.spawn(async move { informer::run::<IdentityLease, _>(&api, LEASES, &to).await });
    let (api, to) = handles();
    tasks.spawn(async move { informer::run::<ApiService, _>(&api, API_SERVICES, &to).await });
    let (api, to) = handles();
    tasks.spawn(async move {
        informer::run::<CustomResourceDefinition, _>(&api, CUSTOM_RESOURCES, &to).await;
    });
}

/// Which kinds have been listed.
#[derive(Debug, Default)]
struct ListedKinds {
    api_services: bool,
    custom_resources: bool,
}

/// The state of the controller.
struct PeerController {
    client: Arc<InternalClient>,
    events: mpsc::Sender<Event>,
    peer_table: PeerTable,
    records: RecordStore,
    shared_tracker: SharedGroupVersionTracker,
    listed: ListedKinds,
    local: Option<Arc<ServedApis>>,
    local_schedule: RefreshSchedule,
    leases: BTreeMap<Identity, IdentityLease>,
    /// Leases that were deleted recently, for their annotations.
    ended: EndedLeases,
    own_lease: OwnLease,
    /// What is stored in annotations of Leases.
    annotations: Annotations,
    /// The boot of this host, for times that are valid after a restart of the process.
    host: HostBoot,
    /// Networks that addresses must be in; empty permits any address.
    networks: Vec<IpNet>,
    /// The status of reading Leases, where Leases are the registry.
    lease_status: Arc<StatusReporter>,
    was_ready: bool,
    identity: Identity,
    shared: Option<Arc<SharedGroupVersions>>,
    view: Option<Arc<View>>,
    /// Until when created or deleted APIs may still become visible.
    settling_until: Option<Instant>,
    next_settling_poll: Instant,
    /// Requests that wait for the poll of the local server in progress.
    refresh_waiters: Vec<oneshot::Sender<()>>,
    /// Requests that wait for the next poll of the local server.
    next_refresh_waiters: Vec<oneshot::Sender<()>>,
    /// The poll of the local server has ended.
    local_polled: bool,
    /// Peers whose last poll succeeded, so that changes are logged once.
    discovered: BTreeSet<Identity>,
    /// Addresses that were rejected, so that each is logged once.
    rejected: Addresses,
}

impl PeerController {
    /// Announces the departure of the bridge, withdraws what it has published, and notifies
    /// `departed`. Then, while the bridge drains, deletes the Lease of its server if the server
    /// ends.
    async fn depart(&mut self, withdraw: impl Future<Output = ()>, departed: oneshot::Sender<()>) {
        let withdrawal = async {
            // First, so that peers know of the departure before the address is withdrawn.
            self.records.announce_departure().await;
            let lease = self.own_lease.release(self.records.annotation());
            tokio::join!(withdraw, lease);
        };
        if timeout(DEPARTURE_TIMEOUT, withdrawal).await.is_err() {
            tracing::warn!(
                "the departure of this bridge was not announced in time; its published address expires by itself"
            );
        }
        let peers = self.peer_table.snapshot();
        let removal = self.own_lease.remove_if_server_ended(&peers);
        let removal = timeout(DEPARTURE_TIMEOUT, removal);
        let mut is_removed = removal.await.unwrap_or(false);
        let _ = departed.send(());
        while !is_removed {
            sleep(ENDED_SERVER_CHECK_INTERVAL).await;
            is_removed = self.own_lease.remove_if_server_ended(&peers).await;
        }
    }

    /// Handles all queued events, then publishes one snapshot.
    fn handle_events(&mut self, first: Event, others: &mut mpsc::Receiver<Event>) {
        self.handle_event(first);
        while let Ok(event) = others.try_recv() {
            self.handle_event(event);
        }
        self.publish();
        self.notify_refresh_waiters();
    }

    fn handle_event(&mut self, event: Event) {
        let now = Instant::now();
        let jitter = self.jitter();
        match event {
            Event::Lease(change) => self.on_lease_change(change, now),
            Event::ApiService(change) => {
                self.begin_settling(now);
                match change {
                    Change::Listed(all) => {
                        self.shared_tracker.set_api_services(&all, now);
                        self.listed.api_services = true;
                    }
                    Change::Event(event) => {
                        if !self.shared_tracker.on_api_service(&event, now) {
                            // Only its status has changed: the set of shared APIs is the same.
                            return self.local_schedule.refresh_now(now);
                        }
                    }
                    Change::Failed(_) => return,
                }
                self.update_shared();
                self.local_schedule.refresh_now(now);
            }
            Event::CustomResource(change) => {
                self.begin_settling(now);
                match change {
                    Change::Listed(all) => {
                        self.shared_tracker.set_crds(&all, now);
                        self.listed.custom_resources = true;
                    }
                    Change::Event(event) => {
                        if !self.shared_tracker.on_crd(&event, now) {
                            return self.local_schedule.refresh_now(now);
                        }
                    }
                    Change::Failed(_) => return,
                }
                self.update_shared();
                self.local_schedule.refresh_now(now);
            }
            Event::Peer(identity, poll) => {
                let PeerPoll {
                    outcome,
                    has_answered,
                } = poll;
                let has_failed = outcome.is_err();
                let metrics = self.client.bridge.metrics.peers();
                let name = self.name_of(&identity);
                if let Err(problem) = &outcome {
                    metrics.sync_error(SyncError::Fetch);
                    if self.discovered.remove(&identity) {
                        tracing::warn!(peer = %name, %problem, "discovery of a peer failed; its last result stays in use");
                    } else {
                        tracing::debug!(peer = %name, %problem, "discovery of a peer failed");
                    }
                } else if self.discovered.insert(identity.clone()) {
                    tracing::info!(peer = %name, "discovery of a peer succeeded");
                }
                if outcome.is_ok() {
                    self.records.mark_polled(&identity);
                }
                self.peer_table
                    .record_poll(&identity, outcome, now, SystemTime::now(), jitter);
                if has_failed && has_answered {
                    // The bridge of the peer answers although its server does not.
                    self.peer_table.record_bridge_answer(&identity, now);
                }
            }
            Event::Local(outcome) => {
                self.local_polled = true;
                match outcome {
                    Ok(served) => {
                        // The readiness probe and watch events detect changes.
                        self.local_schedule
                            .succeeded(now, ChangeDetection::ByEvent, jitter);
                        self.local = Some(Arc::new(served));
                    }
                    Err(problem) => {
                        self.local_schedule.failed(now, jitter);
                        tracing::debug!(%problem, "discovery of upstream failed");
                    }
                }
            }
        }
    }

    fn on_lease_change(&mut self, change: Change<IdentityLease>, now: Instant) {
        match change {
            Change::Listed(mut all) => {
                self.lease_status.succeeded(Activity::Read);
                self.own_lease.remove_stale(&all);
                for (identity, lease) in &self.leases {
                    if !all.iter().any(|it| it.identity() == identity) {
                        self.ended.add(lease.clone(), now);
                    }
                }
                // A Lease that had expired before the list belongs to no running server.
                let wall = SystemTime::now();
                all.retain(|lease| !lease.is_expired(wall));
                self.peer_table
                    .set_leases(all.iter().map(lease_snapshot).collect(), now);
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
                self.peer_table.update_lease(lease_snapshot(&lease), now);
                self.leases.insert(lease.identity().clone(), lease);
            }
            Change::Event(_) => {}
            Change::Failed(problem) => {
                self.lease_status.failed(Activity::Read, problem);
                let metrics = self.client.bridge.metrics.peers();
                metrics.sync_error(SyncError::Leases);
            }
        }
        if self.annotations == Annotations::Nothing {
            // The Lease of a rejected address may be created after the address.
            return self.peer_table.set_refused_addresses(&self.rejected);
        }
        let leases = self.ended.with_existing(&self.leases, now);
        let mut records = self.records.annotated(&leases, &self.networks);
        match self.annotations {
            Annotations::AddressesAndRecords => {
                let addresses = annotated_addresses(&leases, &records);
                self.set_addresses(addresses, now);
            }
            _ => records.values_mut().for_each(remove_addresses),
        }
        self.records.on_records_read(&records);
        self.peer_table.set_published_records(&records, now);
    }

    fn tick(&mut self, count: u32, health: &UpstreamHealth) {
        if count.is_multiple_of(IDLE_CHECK_TICKS) {
            self.client.close_idle_connections();
            // Periodically, because the monotonic clock of the process stops while the host
            // sleeps.
            self.peer_table.set_host_clock(self.host.clock());
        }
        self.reconcile(health);
    }

    fn on_addresses(&mut self, all: Addresses) {
        self.set_addresses(all, Instant::now());
        self.publish();
    }

    /// The served records in the registry have changed.
    fn on_records(&mut self, all: Option<Records>) {
        if let Some(mut all) = all {
            for record in all.values_mut() {
                if (record.server).is_some_and(|it| !is_permitted(it, &self.networks)) {
                    keep_permitted_server(Arc::make_mut(record), &self.networks);
                }
            }
            self.records.on_records_read(&all);
            self.peer_table.set_published_records(&all, Instant::now());
            self.publish();
        }
    }

    /// The registry has been read. The first time, addresses and records are taken over before the
    /// peer table stops waiting for the registry.
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

    /// Replaces the published addresses.
    fn set_addresses(&mut self, published: Addresses, now: Instant) {
        let (permitted, rejected) = partition_permitted(published, &self.networks);
        for (identity, advertised) in &rejected {
            if self.rejected.get(identity) != Some(advertised) {
                let address = advertised.address;
                tracing::warn!(peer = %self.name_of(identity), %address, "the address of a peer is outside of --peer-cidrs; it is ignored");
            }
        }
        self.peer_table.set_addresses(&permitted, now);
        self.peer_table.set_refused_addresses(&rejected);
        self.rejected = rejected;
    }

    /// Polls the local server on behalf of requests that need its current APIs.
    fn refresh_local(
        &mut self,
        reply: oneshot::Sender<()>,
        others: &mut mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        self.next_refresh_waiters.push(reply);
        while let Ok(reply) = others.try_recv() {
            self.next_refresh_waiters.push(reply);
        }
        self.local_schedule.refresh_now(Instant::now());
    }

    fn notify_refresh_waiters(&mut self) {
        if std::mem::take(&mut self.local_polled) {
            for reply in self.refresh_waiters.drain(..) {
                let _ = reply.send(());
            }
        }
    }

    fn on_hint(&mut self, hint: ResyncHint) {
        let now = Instant::now();
        match hint {
            ResyncHint::LocalChanged => self.local_schedule.recheck(now),
            ResyncHint::PeerChanged(identity) => self.peer_table.recheck(&identity, now),
        }
    }

    /// Performs due work. The local server may have another version after each restart, so it is
    /// polled when it becomes ready.
    fn reconcile(&mut self, health: &UpstreamHealth) {
        let now = Instant::now();
        let ready = *health == UpstreamHealth::Ready;
        let is_unsettled = self.settling_until.is_some_and(|until| now < until);
        if is_unsettled && now >= self.next_settling_poll {
            self.next_settling_poll = now + SETTLING_POLL_INTERVAL;
            self.local_schedule.refresh_now(now);
        }
        if ready && !self.was_ready {
            self.local_schedule.refresh_now(now);
        }
        self.was_ready = ready;
        if self.peer_table.leases_are_listed() {
            self.own_lease
                .reconcile(&self.leases, ready, self.records.annotation());
        }
        if let (Some(local), Some(shared)) = (&self.local, &self.shared) {
            self.records.update_own_record(local, shared);
        }
        self.records
            .update_serving_keys(&self.client.bridge.live.serving_keys.load_full());
        self.records
            .sync(&mut self.peer_table, self.shared.as_ref());
        let expired = self.peer_table.expire(now) | self.records.expire_registry_wait(now);
        if self.shared_tracker.prune(now) {
            self.update_shared();
            self.publish();
        } else if expired {
            self.publish();
        }
    }

    /// Starts the polls that are due.
    fn start_polls(&mut self, tasks: &mut JoinSet<()>) {
        let now = Instant::now();
        if self.local_schedule.begin_if_due(now) {
            self.refresh_waiters.append(&mut self.next_refresh_waiters);
            let (client, events) = (self.client.clone(), self.events.clone());
            let (known, shared) = (self.local.clone(), self.shared.clone());
            tasks.spawn(async move {
                let target = InternalTarget::Upstream;
                let first = fetch_version(&client, target);
                let rest = |version| {
                    discovery_fetch::fetch(
                        &client,
                        target,
                        version,
                        known.as_deref(),
                        shared.as_deref(),
                    )
                };
                let (outcome, _) = poll(POLL_TIMEOUT, first, rest).await;
                let _ = events.send(Event::Local(outcome)).await;
            });
        }
        for peer in self.peer_table.take_due(now) {
            let (client, events) = (self.client.clone(), self.events.clone());
            let shared = self.shared.clone();
            tasks.spawn(async move {
                let began = Instant::now();
                let has_etags = |it: &Arc<ServedApis>| it.etags.iter().all(Option::is_some);
                let poll_timeout = match &peer.served {
                    Some(served) if has_etags(served) => REFRESH_TIMEOUT,
                    _ => POLL_TIMEOUT,
                };
                let target = InternalTarget::Peer(&peer);
                let first = fetch_version(&client, target);
                let rest = |version| {
                    // The peer answers requests even if the rest of the poll fails.
                    peer.health.mark_reachable();
                    let known = peer.served.as_deref();
                    discovery_fetch::fetch(&client, target, version, known, shared.as_deref())
                };
                let (outcome, has_answered) = poll(poll_timeout, first, rest).await;
                let metrics = client.bridge.metrics.peers();
                metrics.polled(&peer, outcome.is_ok());
                if !has_answered {
                    peer.health.record_timeout(began.elapsed());
                }
                let poll = PeerPoll {
                    outcome,
                    has_answered,
                };
                let _ = events.send(Event::Peer(peer.identity.clone(), poll)).await;
            });
        }
    }

    fn publish(&mut self) {
        let Some(cluster_handle) = &self.client.bridge.cluster_handle else {
            return;
        };
        let peers = self.peer_table.snapshot();
        self.client.bridge.metrics.peers().without_bridge(&peers);
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
            let metrics = self.client.bridge.metrics.discovery();
            metrics.recomputed(view.as_deref().map(View::sizes), began.elapsed());
        }
        self.view.clone_from(&view);
        cluster_handle.cluster.store(Arc::new(Cluster {
            local: self.local.clone(),
            peers,
            shared: self.shared.clone(),
            view,
            awaits_registry: self.records.is_awaiting_registry(Instant::now()),
        }));
    }

    /// An API that all servers share was created or deleted. Each server serves the change after
    /// some delay, without an event.
    fn begin_settling(&mut self, now: Instant) {
        self.settling_until = Some(now + SETTLING_PERIOD);
    }

    /// Takes over a change of the APIs that all servers share.
    fn update_shared(&mut self) {
        if self.listed.api_services && self.listed.custom_resources {
            self.shared = Some(self.shared_tracker.snapshot());
        }
    }

    /// Host and identity of a peer, for the log.
    fn name_of(&self, identity: &Identity) -> String {
        match &self.client.bridge.cluster_handle {
            Some(cluster_handle) => cluster_handle.name_of(identity),
            None => identity.to_string(),
        }
    }

    /// From 0 to 1.
    #[allow(clippy::cast_precision_loss)] // any value spreads the polls
    fn jitter(&self) -> f64 {
        self.client.bridge.next_lb_seed() as f64 / u64::MAX as f64
    }
}

/// Sends the first request of a poll, then the rest. Returns the outcome, and whether the first
/// request was answered: a server that fails later still answers requests.
async fn poll<A, T, F: Future<Output = Result<T, String>>>(
    poll_timeout: Duration,
    first: impl Future<Output = Result<A, String>>,
    rest: impl FnOnce(A) -> F,
) -> (Result<T, String>, bool) {
    let mut has_answered = false;
    let all = async {
        let answer = first.await?;
        has_answered = true;
        rest(answer).await
    };
    let outcome = timeout(poll_timeout, all).await;
    let outcome = outcome.unwrap_or_else(|_| Err(timeout_error(poll_timeout)));
    (outcome, has_answered)
}

fn timeout_error(poll_timeout: Duration) -> String {
    format!("no answer within {} s", poll_timeout.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer gets no requests only if the first request of a poll is not answered.
    #[tokio::test]
    async fn a_poll_that_fails_after_the_first_response_counts_as_answered() {
        use std::future::{pending, ready};
        const SHORT_TIMEOUT: Duration = Duration::from_millis(10);
        const LONG_TIMEOUT: Duration = Duration::from_mins(1);
        let fails = || ready(Err::<(), _>("500".to_owned()));
        let good = || ready(Ok::<(), String>(()));
        let outcome = poll(LONG_TIMEOUT, good(), |()| good()).await;
        assert_eq!(outcome, (Ok(()), true));
        let outcome = poll(LONG_TIMEOUT, good(), |()| fails()).await;
        assert_eq!(outcome, (Err("500".to_owned()), true));
        let (outcome, has_answered) =
            poll(SHORT_TIMEOUT, good(), |()| pending::<Result<(), _>>()).await;
        assert!(outcome.is_err() && has_answered);
        let outcome = poll(LONG_TIMEOUT, fails(), |()| good()).await;
        assert_eq!(outcome, (Err("500".to_owned()), false));
        let silent = pending::<Result<(), String>>();
        let (outcome, has_answered) = poll(SHORT_TIMEOUT, silent, |()| good()).await;
        assert!(outcome.is_err() && !has_answered);
    }
}
