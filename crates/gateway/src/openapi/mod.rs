//! OpenAPI of the whole cluster: which documents the local server does not have
//! whole, and the same completed with what peers publish. KEP-4020 leaves this out,
//! and `kubectl explain` and validation then know half of the cluster.

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

pub(crate) use cache::{OpenApiCache, Part, Published};

/// A document.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Page {
    /// `/openapi/v2`
    Everything,
    /// `/openapi/v3/apis/GROUP/VERSION`
    GroupVersion {
        /// Empty for the core group.
        group: String,
        version: String,
    },
}

impl Page {
    /// Where every server has it.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Everything => "/openapi/v2".to_owned(),
            Self::GroupVersion { group, version } if group.is_empty() => {
                format!("/openapi/v3/api/{version}")
            }
            Self::GroupVersion { group, version } => format!("/openapi/v3/apis/{group}/{version}"),
        }
    }

    pub(crate) fn spec(&self) -> Spec {
        match self {
            Self::Everything => Spec::V2,
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
            (kind, subkind) => Format::from_media_type(spec, &format!("{kind}/{subkind}")),
        });
    formats.next()
}

/// Who adds something to what the local server has of a document.
pub(crate) type PeerIds = Vec<Identity>;

/// A request to complete a document with what peers publish.
#[derive(Debug)]
pub(crate) enum MergeRequest {
    /// The list of documents; the bytes are the local server's.
    Index {
        local: Bytes,
        /// Who adds to which group-version.
        contributors: Vec<((String, String), PeerIds)>,
        reply: oneshot::Sender<Option<Vec<u8>>>,
    },
    /// A document.
    Document(Box<DocumentRequest>),
}

/// A request for one document.
#[derive(Debug)]
pub(crate) struct DocumentRequest {
    pub(crate) page: Page,
    pub(crate) format: Format,
    pub(crate) local: Local,
    pub(crate) contributors: PeerIds,
    /// Group-versions that peers may add to.
    pub(crate) incomplete: Vec<(String, String)>,
    pub(crate) reply: oneshot::Sender<Option<std::sync::Arc<Published>>>,
}

/// What the local server has of a document, as far as it has just said.
#[derive(Debug, Clone)]
pub(crate) enum Local {
    /// Nothing.
    Nothing,
    /// This one, and if it was sent along, here it is.
    Tagged(HeaderValue, Option<Bytes>),
}

/// Merged OpenAPI documents: the cache, and requests to the merger.
#[derive(Debug)]
pub(crate) struct OpenApiService {
    pub(crate) cache: OpenApiCache,
    orders: mpsc::Sender<MergeRequest>,
}

/// How long a request waits for peers and for merging.
const MERGE_TIMEOUT: Duration = Duration::from_secs(8);

/// Merge requests that wait. A request that does not fit gets the document of the local server.
const MAX_MERGE_REQUESTS: usize = 64;

impl OpenApiService {
    pub(crate) fn new() -> (Self, mpsc::Receiver<MergeRequest>) {
        let (orders, receiver) = mpsc::channel(MAX_MERGE_REQUESTS);
        let openapi = Self {
            cache: OpenApiCache::default(),
            orders,
        };
        (openapi, receiver)
    }

    /// The list, completed; none where that is not possible now.
    pub(crate) async fn index(
        &self,
        local: Bytes,
        contributors: Vec<((String, String), PeerIds)>,
    ) -> Option<Vec<u8>> {
        let (reply, answer) = oneshot::channel();
        let order = MergeRequest::Index {
            local,
            contributors,
            reply,
        };
        self.orders.try_send(order).ok()?;
        timeout(MERGE_TIMEOUT, answer).await.ok()?.ok()?
    }

    /// A document, completed; none where that is not possible now.
    pub(crate) async fn document(
        &self,
        order: impl FnOnce(oneshot::Sender<Option<std::sync::Arc<Published>>>) -> DocumentRequest,
    ) -> Option<std::sync::Arc<Published>> {
        let (reply, answer) = oneshot::channel();
        let order = MergeRequest::Document(Box::new(order(reply)));
        self.orders.try_send(order).ok()?;
        timeout(MERGE_TIMEOUT, answer).await.ok()?.ok()?
    }
}
