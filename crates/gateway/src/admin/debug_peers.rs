//! `/debug/peers`: the state of the peers, the registry and the local server.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde::Serialize;
use skewbridge_discovery::Index;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{MicroTime, Peer, reachability};

use crate::cluster_state::{Cluster, ClusterHandle};
use crate::local_identity::{LeaseRenewer, LocalIdentity};
use crate::peer_config::PeeringDisabled;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct View {
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
    identity: String,
    version: Option<String>,
    address: Option<String>,
    /// Whether the registry has that address now.
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

/// The indented JSON document.
pub(crate) fn json(cluster_handle: &Result<Arc<ClusterHandle>, PeeringDisabled>) -> String {
    let view = match cluster_handle {
        Err(why) => View {
            local_only: Some(why.to_string()),
            waiting_for: None,
            local: None,
            registry: None,
            peers: Vec::new(),
        },
        Ok(cluster_handle) => view(
            &cluster_handle.cluster.load(),
            &cluster_handle.local,
            &cluster_handle.registry.borrow(),
        ),
    };
    let mut text = serde_json::to_string_pretty(&view).unwrap_or_default();
    text.push('\n');
    text
}

fn view(cluster: &Cluster, own: &LocalIdentity, registry: &RegistryStatus) -> View {
    let peers = &cluster.peers.peers;
    let index = |peer: &Arc<Peer>| -> Option<Arc<_>> { peer.served.clone() };
    let served: Vec<_> = peers.iter().filter_map(index).collect();
    let local = cluster.local.as_ref();
    let others: Vec<&Index> = served.iter().map(|it| &*it.index).collect();
    View {
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
    }
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
