//! The parts of each server behind the bridge.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use skewbridge_http_engine::buffer_budget::BufferBudget;
use skewbridge_http_engine::drain::Drain;
use skewbridge_k8s_api::forwarding_headers::ViaToken;
use skewbridge_peer_directory::registry::FixedServer;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::random;
use crate::activity::Activity;
use crate::authentication_limit::AuthenticationLimit;
use crate::balancer::upstream_list::{ServerEntry, UpstreamList};
use crate::balancer::{Backend, BackendList, BalancedBackend};
use crate::cluster_state::{ClusterHandle, ControllerRequests};
use crate::config::{Config, UpstreamServer};
use crate::control::peer_controller::{StateDir, StoredRecords};
use crate::control::{peer_controller, self_test, upstream_probe};
use crate::discovery_view::CompleteDiscovery;
use crate::health::{BackendHealth, UpstreamHealth};
use crate::leaders::Leaders;
use crate::live_config::LiveConfig;
use crate::local_identity::LocalIdentity;
use crate::metrics::Metrics;
use crate::peer_config::{PeeringConfig, PeeringDisabled};
use crate::self_test::SelfTest;
use crate::signatures::Signatures;
use crate::state::GatewayState;
use crate::streams::Streams;
use crate::upstream::Pools;
use crate::vanishing::ledger::Ledger;

/// Builds backends.
pub(super) struct BackendFactory {
    config: Config,
    shared: ClientFacing,
    /// The servers behind the bridge, as each other's peers.
    servers: watch::Sender<Vec<FixedServer>>,
    /// The port for clients.
    listening: u16,
    /// `--state-dir`.
    state: Option<StateDir>,
}

/// What the states of all backends share.
struct ClientFacing {
    live: Arc<LiveConfig>,
    metrics: Metrics,
    activity: Arc<Activity>,
    drain: Drain,
    via: Arc<ViaToken>,
    signatures: Option<Arc<Signatures>>,
    logged_components: Arc<Mutex<BTreeSet<(String, u16)>>>,
    authentication_limit: Arc<AuthenticationLimit>,
    buffers: Arc<BufferBudget>,
    ledger: Arc<Ledger>,
    leaders: Arc<Leaders>,
}

/// A backend, and what its tasks need.
pub(super) struct BackendParts {
    pub(super) backend: Arc<Backend>,
    pub(super) health: BackendHealth,
    /// `None` without peering.
    controller: Option<(PeeringConfig, ControllerRequests)>,
}

impl BackendFactory {
    pub(super) fn new(
        config: &Config,
        live: &Arc<LiveConfig>,
        (metrics, activity): (&Metrics, &Arc<Activity>),
        drain: &Drain,
        ledger: &Arc<Ledger>,
        listening: u16,
        state: Option<StateDir>,
    ) -> io::Result<Self> {
        let shared = ClientFacing {
            live: live.clone(),
            metrics: metrics.clone(),
            activity: activity.clone(),
            drain: drain.clone(),
            via: Arc::new(ViaToken::new(random()?)),
            signatures: Signatures::of(config, metrics.signatures()).map(Arc::new),
            logged_components: Arc::default(),
            authentication_limit: Arc::new(AuthenticationLimit::of(&config.limits)),
            buffers: buffer_budget(config, metrics),
            ledger: ledger.clone(),
            leaders: Arc::default(),
        };
        Ok(Self {
            config: config.clone(),
            shared,
            servers: watch::Sender::default(),
            listening,
            state,
        })
    }

    /// Sets the servers behind the bridge, as each other's peers.
    pub(super) fn set_servers(&self, list: &UpstreamList) {
        let fixed = |entry: &ServerEntry| FixedServer {
            identity: entry.identity.clone(),
            host: entry.server.host.clone(),
            port: entry.server.port,
        };
        let all: Vec<_> = list.entries().iter().map(fixed).collect();
        self.servers.send_if_modified(|before| {
            let is_changed = *before != all;
            *before = all;
            is_changed
        });
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Removes the state of a server that is no longer behind the bridge.
    pub(super) fn remove(&self, server: &UpstreamServer) {
        self.shared.live.remove_targets(server);
        self.shared.metrics.remove_backend(&server.authority());
        if let Some(state) = &self.state {
            state.remove_upstream(&server.authority());
        }
    }

    /// What an earlier process has stored about other servers, and what other backends know of them.
    pub(super) fn stored_records(
        &self,
        entry: &ServerEntry,
        others: &BackendList,
    ) -> StoredRecords {
        let own = &entry.identity;
        let state = self.state.clone().map(|state| {
            if self.config.upstream.is_balanced() {
                state.for_upstream(own.clone(), self.servers.subscribe())
            } else {
                state
            }
        });
        let mut stored = StoredRecords::read(state);
        for other in others
            .iter()
            .filter_map(|it| it.state.cluster_handle.as_ref())
        {
            stored.add_view(own, other);
        }
        stored
    }

    fn peering_config(&self, entry: &ServerEntry) -> Result<PeeringConfig, PeeringDisabled> {
        if !self.config.upstream.is_balanced() {
            return PeeringConfig::of(&self.config, &self.shared.live, self.listening);
        }
        let own = FixedServer {
            identity: entry.identity.clone(),
            host: entry.server.host.clone(),
            port: entry.server.port,
        };
        PeeringConfig::of_backend(&self.config, &own, self.servers.subscribe())
    }

    pub(super) fn build(&self, entry: &ServerEntry) -> io::Result<BackendParts> {
        let Self { config, shared, .. } = self;
        let name = entry.server.authority();
        let (cluster_handle, controller) = match self.peering_config(entry) {
            Ok(peering_config) => {
                let (cluster_handle, requests) = cluster_handle_of(&peering_config);
                (Ok(cluster_handle), Some((peering_config, requests)))
            }
            Err(why) => {
                if entry.is_first() {
                    tracing::warn!(%why, "peering is disabled: no request is sent to another kube-apiserver because of what it serves");
                }
                (Err(why), None)
            }
        };
        let metrics = &shared.metrics;
        metrics.peers().set_peering_enabled(cluster_handle.is_ok());
        let self_test = Arc::new(SelfTest::default());
        let identity = cluster_handle.as_ref().map(|it| &it.local.identity);
        let traffic = shared.activity.server(identity.unwrap_or(&entry.identity));
        let targets = shared.live.targets_of(&entry.server);
        let targets = targets.ok_or_else(|| io::Error::other("no files for upstream"))?;
        let state = GatewayState {
            live: shared.live.clone(),
            targets,
            metrics: metrics.clone(),
            activity: shared.activity.clone(),
            traffic,
            drain: shared.drain.clone(),
            via: shared.via.clone(),
            upstream_version: ArcSwapOption::empty(),
            upstream_seen_ready: AtomicBool::new(false),
            limits: config.limits.clone(),
            default_host: default_host(&entry.server),
            access_log: config.logs.verbosity >= 2,
            next_drain_slot: AtomicU8::new(0),
            local_health: Arc::default(),
            peering_unavailable: matches!(&cluster_handle, Err(why) if *why != PeeringDisabled::GateOff),
            complete_discovery: CompleteDiscovery::of(&config.features),
            cluster_handle: cluster_handle.as_ref().ok().cloned(),
            lb_seed: AtomicU64::new(random()?),
            streams: Streams::new(config),
            self_test: self_test.clone(),
            bridge_user: config.upstream.bridge_user.clone(),
            signatures: shared.signatures.clone(),
            guards: config.peers.guards.clone(),
            logged_components: shared.logged_components.clone(),
            authentication_limit: shared.authentication_limit.clone(),
            buffers: shared.buffers.clone(),
            ledger: shared.ledger.clone(),
            leaders: shared.leaders.clone(),
        };
        let health = BackendHealth {
            name: name.clone(),
            check_name: entry.identity.to_string(),
            upstream: Arc::new(ArcSwap::from_pointee(UpstreamHealth::Unknown)),
            report: Arc::default(),
            is_draining: Arc::default(),
            local_health: state.local_health.clone(),
            cluster_handle,
            self_test,
        };
        let member = (config.upstream.is_balanced())
            .then(|| BalancedBackend::new(name.as_str().into(), metrics.backend(&name)));
        let backend = Backend {
            state: Arc::new(state),
            health: health.upstream.clone(),
            pools: (0..config.workers.get())
                .map(|_| Pools::default())
                .collect(),
            is_draining: health.is_draining.clone(),
            member,
        };
        Ok(BackendParts {
            backend: Arc::new(backend),
            health,
            controller,
        })
    }
}

impl BackendParts {
    /// Starts the tasks of a backend, which end when the set is dropped.
    pub(super) fn spawn(self, stored: StoredRecords, departed: oneshot::Sender<()>) -> JoinSet<()> {
        let (state, health) = (&self.backend.state, &self.backend.health);
        let report = self.health.report.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(self_test::run(state.clone(), health.clone()));
        let is_member = self.backend.member.is_some();
        tasks.spawn(upstream_probe::run(
            state.clone(),
            (health.clone(), report),
            is_member,
        ));
        if let Some((peering_config, requests)) = self.controller {
            tasks.spawn(peer_controller::run(
                state.clone(),
                peering_config,
                health.clone(),
                requests,
                stored,
                departed,
            ));
        } else {
            let _ = departed.send(());
        }
        tasks
    }
}

fn cluster_handle_of(peering_config: &PeeringConfig) -> (Arc<ClusterHandle>, ControllerRequests) {
    let mut local = LocalIdentity::new(peering_config.identity.clone(), peering_config.address);
    local.host = Some(peering_config.hostname.clone());
    let (mut cluster_handle, requests) = ClusterHandle::new(local);
    cluster_handle.registry = peering_config.registry_status();
    (Arc::new(cluster_handle), requests)
}

fn buffer_budget(config: &Config, metrics: &Metrics) -> Arc<BufferBudget> {
    let limits = &config.limits;
    let buffers = Box::new(metrics.buffers().clone());
    let stall_timeout = limits.unauthenticated_stall_timeout;
    BufferBudget::new(limits.max_buffered_bytes, stall_timeout, Some(buffers))
}

fn default_host(server: &UpstreamServer) -> HeaderValue {
    // A host that was parsed from a URL is a valid header value.
    HeaderValue::try_from(server.authority())
        .unwrap_or_else(|_| HeaderValue::from_static("localhost"))
}
