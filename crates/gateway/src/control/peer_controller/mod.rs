//! The peer controller maintains the cluster snapshot: which servers exist, their addresses and
//! the APIs of each. It also publishes the address and the served record of the local server.
//!
//! One task owns this state. Other tasks poll servers and watch objects, and send it an [`Event`]
//! for each result. The snapshot for requests is replaced as a whole.

mod addresses;
mod confirmation;
mod departure;
mod discovery_fetch;
mod event_handler;
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
mod polls;
mod records;
mod snapshot;
mod state_dir;
mod watched_kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use skewbridge_field_sets::ServerFields;
use skewbridge_peer_directory::refresh_schedule::RefreshSchedule;
use skewbridge_peer_directory::registry::{Addresses, Registry, StatusReporter};
use skewbridge_peer_directory::{
    ApiService, CustomResourceDefinition, EndpointSlice, Identity, IdentityLease, PeerTable,
    ServedApis, SharedGroupVersionTracker, SharedGroupVersions,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::interval;

use self::addresses::PeerAddresses;
use self::confirmation::{FailedLocalPoll, LocalPoll};
use self::fields::{FieldComparison, FieldKey, FieldLoadError};
use self::fixed_peers::FixedPeers;
use self::host_boot::HostBoot;
use self::informer::Change;
use self::leases::EndedLeases;
use self::own_lease::{Annotations, OwnLease};
use self::policies::{Liveness, PolicyTracker};
use self::policy_file::PolicyFile;
use self::policy_watch::PolicyEvent;
use self::polls::PeerPoll;
use self::records::RecordStore;
pub(crate) use self::records::StoredRecords;
pub(crate) use self::state_dir::StateDir;
pub(crate) use self::watched_kinds::ENDPOINT_SLICES;
use self::watched_kinds::{InformerStates, spawn_informers};
use crate::cluster_state::{ControllerRequests, PolicyWrite, ResyncHint};
use crate::control::internal_client::InternalClient;
use crate::control::openapi_merger;
use crate::discovery_view::View;
use crate::discovery_view::freshness::LocalDiscoveryState;
use crate::health::UpstreamHealth;
use crate::peer_config::{PeerRegistry, PeeringConfig};
use crate::state::GatewayState;

/// The interval between two checks for due work.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// The interval between two polls of the local server during [`SETTLING_PERIOD`](crate::discovery_view::freshness::SETTLING_PERIOD).
const SETTLING_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Ticks between two checks for idle connections: 5 s.
const IDLE_CHECK_TICKS: u32 = 25;

/// The size of the event queue. Senders wait while it is full.
const EVENT_QUEUE_LEN: usize = 256;

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
    state: Arc<GatewayState>,
    peering_config: PeeringConfig,
    health: Arc<ArcSwap<UpstreamHealth>>,
    requests: ControllerRequests,
    mut stored: StoredRecords,
    departed: oneshot::Sender<()>,
) {
    tracing::info!(identity = %peering_config.identity, address = %peering_config.address, "peering is enabled");
    let client = Arc::new(InternalClient::new(state.clone()));
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
        state.live.serving_keys.load_full(),
        record_registry,
        stored,
        &mut peer_table,
    );
    let mut controller = PeerController {
        policies: PolicyTracker::new(state.guards.admission, liveness, policy_file)
            .retained_for(state.guards.retention)
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
            .map(|fields| fields.retained_for(state.guards.retention)),
        client,
        events: event_sender,
    };
    if let Some(fields) = &mut controller.fields
        && let Some(cache) = fields.cache()
    {
        let stored = fields::load_stored(cache).await;
        fields.set_stored(stored, Instant::now(), SystemTime::now());
    }
    let (mut drain, mut count) = (state.drain.clone(), 0);
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
    // Reading has ended: discovery comes from the local server, and no request waits.
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
    fn tick(&mut self, count: u32, health: &UpstreamHealth) {
        if count.is_multiple_of(IDLE_CHECK_TICKS) {
            self.client.close_idle_connections();
            // Periodically, because the monotonic clock of the process stops while the host
            // sleeps.
            self.peer_table.set_host_clock(self.host.clock());
        }
        self.reconcile(health);
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
}
