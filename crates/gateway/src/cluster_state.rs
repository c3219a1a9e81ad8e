//! The cluster snapshot: read by every request, replaced as a whole when something changes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use skewbridge_discovery::{Document, Index};
use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Identity, PeerLookup, Peers, ServedApis, SharedGroupVersions};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::discovery_view::{AuthzCache, View};
use crate::local_identity::LocalIdentity;
use crate::openapi::{MergeRequest, OpenApiService};

/// What is known of the cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    /// What the kube-apiserver behind this bridge serves.
    pub local: Option<Arc<ServedApis>>,
    /// The other servers.
    pub peers: Peers,
    /// Whose APIs all servers share, so that no peer is asked for them: custom
    /// resources and aggregated APIs. `None` until they have been read.
    pub shared: Option<Arc<SharedGroupVersions>>,
    /// What all of them serve, as one; none where that is what the local one does.
    pub view: Option<Arc<View>>,
    /// The registry has not been read yet, and may still tell what servers serve that
    /// do not answer.
    pub awaits_registry: bool,
}

/// Where a request is served, as far as is known.
#[derive(Debug, Clone)]
pub enum ServedBy {
    /// By the kube-apiserver behind this bridge, which also says 404 to what
    /// nobody serves.
    Local,
    /// By these peers, and not here.
    Peers(Vec<Arc<skewbridge_peer_directory::Peer>>),
    /// Not here, and this peer, which runs, has not said yet whether it does.
    Unknown(Identity),
    /// It is too early to tell.
    TooEarly(UnsyncedInput),
}

/// What has to be known first (KEP-4020, Aggregation Layer: the post-start
/// hook).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsyncedInput {
    /// What the local server serves.
    LocalDiscovery,
    /// Which servers there are.
    Leases,
    /// What all servers share.
    Extensions,
    /// What the registry has of servers that do not answer.
    Registry,
}

impl UnsyncedInput {
    /// What is being waited for.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LocalDiscovery => "what the kube-apiserver behind it serves",
            Self::Leases => "the identity Leases",
            Self::Extensions => "CustomResourceDefinitions and APIServices",
            Self::Registry => "the records of other servers in the registry",
        }
    }
}

impl Cluster {
    /// What is not known yet.
    pub fn missing(&self) -> Option<UnsyncedInput> {
        if self.local.is_none() {
            Some(UnsyncedInput::LocalDiscovery)
        } else if !self.peers.leases_listed {
            Some(UnsyncedInput::Leases)
        } else if self.shared.is_none() {
            Some(UnsyncedInput::Extensions)
        } else if self.awaits_registry {
            Some(UnsyncedInput::Registry)
        } else {
            None
        }
    }

    /// Where a request for something of the API is served.
    pub fn place(&self, request: &RequestInfo<'_>, now: Instant) -> ServedBy {
        if let Some(missing) = self.missing() {
            return ServedBy::TooEarly(missing);
        }
        if self.is_here(request, now) {
            return ServedBy::Local;
        }
        self.elsewhere(request, now)
    }

    /// Where it is served if the local server does not. What all servers share
    /// is nowhere then: a peer that still lists it has not noticed its deletion.
    pub fn elsewhere(&self, request: &RequestInfo<'_>, now: Instant) -> ServedBy {
        if self.is_shared(request, now) {
            return ServedBy::Local;
        }
        match self.peers.lookup(request, now) {
            PeerLookup::Found(peers) => ServedBy::Peers(peers),
            PeerLookup::Unknown(identity) => ServedBy::Unknown(identity),
            PeerLookup::NoPeers | PeerLookup::NotServed => ServedBy::Local,
        }
    }

    /// Whether the local server is known to serve it.
    pub fn is_here(&self, request: &RequestInfo<'_>, now: Instant) -> bool {
        let local = self.local.as_ref();
        local.is_some_and(|local| local.index.serves(request)) || self.is_shared(request, now)
    }

    fn is_shared(&self, request: &RequestInfo<'_>, now: Instant) -> bool {
        self.is_shared_version(request.group, request.version, now)
    }

    fn is_shared_version(&self, group: &str, version: &str, now: Instant) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| shared.contains(group, version, now))
    }

    /// What a server serves in groups, completed with what all servers share as the local
    /// server has it: served records leave that out.
    pub fn with_shared(&self, groups: &Document) -> Document {
        let now = Instant::now();
        let is_shared = |group: &str, version: &str| self.is_shared_version(group, version, now);
        match &self.local {
            Some(local) => groups.completed_with(&local.documents[1], is_shared),
            None => groups.clone(),
        }
    }

    /// What a server serves and none of the others does. What all servers share is no
    /// difference: served records leave it out.
    pub fn served_alone(&self, server: &Index, others: &[&Index]) -> Vec<String> {
        let now = Instant::now();
        server.difference_without(others, |group, version| {
            self.is_shared_version(group, version, now)
        })
    }
}

/// The cluster as it is now, and a way to say that it looks different.
#[derive(Debug)]
pub struct ClusterHandle {
    /// What is known.
    pub cluster: ArcSwap<Cluster>,
    /// As whom the bridge takes part.
    pub local: LocalIdentity,
    /// Whether addresses of peers can be read and published.
    pub registry: watch::Receiver<RegistryStatus>,
    /// Whom the local server has lately let read discovery.
    pub(crate) discovery_authz: AuthzCache,
    /// A view with news of the local server, and the one it was made of.
    pub(crate) renewed: Mutex<Option<(Arc<View>, Arc<View>)>>,
    /// OpenAPI of the whole cluster.
    pub(crate) openapi: OpenApiService,
    hints: mpsc::Sender<ResyncHint>,
    looks: mpsc::Sender<oneshot::Sender<()>>,
}

/// Something that a request has found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResyncHint {
    /// The local server does not serve what it is known to serve.
    LocalChanged,
    /// This peer does not answer, or not as it should.
    Doubt(Identity),
}

/// Requests of the data path to the peer controller.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) hints: mpsc::Receiver<ResyncHint>,
    pub(crate) orders: mpsc::Receiver<MergeRequest>,
    pub(crate) looks: mpsc::Receiver<oneshot::Sender<()>>,
}

/// Requests that wait for discovery of the local server to be read again. One read serves all of
/// them.
const MAX_REFRESH_WAITERS: usize = 1_024;

/// How long a request waits for that. Afterwards the last known state is used.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

/// Hints that wait. They are repeated, so one that does not fit is dropped.
const MAX_HINTS: usize = 64;

impl ClusterHandle {
    /// Nothing is known yet.
    pub(crate) fn new(local: LocalIdentity) -> (Self, Requests) {
        let (hints, heard) = mpsc::channel(MAX_HINTS);
        let (openapi, orders) = OpenApiService::new();
        let (looks, looked) = mpsc::channel(MAX_REFRESH_WAITERS);
        let cluster_handle = Self {
            cluster: ArcSwap::default(),
            local,
            registry: watch::Sender::new(RegistryStatus::up("memory")).subscribe(),
            discovery_authz: AuthzCache::default(),
            renewed: Mutex::default(),
            openapi,
            hints,
            looks,
        };
        let requests = Requests {
            hints: heard,
            orders,
            looks: looked,
        };
        (cluster_handle, requests)
    }

    /// The cluster after discovery of the local server has been read again, once for all
    /// requests that wait meanwhile. If the server does not answer, the last known state.
    pub(crate) async fn refresh_local(&self) -> Arc<Cluster> {
        let (reply, looked) = oneshot::channel();
        if self.looks.try_send(reply).is_ok() {
            let _ = timeout(REFRESH_TIMEOUT, looked).await;
        }
        self.cluster.load_full()
    }

    /// What to answer while it is not known whether this peer serves a request. It
    /// names no address: any client may read it.
    pub(crate) fn unknown_peer(&self, identity: &Identity) -> String {
        let name = self.name_of(identity);
        let cluster = self.cluster.load();
        let has_address = (cluster.peers.get(identity)).is_some_and(|it| it.address.is_some());
        let why = match self.registry_problem() {
            Some(why) if !has_address => format!("; {why}"),
            _ => String::new(),
        };
        format!("not served here, and what {name} serves is not known yet{why}")
    }

    /// Why the addresses of peers may be unknown, without an address in it.
    pub(crate) fn registry_problem(&self) -> Option<&'static str> {
        self.registry.borrow().read_error.as_ref().map(|_| {
            "the registry of peer addresses cannot be read; /readyz?verbose at the bridge's \
             --admin-address says why"
        })
    }

    /// Host and identity of a peer, for texts.
    pub(crate) fn name_of(&self, identity: &Identity) -> String {
        match self.cluster.load().peers.get(identity) {
            Some(peer) => peer.name().to_string(),
            None => identity.to_string(),
        }
    }

    /// Why the registry keeps the bridge from being ready: addresses of peers have
    /// never been read. One that fails later does not, since what was read stays in
    /// use.
    pub(crate) fn registry_unread(&self) -> Option<String> {
        let registry = self.registry.borrow();
        (!registry.read).then(|| match &registry.read_error {
            Some(error) => format!("peer addresses have not been read: {error}"),
            None => "peer addresses have not been read yet".to_owned(),
        })
    }

    /// Says what a request has found out.
    pub fn hint(&self, hint: ResyncHint) {
        let _ = self.hints.try_send(hint);
    }
}
