//! Every server of the cluster by itself, for `skewbridge skew`: asked for at `/apis`
//! by a media type that kube-apiserver passes over.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use skewbridge_discovery::accept::LOCAL_DOCUMENT;
use skewbridge_discovery::servers::{self, MEDIA_TYPE};
use skewbridge_discovery::{ServerDiscovery, ServerDiscoveryList};
use skewbridge_peers::{Identity, MicroTime, Peer, Served};

use super::question::is_apis;
use crate::body::ResponseBody;
use crate::cluster::Cluster;

/// The list, to be sent to whom the local server lets read discovery.
#[derive(Debug)]
pub(crate) struct Roll;

impl Roll {
    /// Whether a request asks for it.
    pub(crate) fn is_asked_for(head: &Parts) -> bool {
        is_apis(head) && head.method == Method::GET && servers::is_wanted(&head.headers)
    }

    /// Makes the request one to the local server, which says who may read.
    pub(crate) fn ask_local(head: &mut Parts) {
        head.headers.remove(ACCEPT_ENCODING);
        head.headers.remove(IF_NONE_MATCH);
        head.headers
            .insert(ACCEPT, HeaderValue::from_static(LOCAL_DOCUMENT));
    }

    /// Takes the local server's place, if it lets the caller read.
    pub(crate) fn take_place_of(
        answer: Response<ResponseBody>,
        own: &Identity,
        cluster: &Cluster,
    ) -> Response<ResponseBody> {
        if answer.status() != StatusCode::OK {
            return answer;
        }
        // A plain structure with string keys does not fail to serialise.
        let list = serde_json::to_vec(&list(own, cluster)).unwrap_or_default();
        let list = Bytes::from(list);
        let (mut head, _) = answer.into_parts();
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
}

const UNREACHABLE: &str = "it does not answer; /debug/peers of the bridge says why";

fn list(own: &Identity, cluster: &Cluster) -> ServerDiscoveryList {
    let local = ServerDiscovery {
        local: true,
        reachable: cluster.local.is_some(),
        ..server(own, cluster.local.as_ref())
    };
    let peers = cluster.peers.peers.iter().map(|peer| told_by(peer));
    let mut servers: Vec<_> = peers.chain([local]).collect();
    servers.sort_by(|one, other| one.identity.cmp(&other.identity));
    ServerDiscoveryList { servers }
}

/// Whoever may read discovery sees this: no addresses, and no errors that have some.
fn told_by(peer: &Peer) -> ServerDiscovery {
    ServerDiscovery {
        reachable: peer.served.is_some() && peer.problem.is_none(),
        last_sync: peer.succeeded.map(timestamp),
        problem: peer.problem.as_ref().map(|_| UNREACHABLE.to_owned()),
        ..server(&peer.identity, peer.served.as_ref())
    }
}

fn server(identity: &Identity, served: Option<&Arc<Served>>) -> ServerDiscovery {
    let version = served.and_then(|served| served.version.as_ref());
    ServerDiscovery {
        identity: identity.to_string(),
        version: version.map(|version| format!("v{version}")),
        // With what all servers share too: it is no difference.
        groups: served.map(|served| {
            let documents = served.documents.iter();
            documents.flat_map(|it| it.items.clone()).collect()
        }),
        ..ServerDiscovery::default()
    }
}

fn timestamp(at: SystemTime) -> String {
    MicroTime::from(at).to_string()
}
