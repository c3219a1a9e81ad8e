//! The servers of the control plane, as this bridge knows them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use skewbridge_discovery::Index;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Identity, Peer, Reachability, ServedApis, reachability};

use super::timestamp;
use crate::cluster_state::{Cluster, ClusterHandle};
use crate::health::{BackendHealth, Health, UpstreamHealth};
use crate::peer_config::hostname;
use crate::server_report::ServerReport;
use crate::status::timeline::ServerSample;
use crate::status::{ReachedBy, Server, ServerState};
use crate::upstream::{PresentedCertificates, authority};

/// All servers: those behind the bridge first, then peers by identity.
pub(super) fn samples(health: &Health, now: Instant) -> Vec<ServerSample> {
    let presented = &health.live.presented;
    let backends = health.backends.load();
    let mut samples: Vec<_> = backends.iter().map(|it| local(it, presented)).collect();
    // The peers of one of several backends are the others.
    if let [sole] = backends.as_slice()
        && !health.is_balanced
        && let Ok(cluster_handle) = &sole.cluster_handle
    {
        let cluster = cluster_handle.cluster.load();
        let peers = cluster.peers.peers.iter();
        samples.extend(peers.map(|it| peer(cluster_handle, it, presented, now)));
        let own = &cluster_handle.local;
        let host = own.name().host().map(str::to_owned);
        let host = host.unwrap_or_else(|| own.identity.to_string());
        reached_by_this_bridge(&mut samples, &host);
        reached_by_peers(&mut samples, cluster_handle, &cluster);
    } else {
        // The bridge is in front of several servers, or has no peers.
        reached_by_this_bridge(&mut samples, &hostname());
    }
    samples
}

fn local(backend: &BackendHealth, presented: &PresentedCertificates) -> ServerSample {
    let (state, problem) = match &**backend.upstream.load() {
        UpstreamHealth::Unknown => (ServerState::Unknown, None),
        UpstreamHealth::Ready => (ServerState::Ready, None),
        UpstreamHealth::NotReady(cause) => (ServerState::NotReady, Some(cause.clone())),
    };
    let report = backend.report.load_full();
    let handle = backend.cluster_handle.as_ref().ok();
    let apis = handle.and_then(|it| it.cluster.load().local.clone());
    let is_draining = backend.is_draining.load(Ordering::Relaxed);
    let server = Server {
        identity: handle.map_or_else(
            || backend.check_name.clone(),
            |it| it.local.identity.to_string(),
        ),
        host: match handle.and_then(|it| it.local.name().host()) {
            Some(host) => Some(host.to_owned()),
            None => Some(backend.name.clone()),
        },
        local: true,
        state,
        problem: problem.or_else(|| {
            is_draining.then(|| "no longer listed: it gets no new requests".to_owned())
        }),
        address: Some(backend.name.clone()),
        bridge: true,
        alive: true,
        healthy: state.is_good() && !is_draining,
        certificate_expires: presented.not_after(&backend.name).map(timestamp),
        ..versions_and_apis(apis.as_deref(), report.as_deref())
    };
    ServerSample {
        server,
        index: apis.map(|it| it.index.clone()),
    }
}

fn peer(
    cluster_handle: &ClusterHandle,
    peer: &Peer,
    presented: &PresentedCertificates,
    now: Instant,
) -> ServerSample {
    let reachability = reachability(peer, &cluster_handle.registry.borrow(), now);
    let report = cluster_handle.reports.get(&peer.identity);
    let address = peer
        .address
        .map(|it| authority(&it.ip().to_string(), it.port()));
    let expires = address.as_deref().and_then(|it| presented.not_after(it));
    let server = Server {
        identity: peer.identity.to_string(),
        host: peer.name().host().map(str::to_owned),
        local: false,
        state: match &reachability {
            Reachability::Reachable => ServerState::Reachable,
            Reachability::NotPolled => ServerState::Unknown,
            Reachability::Unreachable(_) => ServerState::Unreachable,
        },
        problem: reachability.problem().map(str::to_owned),
        address: peer.address.map(|it| it.to_string()),
        bridge: peer.record.is_bridge,
        bridge_left: peer.record.bridge_left,
        alive: peer.alive_until > now,
        healthy: reachability.is_reachable() && peer.health.is_healthy(now),
        requests_in_flight: peer.health.in_flight(),
        certificate_expires: expires.map(timestamp),
        ..versions_and_apis(peer.served.as_deref(), report.as_deref())
    };
    ServerSample {
        server,
        index: peer.served.as_ref().map(|it| it.index.clone()),
    }
}

/// Versions and the number of APIs.
fn versions_and_apis(served: Option<&ServedApis>, report: Option<&ServerReport>) -> Server {
    let version = served.and_then(|it| it.version);
    let reported = report.and_then(|it| it.git_version.clone());
    Server {
        // The report of the local server is newer than its discovery.
        version: match (version, &reported) {
            (Some(version), None) => Some(version.to_string()),
            (_, Some(text)) => {
                let parsed = text.parse::<skewbridge_k8s_api::version::Version>();
                parsed.ok().or(version).map(|it| it.to_string())
            }
            (None, None) => None,
        },
        git_version: reported,
        emulated_version: report.and_then(|it| it.emulated.clone()),
        min_compatibility_version: report.and_then(|it| it.min_compatible.clone()),
        apis: served.map_or(0, |it| it.index.entries().count()),
        ..Server::default()
    }
}

fn reached_by_this_bridge(samples: &mut [ServerSample], host: &str) {
    for ServerSample { server, .. } in samples {
        server.reached_by.push(ReachedBy {
            bridge: host.to_owned(),
            reached: server.state.is_good(),
        });
    }
}

/// Adds the bridges of peers that report which servers they reach.
fn reached_by_peers(
    samples: &mut [ServerSample],
    cluster_handle: &ClusterHandle,
    cluster: &Cluster,
) {
    let reports = cluster.peers.peers.iter().filter_map(|peer| {
        let reaches = cluster_handle.reports.get(&peer.identity)?;
        let reaches = reaches.reaches.clone()?;
        let is_reachable = reachability(peer, &RegistryStatus::up("none"), Instant::now());
        is_reachable
            .is_reachable()
            .then_some((peer.clone(), reaches))
    });
    let reports: Vec<_> = reports.collect();
    for ServerSample { server, .. } in samples {
        let name = |peer: &Arc<Peer>| {
            let host = peer.name().host().map(str::to_owned);
            host.unwrap_or_else(|| peer.identity.to_string())
        };
        let others = reports.iter().filter_map(|(peer, reaches)| {
            let is_itself = peer.identity.as_str() == server.identity;
            let identity = Identity::named(&server.identity).ok()?;
            (!is_itself).then(|| ReachedBy {
                bridge: name(peer),
                reached: reaches.contains(&identity),
            })
        });
        server.reached_by.extend(others);
    }
}

/// Whether requests can be sent to a server now. A local one that is no longer listed gets none; a peer
/// that has failed recently does, if no other one serves an API.
pub(super) fn takes_requests(server: &Server) -> bool {
    server.state.is_good() && (server.healthy || !server.local)
}

/// The columns of the matrix of APIs.
pub(super) fn columns(samples: &[ServerSample]) -> Vec<super::matrix::ServerColumn> {
    let column = |it: &ServerSample| super::matrix::ServerColumn {
        name: it.server.name().to_owned(),
        index: it.index.clone() as Option<Arc<Index>>,
        takes_requests: takes_requests(&it.server),
    };
    samples.iter().map(column).collect()
}
