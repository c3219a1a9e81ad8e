//! Follows the `EndpointSlices` of the Service `default/kubernetes` with `--upstream=endpoints`: starts
//! a backend for each new address, and drains and removes backends that are no longer listed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use skewbridge_peer_directory::endpoint_slice::KubernetesEndpoints;
use skewbridge_peer_directory::{EndpointSlice, Identity};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use super::backends::BackendFactory;
use crate::balancer::upstream_list::UpstreamList;
use crate::balancer::{Backend, Backends};
use crate::control::internal_client::{InternalClient, InternalTarget};
use crate::control::peer_controller::ENDPOINT_SLICES;
use crate::control::peer_controller::informer::{Change, list_and_watch};
use crate::health::{BackendHealth, UpstreamHealth};
use crate::peer_config::OwnAddresses;

/// The interval between two checks for servers that are due to be drained or removed, and between
/// two attempts to read the `EndpointSlices`.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The size of the queue of changes. The watch waits while it is full.
const CHANGE_QUEUE_LEN: usize = 16;

/// The tasks of each backend, by its identity.
type BackendTasks = HashMap<String, JoinSet<()>>;

/// The servers behind the bridge, as the `EndpointSlices` list them.
pub(super) struct EndpointBackends {
    list: UpstreamList,
    factory: BackendFactory,
    backends: Arc<Backends>,
    health: Arc<ArcSwap<Vec<BackendHealth>>>,
    endpoints: KubernetesEndpoints,
    own: OwnAddresses,
}

/// A watch of the `EndpointSlices` through one backend.
struct Watch {
    through: Arc<Backend>,
    task: JoinSet<Result<(), String>>,
}

impl EndpointBackends {
    pub(super) fn new(
        list: UpstreamList,
        factory: BackendFactory,
        backends: Arc<Backends>,
        health: Arc<ArcSwap<Vec<BackendHealth>>>,
    ) -> Self {
        let listen = &factory.config().listen;
        let own = OwnAddresses {
            bridge: SocketAddr::new(listen.bind_address, listen.secure_port),
            server: None,
            local_port: None,
        };
        Self {
            list,
            factory,
            backends,
            health,
            endpoints: KubernetesEndpoints::default(),
            own,
        }
    }

    /// Runs until it is dropped, and with it the tasks of all backends.
    pub(super) async fn run(mut self, mut tasks: BackendTasks) {
        let (events, mut changes) = mpsc::channel(CHANGE_QUEUE_LEN);
        let mut watch: Option<Watch> = None;
        let mut attempts = 0;
        let mut last_problem = String::new();
        let mut ticks = interval(CHECK_INTERVAL);
        loop {
            tokio::select! {
                Some(change) = changes.recv() => {
                    if matches!(change, Change::Listed(_)) {
                        last_problem.clear();
                    }
                    self.on_change(change);
                }
                _ = ticks.tick() => {
                    if let Some(problem) = ended(&mut watch) {
                        if problem != last_problem {
                            tracing::warn!(%problem, "cannot watch the EndpointSlices of default/kubernetes; the known kube-apiservers stay in use");
                        }
                        last_problem = problem;
                        watch = None;
                    }
                    if watch.is_none() {
                        watch = self.begin_watch(attempts, &events);
                        attempts += 1;
                    }
                }
            }
            self.update(&mut tasks);
        }
    }

    fn on_change(&mut self, change: Change<EndpointSlice>) {
        match change {
            Change::Listed(all) => self.endpoints.set_all(all),
            Change::Event(event) => self.endpoints.apply(event),
            Change::Failed(_) | Change::WatchBegan | Change::WatchEnded => return,
        }
        let mut addresses: BTreeSet<_> = self.endpoints.addresses();
        // The bridge's own addresses are excluded: it would send requests to itself.
        addresses.retain(|it| !self.own.contains(*it));
        let left_out = self.list.set_listed(&addresses);
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "the EndpointSlices list more kube-apiservers than are supported"
            );
        }
    }

    /// Watches through a ready backend; each attempt uses another one.
    fn begin_watch(
        &self,
        attempts: usize,
        events: &mpsc::Sender<Change<EndpointSlice>>,
    ) -> Option<Watch> {
        let all = self.backends.all();
        let best = all.iter().map(|it| it.readiness()).min()?;
        let best: Vec<_> = all.iter().filter(|it| it.readiness() == best).collect();
        let through = (*best.get(attempts % best.len())?).clone();
        let (state, events) = (through.state.clone(), events.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let client = InternalClient::new(state);
            let server = InternalTarget::Upstream;
            list_and_watch::<EndpointSlice, _>(&client, server, ENDPOINT_SLICES, &events).await
        });
        Some(Watch { through, task })
    }

    /// Applies the list: starts, drains and removes backends.
    fn update(&mut self, tasks: &mut BackendTasks) {
        let all = self.backends.all();
        let health = self.health.load_full();
        let ready: HashSet<_> = (health.iter())
            .filter(|it| **it.upstream.load() == UpstreamHealth::Ready)
            .map(|it| it.check_name.as_str())
            .collect();
        let is_ready = |identity: &Identity| ready.contains(Identity::as_str(identity));
        let removed = self.list.update(is_ready, Instant::now());
        let mut known: HashMap<_, _> = (health.iter().zip(all.iter()))
            .map(|(health, backend)| {
                let name = health.check_name.clone();
                (name, (health.clone(), backend.clone()))
            })
            .collect();
        let is_complete =
            (self.list.entries().iter()).all(|entry| known.contains_key(entry.identity.as_str()));
        if !removed.is_empty() || !is_complete {
            self.factory.set_servers(&self.list);
        }
        let (mut new_health, mut new_backends) = (Vec::new(), Vec::new());
        for entry in self.list.entries() {
            let (health, backend) = match known.remove(entry.identity.as_str()) {
                Some(known) => known,
                None => match self.factory.build(entry) {
                    Ok(parts) => {
                        let (health, backend) = (parts.health.clone(), parts.backend.clone());
                        tracing::info!(upstream = %health.name, "a kube-apiserver is listed: it gets requests when it is ready");
                        // Nothing is published, so nothing waits for the departure.
                        let (departed, _) = oneshot::channel();
                        let stored = self.factory.stored_records(entry, &all);
                        tasks.insert(health.check_name.clone(), parts.spawn(stored, departed));
                        (health, backend)
                    }
                    Err(error) => {
                        tracing::error!(%error, "a kube-apiserver is listed and cannot be used");
                        continue;
                    }
                },
            };
            let was_draining = (health.is_draining).swap(entry.is_draining(), Ordering::Relaxed);
            if entry.is_draining() && !was_draining {
                tracing::info!(upstream = %health.name, "a kube-apiserver is no longer listed: it gets no new requests");
            }
            new_health.push(health);
            new_backends.push(backend);
        }
        if removed.is_empty() && is_complete || new_backends.is_empty() {
            return;
        }
        self.backends.replace(new_backends);
        self.health.store(Arc::new(new_health));
        for entry in removed {
            tracing::info!(upstream = %entry.server.authority(), "a kube-apiserver that is no longer listed is removed");
            tasks.remove(entry.identity.as_str());
            self.factory.remove(&entry.server);
        }
    }
}

/// Why a watch has ended or must be replaced: its server is no longer ready.
fn ended(watch: &mut Option<Watch>) -> Option<String> {
    let Watch { through, task } = watch.as_mut()?;
    if let Some(joined) = task.try_join_next() {
        let outcome = joined.unwrap_or_else(|error| Err(error.to_string()));
        return Some(outcome.err().unwrap_or_default());
    }
    let is_ready = !matches!(**through.health.load(), UpstreamHealth::NotReady(_));
    (!is_ready).then(|| "the kube-apiserver is not ready any more".to_owned())
}
