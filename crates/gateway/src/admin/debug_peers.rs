//! `/debug/peers`: the state of the peers, the registry and the local server.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde::Serialize;
use skewbridge_discovery::Index;
use skewbridge_peer_directory::registry::{AddressOrigin, RegistryStatus};
use skewbridge_peer_directory::{MicroTime, Peer, reachability};

use crate::admission_guard::{PolicyKind, PolicyMatches};
use crate::cluster_state::{Cluster, ClusterHandle};
use crate::health::BackendHealth;
use crate::local_identity::{LeaseRenewer, LocalIdentity};
use crate::peer_config::PeeringDisabled;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeersDocument {
    /// Why peering is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    local_only: Option<String>,
    /// The input that must be read before requests can be routed.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<LocalView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registry: Option<RegistryView>,
    peers: Vec<PeerView>,
    /// Admission policies that not all servers enforce.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    policies: Vec<PolicyView>,
}

/// A kind of admission policy that not all servers enforce.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyView {
    resource: String,
    version: String,
    /// The number of policies; absent if they cannot be read, so that every write may match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<usize>,
    matches: PolicyMatches,
}

impl From<&PolicyKind> for PolicyView {
    fn from(kind: &PolicyKind) -> Self {
        Self {
            resource: kind.resource.clone(),
            version: kind.version.clone(),
            objects: kind.objects,
            matches: kind.matches.clone(),
        }
    }
}

/// The registry of peer addresses.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RegistryView {
    kind: &'static str,
    /// Whether the last attempt to read and to publish succeeded.
    up: bool,
    /// The last error, also if later attempts succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// When `up` last changed, in RFC 3339 format.
    since: String,
}

impl From<&RegistryStatus> for RegistryView {
    fn from(status: &RegistryStatus) -> Self {
        Self {
            kind: status.kind,
            up: status.up,
            last_error: status.last_error.clone(),
            since: MicroTime::from(status.since).to_string(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LocalView {
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    identity: String,
    /// The address that is published for peers.
    address: String,
    lease_kept_by: LeaseRenewer,
    /// Why the identity is probably wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    version: Option<String>,
    serves_alone: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(clippy::struct_excessive_bools)] // a JSON document
struct PeerView {
    /// The label `kubernetes.io/hostname` of its identity Lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// The name of its identity Lease, or its address if its Lease is not known.
    identity: String,
    version: Option<String>,
    address: Option<String>,
    /// Where the address is from: `endpoints`, the registry, or the served record of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    address_source: Option<&'static str>,
    /// The address of the server itself, which gets requests that its bridge does not accept.
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback_address: Option<String>,
    /// Whether a bridge answered the last poll at that address.
    bridge: bool,
    /// Whether the registry or an `EndpointSlice` has that address now.
    published: bool,
    /// `bridge-left`: its bridge has announced its departure.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    /// Whether its Lease has not expired.
    alive: bool,
    /// Whether the last poll and the last request were answered.
    reachable: bool,
    /// Whether it is reachable and has not failed recently, so that it is preferred.
    healthy: bool,
    requests_under_way: usize,
    seconds_since_sync: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// APIs that no other server of the cluster serves.
    serves_alone: Vec<String>,
}

/// One of several kube-apiservers behind the bridge, and the others as its peers.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BackendView {
    upstream: String,
    #[serde(flatten)]
    view: PeersDocument,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BackendsView {
    backends: Vec<BackendView>,
}

/// The indented JSON document.
pub(crate) fn json(backends: &[BackendHealth], is_balanced: bool) -> String {
    let text = match backends {
        [sole] if !is_balanced => serde_json::to_string_pretty(&backend_view(&sole.cluster_handle)),
        many => {
            let views = many.iter().map(|it| BackendView {
                upstream: it.name.clone(),
                view: backend_view(&it.cluster_handle),
            });
            let backends = views.collect();
            serde_json::to_string_pretty(&BackendsView { backends })
        }
    };
    let mut text = text.unwrap_or_default();
    text.push('\n');
    text
}

fn backend_view(cluster_handle: &Result<Arc<ClusterHandle>, PeeringDisabled>) -> PeersDocument {
    match cluster_handle {
        Err(why) => PeersDocument {
            local_only: Some(why.to_string()),
            waiting_for: None,
            local: None,
            registry: None,
            peers: Vec::new(),
            policies: Vec::new(),
        },
        Ok(cluster_handle) => view(
            &cluster_handle.cluster.load(),
            &cluster_handle.local,
            &cluster_handle.registry.borrow(),
        ),
    }
}

fn view(cluster: &Cluster, own: &LocalIdentity, registry: &RegistryStatus) -> PeersDocument {
    let peers = &cluster.peers.peers;
    let index = |peer: &Arc<Peer>| -> Option<Arc<_>> { peer.served.clone() };
    let served: Vec<_> = peers.iter().filter_map(index).collect();
    let local = cluster.local.as_ref();
    let others: Vec<&Index> = served.iter().map(|it| &*it.index).collect();
    PeersDocument {
        local_only: None,
        waiting_for: cluster
            .missing()
            .map(crate::cluster_state::UnsyncedInput::as_str),
        local: Some(LocalView {
            host: own.name().host().map(str::to_owned),
            identity: own.identity.to_string(),
            address: own.address.to_string(),
            lease_kept_by: own.renewed_by(),
            problem: own.mismatch_reason(),
            version: local
                .and_then(|it| it.version.as_ref())
                .map(ToString::to_string),
            serves_alone: local
                .map_or_else(Vec::new, |it| cluster.served_alone(&it.index, &others)),
        }),
        registry: Some(registry.into()),
        peers: peers
            .iter()
            .map(|peer| {
                let others: Vec<&Index> = (peers.iter())
                    .filter(|other| other.identity != peer.identity)
                    .filter_map(|other| other.served.as_deref())
                    .chain(local.map(Arc::as_ref))
                    .map(|served| &*served.index)
                    .collect();
                peer_view(cluster, peer, &others, registry)
            })
            .collect(),
        policies: cluster
            .policies
            .kinds
            .iter()
            .map(PolicyView::from)
            .collect(),
    }
}

/// Where the address of a peer is from.
fn address_source(peer: &Peer, registry: &RegistryStatus) -> Option<&'static str> {
    let origin = peer.record.origin.filter(|_| peer.address.is_some())?;
    Some(match origin {
        AddressOrigin::Endpoints => "endpoints",
        _ if !peer.published => "record",
        _ => registry.kind.split(',').next().unwrap_or_default(),
    })
}

fn peer_view(
    cluster: &Cluster,
    peer: &Peer,
    others: &[&Index],
    registry: &RegistryStatus,
) -> PeerView {
    let served = peer.served.as_ref();
    let now = Instant::now();
    let reachability = reachability(peer, registry, now);
    PeerView {
        host: peer.name().host().map(str::to_owned),
        identity: peer.identity.to_string(),
        version: served
            .and_then(|it| it.version.as_ref())
            .map(ToString::to_string),
        address: peer.address.map(|it| it.to_string()),
        address_source: address_source(peer, registry),
        fallback_address: (peer.record.fallback.as_ref())
            .and_then(|it| Some(it.address?.to_string())),
        bridge: peer.record.is_bridge,
        published: peer.published,
        state: peer.record.bridge_left.then_some("bridge-left"),
        alive: peer.alive_until > now,
        reachable: reachability.is_reachable(),
        healthy: reachability.is_reachable() && peer.health.is_healthy(now),
        requests_under_way: peer.health.in_flight(),
        seconds_since_sync: peer
            .last_success
            .and_then(|at| SystemTime::now().duration_since(at).ok())
            .map(|age| age.as_secs()),
        problem: reachability.problem().map(str::to_owned),
        serves_alone: served.map_or_else(Vec::new, |it| cluster.served_alone(&it.index, others)),
    }
}
