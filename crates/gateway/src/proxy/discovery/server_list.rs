//! Every server of the cluster by itself, for `skewbridge skew`: asked for at `/apis`
//! by a media type that kube-apiserver passes over.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use skewbridge_discovery::accept::LOCAL_DOCUMENT;
use skewbridge_discovery::servers::{self, MEDIA_TYPE};
use skewbridge_discovery::{ServerDiscovery, ServerDiscoveryList};
use skewbridge_peer_directory::registry::RegistryStatus;
use skewbridge_peer_directory::{Identity, MicroTime, Peer, ServedApis, reachability};

use crate::body::ResponseBody;
use crate::cluster_state::Cluster;
use crate::discovery_view::discovery_request::is_apis;
use crate::local_identity::LocalIdentity;

/// The list, to be sent to whom the local server lets read discovery.
#[derive(Debug)]
pub(crate) struct ServerList;

impl ServerList {
    /// Whether a request asks for it.
    pub(crate) fn is_requested(head: &Parts, path: &str) -> bool {
        is_apis(head, path) && head.method == Method::GET && servers::is_requested(&head.headers)
    }

    /// Makes the request one to the local server, which says who may read.
    pub(crate) fn prepare_local_request(head: &mut Parts) {
        head.headers.remove(ACCEPT_ENCODING);
        head.headers.remove(IF_NONE_MATCH);
        head.headers
            .insert(ACCEPT, HeaderValue::from_static(LOCAL_DOCUMENT));
    }

    /// Takes the local server's place, if it lets the caller read.
    pub(crate) fn replace(
        response: Response<ResponseBody>,
        own: &LocalIdentity,
        cluster: &Cluster,
    ) -> Response<ResponseBody> {
        replace(response, &list(own, cluster))
    }

    /// The same of a bridge without peering. `is_gate_off` tells its two causes apart; which
    /// flag is missing is for administrators only.
    pub(crate) fn of_local_only(
        response: Response<ResponseBody>,
        is_gate_off: bool,
    ) -> Response<ResponseBody> {
        let reason = if is_gate_off {
            GATE_OFF
        } else {
            NOT_CONFIGURED
        };
        let list = ServerDiscoveryList {
            local_only: Some(reason.to_owned()),
            ..ServerDiscoveryList::default()
        };
        replace(response, &list)
    }
}

const GATE_OFF: &str = "the feature gate UnknownVersionInteroperabilityProxy is off";

const NOT_CONFIGURED: &str =
    "its flags for peering are incomplete; /debug/peers of the bridge names what is missing";

/// Puts the list in the place of an answer by which the local server permits the caller to read.
fn replace(response: Response<ResponseBody>, list: &ServerDiscoveryList) -> Response<ResponseBody> {
    if response.status() != StatusCode::OK {
        return response;
    }
    // A plain structure with string keys does not fail to serialise.
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

const UNREACHABLE: &str = "it does not response; /debug/peers of the bridge says why";

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
        ..ServerDiscoveryList::default()
    }
}

/// Whoever may read discovery sees this: no addresses, and no errors that have some.
fn peer_discovery(peer: &Peer, cluster: &Cluster) -> ServerDiscovery {
    // Only whether it is reachable counts here, which no registry decides.
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
