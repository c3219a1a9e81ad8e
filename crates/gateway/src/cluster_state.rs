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

/// The state of the cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    /// The APIs of the local server.
    pub local: Option<Arc<ServedApis>>,
    /// The other servers.
    pub peers: Peers,
    /// Group-versions that all servers share, so that no request for them is rerouted: custom
    /// resources and aggregated APIs. `None` until they have been listed.
    pub shared: Option<Arc<SharedGroupVersions>>,
    /// Merged discovery; `None` if it equals that of the local server.
    pub view: Option<Arc<View>>,
    /// The registry has not been read yet. It may contain served records of servers that do not
    /// answer.
    pub awaits_registry: bool,
}

/// The servers that serve a request, as far as is known.
#[derive(Debug, Clone)]
pub enum ServedBy {
    /// The local server, which also answers 404 if no server serves the request.
    Local,
    /// These peers, and not the local server.
    Peers(Vec<Arc<skewbridge_peer_directory::Peer>>),
    /// Not the local server. The APIs of this peer, which runs, are not known yet.
    Unknown(Identity),
    /// The state of the cluster is not complete yet.
    TooEarly(UnsyncedInput),
}

/// Inputs that must be read before requests can be routed (KEP-4020, Aggregation Layer: the
/// post-start hook).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsyncedInput {
    /// Discovery of the local server.
    LocalDiscovery,
    /// The identity Leases of all servers.
    Leases,
    /// The APIs that all servers share.
    Extensions,
    /// Served records of servers that do not answer.
    Registry,
}

impl UnsyncedInput {
    /// The name in error texts such as "the bridge does not know … yet".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LocalDiscovery => "the APIs of the kube-apiserver behind it",
            Self::Leases => "the identity Leases",
            Self::Extensions => "CustomResourceDefinitions and APIServices",
            Self::Registry => "the records of other servers in the registry",
        }
    }
}

impl Cluster {
    /// The first input that has not been read yet.
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

    /// The servers that serve a resource request.
    pub fn served_by(&self, request: &RequestInfo<'_>, now: Instant) -> ServedBy {
        if let Some(missing) = self.missing() {
            return ServedBy::TooEarly(missing);
        }
        if self.is_served_locally(request, now) {
            return ServedBy::Local;
        }
        self.served_by_peers(request, now)
    }

    /// The servers that serve a request that the local server does not serve. APIs that all
    /// servers share are served by none then: a peer that still lists one has not processed its
    /// deletion yet.
    pub fn served_by_peers(&self, request: &RequestInfo<'_>, now: Instant) -> ServedBy {
        if self.is_shared(request, now) {
            return ServedBy::Local;
        }
        match self.peers.lookup(request, now) {
            PeerLookup::Found(peers) => ServedBy::Peers(peers),
            PeerLookup::Unknown(identity) => ServedBy::Unknown(identity),
            PeerLookup::NoPeers | PeerLookup::NotServed => ServedBy::Local,
        }
    }

    /// Whether the local server is known to serve a request.
    pub fn is_served_locally(&self, request: &RequestInfo<'_>, now: Instant) -> bool {
        let local = self.local.as_ref();
        local.is_some_and(|local| local.index.serves(request)) || self.is_shared(request, now)
    }

    /// Whether all servers share the API of a request.
    pub fn is_shared(&self, request: &RequestInfo<'_>, now: Instant) -> bool {
        self.is_shared_version(request.group, request.version, now)
    }

    fn is_shared_version(&self, group: &str, version: &str, now: Instant) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| shared.contains(group, version, now))
    }

    /// The groups of a server, completed with the shared APIs of the local server, which served
    /// records omit.
    pub fn with_shared(&self, groups: &Document) -> Document {
        let now = Instant::now();
        let is_shared = |group: &str, version: &str| self.is_shared_version(group, version, now);
        match &self.local {
            Some(local) => groups.completed_with(&local.documents[1], is_shared),
            None => groups.clone(),
        }
    }

    /// The APIs that one server serves and none of the others. Shared APIs do not count, because
    /// served records omit them.
    pub fn served_alone(&self, server: &Index, others: &[&Index]) -> Vec<String> {
        let now = Instant::now();
        server.difference_without(others, |group, version| {
            self.is_shared_version(group, version, now)
        })
    }
}

/// The current cluster snapshot, and requests to the peer controller, which maintains it.
#[derive(Debug)]
pub struct ClusterHandle {
    /// The current snapshot.
    pub cluster: ArcSwap<Cluster>,
    /// The server identity and the address of this bridge.
    pub local: LocalIdentity,
    /// Whether addresses of peers can be read and published.
    pub registry: watch::Receiver<RegistryStatus>,
    /// Credentials that the local server has recently permitted to read discovery.
    pub(crate) discovery_authz: AuthzCache,
    /// A view with a newer document of the local server, and the view that it was built from.
    pub(crate) renewed: Mutex<Option<(Arc<View>, Arc<View>)>>,
    /// OpenAPI of the whole cluster.
    pub(crate) openapi: OpenApiService,
    hints: mpsc::Sender<ResyncHint>,
    refreshes: mpsc::Sender<oneshot::Sender<()>>,
}

/// A contradiction to the snapshot that a request has met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResyncHint {
    /// The local server does not serve an API that the snapshot says it serves.
    LocalChanged,
    /// This peer does not answer, or does not serve an API that the snapshot says it serves.
    PeerChanged(Identity),
}

/// Requests of the data path to the peer controller.
#[derive(Debug)]
pub(crate) struct ControllerRequests {
    pub(crate) hints: mpsc::Receiver<ResyncHint>,
    pub(crate) merges: mpsc::Receiver<MergeRequest>,
    pub(crate) refreshes: mpsc::Receiver<oneshot::Sender<()>>,
}

/// Requests that wait for discovery of the local server to be read again. One read serves all of
/// them.
const MAX_REFRESH_WAITERS: usize = 1_024;

/// How long a request waits for that. Afterwards the last known state is used.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

/// Hints that wait. Further requests send the same hint, so a hint that does not fit is dropped.
const MAX_HINTS: usize = 64;

impl ClusterHandle {
    /// A handle with an empty snapshot.
    pub(crate) fn new(local: LocalIdentity) -> (Self, ControllerRequests) {
        let (hints, hint_receiver) = mpsc::channel(MAX_HINTS);
        let (openapi, merge_receiver) = OpenApiService::new();
        let (refreshes, refresh_receiver) = mpsc::channel(MAX_REFRESH_WAITERS);
        let cluster_handle = Self {
            cluster: ArcSwap::default(),
            local,
            registry: watch::Sender::new(RegistryStatus::up("memory")).subscribe(),
            discovery_authz: AuthzCache::default(),
            renewed: Mutex::default(),
            openapi,
            hints,
            refreshes,
        };
        let requests = ControllerRequests {
            hints: hint_receiver,
            merges: merge_receiver,
            refreshes: refresh_receiver,
        };
        (cluster_handle, requests)
    }

    /// The cluster after discovery of the local server has been read again, once for all
    /// requests that wait meanwhile. If the server does not answer, the last known state.
    pub(crate) async fn refresh_local(&self) -> Arc<Cluster> {
        let (reply, refreshed) = oneshot::channel();
        if self.refreshes.try_send(reply).is_ok() {
            let _ = timeout(REFRESH_TIMEOUT, refreshed).await;
        }
        self.cluster.load_full()
    }

    /// The error text while it is not known whether this peer serves a request. It contains no
    /// address because any client may read it.
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

    /// Why the addresses of peers may be unknown. The text contains no address.
    pub(crate) fn registry_problem(&self) -> Option<&'static str> {
        self.registry.borrow().read_error.as_ref().map(|_| {
            "the registry of peer addresses cannot be read; /readyz?verbose at the bridge's \
             --admin-address says why"
        })
    }

    /// Host and identity of a peer, for error texts and log lines.
    pub(crate) fn name_of(&self, identity: &Identity) -> String {
        match self.cluster.load().peers.get(identity) {
            Some(peer) => peer.name().to_string(),
            None => identity.to_string(),
        }
    }

    /// Why the bridge is not ready: addresses of peers have never been read. If the registry fails
    /// later the bridge stays ready, because the last addresses stay in use.
    pub(crate) fn registry_unread(&self) -> Option<String> {
        let registry = self.registry.borrow();
        (!registry.read).then(|| match &registry.read_error {
            Some(error) => format!("peer addresses have not been read: {error}"),
            None => "peer addresses have not been read yet".to_owned(),
        })
    }

    /// Sends a hint to the peer controller.
    pub fn hint(&self, hint: ResyncHint) {
        let _ = self.hints.try_send(hint);
    }
}
