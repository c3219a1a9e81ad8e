//! The APIs of each server of the cluster, for `skewbridge skew`: requested at `/apis` with a media
//! type that kube-apiserver ignores.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use skewbridge_discovery::accept::LOCAL_DOCUMENT;
use skewbridge_discovery::servers::{self, Leader, MEDIA_TYPE};
use skewbridge_discovery::{ServerDiscovery, ServerDiscoveryList};
use skewbridge_http_engine::body::ResponseBody;
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Identity, MicroTime, Peer, ServedApis, reachability};

use crate::cluster_state::Cluster;
use crate::discovery_view::discovery_request::is_apis;
use crate::local_identity::LocalIdentity;

/// The list, for callers that the local server permits to read discovery.
#[derive(Debug)]
pub(crate) struct ServerList;

impl ServerList {
    /// Whether a request is for the list.
    pub(crate) fn is_requested(head: &Parts, path: &str) -> bool {
        is_apis(head, path) && head.method == Method::GET && servers::is_requested(&head.headers)
    }

    /// Turns the request into one to the local server, whose response shows whether the caller may
    /// read.
    pub(crate) fn prepare_local_request(head: &mut Parts) {
        head.headers.remove(ACCEPT_ENCODING);
        head.headers.remove(IF_NONE_MATCH);
        head.headers
            .insert(ACCEPT, HeaderValue::from_static(LOCAL_DOCUMENT));
    }

    /// Replaces the local server's response, if it permits the caller to read.
    pub(crate) fn replace(
        response: Response<ResponseBody>,
        own: &LocalIdentity,
        cluster: &Cluster,
        leaders: Vec<Leader>,
    ) -> Response<ResponseBody> {
        let list = ServerDiscoveryList {
            leaders,
            ..list(own, cluster)
        };
        replace(response, &list)
    }

    /// The list of a bridge without peering. `is_gate_off` distinguishes the two reasons; only
    /// administrators see which flag is missing.
    pub(crate) fn of_local_only(
        response: Response<ResponseBody>,
        is_gate_off: bool,
        leaders: Vec<Leader>,
    ) -> Response<ResponseBody> {
        let reason = if is_gate_off {
            GATE_OFF
        } else {
            NOT_CONFIGURED
        };
        let list = ServerDiscoveryList {
            local_only: Some(reason.to_owned()),
            leaders,
            ..empty_list()
        };
        replace(response, &list)
    }
}

const GATE_OFF: &str = "the feature gate UnknownVersionInteroperabilityProxy is off";

const NOT_CONFIGURED: &str =
    "its flags for peering are incomplete; /debug/peers of the bridge names what is missing";

/// Replaces a 200 response of the local server by the list.
fn replace(response: Response<ResponseBody>, list: &ServerDiscoveryList) -> Response<ResponseBody> {
    if response.status() != StatusCode::OK {
        return response;
    }
    // Serialising a plain structure with string keys cannot fail.
    let list = serde_json::to_vec(list).unwrap_or_default();
    let list = Bytes::from(list);
    let (mut head, _) = response.into_parts();
    head.headers.remove(ETAG);
    head.headers.remove(http::header::CONTENT_ENCODING);
    head.headers
        .insert(http::header::CONTENT_LENGTH, list.len().into());
    head.headers
        .insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    head.headers
        .insert(VARY, HeaderValue::from_static("Accept"));
    Response::from_parts(head, ResponseBody::full(list))
}

const UNREACHABLE: &str = "it does not answer; /debug/peers of the bridge shows the error";

fn list(own: &LocalIdentity, cluster: &Cluster) -> ServerDiscoveryList {
    let local = ServerDiscovery {
        local: true,
        reachable: cluster.local.is_some(),
        host: own.name().host().map(str::to_owned),
        ..server(&own.identity, cluster.local.as_ref(), cluster)
    };
    let peers = cluster.peers.peers.iter();
    let peers = peers.map(|peer| peer_discovery(peer, cluster));
    let mut servers: Vec<_> = peers.chain([local]).collect();
    servers.sort_by(|one, other| one.identity.cmp(&other.identity));
    ServerDiscoveryList {
        servers,
        ..empty_list()
    }
}

fn empty_list() -> ServerDiscoveryList {
    ServerDiscoveryList {
        bridge_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        ..ServerDiscoveryList::default()
    }
}

/// The entry of a peer. Every caller that may read discovery gets it, so it contains no addresses
/// and no error texts with addresses.
fn peer_discovery(peer: &Peer, cluster: &Cluster) -> ServerDiscovery {
    // Only the reachability is used, which does not depend on the registry.
    let registry = RegistryStatus::up("none");
    let is_reachable = reachability(peer, &registry, Instant::now()).is_reachable();
    ServerDiscovery {
        host: peer.name().host().map(str::to_owned),
        reachable: peer.served.is_some() && is_reachable,
        last_sync: peer.last_success.map(timestamp),
        problem: (!is_reachable).then(|| UNREACHABLE.to_owned()),
        ..server(&peer.identity, peer.served.as_ref(), cluster)
    }
}

fn server(
    identity: &Identity,
    served: Option<&Arc<ServedApis>>,
    cluster: &Cluster,
) -> ServerDiscovery {
    let version = served.and_then(|served| served.version.as_ref());
    ServerDiscovery {
        identity: identity.to_string(),
        version: version.map(|version| format!("v{version}")),
        groups: served.map(|served| {
            let [api, apis] = &served.documents;
            [api.items.clone(), cluster.with_shared(apis).items].concat()
        }),
        ..ServerDiscovery::default()
    }
}

fn timestamp(at: SystemTime) -> String {
    MicroTime::from(at).to_string()
}
