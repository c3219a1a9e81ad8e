//! The cluster snapshot: read by every request, replaced as a whole when something changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use skewbridge_discovery::{Document, Index};
use skewbridge_k8s_api::request_info::RequestInfo;
use skewbridge_k8s_api::version::Version;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Identity, PeerLookup, Peers, ServedApis, SharedGroupVersions};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::admission_guard::AdmissionPolicies;
use crate::discovery_view::freshness::{
    EventClock, Freshness, LocalDiscoveryState, REVALIDATION_AGE,
};
use crate::discovery_view::{AuthzCache, View};
use crate::field_guard::FieldDifferences;
use crate::local_health::LocalHealth;
use crate::local_identity::LocalIdentity;
use crate::metrics::discovery::DiscoveryMetrics;
use crate::openapi::{MergeRequest, OpenApiService};
use crate::server_report::ServerReports;

/// The state of the cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    /// The APIs of the local server.
    pub local: Option<Arc<ServedApis>>,
    /// Whether the local server can be expected to answer.
    pub local_health: Arc<LocalHealth>,
    /// The other servers.
    pub peers: Peers,
    /// Group-versions that all servers share, so that no request for them is rerouted: custom
    /// resources and aggregated APIs. `None` until they have been listed.
    pub shared: Option<Arc<SharedGroupVersions>>,
    /// Merged discovery; `None` if it equals that of the local server.
    pub view: Option<Arc<View>>,
    /// Whether discovery of the local server can be out of date.
    pub local_discovery: LocalDiscoveryState,
    /// The registry has not been read yet. It may contain served records of servers that do not
    /// answer.
    pub awaits_registry: bool,
    /// Kinds whose fields differ between servers.
    pub fields: Arc<FieldDifferences>,
    /// Admission policies in force.
    pub policies: Arc<AdmissionPolicies>,
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
    /// The version of the local server, if known.
    pub fn local_version(&self) -> Option<Version> {
        self.local.as_ref()?.version
    }

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

    /// Whether a server may have been replaced by another version since its APIs were read.
    pub fn is_unconfirmed(&self, now: Instant) -> bool {
        // A sole server is not compared with any other.
        let local = &self.local_health.confirmation;
        !self.peers.peers.is_empty() && (!local.is_confirmed() || self.peers.has_unconfirmed(now))
    }

    /// A running server of which nothing is known. It may have more fields and enforce more policies
    /// than the local server, unless a known server is newer than that anyway.
    pub fn unread_peer(&self, now: Instant) -> Option<&Identity> {
        let unread = self.peers.unread(now)?;
        let newest = self
            .peers
            .peers
            .iter()
            .filter_map(|peer| peer.version())
            .max();
        (newest <= self.local_version()).then_some(&unread.identity)
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
    /// Writes of CRDs and `APIServices` through this bridge.
    shared_api_writes: EventClock,
    /// Polls of the local server that no request waits for.
    revalidations: EventClock,
    /// OpenAPI of the whole cluster.
    pub(crate) openapi: OpenApiService,
    /// What peers report of themselves.
    pub(crate) reports: ServerReports,
    hints: mpsc::Sender<ResyncHint>,
    policy_writes: mpsc::Sender<PolicyWrite>,
    refreshes: mpsc::Sender<oneshot::Sender<()>>,
    confirmations: mpsc::Sender<oneshot::Sender<()>>,
}

/// Why servers are polled earlier: mostly an observation of a request that contradicts the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResyncHint {
    /// The local server does not serve an API that it serves according to the snapshot.
    LocalChanged,
    /// This peer does not answer, or does not serve an API that it serves according to the snapshot.
    PeerChanged(Identity),
    /// The server of this peer, which is behind this bridge too, has returned.
    PeerReturned(Identity),
    /// An administrator looks at the status: all peers are polled soon.
    Observed,
}

/// A client has written an admission policy through this bridge.
#[derive(Debug)]
pub(crate) struct PolicyWrite {
    /// The resource of the policy.
    pub(crate) resource: String,
    pub(crate) stage: PolicyWriteStage,
    /// Notified when the cluster snapshot contains the write, or that it is overdue.
    pub(crate) reply: oneshot::Sender<()>,
}

/// The stage of the response to the write of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicyWriteStage {
    /// The response waits for the policy.
    Held,
    /// The response does not wait any longer: until the policy is known, every write may match it.
    Overdue,
}

/// Requests of the data path to the peer controller.
#[derive(Debug)]
pub(crate) struct ControllerRequests {
    pub(crate) policy_writes: mpsc::Receiver<PolicyWrite>,
    pub(crate) hints: mpsc::Receiver<ResyncHint>,
    pub(crate) merges: mpsc::Receiver<MergeRequest>,
    pub(crate) refreshes: mpsc::Receiver<oneshot::Sender<()>>,
    pub(crate) confirmations: mpsc::Receiver<oneshot::Sender<()>>,
}

/// Requests that wait for discovery of the local server to be read again. One read serves all of
/// them.
const MAX_REFRESH_WAITERS: usize = 1_024;

/// How long a request waits for that. Afterwards the last known state is used.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a write waits until servers that may have been replaced have been read again. A server that
/// is down refuses the connection at once. Afterwards the last known state is used.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes that have not been taken over by the peer controller yet; further ones wait.
const CONFIRMATION_QUEUE_LEN: usize = 64;

/// Writes of admission policies in the queue of the peer controller. The response to another one is held
/// until there is room.
const MAX_POLICY_WRITES: usize = 64;

/// How long the response to the write of an admission policy waits until this bridge has read the policy.
/// Then all writes are placed as if they matched it: without a server that enforces the policies they
/// fail. So it is long enough for a list through a busy server, or through another one after a restart.
const POLICY_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout for the peer controller to record that a policy write is overdue.
const POLICY_OVERDUE_TIMEOUT: Duration = Duration::from_millis(500);

/// Hints that wait. Further requests send the same hint, so a hint that does not fit is dropped.
const MAX_HINTS: usize = 64;

impl ClusterHandle {
    /// A handle with an empty snapshot.
    pub(crate) fn new(local: LocalIdentity) -> (Self, ControllerRequests) {
        let (hints, hint_receiver) = mpsc::channel(MAX_HINTS);
        let (policy_writes, policy_write_receiver) = mpsc::channel(MAX_POLICY_WRITES);
        let (openapi, merge_receiver) = OpenApiService::new();
        let (refreshes, refresh_receiver) = mpsc::channel(MAX_REFRESH_WAITERS);
        let (confirmations, confirmation_receiver) = mpsc::channel(CONFIRMATION_QUEUE_LEN);
        let cluster_handle = Self {
            cluster: ArcSwap::default(),
            local,
            registry: watch::Sender::new(RegistryStatus::up("memory")).subscribe(),
            discovery_authz: AuthzCache::default(),
            shared_api_writes: EventClock::new(),
            revalidations: EventClock::new(),
            openapi,
            reports: ServerReports::default(),
            hints,
            policy_writes,
            refreshes,
            confirmations,
        };
        let requests = ControllerRequests {
            policy_writes: policy_write_receiver,
            hints: hint_receiver,
            merges: merge_receiver,
            refreshes: refresh_receiver,
            confirmations: confirmation_receiver,
        };
        (cluster_handle, requests)
    }

    /// The cluster with discovery of the local server as it is now: from memory, or after a poll if
    /// the local server may have other APIs by now. `None` if it cannot be read, although the local server
    /// is available; while it is not, the last known state counts.
    pub(crate) async fn with_current_discovery(
        &self,
        metrics: &DiscoveryMetrics,
    ) -> Option<Arc<Cluster>> {
        let cluster = self.cluster.load_full();
        let now = Instant::now();
        let is_confirmed = cluster.local_health.confirmation.is_confirmed();
        let last_write = self.shared_api_writes.last();
        match (cluster.local_discovery).freshness(last_write, is_confirmed, now) {
            Freshness::Current => {
                metrics.memory_answer();
                Some(cluster)
            }
            Freshness::RevalidationDue => {
                metrics.memory_answer();
                if self.revalidations.note_after(REVALIDATION_AGE, now) {
                    let _ = self.refreshes.try_send(oneshot::channel().0);
                }
                Some(cluster)
            }
            Freshness::Outdated => {
                let cluster = self.refresh_local().await;
                let polled_at = cluster.local_discovery.polled_at;
                let is_read = polled_at.is_some_and(|polled_at| polled_at >= now);
                (is_read || !cluster.local_health.is_available()).then_some(cluster)
            }
        }
    }

    /// A client has written a CRD or an `APIService`: its next discovery must not come from before.
    pub(crate) fn note_shared_api_write(&self) {
        self.shared_api_writes.note(Instant::now());
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

    /// Waits, for a bounded time, until every server that may have been replaced has been read again or
    /// does not answer, and the cluster snapshot contains the result.
    pub(crate) async fn confirm_servers(&self) {
        let (reply, confirmed) = oneshot::channel();
        let confirm = async {
            if self.confirmations.send(reply).await.is_ok() {
                let _ = confirmed.await;
            }
        };
        let _ = timeout(CONFIRMATION_TIMEOUT, confirm).await;
    }

    /// Waits until the cluster snapshot contains a write of a policy that a server has accepted.
    pub(crate) async fn await_policy_write(&self, resource: &str) {
        // The controller drops the reply if it cannot read the policies again, for instance because
        // their watch has been replaced: the write is not known then.
        let is_known = self.send_policy_write(resource, PolicyWriteStage::Held);
        if let Ok(Some(())) = timeout(POLICY_WRITE_TIMEOUT, is_known).await {
            return;
        }
        let is_noted = self.send_policy_write(resource, PolicyWriteStage::Overdue);
        let _ = timeout(POLICY_OVERDUE_TIMEOUT, is_noted).await;
    }

    /// Waits for the reply of the controller, and before for room in its queue; `None` without a reply.
    async fn send_policy_write(&self, resource: &str, stage: PolicyWriteStage) -> Option<()> {
        let (reply, replied) = oneshot::channel();
        let write = PolicyWrite {
            resource: resource.to_owned(),
            stage,
            reply,
        };
        self.policy_writes.send(write).await.ok()?;
        replied.await.ok()
    }

    /// The error text while it is not known whether this peer serves a request. It contains no
    /// address because any client may read it.
    pub(crate) fn unknown_peer(&self, identity: &Identity) -> String {
        let name = match identity.address() {
            Some(_) => "a kube-apiserver whose identity is not known".to_owned(),
            None => self.name_of(identity),
        };
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
             --admin-address shows the cause"
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    fn handle() -> (ClusterHandle, ControllerRequests) {
        let identity = Identity::named("apiserver-a").unwrap();
        let address = ([127, 0, 0, 1], 6443).into();
        ClusterHandle::new(LocalIdentity::new(identity, address))
    }

    /// Replies to policy writes until there are no more; returns their stages.
    async fn replies(requests: &mut ControllerRequests, replies: &[bool]) -> Vec<PolicyWriteStage> {
        let mut stages = Vec::new();
        for is_known in replies {
            let write = requests.policy_writes.recv().await.unwrap();
            stages.push(write.stage);
            if *is_known {
                write.reply.send(()).unwrap();
            }
        }
        assert!(requests.policy_writes.try_recv().is_err());
        stages
    }

    #[tokio::test]
    async fn a_policy_write_whose_reply_is_dropped_is_overdue() {
        use PolicyWriteStage::{Held, Overdue};
        for (known, expected) in [
            (&[true][..], &[Held][..]),
            (&[false, true], &[Held, Overdue]),
        ] {
            let (handle, mut requests) = handle();
            let writes = handle.await_policy_write("mutatingadmissionpolicies");
            let (stages, ()) = tokio::join!(replies(&mut requests, known), writes);
            assert_eq!(stages, expected);
        }
    }

    #[tokio::test]
    async fn a_policy_write_is_held_also_while_the_queue_is_full() {
        let (handle, mut requests) = handle();
        let mut writes: Vec<_> = (0..=MAX_POLICY_WRITES)
            .map(|_| Box::pin(handle.await_policy_write("mutatingadmissionpolicies")))
            .collect();
        for write in &mut writes {
            let is_held = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_pending()));
            assert!(is_held.await);
        }
        let all_known = [true; MAX_POLICY_WRITES + 1];
        let finish = async {
            for write in writes {
                write.await;
            }
        };
        let (stages, ()) = tokio::join!(replies(&mut requests, &all_known), finish);
        assert_eq!(stages, [PolicyWriteStage::Held; MAX_POLICY_WRITES + 1]);
    }
}
