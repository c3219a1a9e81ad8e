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

use crate::body::ResponseBody;
use crate::cluster::Cluster;

/// The list, to be sent to whom the local server lets read discovery.
#[derive(Debug)]
pub(crate) struct Roll(Bytes);

impl Roll {
    /// Whether a request asks for it.
    pub(crate) fn of(head: &Parts, own: &Identity, cluster: &Cluster) -> Option<Self> {
        let path = head.uri.path();
        let is_asked_for = head.method == Method::GET
            && path.strip_suffix('/').unwrap_or(path) == "/apis"
            && servers::is_wanted(&head.headers);
        is_asked_for.then(|| {
            // A plain structure with string keys does not fail to serialise.
            let list = serde_json::to_vec(&list(own, cluster)).unwrap_or_default();
            Self(list.into())
        })
    }

    /// Makes the request one to the local server, which says who may read.
    pub(crate) fn ask_local(head: &mut Parts) {
        head.headers.remove(ACCEPT_ENCODING);
        head.headers.remove(IF_NONE_MATCH);
        head.headers
            .insert(ACCEPT, HeaderValue::from_static(LOCAL_DOCUMENT));
    }

    /// Takes the local server's place, if it lets the caller read.
    pub(crate) fn take_place_of(self, answer: Response<ResponseBody>) -> Response<ResponseBody> {
        if answer.status() != StatusCode::OK {
            return answer;
        }
        let (mut head, _) = answer.into_parts();
        head.headers.remove(ETAG);
        head.headers.remove(http::header::CONTENT_ENCODING);
        head.headers
            .insert(http::header::CONTENT_LENGTH, self.0.len().into());
        head.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        head.headers
            .insert(VARY, HeaderValue::from_static("Accept"));
        Response::from_parts(head, ResponseBody::full(self.0))
    }
}

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

fn told_by(peer: &Peer) -> ServerDiscovery {
    ServerDiscovery {
        address: peer.address.map(|address| address.to_string()),
        reachable: peer.served.is_some() && peer.problem.is_none(),
        last_sync: peer.succeeded.map(timestamp),
        problem: peer.problem.clone(),
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
