//! The connection pools of one worker: to upstream with each identity, and to peers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use skewbridge_http_engine::client::PoolConfig;
use skewbridge_peer_directory::{Identity, KeyDigest, Peer};

use super::metrics::UpstreamMetrics;
use super::{PeerConnectionIdentity, Pool, Target, UpstreamIdentity, UpstreamTargets};
use crate::metrics::Metrics;

/// Replaced when the files of a target change. Requests in flight on the old pools end there.
#[derive(Debug, Default)]
pub struct Pools(Mutex<Option<CurrentPools>>);

#[derive(Debug)]
struct CurrentPools {
    targets: Arc<UpstreamTargets>,
    plain: Arc<Pool>,
    anonymous: Arc<Pool>,
    front_proxy: Option<Arc<Pool>>,
    peers: HashMap<(Identity, SocketAddr, PeerConnectionIdentity), PeerPool>,
}

/// A pool, and the pinned keys that it uses.
#[derive(Debug)]
struct PeerPool {
    pins: Vec<KeyDigest>,
    pool: Arc<Pool>,
}

/// The metric label of peers, beside those of upstream identities.
const PEER: &str = "peer";

impl Pools {
    /// The pool of an identity.
    pub(crate) fn of(
        &self,
        identity: UpstreamIdentity,
        targets: &ArcSwap<UpstreamTargets>,
        metrics: &Metrics,
    ) -> Option<Arc<Pool>> {
        let mut current = self.lock();
        let current = refresh(&mut current, targets, metrics);
        match identity {
            UpstreamIdentity::Plain => Some(current.plain.clone()),
            UpstreamIdentity::FrontProxy => current.front_proxy.clone(),
        }
    }

    /// The pool of anonymous callers and of tokens that kube-apiserver has not accepted yet,
    /// without a certificate. kube-apiserver closes a connection after an anonymous request or a
    /// 401, so accepted tokens use other connections.
    pub(crate) fn anonymous(
        &self,
        targets: &ArcSwap<UpstreamTargets>,
        metrics: &Metrics,
    ) -> Arc<Pool> {
        let mut current = self.lock();
        refresh(&mut current, targets, metrics).anonymous.clone()
    }

    /// The pool of a peer, if its address is known and there is a front-proxy certificate.
    pub(crate) fn to(
        &self,
        peer: &Peer,
        identity: PeerConnectionIdentity,
        targets: &ArcSwap<UpstreamTargets>,
        metrics: &Metrics,
    ) -> Option<Arc<Pool>> {
        let address = peer.address?;
        let key = (peer.identity.clone(), address, identity);
        let pins = &peer.record.serving_keys;
        let mut current = self.lock();
        let current = refresh(&mut current, targets, metrics);
        match current.peers.get(&key) {
            Some(known) if known.pins == *pins => Some(known.pool.clone()),
            _ => {
                let target = current.targets.peer.as_ref()?;
                let target = target.at(address, pins.clone(), identity)?;
                let pool = pool(target, PEER, metrics);
                let known = PeerPool {
                    pins: pins.clone(),
                    pool: pool.clone(),
                };
                current.peers.insert(key, known);
                Some(pool)
            }
        }
    }

    /// Closes idle connections, and removes pools of former peers.
    pub(crate) fn evict_idle(&self, is_peer: impl Fn(&Identity, SocketAddr) -> bool) {
        if let Some(current) = &mut *self.lock() {
            current.plain.evict_idle();
            current.anonymous.evict_idle();
            if let Some(pool) = &current.front_proxy {
                pool.evict_idle();
            }
            current.peers.retain(|(identity, address, _), known| {
                known.pool.evict_idle();
                is_peer(identity, *address)
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<CurrentPools>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refresh<'a>(
    current: &'a mut Option<CurrentPools>,
    targets: &ArcSwap<UpstreamTargets>,
    metrics: &Metrics,
) -> &'a mut CurrentPools {
    let targets = targets.load();
    let fresh = || CurrentPools {
        plain: pool(
            targets.plain.clone(),
            UpstreamIdentity::Plain.as_str(),
            metrics,
        ),
        anonymous: pool(
            targets.plain.clone(),
            UpstreamIdentity::Plain.as_str(),
            metrics,
        ),
        front_proxy: (targets.front_proxy.clone())
            .map(|target| pool(target, UpstreamIdentity::FrontProxy.as_str(), metrics)),
        peers: HashMap::new(),
        targets: targets.clone(),
    };
    if (current.as_ref()).is_some_and(|it| !Arc::ptr_eq(&it.targets, &targets)) {
        *current = None;
    }
    current.get_or_insert_with(fresh)
}

fn pool(target: Target, identity: &'static str, metrics: &Metrics) -> Arc<Pool> {
    let metrics = Arc::new(UpstreamMetrics::new(identity, metrics));
    Pool::new(target, PoolConfig::default(), metrics)
}
