//! Merged OpenAPI of the cluster: documents of the local server, completed with those of peers.
//! KEP-4020 does not cover OpenAPI; without this, `kubectl explain` and validation only know the
//! APIs of one server.

mod cache;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use skewbridge_k8s_api::content_negotiation::sorted_accept;
pub(crate) use skewbridge_openapi::Format;
use skewbridge_openapi::Spec;
use skewbridge_peer_directory::Identity;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

pub(crate) use cache::{MergedDocument, OpenApiCache, Part};

/// An OpenAPI document.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum DocumentId {
    /// `/openapi/v2`
    V2,
    /// `/openapi/v3/apis/GROUP/VERSION`
    GroupVersion {
        /// Empty for the core group.
        group: String,
        version: String,
    },
}

impl DocumentId {
    /// The path of the document on every server.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::V2 => "/openapi/v2".to_owned(),
            Self::GroupVersion { group, version } if group.is_empty() => {
                format!("/openapi/v3/api/{version}")
            }
            Self::GroupVersion { group, version } => format!("/openapi/v3/apis/{group}/{version}"),
        }
    }

    pub(crate) fn spec(&self) -> Spec {
        match self {
            Self::V2 => Spec::V2,
            Self::GroupVersion { .. } => Spec::V3,
        }
    }
}

/// The format that kube-apiserver would choose; `None` is 406.
pub(crate) fn negotiate(headers: &HeaderMap, spec: Spec) -> Option<Format> {
    let Some(ranges) = sorted_accept(headers) else {
        return Some(Format::Json);
    };
    let mut formats = ranges
        .iter()
        .filter_map(|range| match (&*range.kind, &*range.subtype) {
            ("*" | "application", "*") => Some(Format::Json),
            (kind, subtype) => Format::from_media_type(spec, &format!("{kind}/{subtype}")),
        });
    formats.next()
}

/// The peers that serve parts of a document that the local server lacks.
pub(crate) type PeerIds = Vec<Identity>;

/// A request to merge a document of the local server with those of peers.
#[derive(Debug)]
pub(crate) enum MergeRequest {
    /// The list of documents; `local` is the list of the local server.
    Index {
        local: Bytes,
        /// The peers that contribute to each group-version.
        contributors: Vec<((String, String), PeerIds)>,
        reply: oneshot::Sender<Option<Vec<u8>>>,
    },
    /// A document.
    Document(Box<DocumentRequest>),
    /// A document or the list of one peer, without merging.
    OfPeer {
        peer: Identity,
        path: String,
        reply: oneshot::Sender<PeerDocument>,
    },
}

/// The response of one peer.
#[derive(Debug)]
pub(crate) enum PeerDocument {
    Found(Bytes),
    /// The peer does not have the document.
    NotFound,
    /// The peer does not answer.
    Unavailable,
}

/// A request for one document.
#[derive(Debug)]
pub(crate) struct DocumentRequest {
    pub(crate) document_id: DocumentId,
    pub(crate) format: Format,
    pub(crate) local: LocalDocument,
    pub(crate) contributors: PeerIds,
    /// Group-versions that peers contribute to.
    pub(crate) incomplete: Vec<(String, String)>,
    pub(crate) reply: oneshot::Sender<Option<std::sync::Arc<MergedDocument>>>,
}

/// The document of the local server, as far as its response shows.
#[derive(Debug, Clone)]
pub(crate) enum LocalDocument {
    /// The local server does not have the document.
    Missing,
    /// The `ETag` of the document, and its content if the response contained it.
    Tagged(HeaderValue, Option<Bytes>),
}

impl LocalDocument {
    pub(crate) fn etag(&self) -> Option<&HeaderValue> {
        match self {
            Self::Missing => None,
            Self::Tagged(etag, _) => Some(etag),
        }
    }
}

/// Merged OpenAPI documents: the cache, and requests to the merger.
#[derive(Debug)]
pub(crate) struct OpenApiService {
    pub(crate) cache: OpenApiCache,
    merge_requests: mpsc::Sender<MergeRequest>,
}

/// How long a request waits for peers and for merging.
const MERGE_TIMEOUT: Duration = Duration::from_secs(8);

/// Merge requests that wait. A request that does not fit gets the document of the local server.
const MAX_MERGE_REQUESTS: usize = 64;

impl OpenApiService {
    pub(crate) fn new() -> (Self, mpsc::Receiver<MergeRequest>) {
        let (merge_requests, receiver) = mpsc::channel(MAX_MERGE_REQUESTS);
        let openapi = Self {
            cache: OpenApiCache::default(),
            merge_requests,
        };
        (openapi, receiver)
    }

    /// The merged list; `None` if it is not available in time.
    pub(crate) async fn index(
        &self,
        local: Bytes,
        contributors: Vec<((String, String), PeerIds)>,
    ) -> Option<Vec<u8>> {
        let (reply, response) = oneshot::channel();
        let request = MergeRequest::Index {
            local,
            contributors,
            reply,
        };
        self.merge_requests.try_send(request).ok()?;
        timeout(MERGE_TIMEOUT, response).await.ok()?.ok()?
    }

    /// A document or the list of one peer.
    pub(crate) async fn of_peer(&self, peer: Identity, path: String) -> PeerDocument {
        let (reply, response) = oneshot::channel();
        let request = MergeRequest::OfPeer { peer, path, reply };
        if self.merge_requests.try_send(request).is_err() {
            return PeerDocument::Unavailable;
        }
        match timeout(MERGE_TIMEOUT, response).await {
            Ok(Ok(document)) => document,
            Ok(Err(_)) | Err(_) => PeerDocument::Unavailable,
        }
    }

    /// A merged document; `None` if it is not available in time.
    pub(crate) async fn document(
        &self,
        request: impl FnOnce(oneshot::Sender<Option<std::sync::Arc<MergedDocument>>>) -> DocumentRequest,
    ) -> Option<std::sync::Arc<MergedDocument>> {
        let (reply, response) = oneshot::channel();
        let request = MergeRequest::Document(Box::new(request(reply)));
        self.merge_requests.try_send(request).ok()?;
        timeout(MERGE_TIMEOUT, response).await.ok()?.ok()?
    }
}
