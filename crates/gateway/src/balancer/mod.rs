//! The kube-apiservers behind the bridge (`--upstream`, once or several times), and which of them gets
//! a request. For this request it is the local server, and the others are its peers.

mod p2c;
pub(crate) mod upstream_list;
mod watch_rebalance;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use skewbridge_peer_directory::Identity;
use tokio::time::{Instant, interval};

pub(crate) use self::p2c::{BackendSet, Readiness};
use self::p2c::{Candidate, choose};
use self::watch_rebalance::{WATCH_DRAIN_PERIOD, WatchRebalancer, WatchShare, shares_to_end};
use crate::backend_load::{BackendLoad, BackendRequest};
use crate::cluster_state::ResyncHint;
use crate::health::UpstreamHealth;
use crate::metrics::backends::BackendMetrics;
use crate::request_class::RequestClass;
use crate::state::GatewayState;
use crate::upstream::Pools;

/// The interval between two evaluations of the readiness of all backends.
const READINESS_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The time for which a backend must have been not ready before its watches are ended: longer than one lost
/// probe of a busy server.
const WATCH_DRAIN_DELAY: Duration = Duration::from_secs(2);

/// One kube-apiserver behind the bridge.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) state: Arc<GatewayState>,
    /// The result of the last probe.
    pub(crate) health: Arc<ArcSwap<UpstreamHealth>>,
    /// Connections to it, by worker.
    pub(crate) pools: Box<[Pools]>,
    /// Whether the backend drains: it gets no new requests while another backend is ready.
    pub(crate) is_draining: Arc<AtomicBool>,
    /// State that is needed only with several backends; `None` for a single backend.
    pub(crate) member: Option<BalancedBackend>,
}

/// One of several backends.
#[derive(Debug)]
pub(crate) struct BalancedBackend {
    /// Host and port.
    pub(crate) name: Arc<str>,
    load: Arc<BackendLoad>,
    metrics: BackendMetrics,
    watches: WatchRebalancer,
}

impl BalancedBackend {
    pub(crate) fn new(name: Arc<str>, metrics: BackendMetrics) -> Self {
        Self {
            load: BackendLoad::new(name.clone(), metrics.clone()),
            watches: WatchRebalancer::default(),
            metrics,
            name,
        }
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn begin(&self, class: RequestClass) -> BackendRequest {
        self.load.begin(class)
    }

    /// The load of this backend.
    pub(crate) fn load(&self) -> &Arc<BackendLoad> {
        &self.load
    }

    /// A request is sent to another backend.
    pub(crate) fn note_retry(&self) {
        self.metrics.retries.inc();
    }

    /// Resolves when a watch that begins now is to end, because another backend has too few.
    pub(crate) fn end_of_watch(&self, random: u64) -> impl Future<Output = ()> + Send + use<> {
        self.watches.end_of_watch(random)
    }

    /// The requests in flight of a class.
    pub(crate) fn in_flight(&self, class: RequestClass) -> i64 {
        self.load.in_flight(class)
    }
}

impl Backend {
    /// Whether it can be expected to serve a request.
    pub(crate) fn readiness(&self) -> Readiness {
        let is_failing = self.state.local_health.failure_signal.is_raised();
        let is_draining = self.is_draining.load(Ordering::Relaxed);
        if is_draining || **self.health.load() != UpstreamHealth::Ready {
            Readiness::NotReady
        } else if is_failing || self.state.unreadiness().is_some() || !self.is_confirmed() {
            Readiness::Degraded
        } else {
            Readiness::Ready
        }
    }

    /// Whether its APIs were read after its last outage, and the snapshots of the other backends include the
    /// outage: it may have another version since.
    fn is_confirmed(&self) -> bool {
        let has_peers = self.member.is_some() && self.state.cluster_handle.is_some();
        !has_peers || self.state.local_health.is_confirmed_everywhere()
    }

    fn candidate(&self, class: RequestClass) -> Candidate {
        Candidate {
            readiness: self.readiness(),
            in_flight: (self.member.as_ref()).map_or(0, |it| it.in_flight(class)),
        }
    }
}

/// All backends at one time; at least one. A request that has begun keeps them.
pub(crate) type BackendList = Vec<Arc<Backend>>;

/// All backends.
#[derive(Debug)]
pub(crate) struct Backends {
    all: ArcSwap<BackendList>,
    /// The state of the first backend at start. Client-related state is the same in all backends.
    client_facing: Arc<GatewayState>,
    /// Whether requests are spread over them.
    is_balanced: bool,
    /// The counter for random numbers.
    seed: AtomicU64,
}

impl Backends {
    /// `None` without any backend.
    pub(crate) fn new(all: BackendList, is_balanced: bool, seed: u64) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            client_facing: all.first()?.state.clone(),
            all: ArcSwap::from_pointee(all),
            is_balanced,
            seed: AtomicU64::new(seed),
        }))
    }

    pub(crate) fn all(&self) -> Arc<BackendList> {
        self.all.load_full()
    }

    /// Replaces all of them; `all` must not be empty.
    pub(crate) fn replace(&self, all: BackendList) {
        self.all.store(Arc::new(all));
    }

    pub(crate) fn client_facing(&self) -> &Arc<GatewayState> {
        &self.client_facing
    }

    /// Whether requests are spread over several.
    pub(crate) fn is_balanced(&self) -> bool {
        self.is_balanced
    }

    /// The index of the backend for a request that these backends have not served.
    pub(crate) fn choose(
        &self,
        all: &BackendList,
        tried: BackendSet,
        class: RequestClass,
    ) -> Option<usize> {
        if all.len() == 1 {
            return (!tried.contains(0)).then_some(0);
        }
        let random = self.random();
        choose(all.len(), tried, random, |index| {
            all[index].candidate(class)
        })
    }

    /// A random number: not a secret, but different for each call.
    pub(crate) fn random(&self) -> u64 {
        let count = self.seed.fetch_add(1, Ordering::Relaxed);
        watch_rebalance::splitmix64(count)
    }

    /// Updates the metric of readiness, and rebalances watches when the readiness of a backend changes.
    /// Runs until it is dropped.
    pub(crate) async fn follow_readiness(self: Arc<Self>) {
        if !self.is_balanced {
            return std::future::pending().await;
        }
        let mut watches = HashMap::<Arc<str>, WatchDrainState>::new();
        let mut ticks = interval(READINESS_CHECK_INTERVAL);
        loop {
            ticks.tick().await;
            let all = self.all();
            announce_outages(&all);
            let ready: Vec<_> = (all.iter())
                .map(|it| it.readiness() != Readiness::NotReady)
                .collect();
            let is_any_ready = ready.contains(&true);
            let mut has_returned = false;
            let is_present = |name: &Arc<str>| {
                let mut members = all.iter().filter_map(|it| it.member.as_ref());
                members.any(|it| it.name == *name)
            };
            watches.retain(|name, _| is_present(name));
            for (backend, ready) in all.iter().zip(&ready) {
                let Some(member) = &backend.member else {
                    continue;
                };
                let state = watches.entry(member.name.clone()).or_default();
                member.metrics.ready.set(i64::from(*ready));
                match state.update(*ready, is_any_ready, Instant::now()) {
                    WatchAction::None => {}
                    WatchAction::Drain => {
                        tracing::info!(upstream = %member.name, "a kube-apiserver is not ready: its watches are ended");
                        member.watches.begin(WatchShare::ALL, WATCH_DRAIN_PERIOD);
                    }
                    WatchAction::Rebalance => {
                        member.watches.cancel();
                        recheck(&all, backend);
                        has_returned = true;
                    }
                }
            }
            if has_returned {
                self.rebalance_watches(&all, &ready);
            }
        }
    }

    fn rebalance_watches(&self, all: &BackendList, ready: &[bool]) {
        let period = self.client_facing().limits.watch_rebalance_period;
        let members = all.iter().zip(ready).filter(|(_, ready)| **ready);
        let members: Vec<_> = members.filter_map(|(it, _)| it.member.as_ref()).collect();
        let count = |it: &&BalancedBackend| it.in_flight(RequestClass::LongRunning);
        let watches: Vec<_> = members.iter().map(count).collect();
        for (member, share) in members.iter().zip(shares_to_end(&watches)) {
            if !share.is_none() {
                tracing::info!(upstream = %member.name, "a kube-apiserver has returned: a part of the watches at another one is ended");
                member.watches.begin(share, period);
            }
        }
    }
}

/// Whether a backend that has not been tried can be expected to respond.
pub(crate) fn has_other_usable(all: &BackendList, tried: BackendSet) -> bool {
    let mut untried = (all.iter().enumerate()).filter(|(index, _)| !tried.contains(*index));
    untried.any(|(_, backend)| backend.readiness() != Readiness::NotReady)
}

/// The backend that is a peer of the others with this identity.
pub(crate) fn find_by_identity<'a>(
    all: &'a BackendList,
    identity: &Identity,
) -> Option<&'a Arc<Backend>> {
    all.iter().find(|it| {
        let cluster_handle = it.state.cluster_handle.as_ref();
        cluster_handle.is_some_and(|it| it.local.identity == *identity)
    })
}

/// Marks what the other backends know of a backend that was not available as unconfirmed: its server may
/// have another version now.
pub(crate) fn announce_outages(all: &BackendList) {
    for backend in all {
        let Some(cluster_handle) = &backend.state.cluster_handle else {
            continue;
        };
        let local_health = &backend.state.local_health;
        if local_health.is_announced() {
            continue;
        }
        let doubts = local_health.confirmation.doubts();
        let identity = &cluster_handle.local.identity;
        let others = all.iter().filter(|it| !Arc::ptr_eq(it, backend));
        let mut is_known = true;
        for other in others.filter_map(|it| it.state.cluster_handle.as_ref()) {
            let cluster = other.cluster.load();
            match cluster.peers.get(identity) {
                Some(peer) => peer.health.confirmation().doubt(),
                // Before, this view sends no request to any server.
                None => is_known &= !cluster.peers.leases_listed,
            }
        }
        if is_known {
            local_health.note_announced(doubts);
        }
    }
}

/// Makes the other backends read the APIs of a backend: its server may have another version now.
fn recheck(all: &BackendList, returned: &Backend) {
    let Some(returned) = &returned.state.cluster_handle else {
        return;
    };
    for backend in all {
        if let Some(cluster_handle) = &backend.state.cluster_handle {
            let identity = returned.local.identity.clone();
            cluster_handle.hint(ResyncHint::PeerReturned(identity));
        }
    }
}

/// Whether the watches at a backend have to end, by its readiness.
#[derive(Debug, Clone, Copy, Default)]
struct WatchDrainState {
    was_ready: bool,
    not_ready_since: Option<Instant>,
    is_drained: bool,
}

/// The effect of a change of readiness on watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchAction {
    None,
    /// Those at this backend are ended.
    Drain,
    /// The backend receives a share of the watches of the other backends.
    Rebalance,
}

impl WatchDrainState {
    fn update(&mut self, ready: bool, is_any_ready: bool, now: Instant) -> WatchAction {
        let was_ready = std::mem::replace(&mut self.was_ready, ready);
        if ready {
            self.not_ready_since = None;
            self.is_drained = false;
            return if was_ready {
                WatchAction::None
            } else {
                WatchAction::Rebalance
            };
        }
        let since = *self.not_ready_since.get_or_insert(now);
        // Without a ready backend, the clients would begin their watches at another one that is not ready.
        if self.is_drained || !is_any_ready || now.duration_since(since) < WATCH_DRAIN_DELAY {
            return WatchAction::None;
        }
        self.is_drained = true;
        WatchAction::Drain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_leave_a_backend_that_stays_not_ready_and_return_with_it() {
        let began = Instant::now();
        let mut watches = WatchDrainState::default();
        let rows = [
            (0, true, true, WatchAction::Rebalance),
            (200, true, true, WatchAction::None),
            (400, false, true, WatchAction::None),
            (600, true, true, WatchAction::Rebalance),
            (800, false, true, WatchAction::None),
            (2_700, false, true, WatchAction::None),
            (2_800, false, false, WatchAction::None),
            (3_000, false, true, WatchAction::Drain),
            (9_000, false, true, WatchAction::None),
            (9_200, true, true, WatchAction::Rebalance),
        ];
        for (millis, ready, is_any_ready, expected) in rows {
            let now = began + Duration::from_millis(millis);
            let change = watches.update(ready, is_any_ready, now);
            assert_eq!(change, expected, "after {millis} ms");
        }
    }
}
