//! The peer controller maintains the cluster snapshot: which servers exist, their addresses and
//! the APIs of each. It also publishes the address and the served record of the local server.
//!
//! One task owns this state. Other tasks poll servers and watch objects, and send it an [`Event`]
//! for each result. The snapshot for requests is replaced as a whole.

mod addresses;
mod confirmation;
mod discovery_fetch;
mod fields;
mod fixed_peers;
mod host_boot;
pub(crate) mod informer;
mod leases;
mod listed_servers;
mod own_lease;
mod permitted_networks;
mod policies;
mod policy_file;
mod policy_watch;
mod records;
mod state_dir;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use skewbridge_field_sets::ServerFields;
use skewbridge_peer_directory::refresh_schedule::RefreshSchedule;
use skewbridge_peer_directory::registry::{Activity, Addresses, Registry, StatusReporter};
use skewbridge_peer_directory::watch::WatchEvent;
use skewbridge_peer_directory::{
    ApiService, CustomResourceDefinition, EndpointSlice, Identity, IdentityLease, Peer, PeerTable,
    Records, ServedApis, SharedGroupVersionTracker, SharedGroupVersions, endpoint_slice, lease,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use self::addresses::PeerAddresses;
use self::confirmation::{FailedLocalPoll, LocalPoll};
use self::discovery_fetch::fetch_version;
use self::fields::{FieldComparison, FieldKey, FieldLoadError};
use self::fixed_peers::FixedPeers;
use self::host_boot::HostBoot;
use self::informer::{Change, WatchTarget};
use self::leases::{EndedLeases, annotated_addresses, lease_snapshot};
use self::listed_servers::certificate_names;
use self::own_lease::{Annotations, OwnLease};
use self::permitted_networks::{is_permitted, keep_permitted_server, remove_addresses};
use self::policies::{Liveness, PolicyTracker};
use self::policy_file::PolicyFile;
use self::policy_watch::PolicyEvent;
use self::records::RecordStore;
pub(crate) use self::records::StoredRecords;
pub(crate) use self::state_dir::StateDir;
use crate::bridge_headers::bridge_of;
use crate::cluster_state::{Cluster, ControllerRequests, PolicyWrite, ResyncHint};
use crate::control::internal_client::{InternalClient, InternalResponse, InternalTarget};
use crate::control::openapi_merger;
use crate::discovery_view::View;
use crate::discovery_view::freshness::{LocalDiscoveryState, SETTLING_PERIOD};
use crate::health::UpstreamHealth;
use crate::metrics::peers::SyncError;
use crate::peer_config::{PeerRegistry, PeeringConfig};
use crate::server_report::ServerReport;
use crate::state::GatewayState;

/// The interval between two checks for due work.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

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

const LEASES: WatchTarget<'static> = WatchTarget {
    path: lease::LEASES_PATH,
    selector: "&labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver",
    page_size: 500,
    description: "identity Leases",
};
const API_SERVICES: WatchTarget<'static> = WatchTarget {
    path: "/apis/apiregistration.k8s.io/v1/apiservices",
    selector: "",
    page_size: 500,
    description: "APIServices",
};
/// Each can have the maximum size of an object: a small page bounds the memory.
const CUSTOM_RESOURCES: WatchTarget<'static> = WatchTarget {
    path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    selector: "",
    page_size: 20,
    description: "CustomResourceDefinitions",
};

/// kube-apiserver writes one, with all addresses.
pub(crate) const ENDPOINT_SLICES: WatchTarget<'_> = WatchTarget {
    path: endpoint_slice::ENDPOINT_SLICES_PATH,
    selector: endpoint_slice::SELECTOR,
    page_size: 100,
    description: "EndpointSlices",
};

/// An input of the controller.
enum Event {
    Lease(Change<IdentityLease>),
    ApiService(Change<ApiService>),
    CustomResource(Change<CustomResourceDefinition>),
    Endpoints(Change<EndpointSlice>),
    /// The names of the serving certificate at a listed address.
    Certificate(SocketAddr, Result<Vec<String>, String>),
    Policies(PolicyEvent),
    Peer(Identity, PeerPoll),
    Local(Result<ServedApis, String>, LocalPoll),
    Fields(FieldKey, Result<ServerFields, FieldLoadError>),
}

/// The result of polling a peer.
struct PeerPoll {
    outcome: Result<ServedApis, String>,
    /// Whether the peer has answered the first request.
    has_answered: bool,
    /// The address, and the identity of the server whose bridge has answered there, if the bridge
    /// has named it.
    bridge_at: Option<(SocketAddr, Option<Identity>)>,
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

impl From<Change<EndpointSlice>> for Event {
    fn from(change: Change<EndpointSlice>) -> Self {
        Self::Endpoints(change)
    }
}

/// Maintains the cluster snapshot until the bridge departs. Then it announces the departure and
/// withdraws the published address; `departed` is notified when that is done.
#[allow(clippy::too_many_lines)] // the owner of all parts
pub(crate) async fn run(
    bridge: Arc<GatewayState>,
    peering_config: PeeringConfig,
    health: Arc<ArcSwap<UpstreamHealth>>,
    requests: ControllerRequests,
    mut stored: StoredRecords,
    departed: oneshot::Sender<()>,
) {
    tracing::info!(identity = %peering_config.identity, address = %peering_config.address, "peering is enabled");
    let client = Arc::new(InternalClient::new(bridge.clone()));
    let (event_sender, mut events) = mpsc::channel(EVENT_QUEUE_LEN);
    let mut tasks = JoinSet::new();
    spawn_informers(&mut tasks, &client, &event_sender, &peering_config);
    tasks.spawn(openapi_merger::run(client.clone(), requests.merges));
    let (mut hints, mut refreshes) = (requests.hints, requests.refreshes);
    let (mut policy_writes, mut confirmations) = (requests.policy_writes, requests.confirmations);
    let policy_file = (stored.state.as_ref()).and_then(|it| it.path().map(PolicyFile::new));
    let known_policies = std::mem::take(&mut stored.policies);

    let (publish, published) = watch::channel(Some((
        peering_config.identity.clone(),
        peering_config.address,
    )));
    let (found, mut addresses) = watch::channel(Addresses::new());
    let registry_status = peering_config.registry_status();
    let registry_reporter = peering_config.registry_reporter();
    let stored = stored.keep_permitted(&peering_config.networks);
    let peer_addresses = PeerAddresses::new(&peering_config);
    let fixed_peers = (peering_config.registry.fixed_peers())
        .map(|servers| FixedPeers::new(peering_config.identity.clone(), servers));
    let liveness = match &fixed_peers {
        None => Liveness::Leases,
        Some(_) => Liveness::Answers {
            since: Instant::now(),
        },
    };
    let (registry, annotations) = registry_and_annotations(peering_config.registry);
    let record_registry = (registry.clone()).filter(|_| annotations == Annotations::Nothing);
    let registry = registry.map(|it| tokio::spawn(async move { it.run(published, found).await }));
    let host = HostBoot::read();
    if peering_config.state_dir.is_some() {
        host.warn_if_unreadable();
    }
    let mut peer_table = empty_peer_table(&peering_config.identity, &peer_addresses, &host);
    let (records, mut found_records) = RecordStore::start(
        peering_config.identity.clone(),
        (peering_config.own_addresses.server, peering_config.address),
        bridge.live.serving_keys.load_full(),
        record_registry,
        stored,
        &mut peer_table,
    );
    let mut controller = PeerController {
        policies: PolicyTracker::new(bridge.guards.admission, liveness, policy_file)
            .retained_for(bridge.guards.retention)
            .with_known(known_policies),
        peer_table,
        records,
        shared_tracker: SharedGroupVersionTracker::new(),
        informers: InformerStates::default(),
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
        addresses: peer_addresses,
        annotations,
        host,
        lease_status: peering_config.lease_status,
        fixed_peers,
        was_ready: false,
        identity: peering_config.identity,
        shared: None,
        view: None,
        local_discovery: LocalDiscoveryState::default(),
        next_settling_poll: Instant::now(),
        refresh_waiters: Vec::new(),
        next_refresh_waiters: Vec::new(),
        local_polled: false,
        confirmation_waiters: Vec::new(),
        failed_local_poll: None,
        refreshed_doubts: 0,
        discovered: BTreeSet::new(),
        fields: FieldComparison::of(peering_config.field_guard, peering_config.state_dir)
            .map(|fields| fields.retained_for(bridge.guards.retention)),
        client,
        events: event_sender,
    };
    if let Some(fields) = &mut controller.fields
        && let Some(cache) = fields.cache()
    {
        let stored = fields::load_stored(cache).await;
        fields.set_stored(stored, Instant::now(), SystemTime::now());
    }
    let (mut drain, mut count) = (bridge.drain.clone(), 0);
    let mut ticks = interval(TICK_INTERVAL);
    loop {
        tokio::select! {
            () = drain.not_ready() => break,
            Some(event) = events.recv() => controller.handle_events(event, &mut events),
            Some(hint) = hints.recv() => controller.on_hint(hint),
            Some(write) = policy_writes.recv() => controller.on_policy_write(write),
            Some(reply) = confirmations.recv() => controller.confirm_servers(reply, &mut confirmations),
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
        controller.start_policy_watches(&mut tasks);
        while tasks.try_join_next().is_some() {}
    }
    // Nothing is read any more: discovery comes from the local server, and no request waits.
    drop((refreshes, confirmations, policy_writes, hints));
    controller.informers.watched_since = None;
    controller.publish();
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
        PeerRegistry::Registry(registry) | PeerRegistry::Fixed(registry, _) => {
            (Some(registry.into()), Annotations::Nothing)
        }
        PeerRegistry::File(registry) => (Some(registry.into()), Annotations::Records),
        PeerRegistry::Leases => (None, Annotations::AddressesAndRecords),
        PeerRegistry::None => (None, Annotations::Records),
    }
}

/// An empty peer table that waits for the registry to be read.
fn empty_peer_table(own: &Identity, addresses: &PeerAddresses, host: &HostBoot) -> PeerTable {
    let mut peer_table = PeerTable::new(own.clone());
    if addresses.are_in_file() {
        peer_table = peer_table.with_addresses_in_file();
    }
    peer_table.set_host_clock(host.clock());
    peer_table.await_registry();
    peer_table
}

fn spawn_informers(
    tasks: &mut JoinSet<()>,
    client: &Arc<InternalClient>,
    events: &mpsc::Sender<Event>,
    peering_config: &PeeringConfig,
) {
    let handles = || (client.clone(), events.clone());
    if peering_config.registry.fixed_peers().is_none() {
        let (api, to) = handles();
        tasks.spawn(async move { informer::run::<IdentityLease, _>(&api, LEASES, &to).await });
    }
    let (api, to) = handles();
    tasks.spawn(async move { informer::run::<ApiService, _>(&api, API_SERVICES, &to).await });
    let (api, to) = handles();
    tasks.spawn(async move {
        informer::run::<CustomResourceDefinition, _>(&api, CUSTOM_RESOURCES, &to).await;
    });
    if peering_config.reads_endpoints {
        let (api, to) = handles();
        tasks.spawn(async move {
            informer::run::<EndpointSlice, _>(&api, ENDPOINT_SLICES, &to).await;
        });
    }
}

/// How far the objects of one kind are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum InformerState {
    #[default]
    Unknown,
    /// All were listed once.
    Listed,
    /// Changes arrive as events.
    Watched,
}

impl InformerState {
    /// Whether events report changes from here on. They do only after a list.
    fn set_watched(&mut self, is_watched: bool) {
        *self = match (is_watched, *self) {
            (true, _) => Self::Watched,
            (false, Self::Unknown) => Self::Unknown,
            (false, Self::Listed | Self::Watched) => Self::Listed,
        };
    }
}

/// How far the kinds are known that all servers share.
#[derive(Debug, Default)]
struct InformerStates {
    api_services: InformerState,
    custom_resources: InformerState,
    /// Since when both are watched.
    watched_since: Option<Instant>,
}

impl InformerStates {
    fn least(&self) -> InformerState {
        self.api_services.min(self.custom_resources)
    }

    /// A watch was opened or has ended.
    fn note_watch(&mut self, now: Instant) {
        let is_watched = self.least() == InformerState::Watched;
        self.watched_since = is_watched.then(|| self.watched_since.unwrap_or(now));
    }
}

/// The state of the controller.
struct PeerController {
    client: Arc<InternalClient>,
    events: mpsc::Sender<Event>,
    peer_table: PeerTable,
    records: RecordStore,
    policies: PolicyTracker,
    shared_tracker: SharedGroupVersionTracker,
    informers: InformerStates,
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
    addresses: PeerAddresses,
    /// The status of reading Leases, where Leases are the registry.
    lease_status: Arc<StatusReporter>,
    /// The peers, if they are configured and have no Leases.
    fixed_peers: Option<FixedPeers>,
    was_ready: bool,
    identity: Identity,
    shared: Option<Arc<SharedGroupVersions>>,
    view: Option<Arc<View>>,
    /// Whether discovery of the local server can be out of date.
    local_discovery: LocalDiscoveryState,
    next_settling_poll: Instant,
    /// Requests that wait for the poll of the local server in progress.
    refresh_waiters: Vec<oneshot::Sender<()>>,
    /// Requests that wait for the next poll of the local server.
    next_refresh_waiters: Vec<oneshot::Sender<()>>,
    /// The poll of the local server has ended.
    local_polled: bool,
    /// Writes that wait for servers that may have been replaced, and since when.
    confirmation_waiters: Vec<(Instant, oneshot::Sender<()>)>,
    /// The last poll of the local server that has failed.
    failed_local_poll: Option<FailedLocalPoll>,
    /// The signs of a replaced local server that have caused a poll.
    refreshed_doubts: u64,
    /// Peers whose last poll succeeded, so that changes are logged once.
    discovered: BTreeSet<Identity>,
    /// The fields of all servers; `None` with `--guard-fields=off`.
    fields: Option<FieldComparison>,
}

impl PeerController {
    /// Announces the departure of the bridge, withdraws what it has published, and notifies
    /// `departed`. Then, while the bridge drains, deletes the Lease of its server if the server
    /// ends.
    async fn depart(&mut self, withdraw: impl Future<Output = ()>, departed: oneshot::Sender<()>) {
        if self.fixed_peers.is_some() {
            // Nothing is published.
            let _ = departed.send(());
            return;
        }
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
        self.policies.notify_waiters();
        self.notify_refresh_waiters();
        self.notify_confirmation_waiters();
    }

    fn handle_event(&mut self, event: Event) {
        let now = Instant::now();
        let jitter = self.jitter();
        match event {
            Event::Fields(key, result) => {
                if let Some(fields) = &mut self.fields {
                    fields.record(key, result, now);
                }
            }
            Event::Lease(change) => self.on_lease_change(change, now),
            Event::ApiService(change) => {
                if let Some(is_open) = change.opens_watch() {
                    self.informers.api_services.set_watched(is_open);
                    return self.on_watch_change(is_open, now);
                }
                self.begin_settling(now);
                match change {
                    Change::Listed(all) => {
                        self.shared_tracker.set_api_services(&all, now);
                        self.informers.api_services = InformerState::Listed;
                    }
                    Change::Event(event) => {
                        if !self.shared_tracker.on_api_service(&event, now) {
                            // Only its status has changed: the set of shared APIs is the same.
                            return self.local_schedule.refresh_now(now);
                        }
                    }
                    Change::Failed(_) | Change::WatchBegan | Change::WatchEnded => return,
                }
                self.update_shared();
                self.local_schedule.refresh_now(now);
            }
            Event::CustomResource(change) => {
                if let Some(is_open) = change.opens_watch() {
                    self.informers.custom_resources.set_watched(is_open);
                    return self.on_watch_change(is_open, now);
                }
                self.begin_settling(now);
                match change {
                    Change::Listed(all) => {
                        self.shared_tracker.set_crds(&all, now);
                        self.informers.custom_resources = InformerState::Listed;
                    }
                    Change::Event(event) => {
                        if !self.shared_tracker.on_crd(&event, now) {
                            return self.local_schedule.refresh_now(now);
                        }
                    }
                    Change::Failed(_) | Change::WatchBegan | Change::WatchEnded => return,
                }
                self.update_shared();
                self.local_schedule.refresh_now(now);
            }
            Event::Endpoints(change) => self.on_endpoints_change(change, now),
            Event::Certificate(address, names) => {
                if (self.addresses.listed_servers).on_certificate(address, names, now, jitter) {
                    self.apply_addresses(now);
                }
            }
            Event::Policies(event) => self.policies.on_event(event, now),
            Event::Peer(identity, poll) => {
                let PeerPoll {
                    outcome,
                    has_answered,
                    bridge_at,
                } = poll;
                let has_failed = outcome.is_err();
                let metrics = self.client.bridge.metrics.peers();
                let name = self.name_of(&identity);
                if self.peer_table.polls_fallback(&identity) {
                    // The state of the peer is that of its bridge.
                    tracing::debug!(peer = %name, problem = outcome.as_ref().err(), "a peer was polled directly, because its bridge does not answer");
                } else if let Err(problem) = &outcome {
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
                if let Some((address, bridge_of)) = bridge_at
                    && self.addresses.listed_servers.on_answer(address, bridge_of)
                {
                    self.apply_addresses(now);
                }
            }
            Event::Local(outcome, poll) => self.on_local_poll(outcome, poll, now, jitter),
        }
    }

    /// A watch of the APIs that all servers share was opened or has ended. Discovery is read again: changes
    /// may have been missed, or come without an event.
    fn on_watch_change(&mut self, is_open: bool, now: Instant) {
        self.informers.note_watch(now);
        if !is_open {
            self.begin_settling(now);
        }
        self.local_schedule.refresh_now(now);
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
            Change::Event(_) | Change::WatchBegan | Change::WatchEnded => {}
            Change::Failed(problem) => {
                self.lease_status.failed(Activity::Read, problem);
                let metrics = self.client.bridge.metrics.peers();
                metrics.sync_error(SyncError::Leases);
            }
        }
        if self.annotations == Annotations::Nothing {
            if self.addresses.listed_servers.is_used() {
                self.apply_addresses(now);
            }
            // The Lease of a rejected address may be created after the address.
            return self
                .peer_table
                .set_refused_addresses(&self.addresses.rejected);
        }
        let leases = self.ended.with_existing(&self.leases, now);
        let mut records = self.records.annotated(&leases, &self.addresses.networks);
        match self.annotations {
            Annotations::AddressesAndRecords => {
                let addresses = annotated_addresses(&leases, &records);
                self.set_addresses(addresses, now);
            }
            _ => records.values_mut().for_each(remove_addresses),
        }
        self.records.on_records_read(&records);
        self.peer_table.set_published_records(&records, now);
        if self.addresses.listed_servers.is_used() {
            self.apply_addresses(now);
        }
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
                if (record.server).is_some_and(|it| !is_permitted(it, &self.addresses.networks)) {
                    keep_permitted_server(Arc::make_mut(record), &self.addresses.networks);
                }
            }
            self.records.on_records_read(&all);
            self.peer_table.set_published_records(&all, Instant::now());
            if self.addresses.listed_servers.is_used() {
                self.apply_addresses(Instant::now());
            }
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
            ResyncHint::PeerReturned(identity) => self.peer_table.refresh(&identity, now),
            ResyncHint::Observed => self.peer_table.recheck_observed(now),
        }
    }

    /// A client has written an admission policy: when it gets its response, no write may miss it.
    fn on_policy_write(&mut self, write: PolicyWrite) {
        self.policies.on_write(write);
        self.publish();
        self.policies.notify_waiters();
    }

    /// Whether time has changed which policies are in force.
    fn policies_have_changed(&mut self, now: Instant) -> bool {
        let before = self.policies.current();
        if self.policies.is_tracking() {
            let peers = self.peer_table.snapshot();
            self.policies.update(self.local.as_deref(), &peers, now);
        }
        !Arc::ptr_eq(&before, &self.policies.current())
    }

    fn start_policy_watches(&mut self, tasks: &mut JoinSet<()>) {
        (self.policies).start_watches(tasks, &self.client, &self.events);
    }

    /// Performs due work. The local server may have another version after each restart, so it is
    /// polled when it becomes ready.
    fn reconcile(&mut self, health: &UpstreamHealth) {
        let now = Instant::now();
        let ready = *health == UpstreamHealth::Ready;
        let is_unsettled = (self.local_discovery.settling_until).is_some_and(|until| now < until);
        if is_unsettled && now >= self.next_settling_poll {
            self.next_settling_poll = now + SETTLING_POLL_INTERVAL;
            self.local_schedule.refresh_now(now);
        }
        let doubts = self.client.bridge.local_health.confirmation.doubts();
        if ready && (!self.was_ready || self.refreshed_doubts != doubts) {
            self.refreshed_doubts = doubts;
            self.local_schedule.refresh_now(now);
        }
        self.was_ready = ready;
        if let Some(fixed_peers) = &mut self.fixed_peers {
            fixed_peers.renew(&mut self.peer_table, now);
        } else if self.peer_table.leases_are_listed() {
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
        } else if expired || self.policies_have_changed(now) {
            self.publish();
        }
        self.policies.save(now);
    }

    /// Starts the polls that are due.
    fn start_polls(&mut self, tasks: &mut JoinSet<()>) {
        self.start_field_loads(tasks);
        let now = Instant::now();
        if self.local_schedule.begin_if_due(now) {
            self.refresh_waiters.append(&mut self.next_refresh_waiters);
            let (client, events) = (self.client.clone(), self.events.clone());
            let (known, shared) = (self.local.clone(), self.shared.clone());
            let poll_begin = LocalPoll {
                began: now,
                doubts: client.bridge.local_health.confirmation.doubts(),
            };
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
                let _ = events.send(Event::Local(outcome, poll_begin)).await;
            });
        }
        for address in self.addresses.listed_servers.take_due(now) {
            let (client, events) = (self.client.clone(), self.events.clone());
            tasks.spawn(async move {
                let names = certificate_names(&client.bridge, address).await;
                let _ = events.send(Event::Certificate(address, names)).await;
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
                let bridge_at = OnceLock::new();
                let rest = |version: InternalResponse| {
                    // The peer answers requests even if the rest of the poll fails.
                    peer.health.mark_reachable();
                    let _ = bridge_at.set(bridge_of(&version.headers));
                    note_report(&client, &peer, &version);
                    let known = peer.served.as_deref();
                    discovery_fetch::fetch(&client, target, version, known, shared.as_deref())
                };
                let (outcome, has_answered) = poll(poll_timeout, first, rest).await;
                let metrics = client.bridge.metrics.peers();
                metrics.polled(&peer, outcome.is_ok());
                if !has_answered {
                    peer.health.record_timeout(began.elapsed());
                    peer.health.record_unanswered_poll();
                }
                let poll = PeerPoll {
                    outcome,
                    has_answered,
                    bridge_at: peer.address.zip(bridge_at.into_inner()),
                };
                let _ = events.send(Event::Peer(peer.identity.clone(), poll)).await;
            });
        }
    }

    /// Loads the fields of servers that are not known yet.
    fn start_field_loads(&mut self, tasks: &mut JoinSet<()>) {
        let (Some(fields), Some(local), Some(shared)) =
            (&mut self.fields, &self.local, &self.shared)
        else {
            return;
        };
        let Some(cluster_handle) = &self.client.bridge.cluster_handle else {
            return;
        };
        let cluster = cluster_handle.cluster.load();
        if let Some(used) = fields.take_used(Instant::now()) {
            tasks.spawn(fields::note_use(used));
        }
        for needed in fields.take_needed(local, &cluster.peers, Instant::now()) {
            let (client, events) = (self.client.clone(), self.events.clone());
            let shared = shared.clone();
            tasks.spawn(async move {
                let result = fields::load(&client, &needed, &shared).await;
                let _ = events.send(Event::Fields(needed.key, result)).await;
            });
        }
    }

    fn publish(&mut self) {
        let Some(cluster_handle) = &self.client.bridge.cluster_handle else {
            return;
        };
        let peers = self.peer_table.snapshot();
        self.records.log_departures(&peers);
        if peers.leases_listed {
            (self.policies).update(self.local.as_deref(), &peers, Instant::now());
        }
        let policies = self.policies.current();
        let placement = self.client.bridge.metrics.placement();
        placement.dropped_policies(self.policies.take_dropped());
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
        if is_new && view.is_some() {
            let metrics = self.client.bridge.metrics.discovery();
            metrics.recomputed(began.elapsed());
        }
        self.view.clone_from(&view);
        let fields = match (&mut self.fields, &self.local, &self.shared) {
            (Some(fields), Some(local), Some(shared)) => {
                fields.differences(local, &peers, shared, Instant::now())
            }
            _ => Arc::default(),
        };
        cluster_handle.cluster.store(Arc::new(Cluster {
            local: self.local.clone(),
            local_health: self.client.bridge.local_health.clone(),
            peers,
            shared: self.shared.clone(),
            view,
            local_discovery: LocalDiscoveryState {
                watched_since: self.informers.watched_since,
                has_aggregated_apis: self.shared_tracker.has_aggregated_apis(),
                ..self.local_discovery
            },
            awaits_registry: self.records.is_awaiting_registry(Instant::now()),
            fields,
            policies,
        }));
    }

    /// An API that all servers share was created or deleted. Each server serves the change after
    /// some delay, without an event.
    fn begin_settling(&mut self, now: Instant) {
        self.local_discovery.settling_until = Some(now + SETTLING_PERIOD);
    }

    /// Takes over a change of the APIs that all servers share.
    fn update_shared(&mut self) {
        if self.informers.least() >= InformerState::Listed {
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

/// Keeps what a peer reports of itself, for the status page.
fn note_report(client: &InternalClient, peer: &Peer, version: &InternalResponse) {
    if let Some(cluster_handle) = &client.bridge.cluster_handle
        && version.status.is_success()
    {
        let report = ServerReport::parse(&version.headers, &version.body);
        let cluster = cluster_handle.cluster.load();
        let is_peer = |it: &Identity| *it == peer.identity || cluster.peers.get(it).is_some();
        (cluster_handle.reports).set(&peer.identity, report, is_peer);
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
        let unanswered = pending::<Result<(), String>>();
        let (outcome, has_answered) = poll(SHORT_TIMEOUT, unanswered, |()| good()).await;
        assert!(outcome.is_err() && !has_answered);
    }
}
