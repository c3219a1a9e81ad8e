//! Lists and watches the objects of one kind of admission policy, at a server that serves it.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_peer_directory::{Peer, order_candidates};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, sleep};

use super::Event;
use super::informer::{self, Change, FIRST_BACKOFF, MAX_BACKOFF, WatchTarget};
use crate::admission_guard::{ADMISSION_GROUP, PolicyObject};
use crate::cluster_state::Cluster;
use crate::control::internal_client::{InternalClient, InternalTarget};

/// The interval at which a watch checks whether its server still serves the kind and answers.
const SERVER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Objects in a page of a list. Each can have the maximum size of an object: a small page bounds the
/// memory.
const PAGE_SIZE: u32 = 20;

/// Changes that wait for the controller. The watch stops reading while it is full.
const CHANGE_QUEUE_LEN: usize = 16;

/// Requests for a new list that wait. One list serves all of them.
pub(super) const REFRESH_QUEUE_LEN: usize = 64;

/// A kind of policy, in the version in which it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WatchedKind {
    pub(super) resource: String,
    pub(super) version: String,
    /// Different for each watch, so that events of an earlier one are recognized.
    pub(super) watch_id: u64,
}

/// A change of the objects of a kind.
pub(super) struct PolicyEvent {
    pub(super) kind: WatchedKind,
    pub(super) change: Change<PolicyObject>,
    /// The requests for a new list that the watch had received when the list began.
    pub(super) refreshes_seen: u64,
    /// Notified when the change is in the cluster snapshot.
    pub(super) waiters: Vec<oneshot::Sender<()>>,
}

/// A server that serves the kind.
enum PolicyServer {
    Local,
    Peer(Arc<Peer>),
}

impl PolicyServer {
    /// The user needs rights to read policies, so `--bridge-user` has its groups at peers too.
    fn target(&self) -> InternalTarget<'_> {
        match self {
            Self::Local => InternalTarget::Upstream,
            Self::Peer(peer) => InternalTarget::PeerAsBridgeUser(peer),
        }
    }

    /// Whether the server serves the kind and is expected to answer, by the current snapshot.
    fn is_usable(&self, kind: &WatchedKind, cluster: &Cluster) -> bool {
        match self {
            Self::Local => kind.is_served_locally(cluster),
            Self::Peer(peer) => {
                let current = cluster.peers.get(&peer.identity);
                // It may be the address of the server behind a bridge that does not answer.
                let is_at = |it: &Peer| peer.address.is_some_and(|address| it.is_at(address));
                current.is_some_and(|it| {
                    is_at(it) && kind.is_served_by(it) && peer.health.is_reachable()
                })
            }
        }
    }
}

impl WatchedKind {
    fn is_served_locally(&self, cluster: &Cluster) -> bool {
        let local = cluster.local.as_ref();
        local.is_some_and(|it| {
            let (version, resource) = (&self.version, &self.resource);
            it.index.serves_resource(ADMISSION_GROUP, version, resource)
        })
    }

    fn is_served_by(&self, peer: &Peer) -> bool {
        let served = peer.served.as_ref();
        served.is_some_and(|it| {
            let (version, resource) = (&self.version, &self.resource);
            it.index.serves_resource(ADMISSION_GROUP, version, resource)
        })
    }

    /// The servers to read from, the best first.
    fn servers(&self, cluster: &Cluster, seed: u64) -> Vec<PolicyServer> {
        let peers = cluster.peers.peers.iter();
        let peers = peers.filter(|peer| self.is_served_by(peer) && peer.health.is_reachable());
        let peers = order_candidates(peers.cloned().collect(), seed, Instant::now());
        let local = (self.is_served_locally(cluster)).then_some(PolicyServer::Local);
        let peers = peers.into_iter().map(PolicyServer::Peer);
        local.into_iter().chain(peers).collect()
    }
}

/// A watch of one kind.
pub(super) struct PolicyWatch {
    client: Arc<InternalClient>,
    kind: WatchedKind,
    events: mpsc::Sender<Event>,
    refreshes: mpsc::Receiver<oneshot::Sender<()>>,
    /// Requests for a new list that have been received.
    refreshes_received: u64,
    /// Notified after the next list that begins.
    waiters: Vec<oneshot::Sender<()>>,
}

impl PolicyWatch {
    pub(super) fn new(
        client: Arc<InternalClient>,
        kind: WatchedKind,
        events: mpsc::Sender<Event>,
        refreshes: mpsc::Receiver<oneshot::Sender<()>>,
    ) -> Self {
        Self {
            client,
            kind,
            events,
            refreshes,
            refreshes_received: 0,
            waiters: Vec::new(),
        }
    }

    /// Lists and watches until the task is aborted or the controller has ended. Tries the next server
    /// after each failure.
    pub(super) async fn run(mut self) {
        let mut backoff = FIRST_BACKOFF;
        let mut failures = 0_usize;
        let mut last_problem = String::new();
        while !self.events.is_closed() {
            let began = Instant::now();
            let servers = self.servers();
            let outcome = match servers.get(failures.checked_rem(servers.len()).unwrap_or(0)) {
                Some(server) => self.list_and_watch(server).await,
                None => Err("no server that serves them can be reached".to_owned()),
            };
            if began.elapsed() > MAX_BACKOFF {
                backoff = FIRST_BACKOFF;
            }
            if let Err(problem) = outcome {
                failures = failures.wrapping_add(1);
                if problem != last_problem {
                    tracing::warn!(%problem, "cannot watch {}; the last known state stays in use", self.kind.resource);
                    last_problem.clone_from(&problem);
                }
                self.send(Change::Failed(problem), 0, Vec::new()).await;
                sleep(backoff).await;
            } else {
                failures = 0;
                last_problem.clear();
                if self.waiters.is_empty() {
                    tokio::select! {
                        () = sleep(backoff) => {}
                        Some(waiter) = self.refreshes.recv() => self.note_refresh(waiter),
                    }
                }
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    fn servers(&self) -> Vec<PolicyServer> {
        let bridge = &self.client.bridge;
        match &bridge.cluster_handle {
            Some(handle) => (self.kind).servers(&handle.cluster.load(), bridge.next_lb_seed()),
            None => Vec::new(),
        }
    }

    /// Lists and watches at one server until that fails, or a new list is requested.
    async fn list_and_watch(&mut self, server: &PolicyServer) -> Result<(), String> {
        let (kind, client) = (self.kind.clone(), self.client.clone());
        let path = format!("/apis/{ADMISSION_GROUP}/{}/{}", kind.version, kind.resource);
        let target = WatchTarget {
            path: &path,
            selector: "",
            page_size: PAGE_SIZE,
            description: &kind.resource,
        };
        let (sender, mut changes) = mpsc::channel(CHANGE_QUEUE_LEN);
        let watching = informer::list_and_watch(&client, server.target(), target, &sender);
        let mut watching = pin!(watching);
        // Requests that come during the list may be later than what it contains.
        let mut waiters = std::mem::take(&mut self.waiters);
        let refreshes_seen = self.refreshes_received;
        let mut is_listed = false;
        let mut checks = interval(SERVER_CHECK_INTERVAL);
        let outcome = loop {
            tokio::select! {
                biased;
                Some(change) = changes.recv() => {
                    let notified = match change {
                        Change::Listed(_) => std::mem::take(&mut waiters),
                        _ => Vec::new(),
                    };
                    is_listed = true;
                    self.send(change, refreshes_seen, notified).await;
                    if !self.waiters.is_empty() {
                        break Ok(());
                    }
                }
                outcome = &mut watching => break outcome,
                Some(waiter) = self.refreshes.recv() => {
                    self.note_refresh(waiter);
                    if is_listed {
                        break Ok(());
                    }
                }
                _ = checks.tick() => {
                    let cluster = client.bridge.cluster_handle.as_ref().map(|it| it.cluster.load());
                    if !cluster.is_some_and(|it| server.is_usable(&kind, &it)) {
                        break Err(format!("{path}: the server of the watch does not answer or does not serve it any more"));
                    }
                }
            }
        };
        self.waiters.append(&mut waiters);
        outcome
    }

    fn note_refresh(&mut self, waiter: oneshot::Sender<()>) {
        self.refreshes_received += 1;
        // Requests that have timed out must not accumulate.
        self.waiters.retain(|it| !it.is_closed());
        self.waiters.push(waiter);
    }

    async fn send(
        &self,
        change: Change<PolicyObject>,
        refreshes_seen: u64,
        waiters: Vec<oneshot::Sender<()>>,
    ) {
        let event = PolicyEvent {
            kind: self.kind.clone(),
            change,
            refreshes_seen,
            waiters,
        };
        let _ = self.events.send(Event::Policies(event)).await;
    }
}
